"""A question about a database, answered with a tool that gets its connection as a dependency."""

import asyncio
import os
import sys
from dataclasses import dataclass

import aiosqlite
from pydantic_ai import Agent, ModelRetry, RunContext

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")


@dataclass
class Shop:
    """What the tools work with."""

    database: aiosqlite.Connection


agent = Agent(MODEL, deps_type=Shop)


@agent.tool
async def orders(ctx: RunContext[Shop], customer: str) -> list[dict[str, object]]:
    """The orders of a customer.

    Args:
        customer: first and last name.
    """
    query = "SELECT item, price FROM orders WHERE customer = ?"
    rows = await ctx.deps.database.execute_fetchall(query, [customer])
    if not rows:
        known = await ctx.deps.database.execute_fetchall("SELECT DISTINCT customer FROM orders")
        raise ModelRetry(f"There is no {customer!r}; customers are {[name for (name,) in known]}")
    return [{"item": item, "price": price} for item, price in rows]


async def main(path: str, question: str) -> None:
    async with aiosqlite.connect(path) as database:
        result = await agent.run(question, deps=Shop(database))
        print(result.output)


asyncio.run(main(*sys.argv[1:]))

"""A question about a database, answered with a tool that gets its connection as a dependency."""

import asyncio
import os
import sys
from dataclasses import dataclass

import aiosqlite
from agents import Agent, RunContextWrapper, Runner, function_tool

MODEL = os.environ.get("MODEL", "gpt-5-mini")


@dataclass
class Shop:
    """What the tools work with."""

    database: aiosqlite.Connection


@function_tool
async def orders(ctx: RunContextWrapper[Shop], customer: str) -> list[dict[str, object]] | str:
    """The orders of a customer.

    Args:
        customer: first and last name.
    """
    query = "SELECT item, price FROM orders WHERE customer = ?"
    rows = await ctx.context.database.execute_fetchall(query, [customer])
    if not rows:
        known = await ctx.context.database.execute_fetchall("SELECT DISTINCT customer FROM orders")
        # Of an exception the model reads only that there was one: what it is to read is returned.
        return f"There is no {customer!r}; customers are {[name for (name,) in known]}"
    return [{"item": item, "price": price} for item, price in rows]


agent = Agent[Shop](name="clerk", model=MODEL, tools=[orders])


async def main(path: str, question: str) -> None:
    async with aiosqlite.connect(path) as database:
        result = await Runner.run(agent, question, context=Shop(database))
        print(result.final_output)


asyncio.run(main(*sys.argv[1:]))

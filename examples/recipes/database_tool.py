"""A question about a database, answered with a tool that gets its connection as a dependency.

python examples/recipes/database_tool.py SHOP.db "What did Ada order?"
"""

import asyncio
import os
import sys
from dataclasses import dataclass

import aiosqlite

from agent_core import AgentRuntime, ToolContext, ToolRetry, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")


@dataclass
class Shop:
    """What the tools work with."""

    database: aiosqlite.Connection


@tool(permission="readonly")
async def orders(customer: str, context: ToolContext[Shop]) -> list[dict[str, object]]:
    """The orders of a customer.

    Args:
        customer: first and last name.
    """
    query = "SELECT item, price FROM orders WHERE customer = ?"
    rows = await context.deps.database.execute_fetchall(query, [customer])
    if not rows:
        known = await context.deps.database.execute_fetchall("SELECT DISTINCT customer FROM orders")
        raise ToolRetry(f"There is no {customer!r}; customers are {[name for (name,) in known]}")
    return [{"item": item, "price": price} for item, price in rows]


async def main(path: str, question: str) -> None:
    async with aiosqlite.connect(path) as database, AgentRuntime(model=MODEL) as runtime:
        result = await runtime.run(question, tools=[orders], deps=Shop(database))
        print(result.output)


asyncio.run(main(*sys.argv[1:]))

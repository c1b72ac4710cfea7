"""A question about a database, answered with a tool that gets its connection as a dependency."""

import asyncio
import os
import sys
from dataclasses import dataclass

import aiosqlite
from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")


@dataclass
class Shop:
    """What the tools work with."""

    database: aiosqlite.Connection


@tool(parse_docstring=True)
async def orders(customer: str, runtime: ToolRuntime[Shop]) -> list[dict[str, object]] | str:
    """The orders of a customer.

    Args:
        customer: first and last name.
    """
    query = "SELECT item, price FROM orders WHERE customer = ?"
    rows = await runtime.context.database.execute_fetchall(query, [customer])
    if not rows:
        known = await runtime.context.database.execute_fetchall(
            "SELECT DISTINCT customer FROM orders"
        )
        # An exception would end the run: what the model is to read is returned.
        return f"There is no {customer!r}; customers are {[name for (name,) in known]}"
    return [{"item": item, "price": price} for item, price in rows]


agent = create_agent(MODEL, [orders], context_schema=Shop)


async def main(path: str, question: str) -> None:
    async with aiosqlite.connect(path) as database:
        asked = {"messages": [("user", question)]}
        answer = await agent.ainvoke(asked, context=Shop(database))
        print(answer["messages"][-1].text)


asyncio.run(main(*sys.argv[1:]))

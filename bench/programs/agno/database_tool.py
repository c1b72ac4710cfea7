"""A question about a database, answered with a tool that gets its connection as a dependency."""

import asyncio
import os
import sys

import aiosqlite
from agno.agent import Agent
from agno.exceptions import RetryAgentRun
from agno.models.openai import OpenAIChat
from agno.run import RunContext

MODEL = os.environ.get("MODEL", "gpt-5-mini")


async def orders(run_context: RunContext, customer: str) -> list[dict[str, object]]:
    """The orders of a customer.

    Args:
        customer: first and last name.
    """
    # Dependencies are a dict without types.
    database = run_context.dependencies["database"]
    query = "SELECT item, price FROM orders WHERE customer = ?"
    rows = await database.execute_fetchall(query, [customer])
    if not rows:
        known = await database.execute_fetchall("SELECT DISTINCT customer FROM orders")
        raise RetryAgentRun(
            f"There is no {customer!r}; customers are {[name for (name,) in known]}"
        )
    return [{"item": item, "price": price} for item, price in rows]


agent = Agent(model=OpenAIChat(MODEL), tools=[orders])


async def main(path: str, question: str) -> None:
    async with aiosqlite.connect(path) as database:
        result = await agent.arun(question, dependencies={"database": database})
        print(result.content)


asyncio.run(main(*sys.argv[1:]))

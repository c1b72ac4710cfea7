"""Read 100 invoices into rows: typed answers, ten at once, an end to what is spent."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Literal

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.run import RunStatus
from pydantic import BaseModel, Field

MODEL = os.environ.get("MODEL", "gpt-5-mini")


class Invoice(BaseModel):
    """What stands on an invoice."""

    number: str
    customer: str
    total: float = Field(ge=0)
    currency: Literal["EUR", "USD"]


agent = Agent(model=OpenAIChat(MODEL), instructions="Read the invoice.", output_schema=Invoice)
MOST_TOKENS = 500_000


async def main(folder: str) -> None:
    spent, at_once = 0, asyncio.Semaphore(10)

    async def read(file: Path) -> Invoice | str:
        nonlocal spent
        async with at_once:
            # There are no budgets: tokens of what has ended are all one can look at.
            if spent >= MOST_TOKENS:
                return f"{file.name}: the budget is spent"
            result = await agent.arun(file.read_text())
            spent += result.metrics.total_tokens
            # A run that fails says so in its status; an answer that does not fit is a text.
            is_read = result.status == RunStatus.completed and isinstance(result.content, Invoice)
            return result.content if is_read else f"{file.name}: {result.content}"

    found = await asyncio.gather(*map(read, sorted(Path(folder).glob("*.txt"))))
    for invoice in found:
        print(invoice.model_dump_json() if isinstance(invoice, Invoice) else json.dumps(invoice))
    print(f"{spent} tokens", file=sys.stderr)


asyncio.run(main(sys.argv[1]))

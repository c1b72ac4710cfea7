"""Read 100 invoices into rows: typed answers, ten at once, an end to what is spent."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Literal

from agents import Agent, AgentsException, Runner, Usage
from pydantic import BaseModel, Field

MODEL = os.environ.get("MODEL", "gpt-5-mini")


class Invoice(BaseModel):
    """What stands on an invoice."""

    number: str
    customer: str
    total: float = Field(ge=0)
    currency: Literal["EUR", "USD"]


agent = Agent(name="reader", model=MODEL, instructions="Read the invoice.", output_type=Invoice)
MOST_TOKENS = 500_000


async def main(folder: str) -> None:
    spent, at_once = Usage(), asyncio.Semaphore(10)

    async def read(file: Path) -> Invoice | str:
        async with at_once:
            # There are no budgets and no prices: tokens of what has ended are all one can look at.
            if spent.total_tokens >= MOST_TOKENS:
                return f"{file.name}: the budget is spent"
            try:
                result = await Runner.run(agent, file.read_text())
            except AgentsException as error:
                return f"{file.name}: {error}"
            spent.add(result.context_wrapper.usage)
            return result.final_output_as(Invoice)

    found = await asyncio.gather(*map(read, sorted(Path(folder).glob("*.txt"))))
    for invoice in found:
        print(invoice.model_dump_json() if isinstance(invoice, Invoice) else json.dumps(invoice))
    print(f"{spent.total_tokens} tokens", file=sys.stderr)


asyncio.run(main(sys.argv[1]))

"""Read 100 invoices into rows: typed answers, ten at once, never more than one dollar."""

import asyncio
import json
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, AgentRunError, UsageLimits
from pydantic_ai.usage import RunUsage

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")


class Invoice(BaseModel):
    """What stands on an invoice."""

    number: str
    customer: str
    total: float = Field(ge=0)
    currency: Literal["EUR", "USD"]


agent = Agent(MODEL, instructions="Read the invoice.", output_type=Invoice)


async def main(folder: str) -> None:
    spent, limits = RunUsage(), UsageLimits(cost_limit=Decimal(1), request_limit=None)
    at_once = asyncio.Semaphore(10)

    async def read(file: Path) -> Invoice | str:
        async with at_once:
            try:
                # Checked before each request against what has ended: ten at once can overshoot.
                result = await agent.run(file.read_text(), usage=spent, usage_limits=limits)
            except AgentRunError as error:
                return f"{file.name}: {error}"
            return result.output

    found = await asyncio.gather(*map(read, sorted(Path(folder).glob("*.txt"))))
    for invoice in found:
        print(invoice.model_dump_json() if isinstance(invoice, Invoice) else json.dumps(invoice))
    print(f"{spent.total_tokens} tokens", file=sys.stderr)


asyncio.run(main(sys.argv[1]))

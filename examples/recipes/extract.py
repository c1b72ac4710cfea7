"""Read 100 invoices into rows: typed answers, ten at once, never more than one dollar.

python examples/recipes/extract.py FOLDER
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from agent_core import AgentRuntime, BudgetPool, RunError, RunOptions

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")


class Invoice(BaseModel):
    """What stands on an invoice."""

    number: str
    customer: str
    total: float = Field(ge=0)
    currency: Literal["EUR", "USD"]


async def main(folder: str) -> None:
    files = sorted(Path(folder).glob("*.txt"))
    options = RunOptions(
        instructions="Read the invoice.", output_type=Invoice, tools=(), budget=BudgetPool(usd=1.00)
    )
    config = {"runtime": {"max_concurrent_runs": 10}}
    async with AgentRuntime(model=MODEL, config=config, persist=False) as runtime:

        async def read(file: Path) -> Invoice | str:
            try:
                result = await runtime.run(file.read_text(encoding="utf-8"), options=options)
            except RunError as error:
                return f"{file.name}: {error}"
            return result.output

        found = await asyncio.gather(*map(read, files))
    for invoice in found:
        print(invoice.model_dump_json() if isinstance(invoice, Invoice) else json.dumps(invoice))


asyncio.run(main(sys.argv[1]))

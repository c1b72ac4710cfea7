"""Read 100 invoices into rows: typed answers, ten at once, an end to what is spent."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Literal

from langchain.agents import create_agent
from langchain_core.callbacks import UsageMetadataCallbackHandler
from pydantic import BaseModel, Field

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")


class Invoice(BaseModel):
    """What stands on an invoice."""

    number: str
    customer: str
    total: float = Field(ge=0)
    currency: Literal["EUR", "USD"]


agent = create_agent(MODEL, system_prompt="Read the invoice.", response_format=Invoice)
MOST_TOKENS = 500_000


async def main(folder: str) -> None:
    spent, at_once = UsageMetadataCallbackHandler(), asyncio.Semaphore(10)

    async def read(file: Path) -> Invoice | str:
        async with at_once:
            # There are no budgets and no prices: tokens of what has ended are all one can look at.
            if sum(of["total_tokens"] for of in spent.usage_metadata.values()) >= MOST_TOKENS:
                return f"{file.name}: the budget is spent"
            try:
                asked = {"messages": [("user", file.read_text())]}
                answer = await agent.ainvoke(asked, {"callbacks": [spent]})
            except Exception as error:
                return f"{file.name}: {error}"
            return answer["structured_response"]

    found = await asyncio.gather(*map(read, sorted(Path(folder).glob("*.txt"))))
    for invoice in found:
        print(invoice.model_dump_json() if isinstance(invoice, Invoice) else json.dumps(invoice))
    print(f"{spent.usage_metadata}", file=sys.stderr)


asyncio.run(main(sys.argv[1]))

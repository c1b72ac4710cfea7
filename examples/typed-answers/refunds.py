"""An answer that is the call of a function, whose return value is the output.

    python examples/typed-answers/refunds.py

The model's replies come from `refunds.json`: the function refuses the first one, and carries out
the second one.
"""

import asyncio
import pathlib
from dataclasses import dataclass

from agent_core import AgentRuntime, RunResult, ToolContext, ToolRetry


@dataclass
class Receipt:
    order: str
    euros: float


async def refund(order: str, euros: float, context: ToolContext[dict[str, float]]) -> Receipt:
    """Refund an order.

    Args:
        euros: at most the price of the order.
    """
    if euros > context.deps.get(order, 0.0):
        raise ToolRetry(f"{order} did not cost {euros} euros")
    return Receipt(order, euros)


async def main(runtime: AgentRuntime, message: str, paid: dict[str, float]) -> Receipt:
    result: RunResult[Receipt] = await runtime.run(message, output_type=refund, deps=paid)
    return result.output


SCRIPT = pathlib.Path(__file__).with_name("refunds.json")
MODEL = {"provider": "scripted", "name": "replay", "path": str(SCRIPT)}


async def run() -> None:
    async with AgentRuntime(config={"model": MODEL}, persist=False) as runtime:
        receipt = await main(runtime, "Please refund my order A7.", {"A7": 9.5})
    print(f"refunded {receipt.euros:.2f} euros for {receipt.order}")


asyncio.run(run())

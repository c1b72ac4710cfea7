"""Evaluate an agent: every case with every model, answers kept as recordings, a report for each.

python examples/recipes/evaluation.py [MODEL...]
"""

import asyncio
import os
import sys

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Contains, MaxDuration

from agent_core import AgentRuntime, tool
from agent_core.testing.evals import evaluate

MODELS = sys.argv[1:] or [os.environ.get("MODEL", "openai:gpt-5-mini")]


@tool(permission="readonly")
def stock(item: str) -> int:
    """How many of an item are left."""
    return {"lamp": 12}.get(item, 0)


dataset = Dataset[str, str, None](
    name="stock",
    cases=[
        Case(name="lamps", inputs="How many lamps are left?", evaluators=[Contains("12")]),
        Case(name="chairs", inputs="How many chairs are left?", evaluators=[Contains("0")]),
    ],
    evaluators=[MaxDuration(seconds=60)],
)


async def main() -> None:
    async with AgentRuntime(model=MODELS[0], persist=False) as runtime:
        reports = await evaluate(
            runtime, dataset, MODELS, cache="recordings", tools=[stock], max_turns=5
        )
    for report in reports.values():
        report.print(include_input=True, include_output=True)


asyncio.run(main())

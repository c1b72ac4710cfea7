"""A job of many steps that continues after its process was killed."""

import asyncio
import os

from pydantic_ai import Agent
from pydantic_ai_harness import StepPersistence
from pydantic_ai_harness.step_persistence import SqliteStepStore, continue_run

store = SqliteStepStore(database="job.sqlite")
agent = Agent(os.environ["MODEL"], capabilities=[StepPersistence(store=store)])


@agent.tool_plain
async def measure(step: int) -> float:
    """Measure for some seconds."""
    print(f"measuring {step}", flush=True)
    await asyncio.sleep(float(os.environ["SECONDS"]))
    return step * 1.5


async def main() -> None:
    runs = await store.list_runs(conversation_id="job")
    history = await continue_run(store, run_id=runs[-1].run_id) if runs else None
    message = None if runs else "Measure the steps 1, 2 and 3."
    result = await agent.run(message, message_history=history, conversation_id="job")
    print(result.output)


asyncio.run(main())

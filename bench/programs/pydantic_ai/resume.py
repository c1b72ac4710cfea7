"""A job of many steps that continues after its process was killed."""

import asyncio
import os
from pathlib import Path

from pydantic_ai import Agent, ModelMessagesTypeAdapter

agent = Agent(os.environ["MODEL"])
file = Path("job.json")


@agent.tool_plain
async def measure(step: int) -> float:
    """Measure for some seconds."""
    print(f"measuring {step}", flush=True)
    await asyncio.sleep(float(os.environ["SECONDS"]))
    return step * 1.5


async def main() -> None:
    history = ModelMessagesTypeAdapter.validate_json(file.read_bytes()) if file.exists() else []
    message = None if history else "Measure the steps 1, 2 and 3."
    async with agent.iter(message, message_history=history) as run:
        async for node in run:
            if Agent.is_model_request_node(node):  # all calls of the last reply have ended
                file.write_bytes(
                    ModelMessagesTypeAdapter.dump_json([*run.all_messages(), node.request])
                )
        print(run.result.output)


asyncio.run(main())

"""A job of many steps that continues after its process was killed.

python examples/recipes/resume.py        # again, after a crash
"""

import asyncio
import os

from agent_core import AgentRuntime, tool


@tool(readonly=True)
async def measure(step: int) -> float:
    """Measure for some seconds."""
    print(f"measuring {step}", flush=True)
    await asyncio.sleep(float(os.environ.get("SECONDS", "1")))
    return step * 1.5


async def main() -> None:
    async with AgentRuntime(model=os.environ.get("MODEL", "openai:gpt-5-mini")) as runtime:
        is_new = "job" not in [each.session_id for each in await runtime.list_sessions()]
        message = "Measure the steps 1, 2 and 3." if is_new else "Go on."
        print((await runtime.run(message, "job", tools=[measure])).output)


asyncio.run(main())

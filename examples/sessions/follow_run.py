"""Read a run along that another process has started.

python examples/sessions/follow_run.py RUN_ID
"""

import asyncio
import sys

from agent_core import AgentRuntime


async def follow(runtime: AgentRuntime, run_id: str) -> None:
    """Print a run's events until its last one, whichever process executes it."""
    handle = await runtime.attach(run_id)
    async for event in handle.events():
        print(event.event_type, flush=True)


async def main(run_id: str) -> None:
    async with AgentRuntime() as runtime:
        await follow(runtime, run_id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

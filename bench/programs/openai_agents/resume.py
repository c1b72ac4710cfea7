"""A job of many steps that continues after its process was killed."""

import asyncio
import os

from agents import Agent, Runner, SQLiteSession, function_tool


@function_tool
async def measure(step: int) -> float:
    """Measure for some seconds."""
    print(f"measuring {step}", flush=True)
    await asyncio.sleep(float(os.environ["SECONDS"]))
    return step * 1.5


agent = Agent("job", model=os.environ["MODEL"], tools=[measure])


async def main() -> None:
    session = SQLiteSession("job", "job.sqlite")
    message = "Go on." if await session.get_items() else "Measure the steps 1, 2 and 3."
    print((await Runner.run(agent, message, session=session)).final_output)


asyncio.run(main())

"""A refund that somebody else approves, later and in another process."""

import asyncio
import os
import sys
from pathlib import Path
from uuid import uuid4

from agents import Agent, Runner, RunState, function_tool


@function_tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded order {order}"


agent = Agent("clerk", model=os.environ["MODEL"], tools=[refund])


async def main(command: str, subject: str, decision: str = "") -> None:
    if command == "ask":
        result = await Runner.run(agent, subject)
    else:
        state = await RunState.from_string(agent, Path(f"{subject}.json").read_text())
        for item in state.get_interruptions():
            (state.approve if decision == "yes" else state.reject)(item)
        result = await Runner.run(agent, state)
    if result.interruptions:
        run_id = uuid4().hex
        Path(f"{run_id}.json").write_text(result.to_state().to_string())
        print(run_id)
    else:
        print(result.final_output)


asyncio.run(main(*sys.argv[1:]))

"""A refund that somebody else approves, later and in another process.

python remote_approval.py ask "Refund order 7."
python remote_approval.py answer REQUEST yes
"""

import asyncio
import os
import sys

from agent_core import AgentRuntime, tool


@tool
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded order {order}"


async def main(command: str, subject: str, decision: str = "") -> None:
    config = {"permissions": {"unattended": "park"}}
    async with AgentRuntime(model=os.environ["MODEL"], config=config, tools=[refund]) as runtime:
        if command == "ask":
            result = await runtime.run(subject, tools=["refund"])
        else:
            handle = await runtime.answer(subject, "allow_once" if decision == "yes" else "deny")
            result = await handle.result()
        print(*result.pending_requests or [result.output])


asyncio.run(main(*sys.argv[1:]))

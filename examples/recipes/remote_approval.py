"""A refund that somebody else approves, later and in another process.

python examples/recipes/remote_approval.py ask "Refund order 7."
python examples/recipes/remote_approval.py answer REQUEST yes
"""

import asyncio
import os
import sys

from agent_core import AgentRuntime, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
CONFIG = {"permissions": {"unattended": "park"}}


@tool
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded order {order}"


async def main(command: str, subject: str, decision: str = "") -> None:
    async with AgentRuntime(model=MODEL, config=CONFIG, tools=[refund]) as runtime:
        if command == "ask":
            result = await runtime.run(subject, tools=["refund"])
        else:
            handle = await runtime.answer(subject, "allow_once" if decision == "yes" else "deny")
            result = await handle.result()
        print(*result.pending_requests or [result.output])


asyncio.run(main(*sys.argv[1:]))

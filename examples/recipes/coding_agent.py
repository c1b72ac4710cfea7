"""A coding agent: some tools run, edits ask, lock files are never edited, text as it comes.

python examples/recipes/coding_agent.py "Fix the failing test."
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Literal

from agent_core import AgentRuntime, EventType, PermissionRequest, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
TOOLS = ["code.read_file", "code.search", "code.edit_file", "failures"]
LOCK_FILES = {
    "decision": "deny",
    "tool": ["code.edit_file"],
    "path": ["**/*.lock"],
    "reason": "lock files are generated",
}


@tool(readonly=True)
def failures() -> str:
    """Return what the last test run found."""
    return Path("failures.txt").read_text(encoding="utf-8")


def ask(request: PermissionRequest) -> Literal["allow_once", "deny"]:
    print(request.metadata.get("diff", ""))
    return "allow_once" if input(f"{request.args_summary}? [y/n] ") == "y" else "deny"


async def main(task: str) -> None:
    runtime = AgentRuntime(
        model=MODEL,
        config={"permissions": {"rules": [LOCK_FILES]}},
        tools=[failures],
        permission_callback=ask,
    )
    async with runtime:
        handle = await runtime.start(
            task, instructions="You repair programs.", tools=TOOLS, max_turns=20
        )
        async for event in handle.events():
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                print(event.payload["text"], end="", flush=True)
        result = await handle.result()
    print(f"\n{result.usage.total_tokens} tokens, cost: {result.cost}")


asyncio.run(main(sys.argv[1]))

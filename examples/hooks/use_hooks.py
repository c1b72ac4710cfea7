"""Hooks refuse two calls, and an end of the run that comes too early.

    python examples/hooks/use_hooks.py

The model's replies come from `home/replies.json`; everything else is real.
"""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from agent_core import (
    AgentRuntime,
    EventType,
    PermissionDecision,
    PermissionRequest,
    RuntimeEvent,
)
from agent_core.types import Decision

HOME = Path(__file__).with_name("home")


async def allow(_: PermissionRequest) -> PermissionDecision:
    return PermissionDecision(decision=Decision.ALLOW_ONCE)


def show(event: RuntimeEvent) -> None:
    payload = event.payload
    match event.event_type:
        case EventType.HOOK_DENIED:
            print(f"the {payload['event']} hook refused: {payload['reason']}")
        case EventType.TOOL_DENIED | EventType.TOOL_COMPLETED:
            print(f"{event.event_type}: {payload['tool_name']}")
        case EventType.STOP_HOOK_PREVENTED:
            print(f"{event.event_type}: the model continues")
        case _:
            pass


async def use(home: Path, project: Path) -> None:
    async with AgentRuntime(project, home_dir=home, permission_callback=allow) as runtime:
        handle = await runtime.start("Bring the API to v2 and publish it.")
        async for event in handle.events(debug=True):
            show(event)
        print(f"{handle.status}: {handle.result_text}")
        if handle.error is not None:
            print(handle.error.message)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOME"] = folder  # hooks.json says $HOME/.soong-agent
        home, project = Path(folder, ".soong-agent"), Path(folder, "project")
        shutil.copytree(HOME, home)
        project.mkdir()
        asyncio.run(use(home, project))


main()

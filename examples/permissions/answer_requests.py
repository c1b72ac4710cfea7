"""A program answers permission requests by its own rules.

    python examples/permissions/answer_requests.py

The model's replies come from `home/replies.json`; everything else is real.
"""

import asyncio
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


async def answer(request: PermissionRequest) -> PermissionDecision:
    reason = request.metadata.get("reason")
    target = Path(request.metadata["target"]).name
    print(f"asked: {request.tool_name} {target}, dangerous: {request.dangerous}, reason: {reason}")
    if "diff" in request.metadata:
        print("  ", request.metadata["diff"].splitlines()[-1])
    if request.dangerous:
        return PermissionDecision(decision=Decision.DENY, reason="no commands here")
    if reason is not None:  # a sensitive path, or a place outside the project
        return PermissionDecision(decision=Decision.DENY, reason=f"not when it is {reason}")
    return PermissionDecision(decision=Decision.ALLOW_FOR_SESSION)


def show(event: RuntimeEvent) -> None:
    match event.event_type:
        case EventType.TOOL_COMPLETED:
            print(event.payload["tool_name"], "done")
        case EventType.TOOL_DENIED:
            print(event.payload["tool_name"], "denied:", event.payload["code"])
        case _:
            pass


async def use(home: Path, project: Path) -> None:
    async with AgentRuntime(project, home_dir=home, permission_callback=answer) as runtime:
        handle = await runtime.start("Write the two pages, and publish them.")
        async for event in handle.events():
            show(event)
        print(f"{handle.status}: {handle.result_text}")
        if handle.error is not None:
            print(handle.error.message)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, project = Path(folder, "home"), Path(folder, "project")
        shutil.copytree(HOME, home)
        project.mkdir()
        (project / "notes.txt").write_text("two pages\n", encoding="utf-8")
        (project / ".env").write_text("COLOUR=blue\n", encoding="utf-8")
        asyncio.run(use(home, project))


main()

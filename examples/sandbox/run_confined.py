"""Commands run unasked inside of a sandbox, and ask before they leave it.

    python examples/sandbox/run_confined.py

The model's replies come from `home/replies.json`; everything else is real.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path

from agent_core import AgentRuntime, EventType, PermissionDecision, PermissionRequest
from agent_core.types import Decision

HOME = Path(__file__).with_name("home")


async def answer(request: PermissionRequest) -> PermissionDecision:
    print("asked:", request.metadata.get("reason"))
    print("  sandbox:", request.metadata["sandbox"])
    return PermissionDecision(decision=Decision.DENY, reason="not today")


async def use(home: Path, project: Path) -> None:
    async with AgentRuntime(project, home_dir=home, permission_callback=answer) as runtime:
        handle = await runtime.start("Build it, and ship it.")
        async for event in handle.events():
            match event.event_type:
                case EventType.TOOL_PROGRESS:
                    print(event.payload["text"].replace(f"{project.parent}/", ""))
                case EventType.TOOL_COMPLETED:
                    print("done:", sorted(path.name for path in project.glob("*.txt")))
                case EventType.TOOL_DENIED:
                    print("denied:", event.payload["code"])
                case _:
                    pass
        print(f"{handle.status}: {handle.result_text}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, project = Path(folder, "home").resolve(), Path(folder, "project").resolve()
        shutil.copytree(HOME, home)
        (project / ".git" / "hooks").mkdir(parents=True)
        asyncio.run(use(home, project))


if __name__ == "__main__":
    main()

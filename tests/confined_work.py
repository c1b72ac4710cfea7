"""Runs commands of real programs in the sandbox, through whole runs."""

import subprocess
from pathlib import Path
from typing import Any

from agent_core import PermissionRequest
from agent_core.providers.scripted import Calls, Says, ScriptedCall
from agent_core.types import EventType
from isolation import Home
from runtimes import CONFIG, Asked, collect, runtime

ON = CONFIG + '\n[sandbox]\nmode = "auto"\n'
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.com")


def git(folder: Path, *arguments: str) -> str:
    """Run Git outside of any sandbox, and return its output."""
    return start(["git", "-C", str(folder), *AUTHOR, *arguments])


def start(argv: list[str]) -> str:
    """Run a program outside of any sandbox, and return its output."""
    done = subprocess.run(argv, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout


async def run_all(
    home: Home, project: Path, *scripts: str, config: str = ON, **more: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run shell scripts as commands of one run; return their results, and what was shown."""
    answers, shown, _ = await run_asked(home, project, *scripts, config=config, **more)
    return answers, shown


async def run_asked(
    home: Home, project: Path, *scripts: str, config: str = ON, **more: Any
) -> tuple[list[dict[str, Any]], list[str], list[PermissionRequest]]:
    """Run them in the same way, and return what was asked, too."""
    calls: list[Calls | Says] = [
        Calls(
            calls=[
                ScriptedCall(
                    name="code.run_command", arguments={"argv": ["sh", "-c", script], **more}
                )
            ]
        )
        for script in scripts
    ]
    asked = Asked("allow_once")
    async with runtime(
        home, project, [*calls, Says(text="done")], config=config, permission_callback=asked
    ) as made:
        events = await collect(await made.start("go", session_id="s1"))
        session = (await made.list_sessions())[0]
        path = await made.get_node_path(session.active_node_id or "")
    answers = [
        {"error": result.error}
        | {k: v for b in result.content if b.type == "json" for k, v in b.data.items()}
        for node in path
        for result in node.results
    ]
    shown = [e.payload["text"] for e in events if e.event_type is EventType.TOOL_PROGRESS]
    return answers, shown, asked.requests

"""A stored session with something of everything, and the command that looks at it."""

import sys
from pathlib import Path
from typing import Any

from agent_core import PermissionDecision
from agent_core.providers.scripted import Calls, Fails, Says, ScriptedCall, calls
from agent_core.types import Decision, Usage
from in_process import carry_out
from isolation import Home
from runtimes import ask, runtime

SOONG = str(Path(sys.executable).with_name("soong-agent"))


def soong(home: Home, project: Path, *words: str, answer: str = "") -> Any:
    """Carry out `soong-agent sessions` in a project."""
    return carry_out(["sessions", *words], home.env(), project, answer)


async def a_story(home: Home, project: Path) -> None:
    """A session with something of everything, and another one."""
    (project / "a.py").write_text("def add(a, b):\n    return a - b\n")

    async def answer(request: Any) -> PermissionDecision:
        denied = "rm" in request.args_summary
        decision = Decision.DENY if denied else Decision.ALLOW_ONCE
        return PermissionDecision(decision=decision, reason="not now" if denied else None)

    fails = [sys.executable, "-c", "print('FAILED test_add'); raise SystemExit(3)"]
    script = [
        Calls(
            text="Let me look.",
            calls=[
                ScriptedCall(name="code.read_file", arguments={"path": "a.py"}),
                ScriptedCall(name="code.run_command", arguments={"argv": fails}),
            ],
        ),
        calls("code.edit_file", path="a.py", edits=[{"old": "a - b", "new": "a + b"}]),
        calls("code.run_command", argv=["rm", "-r", "build"]),
        Says(text="The sign was wrong.", usage=Usage(total_tokens=9, input_tokens=5, cost=0.25)),
        calls("agent.create_sub_agent", task="count the lines"),
        "two lines",
        "There are two lines.",
        Fails(message="the service is down"),
        "Another way.",
        "unrelated",
    ]
    made = runtime(home, project, script, permission_callback=answer)  # type: ignore[arg-type]
    async with made:
        await ask(made, "Why does test_add fail?", "sess_18aa")
        await ask(made, "Count the <b>lines</b>, \x1b[31mplease", "sess_18aa")
        await ask(made, "Break it", "sess_18aa")
        await made.undo("sess_18aa")
        await ask(made, "Try another way", "sess_18aa")
        await ask(made, "Something else", "sess_18ab")

"""Programs, where the profile names them. They run as the user does: list only what you trust."""

import os
from typing import Annotated, Any

from pydantic import Field

from agent_core.errors import ErrorCode
from agent_core.tools.code.command import run_command as run_program
from agent_core.tools.schema import Arguments
from kgent.errors import ErrorCategory, KgentError
from kgent.tools.borrowed import run_core_tool
from kgent.tools.guarded import Call
from kgent.tools.results import ToolResult

_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR")


class RunCommand(Arguments):
    """Run an allowed program in workspace/. No shell: no pipes, globs or variables."""

    argv: Annotated[
        list[str], Field(min_length=1, description="The program and its arguments, one each.")
    ]
    timeout_seconds: Annotated[int, Field(ge=1, le=600)] = 120


def run_command(arguments: RunCommand, call: Call) -> ToolResult:
    """Run a program that the profile names, exactly as it names it."""
    program = arguments.argv[0]
    if program not in call.policy.commands:
        allowed = ", ".join(call.policy.commands) or "none"
        raise KgentError(
            ErrorCode.PERMISSION_DENIED,
            f"{program[:100]!r} is not in tools.shell.allowed_commands; there are: {allowed}",
            category=ErrorCategory.GOVERNANCE,
        )
    home = call.root / "workspace"
    env = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    wanted: dict[str, Any] = {
        "argv": arguments.argv,
        "cwd": str(home),
        "timeout_ms": arguments.timeout_seconds * 1000,
    }
    answer = run_core_tool(run_program, wanted, call, env={**env, "HOME": str(home)})
    kept = [answer.pop(f"{stream}_artifact_id") for stream in ("stdout", "stderr")]
    artifacts = [path for path in kept if path]
    summary = f"{program} ended with exit code {answer['exit_code']}"
    data = {**answer, "whole_output": artifacts} if artifacts else answer
    return ToolResult(ok=True, summary=summary, data=data, artifacts=artifacts)

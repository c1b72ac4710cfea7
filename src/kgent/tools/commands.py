"""The tool that runs programs."""

from typing import Annotated, Any, cast

from pydantic import Field

from agent_core.errors import ErrorCode
from agent_core.text import quoted
from agent_core.tools.code.command import run_command
from agent_core.tools.schema import Arguments
from agent_core.tools.workspace import PathPolicy
from agent_core.types import JsonBlock, ToolResult as CoreResult
from kgent.errors import ErrorCategory, ErrorInfo, denial
from kgent.governance.checks import command_environment
from kgent.tools.calls import OwnTool, ToolCallScope
from kgent.tools.results import ToolResult


class RunProgram(Arguments):
    """Run an allowed program in workspace/. No shell: no pipes, globs or variables."""

    argv: Annotated[
        list[str], Field(min_length=1, description="The program and its arguments, one each.")
    ]
    timeout_seconds: Annotated[int, Field(ge=1, le=600)] = 120


async def perform_command(arguments: RunProgram, call: ToolCallScope) -> ToolResult:
    """Run a program under exactly the name that the profile lists, with the user's permissions.

    Another program is run only if a person has allowed this very call.

    Raises:
        KgentError: the program is not allowed.
        ParkedError: the run waits for a person's answer.
    """
    program, allowed = arguments.argv[0], call.context.config.tools.shell.allowed_commands
    if program not in allowed:
        listed = ", ".join(allowed) or "none"
        reason = f"is not in tools.shell.allowed_commands; there are: {listed}"
        refusal = denial(f"{quoted(program, 100)} {reason}")
        given = arguments.model_dump(mode="json")
        call.context.questions.admit(refusal, call_id=call.call_id, tool=call.name, arguments=given)
    home = str(call.paths.project / "workspace")
    action = await call.prepare(
        run_command,
        {"argv": arguments.argv, "cwd": home, "timeout_ms": arguments.timeout_seconds * 1000},
        # Paths in its arguments are not checked: a command can reach everything the user can.
        paths=PathPolicy(call.paths.project),
        variables=command_environment(call.context),
    )
    result, error = await action.run(), None
    if isinstance(result, CoreResult):  # it timed out
        payload = result.error
        answer = dict(cast("JsonBlock", result.content[0]).data)
        message = payload.message if payload else "the program was stopped"
        error = ErrorInfo(
            code=ErrorCode.TIMEOUT.value, message=message, category=ErrorCategory.TOOL
        )
    else:
        answer = cast("dict[str, Any]", result)
    kept = [answer.pop(f"{stream}_artifact_id") for stream in ("stdout", "stderr")]
    artifacts = [path for path in kept if path]
    return ToolResult(
        ok=error is None,
        summary=error.message if error else f"{program} ended with exit code {answer['exit_code']}",
        data={**answer, "whole_output": artifacts} if artifacts else answer,
        artifacts=artifacts,
        error=error,
    )


COMMAND_TOOLS = (OwnTool("run_command", RunProgram, "execute", perform_command),)

"""`code.run_command`: a program with its arguments, never a shell string."""

import asyncio
import shlex
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from agent_core.disk.folders import folder_address
from agent_core.errors import ErrorCode, PermissionDeniedError, ToolError
from agent_core.process import Command, find_program, run
from agent_core.redaction.values import shortened
from agent_core.tools.base import Action, Tool, ToolContext
from agent_core.tools.code.places import find_named_places
from agent_core.tools.code.programs import CommandLine, session_scope
from agent_core.tools.files import disk_errors
from agent_core.tools.paths import ResolvedPath
from agent_core.tools.results import storable_text
from agent_core.tools.schema import Arguments
from agent_core.tools.workspace import Workspace, code_tool, keep_output, timeout_result
from agent_core.types import Access, JsonBlock, ToolPermission, ToolResult

_MAX_ARGUMENT = 131_071
"""What Linux takes as one argument, in bytes."""


class RunCommand(Arguments):
    """Run a program. No shell: no pipes, globs or variables unless `argv` starts one.

    It cannot read input and sees a minimal environment. Processes it leaves in the background
    are stopped when it ends. Long output is cut in the middle and kept as an artifact.
    """

    argv: Annotated[
        list[str], Field(min_length=1, description="The program and its arguments, one each.")
    ]
    cwd: Annotated[str, Field(min_length=1, description="A folder of the project.")] = "."
    timeout_ms: Annotated[int | None, Field(ge=1)] = None


def run_command(workspace: Workspace) -> Tool:
    """The tool, for one workspace."""

    async def prepare(arguments: RunCommand, context: ToolContext) -> Action:
        return await asyncio.to_thread(_prepare, workspace, arguments, context)

    return code_tool(
        "run_command",
        RunCommand,
        prepare,
        permission=ToolPermission.WRITE,
        tag="dangerous",
        keeps_own_limits=True,
    )


def _prepare(workspace: Workspace, arguments: RunCommand, context: ToolContext) -> Action:
    timeout_ms = arguments.timeout_ms or workspace.limits.default_timeout_ms
    if timeout_ms > workspace.limits.max_timeout_ms:
        message = f"timeout_ms is at most {workspace.limits.max_timeout_ms}"
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.timeout_ms"})
    for number, argument in enumerate(arguments.argv):
        problem = None
        if len(argument) > _MAX_ARGUMENT:
            problem = "is too long for an argument; put it into a file"
        elif storable_text(argument) != argument:
            problem = "has a NUL or a lone surrogate, which no argument can hold"
        if problem is not None:
            path = f"$.argv[{number}]"
            message = f"{path} {problem}"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": path})
    place = workspace.boundaries.resolve(arguments.cwd)
    if not place.writable:
        raise ToolError(
            ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS,
            f"{place.path} is outside the project; commands run inside it",
            details={"cwd": str(place.path)},
        )
    if not place.path.is_dir():
        raise ToolError(ErrorCode.FILE_NOT_FOUND, f"there is no folder {place.shown} to run in")
    program = find_program(arguments.argv[0], cwd=place.path, env=workspace.env)
    policy = workspace.boundaries
    named = find_named_places(policy, arguments.argv, program=program, cwd=place.path)
    if named.protected is not None:
        raise PermissionDeniedError(
            ErrorCode.PERMISSION_DENIED,
            f"{shortened(named.protected, 500)} belongs to the program itself, or names its home:"
            " a command that names it is refused, and no permission changes that; its files can be"
            " read with code.read_file, which asks",
            details={"reason": "program_home"},
        )
    command = CommandLine(
        program=program,
        argv=arguments.argv,
        cwd=place.path,
        env=workspace.env,
        named=named,
        policy=policy,
    )
    shown = shlex.join(arguments.argv)
    access = Access(
        asks=True,
        scope=session_scope(command),
        summary=shown,
        target=shown,
        cwd=str(place.path),
        env_names=tuple(sorted(workspace.env)),
        dangerous=True,
        reason=named.reason,
        places=named.shown,
    )
    argv = [str(program), *arguments.argv[1:]]
    return Action(access, partial(_run, workspace, place, argv, timeout_ms, context))


async def _run(
    workspace: Workspace,
    place: ResolvedPath,
    argv: list[str],
    timeout_ms: int,
    context: ToolContext,
) -> dict[str, Any] | ToolResult:
    with disk_errors(place.shown), folder_address(place.path) as address:
        finished = await run(
            Command(argv=argv, cwd=address, env=workspace.env),
            launcher=workspace.launcher,
            timeout_s=timeout_ms / 1000,
            stdout_limit_bytes=workspace.limits.stdout_limit_bytes,
            stderr_limit_bytes=workspace.limits.stderr_limit_bytes,
        )
    try:
        answer = {
            "exit_code": finished.exit_code,
            "stdout": finished.stdout.text,
            "stderr": finished.stderr.text,
            "stdout_artifact_id": await keep_output(finished.stdout, "stdout", context.artifact),
            "stderr_artifact_id": await keep_output(finished.stderr, "stderr", context.artifact),
            "truncated": finished.stdout.truncated or finished.stderr.truncated,
            "timed_out": finished.timed_out,
        }
    finally:
        finished.discard()
    if finished.timed_out:
        return timeout_result(argv[0], timeout_ms, [JsonBlock(data=answer)])
    return answer

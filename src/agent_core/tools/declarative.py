"""The user's own tools: one JSON file each in `<home>/tools`, run as commands.

A file that cannot be used is reported and left out; all other files still work.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import orjson
from pydantic import Field, ValidationError, model_validator

from agent_core.config.models import Bytes, Milliseconds, ToolsConfig
from agent_core.config.paths import Setup, expand_path
from agent_core.config.problems import problems_of, read_json_file, unusable
from agent_core.config.section import Section
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.process import Command, CompletedProcess, Launcher, find_program, run
from agent_core.process.environment import command_environment, configured_names
from agent_core.process.starts import explain_exit
from agent_core.text.json_text import JsonSchema
from agent_core.text.shell import command_line
from agent_core.tools.base import Action, CutCallError, Tool, ToolContext, concurrency_of
from agent_core.tools.json_schema import whole_schema
from agent_core.tools.registry import check_own_name, plain_access
from agent_core.tools.schema_check import SchemaCheck
from agent_core.tools.script import check_argv, fill_argv, parse_script, placeholders
from agent_core.tools.values import storable_text
from agent_core.tools.workspace import (
    keep_output,
    show_denial,
    show_disabled,
    show_left_running,
    timeout_result,
)
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ErrorPayload,
    TextBlock,
    ToolDefinition,
    ToolName,
    ToolPermission,
    ToolResult,
)

if TYPE_CHECKING:
    from agent_core.process.sandbox import Sandbox, SandboxPlan

_WHAT = "tool"
_SAID = {
    "blocked_by_sandbox": "blocked by the sandbox",
    "disabled_repositories": "disabled",
    "left_running_and_stopped": "left running, and stopped",
}


class ToolFile(Section):
    """One file of `<home>/tools`. Settings it leaves out come from `[tools]`."""

    name: ToolName
    description: str
    input_schema: JsonSchema = Field(default_factory=lambda: {"type": "object", "properties": {}})
    permission: Literal["readonly", "write"] = "write"
    tags: list[str] = Field(default_factory=list[str])
    command_type: Literal["exec", "shell"]
    command: str = Field(min_length=1)
    args: list[str] = Field(default_factory=list[str])
    working_dir: str = "<project>"
    env_allowlist: list[str] | None = None
    timeout_ms: Milliseconds | None = None
    stdout_limit_bytes: Bytes | None = None
    stderr_limit_bytes: Bytes | None = None

    @model_validator(mode="after")
    def _command_is_safe(self) -> "ToolFile":
        named = {field for part in (self.command, *self.args) for field in placeholders(part)}
        properties: Any = self.input_schema.get("properties")
        known = cast("JsonSchema", properties) if isinstance(properties, dict) else {}
        if unknown := named - known.keys():
            raise ValueError(f"input_schema has no property {', '.join(sorted(unknown))}")
        if self.command_type == "exec":
            if any(placeholders(self.command)):
                raise ValueError("the program cannot be chosen by an argument")
            check_argv([self.command, *self.args])
            return self
        if self.args:
            raise ValueError("args is for command_type exec; write them into the command")
        if {"write", "dangerous"}.isdisjoint({*self.tags, self.permission}):
            raise ValueError("a shell tool must be tagged write or dangerous")
        parse_script(self.command)
        return self


def declarative_tools(
    setup: Setup,
    *,
    launcher: Launcher,
    sandbox: "Sandbox | None" = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[list[Tool], list[ConfigError]]:
    """Return the tools of `<home>/tools/*.json`, by file name, and the faults of unusable files."""
    tools: dict[str, Tool] = {}
    problems: list[ConfigError] = []
    if not setup.config.tools.declarative_enabled:
        return [], []
    for path in sorted((setup.settings_home / "tools").glob("*.json")):
        try:
            tool = _load(path, setup, launcher, sandbox, environ)
            if tool.name in tools:
                raise unusable(path, _WHAT, f"another file has a tool named {tool.name}")
        except ConfigError as problem:
            problems.append(problem)
        else:
            tools[tool.name] = tool
    return list(tools.values()), problems


def declared_commands(
    setup: Setup, environ: Mapping[str, str]
) -> Iterator[tuple[Path, list[str], Path, Mapping[str, str]]]:
    """Yield the file, the command, the folder and the environment of each declarative tool.

    Placeholders of the command are left in it. Files that cannot be used are left out.
    """
    limits = setup.config.tools
    for path in sorted((setup.settings_home / "tools").glob("*.json")):
        try:
            file = ToolFile.model_validate(read_json_file(path, _WHAT))
            cwd = expand_path(
                file.working_dir, setup.project, home=setup.home, project=setup.project
            )
        except (ValidationError, ConfigError):
            continue
        allowed = limits.env_allowlist if file.env_allowlist is None else file.env_allowlist
        argv = ["/bin/sh", "-c", file.command]
        if file.command_type == "exec":
            program = os.path.expanduser(file.command)  # noqa: PTH111 - a Path loses the ./
            argv = [str(path.parent / program) if "/" in program else program, *file.args]
        yield path, argv, cwd, command_environment(allowed, environ)


def _load(
    path: Path,
    setup: Setup,
    launcher: Launcher,
    sandbox: "Sandbox | None",
    environ: Mapping[str, str],
) -> Tool:
    limits = setup.config.tools
    content = read_json_file(path, _WHAT)
    try:
        file = ToolFile.model_validate(content)
        check = SchemaCheck(file.name, file.input_schema, fills_in=True).compile()
        check_own_name(file.name)
    except ValidationError as error:
        reasons = "; ".join(str(problem).strip() for problem in problems_of(error, ToolFile))
        raise unusable(path, _WHAT, reasons) from error
    except (ToolError, ConfigError) as error:
        raise unusable(path, _WHAT, error.message) from error
    if (file.timeout_ms or 0) > limits.max_timeout_ms:
        reason = f"timeout_ms is above tools.max_timeout_ms ({limits.max_timeout_ms})"
        raise unusable(path, _WHAT, reason)
    try:
        cwd = expand_path(file.working_dir, setup.project, home=setup.home, project=setup.project)
    except ConfigError as error:
        raise unusable(path, _WHAT, f"working_dir: {error}") from error
    allowed = limits.env_allowlist if file.env_allowlist is None else file.env_allowlist
    env = command_environment(allowed, environ)
    return _build_tool(file, check, path.parent, cwd, env, limits, launcher, sandbox)


def _build_tool(
    file: ToolFile,
    check: SchemaCheck,
    folder: Path,
    cwd: Path,
    env: Mapping[str, str],
    limits: ToolsConfig,
    launcher: Launcher,
    sandbox: "Sandbox | None",
) -> Tool:
    """Build the tool of a file in `folder`, which runs its command in `cwd`."""
    script = parse_script(file.command) if file.command_type == "shell" else None
    timeout_ms = file.timeout_ms or limits.default_timeout_ms
    definition = ToolDefinition(
        name=file.name,
        description=file.description,
        input_schema=whole_schema(file.input_schema),
        permission=ToolPermission("write" if "write" in file.tags else file.permission),
        tags={"declarative", *file.tags},
    )

    def find_argv(arguments: Mapping[str, Any]) -> list[str]:
        if script is not None:
            return script.argv(arguments)
        command = os.path.expanduser(file.command)  # noqa: PTH111 - a Path loses the ./
        # A relative program is found beside the tool's file, never in the project.
        program = find_program(command, cwd=folder if "/" in command else cwd, env=env)
        return [str(program), *fill_argv(file.args, arguments)]

    async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
        argv = await asyncio.to_thread(find_argv, arguments)
        if any(storable_text(word) != word for word in argv):
            message = f"an argument of {file.name} has a NUL or a lone surrogate in it"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message)
        plan = None
        if sandbox is not None:
            needs_network = "network" in file.tags  # then the policy for hosts has had its say
            plan = await asyncio.to_thread(sandbox.plan, "tool", wants_network=needs_network)
        access = replace(
            plain_access(definition, arguments),
            target=command_line(argv),
            cwd=str(cwd),
            runs=tuple(os.path.join(cwd, word) for word in argv),  # noqa: PTH118
            env_names=tuple(sorted({*configured_names(env), *(["TMPDIR"] if plan else [])})),
            confined=plan and plan.words,
        )
        return Action(access, partial(run_program, argv, arguments, context, plan))

    async def run_program(
        argv: list[str],
        arguments: Mapping[str, Any],
        context: ToolContext,
        plan: "SandboxPlan | None",
    ) -> ToolResult:
        """Run a program and read its result, JSON or text; any code but 0 is an error."""
        command = Command(argv=argv, cwd=cwd, env=env, stdin=orjson.dumps(arguments))
        left_out, disabled = list[str](), list[str]()
        async with AsyncExitStack() as stack:
            if plan is not None:
                confined = plan.confine(command, left_out=left_out)
                command = await stack.enter_async_context(confined)
                disabled = await stack.enter_async_context(plan.watch())
            finished = await run(
                command,
                launcher=launcher,
                timeout_s=timeout_ms / 1000,
                stdout_limit_bytes=file.stdout_limit_bytes or limits.stdout_limit_bytes,
                stderr_limit_bytes=file.stderr_limit_bytes or limits.stderr_limit_bytes,
                takes_cut=True,
            )
        try:
            said = finished.stderr.text
            why = explain_exit(finished.exit_code, argv, said, cwd=cwd, env=env)
            name = file.name
            result = await _read_outcome(
                finished, context, name=name, timeout_ms=timeout_ms, why=why
            )
        finally:
            finished.discard()
        denied = show_denial(plan, finished, cwd=cwd, context=context)
        found = denied | show_disabled([*disabled, *left_out], context=context)
        found |= show_left_running(finished, context=context)
        notes = [TextBlock(text=f"{_SAID[key]}: {', '.join(found[key])}") for key in found]
        if notes:
            result = result.model_copy(
                update={"content": [*result.content, *notes], "metadata": result.metadata | found}
            )
        if finished.cancelled:
            raise CutCallError(result)
        return result

    return Tool(
        definition=definition,
        parse=check,
        prepare=prepare,
        concurrency=concurrency_of(definition),
        keeps_own_limits=True,
        kind="execute",
    )


async def _read_outcome(
    finished: CompletedProcess,
    context: ToolContext,
    *,
    name: str,
    timeout_ms: int,
    why: str | None,
) -> ToolResult:
    """Return the result of a finished program; any exit code but 0 is an error.

    `why` is the reason, where it is known that something could not be started.
    """
    content: list[ContentBlock] = []
    faults: list[str] = []
    has_succeeded = not (finished.timed_out or finished.cancelled or finished.exit_code)
    can_be_read = has_succeeded and finished.stdout.spool is None
    if can_be_read and (result := _read_result(finished.stdout.text)):
        return result
    outputs = {"stdout": finished.stdout}
    outputs |= {} if has_succeeded else {"stderr": finished.stderr}
    for stream, output in outputs.items():
        if output.text:
            content.append(TextBlock(text=output.text))
        if artifact_id := await keep_output(output, stream, context.artifact, faults):
            content.append(ArtifactRefBlock(artifact_id=artifact_id, mime_type="text/plain"))
    content += [TextBlock(text=f"[{fault}]") for fault in faults]
    if finished.cancelled:
        return ToolResult(content=content, is_error=True)
    if finished.timed_out:
        return timeout_result(name, timeout_ms, content)
    metadata = {"exit_code": finished.exit_code}
    if has_succeeded:
        return ToolResult(content=content, metadata=metadata)
    message = f"{name} ended with code {finished.exit_code}{f': {why}' if why else ''}"
    error = ErrorPayload.of(ToolError(ErrorCode.INTERNAL_ERROR, message, details=metadata))
    return ToolResult(content=content, is_error=True, error=error, metadata=metadata)


def _read_result(stdout: str) -> ToolResult | None:
    """Read a `ToolResult` that the program wrote itself; None if it wrote anything else."""
    if not stdout.lstrip().startswith("{"):
        return None
    try:
        fields = orjson.loads(stdout)
        return ToolResult.model_validate(fields) if "content" in fields else None
    except (orjson.JSONDecodeError, ValidationError):
        return None

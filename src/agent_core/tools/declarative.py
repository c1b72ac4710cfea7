"""The user's own tools: one JSON file each in `<home>/tools`, run as commands.

A file that cannot be used is reported and left out; it never keeps the others from working.
"""

import asyncio
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import orjson
from pydantic import Field, ValidationError, model_validator

from agent_core.config.models import Bytes, Milliseconds, Section, ToolsConfig
from agent_core.config.paths import Setup, expand_path
from agent_core.config.problems import problems_of, read_json_file, unusable
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.process import Command, CompletedProcess, Launcher, find_program, run
from agent_core.tools.base import Action, Tool, ToolContext, concurrency_of
from agent_core.tools.handler import plain_access
from agent_core.tools.json_schema import whole_schema
from agent_core.tools.registry import check_own_name
from agent_core.tools.results import storable_text
from agent_core.tools.schema import SchemaCheck
from agent_core.tools.script import Script, check_argv, fill_argv, parse_script, placeholders
from agent_core.tools.workspace import keep_output, timeout_result
from agent_core.types import (
    Access,
    ArtifactRefBlock,
    ContentBlock,
    ErrorPayload,
    TextBlock,
    ToolDefinition,
    ToolName,
    ToolPermission,
    ToolResult,
)

_WHAT = "tool"


class ToolFile(Section):
    """One file of `<home>/tools`. What is left out comes from `[tools]` in the configuration."""

    name: ToolName
    description: str
    input_schema: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
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
        if unknown := named - _properties(self.input_schema):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a declarative tool is run: its file, with every default filled in."""

    file: ToolFile
    script: Script | None
    folder: Path
    cwd: Path
    launcher: Launcher
    env: Mapping[str, str]
    limits: ToolsConfig

    def argv(self, arguments: Mapping[str, Any]) -> list[str]:
        """The argument vector of one call."""
        if self.script is not None:
            return self.script.argv(arguments)
        command = os.path.expanduser(self.file.command)  # noqa: PTH111 - a Path loses the ./
        # A relative program is the user's, beside the file; never one of the project's.
        base = self.folder if "/" in command else self.cwd
        program = find_program(command, cwd=base, env=self.env)
        return [str(program), *fill_argv(self.file.args, arguments)]

    @property
    def timeout_ms(self) -> int:
        """The file's, else the default."""
        return self.file.timeout_ms or self.limits.default_timeout_ms


def declarative_tools(
    setup: Setup, *, launcher: Launcher, environ: Mapping[str, str] = os.environ
) -> tuple[list[Tool], list[ConfigError]]:
    """The tools of `<home>/tools/*.json`, by file name, and what is wrong with the others."""
    tools: dict[str, Tool] = {}
    problems: list[ConfigError] = []
    if not setup.config.tools.declarative_enabled:
        return [], []
    for path in sorted((setup.home / "tools").glob("*.json")):
        try:
            made = _load(path, setup, launcher, environ)
            if made.name in tools:
                raise unusable(path, _WHAT, f"another file has a tool named {made.name}")
        except ConfigError as problem:
            problems.append(problem)
        else:
            tools[made.name] = made
    return list(tools.values()), problems


def _load(path: Path, setup: Setup, launcher: Launcher, environ: Mapping[str, str]) -> Tool:
    try:
        file = ToolFile.model_validate(read_json_file(path, _WHAT))
        check = SchemaCheck(file.name, file.input_schema).compiled()
    except ValidationError as error:
        reasons = "; ".join(str(problem).strip() for problem in problems_of(error, ToolFile))
        raise unusable(path, _WHAT, reasons) from error
    except ToolError as error:
        raise unusable(path, _WHAT, str(error)) from error
    try:
        check_own_name(file.name)
    except ConfigError as error:
        raise unusable(path, _WHAT, error.message) from error
    return _tool(_recipe(path, file, setup, launcher, environ), check)


def _recipe(
    path: Path, file: ToolFile, setup: Setup, launcher: Launcher, environ: Mapping[str, str]
) -> Recipe:
    limits = setup.config.tools
    if (file.timeout_ms or 0) > limits.max_timeout_ms:
        reason = f"timeout_ms is above tools.max_timeout_ms ({limits.max_timeout_ms})"
        raise unusable(path, _WHAT, reason)
    allowed = limits.env_allowlist if file.env_allowlist is None else file.env_allowlist
    try:
        cwd = expand_path(file.working_dir, setup.project, home=setup.home, project=setup.project)
    except ConfigError as error:
        raise unusable(path, _WHAT, f"working_dir: {error}") from error
    return Recipe(
        file=file,
        script=parse_script(file.command) if file.command_type == "shell" else None,
        folder=path.parent,
        cwd=cwd,
        launcher=launcher,
        env={name: environ[name] for name in allowed if name in environ},
        limits=limits,
    )


def _tool(recipe: Recipe, check: SchemaCheck) -> Tool:
    file = recipe.file
    definition = ToolDefinition(
        name=file.name,
        description=file.description,
        input_schema=whole_schema(file.input_schema),
        permission=ToolPermission("write" if "write" in file.tags else file.permission),
        tags={"declarative", *file.tags},
    )

    async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
        argv = await asyncio.to_thread(recipe.argv, arguments)
        if any(storable_text(word) != word for word in argv):
            message = f"an argument of {file.name} has a NUL or a lone surrogate in it"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message)
        access = _access(definition, recipe, arguments, argv)
        return Action(access, partial(_run, recipe, argv, arguments, context))

    return Tool(
        definition=definition,
        parse=check,
        prepare=prepare,
        lane=concurrency_of(definition),
        keeps_own_limits=True,
    )


def _access(
    definition: ToolDefinition, recipe: Recipe, arguments: Mapping[str, Any], argv: list[str]
) -> Access:
    return replace(
        plain_access(definition, arguments),
        target=shlex.join(argv),
        cwd=str(recipe.cwd),
        env_names=tuple(sorted(recipe.env)),
    )


async def _run(
    recipe: Recipe, argv: list[str], arguments: Mapping[str, Any], context: ToolContext
) -> ToolResult:
    file, limits = recipe.file, recipe.limits
    finished = await run(
        Command(argv=argv, cwd=recipe.cwd, env=recipe.env, stdin=orjson.dumps(arguments)),
        launcher=recipe.launcher,
        timeout_s=recipe.timeout_ms / 1000,
        stdout_limit_bytes=file.stdout_limit_bytes or limits.stdout_limit_bytes,
        stderr_limit_bytes=file.stderr_limit_bytes or limits.stderr_limit_bytes,
    )
    try:
        if finished.timed_out:
            said = await _said(finished, context, "stdout", "stderr")
            return timeout_result(file.name, recipe.timeout_ms, said)
        return await _result(file.name, finished, context)
    finally:
        finished.discard()


async def _result(name: str, finished: CompletedProcess, context: ToolContext) -> ToolResult:
    """What the program said: a result as JSON, or text. A code other than 0 is an error."""
    metadata = {"exit_code": finished.exit_code}
    if finished.exit_code:
        return ToolResult(
            content=await _said(finished, context, "stdout", "stderr"),
            is_error=True,
            error=ErrorPayload(
                type="ToolError",
                code=ErrorCode.INTERNAL_ERROR,
                message=f"{name} ended with code {finished.exit_code}",
                details=metadata,
            ),
            metadata=metadata,
        )
    if finished.stdout.spool is None and (given := _given(finished.stdout.text)):
        return given
    return ToolResult(content=await _said(finished, context, "stdout"), metadata=metadata)


async def _said(
    finished: CompletedProcess, context: ToolContext, *streams: Literal["stdout", "stderr"]
) -> list[ContentBlock]:
    said: list[ContentBlock] = []
    for name in streams:
        output = finished.stdout if name == "stdout" else finished.stderr
        if output.text:
            said.append(TextBlock(text=output.text))
        if artifact_id := await keep_output(output, name, context.artifact):
            said.append(ArtifactRefBlock(artifact_id=artifact_id, mime_type="text/plain"))
    return said


def _properties(schema: Mapping[str, Any]) -> set[str]:
    properties = schema.get("properties")
    return set(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else set()


def _given(stdout: str) -> ToolResult | None:
    """A `ToolResult` that the program wrote itself; None if it wrote anything else."""
    if not stdout.lstrip().startswith("{"):
        return None
    try:
        fields = orjson.loads(stdout)
        return ToolResult.model_validate(fields) if "content" in fields else None
    except (orjson.JSONDecodeError, ValidationError):
        return None

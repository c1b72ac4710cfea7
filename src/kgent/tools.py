"""The tools of a run: files, commands, skills, memory.

A call must pass these rules, the strongest first: the tools that the runtime denies; the boundaries
of the run folder; the tools that the profile enables. Skills may ask for tools, but grant nothing.
"""

import asyncio
import codecs
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field

from agent_core.disk.folders import open_folder
from agent_core.errors import ErrorCode
from agent_core.permissions import PermissionGuard
from agent_core.tools.base import Tool, ToolOutput
from agent_core.tools.code.command import run_command
from agent_core.tools.code.read import list_dir, read_file
from agent_core.tools.code.search import search
from agent_core.tools.code.write import write_file
from agent_core.tools.files import disk_errors, open_file, read_state
from agent_core.tools.results import in_own_thread
from agent_core.tools.schema import Arguments
from agent_core.tools.text import SAMPLE_BYTES, encoding_of
from agent_core.tools.workspace import PathPolicy, ResolvedPath, Workspace
from agent_core.types import JsonBlock, ToolResult
from kgent.cancellation import Cancellation
from kgent.checks import command_environment
from kgent.config import KgentConfig
from kgent.errors import ErrorCategory, ErrorInfo, KgentError
from kgent.memory import MemoryClient
from kgent.records import RunEnvironment
from kgent.skills import SkillRegistry
from kgent.state import now
from kgent.tool_calls import (
    Perform,
    SandboxPaths,
    ToolAction,
    ToolAnswer,
    ToolCallScope,
    build_tool,
)

R = TypeVar("R")

CANDIDATES = "candidate-memory.jsonl"
GRACE_S = 5.0
"""Seconds that a memory call may continue after the run was cancelled."""

_PAGE_BYTES = 16_384
_PATH = "Relative to the run folder, such as workspace/notes.md."

# --- which tools there are ------------------------------------------------------------------------


def enabled_tools(config: KgentConfig) -> Iterator[str]:
    """Yield the names of the tools that a profile enables."""
    files, memory = config.tools.filesystem, config.memory
    yield from ("list_skills", "load_skill")
    if files.enabled:
        yield from ("read_file", "list_files", "grep_files")
        if files.write:
            yield "write_file"
        if files.write and files.delete:
            yield "delete_file"
    if config.tools.shell.enabled:
        yield "run_command"
    if memory.enabled:
        yield "recall_memory"
        if memory.write_mode != "disabled":
            yield "write_memory"


def build_tools(
    env: RunEnvironment,
    skills: SkillRegistry,
    memory: MemoryClient,
    *,
    cancellation: Cancellation | None = None,
    denied: Iterable[str] = (),
) -> list[Tool]:
    """Return the tools of a run by name: enabled by the profile and not denied by the runtime.

    `denied` has names or patterns of tools that the run must not have, even if enabled.
    """
    guard = PermissionGuard(
        allowed=set(enabled_tools(env.config)), denied=set(denied), mode="allow"
    )
    paths = SandboxPaths(env.sandbox_root, read_roots=skills.folders)
    own: list[tuple[str, type[Arguments], ToolAction, Perform]] = [
        ("delete_file", _DeleteFile, "delete", _delete_file),
        ("grep_files", _GrepFiles, "read", _grep_files),
        ("list_files", _ListFiles, "read", _list_files),
        ("list_skills", _ListSkills, "read", partial(_list_skills, skills)),
        ("load_skill", _LoadSkill, "read", partial(_load_skill, skills, guard)),
        ("read_file", _ReadFile, "read", _read_file),
        ("recall_memory", _RecallMemory, "read", partial(_recall_memory, memory)),
        ("run_command", _RunCommand, "execute", _run_command),
        ("write_file", _WriteFile, "write", _write_file),
        ("write_memory", _WriteMemory, "write", partial(_write_memory, memory)),
    ]
    token = cancellation or Cancellation()
    scope = partial(ToolCallScope, env, paths=paths, cancellation=token)
    return [build_tool(*one, open_scope=scope) for one in own if guard.is_listed(one[0])]


# --- files ----------------------------------------------------------------------------------------


class _ReadFile(Arguments):
    """Read a text file of any size, a page at a time.

    Go on with `next_start_line` where it is `truncated`. Lines are cut at 4096 bytes, those of
    `truncated_lines` were; `offset` reads all of them, by bytes: go on with `next_offset`.
    """

    path: Annotated[str, Field(min_length=1, description=_PATH)]
    start_line: Annotated[int, Field(ge=1, description="The first line, counted from 1.")] = 1
    max_lines: Annotated[int, Field(ge=1, le=1000)] = 400
    offset: Annotated[
        int | None, Field(ge=0, description="Read from this byte on, instead of by lines.")
    ] = None
    limit: Annotated[
        int, Field(ge=1, le=_PAGE_BYTES, description="Bytes at most, with `offset`.")
    ] = _PAGE_BYTES


async def _read_file(arguments: _ReadFile, call: ToolCallScope) -> ToolAnswer:
    if arguments.offset is not None:
        place = await asyncio.to_thread(call.paths.resolve, arguments.path)
        name, data = place.shown, await asyncio.to_thread(_read_bytes, place, arguments)
    else:
        given = arguments.model_dump(exclude={"offset", "limit"})
        action = await call.prepare(read_file, given)
        name = call.paths.shown(Path(action.access.target or ""))
        data = cast("dict[str, Any]", cast("ToolOutput", await action.run()).answer)
        del data["already_loaded"]
    call.note("file.read", f"read {name}", {"path": name})
    return ToolAnswer(ok=True, summary=f"read {name}", data=data)


def _read_bytes(place: ResolvedPath, arguments: _ReadFile) -> dict[str, Any]:
    """Return a page of a file as text, by byte positions, without splitting a character."""
    start = arguments.offset or 0
    with disk_errors(place.shown), open_file(place.path) as file:
        size = os.fstat(file.fileno()).st_size
        sample = file.read(SAMPLE_BYTES)
        encoding = encoding_of(sample, complete=len(sample) < SAMPLE_BYTES)
        file.seek(start)
        raw = file.read(arguments.limit)
    end = start + len(raw)
    name = encoding.name if encoding else "utf-8"
    decoder = codecs.getincrementaldecoder(name)("replace")
    content = decoder.decode(raw, end >= size)
    if end < size:
        end -= len(decoder.getstate()[0])
        if end == start:
            content, end = raw.decode(name, errors="replace"), start + len(raw)
    if start == 0 and encoding and encoding.mark:
        content = content.removeprefix("\ufeff")
    is_binary = encoding is None or "\0" in content
    return {
        "path": place.shown,
        "content": "" if is_binary else content,
        "binary": is_binary,
        "encoding": None if is_binary or encoding is None else encoding.shown,
        "bytes": size,
        "truncated": end < size,
        "next_offset": end if end < size else None,
    }


class _WriteFile(Arguments):
    """Write a whole text file below workspace/ or deliverables/.

    It replaces what is there, in the same encoding; a new file is UTF-8.
    """

    path: Annotated[str, Field(min_length=1, description=_PATH)]
    content: Annotated[str, Field(description="All of the file.")]


async def _write_file(arguments: _WriteFile, call: ToolCallScope) -> ToolAnswer:
    limit = call.env.config.tools.filesystem.max_file_bytes
    size = len(arguments.content.encode("utf-8", "replace"))
    if size > limit:
        place = await asyncio.to_thread(call.paths.resolve, arguments.path)
        raise KgentError(
            ErrorCode.VALIDATION_ERROR,
            f"{place.shown} has {size} bytes; tools.filesystem.max_file_bytes allows {limit}",
            category=ErrorCategory.TOOL,
        )
    action = await call.prepare(write_file, {**arguments.model_dump(), "overwrite": True})
    name = call.paths.shown(Path(action.access.target or ""))
    answer = cast("dict[str, Any]", await action.run())
    created, size = answer["created"], answer["bytes_written"]
    verb = "created" if created else "replaced"
    call.note("file.written", f"{verb} {name}", {"path": name, "bytes": size})
    data: dict[str, Any] = {"path": name, "bytes": size, "created": created}
    summary = f"{verb} {name} ({size} bytes)"
    return ToolAnswer(ok=True, summary=summary, data=data, artifacts=[name])


class _ListFiles(Arguments):
    """List a folder: names, paths, types and sizes, sorted by name."""

    path: Annotated[str, Field(min_length=1, description=_PATH)] = "."
    recursive: bool = False
    limit: Annotated[int, Field(ge=1, le=2000, description="How many entries at most.")] = 200


async def _list_files(arguments: _ListFiles, call: ToolCallScope) -> ToolAnswer:
    return await _look(list_dir, arguments.model_dump(), call, found="entries")


class _GrepFiles(Arguments):
    """Search files line by line, case-sensitive; ignored and binary files are skipped."""

    pattern: Annotated[str, Field(min_length=1, description="A regular expression.")]
    path: Annotated[str, Field(min_length=1, description="A file or folder to search in.")] = "."
    glob: Annotated[str | None, Field(min_length=1, description="Only these, like *.md.")] = None
    regex: Annotated[bool, Field(description="False: `pattern` is plain text.")] = True
    include_ignored: Annotated[bool, Field(description="Search ignored files too.")] = False
    limit: Annotated[int, Field(ge=1, le=1000, description="How many matches at most.")] = 100


async def _grep_files(arguments: _GrepFiles, call: ToolCallScope) -> ToolAnswer:
    given = arguments.model_dump(exclude={"pattern"}) | {"query": arguments.pattern}
    return await _look(search, given, call, found="matches")


async def _look(
    make: Callable[[Workspace], Tool], given: dict[str, Any], call: ToolCallScope, *, found: str
) -> ToolAnswer:
    """Return the answer of a tool that only reads, with the data it has `found`."""
    action = await call.prepare(make, given)
    answer = cast("dict[str, Any]", await action.run())
    name = call.paths.shown(Path(action.access.target or ""))
    return ToolAnswer(ok=True, summary=f"{found}: {len(answer[found])}, in {name}", data=answer)


class _DeleteFile(Arguments):
    """Delete one file below workspace/ or deliverables/."""

    path: Annotated[str, Field(min_length=1, description=_PATH)]


async def _delete_file(arguments: _DeleteFile, call: ToolCallScope) -> ToolAnswer:
    def delete() -> str:
        place = call.paths.resolve(arguments.path)
        call.paths.refuse_protected(place)
        with disk_errors(place.shown):
            if read_state(place.path) is None:
                message = f"{place.shown}: there is no such file"
                raise KgentError(ErrorCode.FILE_NOT_FOUND, message, category=ErrorCategory.TOOL)
            with open_folder(place.path.parent) as folder:
                os.unlink(place.path.name, dir_fd=folder)
        return place.shown

    name = await asyncio.to_thread(delete)
    data = {"path": name, "deleted": True}
    call.note("file.written", f"deleted {name}", data)
    return ToolAnswer(ok=True, summary=f"deleted {name}", data={"path": name})


# --- commands -------------------------------------------------------------------------------------


class _RunCommand(Arguments):
    """Run an allowed program in workspace/. No shell: no pipes, globs or variables."""

    argv: Annotated[
        list[str], Field(min_length=1, description="The program and its arguments, one each.")
    ]
    timeout_seconds: Annotated[int, Field(ge=1, le=600)] = 120


async def _run_command(arguments: _RunCommand, call: ToolCallScope) -> ToolAnswer:
    """Run a program under exactly the name that the profile lists, with the user's permissions."""
    program, allowed = arguments.argv[0], call.env.config.tools.shell.allowed_commands
    if program not in allowed:
        listed = ", ".join(allowed) or "none"
        raise KgentError(
            ErrorCode.PERMISSION_DENIED,
            f"{program[:100]!r} is not in tools.shell.allowed_commands; there are: {listed}",
            category=ErrorCategory.GOVERNANCE,
        )
    home = str(call.paths.project / "workspace")
    action = await call.prepare(
        run_command,
        {"argv": arguments.argv, "cwd": home, "timeout_ms": arguments.timeout_seconds * 1000},
        # Paths in its arguments are not checked: a command can reach everything the user can.
        paths=PathPolicy(call.paths.project),
        variables=command_environment(call.env),
    )
    result, error = await action.run(), None
    if isinstance(result, ToolResult):  # it timed out
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
    return ToolAnswer(
        ok=error is None,
        summary=error.message if error else f"{program} ended with exit code {answer['exit_code']}",
        data={**answer, "whole_output": artifacts} if artifacts else answer,
        artifacts=artifacts,
        error=error,
    )


# --- skills ---------------------------------------------------------------------------------------


class _ListSkills(Arguments):
    """List the skills there are: id, name, description, tags."""


async def _list_skills(skills: SkillRegistry, _: _ListSkills, __: ToolCallScope) -> ToolAnswer:
    found = await asyncio.to_thread(skills.discover)
    index = [skill.model_dump(mode="json", exclude={"path"}) for skill in found]
    return ToolAnswer(ok=True, summary=f"skills: {len(index)}", data={"skills": index})


class _LoadSkill(Arguments):
    """Load a skill: its instructions, and what lies beside them."""

    skill_id: Annotated[str, Field(min_length=1, description="An id from the index.")]


async def _load_skill(
    skills: SkillRegistry, guard: PermissionGuard, arguments: _LoadSkill, call: ToolCallScope
) -> ToolAnswer:
    skill = await asyncio.to_thread(skills.load_skill, arguments.skill_id)
    wanted = skill.declared_permissions
    lists = [cast("list[object]", value) for value in wanted.values() if isinstance(value, list)]
    names = {str(item) for items in lists for item in items}
    names |= {name for name, value in wanted.items() if value is True}
    refused = sorted(name for name in names if not guard.is_listed(name))
    skill_id, size = skill.summary.id, len(skill.instructions)
    call.note(
        "skill.loaded",
        f"loaded the skill {skill_id}",
        {"skill": skill_id, "declared_permissions": wanted, "not_granted": refused},
    )
    call.env.records.append_section("Skills", f"- loaded `{skill_id}` ({size} characters)")
    data = {
        "id": skill_id,
        "folder": str(skill.summary.path),
        "instructions": skill.instructions,
        "references": skill.references_summary,
        "templates": skill.templates_summary,
        "declared_permissions": wanted,
        "not_granted": refused,
    }
    return ToolAnswer(ok=True, summary=f"loaded {skill_id}", data=data)


# --- memory ---------------------------------------------------------------------------------------


class _RecallMemory(Arguments):
    """Look for what was remembered in earlier runs."""

    query: Annotated[str, Field(min_length=1, max_length=2000)]
    scope: Annotated[str, Field(max_length=200, description="Empty means any.")] = ""
    limit: Annotated[int, Field(ge=1, le=50)] = 5


async def _recall_memory(
    memory: MemoryClient, arguments: _RecallMemory, call: ToolCallScope
) -> ToolAnswer:
    scope, limit = arguments.scope, arguments.limit
    _check_scope(call, scope, may_be_empty=True)
    call.note("memory.recall.started", "recall begins", {"scope": scope})
    found = await _in_thread(partial(memory.recall_memory, arguments.query, scope, limit))
    allowed = call.env.config.memory.scopes
    items = [
        item.model_dump(mode="json", exclude_none=True)
        for item in found[:limit]
        if not allowed or item.scope in allowed
    ]
    summary = f"memories found: {len(items)}"
    call.note("memory.recall.completed", summary, {"count": len(items)})
    return ToolAnswer(ok=True, summary=summary, data={"items": items})


class _WriteMemory(Arguments):
    """Remember something for later runs."""

    content: Annotated[str, Field(min_length=1, max_length=20_000)]
    scope: Annotated[str, Field(max_length=200)] = ""
    tags: list[str] = []


async def _write_memory(
    memory: MemoryClient, arguments: _WriteMemory, call: ToolCallScope
) -> ToolAnswer:
    """Write to the memory in external mode; otherwise record a candidate for review."""
    content, scope, tags = arguments.content, arguments.scope, arguments.tags
    _check_scope(call, scope)
    mode = call.env.config.memory.write_mode
    call.note(
        "memory.write.requested",
        f"asked to remember {len(content)} characters ({mode})",
        {"mode": mode, "scope": scope, "tags": tags},
    )
    if mode == "external":
        written = await _in_thread(partial(memory.write_memory, content, scope, list(tags)))
        if not written.accepted:
            message = f"the memory did not take it: {written.summary or 'no reason given'}"
            raise KgentError(ErrorCode.MEMORY_WRITE_FAILED, message, category=ErrorCategory.MEMORY)
        data = {"memory_id": written.memory_id}
        return ToolAnswer(ok=True, summary=written.summary or "remembered", data=data)
    line = {
        "content": content,
        "scope": scope,
        "tags": tags,
        "run_id": call.env.ids.run_id,
        "call_id": call.call_id,
        "timestamp": now(),
    }
    path = call.env.records.add_lines(CANDIDATES, line)
    summary = "kept as a candidate; a person decides whether it is remembered"
    return ToolAnswer(ok=True, summary=summary, data={"candidate": True}, artifacts=[path])


def _check_scope(call: ToolCallScope, scope: str, *, may_be_empty: bool = False) -> None:
    allowed = call.env.config.memory.scopes
    if not allowed or scope in allowed or (may_be_empty and not scope):
        return
    raise KgentError(
        ErrorCode.VALIDATION_ERROR,
        f"the scope {scope[:80]!r} is not in memory.scopes; there are: {', '.join(allowed)}",
        category=ErrorCategory.MEMORY,
    )


async def _in_thread(function: Callable[[], R]) -> R:
    """Call a memory in its own thread; after a cancellation it has `GRACE_S` seconds to end."""
    work = asyncio.create_task(in_own_thread(function))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([work], timeout=GRACE_S)
        raise

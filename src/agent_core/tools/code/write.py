"""`code.write_file`: a whole file, or nothing of it."""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.base import Action, Tool, ToolContext
from agent_core.tools.code.definition import code_tool
from agent_core.tools.diff import unified
from agent_core.tools.files import (
    Snapshot,
    disk_errors,
    replace_file,
    take_snapshot,
    to_the_end,
)
from agent_core.tools.paths import ResolvedPath
from agent_core.tools.schema import Arguments
from agent_core.tools.seen import Version
from agent_core.tools.workspace import Workspace
from agent_core.types import ToolPermission

_PLAN_NAME = re.compile(r"[a-z0-9_-]{1,80}\.md")


class WriteFile(Arguments):
    """Write a whole text file (UTF-8). An existing one is only replaced with `overwrite`."""

    path: Annotated[str, Field(min_length=1, description="Relative to the project, or absolute.")]
    content: Annotated[str, Field(description="All of the file.")]
    create_dirs: Annotated[bool, Field(description="Make missing folders.")] = True
    overwrite: bool = False


def write_file(workspace: Workspace) -> Tool:
    """The tool, for one workspace."""

    async def prepare(arguments: WriteFile, context: ToolContext) -> Action:
        return await asyncio.to_thread(_prepare, workspace, arguments, context.agent_id)

    return code_tool(
        "write_file",
        WriteFile,
        prepare,
        permission=ToolPermission.WRITE,
        tags={"filesystem"},
    )


def _prepare(workspace: Workspace, arguments: WriteFile, agent_id: str) -> Action:
    place = workspace.boundaries.resolve(arguments.path)
    workspace.boundaries.refuse_protected(place)
    content = _encoded(arguments.content)
    with disk_errors(place.shown):
        before = take_snapshot(place.path)
    is_plan = check_plan_name(workspace, place)
    if before is not None and (is_plan or not arguments.overwrite):
        cure = "choose another name" if is_plan else "set overwrite to replace it"
        raise ToolError(ErrorCode.PATH_CONFLICT, f"{place.shown} exists already; {cure}")
    if before is None and not arguments.create_dirs and not place.path.parent.is_dir():
        message = f"the folder of {place.shown} does not exist; set create_dirs to make it"
        raise ToolError(ErrorCode.FILE_NOT_FOUND, message)
    if before is not None:
        workspace.seen.require_current(agent_id, place.path, before.version, shown=place.shown)
    verb = "create" if before is None else "replace"
    summary = f"{verb} {place.shown} ({len(content)} bytes)"
    diff = _diff(before, arguments.content, place)
    note = partial(workspace.seen.written, agent_id, place.path)
    return Action(
        access=workspace.change(place, summary=summary, diff=diff),
        run=lambda: to_the_end(
            _write, place, content, before, arguments.create_dirs, workspace.unfinished, note
        ),
    )


def _write(
    place: ResolvedPath,
    content: bytes,
    before: Snapshot | None,
    create_dirs: bool,
    unfinished: UnfinishedWrites,
    note: Callable[[Version], None],
) -> dict[str, Any]:
    with disk_errors(place.shown):
        version = replace_file(
            place.path, content, before=before, create_dirs=create_dirs, unfinished=unfinished
        )
    note(version)
    return {
        "path": place.shown,
        "bytes_written": len(content),
        "created": before is None,
        "overwritten": before is not None,
    }


def check_plan_name(workspace: Workspace, place: ResolvedPath) -> bool:
    """Is it a plan? Those have plain names and are never replaced by writing.

    Raises:
        ToolError: `validation_error`; it is in the plans folder and has another name.
    """
    folder = workspace.plans_dir
    if folder is None or not place.path.is_relative_to(folder):
        return False
    name = place.path.relative_to(folder)
    if len(name.parts) != 1 or not _PLAN_NAME.fullmatch(name.name):
        message = (
            f"{Path(place.shown).name!r} is no name for a plan: up to 80 of a-z 0-9 _ - and .md, "
            "directly in the plans folder"
        )
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.path"})
    return True


def _encoded(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        message = f"content has a lone surrogate at {error.start}; no file can hold it"
        raise ToolError(
            ErrorCode.VALIDATION_ERROR, message, details={"path": "$.content"}
        ) from error


def _diff(before: Snapshot | None, content: str, place: ResolvedPath) -> str:
    if before is None:
        return unified("", content, shown=place.shown)
    if before.content is None or b"\0" in before.content:
        return f"--- {place.shown}\n+++ {place.shown}\n(all of it is replaced)\n"
    return unified(before.content.decode(errors="replace"), content, shown=place.shown)

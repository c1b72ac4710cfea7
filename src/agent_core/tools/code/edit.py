"""`code.edit_file`: change parts of a file, all of them or none."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import ErrorCode, ToolError
from agent_core.redaction.visible import shortened
from agent_core.tools.base import Action, Tool, ToolContext
from agent_core.tools.code.definition import code_tool
from agent_core.tools.code.write import check_plan_name
from agent_core.tools.diff import unified
from agent_core.tools.files import (
    MAX_LOADED_BYTES,
    Snapshot,
    disk_errors,
    replace_file,
    take_snapshot,
    to_the_end,
)
from agent_core.tools.patch import Patch
from agent_core.tools.paths import ResolvedPath
from agent_core.tools.replace import Replacement, replaced
from agent_core.tools.schema import Arguments
from agent_core.tools.seen import Version
from agent_core.tools.text import Encoding, Text
from agent_core.tools.workspace import Workspace
from agent_core.types import ToolPermission


class Edit(Arguments):
    """One replacement."""

    old: Annotated[str, Field(description="Text that occurs exactly once, spaces included.")]
    new: Annotated[str, Field(description="What stands there instead.")]
    replace_all: Annotated[bool, Field(description="Replace every occurrence.")] = False


class EditFile(Arguments):
    """Change a text file: either `edits`, one after the other, or a `unified_diff` of this file.

    All of it applies or nothing does. Line ends, encoding and byte-order mark stay as they are.
    """

    path: Annotated[str, Field(min_length=1, description="Relative to the project, or absolute.")]
    edits: Annotated[list[Edit] | None, Field(min_length=1)] = None
    unified_diff: Annotated[str | None, Field(min_length=1)] = None
    create_if_missing: bool = False


def edit_file(workspace: Workspace) -> Tool:
    """The tool, for one workspace."""

    async def prepare(arguments: EditFile, context: ToolContext) -> Action:
        if (arguments.edits is None) == (arguments.unified_diff is None):
            message = "code.edit_file takes exactly one of edits and unified_diff"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$"})
        return await asyncio.to_thread(_prepare, workspace, arguments, context.agent_id)

    return code_tool(
        "edit_file",
        EditFile,
        prepare,
        permission=ToolPermission.WRITE,
        tags={"filesystem"},
    )


def _prepare(workspace: Workspace, arguments: EditFile, agent_id: str) -> Action:
    place = workspace.boundaries.resolve(arguments.path)
    workspace.boundaries.refuse_protected(place)
    with disk_errors(place.shown):
        before = take_snapshot(place.path)
    if before is None and not arguments.create_if_missing:
        message = f"there is no file {place.shown}; set create_if_missing to make it"
        raise ToolError(ErrorCode.FILE_NOT_FOUND, message)
    if before is None:
        check_plan_name(workspace, place)
    else:
        workspace.seen.require_current(agent_id, place.path, before.version, shown=place.shown)
    source = _loaded(before, place)
    text, count = _changed(workspace, arguments, place, source, exists=before is not None)
    try:
        content = source.encoded(text)
    except UnicodeEncodeError as error:
        message = f"{place.shown} is {source.encoding.name}, which has no {text[error.start]!r}"
        raise ToolError(ErrorCode.VALIDATION_ERROR, message) from error
    note = partial(workspace.seen.written, agent_id, place.path)
    return Action(
        access=workspace.change(
            place,
            summary=f"edit {place.shown} ({count} change{'s' * (count != 1)})",
            diff=unified(source.text, text, shown=place.shown),
        ),
        run=lambda: to_the_end(_write, place, content, before, count, workspace.unfinished, note),
    )


def _loaded(before: Snapshot | None, place: ResolvedPath) -> Text:
    if before is None:
        return Text("", Encoding("utf-8"))
    if before.content is None:
        size = MAX_LOADED_BYTES // 2**20
        message = f"{place.shown} is larger than {size} MiB, too large to edit"
        raise ToolError(ErrorCode.VALIDATION_ERROR, message)
    return Text.decoded(before.content, shown=place.shown)


def _changed(
    workspace: Workspace, arguments: EditFile, place: ResolvedPath, source: Text, *, exists: bool
) -> tuple[str, int]:
    """The new text, and how many changes made it."""
    if arguments.unified_diff is not None:
        patch = Patch.parse(arguments.unified_diff)
        for named in patch.paths:
            _check_target(workspace, place, named, exists=exists)
        return patch.applied(source.text, newline=source.newline), len(patch.hunks)
    edits = [Replacement(edit.old, edit.new, edit.replace_all) for edit in arguments.edits or ()]
    return replaced(source.text, edits, newline=source.newline, shown=place.shown), len(edits)


def _check_target(workspace: Workspace, place: ResolvedPath, named: str, *, exists: bool) -> None:
    """A path in a diff must mean this file: as it stands, or after `a/` or `b/`."""
    if named == "/dev/null":
        if exists:
            message = f"the diff creates {place.shown}, which exists already"
            raise ToolError(ErrorCode.PATH_CONFLICT, message)
        return
    readings = {named, named.removeprefix("a/"), named.removeprefix("b/")} - {""}
    if all(workspace.boundaries.resolve(each).path != place.path for each in readings):
        shown = shortened(named, 200)
        raise ToolError(
            ErrorCode.PATCH_PATH_MISMATCH,
            f"the diff changes {shown}, not {place.shown}; one call changes one file",
            details={"path": place.shown, "named": shown},
        )


def _write(
    place: ResolvedPath,
    content: bytes,
    before: Snapshot | None,
    count: int,
    unfinished: UnfinishedWrites,
    note: Callable[[Version], None],
) -> dict[str, Any]:
    with disk_errors(place.shown):
        note(replace_file(place.path, content, before=before, unfinished=unfinished))
    return {"path": place.shown, "edits_applied": count, "bytes_written": len(content)}

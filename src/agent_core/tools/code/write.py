"""`code.write_file` and `code.edit_file`: a change is made whole or not at all."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from agent_core.aio import finish_uncancelled
from agent_core.errors import ErrorCode, ToolError
from agent_core.text import plural, shortened
from agent_core.text.json_text import JsonObject
from agent_core.tools.base import Action, Tool, ToolContext
from agent_core.tools.files import (
    MAX_LOADED_BYTES,
    FileState,
    disk_errors,
    open_file,
    read_state,
    replace_file,
)
from agent_core.tools.patch import Patch, TextEdit, apply_edits, unified_diff
from agent_core.tools.schema import Arguments
from agent_core.tools.text import SAMPLE_BYTES, DecodedText, Encoding
from agent_core.tools.workspace import ResolvedPath, Workspace, code_tool
from agent_core.types import ToolPermission

_PLAN_NAME = r"[a-z0-9_-]{1,80}\.md"

_MAX_DIFF = 1_000_000
"""Characters of a diff in a question, which is there as a whole."""


class WriteFile(Arguments):
    """Write a whole text file; overwrite replaces an existing one."""

    path: Annotated[str, Field(min_length=1)]
    content: str
    create_dirs: bool = True
    overwrite: bool = False


class EditFile(Arguments):
    """Change a text file by edits in order or a unified_diff: all or nothing."""

    path: Annotated[str, Field(min_length=1)]
    edits: Annotated[list[TextEdit] | None, Field(min_length=1)] = None
    unified_diff: Annotated[str | None, Field(min_length=1)] = None
    create_if_missing: bool = False


def write_file(workspace: Workspace) -> Tool:
    """`code.write_file`, for one workspace."""

    async def prepare(arguments: WriteFile, context: ToolContext) -> Action:
        return await asyncio.to_thread(_prepare_write, workspace, arguments, context)

    return code_tool("write_file", WriteFile, prepare, kind="edit", permission=ToolPermission.WRITE)


def edit_file(workspace: Workspace) -> Tool:
    """`code.edit_file`, for one workspace."""

    async def prepare(arguments: EditFile, context: ToolContext) -> Action:
        if (arguments.edits is None) == (arguments.unified_diff is None):
            message = "code.edit_file takes exactly one of edits and unified_diff"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$"})
        return await asyncio.to_thread(_prepare_edit, workspace, arguments, context)

    return code_tool("edit_file", EditFile, prepare, kind="edit", permission=ToolPermission.WRITE)


def _prepare_write(workspace: Workspace, arguments: WriteFile, context: ToolContext) -> Action:
    place, before = _look_up(workspace, arguments.path, context.agent_id)
    try:
        arguments.content.encode()
    except UnicodeEncodeError as error:
        message = f"content has a lone surrogate at {error.start}; no file can hold it"
        details = {"path": "$.content"}
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details) from error
    is_plan = _check_plan_name(workspace, place)
    if before is not None and (is_plan or not arguments.overwrite):
        cure = "choose another name" if is_plan else "set overwrite to replace it"
        raise ToolError(ErrorCode.PATH_CONFLICT, f"{place.shown} exists already; {cure}")
    if before is None and not arguments.create_dirs and not place.path.parent.is_dir():
        message = f"the folder of {place.shown} does not exist; set create_dirs to make it"
        raise ToolError(ErrorCode.FILE_NOT_FOUND, message)
    source = _text_before(place, before)
    text = arguments.content if source is None else source.adapt(arguments.content)
    content = text.encode() if source is None else _encode(source, text, place)
    if before is not None and (source is None or before.content is None):
        diff = f"--- {place.shown}\n+++ {place.shown}\n(all of it is replaced)\n"
    else:
        before_text = None if source is None else source.text
        diff = unified_diff(before_text, text, shown=place.shown, most=_MAX_DIFF)
        if source is not None and before is not None and not source.stands_for(before.content):
            diff += "(the text before cannot be read exactly)\n"
    verb = "create" if before is None else "replace"
    return _replacement(
        workspace,
        context,
        place,
        before,
        content,
        summary=f"{verb} {place.shown} ({plural(len(content), 'byte')})",
        diff=diff,
        create_dirs=arguments.create_dirs,
        answer={
            "path": place.shown,
            "bytes_written": len(content),
            "created": before is None,
            "overwritten": before is not None,
        },
    )


def _prepare_edit(workspace: Workspace, arguments: EditFile, context: ToolContext) -> Action:
    place, before = _look_up(workspace, arguments.path, context.agent_id)
    if before is None:
        if not arguments.create_if_missing:
            message = f"there is no file {place.shown}; set create_if_missing to make it"
            raise ToolError(ErrorCode.FILE_NOT_FOUND, message)
        _check_plan_name(workspace, place)
        source = DecodedText("", Encoding("utf-8"))
    elif before.content is None:
        size = MAX_LOADED_BYTES // 2**20
        message = f"{place.shown} is larger than {size} MiB, too large to edit"
        raise ToolError(ErrorCode.VALIDATION_ERROR, message)
    else:
        source = DecodedText.decode(before.content, shown=place.shown)
    if arguments.unified_diff is not None:
        patch = Patch.parse(arguments.unified_diff)
        for named in patch.paths:
            _check_target(workspace, place, named, exists=before is not None)
        text, count = patch.apply(source.text, newline=source.newline), len(patch.hunks)
    else:
        edits = arguments.edits or []
        text = apply_edits(source.text, edits, newline=source.newline, shown=place.shown)
        count = len(edits)
    content = _encode(source, text, place)
    return _replacement(
        workspace,
        context,
        place,
        before,
        content,
        summary=f"edit {place.shown} ({count} change{'s' * (count != 1)})",
        diff=unified_diff(
            None if before is None else source.text, text, shown=place.shown, most=_MAX_DIFF
        ),
        answer={"path": place.shown, "edits_applied": count, "bytes_written": len(content)},
    )


def _text_before(place: ResolvedPath, before: FileState | None) -> DecodedText | None:
    """Return the text that is replaced (the beginning, of a large file), or None."""
    if before is None:
        return None
    if before.content is not None:
        return DecodedText.approximate(before.content)
    with disk_errors(place.shown), open_file(place.path) as file:
        return DecodedText.approximate(file.read(SAMPLE_BYTES), complete=False)


def _encode(source: DecodedText, text: str, place: ResolvedPath) -> bytes:
    """Return the bytes of a text in the encoding of the file that it replaces.

    Raises:
        ToolError: `validation_error`: that encoding lacks a character.
    """
    try:
        return source.encode(text)
    except UnicodeEncodeError as error:
        name, sign = source.encoding.shown, text[error.start]
        message = (
            f"{place.shown} is in {name}, which has no {sign!r}; "
            "use other characters, or convert the file to UTF-8 first"
        )
        raise ToolError(ErrorCode.VALIDATION_ERROR, message) from error


def _look_up(
    workspace: Workspace, path: str, agent_id: str
) -> tuple[ResolvedPath, FileState | None]:
    """Resolve a path and read its file, if the agent may change it and knows its content."""
    place = workspace.boundaries.resolve(path)
    workspace.boundaries.refuse_protected(place)
    with disk_errors(place.shown):
        before = read_state(place.path)
    if before is not None:
        workspace.seen.require_current(agent_id, place.path, before.version, shown=place.shown)
    return place, before


def _replacement(
    workspace: Workspace,
    context: ToolContext,
    place: ResolvedPath,
    before: FileState | None,
    content: bytes,
    *,
    summary: str,
    diff: str,
    answer: JsonObject,
    create_dirs: bool = True,
) -> Action:
    """The action that puts `content` in the place of `before`, and answers `answer`."""

    def write() -> JsonObject:
        with disk_errors(place.shown):
            version = replace_file(
                place.path,
                content,
                before=before,
                create_dirs=create_dirs,
                unfinished=workspace.unfinished,
            )
        workspace.seen.note_write(context.agent_id, place.path, version)
        return answer

    from agent_core.tools.code.edits import judge_edit  # noqa: PLC0415 - not to list the tools

    judged = judge_edit(workspace, place)
    access = workspace.change(place, summary=summary, diff=diff, is_alone=judged.is_obeyed)
    obeyed = "other programs execute or obey this file" if judged.is_obeyed else None
    is_plan = place.writable and _is_plan(workspace, place)
    access = replace(access, edits=judged.is_ordinary, asked_by=obeyed, writes_plan=is_plan)
    return Action(access, lambda: finish_uncancelled(asyncio.to_thread(write)))


def _check_target(workspace: Workspace, place: ResolvedPath, named: str, *, exists: bool) -> None:
    """Check that a path in a diff means this file: as written, or after `a/` or `b/`."""
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


def _check_plan_name(workspace: Workspace, place: ResolvedPath) -> bool:
    """Return whether a path is a plan; plans have plain names and are never replaced by writing.

    Raises:
        ToolError: `validation_error`; it is in the plans folder and has another name.
    """
    folder = workspace.plans_dir
    if folder is None or not place.path.is_relative_to(folder):
        return False
    if not _is_plan(workspace, place):
        message = (
            f"{Path(place.shown).name!r} is not a name for a plan: up to 80 of a-z 0-9 _ - and .md,"
            " directly in the plans folder"
        )
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.path"})
    return True


def _is_plan(workspace: Workspace, place: ResolvedPath) -> bool:
    """Return whether a file lies in the plans folder itself and has the name of a plan."""
    is_there = workspace.plans_dir == place.path.parent
    return is_there and re.fullmatch(_PLAN_NAME, place.path.name) is not None

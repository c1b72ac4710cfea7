"""The tools that read and write files."""

import asyncio
import codecs
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field

from agent_core.disk.folders import open_folder
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.base import Tool, ToolAnswer
from agent_core.tools.code.read import list_dir, read_file
from agent_core.tools.code.search import search
from agent_core.tools.code.write import write_file
from agent_core.tools.files import disk_errors, open_file, read_state
from agent_core.tools.schema import Arguments
from agent_core.tools.text import SAMPLE_BYTES, encoding_of
from agent_core.tools.workspace import ResolvedPath, Workspace
from kgent.sandbox.paths import resolve_sandbox_path
from kgent.tools.calls import OwnTool, ToolCallScope
from kgent.tools.results import ToolResult

_PAGE_BYTES = 16_384
_PATH = "Relative to the run folder, such as workspace/notes.md."


class _ReadFile(Arguments):
    """Read a text file of any size, a page at a time.

    Go on with `next_start_line` where it is `truncated`. Lines are cut at 4096 bytes, those of
    `truncated_lines` were; `offset` reads all of them, by bytes: continue with `next_offset`.
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


async def _read_file(arguments: _ReadFile, call: ToolCallScope) -> ToolResult:
    if arguments.offset is not None:
        place = await asyncio.to_thread(call.paths.resolve, arguments.path)
        name, data = place.shown, await asyncio.to_thread(_read_bytes, place, arguments)
    else:
        given = arguments.model_dump(exclude={"offset", "limit"})
        action = await call.prepare(read_file, given)
        name = call.paths.shown(Path(action.access.target or ""))
        data = cast("dict[str, Any]", cast("ToolAnswer", await action.run()).answer)
        del data["already_loaded"]
    call.note("file.read", f"read {name}", {"path": name})
    return ToolResult(ok=True, summary=f"read {name}", data=data)


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


async def _write_file(arguments: _WriteFile, call: ToolCallScope) -> ToolResult:
    limit = call.context.config.tools.filesystem.max_file_bytes
    size = len(arguments.content.encode("utf-8", "replace"))
    if size > limit:
        place = await asyncio.to_thread(call.paths.resolve, arguments.path)
        reason = f"has {size} bytes; tools.filesystem.max_file_bytes allows {limit}"
        raise ToolError(ErrorCode.VALIDATION_ERROR, f"{place.shown} {reason}")
    action = await call.prepare(write_file, {**arguments.model_dump(), "overwrite": True})
    name = call.paths.shown(Path(action.access.target or ""))
    answer = cast("dict[str, Any]", await action.run())
    created, size = answer["created"], answer["bytes_written"]
    verb = "created" if created else "replaced"
    call.note("file.written", f"{verb} {name}", {"path": name, "bytes": size})
    data: dict[str, Any] = {"path": name, "bytes": size, "created": created}
    summary = f"{verb} {name} ({size} bytes)"
    return ToolResult(ok=True, summary=summary, data=data, artifacts=[name])


class _ListFiles(Arguments):
    """List a folder: names, paths, types and sizes, sorted by name."""

    path: Annotated[str, Field(min_length=1, description=_PATH)] = "."
    recursive: bool = False
    limit: Annotated[int, Field(ge=1, le=2000, description="How many entries at most.")] = 200


async def _list_files(arguments: _ListFiles, call: ToolCallScope) -> ToolResult:
    return await _look(list_dir, arguments.model_dump(), call, found="entries")


class _GrepFiles(Arguments):
    """Search files line by line, case-sensitive; ignored and binary files are skipped."""

    pattern: Annotated[str, Field(min_length=1, description="A regular expression.")]
    path: Annotated[str, Field(min_length=1, description="A file or folder to search in.")] = "."
    glob: Annotated[str | None, Field(min_length=1, description="Only these, like *.md.")] = None
    regex: Annotated[bool, Field(description="False: `pattern` is plain text.")] = True
    include_ignored: Annotated[bool, Field(description="Search ignored files too.")] = False
    limit: Annotated[int, Field(ge=1, le=1000, description="How many matches at most.")] = 100


async def _grep_files(arguments: _GrepFiles, call: ToolCallScope) -> ToolResult:
    given = arguments.model_dump(exclude={"pattern"}) | {"query": arguments.pattern}
    return await _look(search, given, call, found="matches")


async def _look(
    make: Callable[[Workspace], Tool], given: dict[str, Any], call: ToolCallScope, *, found: str
) -> ToolResult:
    """Return the answer of a tool that only reads, with the data it has `found`."""
    action = await call.prepare(make, given)
    answer = cast("dict[str, Any]", await action.run())
    name = call.paths.shown(Path(action.access.target or ""))
    return ToolResult(ok=True, summary=f"{found}: {len(answer[found])}, in {name}", data=answer)


class _DeleteFile(Arguments):
    """Delete one file below workspace/ or deliverables/."""

    path: Annotated[str, Field(min_length=1, description=_PATH)]


async def _delete_file(arguments: _DeleteFile, call: ToolCallScope) -> ToolResult:
    def delete() -> str:
        path = resolve_sandbox_path(call.paths.project, arguments.path, for_write=True)
        name = call.paths.shown(path)
        with disk_errors(name):
            if read_state(path) is None:
                message = f"{name}: there is no such file"
                raise ToolError(ErrorCode.FILE_NOT_FOUND, message)
            with open_folder(path.parent) as folder:
                os.unlink(path.name, dir_fd=folder)
        return name

    name = await asyncio.to_thread(delete)
    data = {"path": name, "deleted": True}
    call.note("file.written", f"deleted {name}", data)
    return ToolResult(ok=True, summary=f"deleted {name}", data={"path": name})


FILE_TOOLS = (
    OwnTool("delete_file", _DeleteFile, "delete", _delete_file),
    OwnTool("grep_files", _GrepFiles, "read", _grep_files),
    OwnTool("list_files", _ListFiles, "read", _list_files),
    OwnTool("read_file", _ReadFile, "read", _read_file),
    OwnTool("write_file", _WriteFile, "write", _write_file),
)

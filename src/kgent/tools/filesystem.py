"""Files of the run folder: read, list, search, write, and, where the profile allows it, delete."""

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from agent_core.disk.folders import open_folder
from agent_core.errors import ErrorCode
from agent_core.tools.code.listing import list_dir
from agent_core.tools.code.read import read_file as read_page
from agent_core.tools.code.search import search
from agent_core.tools.code.write import write_file as write_whole
from agent_core.tools.files import disk_errors, take_snapshot
from agent_core.tools.schema import Arguments
from kgent.errors import ErrorCategory, KgentError
from kgent.records.events import EventType
from kgent.sandbox.paths import shown
from kgent.tools.borrowed import run_core_tool
from kgent.tools.guarded import Call
from kgent.tools.results import ToolResult

_PATH = "Relative to the run folder, such as workspace/notes.md."


class ReadFile(Arguments):
    """Read a text file, a page at a time; go on with `next_start_line` where it is `truncated`."""

    path: Annotated[str, Field(min_length=1, description=_PATH)]
    start_line: Annotated[int, Field(ge=1, description="The first line, counted from 1.")] = 1
    max_lines: Annotated[int, Field(ge=1, le=1000)] = 400


class WriteFile(Arguments):
    """Write a whole text file (UTF-8) below workspace/ or deliverables/; replaces what is there."""

    path: Annotated[str, Field(min_length=1, description=_PATH)]
    content: Annotated[str, Field(description="All of the file.")]


class ListFiles(Arguments):
    """List a folder: names, paths, types and sizes, sorted by name."""

    path: Annotated[str, Field(min_length=1, description=_PATH)] = "."
    recursive: bool = False
    limit: Annotated[int, Field(ge=1, le=2000, description="How many entries at most.")] = 200


class GrepFiles(Arguments):
    """Search files line by line, case-sensitive; binary files are skipped."""

    pattern: Annotated[str, Field(min_length=1, description="A regular expression.")]
    path: Annotated[str, Field(min_length=1, description="A file or folder to search in.")] = "."
    glob: Annotated[str | None, Field(min_length=1, description="Only these, like *.md.")] = None
    regex: Annotated[bool, Field(description="False: `pattern` is plain text.")] = True
    limit: Annotated[int, Field(ge=1, le=1000, description="How many matches at most.")] = 100


class DeleteFile(Arguments):
    """Delete one file below workspace/ or deliverables/."""

    path: Annotated[str, Field(min_length=1, description=_PATH)]


def read_file(arguments: ReadFile, call: Call) -> ToolResult:
    """One page of a file."""
    path = call.resolve(arguments.path)
    name = shown(call.root, path)
    _check_size(path, name, call)
    wanted = {**arguments.model_dump(), "path": str(path)}
    answer = run_core_tool(read_page, wanted, call, expected=path)
    kept = ("path", "content", "truncated", "next_start_line", "total_lines", "binary")
    page = {key: answer[key] for key in kept}
    call.note(EventType.FILE_READ, f"read {name}", {"path": name})
    return ToolResult(ok=True, summary=f"read {name}", data=page)


def write_file(arguments: WriteFile, call: Call) -> ToolResult:
    """A whole file, or nothing of it."""
    path = call.resolve(arguments.path)
    name = shown(call.root, path)
    limit = call.context.config.tools.filesystem.max_file_bytes
    size = len(arguments.content.encode("utf-8", "replace"))
    if size > limit:
        raise _too_large(name, size, limit)
    wanted = {"path": str(path), "content": arguments.content, "overwrite": True}
    answer = run_core_tool(write_whole, wanted, call, expected=path)
    verb = "created" if answer["created"] else "replaced"
    call.note(EventType.FILE_WRITTEN, f"{verb} {name}", {"path": name, "bytes": size})
    data: dict[str, Any] = {"path": name, "bytes": size, "created": answer["created"]}
    return ToolResult(ok=True, summary=f"{verb} {name} ({size} bytes)", data=data, artifacts=[name])


def list_files(arguments: ListFiles, call: Call) -> ToolResult:
    """What is in a folder."""
    path = call.resolve(arguments.path)
    wanted = {**arguments.model_dump(), "path": str(path)}
    answer = run_core_tool(list_dir, wanted, call, expected=path)
    summary = f"entries: {len(answer['entries'])}, in {shown(call.root, path)}"
    return ToolResult(ok=True, summary=summary, data=answer)


def grep_files(arguments: GrepFiles, call: Call) -> ToolResult:
    """Lines that match."""
    path = call.resolve(arguments.path)
    wanted = {
        "query": arguments.pattern,
        "path": str(path),
        "glob": arguments.glob,
        "regex": arguments.regex,
        "limit": arguments.limit,
    }
    answer = run_core_tool(search, wanted, call, expected=path)
    summary = f"matches: {len(answer['matches'])}, in {shown(call.root, path)}"
    return ToolResult(ok=True, summary=summary, data=answer)


def delete_file(arguments: DeleteFile, call: Call) -> ToolResult:
    """One file less."""
    path = call.resolve(arguments.path)
    name = shown(call.root, path)
    with disk_errors(name):
        if take_snapshot(path) is None:
            message = f"{name}: there is no such file"
            raise KgentError(ErrorCode.FILE_NOT_FOUND, message, category=ErrorCategory.TOOL)
        with open_folder(path.parent) as folder:
            os.unlink(path.name, dir_fd=folder)
    call.note(EventType.FILE_WRITTEN, f"deleted {name}", {"path": name, "deleted": True})
    return ToolResult(ok=True, summary=f"deleted {name}", data={"path": name})


def _check_size(path: Path, name: str, call: Call) -> None:
    limit = call.context.config.tools.filesystem.max_file_bytes
    with disk_errors(name):
        size = path.stat().st_size
    if size > limit:
        raise _too_large(name, size, limit)


def _too_large(name: str, size: int, limit: int) -> KgentError:
    return KgentError(
        ErrorCode.VALIDATION_ERROR,
        f"{name} has {size} bytes; tools.filesystem.max_file_bytes allows {limit}",
        category=ErrorCategory.TOOL,
    )

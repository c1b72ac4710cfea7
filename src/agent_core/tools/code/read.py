"""`code.read_file`: one page of a text file, streamed; `code.list_dir`: the entries of a folder."""

import asyncio
import codecs
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import Field

from agent_core.disk.folders import open_folder
from agent_core.errors import ErrorCode, ToolError
from agent_core.text import shorten_name, shown_id
from agent_core.text.json_text import JsonObject
from agent_core.tools.base import Action, Tool, ToolAnswer, ToolContext, ToolReturn
from agent_core.tools.files import Version, disk_errors, open_below, open_file, version_of
from agent_core.tools.schema import Arguments
from agent_core.tools.text import SAMPLE_BYTES, Encoding, encoding_of
from agent_core.tools.workspace import ARTIFACT, ResolvedPath, Workspace, code_tool, path_to_read
from agent_core.types import Access

MAX_LINE_BYTES = 4096
_COUNTED_BYTES = 4 * 2**20
_CHUNK = 2**18
_ASCII = bytes(range(128))
_CONTEXT_BYTES = 256
"""Bytes before the first character beyond ASCII that help to recognise the encoding."""
_NOT_ENTERED = frozenset({".git", ".hg", ".svn"})
_MAX_DEPTH = 400


class ReadFile(Arguments):
    """Read 200 lines (up to 1000) of a text file or artifact:<id>; go on at next_start_line."""

    path: Annotated[str, Field(min_length=1)]
    start_line: Annotated[int, Field(ge=1)] = 1
    max_lines: Annotated[int, Field(ge=1, le=1000)] = 200


def read_file(workspace: Workspace) -> Tool:
    """`code.read_file`, for one workspace."""
    in_turn = asyncio.Lock()  # calls of one turn begin to read in their order

    async def prepare(arguments: ReadFile, context: ToolContext) -> Action:
        if arguments.path.startswith(ARTIFACT):
            return _read_artifact(workspace, arguments, context)
        async with in_turn:
            place = await asyncio.to_thread(workspace.boundaries.resolve, arguments.path)
        last = arguments.start_line + arguments.max_lines - 1
        summary = f"{place.shown} lines {arguments.start_line} to {last}"

        async def read() -> ToolAnswer:
            limit = workspace.limits.result_limit_bytes
            register, reading = workspace.register, None
            async with register.in_order(place.path) if register else nullcontext():
                page, version = await asyncio.to_thread(
                    _read_page, place, arguments, limit, context.is_cancelled
                )
                if register and not page["binary"]:
                    reading = await register.note(place.path, context)
            workspace.seen.note_read(context.agent_id, place.path, version)
            page["already_loaded"] = reading.already_loaded if reading else False
            return ToolAnswer(page, reading.adds if reading else ())

        return Action(workspace.look(place, summary=summary, line=arguments.start_line), read)

    return code_tool("read_file", ReadFile, prepare, kind="read", keeps_own_limits=True)


def _read_page(
    place: ResolvedPath, arguments: ReadFile, limit_bytes: int, is_cancelled: Callable[[], bool]
) -> tuple[dict[str, Any], Version]:
    """Return one page of a file for the model, and the file's version.

    `total_lines` is None if counting them would mean reading the whole file.
    """
    kept: list[str] = []
    cut: list[int] = []
    next_line = total = None
    with disk_errors(place.shown), open_file(place.path) as file:
        version = version_of(file)
        encoding = _find_encoding(file)
        if encoding is not None:
            text = _TextStream(file, encoding, is_cancelled)
            size = 0
            for number, line in enumerate(text.lines(arguments.start_line), arguments.start_line):
                shown = line
                if len(line) * 4 > MAX_LINE_BYTES:  # else it is short enough in any encoding
                    body = line.removesuffix("\n").encode(errors="replace")
                    if len(body) > MAX_LINE_BYTES:
                        shown = body[:MAX_LINE_BYTES].decode(errors="ignore")
                size += len(shown.encode(errors="replace"))
                if kept and (len(kept) == arguments.max_lines or size > limit_bytes):
                    next_line = number
                    break
                cut += [number] if shown != line else []
                kept.append(shown if shown == line else f"{shown}\n")
            if next_line is None or os.fstat(file.fileno()).st_size <= _COUNTED_BYTES:
                total = text.count_all()
    page = _view_page(place.shown, kept, next_line, encoding, total)
    return page | {"truncated_lines": cut}, version


def _read_artifact(workspace: Workspace, arguments: ReadFile, context: ToolContext) -> Action:
    """Return the action of reading one page of an artifact of the session, which asks nothing."""

    async def read() -> ToolReturn:
        artifact_id = arguments.path.removeprefix(ARTIFACT)
        if workspace.artifacts is None:
            message = f"there is no artifact {shown_id(artifact_id)}: none are kept here"
            raise ToolError(ErrorCode.ARTIFACT_NOT_FOUND, message)
        file = await workspace.artifacts.open(artifact_id, session_id=context.session_id)
        with file:
            return await asyncio.to_thread(
                _read_artifact_page,
                file,
                arguments,
                workspace.limits.result_limit_bytes,
                context.is_cancelled,
            )

    last = arguments.start_line + arguments.max_lines - 1
    summary = f"{shorten_name(arguments.path)} lines {arguments.start_line} to {last}"
    return Action(Access(summary=summary), read)


def _read_artifact_page(
    file: BinaryIO, arguments: ReadFile, limit_bytes: int, is_cancelled: Callable[[], bool]
) -> dict[str, Any]:
    """Return one page of an artifact: all its text is reached by `next_start_line`.

    The contents of its pages, put together, are its text: a line that is too long continues in the
    next number, and `continued_lines` names the numbers that continue the line before.
    """
    kept: list[str] = []
    continued: list[int] = []
    next_line = total = None
    is_large = file.seek(0, os.SEEK_END) > _COUNTED_BYTES
    file.seek(0)
    encoding = _find_encoding(file)
    if encoding is not None:
        number = size = 0
        is_continued = False
        for number, piece in enumerate(_TextStream(file, encoding, is_cancelled).pieces(), 1):
            if number >= arguments.start_line and next_line is None:
                size += len(piece.encode(errors="replace"))
                if kept and (len(kept) == arguments.max_lines or size > limit_bytes):
                    next_line = number
                    if is_large:
                        break
                else:
                    kept.append(piece)
                    continued += [number] if is_continued else []
            is_continued = not piece.endswith("\n")
        total = None if is_large and next_line else number
    page = _view_page(arguments.path, kept, next_line, encoding, total)
    return page | {"continued_lines": continued}


def _view_page(
    path: str, kept: Sequence[str], next_line: int | None, encoding: Encoding | None, total: object
) -> dict[str, Any]:
    return {
        "path": path,
        "content": "".join(kept),
        "truncated": next_line is not None,
        "next_start_line": next_line,
        "truncated_lines": [],
        "binary": encoding is None,
        "encoding": None if encoding is None else encoding.shown,
        "already_loaded": False,
        "total_lines": total,
    }


def _find_encoding(file: BinaryIO) -> Encoding | None:
    """Return the encoding of a file of text, and leave the file at the beginning of its text."""
    sample = file.read(SAMPLE_BYTES)
    encoding = encoding_of(sample, complete=len(sample) < SAMPLE_BYTES)
    if sample.isascii() and encoding == Encoding("utf-8"):
        encoding = _encoding_of_later_text(file) or encoding
    if encoding is not None:
        file.seek(len(encoding.mark))
    return encoding


def _encoding_of_later_text(file: BinaryIO) -> Encoding | None:
    """The encoding of the first text beyond ASCII, if the part that is looked at has some."""
    start = file.tell()
    while start < _COUNTED_BYTES and (chunk := file.read(_CHUNK)):
        if not chunk.isascii():
            before = len(chunk) - len(chunk.lstrip(_ASCII))
            file.seek(start + before - min(before, _CONTEXT_BYTES))
            sample = file.read(SAMPLE_BYTES)
            return encoding_of(sample, complete=len(sample) < SAMPLE_BYTES)
        start += len(chunk)
    return None


class _TextStream:
    """A file as lines, decoded on the way, at most a chunk and the head of a line in memory."""

    def __init__(
        self, file: BinaryIO, encoding: Encoding, is_cancelled: Callable[[], bool]
    ) -> None:
        self._chunks = self._decode(file, encoding)
        self._is_cancelled = is_cancelled
        self._ends = 0
        self._last = "\n"

    def lines(self, first: int) -> Iterator[str]:
        """The lines from number `first` on, each with one kind of end whatever the file has.

        Of a line that is too long to be shown only the beginning is kept.
        """
        begun, skip = "", first - 1
        for chunk in self._chunks:
            if skip and (ends := chunk.count("\n")) < skip:
                skip -= ends
                continue
            *ended, rest = (chunk.split("\n", skip)[-1] if skip else chunk).split("\n")
            skip = 0
            for piece in ended:
                yield (begun + piece).removesuffix("\r") + "\n"
                begun = ""
            begun = begun + rest if len(begun) <= MAX_LINE_BYTES else begun
            begun = begun[: MAX_LINE_BYTES + 2]
        if begun:
            yield begun

    def pieces(self) -> Iterator[str]:
        """Yield all lines as they are; a line that is too long comes in several pieces."""
        rest = ""
        for chunk in self._chunks:
            *ended, rest = (rest + chunk).split("\n")
            for line in ended:
                *full, last = _split_line(line)
                yield from full
                yield f"{last}\n"
            *full, rest = _split_line(rest)
            yield from full
        if rest:
            yield rest

    def count_all(self) -> int:
        """Return the number of lines; reads the rest of the file."""
        for _ in self._chunks:
            pass
        return self._ends + (self._last != "\n")

    def _decode(self, file: BinaryIO, encoding: Encoding) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(encoding.name)(errors="replace")
        raw = b"-"
        while raw:
            raw = file.read(_CHUNK)
            if self._is_cancelled():
                raise ToolError(ErrorCode.CANCELLED, "the run was cancelled")
            if text := decoder.decode(raw, not raw):
                self._ends += text.count("\n")
                self._last = text[-1]
                yield text


def _split_line(line: str) -> list[str]:
    """Return the pieces of a line: one if it is short enough."""
    most = MAX_LINE_BYTES if line.isascii() else MAX_LINE_BYTES // 4
    return [line[start : start + most] for start in range(0, len(line), most)] or [""]


class ListDir(Arguments):
    """List a folder. Links, .git and secrets are not entered."""

    path: Annotated[str, Field(min_length=1)]
    recursive: bool = False
    limit: Annotated[int, Field(ge=1, le=100_000)] = 1000


def list_dir(workspace: Workspace) -> Tool:
    """`code.list_dir`, for one workspace."""

    async def prepare(arguments: ListDir, context: ToolContext) -> Action:
        place = await asyncio.to_thread(workspace.boundaries.resolve, arguments.path)
        summary = place.shown + (" and all below" if arguments.recursive else "")
        return Action(
            access=workspace.look(place, summary=summary),
            run=lambda: asyncio.to_thread(_list, workspace, place, arguments, context),
        )

    return code_tool("list_dir", ListDir, prepare, kind="search")


def _list(
    workspace: Workspace, place: ResolvedPath, arguments: ListDir, context: ToolContext
) -> JsonObject:
    boundaries = workspace.boundaries

    def enters(folder: Path) -> bool:
        # A closed place was allowed by the user, with all below it.
        is_open = place.is_closed or not boundaries.is_closed(folder)
        return is_open and folder.name not in _NOT_ENTERED

    entries: list[JsonObject] = []
    depth = _MAX_DEPTH if arguments.recursive else 0
    with (
        disk_errors(place.shown),
        open_folder(place.path) as folder,
        open_below(".", folder) as top,
    ):
        shown = boundaries.shown(place.path)
        prefix = "" if shown == "." else f"{shown.rstrip('/')}/"
        found = _entries(top, place.path, prefix, depth=depth, enters=enters)
        for entry in islice(found, arguments.limit + 1):
            if context.is_cancelled():
                raise ToolError(ErrorCode.CANCELLED, "the run was cancelled")
            entries.append(entry)
    limit = arguments.limit
    return {"entries": entries[:limit], "truncated": len(entries) > limit}


def _entries(
    folder: int, path: Path, prefix: str, *, depth: int, enters: Callable[[Path], bool]
) -> Iterator[JsonObject]:
    """Yield entries depth first, by name, through descriptors, so that no link is followed."""
    with os.scandir(folder) as found:
        ordered = sorted(found, key=lambda entry: entry.name)
    for entry in ordered:
        kind, size = "other", None
        if entry.is_symlink():
            kind = "link"
        elif entry.is_dir(follow_symlinks=False):
            kind = "dir"
        elif entry.is_file(follow_symlinks=False):
            kind = "file"
            with suppress(OSError):
                size = entry.stat(follow_symlinks=False).st_size
        below = path_to_read(f"{prefix}{entry.name}")
        yield {"name": entry.name, "path": below, "type": kind, "size": size}
        if depth and kind == "dir" and enters(path / entry.name):
            # A folder that may not be read, or has just gone, is listed and not entered.
            with suppress(OSError), open_below(entry.name, folder) as inner:
                yield from _entries(
                    inner, path / entry.name, f"{below}/", depth=depth - 1, enters=enters
                )

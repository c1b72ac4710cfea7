"""`code.read_file`: one page of a text file. The file is streamed, so its size does not matter."""

import asyncio
import codecs
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, BinaryIO

from pydantic import Field

from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.base import Action, Tool, ToolContext, ToolOutput
from agent_core.tools.code.definition import code_tool
from agent_core.tools.files import disk_errors, open_file, version_of
from agent_core.tools.paths import ResolvedPath
from agent_core.tools.schema import Arguments
from agent_core.tools.seen import Version
from agent_core.tools.text import SAMPLE_BYTES, Encoding, encoding_of
from agent_core.tools.workspace import Workspace
from agent_core.types import ToolPermission

MAX_LINE_BYTES = 4096
_COUNTED_BYTES = 4 * 2**20
_CHUNK = 2**18
_ASCII = bytes(range(128))
_CONTEXT_BYTES = 256
"""What stands before the first sign beyond ASCII helps to tell what it is."""


class ReadFile(Arguments):
    """Read a text file, a page at a time.

    Lines beyond 4096 bytes are cut and listed in `truncated_lines`. If `truncated`, go on with
    `next_start_line`. Binary files have no content.
    """

    path: Annotated[str, Field(min_length=1, description="Relative to the project, or absolute.")]
    start_line: Annotated[int, Field(ge=1, description="The first line, counted from 1.")] = 1
    max_lines: Annotated[int, Field(ge=1, le=1000)] = 200


@dataclass(frozen=True, slots=True)
class Page:
    """A stretch of a file. `total_lines` is None where counting would mean reading it all."""

    content: str = ""
    next_start_line: int | None = None
    truncated_lines: tuple[int, ...] = ()
    total_lines: int | None = None
    binary: bool = False
    version: Version = ()


def read_file(workspace: Workspace) -> Tool:
    """The tool, for one workspace."""
    looking = asyncio.Lock()  # calls of one turn begin to read in their order

    async def prepare(arguments: ReadFile, context: ToolContext) -> Action:
        async with looking:
            place = await asyncio.to_thread(workspace.boundaries.resolve, arguments.path)
        last = arguments.start_line + arguments.max_lines - 1
        summary = f"{place.shown} lines {arguments.start_line} to {last}"
        return Action(
            access=workspace.look(place, summary=summary),
            run=partial(_read, workspace, place, arguments, context),
        )

    return code_tool(
        "read_file",
        ReadFile,
        prepare,
        permission=ToolPermission.READONLY,
        tags={"filesystem"},
        keeps_own_limits=True,
    )


async def _read(
    workspace: Workspace, place: ResolvedPath, arguments: ReadFile, context: ToolContext
) -> ToolOutput:
    limit = workspace.limits.result_limit_bytes
    register, reading = workspace.register, None
    async with register.in_order(place.path) if register else nullcontext():
        page = await asyncio.to_thread(_page_of, place, arguments, limit, context.is_cancelled)
        if register and not page.binary:
            reading = await register.note(place.path, context)
    workspace.seen.read(context.agent_id, place.path, page.version)
    answer = {
        "path": place.shown,
        "content": page.content,
        "truncated": page.next_start_line is not None,
        "next_start_line": page.next_start_line,
        "truncated_lines": list(page.truncated_lines),
        "binary": page.binary,
        "already_loaded": reading.already_loaded if reading else False,
        "total_lines": page.total_lines,
    }
    return ToolOutput(answer, reading.adds if reading else ())


def _page_of(
    place: ResolvedPath, arguments: ReadFile, limit_bytes: int, is_cancelled: Callable[[], bool]
) -> Page:
    with disk_errors(place.shown), open_file(place.path) as file:
        sample = file.read(SAMPLE_BYTES)
        version = version_of(file)
        encoding = encoding_of(sample, complete=len(sample) < SAMPLE_BYTES)
        if sample.isascii() and encoding is not None:
            encoding = _of_later_text(file) or encoding
        if encoding is None:
            return Page(binary=True, version=version)
        file.seek(len(encoding.mark))
        is_small = os.fstat(file.fileno()).st_size <= _COUNTED_BYTES
        text = _Text(file, encoding, is_cancelled)
        page = _first_page(text.lines(skip=arguments.start_line - 1), arguments, limit_bytes)
        total = text.count_all() if is_small or page.next_start_line is None else None
        return replace(page, total_lines=total, version=version)


def _of_later_text(file: BinaryIO) -> Encoding | None:
    """What the first text beyond ASCII is in, if there is some in the part that is looked at."""
    start = file.tell()
    while start < _COUNTED_BYTES and (chunk := file.read(_CHUNK)):
        if not chunk.isascii():
            before = len(chunk) - len(chunk.lstrip(_ASCII))
            file.seek(start + before - min(before, _CONTEXT_BYTES))
            sample = file.read(SAMPLE_BYTES)
            return encoding_of(sample, complete=len(sample) < SAMPLE_BYTES)
        start += len(chunk)
    return None


def _first_page(lines: Iterator[str], arguments: ReadFile, limit_bytes: int) -> Page:
    kept: list[str] = []
    cut: list[int] = []
    size = 0
    for number, line in enumerate(lines, arguments.start_line):
        shown = _fitting(line)
        size += len(shown.encode(errors="replace"))
        is_full = len(kept) == arguments.max_lines or size > limit_bytes
        if kept and is_full:
            return Page("".join(kept), number, tuple(cut))
        if shown != line:
            cut.append(number)
        kept.append(shown if shown == line else f"{shown}\n")
    return Page("".join(kept), None, tuple(cut))


def _fitting(line: str) -> str:
    """As much of a line as may be shown, its end not counted."""
    if len(line) * 4 <= MAX_LINE_BYTES:
        return line
    body = line.removesuffix("\n").encode(errors="replace")
    return line if len(body) <= MAX_LINE_BYTES else body[:MAX_LINE_BYTES].decode(errors="ignore")


class _Text:
    """A file as lines, decoded on the way, at most a chunk and the head of a line in memory."""

    def __init__(
        self, file: BinaryIO, encoding: Encoding, is_cancelled: Callable[[], bool]
    ) -> None:
        self._chunks = self._decoded(file, encoding)
        self._is_cancelled = is_cancelled
        self._ends = 0
        self._last = "\n"

    def lines(self, *, skip: int) -> Iterator[str]:
        """The lines after the first `skip`, each with one kind of end whatever the file has.

        Of a line that is too long to be shown only the beginning is kept.
        """
        begun = ""
        for chunk in self._after(skip):
            *ended, rest = chunk.split("\n")
            for piece in ended:
                yield (begun + piece).removesuffix("\r") + "\n"
                begun = ""
            begun = begun + rest if len(begun) <= MAX_LINE_BYTES else begun
            begun = begun[: MAX_LINE_BYTES + 2]
        if begun:
            yield begun

    def count_all(self) -> int:
        """How many lines there are; reads what has not been read."""
        for _ in self._chunks:
            pass
        return self._ends + (self._last != "\n")

    def _after(self, skip: int) -> Iterator[str]:
        for chunk in self._chunks:
            text = chunk
            if skip:
                ends = chunk.count("\n")
                if ends < skip:
                    skip -= ends
                    continue
                text, skip = chunk.split("\n", skip)[-1], 0
            yield text

    def _decoded(self, file: BinaryIO, encoding: Encoding) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(encoding.name)(errors="replace")
        while True:
            raw = file.read(_CHUNK)
            if self._is_cancelled():
                raise ToolError(ErrorCode.CANCELLED, "the run was cancelled")
            text = decoder.decode(raw, not raw)
            if text:
                self._ends += text.count("\n")
                self._last = text[-1]
                yield text
            if not raw:
                return

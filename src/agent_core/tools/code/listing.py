"""`code.list_dir`: what is in a folder, sorted, as much as was asked for."""

import asyncio
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import Field

from agent_core.disk.folders import open_folder
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.base import Action, Tool, ToolContext
from agent_core.tools.code.definition import code_tool
from agent_core.tools.files import disk_errors
from agent_core.tools.paths import PathPolicy, ResolvedPath
from agent_core.tools.schema import Arguments
from agent_core.tools.workspace import Workspace
from agent_core.types import ToolPermission

_NOT_ENTERED = frozenset({".git", ".hg", ".svn"})
_MAX_DEPTH = 400
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ListDir(Arguments):
    """List a folder: names, paths, types (file, dir, link, other) and sizes, sorted by name.

    Links are shown, not followed. `recursive` leaves out what is inside .git, secrets and the like.
    """

    path: Annotated[str, Field(min_length=1, description="Relative to the project, or absolute.")]
    recursive: bool = False
    limit: Annotated[int, Field(ge=1, le=100_000, description="How many entries at most.")] = 1000


def list_dir(workspace: Workspace) -> Tool:
    """The tool, for one workspace."""

    async def prepare(arguments: ListDir, context: ToolContext) -> Action:
        place = await asyncio.to_thread(workspace.boundaries.resolve, arguments.path)
        summary = place.shown + (" and all below" if arguments.recursive else "")
        return Action(
            access=workspace.look(place, summary=summary),
            run=lambda: asyncio.to_thread(_list, workspace, place, arguments, context),
        )

    return code_tool(
        "list_dir",
        ListDir,
        prepare,
        permission=ToolPermission.READONLY,
        tags={"filesystem"},
    )


def _list(
    workspace: Workspace, place: ResolvedPath, arguments: ListDir, context: ToolContext
) -> dict[str, Any]:
    shown = PurePath(workspace.boundaries.shown(place.path))
    with disk_errors(place.shown), open_folder(place.path) as folder, _opened(".", folder) as top:
        depth = _MAX_DEPTH if arguments.recursive else 0
        enters = _enters_all if place.is_closed else _enters_open(workspace.boundaries)
        found = _entries(top, place.path, shown, depth=depth, enters=enters)
        entries: list[dict[str, Any]] = []
        for entry in islice(found, arguments.limit + 1):
            if context.is_cancelled():
                raise ToolError(ErrorCode.CANCELLED, "the run was cancelled")
            entries.append(entry)
    return {
        "entries": entries[: arguments.limit],
        "truncated": len(entries) > arguments.limit,
    }


def _enters_all(folder: Path) -> bool:
    """The user has agreed to this very place and what is below."""
    return folder.name not in _NOT_ENTERED


def _enters_open(boundaries: PathPolicy) -> Callable[[Path], bool]:
    return lambda folder: folder.name not in _NOT_ENTERED and not boundaries.is_closed(folder)


def _entries(
    folder: int, path: Path, shown: PurePath, *, depth: int, enters: Callable[[Path], bool]
) -> Iterator[dict[str, Any]]:
    """Depth first, by name; beneath descriptors, so that neither length nor links lead astray."""
    with os.scandir(folder) as found:
        ordered = sorted(found, key=lambda entry: entry.name)
    for entry in ordered:
        kind, size = _kind_and_size(entry)
        below = shown / entry.name
        yield {"name": entry.name, "path": str(below), "type": kind, "size": size}
        if depth and kind == "dir" and enters(path / entry.name):
            # A folder that may not be read, or has just gone, is listed and not entered.
            with suppress(OSError), _opened(entry.name, folder) as inner:
                yield from _entries(inner, path / entry.name, below, depth=depth - 1, enters=enters)


def _kind_and_size(entry: os.DirEntry[str]) -> tuple[str, int | None]:
    if entry.is_symlink():
        return "link", None
    if entry.is_dir(follow_symlinks=False):
        return "dir", None
    if not entry.is_file(follow_symlinks=False):
        return "other", None
    try:
        return "file", entry.stat(follow_symlinks=False).st_size
    except OSError:
        return "file", None


@contextmanager
def _opened(name: str, folder: int) -> Generator[int]:
    descriptor = os.open(name, _READ, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

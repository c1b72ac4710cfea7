"""`code.list_dir`: what is in a folder, sorted, as much as was asked for."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import Field

from agent_core.disk.folders import open_folder
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.base import Action, Tool, ToolContext
from agent_core.tools.files import disk_errors, open_below
from agent_core.tools.paths import ResolvedPath
from agent_core.tools.schema import Arguments
from agent_core.tools.workspace import Workspace, code_tool

_NOT_ENTERED = frozenset({".git", ".hg", ".svn"})
_MAX_DEPTH = 400


class ListDir(Arguments):
    """List a folder: names, paths, types (file, dir, link, other) and sizes, sorted by name.

    Links are shown, not followed. `recursive` leaves out what is inside .git, secrets and the like.
    """

    path: Annotated[str, Field(min_length=1, description="Relative to the project, or absolute.")]
    recursive: bool = False
    limit: Annotated[int, Field(ge=1, le=100_000, description="How many entries at most.")] = 1000


def list_dir(workspace: Workspace) -> Tool:
    """`code.list_dir`, for one workspace."""

    async def prepare(arguments: ListDir, context: ToolContext) -> Action:
        place = await asyncio.to_thread(workspace.boundaries.resolve, arguments.path)
        summary = place.shown + (" and all below" if arguments.recursive else "")
        return Action(
            access=workspace.look(place, summary=summary),
            run=lambda: asyncio.to_thread(_list, workspace, place, arguments, context),
        )

    return code_tool("list_dir", ListDir, prepare)


def _list(
    workspace: Workspace, place: ResolvedPath, arguments: ListDir, context: ToolContext
) -> dict[str, Any]:
    boundaries = workspace.boundaries

    def enters(folder: Path) -> bool:
        # A closed place was allowed by the user, with all below it.
        is_open = place.is_closed or not boundaries.is_closed(folder)
        return is_open and folder.name not in _NOT_ENTERED

    entries: list[dict[str, Any]] = []
    depth = _MAX_DEPTH if arguments.recursive else 0
    with (
        disk_errors(place.shown),
        open_folder(place.path) as folder,
        open_below(".", folder) as top,
    ):
        shown = PurePath(boundaries.shown(place.path))
        found = _entries(top, place.path, shown, depth=depth, enters=enters)
        for entry in islice(found, arguments.limit + 1):
            if context.is_cancelled():
                raise ToolError(ErrorCode.CANCELLED, "the run was cancelled")
            entries.append(entry)
    limit = arguments.limit
    return {"entries": entries[:limit], "truncated": len(entries) > limit}


def _entries(
    folder: int, path: Path, shown: PurePath, *, depth: int, enters: Callable[[Path], bool]
) -> Iterator[dict[str, Any]]:
    """Depth first, by name; beneath descriptors, so that neither length nor links lead astray."""
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
        below = shown / entry.name
        yield {"name": entry.name, "path": str(below), "type": kind, "size": size}
        if depth and kind == "dir" and enters(path / entry.name):
            # A folder that may not be read, or has just gone, is listed and not entered.
            with suppress(OSError), open_below(entry.name, folder) as inner:
                yield from _entries(inner, path / entry.name, below, depth=depth - 1, enters=enters)

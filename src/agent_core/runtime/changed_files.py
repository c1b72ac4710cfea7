"""Finds the files that changed during a conversation, whatever changed them.

Tools of the program name the files they write; commands, servers and children do not. The snapshots
of a run hold what it changed. Where none were taken, files count as changed if their status has
changed since, and files that git tracks as deleted if they are gone.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from stat import S_ISDIR
from time import thread_time
from typing import Any, cast

from agent_core.errors import AgentCoreError
from agent_core.git.repository import Repository
from agent_core.runtime.project_files import ProjectFiles
from agent_core.storage.store import SessionStore
from agent_core.text import readable_name
from agent_core.types import Node, NodeType
from agent_core.types.tools import CODE_READERS

CHANGED_FILES = "changed_files"
"""The key of the files in the details of a compaction."""

MOST_FILES = 500
"""Most names of one conversation; beyond that, folders stand for the files in them."""

_KNOWN_PATHS = 64
_MOST_ENTRIES = 100_000
_MOST_SECONDS = 1.0
"""CPU time: a longer walk of the project ends there."""
_CLOCK_NS = 10_000_000
"""A file system may stamp a change with a time that is this much older."""
_NEVER_ENTERED = frozenset({".git", ".soong-agent"})


class ChangedFiles:
    """Finds the changed files of a project for the compactions of its sessions.

    What was found is continued the next time: earlier history is not looked at again.

    Args:
        files: files of the project, and their snapshots.
        store: names the snapshots of each run.
        exclude: patterns of files that are of no interest, as for snapshots.
    """

    def __init__(
        self, files: ProjectFiles, store: SessionStore, *, exclude: Sequence[str] = ()
    ) -> None:
        self._files = files
        self._store = store
        self._exclude = exclude
        self._latest: OrderedDict[str, tuple[str, list[str]]] = OrderedDict()

    async def find(self, path: Sequence[Node]) -> list[str]:
        """Return the changed files of a path, oldest first, relative to the project.

        A name that ends with a slash stands for everything in that folder.
        """
        if not path:
            return []
        known, start = self._found_before(path)
        since = path[start:]
        run_ids = dict.fromkeys(node.run_id for node in since if node.run_id is not None)
        silent = {node.run_id for node in since if _may_have_changed(node)}
        spans: list[tuple[str, str]] = []
        for run_id in run_ids if self._files.is_on else ():
            if changes := await self._store.changes_of(run_id, self._files.folder):
                spans += changes.spans
                silent.discard(run_id)
        found: list[str] = []
        try:
            if spans:
                await self._files.fetch(*{each for span in spans for each in span})
                found = await asyncio.to_thread(self._differing, spans)
        except (AgentCoreError, OSError):
            silent |= run_ids.keys()  # they are swept, or damaged
        if silent:
            begin = path[max(start - 1, 0)].created_at
            found += await asyncio.to_thread(
                lambda: find_changed_since(
                    self._files.root, round(begin.timestamp() * 1e9), exclude=self._exclude
                )
            )
        files = fold_files([*known, *map(readable_name, found)])
        self._latest[path[0].node_id] = path[-1].node_id, files
        self._latest.move_to_end(path[0].node_id)
        if len(self._latest) > _KNOWN_PATHS:
            self._latest.popitem(last=False)
        return files

    def _found_before(self, path: Sequence[Node]) -> tuple[list[str], int]:
        """Return the files found before, and the index of the first node since then."""
        last_id, files = self._latest.get(path[0].node_id, (None, list[str]()))
        for place in range(len(path) - 1, -1, -1):
            node = path[place]
            if node.node_id == last_id:
                return files, place + 1
            if node.node_type is not NodeType.COMPACTION:
                continue
            details = cast("dict[str, Any]", node.metadata.get("details") or {})
            if (known := details.get(CHANGED_FILES)) is not None:
                covered = details.get("covered_node_id")
                places = (n for n in range(place, -1, -1) if path[n].node_id == covered)
                return list(known), next(places, -1) + 1
        return [], 0

    def _differing(self, spans: Iterable[tuple[str, str]]) -> list[str]:
        found: list[str] = []
        for before, after in dict.fromkeys(spans):
            for change in self._files.store.diff(before, after):
                kinds = {each.kind.value for each in (change.before, change.after) if each}
                if kinds != {"folder"}:
                    found.append(change.path)
        return found


def _may_have_changed(node: Node) -> bool:
    """Return whether a node holds the result of a call that may have changed a file."""
    names = (str(result.metadata.get("tool_name", "")) for result in node.results)
    return any(not (name in CODE_READERS or name.startswith("internal.")) for name in names)


def fold_files(paths: Iterable[str], most: int = MOST_FILES) -> list[str]:
    """Return each path once; where there are more than `most`, folders in place of their files."""
    names = list(dict.fromkeys(paths))
    depth = max((name.count("/") for name in names), default=0)
    while len(names) > most and depth > 0:
        folded = ("/".join(name.split("/")[:depth]) for name in names)
        names = list(
            dict.fromkeys(
                f"{above}/" if name.count("/") >= depth else name
                for name, above in zip(names, folded, strict=True)
            )
        )
        depth -= 1
    folders = {name for name in names if name.endswith("/")}
    if folders:
        names = [name for name in names if folders.isdisjoint(_folders_above(name))]
    return names[-most:]


def _folders_above(name: str) -> Iterator[str]:
    at = len(name) - 1
    while (at := name.rfind("/", 0, at)) > 0:
        yield name[: at + 1]


def find_changed_since(root: Path, since_ns: int, *, exclude: Sequence[str] = ()) -> list[str]:
    """Return the files below a folder whose status changed since then, and tracked ones now gone.

    Links are not followed. Does file work: call it in a thread.
    """
    since_ns -= _CLOCK_NS
    changed = [path for _, path in sorted(_walk(root, since_ns, exclude))]
    return [*changed, *_deleted(root, since_ns)]


def _walk(root: Path, since_ns: int, exclude: Sequence[str]) -> Iterator[tuple[int, str]]:
    from agent_core.snapshots.tracked import Exclusions  # noqa: PLC0415 - with snapshots, rare

    excluded = Exclusions(exclude)
    end, seen = thread_time() + _MOST_SECONDS, 0
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(os.path.join(root, folder)))  # noqa: PTH118 - quick
        except OSError:
            continue
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            is_folder = S_ISDIR(status.st_mode)
            if entry.name in _NEVER_ENTERED or excluded.fit(os.fsencode(path), is_folder=is_folder):
                continue
            if is_folder:
                folders.append(path)
            elif status.st_ctime_ns >= since_ns:
                yield status.st_ctime_ns, path
        seen += len(entries)
        if seen > _MOST_ENTRIES or thread_time() > end:
            return


def _deleted(root: Path, since_ns: int) -> Iterator[str]:
    """Yield the files that git tracks and that have left a folder changed since then."""
    repository = Repository.around(root)
    index = repository.read_index() if repository else None
    if repository is None or index is None or len(index.items) > _MOST_ENTRIES:
        return
    is_changed: dict[str, bool] = {}

    def has_changed(folder: str) -> bool:
        known = is_changed.get(folder)
        if known is None:
            try:
                known = os.lstat(folder).st_ctime_ns >= since_ns
            except OSError:  # it is gone with its files
                known = has_changed(os.path.dirname(folder))  # noqa: PTH120 - quick
            is_changed[folder] = known
        return known

    inside = f"{root}/"
    for name in index.items:
        path = f"{repository.top}/{os.fsdecode(name)}"
        if (
            path.startswith(inside)
            and has_changed(os.path.dirname(path))  # noqa: PTH120 - likewise
            and not os.path.lexists(path)
        ):
            yield path.removeprefix(inside)

"""A session and its project copied in one go, and two states of a project side by side."""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.events import SessionStore
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.moves import differences_in_git, shown_left_out
from agent_core.runtime.project_files import ProjectFiles, shown_path
from agent_core.tools.patch import unified_diff
from agent_core.types import FileChange, WorkspaceDiff

if TYPE_CHECKING:
    from agent_core.snapshots.records import Change, TreeEntry

_LARGEST_SHOWN = 1_000_000


class Forks:
    """Copies sessions with their projects, and compares states of one project.

    Args:
        store: of the sessions.
        files_at: the files of a session's folder.
        redactor: takes secrets out of what is shown.
    """

    def __init__(
        self, store: SessionStore, redactor: Redactor, *, files_at: Callable[[str], ProjectFiles]
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._files_at = files_at

    async def diff(self, before: str, after: str) -> WorkspaceDiff:
        """How two states differ, each named by a node or a snapshot.

        Raises:
            StorageError: `node_not_found`, or there is no such snapshot.
            AgentCoreError: `validation_error`: a node names no snapshot.
        """
        one, files = await self._snapshot_of(before)
        other, _ = await self._snapshot_of(after)
        return await asyncio.to_thread(self._compare, files, one, other)

    async def _snapshot_of(self, name: str) -> tuple[str, ProjectFiles]:
        if name.startswith("snap_"):
            return name, self._files_at("")
        node = await self._store.node(name)
        session = await self._store.session(node.session_id) if node else None
        if session is None:
            message = f"there is no node {name}, and a snapshot's id begins with snap_"
            raise StorageError(ErrorCode.NODE_NOT_FOUND, message)
        files = self._files_at(session.cwd)
        found = await self._store.snapshot_at(session.session_id, name, files.folder)
        if found is None:
            message = f"{name} names no snapshot: none was taken in session {session.session_id}"
            raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message)
        return found, files

    def _compare(self, files: ProjectFiles, before: str, after: str) -> WorkspaceDiff:
        store = files.store
        one, other = store.get(before), store.get(after)
        return WorkspaceDiff(
            before=before,
            after=after,
            changes=[self._shown(files, change) for change in store.diff(before, after)],
            git=differences_in_git(one.git, other.git),
            left_out=shown_left_out(sorted({*one.left_out, *other.left_out}, key=repr)),
        )

    def _shown(self, files: ProjectFiles, change: "Change") -> FileChange:
        path = self._redactor.text(shown_path(change.path))
        diff, note = None, ""
        kinds = {entry.kind.value for entry in (change.before, change.after) if entry}
        if kinds == {"file"} and change.kind.value != "mode":
            texts = [_text_of(files, entry) for entry in (change.before, change.after)]
            if None in texts:
                sizes = [entry.size if entry else 0 for entry in (change.before, change.after)]
                note = f"binary or large, {sizes[0]} -> {sizes[1]} bytes"
            else:
                old, new = (self._redactor.text(text or "") for text in texts)
                diff = unified_diff(old, new, shown=path)
        elif change.kind.value == "mode" and change.before and change.after:
            note = f"{change.before.mode:04o} -> {change.after.mode:04o}"
        else:
            note = " -> ".join(
                _named(entry) for entry in (change.before, change.after) if entry is not None
            )
        return FileChange(path=path, kind=change.kind.value, diff=diff, note=note)


def _named(entry: "TreeEntry") -> str:
    if entry.kind.value == "link":
        return f"link to {shown_path(os.fsdecode(entry.content))}"
    return entry.kind.value


def _text_of(files: ProjectFiles, entry: "TreeEntry | None") -> str | None:
    """The text of a file; None if it is binary, or too large to show."""
    if entry is None:
        return ""
    content = files.store.read(entry) if entry.size <= _LARGEST_SHOWN else b"\0"
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None

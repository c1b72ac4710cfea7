"""Forks a session together with its project, and compares two states of a project."""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent_core.aio import finish_uncancelled
from agent_core.disk.folders import remove_tree
from agent_core.errors import ErrorCode, StorageError, validation_error
from agent_core.opening import is_folder
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.moves import differences_in_git, is_visible, not_visible, shown_left_out
from agent_core.runtime.project_files import ProjectFiles
from agent_core.runtime.workspaces import Workspaces, bring_up_to_date, latest_snapshot
from agent_core.storage.rows import node_not_found, run_not_found
from agent_core.storage.store import SessionStore
from agent_core.text import bounded_line, readable_name, shown_id
from agent_core.tools.patch import unified_diff
from agent_core.tools.text import DecodedText
from agent_core.types import (
    FileChange,
    Role,
    SessionFork,
    SessionRecord,
    SwitchResult,
    WorkspaceDiff,
    new_id,
)
from agent_core.types.lanes import SNAPSHOT

if TYPE_CHECKING:
    from agent_core.snapshots.records import TreeChange, TreeEntry

_LARGEST_SHOWN = 1_000_000


class Forks:
    """Copies sessions with their projects, and compares states of one project.

    Args:
        store: of the sessions.
        workspaces: knows the files of sessions.
        redactor: removes secrets from the output.
        task_logs: the Task logs by session if they are kept in memory; None if they are written.
    """

    def __init__(
        self,
        store: SessionStore,
        redactor: Redactor,
        *,
        workspaces: Workspaces,
        task_logs: Mapping[str, dict[str, int]] | None = None,
    ) -> None:
        self._task_logs = task_logs
        self._store = store
        self._redactor = redactor
        self._workspaces = workspaces

    async def fork(
        self, session_id: str, node_id: str | None, *, into: Path | None
    ) -> SwitchResult:
        """Begin another session at a node, in a copy of the project as it was then.

        Without `into` it works in the same folder, whose files are not changed.

        Raises:
            StorageError: `session_not_found`, `node_not_found` or `session_elsewhere`, or a file
                cannot be copied.
            AgentCoreError: `validation_error`: the node is not visible to users, or `into` is not
                empty or lies inside the project.
        """
        session, fork = await self._decided(session_id, node_id)
        if into is None:
            return await self._fork_here(session, fork)
        files = self._workspaces.files_of(session)
        if files.shared is None:
            await bring_up_to_date(files, self._store)
        async with files.unmoved():
            session, fork = await self._decided(session_id, node_id)
            return await self._fork_into(into, files, fork)

    async def _decided(
        self, session_id: str, node_id: str | None
    ) -> tuple[SessionRecord, SessionFork]:
        """Return the session as it is now, and the fork at a node, by default its current one."""
        session = await self._store.require_session(session_id)
        node_id = node_id or session.active_node_id
        node = await self._store.node(node_id) if node_id else None
        if node_id is None or node is None or node.session_id != session_id:
            raise node_not_found(node_id or "(it has none)", session_id)
        if not is_visible(node) and node_id != session.active_node_id:
            raise not_visible(node_id)
        return session, SessionFork(
            session_id=session_id,
            node_id=node_id,
            new_session_id=new_id("sess"),
            folder=session.cwd,
            place=session.place,
        )

    async def _fork_into(self, into: Path, files: ProjectFiles, fork: SessionFork) -> SwitchResult:
        """Copy the project to another folder, and begin the fork there."""
        session_id, node_id = fork.session_id, fork.node_id
        session = await self._store.require_session(session_id)
        place = await asyncio.to_thread(_new_place, into, files.root)
        target = await self._store.snapshot_at(session_id, node_id, files.folder)
        existed = await asyncio.to_thread(place.exists)
        try:
            if files.shared is None:
                copied = await files.copy_to(place, target)
            else:
                copied = await files.write_to(
                    place, target or await latest_snapshot(files, self._store)
                )
                await files.fetch(*await self._named_on_path(session_id, node_id, files.folder))
            fork = replace(
                fork, folder=str(place), snapshot_id=target, place=self._workspaces.place
            )
            lost = await self._copy_tasks(session, fork, files)
            forked = await self._store.fork_session(fork)
        except BaseException:
            await asyncio.to_thread(remove_tree, place, keep=existed)
            raise
        remarks = (
            []
            if target or files.is_on
            else ["The copy has the files as they are now: no snapshot was taken in this session."]
        )
        return SwitchResult(
            session=forked,
            node_id=forked.active_node_id,
            left_out=shown_left_out(copied.left_out),
            remarks=[*remarks, *lost],
        )

    async def _named_on_path(self, session_id: str, node_id: str, folder: str) -> set[str]:
        """Return the snapshots that the path to a node names, which the fork needs to go back to.

        A fork whose files are available on every machine has its own copies of them.
        """
        found: set[str | None] = set()
        path = await self._store.path(node_id)
        for node in path:
            found.add(await self._store.snapshot_at(session_id, node.node_id, folder))
        for run_id in {node.run_id for node in path if node.run_id}:
            if changes := await self._store.changes_of(run_id, folder):
                found |= {changes.known, *chain.from_iterable(changes.spans)}
        return {each for each in found if each is not None}

    async def _fork_here(self, session: SessionRecord, fork: SessionFork) -> SwitchResult:
        """Fork in the original's folder; if files are kept as snapshots, the fork gets its own."""
        lost: list[str] = []
        if session.place == SNAPSHOT:
            files = self._workspaces.files_of(session)
            target = await self._store.snapshot_at(fork.session_id, fork.node_id, files.folder)
            target = target or await latest_snapshot(files, self._store)
            await self._workspaces.fork(fork.session_id, fork.new_session_id)
            fork = replace(fork, snapshot_id=target)
        else:
            lost = await self._copy_tasks(session, fork, self._workspaces.files_of(session))
        forked = await self._store.fork_session(fork)
        return SwitchResult(session=forked, node_id=forked.active_node_id, remarks=lost)

    async def _copy_tasks(
        self, session: SessionRecord, fork: SessionFork, files: ProjectFiles
    ) -> list[str]:
        """Copy the session's Tasks as they were at the node, so that the fork has its own.

        In a copied project they are there already, under the id of the original. Returns remarks
        about logs that cannot be read, which the fork lacks.
        """
        origin, place = session.session_id, Path(fork.folder)
        before, after = files.tasks_dir(files.root), files.tasks_dir(place)
        copied = after / origin
        is_copied = after != before and await asyncio.to_thread(is_folder, copied)
        if self._task_logs is None and not is_copied and not is_folder(before / origin):
            return []
        # Few sessions have Tasks.
        from agent_core.tasks.forks import (  # noqa: PLC0415
            list_writers,
            logs_of_others,
            read_logs,
            write_logs,
        )
        from agent_core.tasks.log_store import TaskLogStore  # noqa: PLC0415
        from agent_core.tasks.memory_logs import InMemoryTaskLogStore  # noqa: PLC0415

        if self._task_logs is not None:
            logs: TaskLogStore = InMemoryTaskLogStore(self._task_logs[origin], origin)
            own: TaskLogStore = InMemoryTaskLogStore(
                self._task_logs[fork.new_session_id], fork.new_session_id
            )
        else:
            folder, root = (after, place) if is_copied else (before, files.root)
            logs = TaskLogStore(folder, origin, project_dir=root)
            own = TaskLogStore(after, fork.new_session_id, project_dir=place)
        others = await logs_of_others(logs, self._store)
        contents, problems = await asyncio.to_thread(read_logs, logs, others)
        runs = None
        if fork.node_id != session.active_node_id:
            runs = await self._runs_before(fork.node_id, list_writers(contents.values()))
        await finish_uncancelled(asyncio.to_thread(write_logs, contents, own, runs))
        if is_copied:
            await asyncio.to_thread(remove_tree, copied, keep=False)
        return [f"The fork lacks a Task: {problem}." for problem in problems]

    async def _runs_before(self, node_id: str, run_ids: Collection[str]) -> set[str]:
        """Return the runs whose work a fork at the node knows of, children included."""
        path = await self._store.path(node_id)
        known = {node.run_id for node in path}
        if path and path[-1].role is Role.USER:  # its own run is not part of the fork
            known = {node.run_id for node in path[:-1]} - {path[-1].run_id}
        found: set[str] = set()
        for run_id in run_ids:
            root_id: str | None = run_id
            while (record := await self._store.run(root_id) if root_id else None) is not None:
                if record.parent_run_id is None:
                    break
                root_id = record.parent_run_id
            if root_id in known:
                found.add(run_id)
        return found

    async def diff(self, before: str, after: str) -> WorkspaceDiff:
        """Return the difference between two states, each named by a node or a snapshot.

        Raises:
            StorageError: `node_not_found`, or there is no such snapshot.
            AgentCoreError: `validation_error`: a node names no snapshot.
        """
        one, files = await self._snapshot_of(before)
        other, others = await self._snapshot_of(after)
        files = others if files.shared is None else files
        await files.fetch(one, other)
        return await asyncio.to_thread(self._compare, files, one, other)

    async def file_at(self, name: str, path: str) -> bytes:
        """Return a file as it was recorded at a node or in a snapshot.

        Raises:
            StorageError: `file_not_found`: no file is recorded at this path; as for `diff`.
            AgentCoreError: `validation_error`: a node names no snapshot.
        """
        snapshot_id, files = await self._snapshot_of(name)
        await files.fetch(snapshot_id)
        return await asyncio.to_thread(_recorded, files, snapshot_id, path)

    async def diff_session(
        self, session_id: str, run_id: str | None = None
    ) -> WorkspaceDiff | None:
        """Return what the runs on a session's path have changed; None if none of it is recorded.

        A file is compared from before the first of its changes to after the last. With `run_id`
        the changes of this run are returned, also if it was undone.

        Raises:
            StorageError: `session_not_found`, `run_not_found`, or a snapshot no longer exists.
        """
        session = await self._store.require_session(session_id)
        files = self._workspaces.files_of(session)
        spans: list[tuple[str, str]] = []
        for each in await self._runs_of(session, run_id):
            if changes := await self._store.changes_of(each, files.folder):
                spans += changes.spans
        if not spans:
            return None
        await files.fetch(*{each for span in spans for each in span})
        return await asyncio.to_thread(self._summed_up, files, spans)

    async def _runs_of(self, session: SessionRecord, run_id: str | None) -> list[str]:
        """Return the ids of the runs on a session's path; or this one of the session."""
        if run_id is not None:
            run = await self._store.run(run_id)
            if run is None or run.session_id != session.session_id:
                raise run_not_found(run_id)
            return [run_id]
        path = await self._store.path(session.active_node_id) if session.active_node_id else []
        return [*dict.fromkeys(node.run_id for node in path if node.run_id)]

    def _summed_up(self, files: ProjectFiles, spans: Sequence[tuple[str, str]]) -> WorkspaceDiff:
        from agent_core.snapshots.trees import kind_of_change  # noqa: PLC0415 - with snapshots

        changes: dict[str, TreeChange] = {}
        for span in spans:
            for change in files.store.diff(*span):
                first = changes.get(change.path, change)
                changes[change.path] = replace(change, before=first.before)
        kinds = {
            path: kind_of_change(each.before, each.after)
            for path, each in changes.items()
            if each.before != each.after
        }
        return WorkspaceDiff(
            before=spans[0][0],
            after=spans[-1][1],
            changes=[
                self._shown(files, replace(changes[path], kind=kind))
                for path, kind in sorted(kinds.items())
                if kind is not None
            ],
        )

    async def _snapshot_of(self, name: str) -> tuple[str, ProjectFiles]:
        if name.startswith("snap_"):
            await self._workspaces.require_snapshot(name)
            return name, self._workspaces.project_files()
        node = await self._store.node(name)
        session = await self._store.session(node.session_id) if node else None
        if session is None:
            message = f"there is no node {shown_id(name)}, and a snapshot's id begins with snap_"
            raise StorageError(ErrorCode.NODE_NOT_FOUND, message)
        files = self._workspaces.files_of(session)
        found = await self._store.snapshot_at(session.session_id, name, files.folder)
        if found is None:
            message = f"{name} names no snapshot: none was taken in session {session.session_id}"
            raise validation_error(message)
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

    def _shown(self, files: ProjectFiles, change: "TreeChange") -> FileChange:
        path = self._redactor.text(readable_name(change.path))
        diff, note = None, ""
        kinds = {entry.kind.value for entry in (change.before, change.after) if entry}
        if kinds == {"file"} and change.kind.value != "mode":
            texts = [_text_of(files, entry) for entry in (change.before, change.after)]
            if None in texts:
                sizes = [entry.size if entry else 0 for entry in (change.before, change.after)]
                note = f"binary or large, {sizes[0]} -> {sizes[1]} bytes"
            else:
                (old, was), (new, now) = (text or ("", "") for text in texts)
                shown = [
                    None if entry is None else self._redactor.text(text)
                    for entry, text in ((change.before, old), (change.after, new))
                ]
                diff = unified_diff(*shown, shown=path)
                if was and now and was != now:
                    note = f"encoding: {was} -> {now}"
        elif change.kind.value == "mode" and change.before and change.after:
            note = f"{change.before.mode:04o} -> {change.after.mode:04o}"
        else:
            note = " -> ".join(
                _named(entry) for entry in (change.before, change.after) if entry is not None
            )
        return FileChange(
            path=path, kind=change.kind.value, diff=diff, note=self._redactor.text(note)
        )


def _recorded(files: ProjectFiles, snapshot_id: str, path: str) -> bytes:
    place = Path(path)
    if place.is_absolute() and place.is_relative_to(files.root):
        place = place.relative_to(files.root)
    found = None
    if place.parts and not place.is_absolute() and "\0" not in path:
        found = files.store.find(snapshot_id, str(place))
    if found is not None and found.kind.value == "file":
        return files.store.read(found)
    what = "nothing" if found is None else f"a {found.kind.value}"
    raise StorageError(
        ErrorCode.FILE_NOT_FOUND,
        f"{what} is recorded at {bounded_line(path)!r} in {snapshot_id}; name a file by its path in"
        " the project",
        details={"path": bounded_line(path), "snapshot_id": snapshot_id},
    )


def _named(entry: "TreeEntry") -> str:
    if entry.kind.value == "link":
        return f"link to {readable_name(os.fsdecode(entry.content))}"
    return entry.kind.value


def _text_of(files: ProjectFiles, entry: "TreeEntry | None") -> tuple[str, str] | None:
    """Return the text of a file and its encoding; None if it is binary or too large to show."""
    if entry is None:
        return "", ""
    if entry.size > _LARGEST_SHOWN:
        return None
    found = DecodedText.approximate(files.store.read(entry))
    return found and (found.text, found.encoding.shown)


def _new_place(into: Path, project: Path) -> Path:
    """Return the folder for the copy: a new or empty one.

    Raises:
        AgentCoreError: `validation_error`: the copy cannot be placed there.
    """
    place = into.expanduser().resolve()
    problem = None
    try:
        if place.is_relative_to(project):
            problem = f"is in the project {project}, which would be copied into itself"
        elif place.exists() and not place.is_dir():
            problem = "is a file"
        elif place.is_dir() and any(place.iterdir()):
            problem = "is not empty"
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made: {error.strerror}"
    if problem:
        message = f"{place} {problem}; name a new or an empty folder outside of it"
        raise validation_error(message)
    return place

"""Records a project's files for a run: before its first change, and after each turn that changes.

The extension sees every call that may change something right before it does, and the model call
that follows when the calls of a turn have been answered. A run without snapshots does not have it.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agent_core.aio import finish_uncancelled
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.events import Journal
from agent_core.extensions import (
    Admit,
    AskModel,
    Extension,
    ExtensionContext,
    JudgedCall,
    Rank,
)
from agent_core.runtime.project_files import ProjectFiles
from agent_core.runtime.workspaces import bring_up_to_date
from agent_core.storage.store import SessionStore
from agent_core.tools.base import Concurrency, Tool
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    EventLevel,
    EventType,
    ModelEvent,
    ModelRequest,
    NodeType,
    Role,
    SnapshotNote,
)

if TYPE_CHECKING:
    from agent_core.runtime.fence import SessionLease
    from agent_core.snapshots.records import Snapshot

_CHANGING = frozenset({Concurrency.WRITE, Concurrency.TASK, Concurrency.END})
_STALE_S = 1.0
"""Seconds after which an early recording is repeated before the first change."""


def may_change(tools: Iterable[Tool]) -> bool:
    """Return whether one of the tools can itself change something."""
    return any(tool.concurrency in _CHANGING for tool in tools)


def starts_agents(tools: Iterable[Tool]) -> bool:
    """Return whether one of the tools starts agents, which may have other tools."""
    return any(tool.concurrency is Concurrency.AGENT for tool in tools)


class FileRecorder:
    """Records the files for one run of a user, and for the children that share them.

    A snapshot is complete, and a node names it, before the next change begins. If no snapshot can
    be taken, the run continues without one and says so once.

    Args:
        files: files of the project.
        store: holds the names of snapshots.
        journal: journal of the user's run.
    """

    def __init__(self, files: ProjectFiles, store: SessionStore, journal: Journal) -> None:
        self._files = files
        self._store = store
        self._journal = journal
        self._stop = threading.Event()
        self._in_order = asyncio.Lock()
        self._early: asyncio.Task[Snapshot] | None = None
        self._early_ended = 0.0
        self._first: asyncio.Task[None] | None = None
        self._after_turn: asyncio.Task[None] | None = None
        self._has_begun = False
        self._is_changed = False
        self._changed_by: set[str] = set()
        self._is_off = False
        self.failure: AgentCoreError | OSError | None = None

    def begin_early(self) -> None:
        """Begin to record while the model answers: the run may be about to change something."""
        if self._early is None and not self._has_begun and not self._is_off:
            self._early = asyncio.create_task(self._files.record(self._stop))
            self._early.add_done_callback(self._note_end)

    async def before_change(self, run_id: str) -> None:
        """Wait until the state before a change is recorded; `run_id` is about to change files."""
        async with self._in_order:
            if self._after_turn is not None:
                await asyncio.shield(self._after_turn)
                self._after_turn = None
            if not self._has_begun:
                if self._first is None:
                    self._first = asyncio.create_task(self._record_first())
                await asyncio.shield(self._first)
            if self.failure is not None and self._files.shared is not None:
                raise self.failure
            self._is_changed = self._has_begun
            self._changed_by.add(run_id)

    def turn_ended(self) -> None:
        """Record the changes of a turn's calls, while the model answers."""
        if self._is_changed and self._after_turn is None:
            self._is_changed = False
            node_id = self._journal.path[-1].node_id
            self._after_turn = asyncio.create_task(self._record(node_id))

    async def finish(self) -> None:
        """Record the last turn's changes; without a change nothing is kept."""
        if not self._has_begun:
            self._stop.set()
            if unfinished := [task for task in (self._early, self._first) if task is not None]:
                await asyncio.wait(unfinished)
            if not self._has_begun:
                return
        async with self._in_order:
            if self._after_turn is not None:
                await asyncio.wait([self._after_turn])
            # A child that outlives a turn may still be changing files while this records.
            others = self._changed_by - {self._journal.run.run_id}
            if self._is_changed or others:
                await self._record(self._journal.path[-1].node_id, is_last=True)
            if not self._is_off:
                run = self._journal.run
                await self._store.end_changes(run.session_id, run.run_id)

    async def _record_first(self) -> None:
        if self._is_off:
            return
        run, path = self._journal.run, self._journal.path
        try:
            if self._early is None:
                snapshot = await self._files.record(self._stop)
            else:
                snapshot = await asyncio.shield(self._early)
                if asyncio.get_running_loop().time() - self._early_ended > _STALE_S:
                    snapshot = await self._files.record(self._stop)
            asked = [
                node.node_id
                for node in path
                if node.run_id == run.run_id
                and node.role is Role.USER
                and node.node_type is NodeType.MESSAGE
            ]
            is_resumed = await self._store.changes_of(run.run_id, self._files.folder)
            node_id = path[-1].node_id if is_resumed or not asked else asked[0]
            await self._name(node_id, snapshot, is_begin=True)
        except (AgentCoreError, OSError) as error:
            self._give_up(error)
        else:
            self._has_begun = True

    async def _record(self, node_id: str, *, is_last: bool = False) -> None:
        try:
            snapshot = await self._files.record(self._stop)
            await self._name(node_id, snapshot, is_last=is_last)
        except (AgentCoreError, OSError) as error:
            self._give_up(error)

    async def _name(
        self, node_id: str, snapshot: "Snapshot", *, is_begin: bool = False, is_last: bool = False
    ) -> None:
        """Let a node name a snapshot; one that was erased meanwhile is recorded again."""
        run = self._journal.run
        while True:
            await self._store.name_snapshot(
                SnapshotNote(
                    session_id=run.session_id,
                    node_id=node_id,
                    folder=self._files.folder,
                    snapshot_id=snapshot.snapshot_id,
                    run_id=run.run_id,
                    is_begin=is_begin,
                    is_last=is_last,
                    epoch=self._journal.epoch,
                )
            )
            if await asyncio.to_thread(self._files.store.has, snapshot.snapshot_id):
                return
            snapshot = await self._files.record(self._stop)

    def _give_up(self, error: AgentCoreError | OSError) -> None:
        """Continue without snapshots: later changes of this run cannot be undone."""
        self._is_off = True
        self.failure = error
        if self._files.shared is not None:  # the run fails
            return
        text = error.message if isinstance(error, AgentCoreError) else str(error)
        message = f"the files are not recorded, so what this run changes cannot be undone: {text}"
        payload = {"reason": "no_snapshot", "message": message}
        self._journal.note(EventType.ERROR, payload, level=EventLevel.WARNING)

    def _note_end(self, early: "asyncio.Task[Snapshot]") -> None:
        self._early_ended = asyncio.get_running_loop().time()
        if not early.cancelled():
            early.exception()  # retrieved here: the run may end without it


@asynccontextmanager
async def recording(
    files: ProjectFiles, store: SessionStore, journal: Journal, lease: "SessionLease | None" = None
) -> AsyncGenerator[FileRecorder]:
    """Yield the recorder of one run; at the end, all changes of the run are recorded.

    Raises:
        StorageError: the files exist only in snapshots, which cannot be fetched or recorded.
        OSError: likewise.
    """
    if files.session_id not in {None, journal.run.session_id}:
        raise StorageError(
            ErrorCode.SESSION_ELSEWHERE,
            f"{files.root} is the folder of session {files.session_id}, for its own runs alone;"
            " work in another folder",
            details={"session_id": journal.run.session_id, "cwd": str(files.root)},
        )
    await bring_up_to_date(files, store, lease)
    recorder = FileRecorder(files, store, journal)
    try:
        yield recorder
    finally:
        await finish_uncancelled(recorder.finish())
    if recorder.failure is not None and files.shared is not None:
        raise recorder.failure


class Snapshots(Extension):
    """Has the files recorded before a call changes them, and after the last call of a turn.

    Args:
        recorder: of the user's run.
        toolbox: knows which calls only read.
        is_users: the run is the user's own, and not a child's.
        is_early: the run may change something: its files are recorded while the model answers.
    """

    rank = Rank.SNAPSHOTS

    def __init__(
        self, recorder: FileRecorder, toolbox: Toolbox, *, is_users: bool, is_early: bool
    ) -> None:
        self._recorder = recorder
        self._toolbox = toolbox
        self._is_users = is_users
        self._is_early = is_early

    async def admit_tool_call(
        self, context: ExtensionContext, judged: JudgedCall, proceed: Admit
    ) -> float | None:
        """Return when the files are recorded that an admitted call may change."""
        waited = await proceed()
        if self._toolbox.concurrency(judged.call) in _CHANGING:
            await self._recorder.before_change(context.run.run_id)
        return waited

    def wrap_model_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        request: ModelRequest,
        proceed: AskModel,
    ) -> AsyncGenerator[ModelEvent]:
        """Record the files while the model answers."""
        if self._is_users:
            self._recorder.turn_ended()
            if self._is_early:
                self._recorder.begin_early()
        return proceed(request)

"""Undo, redo and switch: moves a session's active node, and its project's files."""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.aio import finish_uncancelled
from agent_core.errors import AgentCoreError, ErrorCode, StorageError, validation_error
from agent_core.runtime.project_files import FilesAlone, ProjectFiles
from agent_core.runtime.runs import Runs
from agent_core.runtime.start_clock import StartClock
from agent_core.runtime.workspaces import Workspaces, latest_snapshot
from agent_core.storage.owners import Owner
from agent_core.storage.rows import node_not_found
from agent_core.storage.store import SessionStore
from agent_core.storage.workspaces import MovedMeanwhileError
from agent_core.text import readable_name
from agent_core.text.content import without_content
from agent_core.types import EventType, Node, NodeType, Role, SessionRecord, utc_now

if TYPE_CHECKING:
    from agent_core.snapshots.records import GitState, LeftOut, Refusal, RestoreResult
    from agent_core.types import (
        FilesMove,
        NodeMove,
        SwitchResult,
        UndoneMessage,
        UndoState,
        WorkspaceState,
    )

logger = logging.getLogger(__name__)

_PAGE = 1000
_UNNAMED = timedelta(hours=1)
"""Time for which a snapshot recorded by unfinished work may stay without a name."""

_ERASE_WAIT_S = 60.0
_WAIT_S = 0.02

_SHOWN_PATHS = 10


class _Decision(Struct, frozen=True):
    """A move, as decided on one state of its session.

    Attributes:
        state: the session's record of its files.
        spans: the snapshots around the changes that are reverted or made again.
        others: first and last snapshot of each run of other sessions that worked at the same time.
        message: the user's message that is undone, for an undo.
        remark: anything else the user should know.
    """

    move: "NodeMove"
    state: "WorkspaceState"
    spans: Sequence[tuple[str, str]] = ()
    others: Sequence[tuple[str, str]] = ()
    message: str | None = None
    remark: str | None = None

    def explained(self, result: "SwitchResult") -> "SwitchResult":
        """Add the message and the remark to the result of the move."""
        remarks = [*result.remarks, *([self.remark] if self.remark else [])]
        return result.model_copy(update={"message": self.message, "remarks": remarks})


class NodeMoves:
    """Moves sessions to other nodes; where snapshots were taken, the files move too.

    Args:
        store, owner, runs: of the runtime.
        workspaces: knows the files of the project, and of sessions elsewhere.
        keep: time for which a session's snapshots are kept after its last run.
        forget_reads: makes the files that agents have read count as unread.
    """

    def __init__(
        self,
        store: SessionStore,
        owner: Owner,
        runs: Runs,
        *,
        workspaces: Workspaces,
        keep: timedelta,
        forget_reads: Callable[[Collection[str]], None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._runs = runs
        self._workspaces = workspaces
        self._files = workspaces.project_files()
        self.files_of = workspaces.files_of
        self._keep = keep
        self._forget_reads = forget_reads

    async def switch(
        self, session_id: str, node_id: str, *, restore_files: bool, force: bool
    ) -> "SwitchResult":
        """Continue the session from a message the user has seen, with its files if asked for.

        Raises:
            StorageError: `session_not_found`, `node_not_found`, `session_active`, `path_conflict`.
            AgentCoreError: `validation_error`: the node is not a complete message, or there is no
                snapshot to restore.
        """
        decide = partial(self._decide_switch, node_id=node_id, restore_files=restore_files)
        return await self._move(session_id, decide, force=force)

    async def undo(self, session_id: str, *, force: bool) -> "SwitchResult":
        """Revert the last message of the user and everything its run did.

        Raises:
            StorageError: `session_not_found`, `session_active`, `path_conflict`.
            AgentCoreError: `validation_error`: there is nothing to undo.
        """
        return await self._move(session_id, self._decide_undo, force=force)

    async def redo(self, session_id: str, *, force: bool) -> "SwitchResult":
        """Return to the state just before the last undo, files included.

        Raises:
            StorageError: `session_not_found`, `session_active`, `path_conflict`.
            AgentCoreError: `validation_error`: nothing was undone since the last message.
        """
        return await self._move(session_id, self._decide_redo, force=force)

    async def _move(
        self,
        session_id: str,
        decide: "Callable[[SessionRecord, ProjectFiles, WorkspaceState], Awaitable[_Decision]]",
        *,
        force: bool,
    ) -> "SwitchResult":
        """Decide on a move by the stored state and make it, while nothing else moves the project.

        Another machine can still move the session; then the move is decided again. A message sent
        meanwhile stops the move, because the user has not seen it.
        """
        session = await self._store.require_session(session_id)
        files = self.files_of(session)
        runs = (await self._store.workspace_state(session_id, files.folder)).runs
        while True:
            async with self._in_turn(files) as alone:
                session = await self._idle_session(session_id)
                state = await self._store.workspace_state(session_id, files.folder)
                if state.runs != runs or self.files_of(session).folder != files.folder:
                    message = f"session {session_id} was used meanwhile; nothing was changed"
                    raise StorageError(ErrorCode.SESSION_ACTIVE, message, retryable=True)
                decision = await decide(session, files, state)
                try:
                    return await self._make(decision, session_id, files, alone, force=force)
                except MovedMeanwhileError as error:
                    logger.info("%s; it is decided again", error)

    async def _decide_switch(
        self,
        session: SessionRecord,
        files: ProjectFiles,
        state: "WorkspaceState",
        *,
        node_id: str,
        restore_files: bool,
    ) -> "_Decision":
        from agent_core.types import NodeMove  # noqa: PLC0415 - few runs need it

        session_id = session.session_id
        node = await self._store.node(node_id)
        if node is None or node.session_id != session_id:
            raise node_not_found(node_id, session_id)
        if not is_visible(node):
            raise not_visible(node_id)
        move = NodeMove(node_id=node_id, folder=files.folder, revision=state.revision)
        if not restore_files:
            move = move.model_copy(update={"known": state.snapshot_id, "undone": state.undone})
            return _Decision(move, state)
        target = await self._store.snapshot_at(session_id, node_id, files.folder)
        if target is None and not files.is_on:
            message = (
                "no snapshot was taken of the files in this session; switch without restoring them,"
                ' and set [workspace] snapshots = "turn" to record them from now on'
            )
            raise validation_error(message)
        move = move.model_copy(update={"known": target or state.snapshot_id})
        return _Decision(move, state, spans=[(target, target)] if target else [])

    async def _decide_undo(
        self, session: SessionRecord, files: ProjectFiles, state: "WorkspaceState"
    ) -> "_Decision":
        from agent_core.types import NodeMove, UndoneMessage  # noqa: PLC0415 - few runs need it

        active = state.active_node_id
        path = await self._store.path(active) if active else []
        begin = _last_exchange(path)
        if begin is None or active is None:
            message = "there is nothing to undo: the session is at its beginning"
            raise validation_error(message)
        run_id = path[begin].run_id
        changes = await self._store.changes_of(run_id, files.folder) if run_id else None
        others = await self._store.overlapping_changes(run_id, files.folder) if run_id else ()
        undone = UndoneMessage(
            at=path[begin].parent_id, node_id=active, runs=state.runs, known=state.snapshot_id
        )
        move = NodeMove(
            node_id=undone.at,
            folder=files.folder,
            known=changes.known if changes else state.snapshot_id,
            undone=[undone, *_redoable(state)],
            is_undo=True,
            revision=state.revision,
        )
        remark = None
        if changes is None and files.is_on and session.updated_at < utc_now() - self._keep:
            remark = "The files were not changed: their snapshots have been deleted."
        elif changes is None and run_id:
            remark = await self._why_no_snapshot(run_id, files)
        return _Decision(
            move,
            state,
            spans=changes.spans if changes else (),
            others=others,
            message="\n".join(map(_text_to_send_again, filter(_is_users, path[begin:]))),
            remark=remark,
        )

    async def _decide_redo(
        self, _: SessionRecord, files: ProjectFiles, state: "WorkspaceState"
    ) -> "_Decision":
        from agent_core.types import NodeMove  # noqa: PLC0415 - few runs need it

        last = _next_redo(state)
        if last is None:
            message = (
                "there is nothing to redo: nothing was undone since the last message, redo or"
                " switch to another node"
            )
            raise validation_error(message)
        move = NodeMove(
            node_id=last.node_id,
            folder=files.folder,
            known=last.known,
            undone=_redoable(state)[1:],
            revision=state.revision,
        )
        state = state.model_copy(update={"snapshot_id": last.after, "open_run_id": None})
        return _Decision(move, state, spans=[(last.before, last.before)] if last.before else [])

    async def recover(self) -> None:
        """Finish the restore that a dead process left half done, before anything else.

        A conflict with later changes is left to the user, as if the restore had not begun.

        Raises:
            StorageError: the store cannot be read, or a file cannot be written.
        """
        files = self._files
        if files.shared is None and files.has_any and await self._is_interrupted(files):
            async with files.alone() as alone:
                await self._finish_interrupted(files, alone)

    async def sweep(self, clock: StartClock, *, only_if_due: bool = False) -> None:
        """Delete the snapshots that no session needs or whose time is over.

        Args:
            clock: says what their time is; nothing is deleted while that is not known.
            only_if_due: search for unneeded snapshots at most once a day; expired ones are always
                dropped.
        """
        if not self._files.has_any:
            return
        try:
            if (begun := await clock.now()) is None:
                return
            has_dropped = await self._store.drop_snapshots(begun - self._keep)
            if has_dropped or not only_if_due or self._files.is_sweep_due:
                async with self._files.none_alone() as is_quiet:
                    before = await self._named_before(begun, is_quiet=is_quiet)
                    in_use = await self._workspaces.snapshots_in_use()
                    await self._files.sweep(in_use, recorded_before=before)
        except AgentCoreError as error:
            logger.warning("unneeded snapshots could not be deleted yet: %s", error)

    async def erase(self, snapshot_ids: Collection[str]) -> None:
        """Remove the snapshots that deleted sessions named, with all that only they held.

        A restore, a recording or a sweep that is under way is waited for.

        Raises:
            StorageError: the snapshots were in use for too long, or a disk fails.
            OSError: the locks cannot be read.
        """
        if not self._files.has_any:
            return
        clock = asyncio.get_running_loop().time
        begun, ends = utc_now(), clock() + _ERASE_WAIT_S
        while True:
            async with self._files.none_alone() as is_quiet:
                if is_quiet:
                    await self._files.erase(
                        snapshot_ids,
                        self._workspaces.snapshots_in_use,
                        recorded_before=await self._named_before(begun, is_quiet=True),
                        wait_s=max(ends - clock(), 1.0),
                    )
                    return
            if clock() >= ends:
                message = "files of a project are being restored by another command"
                raise StorageError(ErrorCode.STORAGE_ERROR, message, retryable=True)
            await asyncio.sleep(_WAIT_S)

    async def _named_before(self, begun: datetime, *, is_quiet: bool) -> datetime:
        """Return the time before which every recorded snapshot that is needed has been named."""
        is_quiet = is_quiet and self._workspaces.sees_all
        is_idle = is_quiet and not await self._store.working_sessions()
        return begun if is_idle else begun - _UNNAMED

    @asynccontextmanager
    async def _in_turn(self, files: ProjectFiles) -> AsyncGenerator[FilesAlone | None]:
        """Wait until nothing else moves the project; yields None if there are no snapshots.

        A restore that a dead process left half done is finished first.
        """
        if files.shared is None and not files.has_any:
            yield None
            return
        async with files.alone() as alone:
            if files.shared is None and await self._is_interrupted(files):
                await self._finish_interrupted(files, alone)
            yield alone

    async def _is_interrupted(self, files: ProjectFiles) -> bool:
        """Return whether a restore, or a move of a session, is half done in this project."""
        pending = await self._store.pending_moves(files.folder)
        return bool(pending) or await asyncio.to_thread(lambda: files.is_interrupted)

    async def _finish_interrupted(self, files: ProjectFiles, alone: FilesAlone) -> None:
        """Finish the moves of dead processes; a move that cannot be finished is rolled back."""
        await alone.recover()
        for session_id in await self._store.pending_moves(files.folder):
            state = await self._store.workspace_state(session_id, files.folder)
            move = state.pending
            if move is None or move.files is None:
                continue
            try:
                done = await alone.restore(move.files.target, base=move.files.before, force=False)
                await self._follow(session_id, move, move.files, alone, done)
            except AgentCoreError as error:
                await alone.roll_back(move.files.before, move.files.target)
                await self._store.drop_move(session_id)
                logger.warning("session %s stays where it was: %s", session_id, error)
        await alone.moved()

    async def _make(
        self,
        decision: "_Decision",
        session_id: str,
        files: ProjectFiles,
        alone: FilesAlone | None,
        *,
        force: bool,
    ) -> "SwitchResult":
        """Make a move: first the files, then the session once they are as they should be.

        The changes of all spans are reverted; in the last span, up to the session's known state of
        the files. Without a span the files are left alone. Files that other runs changed at the
        same time are refused, like files changed since.
        """
        from agent_core.snapshots.records import Refusal  # noqa: PLC0415 - few runs need it
        from agent_core.types import FilesMove, SwitchResult  # noqa: PLC0415 - few runs need it

        move, state, spans = decision.move, decision.state, decision.spans
        if not spans:
            moved = await self._store.move_node(session_id, move)
            result = SwitchResult(session=moved, node_id=move.node_id)
            return decision.explained(result)
        if alone is None:
            raise StorageError(
                ErrorCode.STORAGE_ERROR,
                f"the snapshots of session {session_id} are no longer in the home directory;"
                " switch_node without restore_files moves the conversation alone",
                details={"reason": "no_snapshot", "session_id": session_id},
            )
        await self._require_quiet(files)
        if files.shared is not None:
            await alone.follow(await latest_snapshot(files, self._store))
        end = spans[-1][1] if state.open_run_id else state.snapshot_id or spans[-1][1]
        before = await alone.record([*spans[:-1], (spans[-1][0], end)])
        # Changes that a dead run made after its last snapshot count as its own.
        known = before if state.open_run_id else state.snapshot_id or before
        if move.is_undo:
            undone = move.undone[0].model_copy(update={"known": known})
            move = move.model_copy(update={"undone": [undone, *move.undone[1:]]})
        wanted, conflicts = before, set[str]()
        for begin, end in reversed([*spans[:-1], (spans[-1][0], known)]):
            wanted, found = await alone.merge(end, begin, wanted, session_id=session_id)
            conflicts.update(found)
        if decision.others and not force:
            touched = await alone.differing(before, wanted)
            for begin, end in decision.others:
                conflicts.update(touched & await alone.differing(begin, end))
        if conflicts and not force:
            raise _conflict(dict.fromkeys(conflicts, Refusal.CHANGED))
        restoring = FilesMove(target=wanted, before=before, git=spans[0][0])
        move = move.model_copy(update={"files": restoring})
        # Cancelling the caller now would leave the session behind its files.
        result = await finish_uncancelled(
            self._carry_out(session_id, move, restoring, alone, force=force)
        )
        return decision.explained(result)

    async def _carry_out(
        self,
        session_id: str,
        move: "NodeMove",
        files: "FilesMove",
        alone: FilesAlone,
        *,
        force: bool,
    ) -> "SwitchResult":
        async with alone.moving():
            try:
                await self._store.begin_move(session_id, move)
                done = await alone.restore(files.target, base=files.before, force=force)
                before = done.before.snapshot_id
                if before != files.before:  # others have changed something in the meantime
                    target, _ = await alone.merge(
                        files.before, files.target, before, session_id=session_id
                    )
                    files = files.model_copy(update={"target": target, "before": before})
                    move = move.model_copy(update={"files": files})
                return await self._follow(session_id, move, files, alone, done)
            except AgentCoreError:
                await alone.roll_back(files.before, files.target)
                await self._store.drop_move(session_id)
                await alone.moved()
                raise

    async def _follow(
        self,
        session_id: str,
        move: "NodeMove",
        files: "FilesMove",
        alone: FilesAlone,
        done: "RestoreResult",
    ) -> "SwitchResult":
        """Move the session to the node its files are at."""
        from agent_core.types import SwitchResult  # noqa: PLC0415 - few runs need it

        if done.refused and not (done.restored or done.deleted or done.moved_aside):
            raise _conflict(done.refused)
        agents = await self._store.agents(session_id)
        self._forget_reads([agent.agent_id for agent in agents])
        undone = move.undone
        if move.is_undo:
            update = {"before": files.before, "after": files.target}
            undone = [undone[0].model_copy(update=update), *undone[1:]]
        move = move.model_copy(update={"undone": undone})
        # If a run has begun meanwhile, this is refused; the run waits before it changes files.
        moved = await self._store.move_node(session_id, move)
        then = await alone.snapshot(files.git)
        left_out = sorted(
            {*done.left_out, *then.left_out}, key=lambda each: (each.path, each.reason)
        )
        gone = [each for each in left_out if each not in done.left_out]
        lost = [readable_name(each.path) for each in gone if not each.reason.is_recorded]
        remarks = [f"No snapshot holds what was there before: {_listed(lost)}."] if lost else []
        return SwitchResult(
            session=moved,
            node_id=move.node_id,
            restored=[readable_name(path) for path in done.restored],
            deleted=[readable_name(path) for path in done.deleted],
            left_out=shown_left_out(left_out),
            refused=[f"{readable_name(path)} ({why.value})" for path, why in done.refused.items()],
            moved_aside=[
                f"{readable_name(each.path)} -> {readable_name(each.moved_to)}"
                for each in done.moved_aside
            ],
            snapshot_before=files.before,
            git=differences_in_git(then.git, done.before.git),
            remarks=remarks,
        )

    async def _require_quiet(self, files: ProjectFiles) -> None:
        """Refuse to restore files that a run works on; a run that begins now waits for the lock.

        Raises:
            StorageError: `session_active`: a run works on them; or the project no longer exists.
        """
        if files.shared is None and not await asyncio.to_thread(files.root.is_dir):
            message = f"the project {files.root} no longer exists; move it back, then try again"
            raise StorageError(ErrorCode.STORAGE_ERROR, message)
        for each in await self._store.working_sessions():
            if self._workspaces.is_here(each) and _overlap(files.root, self.files_of(each).root):
                message = (
                    f"a run of session {each.session_id} is active in {each.cwd}; files"
                    " cannot be restored until it ends. Wait for it, or cancel it"
                )
                details = {"session_id": each.session_id, "cwd": each.cwd}
                raise StorageError(
                    ErrorCode.SESSION_ACTIVE, message, retryable=True, details=details
                )

    async def _idle_session(self, session_id: str) -> SessionRecord:
        """Return the session if no run of this process uses it.

        The store refuses the move if a run elsewhere uses it, or waits for an answer.

        Raises:
            StorageError: `session_not_found`, `session_active`.
        """
        await self._runs.require_idle(session_id)
        return await self._store.require_session(session_id)

    async def _why_no_snapshot(self, run_id: str, files: ProjectFiles) -> str | None:
        """Explain why the files were not restored, if the run may have changed some."""
        seen, has_called, page = 0, False, await self._store.events_after(run_id, 0, limit=_PAGE)
        while page:
            for event in page:
                has_called = has_called or event.event_type is EventType.TOOL_STARTED
                if event.details.reason == "no_snapshot":
                    return f"{event.details.message}. The files were not changed."
            seen = page[-1].run_seq or seen
            page = await self._store.events_after(run_id, seen, limit=_PAGE)
        if has_called and not files.is_on:
            return (
                "Only the conversation was reverted, not the files: they are not recorded while"
                " [workspace] snapshots is off (in code: or with persist=False)."
            )
        return None


def _text_to_send_again(message: Node) -> str:
    """Return a message without content that came with it; a prompt of a server by its name."""
    if "mcp_prompt" in message.metadata:
        return message.words
    return without_content(message.text).strip() or message.text


def _redoable(state: "WorkspaceState") -> "list[UndoneMessage]":
    """Return the messages undone since the last message, newest first."""
    return [each for each in state.undone if each.runs == state.runs]


def _next_redo(state: "WorkspaceState") -> "UndoneMessage | None":
    """Return the message that a redo would restore; None if nothing was undone here."""
    undone = _redoable(state)
    return undone[0] if undone and undone[0].at == state.active_node_id else None


async def undo_state(store: SessionStore, workspaces: Workspaces, session_id: str) -> "UndoState":
    """Return what undo and redo would have to do; nothing, for files on another host.

    Raises:
        StorageError: `session_not_found`.
    """
    from agent_core.types import UndoState  # noqa: PLC0415 - few runs need it

    session = await store.require_session(session_id)
    if not workspaces.is_here(session):
        return UndoState()
    folder = session.files_folder or workspaces.project_files().folder
    state = await store.workspace_state(session_id, folder)
    active = state.active_node_id
    return UndoState(
        can_undo=active is not None and await store.follows_message(active),
        can_redo=_next_redo(state) is not None,
    )


def _last_exchange(path: Sequence[Node]) -> int | None:
    """Return the index of the user's last message, or of the resources read before it.

    Messages that were sent to a run while it worked belong to the message that began it.
    """
    found = [index for index, node in enumerate(path) if _is_users(node)]
    if not found:
        return None
    run_id, index = path[found[-1]].run_id, found[-1]
    if run_id is not None:
        index = next(each for each in found if path[each].run_id == run_id)
    message = path[index]
    while index and _was_read_for(path[index - 1], message):
        index -= 1
    return index


def _is_users(node: Node) -> bool:
    return node.role is Role.USER and node.node_type is NodeType.MESSAGE


def _was_read_for(node: Node, message: Node) -> bool:
    is_own = message.run_id is not None and node.run_id == message.run_id
    return is_own and node.node_type is not NodeType.MESSAGE


def is_visible(node: Node) -> bool:
    """Return whether a user can refer to a node: their message, or an answer without open calls."""
    is_message = node.node_type is NodeType.MESSAGE and node.role is not Role.TOOL
    return is_message and not node.is_partial and not node.calls


def not_visible(node_id: str) -> AgentCoreError:
    """Return the error for a node that a user cannot refer to."""
    message = f"{node_id} is not a complete message of the user or an answer to one"
    return validation_error(message)


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _conflict(refused: "Mapping[str, Refusal]") -> StorageError:
    """Return the error for a move refused because of these paths."""
    from agent_core.snapshots.records import Refusal  # noqa: PLC0415 - few runs need it

    cures = {
        Refusal.CHANGED: "changed after the run, by you or others: {}. With force (--force) they"
        " are replaced, and redo brings them back (in code: force=True)",
        Refusal.IN_THE_WAY: "no snapshot can hold what is there now: {}. With force (--force) it is"
        " moved aside (in code: force=True)",
        Refusal.NOT_PERMITTED: "not permitted: {}. Make them readable and writable for yourself,"
        " then try again",
        Refusal.DAMAGED: "the recorded contents are missing or damaged: {}",
    }
    reasons: dict[Refusal, list[str]] = {}
    for path, why in sorted(refused.items()):
        reasons.setdefault(why, []).append(readable_name(path))
    said = [cures[why].format(_listed(paths)) for why, paths in sorted(reasons.items())]
    return StorageError(
        ErrorCode.PATH_CONFLICT,
        f"nothing was restored. {'. '.join(each[0].upper() + each[1:] for each in said)}",
        details={
            "paths": [readable_name(path) for path in sorted(refused)],
            "reasons": {readable_name(path): why.value for path, why in refused.items()},
        },
    )


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - _SHOWN_PATHS
    return ", ".join(paths[:_SHOWN_PATHS]) + (f" and {more} more" if more > 0 else "")


def shown_left_out(left_out: "Iterable[LeftOut]") -> list[str]:
    """Describe the paths that no snapshot holds unchanged, each with the reason."""
    return [
        f"{readable_name(each.path)} ({each.reason.value})"
        for each in left_out
        if each.reason.value != "closed"
    ]


def differences_in_git(then: "GitState | None", now: "GitState | None") -> list[str]:
    """Describe how the repository, which a restore does not touch, differs from a snapshot."""
    if then == now:
        return []
    if then is None or now is None:
        return ["there is a git repository now, and there was none" if now else "the repository"]
    found: list[str] = []
    if then.branch != now.branch:
        found.append(f"branch: was {then.branch or 'none'}, is {now.branch or 'none'}")
    if then.head != now.head:
        found.append(f"HEAD: was {_short(then.head)}, is {_short(now.head)}")
    if then.is_index_clean != now.is_index_clean:
        states = {True: "clean", False: "not clean", None: "not known"}
        was, is_now = states[then.is_index_clean], states[now.is_index_clean]
        found.append(f"index: was {was}, is {is_now}")
    return found


def _short(head: str | None) -> str:
    return head[:12] if head else "none"

"""The files of a project as a session knows them: which node names which snapshot."""

from collections.abc import Sequence

from msgspec import Struct

from agent_core.types.content import Frozen, SafeId
from agent_core.types.records import SessionRecord


class SnapshotNote(Struct, frozen=True, kw_only=True):
    """A node names the snapshot that was just recorded.

    Attributes:
        folder: the project it is of.
        run_id: the user's run that recorded it; None between runs.
        is_begin: nothing of what differs from the snapshot before it is the run's doing.
        is_last: the run changes nothing after it, unless it notes that anew.
        epoch: the session's when the run was opened; an earlier owner's note is refused.
    """

    session_id: str
    node_id: str
    folder: str
    snapshot_id: str
    run_id: str | None = None
    is_begin: bool = False
    is_last: bool = False
    epoch: int | None = None


class RunChanges(Struct, frozen=True, kw_only=True):
    """The changes of a run to the files of its project.

    Attributes:
        known: what its session had known of the files before.
        spans: snapshots before and after; a run that waited for an answer has several.
    """

    known: str
    spans: Sequence[tuple[str, str]]


class UndoneMessage(Frozen):
    """A state that `redo` returns to.

    Attributes:
        at: the active node after the undo; None is the beginning of the session.
        node_id: the active node before it.
        runs: how many runs users had started in the session: one more, and there is no redo.
        before: the snapshot taken before the files were restored; None if none were.
        after: the snapshot taken after that.
        known: the session's snapshot before the undo.
    """

    at: SafeId | None
    node_id: SafeId
    runs: int
    before: SafeId | None = None
    after: SafeId | None = None
    known: SafeId | None = None


class SessionFork(Struct, frozen=True, kw_only=True):
    """A session that is to begin with what another one has said.

    Attributes:
        session_id, node_id: where it branches off.
        new_session_id: its own.
        folder: the copy of the project that it works in.
        snapshot_id: what the files of the copy were recorded as.
        place: where its files are, if that is said of sessions.
    """

    session_id: str
    node_id: str
    new_session_id: str
    folder: str
    snapshot_id: str | None = None
    place: str | None = None


class FilesMove(Frozen):
    """The snapshots between which the files go when a session continues elsewhere.

    Attributes:
        target: what is restored: the state before, with the changes that are taken back or made.
        before: the state before.
        git: tells what the repository stood at when the files were so.
    """

    target: SafeId
    before: SafeId
    git: SafeId


class NodeMove(Frozen):
    """A session continues from another node, and its files go with it.

    Attributes:
        node_id: the new active node; None is the beginning.
        folder: the project.
        files: what happens to the files; None: they are left alone.
        known: the snapshot that the session has left the files in from then on.
        undone: what can be redone from then on.
        is_undo: the first of these is this very move.
        runs: how many runs users had started when it began; later moves have `revision`.
        revision: of the state that it was decided on; on another one it is refused.
    """

    node_id: SafeId | None
    folder: str
    revision: str | None = None
    files: FilesMove | None = None
    known: SafeId | None = None
    undone: list[UndoneMessage] = []
    is_undo: bool = False
    runs: int | None = None


class WorkspaceState(Frozen):
    """The state of a session, and its knowledge of the files of its project.

    Attributes:
        snapshot_id: how the session has left the files, as far as it has recorded them.
        open_run_id: the run that has begun to change them, and has not ended by itself: what
            differs from the snapshot is its doing, too.
        undone: what can be redone, the last one first.
        runs: how many runs users have started in the session.
        pending: a move whose files are being restored, by a process that has died perhaps.
        active_node_id: where the session continues.
        revision: another text after each move and each run of the session.
    """

    active_node_id: SafeId | None = None
    revision: str = ""
    snapshot_id: SafeId | None = None
    open_run_id: SafeId | None = None
    undone: list[UndoneMessage] = []
    runs: int = 0
    pending: NodeMove | None = None


class FileChange(Frozen):
    """The difference of one file between two snapshots.

    Attributes:
        path: relative to the project.
        kind: `added`, `deleted`, `modified`, `mode` (its rights), or `kind`: a file became a
            folder or a link, or the other way round.
        diff: a unified diff without secrets; None where there is no text to show.
        note: what there is to be said instead.
    """

    path: str
    kind: str
    diff: str | None = None
    note: str = ""


class WorkspaceDiff(Frozen):
    """The differences of the files of a project between two snapshots.

    Attributes:
        before, after: the snapshots.
        changes: file by file.
        git: what of HEAD, the branch and the index differs.
        left_out: paths that one of the snapshots does not hold, each with the reason.
    """

    before: SafeId
    after: SafeId
    changes: list[FileChange] = []
    git: list[str] = []
    left_out: list[str] = []


class SwitchResult(Frozen):
    """The place where a session continues, and the outcome for the files of its project.

    Attributes:
        session: the session as it is now; of a fork, the new one.
        node_id: the active node; None is the beginning of the session.
        message: of an undo, the message that was taken back.
        restored: paths that were written, relative to the project.
        deleted: paths that were removed.
        left_out: paths that no snapshot holds, each with the reason.
        refused: paths that were left as they are, each with the reason.
        moved_aside: files that no snapshot holds and that were in the way: where they are now.
        snapshot_before: the state the files were in; None if they were not touched.
        git: what of HEAD, the branch and the index differs from then: these are left alone.
        remarks: what else the user should know, in whole sentences.
    """

    session: SessionRecord
    node_id: SafeId | None
    message: str | None = None
    restored: list[str] = []
    deleted: list[str] = []
    left_out: list[str] = []
    refused: list[str] = []
    moved_aside: list[str] = []
    snapshot_before: SafeId | None = None
    git: list[str] = []
    remarks: list[str] = []

    @property
    def session_id(self) -> str:
        """Id of the session."""
        return self.session.session_id

    @property
    def active_node_id(self) -> str | None:
        """The same as `node_id`."""
        return self.node_id

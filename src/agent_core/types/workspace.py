"""A session's record of its project's files: the snapshots that nodes name."""

from agent_core.types.content import Frozen, SafeId
from agent_core.types.records import SessionRecord


class UndoneMessage(Frozen):
    """A state that `redo` returns to.

    Attributes:
        at: the active node after the undo; None is the beginning of the session.
        node_id: the active node before it.
        runs: number of runs that users had started in the session: after one more there is no redo.
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


class FilesMove(Frozen):
    """The snapshots between which the files move when a session continues elsewhere.

    Attributes:
        target: the state to restore: the state before, with changes reverted or made again.
        before: the state before.
        git: the snapshot that recorded the repository's state at that time.
    """

    target: SafeId
    before: SafeId
    git: SafeId


class NodeMove(Frozen):
    """A session's continuation from another node, together with its files.

    Attributes:
        node_id: the new active node; None is the beginning.
        folder: the project.
        files: the move of the files; None if they are left alone.
        known: the snapshot that matches the session's files from then on.
        undone: the messages that can be redone from then on.
        is_undo: the first of these is undone by this move.
        runs: number of runs that users had started when it began; newer moves use `revision`.
        revision: revision of the state that it was decided on; on another one it is refused.
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
    """The state of a session, and its record of its project's files.

    Attributes:
        snapshot_id: the snapshot in which the session has left the files, as far as recorded.
        open_run_id: the run that has begun to change them, and has not ended by itself: differences
            from the snapshot count as its own, too.
        undone: the messages that can be redone, the last one first.
        runs: number of runs that users have started in the session.
        pending: a move whose files are being restored, perhaps by a process that has died.
        active_node_id: the node from which the session continues.
        revision: a text that changes with each move and each run of the session.
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
        kind: `added`, `deleted`, `modified`, `mode` (its permissions), or `kind`: a file became a
            folder or a link, or the other way round.
        diff: a unified diff without secrets; None if there is no text to show.
        note: a description instead of the diff.
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
        git: the differences of HEAD, the branch and the index.
        left_out: paths that one of the snapshots does not hold, each with the reason.
    """

    before: SafeId
    after: SafeId
    changes: list[FileChange] = []
    git: list[str] = []
    left_out: list[str] = []


class UndoState(Frozen):
    """The moves that are possible in a session now.

    Attributes:
        can_undo: a message of the user can be reverted.
        can_redo: a message was reverted here, and can be restored.
    """

    can_undo: bool = False
    can_redo: bool = False


class SwitchResult(Frozen):
    """The place where a session continues, and the outcome for the files of its project.

    Attributes:
        session: the session as it is now; for a fork, the new one.
        node_id: the active node; None is the beginning of the session.
        message: the message that an undo reverted, without attached content.
        restored: paths that were written, relative to the project.
        deleted: paths that were removed.
        left_out: paths that no snapshot holds, each with the reason.
        refused: paths that were not changed, each with the reason.
        moved_aside: new paths of files that were in the way and that no snapshot holds.
        snapshot_before: the snapshot of the files before; None if they were not touched.
        git: the differences of HEAD, the branch and the index from that time, which are left alone.
        remarks: anything else the user should know, in whole sentences.
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

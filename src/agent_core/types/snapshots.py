"""Notes of snapshots: which node names one, what a run has changed, and where a copy begins."""

from collections.abc import Sequence

from msgspec import Struct


class SnapshotNote(Struct, frozen=True, kw_only=True):
    """Makes a node name the snapshot that was just recorded.

    Attributes:
        folder: the project of the snapshot.
        run_id: the user's run that recorded it; None between runs.
        is_begin: the run has caused none of the differences from the snapshot before it.
        is_last: the run changes nothing after it, unless it records that again.
        epoch: the session's epoch when the run was opened; an earlier owner's note is refused.
    """

    session_id: str
    node_id: str
    folder: str
    snapshot_id: str
    run_id: str | None = None
    is_begin: bool = False
    is_last: bool = False
    epoch: int | None = None


class RecordedChanges(Struct, frozen=True, kw_only=True):
    """The changes of a run to the files of its project.

    Attributes:
        known: the session's known snapshot of the files before.
        spans: snapshots before and after; a run that waited for an answer has several.
    """

    known: str
    spans: Sequence[tuple[str, str]]


class SessionFork(Struct, frozen=True, kw_only=True):
    """A new session that begins with the history of another one.

    Attributes:
        session_id, node_id: the place where it branches off.
        new_session_id: id of the new session.
        folder: the copy of the project that it works in.
        snapshot_id: the snapshot that matches the files of the copy.
        place: place of its files, if sessions have places.
    """

    session_id: str
    node_id: str
    new_session_id: str
    folder: str
    snapshot_id: str | None = None
    place: str | None = None

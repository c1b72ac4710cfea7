"""The snapshots of a session whose files every machine can have: each is sent when it is recorded.

What a machine knows of a snapshot stands in the database, its objects in packs that are blobs. The
packs of a snapshot are those of the one before, and what is new; of many small ones the last are
written anew as one, so that there are never many.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from agent_core.blobs.base import blob_of
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_binary

if TYPE_CHECKING:
    from agent_core.snapshots.records import Snapshot
    from agent_core.snapshots.store import SnapshotStore
    from agent_core.storage.postgres.blobs import PostgresBlobs

_MANY_PACKS = 16


class SentPack(NamedTuple):
    """A pack of a snapshot.

    Attributes:
        blob: its digest.
        tree: the root folder, in hex, that this pack and those before it hold all of; or nothing.
    """

    blob: str
    size_bytes: int
    tree: str


class SharedSnapshots:
    """Sends and fetches the snapshots of one session. Every method blocks: call it in a thread.

    Args:
        session_id: whose they are.
        blobs: what all machines reach.
        local: the snapshots of this machine.
    """

    def __init__(self, session_id: str, blobs: "PostgresBlobs", local: "SnapshotStore") -> None:
        self._session_id = session_id
        self._blobs = blobs
        self._local = local

    def send(self, snapshot: "Snapshot") -> None:
        """Let other machines have a snapshot that was recorded here; only what is new is sent.

        Raises:
            StorageError: it cannot be read here, or not be kept there.
        """
        session_id, snapshot_id = self._session_id, snapshot.snapshot_id
        if self._blobs.shared_snapshot(session_id, snapshot_id) is not None:
            return
        last = self._blobs.last_shared(session_id)
        packs = _without_small(_decoded(last[1])[1]) if last else []
        beyond = packs[-1].tree if packs else ""
        new: list[SentPack] = []
        with closing(self._local.packed(snapshot_id, beyond=beyond or None)) as files:
            for path in files:
                blob = blob_of(path)
                new.append(SentPack(blob.digest, blob.size_bytes, beyond))
                self._blobs.require_room(sum(pack.size_bytes for pack in new))
                with open_binary(path) as file:
                    self._blobs.keep(blob, file, session_id=session_id, used_by=snapshot_id)
        if new:
            new[-1] = new[-1]._replace(tree=snapshot.tree)
        packs += new
        self._blobs.share_snapshot(
            session_id,
            snapshot_id,
            about=json.dumps({"snapshot": self._local.about(snapshot_id), "packs": packs}),
            blobs=[pack.blob for pack in packs],
        )

    def fetch(self, snapshot_id: str) -> None:
        """Have a snapshot of the session on this machine; what is here already is not read again.

        Raises:
            StorageError: the session has none of this id; it is damaged, or cannot be read.
        """
        if self._local.is_whole(snapshot_id):
            return
        found = self._blobs.shared_snapshot(self._session_id, snapshot_id)
        if found is None:
            message = f"session {self._session_id} has no snapshot {snapshot_id[:80]!r}"
            details = {"reason": "no_snapshot"}
            raise StorageError(ErrorCode.STORAGE_ERROR, message, details=details)
        about, packs = _decoded(found)
        self._local.take(snapshot_id, about, {p.blob: self._blobs.pieces(p.blob) for p in packs})

    def latest(self) -> str | None:
        """The snapshot of the session that was sent last.

        Raises:
            StorageError: the database cannot be read.
        """
        last = self._blobs.last_shared(self._session_id)
        return last and last[0]


def _decoded(text: str) -> tuple[str, list[SentPack]]:
    found = json.loads(text)
    return found["snapshot"], [SentPack(*pack) for pack in found["packs"]]


def _without_small(packs: Sequence[SentPack]) -> list[SentPack]:
    """The packs that the next snapshot goes on with; the last ones of many are to be one again."""
    kept = list(packs)
    if len(kept) < _MANY_PACKS:
        return kept
    size = kept.pop().size_bytes
    while kept and kept[-1].size_bytes <= 2 * size:
        size += kept.pop().size_bytes
    return kept

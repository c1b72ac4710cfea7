"""Snapshots of a session whose files every machine can have: each is sent when it is recorded.

A machine finds the description of a snapshot in the database, and its objects in packs, which are
blobs. A snapshot uses the packs of the one before, plus a new one; when there are many, the last
small ones are rewritten as one, so that their number stays small.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from agent_core.blobs.base import blob_of
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_binary
from agent_core.text import quoted

if TYPE_CHECKING:
    from agent_core.snapshots.records import Snapshot
    from agent_core.snapshots.store import SnapshotStore
    from agent_core.storage.postgres.blobs import PostgresBlobs

_MANY_PACKS = 16


class SentPack(NamedTuple):
    """A pack of a snapshot.

    Attributes:
        blob: digest of the pack.
        tree: hex id of the root folder that this pack and the packs before it hold completely; or
            empty.
    """

    blob: str
    size_bytes: int
    tree: str


class SharedSnapshots:
    """Sends and fetches the snapshots of one session. Every method blocks: call it in a thread.

    Args:
        session_id: the session the snapshots belong to.
        blobs: storage that all machines reach.
        local: the snapshots of this machine.
    """

    def __init__(self, session_id: str, blobs: "PostgresBlobs", local: "SnapshotStore") -> None:
        self._session_id = session_id
        self._blobs = blobs
        self._local = local

    def send(self, snapshot: "Snapshot") -> None:
        """Send a snapshot that was recorded here to the other machines; only new objects are sent.

        Raises:
            StorageError: it cannot be read here, or not be stored there.
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
        """Fetch a snapshot of the session to this machine; objects already here are not read again.

        Raises:
            StorageError: the session has no such snapshot; it is damaged, or cannot be read.
        """
        if self._local.is_whole(snapshot_id):
            return
        found = self._blobs.shared_snapshot(self._session_id, snapshot_id)
        if found is None:
            message = f"session {self._session_id} has no snapshot {quoted(snapshot_id)}"
            details = {"reason": "no_snapshot"}
            raise StorageError(ErrorCode.STORAGE_ERROR, message, details=details)
        about, packs = _decoded(found)
        self._local.take(snapshot_id, about, {p.blob: self._blobs.pieces(p.blob) for p in packs})

    def latest(self) -> str | None:
        """Return the snapshot of the session that was sent last.

        Raises:
            StorageError: the database cannot be read.
        """
        last = self._blobs.last_shared(self._session_id)
        return last and last[0]


def _decoded(text: str) -> tuple[str, list[SentPack]]:
    found = json.loads(text)
    return found["snapshot"], [SentPack(*pack) for pack in found["packs"]]


def _without_small(packs: Sequence[SentPack]) -> list[SentPack]:
    """Return the packs that the next snapshot reuses; if there are many, the last small ones are
    left out, to be rewritten as one.
    """
    kept = list(packs)
    if len(kept) < _MANY_PACKS:
        return kept
    size = kept.pop().size_bytes
    while kept and kept[-1].size_bytes <= 2 * size:
        size += kept.pop().size_bytes
    return kept

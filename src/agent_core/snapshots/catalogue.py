"""The list of snapshots: one small file each, dated when it was last recorded."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agent_core.disk.folders import flush_folder, make_private
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_descriptor, read_bytes
from agent_core.snapshots.records import GitState, LeftOut, LeftOutReason, Snapshot
from agent_core.text import quoted
from agent_core.text.json_text import JsonObject

_ID = re.compile(r"snap_[0-9a-f]{32}").fullmatch
_VERSION = 1
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Catalogue:
    """The snapshots in one folder.

    Args:
        folder: the folder, created with its first snapshot.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[tuple[str, datetime]]:
        """Yield the ids, and when each was last recorded."""
        if not self._folder.exists():
            return
        for path in self._folder.iterdir():
            if _ID(path.name):
                yield path.name, datetime.fromtimestamp(path.lstat().st_mtime, UTC)

    def has(self, snapshot_id: str) -> bool:
        """Return whether there is a snapshot with this id."""
        return self._place(snapshot_id).exists()

    def get(self, snapshot_id: str) -> Snapshot:
        """Return a snapshot.

        Raises:
            StorageError: there is no snapshot with this id, or it is damaged.
        """
        place = self._place(snapshot_id)
        try:
            content = read_bytes(place)
            if _id_of(content) != snapshot_id:
                raise ValueError("its content does not match its name")
            return _decoded(snapshot_id, content)
        except FileNotFoundError as error:
            raise _no_snapshot(snapshot_id) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"the snapshot {snapshot_id} at {place} cannot be read: {error}"
            raise StorageError(ErrorCode.STORAGE_ERROR, message) from error

    def content(self, snapshot_id: str) -> bytes:
        """Return the record of a snapshot, in the form that `take` accepts.

        Raises:
            StorageError: there is no snapshot with this id, or it is damaged.
        """
        self.get(snapshot_id)
        return read_bytes(self._place(snapshot_id))

    def take(self, snapshot_id: str, content: bytes) -> None:
        """Keep the record of a snapshot from another machine.

        Raises:
            StorageError: it belongs to another snapshot, or is damaged.
            OSError: it cannot be written.
        """
        place = self._place(snapshot_id)
        if _id_of(content) != snapshot_id:
            message = f"the record of the snapshot {snapshot_id} belongs to another one"
            raise StorageError(ErrorCode.STORAGE_ERROR, message, details={"reason": "damaged"})
        write_whole(place, content)

    def keep(self, snapshot: Snapshot) -> Snapshot:
        """Keep a snapshot, or note that it was recorded again, and return it with its id.

        Raises:
            OSError: it cannot be written.
        """
        git = snapshot.git
        said: JsonObject = {
            "version": _VERSION,
            "tree": snapshot.tree,
            "files": snapshot.files,
            "size_bytes": snapshot.size_bytes,
            "left_out": [[each.path, each.reason] for each in snapshot.left_out],
            "git": git and [git.head, git.branch, git.is_index_clean],
        }
        if snapshot.mode is not None:
            said["mode"] = snapshot.mode
        content = json.dumps(said, separators=(",", ":")).encode()
        snapshot_id = _id_of(content)
        place = self._place(snapshot_id)
        try:
            os.utime(place)
        except FileNotFoundError:
            write_whole(place, content)
        return replace(snapshot, snapshot_id=snapshot_id)

    def remove(self, snapshot_id: str) -> None:
        """Remove a snapshot, if there is one.

        Raises:
            OSError: it cannot be removed.
        """
        self._place(snapshot_id).unlink(missing_ok=True)

    def _place(self, snapshot_id: str) -> Path:
        if not _ID(snapshot_id):
            raise _no_snapshot(snapshot_id)
        return self._folder / snapshot_id


def write_whole(place: Path, content: bytes | Iterable[bytes], *, flush: bool = True) -> None:
    """Write a private file, all or nothing.

    Args:
        place: its path; an existing file is replaced.
        content: the whole content, or its pieces.
        flush: return only when it is on the disk.

    Raises:
        OSError: it cannot be written.
    """
    make_private(place.parent)
    part = place.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(open_descriptor(part, _NEW, 0o600), "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if flush:
        flush_folder(place.parent)


def _id_of(content: bytes) -> str:
    return f"snap_{hashlib.sha256(content).hexdigest()[:32]}"


def _decoded(snapshot_id: str, content: bytes) -> Snapshot:
    found: dict[str, Any] = json.loads(content)
    git = found["git"]
    return Snapshot(
        snapshot_id=snapshot_id,
        tree=found["tree"],
        files=found["files"],
        size_bytes=found["size_bytes"],
        left_out=tuple(LeftOut(path, LeftOutReason(reason)) for path, reason in found["left_out"]),
        git=git and GitState(head=git[0], branch=git[1], is_index_clean=git[2]),
        mode=found.get("mode"),
    )


def _no_snapshot(snapshot_id: str) -> StorageError:
    return StorageError(
        ErrorCode.STORAGE_ERROR,
        f"there is no snapshot {quoted(snapshot_id)}; it may have been swept",
        details={"reason": "no_snapshot"},
    )

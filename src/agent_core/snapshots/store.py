"""The snapshots of all workspaces, in one folder that several processes share.

lock                what records or reads holds it together, what sweeps holds it alone
generation          another text after each sweep that removed objects
packs/              the objects: files, folders, lists of pieces
snapshots/<id>      one JSON file per snapshot; its time is that of its last recording
projects/<key>/     per workspace: a lock, and what the last recording found
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

from agent_core.disk.folders import flush_folder, make_private, open_folder
from agent_core.errors import ErrorCode, StorageError
from agent_core.snapshots.contents import pieces_of
from agent_core.snapshots.exclusions import Exclusions
from agent_core.snapshots.locks import locked
from agent_core.snapshots.packs import Packs
from agent_core.snapshots.records import (
    Change,
    GitState,
    LeftOut,
    LeftOutReason,
    Snapshot,
    SnapshotSettings,
    StoppedError,
    TreeEntry,
)
from agent_core.snapshots.stat_cache import FolderRecord, load, save
from agent_core.snapshots.trees import changes_between
from agent_core.snapshots.walk import OPEN_FOLDER, Walk

_ID = re.compile(r"snap_[0-9a-f]{32}").fullmatch
_VERSION = 1
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DEFAULTS = SnapshotSettings()


class SnapshotStore:
    """Records workspaces and brings them back. Every method blocks: call it in a thread.

    Args:
        folder: where everything is kept; it is made if it is missing.
        own: folders of the program, which no snapshot holds wherever they are.
    """

    def __init__(self, folder: Path, *, own: Iterable[Path] = ()) -> None:
        self._folder = folder.resolve()
        self._own = tuple(path.resolve() for path in (folder, *own))

    def record(
        self,
        root: Path,
        *,
        settings: SnapshotSettings = _DEFAULTS,
        stop: Event | None = None,
    ) -> Snapshot:
        """Record the workspace as it is now; an unchanged file costs one `lstat`.

        Args:
            root: the workspace.
            settings: what is left out.
            stop: when it is set, the work ends between two files.

        Raises:
            TooManyFilesError: there is no snapshot of so many files.
            StoppedError: it was asked to stop.
            StorageError: the workspace cannot be read, or the store cannot be written.
        """
        root = root.resolve()
        check = _check_of(stop)
        with self._working(check) as packs, self._project(root, check) as project:
            return self._record(root, project, packs, settings=settings, check=check)

    def get(self, snapshot_id: str) -> Snapshot:
        """What is known of a snapshot.

        Raises:
            StorageError: there is none of this id, or it is damaged.
        """
        place = self._place_of(snapshot_id)
        try:
            return _snapshot_of(snapshot_id, place.read_bytes())
        except FileNotFoundError as error:
            raise _no_snapshot(snapshot_id) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"the snapshot {snapshot_id} at {place} cannot be read: {error}"
            raise StorageError(ErrorCode.STORAGE_ERROR, message) from error

    def diff(self, before: str, after: str) -> list[Change]:
        """What differs between two snapshots, a folder before what is in it.

        Raises:
            StorageError: one of them is missing or damaged.
        """
        trees = bytes.fromhex(self.get(before).tree), bytes.fromhex(self.get(after).tree)
        with self._working() as packs:
            return list(changes_between(packs, *trees))

    def read(self, entry: TreeEntry) -> bytes:
        """What is in a recorded file.

        Raises:
            StorageError: it is missing or damaged.
        """
        with self._working() as packs:
            return b"".join(pieces_of(packs, entry))

    @contextmanager
    def _working(self, check: Callable[[], None] = lambda: None) -> Generator[Packs]:
        """The packs, which no sweep changes meanwhile."""
        with _explained(self._folder):
            make_private(self._folder)
            lock = locked(self._folder / "lock", check=check, shared=True)
            with lock, Packs(self._folder / "packs") as packs:
                yield packs

    @contextmanager
    def _project(self, root: Path, check: Callable[[], None]) -> Generator[Path]:
        """The folder about a workspace, for this process alone."""
        key = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        folder = self._folder / "projects" / key
        with _explained(folder):
            make_private(folder)
        with locked(folder / "lock", check=check):
            yield folder

    def _record(
        self,
        root: Path,
        project: Path,
        packs: Packs,
        *,
        settings: SnapshotSettings,
        check: Callable[[], None],
    ) -> Snapshot:
        about, known = load(project / "known")
        exclusions = Exclusions(settings.exclude)
        own = {
            os.fsencode(path.relative_to(root)) for path in self._own if path.is_relative_to(root)
        }
        said = _said(self._generation(), settings, exclusions, own)
        walk = Walk(
            root,
            packs,
            settings=settings,
            exclusions=exclusions,
            own=own,
            known=known,
            is_same_scope=about == said,
            check=check,
        )
        with open_folder(root) as place:
            top = os.open(".", OPEN_FOLDER, dir_fd=place)
            try:
                tree = walk.record(top)
            finally:
                os.close(top)
        packs.commit()
        if not walk.is_settled or about != said:
            with suppress(OSError):  # the next walk reads again what is not written here
                save(project / "known", said, walk.records)
        return self._named(tree, walk, git=None)

    def _named(self, tree: FolderRecord, walk: Walk, *, git: GitState | None) -> Snapshot:
        """The snapshot of a walk, on the disk."""
        left_out = sorted(walk.left_out(), key=lambda each: each.path)
        content = _encoded(
            {
                "version": _VERSION,
                "tree": tree.digest.hex(),
                "files": walk.files,
                "size_bytes": sum(record.size_bytes for record in walk.records.values()),
                "left_out": [[each.path, each.reason] for each in left_out],
                "git": git and [git.head, git.branch, git.is_index_clean],
            }
        )
        snapshot_id = f"snap_{hashlib.sha256(content).hexdigest()[:32]}"
        place = self._place_of(snapshot_id)
        try:
            os.utime(place)
        except FileNotFoundError:
            write_whole(place, content)
        return _snapshot_of(snapshot_id, content)

    def _place_of(self, snapshot_id: str) -> Path:
        if not _ID(snapshot_id):
            raise _no_snapshot(snapshot_id)
        return self._folder / "snapshots" / snapshot_id

    def _generation(self) -> str:
        try:
            return (self._folder / "generation").read_text(encoding="ascii")
        except FileNotFoundError:
            return ""


def write_whole(place: Path, content: bytes) -> None:
    """Write a private file, whole or not at all, and flush it.

    Raises:
        OSError: it cannot be written.
    """
    make_private(place.parent)
    part = place.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(part, _NEW, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    flush_folder(place.parent)


def _said(
    generation: str, settings: SnapshotSettings, exclusions: Exclusions, own: Iterable[bytes]
) -> bytes:
    """What the records of a walk depend on."""
    return _encoded(
        {
            "generation": generation,
            "exclude": settings.exclude,
            "max_file_bytes": settings.max_file_bytes,
            "tracked": sorted(map(os.fsdecode, exclusions.tracked)),
            "own": sorted(map(os.fsdecode, own)),
        }
    )


def _snapshot_of(snapshot_id: str, content: bytes) -> Snapshot:
    found: dict[str, Any] = json.loads(content)
    git = found["git"]
    return Snapshot(
        snapshot_id=snapshot_id,
        tree=found["tree"],
        files=found["files"],
        size_bytes=found["size_bytes"],
        left_out=tuple(LeftOut(path, LeftOutReason(reason)) for path, reason in found["left_out"]),
        git=git and GitState(head=git[0], branch=git[1], is_index_clean=git[2]),
    )


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _check_of(stop: Event | None) -> Callable[[], None]:
    def check() -> None:
        if stop is not None and stop.is_set():
            raise StoppedError

    return check


@contextmanager
def _explained(place: Path) -> Generator[None]:
    """Raise what an `OSError` means.

    Raises:
        StorageError: instead of the `OSError`.
    """
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else place
        raise StorageError(
            ErrorCode.STORAGE_ERROR,
            f"the snapshots cannot go on at {where}: {error.strerror};"
            " check the space, the limits and the permissions there",
            details={"path": str(where)},
        ) from error


def _no_snapshot(snapshot_id: str) -> StorageError:
    return StorageError(
        ErrorCode.STORAGE_ERROR,
        f"there is no snapshot {snapshot_id[:80]!r}; it may have been swept",
        details={"reason": "no_snapshot"},
    )

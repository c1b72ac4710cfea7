"""The results of a recording, a comparison and a restore."""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from agent_core.errors import ErrorCode, StorageError
from agent_core.text import plural

ROOT = "."
"""The path of the workspace itself."""

DEFAULT_EXCLUDE = (
    "node_modules",
    ".venv",
    "venv",
    "target",
    "dist",
    "build",
    "__pycache__",
    ".cache",
)


class SnapshotSettings(Struct, frozen=True, kw_only=True):
    """Settings of what is recorded of a workspace.

    Attributes:
        exclude: patterns as in a `.gitignore`; files that git tracks are recorded anyway.
        max_files: a workspace with more files and links has no snapshots.
        max_file_bytes: larger files are left out.
        kept: paths that are recorded although a pattern excludes them.
    """

    exclude: tuple[str, ...] = DEFAULT_EXCLUDE
    max_files: int = 200_000
    max_file_bytes: int = 104_857_600
    kept: tuple[str, ...] = ()


class SparedFolder(Struct, frozen=True):
    """A folder whose entries a merge leaves as they are, except one.

    Attributes:
        folder: its path in the workspace.
        but: the name of the entry that is merged.
    """

    folder: str
    but: str

    def spares(self, path: bytes) -> bool:
        """Return whether a path is an entry of the folder that stays as it is."""
        above, _, name = path.rpartition(b"/")
        return above == os.fsencode(self.folder) and name != os.fsencode(self.but)


class LeftOutReason(StrEnum):
    """The reason why a snapshot does not hold something as it is."""

    EXCLUDED = "excluded"
    PROGRAM_HOME = "program_home"
    TOO_LARGE = "too_large"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"
    UNREADABLE = "unreadable"
    TOO_DEEP = "too_deep"
    HARD_LINK = "hard_link"
    """Recorded, and restored as a file of its own."""
    CHANGING = "changing"
    """Changed each time it was read; the last content read is recorded."""
    CLOSED = "closed"
    """Recorded, but opened for it: its owner may not read it."""

    @property
    def is_recorded(self) -> bool:
        """True if a restore brings it back in some way."""
        return self in {LeftOutReason.HARD_LINK, LeftOutReason.CHANGING, LeftOutReason.CLOSED}


class LeftOut(Struct, frozen=True):
    """A path, relative to the workspace, that a snapshot does not hold as it is."""

    path: str
    reason: LeftOutReason


class GitState(Struct, frozen=True, kw_only=True):
    """The state of the workspace's own repository; a restore does not change it.

    Attributes:
        head: the commit; None before the first one, or if it cannot be read.
        branch: None while no branch is checked out.
        is_index_clean: nothing is staged; None if this cannot be read from its files.
    """

    head: str | None
    branch: str | None
    is_index_clean: bool | None


class Snapshot(Struct, frozen=True, kw_only=True):
    """A recorded state of a workspace. The same state has the same id.

    Attributes:
        tree: hex SHA-256 of the root folder.
        files: the number of files and links.
        size_bytes: the sum of their sizes.
        git: None without a repository.
        mode: the permission bits of the workspace itself; None if they were not recorded.
    """

    snapshot_id: str
    tree: str
    files: int
    size_bytes: int
    left_out: tuple[LeftOut, ...] = ()
    git: GitState | None = None
    mode: int | None = None

    def left_out_with(self, reason: LeftOutReason) -> set[str]:
        """Return the paths that are left out for this reason."""
        return {each.path for each in self.left_out if each.reason is reason}


class FileType(StrEnum):
    """The kind of an entry of a folder. Links are never followed."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"


class TreeEntry(Struct, frozen=True):
    """One entry of a recorded folder.

    Attributes:
        mode: the permission bits.
        size: the size of a file in bytes.
        content: the digest of a file or folder, or the target of a link.
        is_chunked: the content is a list of the digests of the file's pieces.
    """

    kind: FileType
    mode: int
    size: int
    content: bytes
    is_chunked: bool = False


class ChangeKind(StrEnum):
    """The way in which a path differs between two snapshots."""

    ADDED = "added"
    DELETED = "deleted"
    MODIFIED = "modified"
    MODE = "mode"
    KIND = "kind"


class TreeChange(Struct, frozen=True):
    """A path, relative to the workspace, that differs between two snapshots."""

    path: str
    kind: ChangeKind
    before: TreeEntry | None
    after: TreeEntry | None


class MovedAside(Struct, frozen=True):
    """A file or folder that no snapshot holds and that was in the way, and its new name."""

    path: str
    moved_to: str


class Refusal(StrEnum):
    """The reason why a restore leaves a path unchanged."""

    CHANGED = "changed by others"
    IN_THE_WAY = "no snapshot can hold what is there now"
    NOT_PERMITTED = "not permitted"
    DAMAGED = "its recorded contents are missing or damaged"


class RestoreResult(Struct, frozen=True, kw_only=True):
    """The outcome of a restore. If paths were refused before it began, it did nothing.

    Attributes:
        restored: paths that are again as in the snapshot.
        deleted: removed paths, which the snapshot does not have.
        left_out: paths that neither snapshot holds, which stayed unchanged.
        refused: paths that stayed unchanged, and why.
        before: the state just before the restore.
        settings: settings that record everything the snapshot holds.
    """

    restored: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    refused: Mapping[str, Refusal] = {}
    moved_aside: tuple[MovedAside, ...] = ()
    before: Snapshot
    settings: SnapshotSettings


class CopyResult(Struct, frozen=True):
    """The differences between a copy of a workspace and the original.

    Attributes:
        left_out: what was not copied.
        refused: paths that differ from the snapshot, and why.
    """

    left_out: tuple[LeftOut, ...] = ()
    refused: Mapping[str, Refusal] = {}


class Damage(Struct, frozen=True):
    """A path of a snapshot that cannot be restored."""

    path: str
    problem: str


class TooManyFilesError(StorageError):
    """The workspace has more files than a snapshot may hold."""

    def __init__(self, root: Path, limit: int) -> None:
        super().__init__(
            ErrorCode.STORAGE_ERROR,
            f"{root} has more than {plural(limit, 'file')}, so there are no snapshots of it;"
            " exclude folders with `workspace.exclude`, or raise `workspace.max_files`",
            details={"reason": "max_files", "max_files": limit, "path": str(root)},
        )


class StoppedError(StorageError):
    """The work ended because it was asked to stop."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.CANCELLED, "the work on the snapshot was stopped")

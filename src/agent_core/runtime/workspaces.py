"""Folders, on this machine, of sessions whose files every machine can have.

The snapshots in the blobs are the files of such a session. The folder is a copy: it is brought to
the latest snapshot when a run begins, and may be removed while no run works in it, which is when
its lock is free.
"""

import asyncio
import hashlib
import os
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from agent_core.config.paths import Setup
from agent_core.disk.folders import make_private, remove_tree
from agent_core.disk.locks import closing_lock, locked_if_free, try_lock
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_descriptor
from agent_core.runtime.project_files import FilesAlone, ProjectFiles
from agent_core.storage.store import SessionStore
from agent_core.text import quoted
from agent_core.types import SessionRecord
from agent_core.types.lanes import SNAPSHOT, own_place

if TYPE_CHECKING:
    from agent_core.runtime.fence import SessionLease
    from agent_core.storage.postgres.blobs import PostgresBlobs

_PLAIN_ID = re.compile(r"[A-Za-z0-9_:\-][A-Za-z0-9_.:\-]{0,127}").fullmatch
_DAY_S = 24 * 3600
_LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_WAIT_S = 0.02


class Workspaces:
    """The folders of sessions in the place `snapshot`, on this machine.

    Args:
        setup: the home and the settings; its project is the callers' folder, or one of these
            folders.
        store: store of the sessions.
        blobs: storage of the snapshots; None if the store serves one machine.
        key: key of the database that names the snapshots.

    Attributes:
        place: the place of sessions whose files are on this machine; None where no place is stored.
    """

    def __init__(
        self, setup: Setup, store: SessionStore, blobs: "PostgresBlobs | None", *, key: str
    ) -> None:
        self._setup = setup
        self._key = key
        self._store = store
        self._blobs = blobs
        self._here = own_place(setup.config.worker.host_id)
        self.place = None if blobs is None else self._here

    def project_files(self) -> ProjectFiles:
        """Return the files of the project, or of the session whose folder the project is."""
        if self._blobs is not None and self._setup.is_workspace:
            return self._of_session(self._setup.project.name)
        return ProjectFiles(self._setup, self._key)

    def files_of(self, session: SessionRecord) -> ProjectFiles:
        """Return the files of a session.

        Raises:
            StorageError: `session_elsewhere`: they are on another host.
        """
        if session.place == SNAPSHOT:
            return self._of_session(session.session_id)
        self.require_here(session)
        own = self.project_files()
        return (
            own
            if session.cwd in {"", own.folder}
            else ProjectFiles(self._setup, self._key, Path(session.cwd))
        )

    @property
    def sees_all(self) -> bool:
        """True if the store shows the sessions of all tenants."""
        return self._setup.tenant is None

    def is_here(self, session: SessionRecord) -> bool:
        """Return whether this machine has the files of a session or all machines can have them."""
        return session.place in {None, SNAPSHOT, self._here}

    def require_here(self, session: SessionRecord) -> None:
        """Refuse a session whose files are on another host.

        Raises:
            StorageError: `session_elsewhere`, with the place in `details.place`.
        """
        if self.is_here(session):
            return
        host = (session.place or "").partition(":")[2]
        raise StorageError(
            ErrorCode.SESSION_ELSEWHERE,
            f"session {session.session_id} works in {session.cwd} on host {host}, and this is"
            f" {self._here.partition(':')[2]}; do it there, or leave its runs to the workers there",
            details={
                "session_id": session.session_id,
                "place": session.place,
                "cwd": session.cwd,
                "opened_from": self._here,
            },
        )

    async def begin(self, session_id: str) -> None:
        """Record the project as a new session's first snapshot, if every machine can have it.

        Call it before a run with the place `snapshot` is queued; an existing session has its files
        already.

        Raises:
            StorageError: there are too many files, or they cannot be read or sent.
        """
        session = await self._store.session(session_id)
        if session is not None and session.place is not None:
            return
        shared = self._of_session(session_id).shared
        if shared is not None and await asyncio.to_thread(shared.latest) is None:
            snapshot = await ProjectFiles(self._setup, self._key).record()
            await asyncio.to_thread(shared.send, snapshot)

    @asynccontextmanager
    async def use(self, session: SessionRecord) -> AsyncGenerator[Path]:
        """Yield the folder in which a run of the session is executed on this machine.

        A missing folder is created, while no other process works in it. When the run begins, the
        folder is brought to the session's latest snapshot, and the run's changes are recorded and
        sent before its end is stored (`bring_up_to_date` and `recording` do this inside the block).

        Raises:
            StorageError: the session can have no folder here.
            OSError: the folder cannot be made.
        """
        files = self._of_session(session.session_id)
        await asyncio.to_thread(self._forget_unused)
        path = await asyncio.to_thread(self._lock_of, files.root)
        with closing_lock(open_descriptor(path, _LOCK, 0o600)) as lock:
            while True:
                is_alone = try_lock(lock, shared=False)
                is_there = await asyncio.to_thread(files.root.is_dir)
                if is_alone and not is_there:
                    with suppress(StorageError):  # the run itself reports this, and fails
                        await bring_up_to_date(files, self._store)
                    await asyncio.to_thread(make_private, files.root)
                if try_lock(lock, shared=True) and await asyncio.to_thread(files.root.is_dir):
                    break
                await asyncio.sleep(_WAIT_S)
            yield files.root
            with suppress(OSError):
                os.utime(files.root)

    async def snapshots_in_use(self) -> set[str]:
        """Return every snapshot that a session needs, including other tenants' snapshots.

        Raises:
            StorageError: the snapshots cannot be listed.
        """
        if self._blobs is None or self._setup.tenant is None:
            return await self._store.snapshots_in_use()
        return await asyncio.to_thread(self._blobs.snapshots_in_use)

    def of_tenant(self, tenant: str, store: SessionStore) -> "Workspaces":
        """Return the workspaces of one tenant's sessions, through its view of the store."""
        setup = structs.replace(self._setup, tenant=tenant)
        return Workspaces(setup, store, self._blobs, key=self._key)

    async def require_snapshot(self, snapshot_id: str) -> None:
        """Refuse a snapshot that no session of this tenant names: it may belong to another tenant.

        Raises:
            StorageError: there is no such snapshot.
        """
        if self._setup.tenant is None:
            return
        if snapshot_id not in await self._store.snapshots_in_use():
            message = f"there is no snapshot {quoted(snapshot_id)}"
            details = {"reason": "no_snapshot"}
            raise StorageError(ErrorCode.STORAGE_ERROR, message, details=details)

    async def fork(self, session_id: str, fork_id: str) -> None:
        """Give a new fork of a session the snapshots of its original.

        Raises:
            StorageError: they cannot be stored.
        """
        if self._blobs is not None:
            await asyncio.to_thread(self._blobs.share_with_fork, session_id, fork_id)

    async def forget(self, session_id: str) -> None:
        """Remove the folder of a session that was deleted."""
        if self._blobs is not None and _PLAIN_ID(session_id):
            with suppress(OSError):  # it is removed when it is old
                await asyncio.to_thread(self._remove, self._setup.workspaces_dir / session_id)

    def _of_session(self, session_id: str) -> ProjectFiles:
        if self._blobs is None:
            message = f"the files of session {session_id} are in the blobs of a Postgres database"
            raise StorageError(ErrorCode.STORAGE_ERROR, message + ", and this store has none")
        if not _PLAIN_ID(session_id):
            message = f"the session {quoted(session_id)} cannot have its own folder"
            raise StorageError(ErrorCode.STORAGE_ERROR, message)
        root = self._setup.workspaces_dir / session_id
        return ProjectFiles(self._setup, self._key, root, session_id=session_id, blobs=self._blobs)

    def _forget_unused(self) -> None:
        """Remove the folders of sessions without a run here for as long as snapshots are kept."""
        before = time.time() - self._setup.config.workspace.keep_days * _DAY_S
        with suppress(FileNotFoundError), os.scandir(self._setup.workspaces_dir) as folders:
            for entry in folders:
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        self._remove(Path(entry.path))

    def _remove(self, folder: Path) -> None:
        """Remove a folder that no process works in."""
        with locked_if_free(self._lock_of(folder)) as is_free:
            if is_free:
                remove_tree(folder, keep=False)

    def _lock_of(self, folder: Path) -> Path:
        """Return the path of a folder's lock: shared for work, exclusive to make or remove it."""
        locks = self._setup.home / "snapshots" / "locks"
        make_private(locks)
        name = hashlib.sha256(b"in use: " + os.fsencode(folder)).hexdigest()
        return locks / name[:20]


async def bring_up_to_date(
    files: ProjectFiles, store: SessionStore, lease: "SessionLease | None" = None
) -> None:
    """Bring the files of a session to the state that its next run begins with.

    A folder that is a copy of the latest snapshot is made equal to it, whatever was left in it.
    Other files are left alone, except that a restore left half done by a dead process is rolled
    back. A process that has taken the run over waits until this is done, and a run that has lost
    its `lease` does not begin.

    Raises:
        StorageError: the session has no snapshot, or it cannot be fetched; a file cannot be
            written; `session_active`: another process has the session.
        OSError: the folder cannot be made.
    """
    if files.shared is not None:
        async with files.alone() as alone:
            if lease is not None:
                await lease.require()
            await alone.follow(await latest_snapshot(files, store))
    elif files.is_interrupted:
        async with files.alone() as alone:
            await _roll_back_interrupted(files, alone, store)


async def _roll_back_interrupted(
    files: ProjectFiles, alone: FilesAlone, store: SessionStore
) -> None:
    """Roll back the restore that a dead process left half done; a run does not wait for more."""
    await alone.recover()
    for session_id in await store.pending_moves(files.folder):
        move = (await store.workspace_state(session_id, files.folder)).pending
        if move is not None and move.files is not None:
            await alone.roll_back(move.files.before, move.files.target)
            await store.drop_move(session_id)
    await alone.moved()


async def latest_snapshot(files: ProjectFiles, store: SessionStore) -> str:
    """Return the latest snapshot of a session whose files every machine can have.

    A move that a dead process left half done is dropped.

    Raises:
        StorageError: the session has no snapshot.
    """
    session_id, shared = files.session_id or "", files.shared
    state = await store.workspace_state(session_id, files.folder)
    if state.pending is not None:
        await store.drop_move(session_id)
    found = state.snapshot_id
    if found is None and shared is not None:
        found = await asyncio.to_thread(shared.latest)
    if found is None:
        message = f"session {session_id} has no snapshot to begin with; start another one with"
        raise StorageError(ErrorCode.STORAGE_ERROR, f'{message} place="{SNAPSHOT}"')
    return found

"""Files of one project and their snapshots, as runs and sessions use them."""

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_core.aio import finish_uncancelled
from agent_core.config.paths import Setup, tasks_folder
from agent_core.disk.folders import is_due, make_private, mark_done
from agent_core.disk.locks import closing_lock, try_lock
from agent_core.disk.unfinished import MOVING, folder_about, is_interrupted
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.opening import is_folder, open_descriptor
from agent_core.text import readable_name
from agent_core.types.records import snapshot_folder

if TYPE_CHECKING:
    from agent_core.runtime.shared_snapshots import SharedSnapshots
    from agent_core.snapshots.records import (
        CopyResult,
        RestoreResult,
        Snapshot,
        SnapshotSettings,
        SparedFolder,
    )
    from agent_core.snapshots.store import SnapshotStore
    from agent_core.storage.postgres.blobs import PostgresBlobs

logger = logging.getLogger(__name__)

_LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_WAIT_S = 0.02
_NEVER = datetime.min.replace(tzinfo=UTC)
_DATABASE = ("", "-wal", "-shm", "-journal")


class ProjectFiles:
    """Records and restores the files of a project, in threads.

    Runs record while other work continues. A restore excludes everything else in all processes of
    this home, and recordings wait for it.

    Args:
        setup: the home and the settings.
        key: key of the database that names the snapshots.
        project: the resolved folder; by default the project of `setup`.
        session_id: the session whose snapshots are available on all machines; this folder is one
            copy of its files.
        blobs: store of these snapshots.
    """

    def __init__(
        self,
        setup: Setup,
        key: str,
        project: Path | None = None,
        *,
        session_id: str | None = None,
        blobs: "PostgresBlobs | None" = None,
    ) -> None:
        self.root = project or setup.project
        self.folder = str(self.root).encode("utf-8", "backslashreplace").decode()
        self.is_on = setup.takes_snapshots
        if session_id is not None:
            self.folder, self.is_on = snapshot_folder(session_id), True
        self.session_id = session_id
        self._blobs = blobs
        self._place = setup.home / "snapshots" / key
        self._swept = self._place / "swept"
        self._locks = setup.home / "snapshots" / "locks"
        self._setup = setup

    @property
    def has_any(self) -> bool:
        """True if a snapshot of this project was ever taken."""
        return is_folder(self._place)

    @property
    def is_interrupted(self) -> bool:
        """True if a process is restoring files here, or died while it did."""
        return is_interrupted(self._place.resolve(), self.root.resolve())

    @property
    def moving(self) -> Path:
        """Path of the file that exists while a session and its files move to another state."""
        return folder_about(self._place.resolve(), self.root.resolve()) / MOVING

    async def record(self, stop: threading.Event | None = None) -> "Snapshot":
        """Record the files as they are, once nothing is being restored.

        Raises:
            StorageError: there are too many files, or the recording was stopped.
            OSError: the snapshot cannot be written.
        """
        async with self._locked(shared=True, stop=stop):
            return await asyncio.to_thread(self.record_now, stop)

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator["FilesAlone"]:
        """Hold the exclusive lock on the files.

        Raises:
            OSError: the lock cannot be taken.
        """
        async with self._locked(shared=False):
            yield FilesAlone(self)

    async def fetch(self, *snapshot_ids: str) -> None:
        """Fetch these snapshots to this machine; only shared ones of a session may be missing.

        Raises:
            StorageError: a snapshot no longer exists, or is damaged.
        """
        if (shared := self.shared) is not None:
            await asyncio.to_thread(lambda: list(map(shared.fetch, snapshot_ids)))

    @asynccontextmanager
    async def unmoved(self) -> AsyncGenerator[None]:
        """Keep the files from being restored; others may still record.

        Raises:
            OSError: the lock cannot be taken.
        """
        async with self._locked(shared=True):
            yield

    async def copy_to(self, place: Path, snapshot_id: str | None) -> "CopyResult":
        """Copy the project as it was in a snapshot, plus the current files that no snapshot holds.

        Nothing may be restored meanwhile: see `unmoved`.

        Raises:
            StorageError: a file cannot be copied, or the snapshot is damaged; the partial copy is
                removed.
        """
        stop = threading.Event()
        copying = asyncio.create_task(
            asyncio.to_thread(
                self.store.copy_out,
                self.root,
                place,
                snapshot_id=snapshot_id,
                settings=self.settings,
                stop=stop,
            )
        )
        try:
            return await asyncio.shield(copying)
        finally:
            stop.set()  # a cancelled caller has the copy removed
            await asyncio.wait([copying])

    async def write_to(self, place: Path, snapshot_id: str) -> "CopyResult":
        """Write a snapshot that is available on every machine into a folder of the caller.

        Raises:
            StorageError: the snapshot no longer exists, or is damaged.
        """
        await self.fetch(snapshot_id)
        await finish_uncancelled(asyncio.to_thread(self.materialise, place, snapshot_id))
        from agent_core.snapshots.records import CopyResult  # noqa: PLC0415

        snapshot = await asyncio.to_thread(self.store.get, snapshot_id)
        return CopyResult(snapshot.left_out)

    @property
    def is_sweep_due(self) -> bool:
        """True if the last sweep was more than a day ago."""
        return is_due(self._swept)

    @asynccontextmanager
    async def none_alone(self) -> AsyncGenerator[bool]:
        """Keep the home's files from being restored; yields False during a restore.

        Raises:
            OSError: the locks cannot be read.
        """
        async with AsyncExitStack() as stack:
            is_free = True
            for path in self._locks.iterdir() if is_folder(self._locks) else ():
                opened = open_descriptor(path, _LOCK, 0o600)
                descriptor = stack.enter_context(closing_lock(opened))
                is_free = try_lock(descriptor, shared=True) and is_free
            yield is_free

    async def sweep(self, in_use: Collection[str], *, recorded_before: datetime) -> None:
        """Delete the snapshots that are not in use, except the latest one.

        A tenant cannot see what others use, and deletes nothing.

        Args:
            in_use: ids of the snapshots in use.
            recorded_before: only older snapshots are deleted: a new one may not be named yet.

        Raises:
            StorageError: they cannot be deleted now.
        """
        if self._setup.tenant is None:
            await asyncio.to_thread(self.store.sweep, in_use, recorded_before=recorded_before)
        mark_done(self._swept)

    async def bytes_held(self, groups: Mapping[str, Collection[str]]) -> dict[str, int]:
        """Return the bytes that only one group of snapshots needs, for each.

        Raises:
            StorageError: the snapshots cannot be read.
        """
        if not self.has_any:
            return {}
        return await asyncio.to_thread(self.store.bytes_held, groups)

    async def erase(
        self,
        snapshot_ids: Collection[str],
        find_used: Callable[[], Coroutine[Any, Any, Collection[str]]],
        *,
        recorded_before: datetime,
        wait_s: float,
    ) -> None:
        """Remove the snapshots of deleted sessions, with all that only they held.

        A tenant cannot see what others have just recorded, and removes nothing else.

        Args:
            snapshot_ids: the snapshots that the sessions named.
            find_used: finds the ids of the snapshots in use.
            recorded_before: other snapshots without a use are removed if they are older.
            wait_s: the seconds to wait for recordings and sweeps that are under way.

        Raises:
            StorageError: they cannot be removed now.
        """
        loop = asyncio.get_running_loop()

        def used() -> Collection[str]:
            return asyncio.run_coroutine_threadsafe(find_used(), loop).result(wait_s)

        await asyncio.to_thread(
            self.store.erase,
            snapshot_ids,
            used,
            recorded_before=_NEVER if self._setup.tenant is not None else recorded_before,
            wait_s=wait_s,
        )

    def materialise(self, root: Path, snapshot_id: str) -> None:
        """Make a folder match a snapshot, whatever it contains; blocks.

        Raises:
            StorageError: the snapshot is damaged, or a file cannot be written.
            OSError: the folder cannot be made.
        """
        make_private(root)
        os.utime(root)  # marks it as in use
        done = self.store.restore(root, snapshot_id, force=True, settings=self.settings)
        self.settings = done.settings

    @cached_property
    def store(self) -> "SnapshotStore":
        """The store of the snapshots; it never records files of the program itself."""
        # Few runs change files; the first one in a process that does loads this.
        from agent_core.snapshots.store import SnapshotStore  # noqa: PLC0415

        database = self._setup.session_db
        files = [database.with_name(database.name + end) for end in _DATABASE]
        return SnapshotStore(self._place, own=(self._setup.home, *files))

    @cached_property
    def shared(self) -> "SharedSnapshots | None":
        """Sends and fetches snapshots; None if they belong to this machine alone."""
        if self.session_id is None or self._blobs is None:
            return None
        from agent_core.runtime.shared_snapshots import SharedSnapshots  # noqa: PLC0415

        return SharedSnapshots(self.session_id, self._blobs, self.store)

    @cached_property
    def settings(self) -> "SnapshotSettings":
        """The settings that select the recorded files."""
        from agent_core.snapshots.records import SnapshotSettings  # noqa: PLC0415

        asked = self._setup.config.workspace
        return SnapshotSettings(
            exclude=tuple(asked.exclude),
            max_files=asked.max_files,
            max_file_bytes=asked.max_file_bytes,
        )

    def spared_logs(self, session_id: str) -> "SparedFolder | None":
        """Return the Task logs of all other sessions; None if no logs are in the project."""
        from agent_core.snapshots.records import SparedFolder  # noqa: PLC0415

        logs = self.tasks_dir(self.root)
        is_inside = logs != self.root and logs.is_relative_to(self.root)
        folder = str(logs.relative_to(self.root)) if is_inside else ""
        return SparedFolder(folder, session_id) if is_inside else None

    def tasks_dir(self, project: Path) -> Path:
        """Return the folder of the Task logs of a project."""
        setup = self._setup
        return tasks_folder(setup.config.task.wal_dir, home=setup.home, project=project)

    def record_now(
        self, stop: threading.Event | None = None, *, spans: Sequence[tuple[str, str]] = ()
    ) -> "Snapshot":
        """`record` for a caller that has the lock; blocks."""
        snapshot = self.store.record(self.root, spans=spans, settings=self.settings, stop=stop)
        if self.shared is not None:
            self.shared.send(snapshot)
        return snapshot

    @asynccontextmanager
    async def _locked(
        self, *, shared: bool, stop: threading.Event | None = None
    ) -> AsyncGenerator[None]:
        """Hold the project's lock; no thread is blocked while waiting for it."""
        make_private(self._locks)
        name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:20]
        with closing_lock(open_descriptor(self._locks / name, _LOCK, 0o600)) as descriptor:
            while not try_lock(descriptor, shared=shared):
                if stop is not None and stop.is_set():
                    message = "the recording was stopped before it began"
                    raise StorageError(ErrorCode.CANCELLED, message)
                await asyncio.sleep(_WAIT_S)
            yield


class FilesAlone:
    """The files of a project while nothing else records or restores them."""

    def __init__(self, files: ProjectFiles) -> None:
        self._files = files

    async def record(self, spans: Sequence[tuple[str, str]]) -> str:
        """Record the current files for a comparison with snapshots; return the new id.

        Raises:
            StorageError: there are too many files; a snapshot no longer exists, or is damaged.
            OSError: the snapshot cannot be written.
        """
        files = self._files
        await files.fetch(*{each for span in spans for each in span})
        return (await asyncio.to_thread(files.record_now, spans=spans)).snapshot_id

    async def merge(
        self, base: str, target: str, now: str, *, session_id: str
    ) -> tuple[str, list[str]]:
        """Apply the difference between two snapshots to `now`; return the result and conflicts.

        The Task logs of other sessions are not the session's: they stay as they are.

        Raises:
            StorageError: a snapshot no longer exists, or is damaged.
        """
        files = self._files
        await files.fetch(base, target, now)
        spared = files.spared_logs(session_id)
        merged, conflicts = await asyncio.to_thread(
            files.store.merge, base, target, now, spared=spared
        )
        await self._send(merged)
        return merged.snapshot_id, conflicts

    async def restore(self, target: str, *, base: str | None, force: bool) -> "RestoreResult":
        """Restore the files from a snapshot; a file that differs from `base` is refused.

        Raises:
            StorageError: a snapshot no longer exists or is damaged; a file cannot be written.
        """
        files = self._files
        await files.fetch(target, *([base] if base else ()))
        restored = await asyncio.to_thread(
            lambda: files.store.restore(
                files.root, target, base=base, force=force, settings=files.settings
            )
        )
        if files.shared is not None:
            files.settings = restored.settings
        await self._send(restored.before)
        return restored

    async def follow(self, snapshot_id: str) -> None:
        """Bring the files to a snapshot of their session; other machines do not see this.

        Raises:
            StorageError: the snapshot no longer exists or is damaged; a file cannot be written.
            OSError: the folder cannot be made.
        """
        await self._files.fetch(snapshot_id)
        await asyncio.to_thread(self._files.materialise, self._files.root, snapshot_id)

    async def differing(self, before: str, after: str) -> set[str]:
        """Return the paths that differ between two snapshots.

        Raises:
            StorageError: a snapshot no longer exists, or is damaged.
        """
        await self._files.fetch(before, after)
        changes = await asyncio.to_thread(self._files.store.diff, before, after)
        return {change.path for change in changes}

    async def snapshot(self, snapshot_id: str) -> "Snapshot":
        """Return a snapshot.

        Raises:
            StorageError: the snapshot no longer exists.
        """
        await self._files.fetch(snapshot_id)
        return await asyncio.to_thread(self._files.store.get, snapshot_id)

    async def recover(self) -> None:
        """Finish or roll back a restore that a dead process left half done."""
        await asyncio.to_thread(lambda: self._files.store.recover(self._files.root))

    async def roll_back(self, before: str, target: str) -> None:
        """Bring the files back to their state before a restore that failed.

        Files that others have changed since stay as they are, and their old state stays in the
        snapshot.
        """
        try:
            refused = (await self.restore(before, base=target, force=False)).refused
        except AgentCoreError as error:
            logger.warning("%s is not as snapshot %s has it: %s", self._files.root, before, error)
            return
        if refused:
            paths = ", ".join(map(readable_name, refused))
            message = "%s: these files are not as snapshot %s has them: %s"
            logger.warning(message, self._files.root, before, paths)

    @asynccontextmanager
    async def moving(self) -> AsyncGenerator[None]:
        """Mark, for recovery, that a session and its files are moving to another state.

        Raises:
            OSError: the mark cannot be written.
        """
        note = self._files.moving
        await asyncio.to_thread(note.touch, 0o600)
        yield
        await self.moved()

    async def moved(self) -> None:
        """Remove the mark: nothing is half done."""
        await asyncio.to_thread(self._files.moving.unlink, missing_ok=True)

    async def _send(self, snapshot: "Snapshot") -> None:
        """Send a snapshot that the session may name, so that other machines can fetch it."""
        if self._files.shared is not None:
            await asyncio.to_thread(self._files.shared.send, snapshot)

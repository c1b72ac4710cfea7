"""Copies whole sessions between databases: contents first, then all rows in one transaction.

A copy that is killed leaves no session in the target; the contents it left are reused by the next
copy.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from agent_core.artifacts import files
from agent_core.artifacts.blobs import BLOB_PATH
from agent_core.blobs.base import spooled
from agent_core.config.databases import check_database_url
from agent_core.config.paths import Setup, database_key, tasks_folder
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, StorageError
from agent_core.opening import is_folder, read_bytes
from agent_core.runtime.ids import resolve_prefix, spellings_of
from agent_core.runtime.shared_snapshots import SharedSnapshots
from agent_core.runtime.stores import open_blobs
from agent_core.snapshots.catalogue import write_whole
from agent_core.snapshots.store import SnapshotStore
from agent_core.storage.copying import (
    Changes,
    CopyEnd,
    SqliteEnd,
    copy_rows,
    has_session,
    has_tasks,
    require_idle,
    session_ids,
    snapshots_of,
)
from agent_core.storage.health import examine
from agent_core.storage.owners import Owner
from agent_core.storage.sql import needing_postgres
from agent_core.types.lanes import own_place

if TYPE_CHECKING:
    from agent_core.storage.postgres.blobs import PostgresBlobs

DATABASE_NAME = "sessions.sqlite"
"""Name of a home's database file, unless the settings say otherwise."""

_FORMS = "sqlite:PATH, postgresql://user@host/database, or env:NAME of a variable that holds that"


class StoreAddress(Struct, frozen=True):
    """Location of a database, as given to a command.

    Attributes:
        name: shown to people; without a password.
        path: path of a SQLite file.
        url: address of a Postgres database; a secret.
    """

    name: str
    path: Path | None = None
    url: str | None = None

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str]) -> "StoreAddress":
        """Parse an address.

        Raises:
            ConfigError: the text is no address, or names a variable that is not set.
        """
        kind, _, rest = text.partition(":")
        if kind == "env":
            if not (value := environ.get(rest, "").strip()):
                message = f"the environment variable {rest!r} is not set; set it to the address"
                raise ConfigError(ErrorCode.CONFIG_ERROR, message)
            if value.startswith("env:"):
                raise ConfigError(ErrorCode.CONFIG_ERROR, f"${rest} holds no address: {_FORMS}")
            found = cls.parse(value, environ)
            return found if found.url is None else cls(text, url=found.url)
        if kind == "sqlite" and rest:
            path = Path(rest).expanduser().resolve()
            if is_folder(path):
                message = f"{path} is a folder; name the file in it, such as sessions.sqlite"
                raise ConfigError(ErrorCode.CONFIG_ERROR, message)
            return cls(f"sqlite:{path}", path=path)
        if kind in {"postgresql", "postgres"}:
            check_database_url(text, "the address")
            parts = text.partition("://")[2].partition("?")[0].rpartition("@")[2]
            return cls(f"postgresql://{parts}", url=text)
        raise ConfigError(ErrorCode.CONFIG_ERROR, f"an address is {_FORMS}")


class CopiedSession(Struct, frozen=True, kw_only=True):
    """Result of copying one session.

    Attributes:
        error: the reason it was not copied; None if it was.
        missing: kinds of contents that it was copied without.
    """

    session_id: str
    error: AgentCoreError | None = None
    missing: Sequence[str] = ()


class _Place(Struct, frozen=True, kw_only=True):
    """One side of a copy: its rows and the places of its contents.

    Attributes:
        home: holds the files of artifacts and Task logs.
        snapshots: holds the recorded files of projects.
        blobs: blobs of a Postgres database.
    """

    rows: CopyEnd
    home: Path
    snapshots: Path
    blobs: "PostgresBlobs | None" = None

    def artifact(self, row: Mapping[str, Any]) -> Iterator[bytes]:
        """Read the content of an artifact in pieces.

        Raises:
            StorageError: `file_not_found`, or it cannot be read.
        """
        if self.blobs is not None and row["path"].startswith(BLOB_PATH):
            return self.blobs.pieces(row["path"].removeprefix(BLOB_PATH))
        return files.pieces_of(self._file_of(row))

    def has_artifact(self, row: Mapping[str, Any]) -> bool:
        """Return whether the content of an artifact exists and is whole.

        Raises:
            StorageError: the content cannot be read.
        """
        try:
            with files.explaining(self.home):
                size = sum(map(len, self.artifact(row)))
        except StorageError as error:
            is_damaged = error.details.get("reason") == "damaged"
            if error.code is not ErrorCode.FILE_NOT_FOUND and not is_damaged:
                raise
            return False
        return size == row["size_bytes"]

    def keep_artifact(self, row: Mapping[str, Any], pieces: Iterator[bytes]) -> str:
        """Store the content of an artifact and return the path for its row.

        Raises:
            StorageError: the content cannot be read, or not stored.
        """
        if self.blobs is None:
            place = self._file_of(row)
            if not place.exists():
                files.remove(place)
                files.write_pieces(place, pieces)
            return str(place)
        with spooled(pieces, self.home / "sessions") as (blob, file):
            use = {"session_id": row["session_id"], "used_by": row["artifact_id"]}
            self.blobs.keep(blob, file, **use)
            return f"{BLOB_PATH}{blob.digest}"

    def _file_of(self, row: Mapping[str, Any]) -> Path:
        return files.place_of(
            self.home / "sessions", row["session_id"], row["artifact_id"], filename=row["filename"]
        )


class SessionCopies:
    """Copies sessions; every method blocks.

    Args:
        source: the database to copy from.
        target: the database to copy to.
        setup: says where Task logs are.
        owner: knows which owners of sessions are alive.
        tenant: only this tenant's sessions are copied, and belong to it in the target.
        allows_missing: copy a session without contents that are missing or damaged, instead of
            refusing it.
    """

    def __init__(
        self,
        source: _Place,
        target: _Place,
        *,
        setup: Setup,
        owner: Owner,
        tenant: str | None,
        allows_missing: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._setup = setup
        self._owner = owner
        self._tenant = tenant
        self._allows_missing = allows_missing

    @classmethod
    @contextmanager
    def open(
        cls,
        source: StoreAddress,
        target: StoreAddress,
        *,
        setup: Setup,
        source_home: Path | None = None,
        target_home: Path | None = None,
        tenant: str | None = None,
        allows_missing: bool = False,
    ) -> Generator["SessionCopies"]:
        """Open both databases until the end of the block; the target is created or migrated.

        Args:
            source: the database to copy from.
            target: the database to copy to.
            setup: the settings.
            source_home: folder with the contents of the source's sessions, if the source is a file;
                by default the file's folder if the file is named like a home's database, else the
                home of the settings.
            target_home: the same for the target.
            tenant: see the class.
            allows_missing: see the class.

        Raises:
            ConfigError: source and target are the same, or packages are missing.
            StorageError: one of the databases cannot be used.
        """
        with ExitStack() as stack:
            first = stack.enter_context(_opened(source, setup, source_home, is_target=False))
            second = stack.enter_context(_opened(target, setup, target_home, is_target=True))
            if first.snapshots.name == second.snapshots.name:  # the key of the database
                message = f"{target.name} is both the source and the target"
                raise ConfigError(ErrorCode.CONFIG_ERROR, message)
            owners = first.home / "sessions" / ".owners"
            owner = Owner("", owners) if is_folder(owners) else Owner.in_memory()
            yield cls(
                first,
                second,
                setup=setup,
                owner=owner,
                tenant=tenant,
                allows_missing=allows_missing,
            )

    @property
    def target_home(self) -> Path:
        """The folder that gets the contents which the target database does not hold."""
        return self._target.home

    def copy(self, wanted: Sequence[str] = ()) -> Iterator[CopiedSession]:
        """Copy sessions one by one, and yield the result of each.

        Args:
            wanted: ids or unique prefixes of ids; if empty, all sessions.

        Raises:
            StorageError: the source cannot be read.
        """
        known = session_ids(self._source.rows, self._tenant)
        for name in wanted or known:
            try:
                session_id = (
                    resolve_prefix("session", name, _beginning(name, known)) if wanted else name
                )
                yield CopiedSession(session_id=session_id, missing=self._copy(session_id))
            except AgentCoreError as error:
                yield CopiedSession(session_id=name, error=error)
            except (OSError, ValueError) as error:  # a disk, or a row that was edited
                failure = StorageError(ErrorCode.STORAGE_ERROR, f"{name} cannot be copied: {error}")
                yield CopiedSession(session_id=name, error=failure)

    def _copy(self, session_id: str) -> list[str]:
        source, target = self._source, self._target
        if has_session(target.rows, session_id):
            raise _exists(session_id)
        with source.rows.transaction():
            keeps_owner = require_idle(source.rows, session_id, self._owner.is_dead)
            shared = self._shared_snapshots(session_id)
            snapshots = snapshots_of(source.rows, session_id) | set(shared)
            artifacts = self._artifacts(session_id)
            found = [row for row in artifacts if source.has_artifact(row)]
            missing: list[str] = []
            if lost := len(artifacts) - len(found):
                missing.append(f"{lost} of {len(artifacts)} artifacts")
            if lost := self._copy_snapshots(session_id, snapshots, shared):
                missing.append(f"{lost} of {len(snapshots)} snapshots of files")
            before, after = self._task_logs(session_id)
            if before != after and not is_folder(before) and has_tasks(source.rows, session_id):
                missing.append("the logs of its Tasks")
            if missing and not self._allows_missing:
                raise _not_whole(session_id, missing)
            if before != after and is_folder(before):
                _copy_logs(before, after)
            self._share_snapshots(session_id, shared)
            paths = {
                row["artifact_id"]: target.keep_artifact(row, source.artifact(row)) for row in found
            }
            changes = self._changes(paths, keeps_owner=keeps_owner)
            try:
                with target.rows.transaction():
                    copy_rows(source.rows, target.rows, session_id, changes)
            except StorageError:
                if has_session(target.rows, session_id):  # another copy was faster
                    raise _exists(session_id) from None
                raise
        return missing

    def _artifacts(self, session_id: str) -> list[Mapping[str, Any]]:
        columns = ("artifact_id", "session_id", "filename", "path", "size_bytes")
        sql = f"SELECT {', '.join(columns)} FROM artifacts WHERE session_id = ?"  # noqa: S608
        rows = self._source.rows.select(sql, session_id)
        return [dict(zip(columns, values, strict=True)) for values in rows]

    def _shared_snapshots(self, session_id: str) -> list[str]:
        """Return the ids of shared snapshots; the last one holds the session's current files."""
        if self._source.blobs is None:
            return []
        sql = "SELECT snapshot_id FROM shared_snapshots WHERE session_id = ? ORDER BY number"
        return [each for (each,) in self._source.rows.select(sql, session_id)]

    def _copy_snapshots(self, session_id: str, snapshots: set[str], shared: Sequence[str]) -> int:
        """Copy snapshots between the homes; return how many are missing or damaged."""
        if not snapshots:
            return 0
        local = SnapshotStore(self._source.snapshots)
        if self._source.blobs is not None:
            reach = SharedSnapshots(session_id, self._source.blobs, local)
            for snapshot_id in shared:
                reach.fetch(snapshot_id)
        return len(local.copy_to(SnapshotStore(self._target.snapshots), sorted(snapshots)))

    def _share_snapshots(self, session_id: str, shared: Sequence[str]) -> None:
        if self._target.blobs is None:
            return
        copies = SnapshotStore(self._target.snapshots)
        reach = SharedSnapshots(session_id, self._target.blobs, copies)
        for snapshot_id in shared:
            reach.send(copies.get(snapshot_id))

    def _task_logs(self, session_id: str) -> tuple[Path, Path]:
        """Return the folders of the Task logs in both homes; equal if they are in the project."""
        sql = "SELECT cwd FROM sessions WHERE session_id = ?"
        ((cwd,),) = self._source.rows.select(sql, session_id)
        wal_dir, project = self._setup.config.task.wal_dir, Path(cwd)
        before, after = (
            tasks_folder(wal_dir, home=place.home, project=project) / session_id
            for place in (self._source, self._target)
        )
        return before, after

    def _changes(self, paths: Mapping[str, str], *, keeps_owner: bool) -> Changes:
        """Return the changes to a session's rows that depend on the place or time of the copy."""
        is_file = self._target.blobs is None
        here = own_place(self._setup.config.worker.host_id)

        def session(row: dict[str, Any]) -> None:
            if not keeps_owner:
                row |= {"owner": None, "lease_expires_at": None}
            if self._tenant is not None:
                row["tenant"] = self._tenant
            # All sessions of a SQLite file belong to its machine.
            row["place"] = None if is_file else row["place"] or here

        def run(row: dict[str, Any]) -> None:
            row["lane"] = None

        def artifact(row: dict[str, Any]) -> None:
            row["path"] = paths.get(row["artifact_id"], row["path"])

        changes: dict[str, Callable[[dict[str, Any]], None]]
        changes = {"sessions": session, "artifacts": artifact}
        return changes | {"runs": run} if is_file else changes


def migrate_store(address: StoreAddress) -> tuple[int, int]:
    """Bring a database up to date; return its version before (0 if it had none) and now.

    Raises:
        ConfigError: packages are missing.
        StorageError: `migration_failed`, or the database cannot be used.
    """
    if address.path is not None:
        before = examine(address.path).version or 0
        with SqliteEnd.open(address.path, is_target=True):
            return before, examine(address.path).version or 0
    with needing_postgres():
        from agent_core.storage.postgres import health  # noqa: PLC0415
        from agent_core.storage.postgres.copying import PostgresEnd  # noqa: PLC0415
    url = address.url or ""
    before = health.examine(url).version
    with PostgresEnd.open(url, is_target=True) as rows:
        rows.upgrade_queue()
        rows.index_search()
        return before, health.examine(url).version


def _exists(session_id: str) -> StorageError:
    message = f"the target already has a session {session_id}; it was not changed"
    details = {"reason": "session_exists", "session_id": session_id}
    return StorageError(ErrorCode.VALIDATION_ERROR, message, details=details)


def _beginning(name: str, known: Sequence[str]) -> list[str]:
    spellings = tuple(spellings_of("session", name))
    return [each for each in known if each.startswith(spellings)]


def _not_whole(session_id: str, missing: Sequence[str]) -> StorageError:
    message = (
        f"session {session_id} is not copied: {' and '.join(missing)} are missing or damaged at"
        " the source; name the home that has them with --from-home, copy on the machine that has"
        " them, or copy without them with --incomplete"
    )
    details = {"reason": "incomplete", "session_id": session_id, "missing": list(missing)}
    return StorageError(ErrorCode.FILE_NOT_FOUND, message, details=details)


def _copy_logs(before: Path, after: Path) -> None:
    for log in sorted(before.iterdir()):
        if log.is_file() and not log.is_symlink():
            write_whole(after / log.name, read_bytes(log))


@contextmanager
def _opened(
    address: StoreAddress, setup: Setup, home: Path | None, *, is_target: bool
) -> Generator[_Place]:
    if address.path is not None:
        if home is None:
            is_of_a_home = address.path.name == DATABASE_NAME and address.path != setup.session_db
            home = address.path.parent if is_of_a_home else setup.home
        with SqliteEnd.open(address.path, is_target=is_target) as rows:
            yield _Place(
                rows=rows, home=home, snapshots=home / "snapshots" / database_key(address.path)
            )
    if address.url is not None:
        with needing_postgres():
            from agent_core.storage.postgres.copying import PostgresEnd  # noqa: PLC0415
        home = home or setup.home
        blobs = open_blobs(address.url, setup.config.store.blobs)
        with PostgresEnd.open(address.url, is_target=is_target) as rows, closing(blobs):
            key = database_key(rows.identity())
            yield _Place(rows=rows, home=home, snapshots=home / "snapshots" / key, blobs=blobs)

"""Whole sessions from one database to another: contents first, then all rows in one transaction.

A copy that is killed leaves no session behind, and contents that the next one finds again.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_core.artifacts import files
from agent_core.artifacts.blobs import BLOB_PATH
from agent_core.blobs.base import spooled
from agent_core.config.databases import check_database_url
from agent_core.config.paths import Setup, database_key, tasks_folder
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, StorageError
from agent_core.runtime.stores import needing_postgres, open_blobs
from agent_core.storage.copying import (
    Changes,
    CopyEnd,
    SqliteEnd,
    copy_rows,
    has_session,
    require_idle,
    session_ids,
    snapshots_of,
)
from agent_core.storage.health import examine
from agent_core.storage.owners import Owner
from agent_core.storage.rows import session_not_found
from agent_core.types.lanes import own_place

if TYPE_CHECKING:
    from agent_core.storage.postgres.blobs import PostgresBlobs

DATABASE_NAME = "sessions.sqlite"
"""What the database of a home is called, unless the settings say otherwise."""

_FORMS = "sqlite:PATH, postgresql://user@host/database, or env:NAME of a variable that holds that"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a database is, as a command names it.

    Attributes:
        name: for people; without a password.
        path: of a file.
        url: of a Postgres database; a secret.
    """

    name: str
    path: Path | None = None
    url: str | None = None

    @classmethod
    def parse(cls, text: str, environ: Mapping[str, str]) -> "StoreAddress":
        """The database that a text names.

        Raises:
            ConfigError: it names none, or by a variable that is not set.
        """
        kind, _, rest = text.partition(":")
        if kind == "env":
            if not (value := environ.get(rest, "").strip()):
                message = f"there is no environment variable {rest!r}; it has to hold the address"
                raise ConfigError(ErrorCode.CONFIG_ERROR, message)
            if value.startswith("env:"):
                raise ConfigError(ErrorCode.CONFIG_ERROR, f"${rest} holds no address: {_FORMS}")
            found = cls.parse(value, environ)
            return found if found.url is None else cls(text, url=found.url)
        if kind == "sqlite" and rest:
            path = Path(rest).expanduser().resolve()
            if path.is_dir():
                message = f"{path} is a folder; name the file in it, such as sessions.sqlite"
                raise ConfigError(ErrorCode.CONFIG_ERROR, message)
            return cls(f"sqlite:{path}", path=path)
        if kind in {"postgresql", "postgres"}:
            check_database_url(text, "the address")
            parts = text.partition("://")[2].partition("?")[0].rpartition("@")[2]
            return cls(f"postgresql://{parts}", url=text)
        raise ConfigError(ErrorCode.CONFIG_ERROR, f"an address is {_FORMS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSession:
    """What became of one session.

    Attributes:
        error: why it was not copied; None if it was.
        remarks: what is not as it was.
    """

    session_id: str
    error: AgentCoreError | None = None
    remarks: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One side of a copy: its rows, and where contents are.

    Attributes:
        home: has the files of artifacts and Task logs.
        snapshots: has the files of a project as they were.
        blobs: of a Postgres database.
    """

    rows: CopyEnd
    home: Path
    snapshots: Path
    blobs: "PostgresBlobs | None" = None

    def artifact(self, row: Mapping[str, Any]) -> Iterator[bytes]:
        """The content of an artifact.

        Raises:
            StorageError: `file_not_found`; it cannot be read.
        """
        if self.blobs is not None and row["path"].startswith(BLOB_PATH):
            return self.blobs.pieces(row["path"].removeprefix(BLOB_PATH))
        return files.pieces_of(self._file_of(row))

    def keep_artifact(self, row: Mapping[str, Any], pieces: Iterator[bytes]) -> str:
        """Keep the content of an artifact, and return the path of its row.

        Raises:
            StorageError: it cannot be had, or kept.
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
    """Copies sessions. Every method blocks.

    Args:
        source: where sessions are.
        target: where they go.
        setup: says where Task logs are.
        owner: knows which owners of sessions live.
        tenant: of the sessions that are copied, which are its own in the target.
    """

    def __init__(
        self, source: _Place, target: _Place, *, setup: Setup, owner: Owner, tenant: str | None
    ) -> None:
        self._source = source
        self._target = target
        self._setup = setup
        self._owner = owner
        self._tenant = tenant

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
    ) -> Generator["SessionCopies"]:
        """Open both databases until the end of the block; the target is made, or migrated.

        Args:
            source: where sessions are.
            target: where they go.
            setup: the settings.
            source_home: where contents of the source's sessions are, if it is a file; by default
                its folder if it is called as a home's database is, else the home of the settings.
            target_home: the same of the target.
            tenant: see the class.

        Raises:
            ConfigError: both are the same, or packages are missing.
            StorageError: one of them cannot be used.
        """
        with ExitStack() as stack:
            first = stack.enter_context(_opened(source, setup, source_home, is_target=False))
            second = stack.enter_context(_opened(target, setup, target_home, is_target=True))
            if first.snapshots.name == second.snapshots.name:  # the key of the database
                message = f"{target.name} is both what is copied and where to"
                raise ConfigError(ErrorCode.CONFIG_ERROR, message)
            owners = first.home / "sessions" / ".owners"
            owner = Owner("", owners) if owners.is_dir() else Owner.in_memory()
            yield cls(first, second, setup=setup, owner=owner, tenant=tenant)

    def copy(self, wanted: Sequence[str] = ()) -> Iterator[CopiedSession]:
        """Copy sessions one by one, and say what became of each.

        Args:
            wanted: their ids, or the beginnings of some; all if none are named.

        Raises:
            StorageError: the source cannot be read.
        """
        known = session_ids(self._source.rows, self._tenant)
        for name in wanted or known:
            try:
                session_id = name if not wanted else _resolved(name, known)
                yield CopiedSession(session_id=session_id, remarks=self._copy(session_id))
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
            snapshots = snapshots_of(source.rows, session_id)
            paths, remarks = self._copy_artifacts(session_id)
            if snapshots:
                remarks += self._copy_snapshots(session_id, snapshots)
            self._copy_task_logs(session_id)
            changes = self._changes(paths, keeps_owner=keeps_owner)
            try:
                with target.rows.transaction():
                    copy_rows(source.rows, target.rows, session_id, changes)
            except StorageError:
                if has_session(target.rows, session_id):  # another copy was faster
                    raise _exists(session_id) from None
                raise
        return remarks

    def _copy_artifacts(self, session_id: str) -> tuple[dict[str, str], list[str]]:
        """Copy the contents; returns the paths of the rows, by artifact, and what is to be said."""
        paths: dict[str, str] = {}
        gone = 0
        columns = ("artifact_id", "session_id", "filename", "path")
        sql = f"SELECT {', '.join(columns)} FROM artifacts WHERE session_id = ?"  # noqa: S608
        for values in self._source.rows.select(sql, session_id):
            row: dict[str, Any] = dict(zip(columns, values, strict=True))
            try:
                kept = self._target.keep_artifact(row, self._source.artifact(row))
                paths[row["artifact_id"]] = kept
            except StorageError as error:
                if error.code is not ErrorCode.FILE_NOT_FOUND:
                    raise
                gone += 1
        return paths, [f"the contents of {gone} artifacts were gone already"] if gone else []

    def _copy_snapshots(self, session_id: str, snapshots: set[str]) -> list[str]:
        from agent_core.runtime.shared_snapshots import SharedSnapshots  # noqa: PLC0415 - rarely
        from agent_core.snapshots.store import SnapshotStore  # noqa: PLC0415

        source, target = self._source, self._target
        local, copies = SnapshotStore(source.snapshots), SnapshotStore(target.snapshots)
        shared: list[str] = []  # the last of them is what the files of the session are
        if source.blobs is not None:
            sql = "SELECT snapshot_id FROM shared_snapshots WHERE session_id = ? ORDER BY number"
            shared = [each for (each,) in source.rows.select(sql, session_id)]
            reach = SharedSnapshots(session_id, source.blobs, local)
            for snapshot_id in shared:
                reach.fetch(snapshot_id)
        wanted = snapshots | set(shared)
        unusable = local.copy_to(copies, sorted(wanted))
        if target.blobs is not None and shared:
            reach = SharedSnapshots(session_id, target.blobs, copies)
            for snapshot_id in shared:
                reach.send(copies.get(snapshot_id))
        if not unusable:
            return []
        return [f"{len(unusable)} of {len(wanted)} snapshots of files cannot be restored"]

    def _copy_task_logs(self, session_id: str) -> None:
        """Copy the logs that are kept in the home; those in a project stay where they are."""
        sql = "SELECT cwd FROM sessions WHERE session_id = ?"
        for (cwd,) in self._source.rows.select(sql, session_id):
            wal_dir, project = self._setup.config.task.wal_dir, Path(cwd)
            before = tasks_folder(wal_dir, home=self._source.home, project=project) / session_id
            after = tasks_folder(wal_dir, home=self._target.home, project=project) / session_id
            if before == after or not before.is_dir():
                continue
            from agent_core.snapshots.catalogue import write_whole  # noqa: PLC0415 - rarely

            for log in sorted(before.iterdir()):
                if log.is_file() and not log.is_symlink():
                    write_whole(after / log.name, log.read_bytes())

    def _changes(self, paths: Mapping[str, str], *, keeps_owner: bool) -> Changes:
        """What is of a place or of a time in the rows of a session."""
        is_file = self._target.blobs is None
        here = own_place(self._setup.config.worker.host_id)

        def session(row: dict[str, Any]) -> None:
            if not keeps_owner:
                row |= {"owner": None, "lease_expires_at": None}
            if self._tenant is not None:
                row["tenant"] = self._tenant
            # Of a file, all sessions are on its machine.
            row["place"] = None if is_file else row["place"] or here

        def run(row: dict[str, Any]) -> None:
            row["lane"] = None

        def artifact(row: dict[str, Any]) -> None:
            row["path"] = paths.get(row["artifact_id"], row["path"])

        changes: dict[str, Callable[[dict[str, Any]], None]]
        changes = {"sessions": session, "artifacts": artifact}
        return changes | {"runs": run} if is_file else changes


def migrate_store(address: StoreAddress) -> tuple[int, int]:
    """Bring a database up to date; returns its version before, 0 if it had none, and now.

    Raises:
        ConfigError: packages are missing.
        StorageError: `migration_failed`; it cannot be used.
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
        return before, health.examine(url).version


def _exists(session_id: str) -> StorageError:
    message = f"there is a session {session_id} at the target already; it is as it was"
    details = {"reason": "session_exists", "session_id": session_id}
    return StorageError(ErrorCode.VALIDATION_ERROR, message, details=details)


def _resolved(name: str, known: Sequence[str]) -> str:
    """The session whose id is, or begins with, a name; `sess_` may be left out.

    Raises:
        StorageError: `session_not_found`.
        AgentCoreError: `validation_error`: several do.
    """
    found = [each for each in known if each == name] or [
        each for each in known if each.startswith((name, f"sess_{name}"))
    ]
    if not found:
        raise session_not_found(name)
    if len(found) > 1:
        message = f"{name} is the beginning of {len(found)} sessions: {', '.join(found[:5])}"
        details = {"candidates": found[:10]}
        raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message, details=details)
    return found[0]


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

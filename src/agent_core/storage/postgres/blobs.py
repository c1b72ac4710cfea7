"""Blobs and their uses; their contents too, if there is no object store.

A use is stored before its blob, and removed before it: a blob without a use is garbage at once, and
a blob being written always has one. Both rows are locked against each other by their foreign key.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Event, local
from typing import Any, BinaryIO, LiteralString, TypeVar, cast

import psycopg
from psycopg import Connection

from agent_core.blobs.base import PIECE_BYTES, BlobId, BlobStore, checked
from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.postgres.connections import SILENCE_AT_END_S, attempts
from agent_core.storage.postgres.faults import explain, is_broken, is_passing
from agent_core.storage.postgres.settings import SILENCE_S, Answering, connect
from agent_core.storage.postgres.statements import PostgresRow
from agent_core.storage.workspaces import snapshots_in_use
from agent_core.text import quoted

_LARGEST_IN_DATABASE = 512 << 20
_BLOB = re.compile(r"[0-9a-f]{64}").fullmatch
_Result = TypeVar("_Result")
_Rows = Connection[PostgresRow]


class Connections:
    """Connections for blocking transactions; they survive a restart of the server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle = SimpleQueue[Answering]()
        self._used = set[Answering]()
        self._is_hurried = Event()
        self._local = local()

    def hurry(self) -> None:
        """See `PostgresBlobs.hurry`."""
        self._is_hurried.set()
        for connection in self._used.copy():
            connection.silence_s = SILENCE_AT_END_S

    def close(self) -> None:
        """Close idle connections now, and busy ones after their current transaction."""
        self.hurry()
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    def do(self, job: Callable[[_Rows], _Result]) -> _Result:
        """Run a transaction, which may begin more than once; within another one, a part of that.

        A pooler may have no second connection to give before the first is free.

        Raises:
            StorageError: the database cannot be reached, or refuses the transaction.
        """
        if (current := getattr(self._local, "connection", None)) is not None:
            return job(current)
        for is_last in attempts(wait=self._is_hurried.wait):
            try:
                with self._connection() as connection, connection.transaction():
                    self._local.connection = connection
                    try:
                        return job(connection)
                    finally:
                        self._local.connection = None
            except psycopg.Error as error:
                is_last = is_last or self._is_hurried.is_set()
                if is_last or not (is_passing(error) or is_broken(error)):
                    raise explain(error) from None
        raise AssertionError

    @contextmanager
    def _connection(self) -> Generator[_Rows]:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            # An object store may take its time between two statements.
            connection = connect(self._url, silence_s=SILENCE_S, idle_s=60)
        self._used.add(connection)
        if self._is_hurried.is_set():
            connection.silence_s = SILENCE_AT_END_S
        try:
            yield connection
        except psycopg.errors.ReadOnlySqlTransaction:  # the address may lead to another server
            connection.close()
            raise
        finally:
            self._used.discard(connection)
            if connection.closed or self._is_hurried.is_set():
                connection.close()
            else:
                self._idle.put(connection)
                if self._is_hurried.is_set():  # it is being closed right now
                    self.close()


class TableBlobs:
    """Stores the contents of blobs in the database itself, in pieces."""

    max_bytes = _LARGEST_IN_DATABASE

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def put(self, blob: BlobId, file: BinaryIO) -> None:
        """See `BlobStore.put`."""

        def write(connection: _Rows) -> None:
            file.seek(0)
            insert = "INSERT INTO blob_pieces VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
            number, piece = 0, file.read(PIECE_BYTES)
            while piece or not number:
                connection.execute(insert, (blob.digest, number, piece))
                number, piece = number + 1, file.read(PIECE_BYTES)

        self._connections.do(write)

    def pieces(self, digest: str) -> Iterator[bytes]:
        """See `BlobStore.pieces`."""
        find = "SELECT content FROM blob_pieces WHERE blob = $1 AND number = $2"
        number = 0
        while True:
            at = (digest, number)
            row = self._connections.do(lambda c, at=at: c.execute(find, at, binary=True).fetchone())
            if row is None:
                break
            yield row[0]
            number += 1
        if not number:
            message = f"the blob {digest[:16]} is not in the database"
            raise StorageError(ErrorCode.FILE_NOT_FOUND, message)

    def delete(self, digest: str) -> None:
        """See `BlobStore.delete`."""
        statement = "DELETE FROM blob_pieces WHERE blob = $1"
        self._connections.do(lambda c: c.execute(statement, (digest,)))


class PostgresBlobs:
    """The blobs of a database, each with its uses. Every method blocks: call it in a thread.

    Args:
        url: address of the database; blobs of every tenant are visible.
        contents: storage of the contents; by default the database, too.
    """

    def __init__(self, url: str, contents: BlobStore | None = None) -> None:
        self._connections = Connections(url)
        self._contents: BlobStore = contents or TableBlobs(self._connections)

    def hurry(self) -> None:
        """Stop waiting for an unreachable server: the process is about to end."""
        self._connections.hurry()

    def close(self) -> None:
        """Close the connections, and stop waiting for an unreachable server."""
        self._connections.close()

    def keep(self, blob: BlobId, file: BinaryIO, *, session_id: str, used_by: str) -> None:
        """Store a content for a use, which lasts until it is released.

        Raises:
            StorageError: the content is too large, or cannot be stored; the use is released then.
        """
        self.require_room(blob.size_bytes)
        use = (session_id, used_by, blob.digest)

        def begin(connection: _Rows) -> bool | None:
            connection.execute(
                "INSERT INTO blobs (blob, size_bytes) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                (blob.digest, blob.size_bytes),
            )
            find = "SELECT is_whole FROM blobs WHERE blob = $1 FOR KEY SHARE"
            row = connection.execute(find, (blob.digest,)).fetchone()
            if row is None:  # it was just removed
                return None
            connection.execute(_USE, use)
            return row[0]

        while (is_whole := self._connections.do(begin)) is None:
            continue
        if is_whole:
            return
        try:
            self._contents.put(blob, file)
            done = "UPDATE blobs SET is_whole = TRUE WHERE blob = $1"
            self._connections.do(lambda c: c.execute(done, (blob.digest,)))
        except BaseException:
            with suppress(StorageError):
                self.release(session_id, used_by)
            raise

    def require_room(self, size_bytes: int) -> None:
        """Refuse a content that is too large for its storage.

        Raises:
            StorageError: it is too large; says what to do about it.
        """
        most = self._contents.max_bytes
        if most is not None and size_bytes > most:
            raise StorageError(
                ErrorCode.STORAGE_ERROR,
                f"{size_bytes >> 20} MiB at once are too much for the database, which takes"
                f" {most >> 20} MiB; name an object store in [store] blobs",
                details={"reason": "too_large", "size_bytes": size_bytes, "max_bytes": most},
            )

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the content of a blob; the end is reached only if it matches the digest.

        Raises:
            StorageError: `file_not_found`; the content is damaged, or cannot be read.
        """
        if not _BLOB(digest):
            message = f"{quoted(digest)} names no blob"
            raise StorageError(ErrorCode.STORAGE_ERROR, message)
        return checked(self._contents.pieces(digest), digest)

    def release(self, session_id: str, used_by: str | None = None) -> None:
        """End one use, or all uses and snapshots of a session; blobs without a use are removed.

        Raises:
            StorageError: the database fails.
        """

        def end(connection: _Rows) -> list[str]:
            if used_by is None:
                rows = connection.execute(
                    "DELETE FROM blob_uses WHERE session_id = $1 RETURNING blob", (session_id,)
                ).fetchall()
                statement = "DELETE FROM shared_snapshots WHERE session_id = $1"
                connection.execute(statement, (session_id,))
            else:
                rows = connection.execute(
                    "DELETE FROM blob_uses WHERE session_id = $1 AND used_by = $2 RETURNING blob",
                    (session_id, used_by),
                ).fetchall()
            return [blob for (blob,) in rows]

        self._remove_unused(dict.fromkeys(self._connections.do(end)))

    def sweep_daily(self) -> None:
        """Sweep, unless a process has done so within a day: it reads all uses of blobs.

        Raises:
            StorageError: the database fails.
        """
        if self._connections.do(lambda c: c.execute(_TURN).fetchone()) is not None:
            self.sweep()

    def sweep(self) -> None:
        """Remove what dead processes left: uses without an owner for a day, blobs without a use.

        Raises:
            StorageError: the database fails.
        """

        def find(connection: _Rows) -> list[str]:
            connection.execute("SET LOCAL enable_hashjoin = on")  # everything is looked up
            connection.execute(
                """DELETE FROM shared_snapshots AS shared
                WHERE made_at < now() - interval '1 day' AND NOT EXISTS
                (SELECT 1 FROM sessions WHERE sessions.session_id = shared.session_id)"""
            )
            connection.execute(
                """DELETE FROM blob_uses AS uses WHERE made_at < now() - interval '1 day'
                AND NOT EXISTS (SELECT 1 FROM artifacts WHERE artifact_id = uses.used_by)
                AND NOT EXISTS (SELECT 1 FROM shared_snapshots AS shared
                    WHERE shared.session_id = uses.session_id
                    AND shared.snapshot_id = uses.used_by)"""
            )
            rows = connection.execute(
                """SELECT blob FROM blobs WHERE NOT EXISTS
                (SELECT 1 FROM blob_uses WHERE blob_uses.blob = blobs.blob)"""
            )
            return [blob for (blob,) in rows]

        self._remove_unused(self._connections.do(find))

    def share_snapshot(
        self, session_id: str, snapshot_id: str, *, about: str, blobs: Iterable[str]
    ) -> None:
        """Store a snapshot of a session, and its uses of these existing blobs.

        Raises:
            StorageError: it cannot be stored.
        """
        uses = [(session_id, snapshot_id, blob) for blob in blobs]

        def write(connection: _Rows) -> None:
            with connection.cursor() as cursor:
                cursor.executemany(_USE, uses)
            connection.execute(
                """INSERT INTO shared_snapshots (session_id, snapshot_id, about)
                VALUES ($1, $2, $3) ON CONFLICT DO NOTHING""",
                (session_id, snapshot_id, about),
            )

        self._connections.do(write)

    def shared_snapshot(self, session_id: str, snapshot_id: str) -> str | None:
        """Return the stored description of a snapshot of a session.

        Raises:
            StorageError: it cannot be read.
        """
        find = "SELECT about FROM shared_snapshots WHERE session_id = $1 AND snapshot_id = $2"
        row = self._connections.do(lambda c: c.execute(find, (session_id, snapshot_id)).fetchone())
        return None if row is None else row[0]

    def last_shared(self, session_id: str) -> tuple[str, str] | None:
        """Return the id and the description of the session's snapshot that was stored last.

        Raises:
            StorageError: it cannot be read.
        """
        find = """SELECT snapshot_id, about FROM shared_snapshots
            WHERE session_id = $1 ORDER BY number DESC LIMIT 1"""
        row = self._connections.do(lambda c: c.execute(find, (session_id,)).fetchone())
        return None if row is None else (row[0], row[1])

    def share_with_fork(self, session_id: str, fork_id: str) -> None:
        """Give a new fork of a session the snapshots of its original.

        Raises:
            StorageError: it cannot be stored.
        """

        def copy(connection: _Rows) -> None:
            both = (fork_id, session_id)
            connection.execute(
                """INSERT INTO blob_uses (session_id, used_by, blob)
                SELECT $1, shared.snapshot_id, uses.blob FROM shared_snapshots AS shared
                JOIN blob_uses AS uses ON uses.session_id = shared.session_id
                AND uses.used_by = shared.snapshot_id
                WHERE shared.session_id = $2 ON CONFLICT DO NOTHING""",
                both,
            )
            connection.execute(
                """INSERT INTO shared_snapshots (session_id, snapshot_id, about)
                SELECT $1, snapshot_id, about FROM shared_snapshots
                WHERE session_id = $2 ORDER BY number ON CONFLICT DO NOTHING""",
                both,
            )

        self._connections.do(copy)

    def snapshots_in_use(self) -> set[str]:
        """Return every snapshot that a session of any tenant needs.

        Raises:
            StorageError: they cannot be read.
        """
        return self._connections.do(lambda c: snapshots_in_use(cast("Any", c)))

    def _remove_unused(self, blobs: Iterable[str]) -> None:
        """Remove the blobs without a use; a use that is stored meanwhile keeps its blob.

        A blob is first marked as incomplete: if this process dies, the next user writes it again.
        """
        unused = "NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob_uses.blob = blobs.blob)"
        mark = f"UPDATE blobs SET is_whole = FALSE WHERE blob = $1 AND {unused}"  # noqa: S608
        lock = "SELECT 1 FROM blobs WHERE blob = $1 FOR UPDATE"
        find = f"SELECT 1 FROM blobs WHERE blob = $1 AND {unused}"  # noqa: S608

        def remove(connection: _Rows, blob: str) -> None:
            if connection.execute(lock, (blob,)).fetchone() is None:
                return  # another process has removed it
            if connection.execute(find, (blob,)).fetchone() is not None:
                self._contents.delete(blob)
                connection.execute("DELETE FROM blobs WHERE blob = $1", (blob,))

        for blob in blobs:
            self._connections.do(lambda c, blob=blob: c.execute(mark, (blob,)))
            self._connections.do(lambda c, blob=blob: remove(c, blob))


_USE: LiteralString = """INSERT INTO blob_uses (session_id, used_by, blob) VALUES ($1, $2, $3)
    ON CONFLICT DO NOTHING"""

_TURN: LiteralString = """INSERT INTO sweeps (of_what, at) VALUES ('blobs', now())
    ON CONFLICT (of_what) DO UPDATE SET at = now()
    WHERE sweeps.at NOT BETWEEN now() - interval '1 day' AND now() RETURNING 1"""
"""Takes the turn to sweep, unless a process has had it within a day."""

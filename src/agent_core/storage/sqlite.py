"""The session store on SQLite: one file, one writing thread, readers that never wait for it.

A store in memory is the same code on a database that no file and no thread belong to.
"""

import asyncio
import sqlite3
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

from agent_core.storage import claims, queries
from agent_core.storage.connections import PATIENCE, open_in_memory, open_writer
from agent_core.storage.executors import InlineConnection, ReaderThreads, WriterThread
from agent_core.storage.faults import explain
from agent_core.storage.queries import clamp
from agent_core.storage.rows import (
    OPEN_RUN,
    Record,
    append_job,
    find,
    insert,
    merge_metadata,
    node_not_found,
    note_job,
    read_all,
    update,
)
from agent_core.types import (
    LEASE,
    AgentRecord,
    AgentStatus,
    ArtifactRecord,
    Batch,
    Claim,
    Node,
    OpenedRun,
    OwnerIsDead,
    PendingEvent,
    Position,
    ReplayResult,
    RunOpening,
    RunRecord,
    RuntimeEvent,
    SessionNote,
    SessionRecord,
    utc_now,
)

_PATH = """WITH RECURSIVE path (node_id, parent_id, depth) AS (
    SELECT node_id, parent_id, 0 FROM nodes WHERE node_id = ?
    UNION ALL
    SELECT nodes.node_id, nodes.parent_id, depth + 1
    FROM path JOIN nodes ON nodes.node_id = path.parent_id
)
SELECT nodes.* FROM path JOIN nodes ON nodes.node_id = path.node_id ORDER BY depth DESC"""


class SqliteSessionStore:
    """Sessions and their history in a database that several processes may share.

    The methods are described in `agent_core.events.SessionStore`.
    """

    def __init__(
        self,
        writer: WriterThread | InlineConnection,
        readers: ReaderThreads | InlineConnection,
        path: Path,
        clock: Callable[[], datetime],
    ) -> None:
        self._path = path
        self._writer = writer
        self._readers = readers
        self._clock = clock
        self._epochs: dict[str, int] = {}  # of the sessions that were claimed through this store

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path,
        *,
        patience: float = PATIENCE,
        clock: Callable[[], datetime] = utc_now,
    ) -> AsyncGenerator[Self]:
        """Open the database, creating or migrating it, until the end of the block.

        Args:
            path: the file; it and the folders it needs are made for this user only.
            patience: seconds a write waits for other processes.
            clock: what leases are judged by: the clock of the machine that holds the database.

        Raises:
            StorageError: `migration_failed` for a newer database, which is left untouched;
                `storage_error` if the file cannot be used.
        """
        path = path.absolute()  # noqa: ASYNC240 - reads no file
        try:
            connection = await asyncio.to_thread(open_writer, path, patience)
        except sqlite3.Error as error:
            raise explain(error, path) from error
        writer = WriterThread(connection, path, patience=patience)
        readers = ReaderThreads(path)
        try:
            yield cls(writer, readers, path, clock)
        finally:
            # The last connection to close folds the log into the file: that must be the writer.
            try:
                await readers.close()
            finally:
                await writer.close()

    @classmethod
    def in_memory(cls, *, clock: Callable[[], datetime] = utc_now) -> Self:
        """An empty store that ends with this object: for tests and runs that leave nothing."""
        connection = open_in_memory()
        inline = InlineConnection(connection)
        store = cls(inline, inline, Path(":memory:"), clock)
        weakref.finalize(store, connection.close)
        return store

    # writes

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        try:
            job = append_job(batch, self._epochs.get(batch.session_id))
        except Exception as error:  # noqa: BLE001 - it belongs to the caller that awaits the write
            refused: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
            refused.set_exception(explain(error, self._path))
            return refused
        return self._writer.submit(job)

    async def open_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        opened = await self._writer.submit(
            lambda c: claims.open_run(c, opening, is_dead, self._clock())
        )
        self._epochs[opening.session_id] = opened.session.epoch
        return opened

    async def add_agent(self, agent: AgentRecord) -> None:
        def add(connection: sqlite3.Connection) -> None:
            claims.find_session(connection, agent.session_id)
            insert(connection, agent)

        await self._writer.submit(add)

    async def update_agent(
        self,
        agent_id: str,
        *,
        status: AgentStatus | None = None,
        result: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        def change(connection: sqlite3.Connection) -> None:
            agent = find(connection, AgentRecord, agent_id)
            if agent is None:
                return
            changes = {
                "status": status or agent.status,
                "result": agent.result if result is None else result,
                "metadata": merge_metadata(agent.metadata, metadata or {}),
                "updated_at": utc_now(),
            }
            update(connection, AgentRecord, agent_id, changes)

        await self._writer.submit(change)

    async def add_run(
        self, run: RunRecord, *, events: Sequence[PendingEvent] = (), claim: Claim | None = None
    ) -> Position:
        position, epoch = await self._writer.submit(
            lambda c: claims.add_run(c, run, events, claim, self._clock())
        )
        if claim is not None:
            self._epochs[run.session_id] = epoch
        return position

    async def close_lost_runs(self, is_dead: OwnerIsDead) -> list[RunRecord]:
        return await self._writer.submit(
            lambda c: claims.close_lost_runs(c, is_dead, self._clock())
        )

    async def heartbeat(self, owner: str, lease: timedelta = LEASE) -> list[str]:
        return await self._writer.submit(lambda c: claims.heartbeat(c, owner, lease, self._clock()))

    async def request_cancel(self, run_id: str) -> bool:
        return await self._writer.submit(lambda c: claims.request_cancel(c, run_id, self._clock()))

    async def release(self, session_id: str, owner: str) -> None:
        await self._writer.submit(partial(claims.release, owner=owner, session_id=session_id))

    async def release_all(self, owner: str) -> None:
        await self._writer.submit(partial(claims.release, owner=owner))

    async def note(self, note: SessionNote) -> bool:
        return await self._writer.submit(note_job(note))

    async def set_active_node(
        self, session_id: str, node_id: str, *, is_dead: OwnerIsDead
    ) -> SessionRecord:
        return await self._writer.submit(
            lambda c: claims.set_active_node(c, session_id, node_id, is_dead, self._clock())
        )

    async def update_session_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        def change(connection: sqlite3.Connection) -> None:
            session = claims.find_session(connection, session_id)
            metadata = merge_metadata(session.metadata, changes)
            update(connection, SessionRecord, session_id, {"metadata": metadata})

        await self._writer.submit(change)

    async def delete_session(self, session_id: str, *, is_dead: OwnerIsDead) -> None:
        await self._writer.submit(
            lambda c: claims.delete_session(c, session_id, is_dead, self._clock())
        )
        self._epochs.pop(session_id, None)

    async def add_artifact(self, artifact: ArtifactRecord) -> None:
        def add(connection: sqlite3.Connection) -> None:
            claims.find_session(connection, artifact.session_id)
            insert(connection, artifact)

        await self._writer.submit(add)

    async def delete_artifact_row(self, artifact_id: str) -> None:
        sql = "DELETE FROM artifacts WHERE artifact_id = ?"
        await self._writer.submit(lambda c: c.execute(sql, (artifact_id,)).close())

    # reads

    async def session(self, session_id: str) -> SessionRecord | None:
        return await self._find(SessionRecord, session_id)

    async def sessions(self, *, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
        sql = "SELECT * FROM sessions ORDER BY updated_at DESC, rowid DESC LIMIT ? OFFSET ?"
        page = clamp(limit, 0), clamp(offset, 0)
        return await self._find_all(SessionRecord, sql, *page)

    async def agent(self, agent_id: str) -> AgentRecord | None:
        return await self._find(AgentRecord, agent_id)

    async def agents(self, session_id: str) -> list[AgentRecord]:
        sql = "SELECT * FROM agents WHERE session_id = ? ORDER BY rowid"
        return await self._find_all(AgentRecord, sql, session_id)

    async def run(self, run_id: str) -> RunRecord | None:
        return await self._find(RunRecord, run_id)

    async def active_run_ids(self, session_id: str) -> list[str]:
        sql = f"SELECT run_id FROM runs WHERE session_id = ? AND {OPEN_RUN} ORDER BY rowid"  # noqa: S608
        rows = await self._readers.read(lambda c: c.execute(sql, (session_id,)).fetchall())
        return [run_id for (run_id,) in rows]

    async def node(self, node_id: str) -> Node | None:
        return await self._find(Node, node_id)

    async def path(self, node_id: str) -> list[Node]:
        nodes = await self._find_all(Node, _PATH, node_id)
        if not nodes:
            raise node_not_found(node_id)
        return nodes

    async def page(
        self,
        session_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        limit: int = 1000,
    ) -> ReplayResult:
        return await self._readers.read(
            lambda c: queries.page(c, session_id, from_seq, to_seq, limit)
        )

    async def run_history(self, run_id: str) -> ReplayResult:
        return await self._readers.read(lambda c: queries.run_history(c, run_id))

    async def events_after(
        self, run_id: str, run_seq: int, *, limit: int = 1000
    ) -> list[RuntimeEvent]:
        sql = "SELECT * FROM events WHERE run_id = ? AND run_seq > ? ORDER BY run_seq LIMIT ?"
        span = clamp(run_seq, 0), clamp(limit, 1)
        return await self._find_all(RuntimeEvent, sql, run_id, *span)

    async def open_calls(
        self, session_id: str, tool_call_ids: Collection[str], *, agent_id: str | None = None
    ) -> set[str]:
        ids = tuple(tool_call_ids)
        return await self._readers.read(lambda c: queries.open_calls(c, session_id, ids, agent_id))

    async def artifact(self, artifact_id: str) -> ArtifactRecord | None:
        return await self._find(ArtifactRecord, artifact_id)

    async def artifacts(
        self,
        *,
        session_id: str | None = None,
        kinds: Collection[str] | None = None,
        older_than: datetime | None = None,
    ) -> list[ArtifactRecord]:
        return await self._readers.read(
            lambda c: queries.artifacts(c, session_id, kinds, older_than)
        )

    async def _find(self, kind: type[Record], key: str) -> Record | None:
        return await self._readers.read(lambda c: find(c, kind, key))

    async def _find_all(self, kind: type[Record], sql: str, *values: str | int) -> list[Record]:
        return await self._readers.read(lambda c: read_all(kind, c.execute(sql, values)))

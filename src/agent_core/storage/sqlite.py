"""The session store on SQLite: one file, one writing thread, readers that never wait for it."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from agent_core.storage import claims, edits, queries
from agent_core.storage.connections import PATIENCE, open_writer
from agent_core.storage.faults import explained
from agent_core.storage.readers import Readers
from agent_core.storage.timeline import appending, noting
from agent_core.storage.writer import Writer
from agent_core.types import (
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
    SessionNote,
    SessionRecord,
)


class SqliteStore:
    """Sessions and their history in a database that several processes may share.

    The methods are described where they are asked for, in `agent_core.events.SessionStore`.
    """

    def __init__(self, writer: Writer, readers: Readers, path: Path) -> None:
        self._path = path
        self._writer = writer
        self._readers = readers

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, *, patience: float = PATIENCE) -> AsyncGenerator["SqliteStore"]:
        """Open the database, creating or migrating it, until the end of the block.

        Args:
            path: the file; it and the folders it needs are made for this user only.
            patience: seconds a write waits for other processes.

        Raises:
            StorageError: `migration_failed` for a newer database, which is left untouched;
                `storage_error` if the file cannot be used.
        """
        path = path.absolute()  # noqa: ASYNC240 - asks for the working folder, reads nothing
        try:
            connection = await asyncio.to_thread(open_writer, path, patience)
        except sqlite3.Error as error:
            raise explained(error, path) from error
        writer = Writer(connection, path, patience=patience)
        readers = Readers(path)
        try:
            yield cls(writer, readers, path)
        finally:
            # Whoever closes last folds the log into the file: that must be the writer.
            try:
                await readers.close()
            finally:
                await writer.close()

    # writes

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        try:
            job = appending(batch)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the write
            refused: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
            refused.set_exception(explained(error, self._path))
            return refused
        return self._writer.submit(job)

    async def open_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        return await self._writer.submit(partial(claims.open_run, opening=opening, is_dead=is_dead))

    async def add_agent(self, agent: AgentRecord) -> None:
        await self._writer.submit(partial(claims.insert_agent, agent=agent))

    async def update_agent(
        self,
        agent_id: str,
        *,
        status: AgentStatus | None = None,
        result: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        change = edits.AgentChange(agent_id, status, result, metadata)
        await self._writer.submit(partial(edits.update_agent, change=change))

    async def add_run(
        self, run: RunRecord, *, events: Sequence[PendingEvent] = (), claim: Claim | None = None
    ) -> Position:
        return await self._writer.submit(
            partial(claims.insert_run, run=run, events=events, claim=claim)
        )

    async def close_lost_runs(self, is_dead: OwnerIsDead) -> list[RunRecord]:
        return await self._writer.submit(partial(claims.close_lost_runs, is_dead=is_dead))

    async def heartbeat(self, owner: str, until: datetime) -> None:
        await self._writer.submit(partial(claims.heartbeat, owner=owner, until=until))

    async def release(self, session_id: str, owner: str) -> None:
        await self._writer.submit(partial(claims.release, owner=owner, session_id=session_id))

    async def release_all(self, owner: str) -> None:
        await self._writer.submit(partial(claims.release, owner=owner))

    async def note(self, note: SessionNote) -> bool:
        return await self._writer.submit(noting(note))

    async def set_active_node(
        self, session_id: str, node_id: str, *, is_dead: OwnerIsDead
    ) -> SessionRecord:
        return await self._writer.submit(
            partial(claims.set_active_node, session_id=session_id, node_id=node_id, is_dead=is_dead)
        )

    async def update_session_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        await self._writer.submit(
            partial(edits.update_session_metadata, session_id=session_id, changes=changes)
        )

    async def delete_session(self, session_id: str, *, is_dead: OwnerIsDead) -> None:
        await self._writer.submit(
            partial(claims.delete_session, session_id=session_id, is_dead=is_dead)
        )

    async def add_artifact(self, artifact: ArtifactRecord) -> None:
        await self._writer.submit(partial(edits.add_artifact, artifact=artifact))

    async def delete_artifact_row(self, artifact_id: str) -> None:
        await self._writer.submit(partial(edits.delete_artifact_row, artifact_id=artifact_id))

    # reads

    async def session(self, session_id: str) -> SessionRecord | None:
        return await self._readers.read(partial(claims.find_session, session_id=session_id))

    async def sessions(self, *, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
        return await self._readers.read(partial(queries.sessions, limit=limit, offset=offset))

    async def agent(self, agent_id: str) -> AgentRecord | None:
        sql = "SELECT * FROM agents WHERE agent_id = ?"
        return await self._readers.read(
            lambda connection: queries.find(connection, AgentRecord, sql, agent_id)
        )

    async def agents(self, session_id: str) -> list[AgentRecord]:
        return await self._readers.read(partial(queries.agents, session_id=session_id))

    async def run(self, run_id: str) -> RunRecord | None:
        sql = "SELECT * FROM runs WHERE run_id = ?"
        return await self._readers.read(
            lambda connection: queries.find(connection, RunRecord, sql, run_id)
        )

    async def active_run_ids(self, session_id: str) -> list[str]:
        return await self._readers.read(partial(queries.active_run_ids, session_id=session_id))

    async def node(self, node_id: str) -> Node | None:
        sql = "SELECT * FROM nodes WHERE node_id = ?"
        return await self._readers.read(
            lambda connection: queries.find(connection, Node, sql, node_id)
        )

    async def path(self, node_id: str) -> list[Node]:
        return await self._readers.read(partial(queries.path, node_id=node_id))

    async def page(
        self,
        session_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        limit: int = 1000,
    ) -> ReplayResult:
        span = queries.span(from_seq, to_seq)
        return await self._readers.read(
            partial(queries.page, session_id=session_id, span=span, limit=limit)
        )

    async def run_history(self, run_id: str) -> ReplayResult:
        return await self._readers.read(partial(queries.run_history, run_id=run_id))

    async def open_calls(
        self, session_id: str, tool_call_ids: Collection[str], *, agent_id: str | None = None
    ) -> set[str]:
        return await self._readers.read(
            partial(
                queries.open_calls,
                session_id=session_id,
                tool_call_ids=tuple(tool_call_ids),
                agent_id=agent_id,
            )
        )

    async def artifact(self, artifact_id: str) -> ArtifactRecord | None:
        sql = "SELECT * FROM artifacts WHERE artifact_id = ?"
        return await self._readers.read(
            lambda connection: queries.find(connection, ArtifactRecord, sql, artifact_id)
        )

    async def artifacts(
        self,
        *,
        session_id: str | None = None,
        kinds: Collection[str] | None = None,
        older_than: datetime | None = None,
    ) -> list[ArtifactRecord]:
        return await self._readers.read(
            partial(queries.artifacts, session_id=session_id, kinds=kinds, older_than=older_than)
        )

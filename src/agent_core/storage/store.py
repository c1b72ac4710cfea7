"""The operations of the session store; `sqlite` and `postgres` run its jobs on a database."""

import asyncio
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import (
    approvals,
    budgets,
    claims,
    grants,
    owners,
    queries,
    takeovers,
    workspaces,
)
from agent_core.storage.queries import PATH, clamp
from agent_core.storage.rows import (
    OPEN_RUN,
    OWNED_RUN,
    BatchRows,
    Record,
    append,
    find,
    insert,
    iso,
    merge_metadata,
    node_not_found,
    note_job,
    read_all,
    rows_of,
    sparing,
    storable,
    unstorable,
    update,
)
from agent_core.storage.sql import Connection, JobReader, JobWriter
from agent_core.types import (
    LEASE,
    AgentRecord,
    AgentStatus,
    Amounts,
    ArtifactRecord,
    Batch,
    BudgetGrant,
    BudgetHold,
    BudgetUse,
    Claim,
    Decision,
    EventType,
    Heartbeat,
    Node,
    OpenedRun,
    OwnerIsDead,
    PendingEvent,
    Position,
    RunOpening,
    RunRecord,
    RunStatus,
    RuntimeEvent,
    SessionNote,
    SessionRecord,
    TextBlock,
    utc_now,
)
from agent_core.types.memory_scopes import MEMORY_OFF, MEMORY_SHARED, MemoryTerms

if TYPE_CHECKING:
    from agent_core.types import (
        ApprovalRecord,
        CostSummary,
        CostUnit,
        NodeMove,
        PermissionGrant,
        ReplayResult,
        RunChanges,
        SessionFork,
        SessionSummary,
        SnapshotNote,
        WorkspaceState,
    )

_SCOPES = {None: MEMORY_SHARED, "1": MEMORY_SHARED, "0": MEMORY_OFF}
"""Scopes for stored values: runs without one, and values that version 0.3 stored."""

LARGE = 65_536
"""Number of characters from which a write is large."""


_ANSWERS = """SELECT 1 FROM nodes WHERE nodes.session_id = sessions.session_id
    AND nodes.role = 'assistant' AND nodes.node_type = 'message'
    AND json_extract(nodes.metadata_json, '$.partial') IS NULL
    AND json_extract(nodes.metadata_json, '$.aborted') IS NULL
    AND json_extract(nodes.metadata_json, '$.failed') IS NULL"""
"""Query for a session's complete replies."""

_QUEUED = f"""SELECT 1 FROM runs WHERE runs.session_id = sessions.session_id
    AND runs.{OPEN_RUN} AND runs.status = 'queued'"""  # noqa: S608 - a constant
"""Query for a session's unsent messages."""


class SqlSessionStore:
    """Sessions and their history in a database that several processes may share.

    The methods are described in `agent_core.events.SessionStore`.
    """

    def __init__(
        self, writer: JobWriter, reader: JobReader, clock: Callable[[Connection], datetime]
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._epochs: dict[str, int] = {}  # of the sessions claimed through this store

    # writes

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        epoch = self._epochs.get(batch.session_id) if batch.epoch is None else batch.epoch
        try:
            rows = rows_of(batch)
        except Exception as error:  # noqa: BLE001 - the caller that awaits the write gets it
            refused: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
            refused.set_exception(unstorable(error))
            return refused
        return self._append(batch, rows, epoch)

    def _append(self, batch: Batch, rows: BatchRows, epoch: int | None) -> asyncio.Future[Position]:
        return self._writer.submit(
            lambda c: append(c, batch, rows, epoch), batch.session_id, is_small=rows.size < LARGE
        )

    async def open_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        blocks = opening.prompt.content if opening.prompt else ()
        is_small = all(isinstance(b, TextBlock) and len(b.text) < LARGE for b in blocks)

        def submit(same_folder: str | None) -> asyncio.Future[OpenedRun]:
            return self._writer.submit(
                lambda c: claims.open_run(c, opening, is_dead, self._clock(c), same_folder),
                opening.session_id,
                is_small=is_small,
            )

        asked_at = owners.now()
        try:
            opened = await submit(None)
        except StorageError as error:
            if error.code is not ErrorCode.SESSION_ELSEWHERE:
                raise
            opened = await submit(await asyncio.to_thread(claims.require_same_folder, error))
        return self._claimed(opened, asked_at)

    async def resume_run(
        self, run_id: str, claim: Claim, *, cwd: str, is_dead: OwnerIsDead
    ) -> OpenedRun:
        def submit(*cwds: str) -> asyncio.Future[OpenedRun]:
            return self._writer.submit(
                lambda c: claims.resume_run(c, run_id, claim, is_dead, self._clock(c), cwds=cwds),
                run_id,
                by="run_id",
            )

        asked_at = owners.now()
        try:
            opened = await submit(storable(cwd))
        except StorageError as error:
            if error.code is not ErrorCode.SESSION_ELSEWHERE:
                raise
            there = str(error.details["cwd"])
            if await asyncio.to_thread(os.path.realpath, there) != cwd:
                raise
            opened = await submit(storable(there))
        return self._claimed(opened, asked_at)

    def _claimed(self, opened: OpenedRun, asked_at: float) -> OpenedRun:
        """Remember the session's epoch, which later writes to it need."""
        self._epochs[opened.session.session_id] = opened.session.epoch
        return replace(opened, asked_at=asked_at)

    async def queue_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        def submit(same_folder: str | None) -> asyncio.Future[OpenedRun]:
            def queue(connection: Connection) -> OpenedRun:
                clock = partial(self._clock, connection)
                opened = takeovers.queue_run(connection, opening, is_dead, clock, same_folder)
                self._add_job(connection, opened.run, opening)
                return opened

            return self._writer.submit(queue, opening.session_id)

        try:
            return await submit(None)
        except StorageError as error:
            if error.code is not ErrorCode.SESSION_ELSEWHERE:
                raise
            return await submit(await asyncio.to_thread(claims.require_same_folder, error))

    async def queue_again(self, run_id: str) -> bool:
        return await self._writer.submit(
            lambda c: self._queue_waiting(c, run_id), run_id, by="run_id"
        )

    def _queue_waiting(self, connection: Connection, run_id: str) -> bool:
        run = find(connection, RunRecord, run_id)
        if run is None or run.status is not RunStatus.WAITING or not run.is_for_workers:
            return False
        self._add_job(connection, run, None)
        return True

    def _add_job(self, connection: Connection, run: RunRecord, opening: RunOpening | None) -> None:
        """Put a run into the workers' queue, if there is one."""

    async def take_run(
        self, run_id: str, claim: Claim, *, is_dead: OwnerIsDead, max_takeovers: int | None
    ) -> OpenedRun | None:
        asked_at = owners.now()
        taken = await self._writer.submit(
            lambda c: takeovers.take_run(
                c, run_id, claim, is_dead, partial(self._clock, c), max_takeovers=max_takeovers
            ),
            run_id,
            by="run_id",
        )
        return None if taken is None else self._claimed(taken, asked_at)

    async def hand_over(self, run_id: str, owner: str) -> bool:
        return await self._writer.submit(
            lambda c: takeovers.hand_over(c, run_id, owner), run_id, by="run_id"
        )

    async def drop_queued(self, run_id: str, *, taken_by: str | None = None) -> bool:
        def drop(connection: Connection) -> bool:
            is_dropped = takeovers.drop_queued(connection, run_id, taken_by)
            if is_dropped:
                self._remove_job(connection, run_id)
            return is_dropped

        return await self._writer.submit(drop, run_id, by="run_id")

    def _remove_job(self, connection: Connection, run_id: str) -> None:
        """Remove a run from the workers' queue, if there is one."""

    async def close_waiting(self, run_id: str) -> None:
        await self._writer.submit(
            lambda c: claims.close_waiting(c, run_id, self._clock(c)), run_id, by="run_id"
        )

    async def ask(self, asked: "ApprovalRecord") -> "ApprovalRecord":
        return await self._writer.submit(
            lambda c: approvals.ask(c, asked), asked.session_id, is_small=True
        )

    async def answer(
        self,
        request_id: str,
        decision: Decision,
        *,
        reason: str | None,
        by: str,
        decider: str,
        arguments: Mapping[str, Any] | None = None,
    ) -> "tuple[ApprovalRecord | None, bool]":
        def decide(connection: Connection) -> "tuple[ApprovalRecord | None, bool]":
            found, is_first = approvals.answer(
                connection,
                request_id,
                decision,
                reason=reason,
                by=by,
                decider=decider,
                now=self._clock(connection),
                arguments=arguments,
            )
            if found is not None and is_first:
                self._queue_waiting(connection, found.root_run_id)
            return found, is_first

        return await self._writer.submit(decide, request_id, by="request_id", is_small=True)

    async def withdraw(self, request_id: str) -> None:
        await self._writer.submit(
            lambda c: approvals.withdraw(c, request_id, self._clock(c)), request_id, by="request_id"
        )

    async def add_agent(self, agent: AgentRecord) -> None:
        def add(connection: Connection) -> None:
            claims.find_session(connection, agent.session_id)
            insert(connection, agent)

        await self._writer.submit(add, agent.session_id)

    async def update_agent(
        self,
        agent_id: str,
        *,
        status: AgentStatus | None = None,
        result: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        def change(connection: Connection) -> None:
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

        await self._writer.submit(change, agent_id, by="agent_id")

    async def add_run(
        self, run: RunRecord, *, events: Sequence[PendingEvent] = (), claim: Claim | None = None
    ) -> Position:
        position, epoch = await self._writer.submit(
            lambda c: claims.add_run(c, run, events, claim, self._clock(c)),
            run.session_id,
        )
        if claim is not None:
            self._epochs[run.session_id] = epoch
        return position

    async def close_lost_runs(self, is_dead: OwnerIsDead) -> list[RunRecord]:
        lost: list[RunRecord] = []
        for session_id in await self._lost_sessions(is_dead):  # a transaction each: see `sparing`
            with sparing(f"session {session_id}"):
                lost += await self._writer.submit(
                    lambda c, one=session_id: claims.close_lost_session(
                        c, one, is_dead, self._clock(c)
                    ),
                    session_id,
                )
        return lost

    async def _lost_sessions(self, is_dead: OwnerIsDead) -> list[str]:
        return await self._writer.submit(lambda c: claims.lost_sessions(c, is_dead, self._clock(c)))

    async def heartbeat(self, owner: str, lease: timedelta = LEASE) -> Heartbeat:
        return await self._writer.submit(
            lambda c: claims.heartbeat(c, owner, lease, self._clock(c))
        )

    async def request_cancel(self, run_id: str) -> bool:
        return await self._writer.submit(
            lambda c: claims.request_cancel(c, run_id, self._clock(c)), run_id, by="run_id"
        )

    async def release(self, session_id: str, owner: str) -> None:
        await self._writer.submit(
            partial(claims.release, owner=owner, session_id=session_id), session_id
        )

    async def release_all(self, owner: str) -> None:
        await self._writer.submit(partial(claims.release, owner=owner))

    async def add_to_memory_backlog(
        self, session_ids: Collection[str] = (), *, since: datetime | None = None
    ) -> None:
        sql = """INSERT INTO memory_backlog (session_id)
            SELECT session_id FROM sessions WHERE session_id = ? OR updated_at >= ?
            ON CONFLICT DO NOTHING"""
        chosen = [(session_id, None) for session_id in session_ids]
        chosen += [] if since is None else [(None, iso(since))]
        await self._writer.submit(lambda c: c.executemany(sql, chosen))

    async def remove_from_memory_backlog(self, session_id: str) -> None:
        sql = "DELETE FROM memory_backlog WHERE session_id = ?"
        await self._writer.submit(lambda c: c.execute(sql, (session_id,)))

    async def note(self, note: SessionNote) -> bool:
        return await self._writer.submit(note_job(note), note.session_id, is_small=True)

    async def reserve_budget(self, hold: BudgetHold, *, at_once: bool = False) -> BudgetGrant:
        return await self._writer.submit(
            lambda c: budgets.reserve(c, hold, at_once=at_once), hold.session_id, is_small=True
        )

    async def settle_budget(self, hold_id: str, spent: Amounts | None) -> None:
        await self._writer.submit(
            lambda c: budgets.settle(c, hold_id, spent), hold_id, by="hold_id", is_small=True
        )

    async def rename_session(self, session_id: str, title: str) -> None:
        def rename(connection: Connection) -> None:
            claims.find_session(connection, session_id)
            update(connection, SessionRecord, session_id, {"title": title})

        await self._writer.submit(rename, session_id)

    async def add_titles(self, titles: Mapping[str, str]) -> None:
        from agent_core.storage.summaries import add_titles  # noqa: PLC0415 - runs need none

        await self._writer.submit(lambda c: add_titles(c, titles))

    async def delete_session(self, session_id: str, *, is_dead: OwnerIsDead) -> None:
        await self._writer.submit(
            lambda c: claims.delete_session(c, session_id, is_dead, self._clock(c)),
            session_id,
        )
        self._epochs.pop(session_id, None)

    async def add_artifact(self, artifact: ArtifactRecord) -> None:
        def add(connection: Connection) -> None:
            claims.find_session(connection, artifact.session_id)
            insert(connection, artifact)

        await self._writer.submit(add, artifact.session_id)

    async def delete_artifact_row(self, artifact_id: str) -> None:
        sql = "DELETE FROM artifacts WHERE artifact_id = ?"
        await self._writer.submit(lambda c: c.execute(sql, (artifact_id,)))

    async def add_grant(self, grant: "PermissionGrant") -> None:
        await self._writer.submit(lambda c: grants.add(c, grant), grant.session_id, is_small=True)

    async def forget_grants(self, grant_or_session_id: str) -> int:
        return await self._writer.submit(lambda c: grants.forget(c, grant_or_session_id))

    async def name_snapshot(self, note: "SnapshotNote") -> None:
        await self._writer.submit(
            lambda c: workspaces.name_snapshot(c, note), note.session_id, is_small=True
        )

    async def end_changes(self, session_id: str, run_id: str) -> None:
        await self._writer.submit(
            lambda c: workspaces.end_changes(c, run_id, session_id), session_id, is_small=True
        )

    async def begin_move(self, session_id: str, move: "NodeMove", *, is_dead: OwnerIsDead) -> None:
        await self._writer.submit(
            lambda c: workspaces.begin_move(c, session_id, move, is_dead, self._clock(c)),
            session_id,
        )

    async def drop_move(self, session_id: str) -> None:
        await self._writer.submit(lambda c: workspaces.drop_move(c, session_id), session_id)

    async def move_node(
        self, session_id: str, move: "NodeMove", *, is_dead: OwnerIsDead
    ) -> SessionRecord:
        return await self._writer.submit(
            lambda c: workspaces.move_node(c, session_id, move, is_dead, self._clock(c)),
            session_id,
        )

    async def fork_session(self, fork: "SessionFork") -> SessionRecord:
        from agent_core.storage.forks import fork_session  # noqa: PLC0415 - few sessions have any

        return await self._writer.submit(lambda c: fork_session(c, fork), fork.session_id)

    async def drop_snapshots(self, before: datetime) -> bool:
        return await self._writer.submit(lambda c: workspaces.drop_snapshots(c, before))

    # reads

    async def find_grant(self, session_id: str, key: str) -> "PermissionGrant | None":
        found = await self._reader.read(lambda c: grants.listed(c, session_id, key))
        return found[0] if found else None

    async def grants(self, session_id: str | None = None) -> "list[PermissionGrant]":
        return await self._reader.read(lambda c: grants.listed(c, session_id))

    async def workspace_state(self, session_id: str, folder: str) -> "WorkspaceState":
        return await self._reader.read(lambda c: workspaces.workspace_state(c, session_id, folder))

    async def snapshot_at(self, session_id: str, node_id: str | None, folder: str) -> str | None:
        return await self._reader.read(
            lambda c: workspaces.snapshot_at(c, session_id, node_id, folder)
        )

    async def changes_of(self, run_id: str, folder: str) -> "RunChanges | None":
        return await self._reader.read(lambda c: workspaces.changes_of(c, run_id, folder))

    async def overlapping_changes(self, run_id: str, folder: str) -> list[tuple[str, str]]:
        return await self._reader.read(lambda c: workspaces.overlapping_changes(c, run_id, folder))

    async def pending_moves(self, folder: str) -> list[str]:
        return await self._reader.read(lambda c: workspaces.pending_moves(c, folder))

    async def snapshots_in_use(self) -> set[str]:
        return await self._reader.read(workspaces.snapshots_in_use)

    async def working_sessions(self, is_dead: OwnerIsDead) -> Sequence[SessionRecord]:
        return await self._reader.read(
            lambda c: workspaces.working_sessions(c, is_dead, self._clock(c))
        )

    async def session(self, session_id: str) -> SessionRecord | None:
        return await self._find(SessionRecord, session_id)

    async def sessions(self, *, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
        sql = "SELECT * FROM sessions ORDER BY updated_at DESC, rowid DESC LIMIT ? OFFSET ?"
        page = clamp(limit, 0), clamp(offset, 0)
        return await self._find_all(SessionRecord, sql, *page)

    async def session_summaries(
        self,
        *,
        limit: int,
        offset: int = 0,
        project: str | None = None,
        query: str | None = None,
        forked_from: str | None = None,
    ) -> "list[tuple[SessionSummary, Mapping[str, Any]]]":
        from agent_core.storage.summaries import summaries  # noqa: PLC0415 - runs need none

        page = clamp(limit, 0), clamp(offset, 0)
        folder = None if project is None else storable(project)
        return await self._reader.read(lambda c: summaries(c, *page, folder, query, forked_from))

    async def costs(
        self,
        by: "CostUnit",
        *,
        since: datetime | None = None,
        project: str | None = None,
        limit: int = 1_000_000,
    ) -> "list[CostSummary]":
        from agent_core.storage.costs import costs  # noqa: PLC0415 - runs need none

        begin = None if since is None else iso(since)
        folder = None if project is None else storable(project)
        most = clamp(limit, 0)
        return await self._reader.read(
            lambda c: costs(c, by, since=begin, project=folder, limit=most)
        )

    async def last_session(self, project: str | None = None) -> str | None:
        sql = f"""SELECT session_id FROM sessions
            WHERE (CAST(:cwd AS TEXT) IS NULL OR cwd = :cwd)
            AND (EXISTS ({_ANSWERS}) OR EXISTS ({_QUEUED}))
            ORDER BY updated_at DESC, rowid DESC LIMIT 1"""  # noqa: S608 - a constant
        folder = None if project is None else storable(project)
        found = await self._reader.read(lambda c: c.execute(sql, {"cwd": folder}).fetchone())
        return found[0] if found else None

    async def memory_backlog(self, limit: int) -> list[str]:
        sql = """SELECT session_id FROM memory_backlog JOIN sessions USING (session_id)
            WHERE owner IS NULL ORDER BY updated_at DESC LIMIT ?"""
        rows = await self._reader.read(lambda c: c.execute(sql, (limit,)).fetchall())
        return [session_id for (session_id,) in rows]

    async def memory_terms(self, run_ids: Collection[str]) -> dict[str, MemoryTerms]:
        sql = """SELECT run_id, CAST(json_extract(options_json, '$.memory') AS TEXT),
            json_extract(options_json, '$.model'), json_extract(options_json, '$.needs_caller')
            FROM runs WHERE run_id IN (SELECT value FROM json_each(?))"""
        asked = (json.dumps(list(run_ids)),)
        rows = await self._reader.read(lambda c: c.execute(sql, asked).fetchall())
        return {
            run_id: MemoryTerms(
                scope=str(_SCOPES.get(scope, scope)),
                model=model,
                needs_object="model" in json.loads(needed or "[]"),
            )
            for run_id, scope, model, needed in rows
        }

    async def untitled(self, limit: int) -> dict[str, str]:
        from agent_core.storage.summaries import untitled  # noqa: PLC0415 - runs need none

        return await self._reader.read(lambda c: untitled(c, limit))

    async def nodes_like(
        self,
        patterns: Sequence[str],
        *,
        before: int | None = None,
        limit: int,
        project: str | None = None,
    ) -> list[tuple[int, Node]]:
        from agent_core.storage.summaries import nodes_like  # noqa: PLC0415 - runs need none

        likes = list(map(storable, patterns))
        folder = None if project is None else storable(project)
        return await self._reader.read(lambda c: nodes_like(c, likes, before, limit, folder))

    async def ids_beginning(
        self, kind: str, prefix: str, *, session_id: str | None = None, limit: int = 10
    ) -> list[str]:
        from agent_core.storage.summaries import ids_beginning  # noqa: PLC0415 - runs need none

        start = storable(prefix)
        return await self._reader.read(lambda c: ids_beginning(c, kind, start, session_id, limit))

    async def agent(self, agent_id: str) -> AgentRecord | None:
        return await self._find(AgentRecord, agent_id)

    async def agents(self, session_id: str) -> list[AgentRecord]:
        sql = "SELECT * FROM agents WHERE session_id = ? ORDER BY rowid"
        return await self._find_all(AgentRecord, sql, session_id)

    async def run(self, run_id: str) -> RunRecord | None:
        return await self._find(RunRecord, run_id)

    async def runs(self, session_id: str) -> list[RunRecord]:
        sql = "SELECT * FROM runs WHERE session_id = ? ORDER BY rowid"
        return await self._find_all(RunRecord, sql, session_id)

    async def active_run_ids(self, session_id: str) -> list[str]:
        sql = f"SELECT run_id FROM runs WHERE session_id = ? AND {OWNED_RUN} ORDER BY rowid"  # noqa: S608
        rows = await self._reader.read(
            lambda c: c.execute(sql, (session_id,)).fetchall(), is_single=True
        )
        return [run_id for (run_id,) in rows]

    async def node(self, node_id: str) -> Node | None:
        return await self._find(Node, node_id)

    async def path(self, node_id: str, *, after: str | None = None) -> list[Node]:
        nodes = await self._find_all(Node, PATH, node=node_id, after=after)
        if not nodes and node_id != after:
            raise node_not_found(node_id)
        return nodes

    async def page(
        self,
        session_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        limit: int = 1000,
    ) -> "ReplayResult":
        return await self._reader.read(
            lambda c: queries.page(c, session_id, from_seq, to_seq, limit)
        )

    async def run_history(self, run_id: str) -> "ReplayResult":
        return await self._reader.read(lambda c: queries.run_history(c, run_id))

    async def run_nodes(self, run_id: str) -> list[Node]:
        return await self._find_all(Node, queries.RUN_NODES, run=run_id)

    async def events_after(
        self, run_id: str, run_seq: int, *, limit: int = 1000
    ) -> list[RuntimeEvent]:
        sql = "SELECT * FROM events WHERE run_id = ? AND run_seq > ? ORDER BY run_seq LIMIT ?"
        span = clamp(run_seq, 0), clamp(limit, 1)
        return await self._find_all(RuntimeEvent, sql, run_id, *span)

    async def last_events(
        self, session_id: str, agent_id: str, event_type: EventType, *, limit: int
    ) -> list[RuntimeEvent]:
        sql = """SELECT * FROM events WHERE session_id = ? AND agent_id = ? AND event_type = ?
            ORDER BY seq DESC LIMIT ?"""
        asked = session_id, agent_id, event_type.value, clamp(limit, 0)
        return await self._find_all(RuntimeEvent, sql, *asked)

    async def open_calls(
        self, session_id: str, tool_call_ids: Collection[str], *, agent_id: str | None = None
    ) -> set[str]:
        ids = tuple(tool_call_ids)
        return await self._reader.read(lambda c: queries.open_calls(c, session_id, ids, agent_id))

    async def budget_uses(self, scope_ids: Collection[str]) -> list[BudgetUse]:
        return await self._reader.read(lambda c: budgets.uses(c, scope_ids))

    async def waiting_children(self, run_id: str) -> list[RunRecord]:
        return await self._reader.read(lambda c: claims.waiting_children(c, run_id), is_single=True)

    async def approval(self, request_id: str) -> "ApprovalRecord | None":
        from agent_core.types import ApprovalRecord  # noqa: PLC0415 - few runs need it

        return await self._find(ApprovalRecord, request_id)

    async def approval_of(
        self, root_run_id: str, run_id: str, tool_call_id: str
    ) -> "ApprovalRecord | None":
        return await self._reader.read(
            lambda c: approvals.of_call(c, root_run_id, run_id, tool_call_id)
        )

    async def approvals(
        self,
        *,
        session_id: str | None = None,
        prefix: str = "",
        is_open: bool = True,
        limit: int = 100,
    ) -> "list[ApprovalRecord]":
        return await self._reader.read(
            lambda c: approvals.listed(
                c, session_id=session_id, prefix=prefix, is_open=is_open, limit=clamp(limit, 0)
            )
        )

    async def is_answered(self, root_run_id: str) -> bool:
        return await self._reader.read(
            lambda c: approvals.is_answered(c, root_run_id), is_single=True
        )

    async def artifact(self, artifact_id: str) -> ArtifactRecord | None:
        return await self._find(ArtifactRecord, artifact_id)

    async def artifacts(
        self,
        *,
        session_id: str | None = None,
        kinds: Collection[str] | None = None,
        older_than: datetime | None = None,
    ) -> list[ArtifactRecord]:
        return await self._reader.read(
            lambda c: queries.artifacts(c, session_id, kinds, older_than)
        )

    async def _find(self, kind: type[Record], key: str) -> Record | None:
        return await self._reader.read(lambda c: find(c, kind, key), is_single=True)

    async def _find_all(
        self, kind: type[Record], sql: str, *values: str | int | None, **named: str | None
    ) -> list[Record]:
        return await self._reader.read(
            lambda c: read_all(kind, c.execute(sql, named or values)), is_single=True
        )

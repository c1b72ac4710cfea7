"""The session store without a file: for tests, demos and runs that leave nothing behind."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from agent_core.storage import rules
from agent_core.storage.tables import InMemoryTables
from agent_core.types import (
    AgentRecord,
    AgentStatus,
    ArtifactRecord,
    Batch,
    Claim,
    EventType,
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
    utc_now,
)

_LEDGER = {
    EventType.TOOL_STARTED,
    EventType.TOOL_COMPLETED,
    EventType.TOOL_FAILED,
    EventType.TOOL_DENIED,
}


class InMemoryStore:
    """Sessions and their history in dictionaries; each call is atomic because nothing awaits.

    The methods are described where they are asked for, in `agent_core.events.SessionStore`.
    """

    def __init__(self) -> None:
        self._tables = InMemoryTables()

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncGenerator["InMemoryStore"]:
        """An empty store until the end of the block."""
        yield cls()

    # writes

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        written: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        try:
            written.set_result(self._tables.append(batch))
        except ValidationError as error:
            written.set_exception(rules.unreadable(str(error)))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the write
            written.set_exception(error)
        return written

    async def open_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        session = self._tables.sessions.get(opening.session_id)
        resumed = session is not None
        lost: list[RunRecord] = []
        queued: list[RunRecord] = []
        if session is None:
            session = rules.new_session(opening)
            self._tables.sessions[session.session_id] = session
            self._tables.events[session.session_id] = []
        else:
            cwd = rules.move_to(session, opening)
            if session.owner != opening.owner:
                rules.refuse_unless_free(session, is_dead)
                lost = self._tables.close_lost(session)
                queued = self._tables.open_runs(opening.session_id)
            if cwd is not None:
                self._tables.move(session, cwd)
        agent = self._tables.root_agent(opening)
        run = rules.new_run(opening, agent.agent_id)
        position = self._tables.add_run(run, opening.events)
        session = self._tables.change_session(
            opening.session_id,
            owner=opening.owner,
            lease_expires_at=opening.lease_expires_at,
            updated_at=run.created_at,
            root_agent_id=self._tables.sessions[opening.session_id].root_agent_id or agent.agent_id,
        )
        return OpenedRun(
            session=session,
            agent=agent,
            run=run,
            resumed=resumed,
            position=position,
            lost=lost,
            queued=queued,
        )

    async def add_agent(self, agent: AgentRecord) -> None:
        self._tables.known_session(agent.session_id)
        self._tables.agents[agent.agent_id] = agent

    async def update_agent(
        self,
        agent_id: str,
        *,
        status: AgentStatus | None = None,
        result: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        agent = self._tables.agents.get(agent_id)
        if agent is not None:
            self._tables.change_agent(
                agent_id,
                status=status or agent.status,
                result=dict(result) if result is not None else agent.result,
                metadata=rules.merged(agent.metadata, metadata or {}),
            )

    async def add_run(
        self, run: RunRecord, *, events: Sequence[PendingEvent] = (), claim: Claim | None = None
    ) -> Position:
        if claim is not None:
            rules.refuse_unless_owned(self._tables.known_session(run.session_id), claim)
            self._tables.change_session(
                run.session_id, owner=claim.owner, lease_expires_at=claim.lease_expires_at
            )
        return self._tables.add_run(run, events)

    async def close_lost_runs(self, is_dead: OwnerIsDead) -> list[RunRecord]:
        lost: list[RunRecord] = []
        for session in list(self._tables.sessions.values()):
            if session.owner is None or is_dead(session.owner, session.lease_expires_at):
                lost += self._tables.close_lost(session)
        return lost

    async def heartbeat(self, owner: str, until: datetime) -> None:
        for session in list(self._tables.sessions.values()):
            if session.owner == owner:
                self._tables.change_session(session.session_id, lease_expires_at=until)

    async def release(self, session_id: str, owner: str) -> None:
        session = self._tables.sessions.get(session_id)
        if session is not None and session.owner == owner:
            self._tables.change_session(session_id, owner=None, lease_expires_at=None)

    async def release_all(self, owner: str) -> None:
        for session_id in list(self._tables.sessions):
            await self.release(session_id, owner)

    async def note(self, note: SessionNote) -> bool:
        return self._tables.note(note)

    async def set_active_node(
        self, session_id: str, node_id: str, *, is_dead: OwnerIsDead
    ) -> SessionRecord:
        self._tables.refuse_while_active(session_id, is_dead, only_root_runs=True)
        node = self._tables.nodes.get(node_id)
        if node is None or node.session_id != session_id:
            raise rules.node_not_found(node_id, session_id)
        return self._tables.change_session(session_id, active_node_id=node_id, updated_at=utc_now())

    async def update_session_metadata(self, session_id: str, changes: Mapping[str, Any]) -> None:
        session = self._tables.known_session(session_id)
        self._tables.change_session(session_id, metadata=rules.merged(session.metadata, changes))

    async def delete_session(self, session_id: str, *, is_dead: OwnerIsDead) -> None:
        self._tables.refuse_while_active(session_id, is_dead)
        self._tables.drop(session_id)

    async def add_artifact(self, artifact: ArtifactRecord) -> None:
        self._tables.known_session(artifact.session_id)
        self._tables.artifacts[artifact.artifact_id] = artifact

    async def delete_artifact_row(self, artifact_id: str) -> None:
        self._tables.artifacts.pop(artifact_id, None)

    # reads

    async def session(self, session_id: str) -> SessionRecord | None:
        return self._tables.sessions.get(session_id)

    async def sessions(self, *, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
        newest_first = sorted(self._tables.sessions.values(), key=lambda one: one.updated_at)[::-1]
        return newest_first[max(offset, 0) :][: max(limit, 0)]

    async def agent(self, agent_id: str) -> AgentRecord | None:
        return self._tables.agents.get(agent_id)

    async def agents(self, session_id: str) -> list[AgentRecord]:
        return [agent for agent in self._tables.agents.values() if agent.session_id == session_id]

    async def run(self, run_id: str) -> RunRecord | None:
        return self._tables.runs.get(run_id)

    async def active_run_ids(self, session_id: str) -> list[str]:
        return [run.run_id for run in self._tables.open_runs(session_id)]

    async def node(self, node_id: str) -> Node | None:
        return self._tables.nodes.get(node_id)

    async def path(self, node_id: str) -> list[Node]:
        node = self._tables.nodes.get(node_id)
        if node is None:
            raise rules.node_not_found(node_id)
        path: list[Node] = []
        while node is not None:
            path.append(node)
            node = self._tables.nodes.get(node.parent_id) if node.parent_id else None
        return path[::-1]

    async def page(
        self,
        session_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        limit: int = 1000,
    ) -> ReplayResult:
        session = self._tables.known_session(session_id)
        roots = self._tables.root_agents(session_id)
        root_ids = {agent.agent_id for agent in roots}
        first = max(from_seq or 1, 1) - 1
        last = max(to_seq, 0) if to_seq is not None else None
        fitting = [
            event
            for event in self._tables.events[session_id][first:last]
            if event.agent_id is None or event.agent_id in root_ids
        ]
        limit = max(limit, 1)
        events, rest = fitting[:limit], fitting[limit:]
        touched = {event.run_id for event in events}
        return ReplayResult(
            session=session,
            agents=roots,
            runs=[run for run in self._tables.runs.values() if run.run_id in touched],
            nodes=self._tables.nodes_of(events),
            events=events,
            artifacts=self._tables.artifacts_of(events),
            next_seq=rest[0].seq if rest else None,
        )

    async def run_history(self, run_id: str) -> ReplayResult:
        run = self._tables.runs.get(run_id)
        if run is None:
            raise rules.run_not_found(run_id)
        events = [event for event in self._tables.events[run.session_id] if event.run_id == run_id]
        return ReplayResult(
            session=self._tables.known_session(run.session_id),
            agents=[self._tables.agents[run.agent_id]]
            if run.agent_id in self._tables.agents
            else [],
            runs=[run],
            nodes=[node for node in self._tables.nodes_of(events) if node.run_id == run_id],
            events=events,
            artifacts=[one for one in self._tables.artifacts.values() if one.run_id == run_id],
        )

    async def open_calls(
        self, session_id: str, tool_call_ids: Collection[str], *, agent_id: str | None = None
    ) -> set[str]:
        last_step: dict[str, EventType] = {}
        for event in self._tables.events.get(session_id, []):
            call_id = event.tool_call_id
            if call_id is None or call_id not in tool_call_ids or event.event_type not in _LEDGER:
                continue
            if agent_id in {None, event.agent_id}:
                last_step[call_id] = event.event_type
        return {call_id for call_id, step in last_step.items() if step is EventType.TOOL_STARTED}

    async def artifact(self, artifact_id: str) -> ArtifactRecord | None:
        return self._tables.artifacts.get(artifact_id)

    async def artifacts(
        self,
        *,
        session_id: str | None = None,
        kinds: Collection[str] | None = None,
        older_than: datetime | None = None,
    ) -> list[ArtifactRecord]:
        return [
            artifact
            for artifact in self._tables.artifacts.values()
            if (session_id is None or artifact.session_id == session_id)
            and (kinds is None or artifact.kind in kinds)
            and (older_than is None or artifact.created_at < older_than)
        ]

"""The rows of the store that keeps nothing, and what can be done to them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_core.storage import rules
from agent_core.types import (
    AgentRecord,
    AgentStatus,
    ArtifactRecord,
    Batch,
    Node,
    OwnerIsDead,
    PendingEvent,
    Position,
    RunChange,
    RunOpening,
    RunRecord,
    RuntimeEvent,
    SessionNote,
    SessionRecord,
    utc_now,
)

_RUN_COLUMNS = (
    "status",
    "start_node_id",
    "end_node_id",
    "end_reason",
    "turn_count",
    "usage",
    "error",
)


@dataclass(slots=True)
class InMemoryTables:
    """Records by id; `events` and `node_counts` by session, `event_counts` by run."""

    sessions: dict[str, SessionRecord] = field(default_factory=dict[str, SessionRecord])
    agents: dict[str, AgentRecord] = field(default_factory=dict[str, AgentRecord])
    runs: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    events: dict[str, list[RuntimeEvent]] = field(default_factory=dict[str, list[RuntimeEvent]])
    artifacts: dict[str, ArtifactRecord] = field(default_factory=dict[str, ArtifactRecord])
    node_counts: dict[str, int] = field(default_factory=dict[str, int])
    event_counts: dict[str, int] = field(default_factory=dict[str, int])

    def append(self, batch: Batch) -> Position:
        """Store a batch; whatever can fail fails before anything is changed."""
        start = self.start_of(batch.session_id, batch.run_id)
        if batch.owner is not None and batch.owner != self.sessions[batch.session_id].owner:
            raise rules.run_taken_over(batch.run_id)
        of = (batch.session_id, batch.agent_id, batch.run_id)
        nodes = [
            node.model_copy(update={"node_seq": start.node_seq + offset})
            for offset, node in enumerate(batch.nodes)
        ]
        for node in nodes:
            self._refuse_misplaced(node, nodes)
        self.add_events(of, start=start, events=batch.events)
        self.nodes.update((node.node_id, node) for node in nodes)
        self.node_counts[batch.session_id] = start.node_seq + len(nodes) - 1
        self._change_rows(batch)
        return start

    def start_of(self, session_id: str, run_id: str) -> Position:
        """The numbers the next rows of this run get."""
        run = self.runs.get(run_id)
        if run is None or run.session_id != session_id:
            raise rules.run_not_found(run_id)
        rules.refuse_lost(run_id, run.metadata)
        return Position(
            seq=len(self.events[session_id]) + 1,
            run_seq=self.event_counts.get(run_id, 0) + 1,
            node_seq=self.node_counts.get(session_id, 0) + 1,
        )

    def note(self, note: SessionNote) -> bool:
        """Store what happened outside of any run, if its node still follows the active one."""
        session = self.known_session(note.session_id)
        active, count = session.active_node_id, self.node_counts.get(note.session_id, 0)
        if note.node is not None:
            if active != note.node.parent_id:
                return False
            self._refuse_misplaced(note.node, [])
            active = note.node.node_id
            self.nodes[active] = note.node.model_copy(update={"node_seq": count + 1})
            self.node_counts[note.session_id] = count + 1
        start = Position(len(self.events[note.session_id]) + 1, 0, 0)
        self.add_events((note.session_id, None, None), start=start, events=note.events)
        metadata = rules.merged(session.metadata, note.metadata)
        self.change_session(note.session_id, active_node_id=active, metadata=metadata)
        return True

    def add_events(
        self,
        of: tuple[str, str | None, str | None],
        *,
        start: Position,
        events: Sequence[PendingEvent],
    ) -> None:
        """Store events of a (session, agent, run), or of the session alone."""
        session_id, agent_id, run_id = of
        stored = [
            RuntimeEvent(
                event_id=event.event_id,
                seq=start.seq + offset,
                run_seq=start.run_seq + offset if run_id else None,
                session_id=session_id,
                agent_id=agent_id,
                run_id=run_id,
                level=event.draft.level,
                event_type=event.draft.event_type,
                node_id=event.draft.node_id,
                tool_call_id=event.draft.tool_call_id,
                payload=dict(event.draft.payload),
                created_at=event.created_at,
            )
            for offset, event in enumerate(events)
        ]
        self.events[session_id] += stored
        if run_id is not None:
            self.event_counts[run_id] = start.run_seq + len(stored) - 1

    def add_run(self, run: RunRecord, events: Sequence[PendingEvent]) -> Position:
        """Add a run and its first events."""
        self.known_session(run.session_id)
        self.runs[run.run_id] = run
        start = self.start_of(run.session_id, run.run_id)
        self.add_events((run.session_id, run.agent_id, run.run_id), start=start, events=events)
        return start

    def change_session(self, session_id: str, **values: Any) -> SessionRecord:
        """Replace values in a session's row."""
        session = self.sessions[session_id].model_copy(update=values)
        self.sessions[session_id] = session
        return session

    def change_agent(self, agent_id: str, **values: Any) -> None:
        """Replace values in an agent's row, if it is there."""
        agent = self.agents.get(agent_id)
        if agent is not None:
            update = {**values, "updated_at": utc_now()}
            self.agents[agent_id] = agent.model_copy(update=update)

    def known_session(self, session_id: str) -> SessionRecord:
        """The session, or `session_not_found`."""
        session = self.sessions.get(session_id)
        if session is None:
            raise rules.session_not_found(session_id)
        return session

    def open_runs(self, session_id: str) -> list[RunRecord]:
        """Runs of the session that are queued, pending or running."""
        return [
            run
            for run in self.runs.values()
            if run.session_id == session_id and not run.status.is_terminal
        ]

    def root_agents(self, session_id: str) -> list[AgentRecord]:
        """The session's agents that nobody created but the user."""
        return [
            agent
            for agent in self.agents.values()
            if agent.session_id == session_id and agent.parent_agent_id is None
        ]

    def root_agent(self, opening: RunOpening) -> AgentRecord:
        """The session's root agent of that type, created if it has none."""
        for agent in self.root_agents(opening.session_id):
            if agent.agent_type is opening.agent_type:
                return agent
        agent = rules.new_root_agent(opening)
        self.agents[agent.agent_id] = agent
        return agent

    def close_lost(self, session: SessionRecord) -> list[RunRecord]:
        """Close the session's runs that were begun as lost, and free it."""
        still_open = self.open_runs(session.session_id)
        lost = [rules.as_lost(run) for run in still_open if not rules.waits_for_an_owner(run)]
        for run in lost:
            start = self.start_of(run.session_id, run.run_id)
            of = (run.session_id, run.agent_id, run.run_id)
            self.add_events(of, start=start, events=[rules.lost_event(run)])
            self.runs[run.run_id] = run
            self.change_agent(run.agent_id, status=AgentStatus.FAILED)
        active = self._last_complete(session)
        self.change_session(
            session.session_id, owner=None, lease_expires_at=None, active_node_id=active
        )
        return lost

    def move(self, session: SessionRecord, cwd: str) -> None:
        """Let the session work in another folder."""
        start = Position(len(self.events[session.session_id]) + 1, 0, 0)
        events = [rules.moved_event(session, cwd)]
        self.add_events((session.session_id, None, None), start=start, events=events)
        self.change_session(session.session_id, cwd=cwd)

    def refuse_while_active(
        self, session_id: str, is_dead: OwnerIsDead, *, only_root_runs: bool = False
    ) -> None:
        """Refuse while a run of the session is open and its owner lives."""
        session = self.known_session(session_id)
        runs = self.open_runs(session_id)
        if any(run.parent_run_id is None or not only_root_runs for run in runs):
            rules.refuse_unless_free(session, is_dead)

    def drop(self, session_id: str) -> None:
        """Remove the session and everything of it."""
        del self.sessions[session_id], self.events[session_id]
        self.node_counts.pop(session_id, None)
        for rows in (self.agents, self.runs, self.nodes, self.artifacts):
            for key in [key for key, row in rows.items() if row.session_id == session_id]:
                del rows[key]

    def nodes_of(self, events: Iterable[RuntimeEvent]) -> list[Node]:
        """The nodes these events name, in order of writing."""
        nodes = {event.node_id: self.nodes.get(event.node_id or "") for event in events}
        return sorted(filter(None, nodes.values()), key=lambda node: node.node_seq)

    def artifacts_of(self, events: Sequence[RuntimeEvent]) -> list[ArtifactRecord]:
        """Artifacts of these nodes and calls; those of a whole run come with its first event."""
        return [one for one in self.artifacts.values() if any(_touches(e, one) for e in events)]

    def _refuse_misplaced(self, node: Node, batch: Sequence[Node]) -> None:
        if node.node_id in self.nodes:
            raise rules.broken_tree(node.node_id)
        parent = node.parent_id
        if parent and parent not in self.nodes and all(parent != one.node_id for one in batch):
            raise rules.broken_tree(node.node_id)

    def _change_rows(self, batch: Batch) -> None:
        if batch.run is not None:
            self._change_run(batch.run_id, batch.run)
        if batch.agent_status is not None:
            self.change_agent(batch.agent_id, status=batch.agent_status)
        if batch.active_node_id is not None:
            self.change_session(batch.session_id, active_node_id=batch.active_node_id)
        if batch.run is not None and batch.run.status is not None:
            self.change_session(batch.session_id, updated_at=utc_now())
        owner = self.sessions[batch.session_id].owner
        if batch.release and batch.release == owner and not self.open_runs(batch.session_id):
            self.change_session(batch.session_id, owner=None, lease_expires_at=None)

    def _change_run(self, run_id: str, change: RunChange) -> None:
        run = self.runs[run_id]
        values = {name: getattr(change, name) for name in _RUN_COLUMNS}
        update = {name: value for name, value in values.items() if value is not None}
        update["metadata"] = rules.merged(run.metadata, change.metadata or {})
        if change.has_prompt_node:
            update["prompt"] = None
        update["updated_at"] = utc_now()
        self.runs[run_id] = run.model_copy(update=update)

    def _last_complete(self, session: SessionRecord) -> str | None:
        node = self.nodes.get(session.active_node_id or "")
        if node is None:
            of_root = [
                one
                for one in self.nodes.values()
                if one.session_id == session.session_id and one.agent_id == session.root_agent_id
            ]
            node = of_root[-1] if of_root else None
        while node is not None and node.is_partial:
            node = self.nodes.get(node.parent_id or "")
        return node.node_id if node else None


def _touches(event: RuntimeEvent, artifact: ArtifactRecord) -> bool:
    if event.run_id != artifact.run_id:
        return False
    if artifact.node_id is None and artifact.tool_call_id is None:
        return event.run_seq == 1
    if artifact.node_id is not None and artifact.node_id == event.node_id:
        return True
    return artifact.tool_call_id is not None and artifact.tool_call_id == event.tool_call_id

"""Exports a session as JSON lines, each with the type of its content."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Literal

from pydantic import RootModel

from agent_core.api import AgentRuntime
from agent_core.history.reading import read_timeline
from agent_core.redaction.redactor import walk
from agent_core.types import (
    AgentRecord,
    ArtifactRecord,
    DamagedRow,
    Frozen,
    Node,
    ReplayResult,
    RunRecord,
    RuntimeEvent,
    SessionRecord,
)


class SessionFact(Frozen):
    """The session: the first line."""

    type: Literal["session"] = "session"
    session: SessionRecord


class AgentFact(Frozen):
    """An agent of the session."""

    type: Literal["agent"] = "agent"
    agent: AgentRecord


class RunFact(Frozen):
    """A run, of the user or of a child."""

    type: Literal["run"] = "run"
    run: RunRecord


class NodeFact(Frozen):
    """A message, the answer of a tool, or loaded text."""

    type: Literal["node"] = "node"
    node: Node


class EventFact(Frozen):
    """Something that happened."""

    type: Literal["event"] = "event"
    event: RuntimeEvent


class ArtifactFact(Frozen):
    """A file that is kept with the session, without its content."""

    type: Literal["artifact"] = "artifact"
    artifact: ArtifactRecord


class DamageFact(Frozen):
    """A row that is missing, or not whole: the last lines, if there are any."""

    type: Literal["damage"] = "damage"
    damage: DamagedRow


class SessionExportLine(
    RootModel[SessionFact | AgentFact | RunFact | NodeFact | EventFact | ArtifactFact | DamageFact]
):
    """A line of `sessions export --jsonl`."""


async def session_lines(
    runtime: AgentRuntime,
    session_id: str,
    *,
    clean: Callable[[str], str],
    damaged: list[DamagedRow] | None = None,
) -> AsyncIterator[str]:
    """The session, its agents and runs, its nodes, its events, its artifacts: each in order.

    Args:
        runtime: of the database.
        session_id: the session.
        clean: takes secrets out of each text.
        damaged: gets the rows that are missing, or not whole.

    Raises:
        StorageError: `session_not_found`.
    """
    agents: dict[str, AgentRecord] = {}
    nodes: dict[str, Node] = {}
    events: dict[str, RuntimeEvent] = {}
    artifacts: dict[str, ArtifactRecord] = {}
    damage: dict[tuple[str, str], DamagedRow] = {}

    def line(fact: Frozen) -> str:
        return json.dumps(walk(fact.model_dump(mode="json"), clean), ensure_ascii=False)

    def take(part: ReplayResult) -> None:
        agents.update({each.agent_id: each for each in part.agents})
        nodes.update({each.node_id: each for each in part.nodes})
        events.update({each.event_id: each for each in part.events})
        artifacts.update({each.artifact_id: each for each in part.artifacts})
        damage.update({(each.table, each.row_id): each for each in part.damaged})

    runs = await runtime.session_runs(session_id)
    async for page in read_timeline(runtime, session_id):
        take(page)
        if page.next_seq is None:
            yield line(SessionFact(session=page.session))
    for run in runs:
        if run.parent_run_id is not None:  # the timeline has the runs of the user only
            take(await runtime.replay_run(run.run_id))
    facts: list[Frozen] = [AgentFact(agent=agent) for agent in agents.values()]
    facts += [RunFact(run=run) for run in runs]
    facts += [
        NodeFact(node=node) for node in sorted(nodes.values(), key=lambda each: each.node_seq)
    ]
    in_order = sorted(events.values(), key=lambda event: event.seq or 0)
    facts += [EventFact(event=event) for event in in_order]
    facts += [ArtifactFact(artifact=artifact) for artifact in artifacts.values()]
    facts += [DamageFact(damage=row) for row in damage.values()]
    for fact in facts:
        yield line(fact)
    if damaged is not None:
        damaged += damage.values()

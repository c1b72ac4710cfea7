"""Reads that take several queries: pages, runs, open calls. Each costs as much as it returns."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent_core.storage.budgets import uses
from agent_core.storage.claims import find_session
from agent_core.storage.rows import dumps, find, find_all, iso, read_all, run_not_found
from agent_core.storage.sql import Connection
from agent_core.types import AgentRecord, ArtifactRecord, Node, RunRecord, RuntimeEvent

if TYPE_CHECKING:
    from agent_core.types import ReplayResult

_PAGE = """SELECT * FROM events WHERE session_id = ? AND seq BETWEEN ? AND ?
    AND (agent_id IS NULL OR agent_id IN (SELECT value FROM json_each(?)))
    ORDER BY seq LIMIT ?"""

_LAST_STEP = """SELECT event_type FROM events
    WHERE session_id = :session AND tool_call_id = :call
    AND (CAST(:agent AS TEXT) IS NULL OR agent_id = :agent)
    AND event_type IN ('tool_started', 'tool_completed', 'tool_failed', 'tool_denied')
    ORDER BY seq DESC LIMIT 1"""

PATH = """WITH RECURSIVE path (node_id, parent_id, depth) AS (
    SELECT node_id, parent_id, 0 FROM nodes WHERE node_id = :node AND node_id IS NOT :after
    UNION ALL
    SELECT nodes.node_id, nodes.parent_id, depth + 1
    FROM path JOIN nodes ON nodes.node_id = path.parent_id WHERE nodes.node_id IS NOT :after
)
SELECT nodes.* FROM path JOIN nodes ON nodes.node_id = path.node_id ORDER BY depth DESC"""
"""The nodes from the root to one node, or only those behind another node on the path."""

RUN_NODES = """SELECT * FROM nodes WHERE node_id IN
    (SELECT node_id FROM events WHERE run_id = :run) AND run_id = :run ORDER BY node_seq"""
"""The nodes that a run has added: an event announces each."""

MAX_SEQ = 2**62


def page(
    connection: Connection,
    session_id: str,
    from_seq: int | None,
    to_seq: int | None,
    limit: int,
) -> "ReplayResult":
    """Return a part of the root agents' timeline."""
    from agent_core.types import ReplayResult  # noqa: PLC0415 - few runs need it

    first = 1 if from_seq is None else clamp(from_seq, 1)
    last = MAX_SEQ if to_seq is None else clamp(to_seq, 0)
    session = find_session(connection, session_id)
    limit = clamp(limit, 1)
    roots = read_all(
        AgentRecord,
        connection.execute(
            """SELECT * FROM agents WHERE session_id = ? AND parent_agent_id IS NULL
            ORDER BY rowid""",
            (session_id,),
        ),
    )
    rows = connection.execute(
        _PAGE,
        (session_id, first, last, dumps([agent.agent_id for agent in roots]), limit + 1),
    ).fetchall()
    next_seq = int(rows.pop()["seq"]) if len(rows) > limit else None
    events = read_all(RuntimeEvent, rows)
    nodes = find_all(connection, Node, [event.node_id for event in events])
    run_ids = {event.run_id for event in events if event.run_id}
    return ReplayResult(
        session=session,
        agents=roots,
        runs=find_all(connection, RunRecord, run_ids),
        budgets=uses(connection, [session_id, *run_ids]),
        nodes=sorted(nodes, key=lambda node: node.node_seq),
        events=events,
        artifacts=_artifacts_of(connection, events),
        next_seq=next_seq,
    )


def run_history(connection: Connection, run_id: str) -> "ReplayResult":
    """Return everything of one run."""
    from agent_core.types import ReplayResult  # noqa: PLC0415 - few runs need it

    run = find(connection, RunRecord, run_id)
    if run is None:
        raise run_not_found(run_id)
    events = connection.execute("SELECT * FROM events WHERE run_id = ? ORDER BY run_seq", (run_id,))
    nodes = connection.execute(RUN_NODES, {"run": run_id})
    artifacts = connection.execute(
        "SELECT * FROM artifacts WHERE run_id = ? ORDER BY rowid", (run_id,)
    )
    return ReplayResult(
        session=find_session(connection, run.session_id),
        agents=find_all(connection, AgentRecord, [run.agent_id]),
        runs=[run],
        budgets=uses(connection, [run.session_id, run_id]),
        nodes=read_all(Node, nodes),
        events=read_all(RuntimeEvent, events),
        artifacts=read_all(ArtifactRecord, artifacts),
    )


def open_calls(
    connection: Connection,
    session_id: str,
    tool_call_ids: Iterable[str],
    agent_id: str | None,
) -> set[str]:
    """Return the calls whose last recorded step is their start."""
    started: set[str] = set()
    for call_id in set(tool_call_ids):
        row = connection.execute(
            _LAST_STEP, {"session": session_id, "call": call_id, "agent": agent_id}
        ).fetchone()
        if row is not None and row[0] == "tool_started":
            started.add(call_id)
    return started


def artifacts(
    connection: Connection,
    session_id: str | None,
    kinds: Collection[str] | None,
    older_than: datetime | None,
) -> list[ArtifactRecord]:
    """Return artifact rows that match, oldest first."""
    conditions: dict[str, Any] = {}
    if session_id is not None:
        conditions["session_id = ?"] = session_id
    if kinds is not None:
        conditions["kind IN (SELECT value FROM json_each(?))"] = dumps(sorted(kinds))
    if older_than is not None:
        conditions["created_at < ?"] = iso(older_than)
    where = " AND ".join(conditions) or "TRUE"
    rows = connection.execute(
        f"SELECT * FROM artifacts WHERE {where} ORDER BY rowid",  # noqa: S608 - our own words
        tuple(conditions.values()),
    )
    return read_all(ArtifactRecord, rows)


def clamp(number: int, least: int) -> int:
    """Limit a number to the range that SQLite can compare."""
    return min(max(number, least), MAX_SEQ)


def _artifacts_of(connection: Connection, events: Sequence[RuntimeEvent]) -> list[ArtifactRecord]:
    """Return the artifacts of these nodes and calls; with a run's first event, also the run's."""
    run_ids = {event.run_id for event in events if event.run_id}
    node_ids = {event.node_id for event in events if event.node_id}
    call_ids = {event.tool_call_id for event in events if event.tool_call_id}
    begun = {event.run_id for event in events if event.run_id and event.run_seq == 1}
    rows = connection.execute(
        """SELECT * FROM artifacts WHERE run_id IN (SELECT value FROM json_each(?)) AND (
            node_id IN (SELECT value FROM json_each(?))
            OR tool_call_id IN (SELECT value FROM json_each(?))
            OR (node_id IS NULL AND tool_call_id IS NULL
                AND run_id IN (SELECT value FROM json_each(?)))
        ) ORDER BY rowid""",
        tuple(dumps(sorted(ids)) for ids in (run_ids, node_ids, call_ids, begun)),
    )
    return read_all(ArtifactRecord, rows)

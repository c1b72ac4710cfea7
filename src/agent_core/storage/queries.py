"""Reads of sessions and their history. Each costs as much as it returns."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from agent_core.storage.budgets import uses
from agent_core.storage.rows import (
    MAX_SEQ,
    OPEN_RUN,
    OWNED_RUN,
    clamp,
    dumps,
    find,
    iso,
    loads,
    node_not_found,
    read,
    read_all,
    run_not_found,
    session_not_found,
    storable,
)
from agent_core.storage.salvage import Salvage
from agent_core.storage.sql import Connection, Cursor
from agent_core.types import (
    AgentRecord,
    AgentStatus,
    ArtifactRecord,
    EventType,
    Node,
    RunRecord,
    RunStatus,
    RuntimeEvent,
    SessionRecord,
)
from agent_core.types.memory_scopes import MEMORY_OFF, MEMORY_SHARED, MemoryTerms

if TYPE_CHECKING:
    from agent_core.types import ReplayResult


_PAGE = """SELECT * FROM events WHERE session_id = ? AND seq BETWEEN ? AND ?
    AND (agent_id IS NULL OR agent_id IN (SELECT value FROM json_each(?)))
    ORDER BY seq LIMIT ?"""

_SESSION = "SELECT * FROM sessions WHERE session_id = ?"
_ROOT_AGENTS = """SELECT * FROM agents WHERE session_id = ? AND parent_agent_id IS NULL
    ORDER BY rowid"""
_RUN_EVENT = "SELECT * FROM events WHERE run_id = ?"
_RUN_EVENTS = f"{_RUN_EVENT} AND run_seq BETWEEN ? AND ? ORDER BY run_seq"
_RUN_ARTIFACTS = "SELECT * FROM artifacts WHERE run_id = ? ORDER BY rowid"
_EVENT = "SELECT * FROM events WHERE session_id = ? AND seq = ?"

_LAST_PAGE = """SELECT min(seq) FROM (SELECT seq FROM events WHERE session_id = ?
    AND (agent_id IS NULL OR agent_id IN (SELECT value FROM json_each(?)))
    ORDER BY seq DESC LIMIT ?) AS last_events"""

_LAST_STEP = """SELECT event_type FROM events
    WHERE run_id = :run AND tool_call_id = :call
    AND event_type IN ('tool_started', 'tool_completed', 'tool_failed', 'tool_denied')
    ORDER BY run_seq DESC LIMIT 1"""

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

_ANSWERS = """SELECT 1 FROM nodes WHERE nodes.session_id = sessions.session_id
    AND nodes.role = 'assistant' AND nodes.node_type = 'message'
    AND nodes.metadata_json NOT LIKE '%"partial":%'
    AND nodes.metadata_json NOT LIKE '%"aborted":%'
    AND nodes.metadata_json NOT LIKE '%"failed":%'"""
"""The complete replies of a session. Damaged JSON, which no function takes, hides no other row."""

_RUNNING = f"""SELECT agent_id FROM runs
    WHERE session_id = ? AND {OPEN_RUN} AND status = 'running'"""  # noqa: S608 - a constant

_QUEUED = f"""SELECT 1 FROM runs WHERE runs.session_id = sessions.session_id
    AND runs.{OPEN_RUN} AND runs.status = 'queued'"""  # noqa: S608 - a constant
"""The unsent messages of a session."""

_LAST_SESSION = f"""SELECT session_id FROM sessions
    WHERE {{where}} AND coalesce(({_ANSWERS} LIMIT 1), ({_QUEUED} LIMIT 1)) IS NOT NULL
    ORDER BY use_number DESC LIMIT 1"""  # noqa: S608 - constants
"""Looks into one session after the other; with EXISTS, PostgreSQL would read all nodes first."""

_SCOPES = {None: MEMORY_SHARED, "1": MEMORY_SHARED, "0": MEMORY_OFF}
"""Scopes for stored values: runs without one, and values that version 0.3 stored."""
_MOST_COUNTED = 1000
_COUNT = """SELECT count(*) FROM (SELECT 1 FROM sessions WHERE cwd >= :folder AND cwd <= :folder
    ORDER BY cwd, use_number LIMIT :most) AS counted"""
"""Reads the index in its order: asked with `=`, PostgreSQL may read another one, or the table."""
_BELOW = """WITH RECURSIVE below (cwd, place) AS (
    SELECT min(cwd), 1 FROM sessions WHERE cwd > :first AND cwd < :end
    UNION ALL
    SELECT (SELECT min(cwd) FROM sessions WHERE cwd > below.cwd AND cwd < :end), place + 1
    FROM below WHERE below.cwd IS NOT NULL AND place < :limit
)
SELECT cwd FROM below WHERE cwd IS NOT NULL
ORDER BY (SELECT max(use_number) FROM sessions WHERE sessions.cwd = below.cwd) DESC"""
"""Folders by path, each found by the index behind the one before; then the last used first."""


def session(connection: Connection, session_id: str) -> SessionRecord | None:
    """Return the session, or None."""
    return find(connection, SessionRecord, session_id)


def sessions(connection: Connection, *, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
    """Return sessions, the most recently used first."""
    sql = "SELECT * FROM sessions ORDER BY use_number DESC LIMIT ? OFFSET ?"
    return read_all(SessionRecord, connection.execute(sql, (clamp(limit, 0), clamp(offset, 0))))


def last_session(connection: Connection, project: str | None = None) -> str | None:
    """Return the session that was used last, in this folder or in all.

    Sessions without a completed reply and without a waiting message are skipped.
    """
    where, values = ("TRUE", ()) if project is None else ("cwd = ?", (storable(project),))
    found = connection.execute(_LAST_SESSION.format(where=where), values).fetchone()
    return found[0] if found else None


def memory_backlog(connection: Connection, limit: int) -> list[str]:
    """Return sessions that must still be searched for memories and that no runtime has."""
    sql = """SELECT session_id FROM memory_backlog JOIN sessions USING (session_id)
        WHERE owner IS NULL ORDER BY use_number DESC LIMIT ?"""
    return [session_id for (session_id,) in connection.execute(sql, (limit,)).fetchall()]


def memory_terms(connection: Connection, run_ids: Collection[str]) -> dict[str, MemoryTerms]:
    """Return the memory terms of these runs, by run id; unknown runs are left out."""
    sql = """SELECT run_id, CAST(json_extract(options_json, '$.memory') AS TEXT),
        json_extract(options_json, '$.model'), json_extract(options_json, '$.needs_caller')
        FROM runs WHERE run_id IN (SELECT value FROM json_each(?))"""
    return {
        run_id: MemoryTerms(
            scope=str(_SCOPES.get(scope, scope)),
            model=model,
            needs_object="model" in loads(needed or "[]"),
        )
        for run_id, scope, model, needed in connection.execute(sql, (dumps(list(run_ids)),))
    }


def agent(connection: Connection, agent_id: str) -> AgentRecord | None:
    """Return the agent, or None."""
    return find(connection, AgentRecord, agent_id)


def agents(connection: Connection, session_id: str) -> list[AgentRecord]:
    """Return every agent of the session, oldest first."""
    sql = "SELECT * FROM agents WHERE session_id = ? ORDER BY rowid"
    return read_all(AgentRecord, connection.execute(sql, (session_id,)))


def run(connection: Connection, run_id: str) -> RunRecord | None:
    """Return the run, or None."""
    return find(connection, RunRecord, run_id)


def runs(connection: Connection, session_id: str) -> list[RunRecord]:
    """Return the runs of the session as far as they can be read, children's too, oldest first."""
    sql = "SELECT * FROM runs WHERE session_id = ? ORDER BY rowid"
    numbers = "SELECT rowid FROM runs WHERE session_id = ? ORDER BY rowid"
    salvage = Salvage()
    one_by_one = (
        "SELECT * FROM runs WHERE rowid = ?",
        lambda: map(tuple, connection.execute(numbers, (session_id,)).fetchall()),
    )
    return salvage.read_all(
        RunRecord, salvage.rows(connection, "runs", sql, (session_id,), one_by_one)
    )


def active_run_ids(connection: Connection, session_id: str) -> list[str]:
    """Return the session's runs that need an owner, oldest first.

    They are pending or running, or queued without a lane; a run that waits for an answer, or is
    queued for workers, needs none.
    """
    sql = f"SELECT run_id FROM runs WHERE session_id = ? AND {OWNED_RUN} ORDER BY rowid"  # noqa: S608
    return [run_id for (run_id,) in connection.execute(sql, (session_id,)).fetchall()]


def node(connection: Connection, node_id: str) -> Node | None:
    """Return the node, or None."""
    return find(connection, Node, node_id)


def path(connection: Connection, node_id: str, *, after: str | None = None) -> list[Node]:
    """Return the nodes from the root to this node. The cost depends only on the path's length.

    With `after`, only the nodes behind that node, if it is on the path.

    Raises:
        StorageError: `node_not_found`.
    """
    nodes = read_all(Node, connection.execute(PATH, {"node": node_id, "after": after}))
    if not nodes and node_id != after:
        raise node_not_found(node_id)
    return nodes


def page(
    connection: Connection,
    session_id: str,
    *,
    from_seq: int | None = None,
    to_seq: int | None = None,
    limit: int = 1000,
) -> "ReplayResult":
    """Return a stretch of the session's timeline: events with `from_seq <= seq <= to_seq`.

    It has events of root agents only, at most `limit`, with the nodes, runs, agents and artifacts
    they refer to and every root agent. `next_seq` is where to continue, None at the end. A negative
    `from_seq` counts from the end: -20 begins with the last 20 of these events.

    Raises:
        StorageError: `session_not_found`.
    """
    from agent_core.types import ReplayResult  # noqa: PLC0415 - few runs need it

    first = 1 if from_seq is None else clamp(from_seq, -MAX_SEQ)
    last = MAX_SEQ if to_seq is None else clamp(to_seq, 0)
    salvage = Salvage()
    found = show_session(connection, session_id, salvage)
    limit = clamp(limit, 1)
    roots = salvage.read_all(
        AgentRecord,
        salvage.rows(
            connection,
            "agents",
            _ROOT_AGENTS,
            (session_id,),
            (_ROOT_AGENTS, lambda: [(session_id,)]),
        ),
    )
    of_roots = dumps([agent.agent_id for agent in roots])
    if first < 0:
        row = connection.execute(_LAST_PAGE, (session_id, of_roots, -first)).fetchone()
        first = row[0] or 1
    asked = (session_id, first, last, of_roots, limit + 1)
    numbers = range(first, min(last, first + limit) + 1)
    one_by_one = (_EVENT, lambda: [(session_id, seq) for seq in numbers])
    rows = salvage.rows(connection, "events", _PAGE, asked, one_by_one)
    next_seq = int(rows.pop()["seq"]) if len(rows) > limit else None
    events = salvage.read_all(RuntimeEvent, rows)
    nodes = salvage.find_all(connection, Node, [event.node_id for event in events])
    _note_missing_parents(connection, nodes, salvage)
    run_ids = {event.run_id for event in events if event.run_id}
    return ReplayResult(
        session=found,
        agents=_with_status(roots, _running(connection, found, salvage)),
        runs=salvage.find_all(connection, RunRecord, run_ids),
        budgets=salvage.attempt(
            "budgets", session_id, lambda: uses(connection, [session_id, *run_ids]), []
        ),
        nodes=sorted(nodes, key=lambda node: node.node_seq),
        events=events,
        artifacts=_artifacts_of(connection, events, salvage),
        next_seq=next_seq,
        damaged=salvage.damaged,
    )


def show_session(connection: Connection, session_id: str, salvage: Salvage) -> SessionRecord:
    """Return a session for readers that show it: what can be read of its row.

    Raises:
        StorageError: `session_not_found`; `storage_error`: nothing of it can be read.
    """
    row = connection.execute(_SESSION, (session_id,)).fetchone()
    if row is None:
        raise session_not_found(session_id)
    found = salvage.read(SessionRecord, row)
    return read(SessionRecord, row) if found is None else found  # the error says what is wrong


def _running(connection: Connection, session: SessionRecord, salvage: Salvage) -> set[str]:
    """Return the agents of a session that have a run under way."""
    if session.owner is None:
        return set()
    of_session = (session.session_id,)
    rows = salvage.attempt(
        "runs", session.session_id, lambda: connection.execute(_RUNNING, of_session).fetchall(), []
    )
    return {agent_id for (agent_id,) in rows}


def _with_status(agents: list[AgentRecord], running: set[str]) -> list[AgentRecord]:
    """Return agents as they are now: their rows only say how their last runs ended."""
    status = {"status": AgentStatus.RUNNING}
    return [a.model_copy(update=status) if a.agent_id in running else a for a in agents]


def _note_missing_parents(connection: Connection, nodes: Sequence[Node], salvage: Salvage) -> None:
    known = {node.node_id for node in nodes}
    above = {node.parent_id: node.node_id for node in nodes if node.parent_id not in known}
    above.pop(None, None)
    if not above:
        return
    asked = "SELECT node_id FROM nodes WHERE node_id IN (SELECT value FROM json_each(?))"
    there = {
        node_id
        for (node_id,) in salvage.attempt(
            "nodes",
            "?",
            lambda: connection.execute(asked, (dumps(sorted(map(str, above))),)).fetchall(),
            [],
        )
    }
    for parent, child in above.items():
        if parent not in there:
            salvage.note("nodes", str(parent), f"the row is missing, which {child} follows")


def run_history(
    connection: Connection, run_id: str, *, from_seq: int | None = None, to_seq: int | None = None
) -> "ReplayResult":
    """Return a run, also a child's: its events, with their nodes, its agent and artifacts.

    Args:
        connection: to the database.
        run_id: the run.
        from_seq: the lowest `run_seq` of an event; a negative number counts from `to_seq`, or from
            the end: -20 begins with the last 20 of these events. None: from the first one.
        to_seq: the highest; None: to the end. For a part only its artifacts are returned.

    Raises:
        StorageError: `run_not_found`.
    """
    from agent_core.types import ReplayResult  # noqa: PLC0415 - few runs need it

    salvage = Salvage()
    of_run = (run_id,)
    row = connection.execute("SELECT * FROM runs WHERE run_id = ?", of_run).fetchone()
    if row is None:
        raise run_not_found(run_id)
    found = salvage.read(RunRecord, row) or read(RunRecord, row)
    span = _span(connection, run_id, from_seq, to_seq)
    one_by_one = (
        f"{_RUN_EVENT} AND run_seq = ?",
        lambda: [(run_id, seq) for seq in _numbers(connection, run_id, span)],
    )
    events = salvage.rows(connection, "events", _RUN_EVENTS, (run_id, *span), one_by_one)
    read_events = salvage.read_all(RuntimeEvent, events)
    nodes = [
        node
        for node in salvage.find_all(connection, Node, [each.node_id for each in read_events])
        if node.run_id == run_id
    ]
    if from_seq is None and to_seq is None:
        registered = salvage.rows(
            connection, "artifacts", _RUN_ARTIFACTS, of_run, (_RUN_ARTIFACTS, lambda: [of_run])
        )
        artifacts = salvage.read_all(ArtifactRecord, registered)
    else:
        artifacts = _artifacts_of(connection, read_events, salvage)
    return ReplayResult(
        session=show_session(connection, found.session_id, salvage),
        agents=_with_status(
            salvage.find_all(connection, AgentRecord, [found.agent_id]),
            {found.agent_id} if found.status is RunStatus.RUNNING else set(),
        ),
        runs=[found],
        budgets=salvage.attempt(
            "budgets", run_id, lambda: uses(connection, [found.session_id, run_id]), []
        ),
        nodes=sorted(nodes, key=lambda node: node.node_seq),
        events=read_events,
        artifacts=artifacts,
        damaged=salvage.damaged,
    )


def _span(
    connection: Connection, run_id: str, from_seq: int | None, to_seq: int | None
) -> tuple[int, int]:
    """Return the first and the last number of a part of a run."""
    first = 1 if from_seq is None else clamp(from_seq, -MAX_SEQ)
    last = MAX_SEQ if to_seq is None else clamp(to_seq, 0)
    if first < 0:
        sql = """SELECT min(run_seq) FROM (SELECT run_seq FROM events
            WHERE run_id = ? AND run_seq <= ? ORDER BY run_seq DESC LIMIT ?) AS newest"""
        (found,) = connection.execute(sql, (run_id, last, -first)).fetchone()
        first = found or 1
    return first, last


def _numbers(connection: Connection, run_id: str, span: tuple[int, int]) -> list[int]:
    """Return the numbers of the events of a part of a run, from the index that has them."""
    sql = """SELECT run_seq FROM events WHERE run_id = ? AND run_seq BETWEEN ? AND ?
        ORDER BY run_seq"""
    return [seq for (seq,) in connection.execute(sql, (run_id, *span)).fetchall()]


def run_nodes(connection: Connection, run_id: str) -> list[Node]:
    """Return the nodes that a run has added, in order; none for an unknown run."""
    return read_all(Node, connection.execute(RUN_NODES, {"run": run_id}))


def events_after(
    connection: Connection, run_id: str, run_seq: int, *, limit: int = 1000
) -> list[RuntimeEvent]:
    """Return the run's stored events with a higher `run_seq`, in order, at most `limit`."""
    sql = "SELECT * FROM events WHERE run_id = ? AND run_seq > ? ORDER BY run_seq LIMIT ?"
    asked = run_id, clamp(run_seq, 0), clamp(limit, 1)
    return read_all(RuntimeEvent, connection.execute(sql, asked))


def last_events(
    connection: Connection, session_id: str, agent_id: str, event_type: EventType, *, limit: int
) -> list[RuntimeEvent]:
    """Return stored events of one type of one agent, the last one first, at most `limit`."""
    sql = """SELECT * FROM events WHERE session_id = ? AND agent_id = ? AND event_type = ?
        ORDER BY seq DESC LIMIT ?"""
    asked = session_id, agent_id, event_type.value, clamp(limit, 0)
    return read_all(RuntimeEvent, connection.execute(sql, asked))


def open_calls(connection: Connection, run_id: str, tool_call_ids: Iterable[str]) -> set[str]:
    """Return the calls of a run among these that were started and never ended.

    Their effect is unknown. A call id that was used twice is judged by its last start.
    """
    started: set[str] = set()
    for call_id in set(tool_call_ids):
        row = connection.execute(_LAST_STEP, {"run": run_id, "call": call_id}).fetchone()
        if row is not None and row[0] == "tool_started":
            started.add(call_id)
    return started


def artifact(connection: Connection, artifact_id: str) -> ArtifactRecord | None:
    """Return the artifact's row, or None."""
    return find(connection, ArtifactRecord, artifact_id)


def artifacts(
    connection: Connection,
    *,
    session_id: str | None = None,
    kinds: Collection[str] | None = None,
    older_than: datetime | None = None,
) -> list[ArtifactRecord]:
    """Return artifact rows that match every given condition, oldest first."""
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


def find_artifacts(
    connection: Connection, session_id: str, artifact_ids: Collection[str]
) -> frozenset[str]:
    """Return which of these ids are artifacts of the session."""
    rows = connection.execute(
        """SELECT artifact_id FROM artifacts WHERE session_id = ?
        AND artifact_id IN (SELECT value FROM json_each(?))""",
        (session_id, dumps(sorted(artifact_ids))),
    )
    return frozenset(artifact_id for (artifact_id,) in rows.fetchall())


def children(connection: Connection, run_id: str) -> list[RunRecord]:
    """Return the runs that a run has started, oldest first."""
    rows = connection.execute(
        """SELECT * FROM runs WHERE parent_run_id = ?
        AND session_id = (SELECT session_id FROM runs WHERE run_id = ?) ORDER BY rowid""",
        (run_id, run_id),
    )
    return read_all(RunRecord, rows)


def run_tree(connection: Connection, run_id: str) -> list[RunRecord]:
    """Return a run and all runs below it: its children, theirs, and those that summarise."""
    rows = connection.execute(
        """WITH RECURSIVE tree (run_id, session_id) AS (
            SELECT run_id, session_id FROM runs WHERE run_id = ?
            UNION SELECT r.run_id, r.session_id FROM runs AS r
            JOIN tree ON r.parent_run_id = tree.run_id AND r.session_id = tree.session_id
        ) SELECT * FROM runs WHERE run_id IN (SELECT run_id FROM tree) ORDER BY rowid""",
        (run_id,),
    )
    return read_all(RunRecord, rows)


def _artifacts_of(
    connection: Connection, events: Sequence[RuntimeEvent], salvage: Salvage
) -> list[ArtifactRecord]:
    """Return the artifacts of these nodes and calls; with a run's first event, also the run's."""
    run_ids = {event.run_id for event in events if event.run_id}
    node_ids = {event.node_id for event in events if event.node_id}
    call_ids = {event.tool_call_id for event in events if event.tool_call_id}
    begun = {event.run_id for event in events if event.run_id and event.run_seq == 1}
    asked = tuple(dumps(sorted(ids)) for ids in (run_ids, node_ids, call_ids, begun))
    sql = """SELECT * FROM artifacts WHERE run_id IN (SELECT value FROM json_each(?)) AND (
            node_id IN (SELECT value FROM json_each(?))
            OR tool_call_id IN (SELECT value FROM json_each(?))
            OR (node_id IS NULL AND tool_call_id IS NULL
                AND run_id IN (SELECT value FROM json_each(?)))
        ) ORDER BY rowid"""
    rows = salvage.rows(connection, "artifacts", sql, asked, (sql, lambda: [asked]))
    return salvage.read_all(ArtifactRecord, rows)


def sessions_nearby(connection: Connection, folder: str, limit: int) -> dict[str, int]:
    """Return the number of sessions by folder: see `SessionStore.sessions_nearby`."""
    above = [str(each) for each in islice(PurePath(folder).parents, limit)]
    first = f"{folder.rstrip('/')}/"
    end = f"{first[:-1]}0"  # the character behind the slash
    values = {"first": first, "end": end, "limit": limit}
    found = connection.execute(_BELOW, values)
    # All are sent before an answer is waited for.
    of_above = [_count(connection, each) for each in above]
    below = [cwd for (cwd,) in found]
    of_below = [_count(connection, each) for each in below]
    counts = ((each, answer.fetchone()[0]) for each, answer in zip(above, of_above, strict=True))
    nearby = {each: count for each, count in counts if count}
    nearby |= {each: answer.fetchone()[0] for each, answer in zip(below, of_below, strict=True)}
    return dict(islice(nearby.items(), limit))


def _count(connection: Connection, folder: str) -> Cursor:
    return connection.execute(_COUNT, {"folder": folder, "most": _MOST_COUNTED})

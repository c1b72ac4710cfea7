"""Sessions that begin as a copy of another session's path."""

from bisect import bisect
from collections.abc import Sequence
from typing import Any

from agent_core.storage.claims import find_session
from agent_core.storage.given import add_path, renamed_nodes
from agent_core.storage.queries import PATH
from agent_core.storage.rows import (
    find_all,
    insert,
    node_not_found,
    read_all,
    storable,
    update,
)
from agent_core.storage.sql import Connection
from agent_core.storage.workspaces import KNOW_SNAPSHOT, NAME_SNAPSHOT
from agent_core.text.json_text import array
from agent_core.types import (
    SESSION_INSTRUCTIONS,
    AgentRecord,
    AgentStatus,
    Node,
    SessionFork,
    SessionRecord,
    new_id,
    utc_now,
)
from agent_core.types.memory_scopes import MEMORY_CURSOR, MEMORY_SPANS


def fork_session(connection: Connection, fork: SessionFork) -> SessionRecord:
    """Add the new session, with copies of the nodes of the path, their agents and snapshots.

    Raises:
        StorageError: `node_not_found`: the forked session has no such node.
    """
    path = read_all(Node, connection.execute(PATH, {"node": fork.node_id, "after": None}))
    if not path or path[-1].session_id != fork.session_id:
        raise node_not_found(fork.node_id, fork.session_id)
    origin, now = find_session(connection, fork.session_id), utc_now()
    session = SessionRecord(
        session_id=fork.new_session_id,
        cwd=storable(fork.folder),
        parent_session_id=fork.session_id,
        title=origin.title,
        tenant=origin.tenant,
        place=fork.place,
        metadata=_kept_facts(origin, path),
        created_at=now,
        updated_at=now,
    )
    insert(connection, session)
    agents = find_all(connection, AgentRecord, [origin.root_agent_id, *(n.agent_id for n in path)])
    ids = {agent.agent_id: new_id("agent") for agent in agents}
    for agent in agents:
        copy = {"agent_id": ids[agent.agent_id], "session_id": session.session_id}
        insert(connection, agent.model_copy(update={**copy, "status": AgentStatus.IDLE}))
    names = {node.node_id: new_id("node") for node in path}
    copies = [
        node.model_copy(
            update={
                "node_id": names[node.node_id],
                "session_id": session.session_id,
                "parent_id": names.get(node.parent_id or ""),
                "agent_id": ids.get(node.agent_id, node.agent_id),
                "metadata": renamed_nodes(node.metadata, names),
            }
        )
        for node in path
    ]
    add_path(connection, session.session_id, copies)
    rows = connection.execute(
        """SELECT node_id, run_id, snapshot_id, previous_id, is_begin FROM node_snapshots
        WHERE folder = ? AND session_id = ? ORDER BY rowid""",
        (origin.files_folder, fork.session_id),
    ).fetchall()
    for node_id, run_id, *snapshots in rows:
        if node_id in names:
            row = (names[node_id], session.session_id, run_id, session.files_folder, *snapshots)
            connection.execute(NAME_SNAPSHOT, row)
    if fork.snapshot_id is not None:
        known = (session.session_id, session.files_folder, fork.snapshot_id, None)
        connection.execute(KNOW_SNAPSHOT, known)
    root, active = ids.get(origin.root_agent_id or ""), names[fork.node_id]
    changes = {"root_agent_id": root, "active_node_id": active}
    update(connection, SessionRecord, session.session_id, changes)
    return session.model_copy(update=changes)


def _kept_facts(origin: SessionRecord, path: Sequence[Node]) -> dict[str, Any]:
    """Return the metadata that a fork keeps: its instructions, and how far memory has read.

    The numbers are those of the copies. A fork is not read again: what has been forgotten since
    would be remembered again.
    """
    numbers = [node.node_seq for node in path]
    cursor, ends = origin.metadata.get(MEMORY_CURSOR), origin.metadata.get(MEMORY_SPANS)
    facts: dict[str, Any] = {}
    if SESSION_INSTRUCTIONS in origin.metadata:
        facts[SESSION_INSTRUCTIONS] = origin.metadata[SESSION_INSTRUCTIONS]
    if isinstance(cursor, int):
        facts[MEMORY_CURSOR] = bisect(numbers, cursor)
    spans: dict[int, bool] = {}
    for end in array(ends):
        match end:
            case [int(number), bool(is_searched)]:
                spans[bisect(numbers, number)] = is_searched
            case _:
                pass
    if spans:
        facts[MEMORY_SPANS] = [*map(list, sorted(spans.items()))]
    return facts

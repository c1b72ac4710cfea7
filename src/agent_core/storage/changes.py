"""Changes of single records: agents, artifacts, titles, and the list of sessions for memory."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from agent_core.storage.claims import find_session
from agent_core.storage.rows import find, insert, iso, merge_metadata, update
from agent_core.storage.sql import Connection
from agent_core.types import AgentRecord, AgentStatus, ArtifactRecord, SessionRecord, utc_now


def add_session(connection: Connection, session: SessionRecord) -> SessionRecord:
    """Add a session without messages, unless there is one with its id; return the stored one."""
    if (found := find(connection, SessionRecord, session.session_id)) is not None:
        return found
    insert(connection, session)
    return session


def add_agent(connection: Connection, agent: AgentRecord) -> None:
    """Add a child agent.

    Raises:
        StorageError: `session_not_found`.
    """
    find_session(connection, agent.session_id)
    insert(connection, agent)


def update_agent(
    connection: Connection,
    agent_id: str,
    *,
    status: AgentStatus | None = None,
    result: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Change the given values; `metadata` is merged, `result` replaced; ignores unknown ids."""
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


def rename_session(connection: Connection, session_id: str, title: str) -> None:
    """Give the session another title.

    Raises:
        StorageError: `session_not_found`.
    """
    find_session(connection, session_id)
    update(connection, SessionRecord, session_id, {"title": title})


def add_artifact(connection: Connection, artifact: ArtifactRecord) -> None:
    """Register a file that is complete on disk.

    Raises:
        StorageError: `session_not_found`.
    """
    find_session(connection, artifact.session_id)
    insert(connection, artifact)


def delete_artifact_row(connection: Connection, artifact_id: str) -> None:
    """Remove an artifact's row; does nothing for an unknown id."""
    connection.execute("DELETE FROM artifacts WHERE artifact_id = ?", (artifact_id,))


def add_to_memory_backlog(
    connection: Connection, session_ids: Collection[str] = (), *, since: datetime | None = None
) -> None:
    """Remember that these sessions, and later used ones, must be searched for memories."""
    sql = """INSERT INTO memory_backlog (session_id)
        SELECT session_id FROM sessions WHERE {} ON CONFLICT DO NOTHING"""
    chosen = [(session_id,) for session_id in session_ids]
    connection.executemany(sql.format("session_id = ?"), chosen)
    if since is not None:
        # From the session used last back to one that is older, by a day more than clocks differ.
        recent = """updated_at >= :since AND use_number > coalesce((SELECT use_number FROM sessions
            WHERE updated_at < :before ORDER BY use_number DESC LIMIT 1), -1)"""
        times = {"since": iso(since), "before": iso(since - timedelta(days=1))}
        connection.execute(sql.format(recent), times)


def remove_from_memory_backlog(connection: Connection, session_id: str) -> None:
    """Remember that this session has been searched for memories."""
    connection.execute("DELETE FROM memory_backlog WHERE session_id = ?", (session_id,))

"""Small changes to single rows: agents, session metadata, artifacts."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_core.storage import rules
from agent_core.storage.claims import known_session
from agent_core.storage.rows import artifact_row, dumps, iso, loads
from agent_core.types import AgentStatus, ArtifactRecord, utc_now


@dataclass(frozen=True, slots=True)
class AgentChange:
    """New values for an agent's row; None leaves a value as it is, `metadata` is merged."""

    agent_id: str
    status: AgentStatus | None
    result: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None


def update_agent(connection: sqlite3.Connection, change: AgentChange) -> None:
    """Change an agent's row, if it is there."""
    row = connection.execute(
        "SELECT metadata_json FROM agents WHERE agent_id = ?", (change.agent_id,)
    ).fetchone()
    if row is None:
        return
    connection.execute(
        """UPDATE agents SET status = coalesce(?, status), result_json = coalesce(?, result_json),
        metadata_json = ?, updated_at = ? WHERE agent_id = ?""",
        (
            change.status.value if change.status else None,
            dumps(change.result) if change.result is not None else None,
            dumps(rules.merged(loads(row[0]), change.metadata or {})),
            iso(utc_now()),
            change.agent_id,
        ),
    )


def update_session_metadata(
    connection: sqlite3.Connection, session_id: str, changes: Mapping[str, Any]
) -> None:
    """Merge into a session's metadata."""
    session = known_session(connection, session_id)
    connection.execute(
        "UPDATE sessions SET metadata_json = ? WHERE session_id = ?",
        (dumps(rules.merged(session.metadata, changes)), session_id),
    )


def add_artifact(connection: sqlite3.Connection, artifact: ArtifactRecord) -> None:
    """Register an artifact."""
    known_session(connection, artifact.session_id)
    connection.execute(
        "INSERT INTO artifacts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        artifact_row(artifact),
    )


def delete_artifact_row(connection: sqlite3.Connection, artifact_id: str) -> None:
    """Forget an artifact."""
    connection.execute("DELETE FROM artifacts WHERE artifact_id = ?", (artifact_id,))

"""Permissions that the user has granted for sessions."""

from datetime import datetime
from typing import TYPE_CHECKING

from agent_core.storage.rows import find, iso, session_not_found, storable
from agent_core.storage.sql import Connection
from agent_core.types import SessionRecord

if TYPE_CHECKING:
    from agent_core.types import PermissionGrant

_COLUMNS = "grant_id, session_id, tool_name, covers, key, created_at"


def add_grant(connection: Connection, grant: "PermissionGrant") -> None:
    """Remember a grant; an existing one for the same session and key is not changed.

    Raises:
        StorageError: `session_not_found`.
    """
    sql = f"INSERT INTO grants ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608
    created = iso(grant.created_at)
    covers = storable(grant.covers)
    row = (grant.grant_id, grant.session_id, grant.tool_name, covers, grant.key, created)
    if find(connection, SessionRecord, grant.session_id) is None:
        raise session_not_found(grant.session_id)
    connection.execute(sql, row)


def find_grant(connection: Connection, session_id: str, key: str) -> "PermissionGrant | None":
    """Return the session's grant for calls with this key, if any."""
    found = _select(connection, session_id, key)
    return found[0] if found else None


def list_grants(connection: Connection, session_id: str | None = None) -> "list[PermissionGrant]":
    """Return the grants of a session, or of all, oldest first."""
    return _select(connection, session_id, None)


def _select(
    connection: Connection, session_id: str | None, key: str | None
) -> "list[PermissionGrant]":
    from agent_core.types import PermissionGrant  # noqa: PLC0415 - few runs need it

    given = {"session_id = ?": session_id, "key = ?": key}
    asked = {name: value for name, value in given.items() if value is not None}
    where = " AND ".join(asked) or "TRUE"
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM grants WHERE {where} ORDER BY rowid",  # noqa: S608 - constants
        tuple(asked.values()),
    )
    return [
        PermissionGrant(
            grant_id=row[0],
            session_id=row[1],
            tool_name=row[2],
            covers=row[3],
            key=row[4],
            created_at=datetime.fromisoformat(row[5]),
        )
        for row in rows
    ]


def forget_grants(connection: Connection, grant_or_session_id: str) -> int:
    """Remove one grant, or all of a session; return their number."""
    sql = "DELETE FROM grants WHERE grant_id = :id OR session_id = :id"
    return connection.execute(sql, {"id": grant_or_session_id}).rowcount

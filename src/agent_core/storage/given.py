"""Sessions that begin with a conversation that a program gives."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.rows import (
    INSERT_NODE,
    dumps,
    find,
    insert,
    insert_session_events,
    loads,
    node_row,
    update,
)
from agent_core.storage.sql import Connection
from agent_core.types import (
    BEGAN_GIVEN,
    AgentRecord,
    EventDraft,
    EventType,
    Node,
    PendingEvent,
    SessionRecord,
)
from agent_core.types.memory_scopes import MEMORY_CURSOR

_NODE_ID = re.compile(r"node_[A-Za-z0-9]+")


def begin_with(
    connection: Connection, session: SessionRecord, path: Sequence[Node]
) -> SessionRecord:
    """Add a conversation that was given to a session that was just added.

    It is not searched for memories: a client may bring the same one with every request.
    """
    add_path(connection, session.session_id, path)
    changes = {
        "active_node_id": path[-1].node_id,
        "metadata": {**session.metadata, BEGAN_GIVEN: True, MEMORY_CURSOR: len(path)},
    }
    update(connection, SessionRecord, session.session_id, changes)
    return session.model_copy(update=changes)


def import_session(
    connection: Connection, session: SessionRecord, agent: AgentRecord, path: Sequence[Node]
) -> SessionRecord:
    """Add a session with its root agent and a conversation that was given.

    Raises:
        StorageError: `validation_error`: there is a session with this id.
    """
    if find(connection, SessionRecord, session.session_id) is not None:
        raise session_exists(session.session_id)
    insert(connection, session)
    insert(connection, agent)
    return begin_with(connection, session, path) if path else session


def renamed_nodes(metadata: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return metadata with the new ids of the nodes it names."""
    if not metadata:
        return {}
    text = _NODE_ID.sub(lambda found: names.get(found[0], found[0]), dumps(dict(metadata)))
    return loads(text)


def add_path(connection: Connection, session_id: str, path: Sequence[Node]) -> None:
    """Add the first nodes of a session, and an event for each."""
    events: list[PendingEvent] = []
    for number, node in enumerate(path, 1):
        connection.execute(INSERT_NODE, (number, *node_row(node)))
        facts = {"role": node.role, "node_type": node.node_type}
        draft = EventDraft(EventType.MESSAGE_CREATED, facts, node_id=node.node_id)
        events.append(PendingEvent(draft, created_at=node.created_at))
    insert_session_events(connection, session_id, events)


def session_exists(session_id: str) -> StorageError:
    """Return the error for a conversation that was given to an existing session."""
    message = (
        f"there is a session {session_id} already, with its own history; it was not changed:"
        " choose another id, or none"
    )
    details = {"reason": "session_exists", "session_id": session_id}
    return StorageError(ErrorCode.VALIDATION_ERROR, message, details=details)

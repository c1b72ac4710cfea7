"""Messages sent to runs while they work: stored until they are part of the conversation.

A row is removed by the batch that adds its message to the conversation, so that a message is
neither lost nor delivered twice, whenever a process dies.
"""

from typing import TYPE_CHECKING

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.storage.rows import find, insert, read_all, run_not_found
from agent_core.storage.sql import Connection
from agent_core.types import RunRecord

if TYPE_CHECKING:
    from agent_core.types import WaitingMessage


def send_message(connection: Connection, message: "WaitingMessage") -> None:
    """Store a message for a user's run that has not ended.

    Raises:
        StorageError: `run_not_found`.
        AgentCoreError: `run_ended`.
    """
    run = find(connection, RunRecord, message.run_id)
    if run is None or run.parent_run_id is not None or run.session_id != message.session_id:
        raise run_not_found(message.run_id)
    if run.status.is_terminal:
        raise run_has_ended(message.run_id)
    insert(connection, message)


def take_messages(connection: Connection, run_id: str) -> "list[WaitingMessage]":
    """Return the messages that wait for a run, in order; from now on it alone may have them."""
    from agent_core.types import WaitingMessage  # noqa: PLC0415 - few runs need it

    connection.execute("UPDATE waiting_messages SET is_taken = TRUE WHERE run_id = ?", (run_id,))
    rows = connection.execute(
        "SELECT * FROM waiting_messages WHERE run_id = ? ORDER BY rowid", (run_id,)
    )
    return read_all(WaitingMessage, rows)


def take_back_message(connection: Connection, session_id: str, message_id: str) -> bool:
    """Remove a message that was not delivered; return whether it was removed.

    A message that its run is delivering at this moment is not removed.
    """
    from agent_core.types import WaitingMessage  # noqa: PLC0415 - few sessions need it

    message = find(connection, WaitingMessage, message_id)
    if message is None or message.session_id != session_id:
        return False
    run = find(connection, RunRecord, message.run_id)
    if message.is_taken and run is not None and not run.status.is_terminal:
        return False
    connection.execute("DELETE FROM waiting_messages WHERE message_id = ?", (message_id,))
    return True


def waiting_messages(connection: Connection, session_id: str) -> "list[WaitingMessage]":
    """Return the messages of a session that were sent to its runs and not delivered, in order."""
    from agent_core.types import WaitingMessage  # noqa: PLC0415 - few sessions need it

    rows = connection.execute(
        "SELECT * FROM waiting_messages WHERE session_id = ? ORDER BY rowid", (session_id,)
    )
    return read_all(WaitingMessage, rows)


def run_has_ended(run_id: str) -> AgentCoreError:
    """Return the error for a message to a run that takes no more."""
    message = f"run {run_id} has ended; start another one with this message"
    return AgentCoreError(ErrorCode.RUN_ENDED, message, details={"run_id": run_id})

"""Picking a conversation up where it was left, whoever left it and however."""

from collections.abc import Sequence

from agent_core.errors import ErrorCode, ToolError
from agent_core.events import Journal, SessionStore
from agent_core.types import (
    Draft,
    ErrorPayload,
    EventLevel,
    EventType,
    Node,
    Role,
    ToolCallBlock,
    ToolResultBlock,
)

_UNKNOWN = (
    "the process running this call died before it ended; its effect is unknown. "
    "Look at the current state before doing it again."
)
_NEVER_RAN = "the process died before this call began; it had no effect"


class SessionHistory:
    """The path a session's next run continues, every tool call on it answered.

    The first run of a new session finds nothing, and is spared the look.
    """

    def __init__(self, store: SessionStore, session_id: str, *, is_new: bool) -> None:
        self._store = store
        self._session_id = session_id
        self._is_new = is_new

    async def resume(self, journal: Journal) -> None:
        """Give the journal the active path; what a dead process left open is closed, not redone.

        Raises:
            StorageError: the history cannot be read.
        """
        session = None if self._is_new else await self._store.session(self._session_id)
        if session is None or session.active_node_id is None:
            return
        journal.path.extend(await self._store.path(session.active_node_id))
        asked = unanswered_calls(journal.path)
        for agent_id, calls in asked.items():
            # Models repeat ids: another agent's call by the same id says nothing about this one.
            ids = [call.tool_call_id for call in calls]
            started = await self._store.open_calls(self._session_id, ids, agent_id=agent_id)
            for call in calls:
                _close(journal, call, began=call.tool_call_id in started)


def unanswered_calls(path: Sequence[Node]) -> dict[str, list[ToolCallBlock]]:
    """The tool calls of the path that have no result on it, in order, by the agent that asked."""
    answered = {result.tool_call_id for node in path for result in node.results}
    found: dict[str, list[ToolCallBlock]] = {}
    for node in path:
        calls = [] if node.is_partial else node.calls
        if waiting := [call for call in calls if call.tool_call_id not in answered]:
            found.setdefault(node.agent_id, []).extend(waiting)
    return found


def _close(journal: Journal, call: ToolCallBlock, *, began: bool) -> None:
    reason = "interrupted_effect_unknown" if began else "interrupted_before_start"
    message = _UNKNOWN if began else _NEVER_RAN
    error = ErrorPayload.of(ToolError(ErrorCode.CANCELLED, message, details={"reason": reason}))
    block = ToolResultBlock(
        tool_call_id=call.tool_call_id,
        is_error=True,
        error=error,
        metadata={"tool_name": call.name, "reason": reason},
    )
    journal.add(
        Draft(Role.TOOL, [block], metadata={"tool_name": call.name, "reason": reason}),
        EventType.TOOL_FAILED,
        payload={
            "tool_name": call.name,
            "is_error": True,
            "code": error.code,
            "message": message,
            "reason": reason,
        },
        level=EventLevel.WARNING,
        tool_call_id=call.tool_call_id,
    )

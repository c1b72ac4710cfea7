"""Continues a conversation where the last run, or a process that died, left it."""

from collections.abc import Sequence

from agent_core.errors import ErrorCode, ToolError
from agent_core.events import Journal, SessionStore
from agent_core.loop import OpenRun
from agent_core.types import (
    Draft,
    ErrorPayload,
    EventLevel,
    EventType,
    Node,
    NodeFlags,
    Role,
    ToolCall,
    ToolResultBlock,
    Usage,
)

_UNKNOWN = (
    "the process running this call died before it ended; its effect is unknown. "
    "Look at the current state before doing it again."
)
_NEVER_RAN = "the process died before this call began; it had no effect"


class SessionHistory:
    """The path that a session's next run continues.

    The first run of a new session finds nothing, and is spared the look.
    """

    def __init__(self, store: SessionStore, session_id: str, *, is_new: bool) -> None:
        self._store = store
        self._session_id = session_id
        self._is_new = is_new

    async def resume(self, journal: Journal) -> OpenRun | None:
        """Give the journal the active path, and close what a dead process left open on it.

        Calls that were started are answered: their effect is unknown, and they are not made again.
        Calls of this very run that had not begun are handed back; those of other runs are answered.

        Raises:
            StorageError: the history cannot be read.
        """
        session = None if self._is_new else await self._store.session(self._session_id)
        if session is None or session.active_node_id is None:
            return None
        path, run_id = journal.path, journal.run.run_id
        path.extend(await self._store.path(session.active_node_id))
        was_begun = any(node.run_id == run_id for node in path)
        open_calls: list[ToolCall] = []
        for agent_id, asked in unanswered_calls(path).items():
            # Models repeat ids: another agent's call by the same id says nothing about this one.
            ids = [call.tool_call_id for _, call in asked]
            started = await self._store.open_calls(self._session_id, ids, agent_id=agent_id)
            for node, call in asked:
                has_begun = call.tool_call_id in started
                if node.run_id == run_id and not has_begun:
                    open_calls.append(call)
                else:
                    _close(journal, call, has_begun=has_begun)
        if not was_begun:
            return None
        record = await self._store.run(run_id)
        turns, usage = (record.turn_count, record.usage) if record else (0, Usage())
        return OpenRun(turns, usage, open_calls)


def unanswered_calls(path: Sequence[Node]) -> dict[str, list[tuple[Node, ToolCall]]]:
    """The tool calls of the path that have no result on it, in order, by the agent that asked."""
    answered = {result.tool_call_id for node in path for result in node.results}
    found: dict[str, list[tuple[Node, ToolCall]]] = {}
    for node in path:
        for block in [] if node.is_partial else node.calls:
            if block.tool_call_id not in answered:
                call = ToolCall(**block.model_dump(exclude={"type"}))
                found.setdefault(node.agent_id, []).append((node, call))
    return found


def _close(journal: Journal, call: ToolCall, *, has_begun: bool) -> None:
    reason = "interrupted_effect_unknown" if has_begun else "interrupted_before_start"
    message = _UNKNOWN if has_begun else _NEVER_RAN
    error = ErrorPayload.of(ToolError(ErrorCode.CANCELLED, message, details={"reason": reason}))
    block = ToolResultBlock(
        tool_call_id=call.tool_call_id,
        is_error=True,
        error=error,
        metadata={"tool_name": call.name, "reason": reason},
    )
    journal.add(
        Draft(
            Role.TOOL, [block], metadata={"tool_name": call.name}, flags=NodeFlags(reason=reason)
        ),
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

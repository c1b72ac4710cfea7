"""Follows what happens in a session: the call and the child that each event belongs to.

The live view, the story of a session, its exports and editors all read events through this.
"""

from collections.abc import Iterator
from typing import Literal, cast

from msgspec import Struct, field

from agent_core.errors import REFUSALS
from agent_core.text import gist_of_arguments
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    EFFECT_UNKNOWN,
    EventType,
    JsonBlock,
    Node,
    RuntimeEvent,
    ToolCallBlock,
    ToolResultBlock,
    new_id,
)
from agent_core.types.event_details import (
    ChildCreated,
    EventDetails,
    PermissionDecided,
    PermissionRequested,
    ToolCompleted,
    ToolDenied,
    ToolEnded,
    ToolEvent,
    ToolFailed,
    ToolProgress,
    ToolStarted,
)

Outcome = Literal["open", "completed", "failed", "denied", "interrupted", "not run"]

_NOT_RUN = {"interrupted_before_start", "previous_write_failed", "run_failed"}
_NO_EFFECT = ToolEnded()
_OPENS_CALL = (PermissionRequested, ToolEnded, ToolProgress, ToolStarted)


class Call(Struct, kw_only=True, eq=False):
    """A tool call: what asked for it, the questions about it, and its end.

    Attributes:
        call_id: an id of its own, because models repeat theirs.
        block: the call as the model made it; None if only its events are known.
        caller: name of the child that makes it; empty for a call of the run itself.
        answer_id: the node with its result.
        reason: why the runtime has answered in place of the tool; empty if the tool has.
    """

    name: str
    call_id: str = field(default_factory=lambda: new_id("call"))
    block: ToolCallBlock | None = None
    caller: str = ""
    questions: list[PermissionRequested] = field(default_factory=list[PermissionRequested])
    answers: list[PermissionDecided] = field(default_factory=list[PermissionDecided])
    started: ToolStarted | None = None
    ended: ToolEnded | None = None
    result: ToolResultBlock | None = None
    answer_id: str | None = None
    reason: str = ""

    @property
    def end(self) -> ToolEnded:
        """The details of its end; empty while it is open."""
        return self.ended or _NO_EFFECT

    @property
    def kind(self) -> str:
        """The kind of its tool."""
        return self.started.kind if self.started is not None else "other"

    @property
    def summary(self) -> str:
        """The subject of the call in a few words."""
        stated = (self.started.summary if self.started is not None else "") or self.end.summary
        if stated:
            return stated
        for question in self.questions:
            if shown := question.args_summary or question.target_scope:
                return shown.removeprefix(f"{self.name}: ")
        return gist_of_arguments(self.block.arguments) if self.block is not None else ""

    @property
    def outcome(self) -> Outcome:
        """The outcome; `interrupted`: its process died, and its effect is unknown.

        An `open` call waits, is under way, or was lost.
        """
        reason = self.reason or self.end.reason
        if reason == EFFECT_UNKNOWN:
            return "interrupted"
        if reason in _NOT_RUN:
            return "not run"
        match self.ended:
            case None:
                return "open"
            case ToolDenied():
                return "denied"
            case ToolFailed():
                return "failed"
            case _:
                return "completed"

    @property
    def is_bad(self) -> bool:
        """True if it did not end well, like a command with an exit code other than 0."""
        return self.outcome not in {"completed", "open"} or bool(self.end.exit_code)

    def take_result(self, node: Node) -> None:
        """Take the answer out of a node; a call without an end event ends with it."""
        for result in node.results:
            if self.block is not None and result.tool_call_id != self.block.tool_call_id:
                continue
            self.result, self.answer_id = result, node.node_id
            self.reason = str(node.metadata.get("reason") or "")  # set by the loop alone
            self.ended = self.ended or _end_by(result)
            return


class PlacedEvent(Struct, kw_only=True):
    """An event in its place.

    Attributes:
        details: its typed payload.
        node: the node that it announces, if that is known.
        call: the call that it is about.
        is_first: nothing was known of that call before.
        answered: the calls whose answers are in the node, of events that are not about one call.
    """

    event: RuntimeEvent
    details: EventDetails
    node: Node | None = None
    call: Call | None = None
    is_first: bool = False
    answered: list[Call] = field(default_factory=list[Call])

    @property
    def kind(self) -> EventType:
        """The kind of the event."""
        return self.event.event_type


class Projection:
    """Puts events into their places, in their order; keeps open calls and the names of children."""

    def __init__(self) -> None:
        self._children: dict[str, str] = {}
        self._calls: dict[tuple[str | None, str], Call] = {}

    def take(self, event: RuntimeEvent, node: Node | None = None) -> PlacedEvent:
        """Return what an event is about; `node` is the one it announces, where it is known."""
        placed = PlacedEvent(event=event, details=event.details, node=node)
        match placed.details:
            case ChildCreated(child_run_id=str(run_id)) as child:
                self._children[run_id] = child.subject
            case ToolEvent() as details:
                self._take_call(placed, details)
            case _ if node is not None:
                self._take_node(placed, node)
            case _:
                pass
        return placed

    def call(self, agent_id: str | None, tool_call_id: str) -> Call | None:
        """Return an open call."""
        return self._calls.get((agent_id, tool_call_id))

    @property
    def open_calls(self) -> Iterator[tuple[tuple[str | None, str], Call]]:
        """The open calls, each behind its agent and the id that the model has given it."""
        return iter(self._calls.items())

    def _take_call(self, placed: PlacedEvent, details: ToolEvent) -> None:
        event = placed.event
        key = event.agent_id, event.tool_call_id or ""
        call = self._calls.get(key)
        if call is not None and call.started is not None and isinstance(details, ToolStarted):
            call = None  # it was lost, and its id is used again
        if call is None and isinstance(details, _OPENS_CALL):
            caller = self._children.get(event.run_id or "", "")
            call = self._calls[key] = Call(name=details.tool_name, caller=caller)
            placed.is_first = True
        placed.call = call
        if call is None:
            return
        match details:
            case ToolStarted():
                call.started = details
            case PermissionRequested():
                call.questions.append(details)
            case PermissionDecided():
                call.answers.append(details)
            case ToolEnded():
                del self._calls[key]
                call.ended, call.answer_id = details, event.node_id
                if placed.node is not None:
                    call.take_result(placed.node)
            case _:
                pass

    def _take_node(self, placed: PlacedEvent, node: Node) -> None:
        for block in node.calls:
            call = Call(name=block.name, block=block)
            self._calls[node.agent_id, block.tool_call_id] = call
        for result in node.results:
            call = self._calls.pop((node.agent_id, result.tool_call_id), None)
            if call is not None:
                call.take_result(node)
                placed.answered.append(call)


def _end_by(result: ToolResultBlock) -> ToolEnded:
    """Derive the end of a call from its result: a fork copies messages without their events."""
    code = None
    for block in result.content:
        if isinstance(block, JsonBlock) and isinstance(cast("object", block.data), dict):
            given = cast("JsonObject", block.data).get("exit_code")
            code = given if isinstance(given, int) else None
    error = result.error
    if error is None:
        return (ToolFailed if result.is_error else ToolCompleted)(exit_code=code)
    record = ToolDenied if error.code in REFUSALS else ToolFailed
    return record(code=error.code, message=error.message, exit_code=code)

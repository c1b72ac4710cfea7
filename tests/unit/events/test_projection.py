"""Events in their places: the calls and children that they belong to."""

from typing import Any

from agent_core.errors import ErrorCode
from agent_core.events.projection import Call, Projection
from agent_core.types import (
    ErrorPayload,
    EventType,
    Node,
    NodeType,
    Role,
    RuntimeEvent,
    ToolCallBlock,
    ToolResultBlock,
    utc_now,
)
from agent_core.types.content import ContentBlock
from tables import together


def happens(
    kind: str, payload: dict[str, Any] | None = None, *, agent: str = "agent_1", call: str = "c1"
) -> RuntimeEvent:
    return RuntimeEvent(
        event_id="evt_1",
        session_id="s1",
        agent_id=agent,
        run_id=agent.replace("agent", "run"),
        event_type=EventType(kind),
        tool_call_id=call,
        payload=payload or {},
        created_at=utc_now(),
    )


def node(role: Role, *content: ContentBlock, **metadata: Any) -> Node:
    return Node(
        node_id="node_1",
        session_id="s1",
        node_seq=1,
        parent_id=None,
        agent_id="agent_1",
        run_id="run_1",
        role=role,
        node_type=NodeType.MESSAGE,
        content=[*content],
        metadata=metadata,
        created_at=utc_now(),
    )


def test_a_call_is_followed_from_the_reply_to_its_answer() -> None:
    projection = Projection()
    reply = node(Role.ASSISTANT, ToolCallBlock(tool_call_id="c1", name="t", arguments={"a": "x"}))
    projection.take(happens("message_completed"), reply)
    call = projection.call("agent_1", "c1")
    assert call is not None
    assert (call.summary, call.outcome) == ("x", "open")
    projection.take(happens("permission_requested", {"args_summary": "t: look"}))
    assert call.summary == "look"
    projection.take(happens("permission_decided", {"decision": "allow_once"}))
    begun = projection.take(happens("tool_started", {"summary": "look at x", "kind": "read"}))
    assert (begun.call, begun.is_first, call.summary) == (call, False, "look at x")
    result = ToolResultBlock(tool_call_id="c1", content=[])
    ended = projection.take(happens("tool_completed", {"exit_code": 3}), node(Role.TOOL, result))
    assert ended.call is call
    assert (call.outcome, call.is_bad, call.result) == ("completed", True, result)
    assert list(projection.open_calls) == []


def test_agents_that_give_calls_the_same_id_are_told_apart() -> None:
    projection = Projection()
    parent = projection.take(happens("tool_started", {"tool_name": "agent.create_sub_agent"})).call
    started = {"child_run_id": "run_2", "agent_definition_id": "scout"}
    projection.take(happens("child_agent_created", started))
    child = projection.take(happens("tool_started", {"tool_name": "t"}, agent="agent_2")).call
    assert parent is not None
    assert child is not None
    assert (parent.caller, child.caller) == ("", "scout")
    projection.take(happens("tool_failed", agent="agent_2"))
    projection.take(happens("tool_completed"))
    assert (parent.outcome, child.outcome) == ("completed", "failed")


@together(
    ("reason", "outcome"),
    [
        ("interrupted_effect_unknown", "interrupted"),
        ("interrupted_before_start", "not run"),
        ("previous_write_failed", "not run"),
        ("run_cancelled", "failed"),
    ],
)
def test_only_the_runtime_says_that_a_call_was_interrupted(reason: str, outcome: str) -> None:
    call, forged = Call(name="t"), Call(name="t")
    result = ToolResultBlock(tool_call_id="c1", content=[], is_error=True)
    call.take_result(node(Role.TOOL, result, reason=reason))
    assert call.outcome == outcome
    said_by_the_tool = result.model_copy(update={"metadata": {"reason": reason}})
    forged.take_result(node(Role.TOOL, said_by_the_tool))
    assert forged.outcome == "failed"


@together(
    ("code", "outcome"),
    [
        (ErrorCode.PERMISSION_DENIED, "denied"),
        (ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS, "denied"),
        (ErrorCode.TOOL_ERROR, "failed"),
    ],
)
def test_a_refused_call_is_denied_without_its_events_too(code: ErrorCode, outcome: str) -> None:
    call = Call(name="t")
    error = ErrorPayload(type="ToolError", code=code, message="no")
    result = ToolResultBlock(tool_call_id="c1", content=[], is_error=True, error=error)
    call.take_result(node(Role.TOOL, result))
    assert call.outcome == outcome


def test_an_id_is_used_again_after_a_call_that_was_lost() -> None:
    projection = Projection()
    lost = projection.take(happens("tool_started", {"tool_name": "one"})).call
    again = projection.take(happens("tool_started", {"tool_name": "two"}))
    assert again.is_first
    assert again.call is not lost
    assert [call.name for _, call in projection.open_calls] == ["two"]


def test_an_event_of_another_version_breaks_nothing() -> None:
    projection = Projection()
    for kind in EventType:
        odd: dict[str, Any] = {
            "tool_name": 3,
            "child_run_id": [],
            "usage": "much",
            "paths": {"path": 1},
        }
        placed = projection.take(happens(kind, odd))
        assert placed.kind is kind

"""What readers get from the payload of an event, whoever has written it."""

import random
from typing import Any

import pytest
from msgspec.structs import fields

from agent_core.types import EventType, RuntimeEvent, Usage, utc_now
from agent_core.types.event_details import (
    _RECORDS,
    ContextBuilt,
    Delta,
    EventDetails,
    ModelReplied,
    ModelRetried,
    ToolCompleted,
    ToolFailed,
    read_details,
)
from tables import together

ODD: list[Any] = [
    *(None, True, -1, 2**70, 1.5, float("nan"), "", "text", "\ud800", b"bytes", [], {}, object()),
    *([None], [[]], [{"path": 1}], ["a", 1], {"total": "x"}, {"text": None}, {1: 2}),
    *({"code": 1, "message": []}, {"details": {"fallback": []}}, {"input_tokens": "many"}),
]


def event(kind: EventType, payload: dict[str, Any]) -> RuntimeEvent:
    return RuntimeEvent.of_checked(
        event_id="evt_1", event_type=kind, payload=payload, session_id="s1", created_at=utc_now()
    )


def test_each_record_is_of_a_known_kind() -> None:
    assert set(_RECORDS) <= set(EventType)


@pytest.mark.long
@together("kind", EventType)
def test_no_payload_breaks_a_reader(kind: EventType) -> None:
    chance = random.Random(kind)  # noqa: S311 - for the same payloads each time
    record = _RECORDS.get(kind, EventDetails)
    names = [known.name for known in fields(record)]
    for _ in range(60):
        payload = {name: chance.choice(ODD) for name in [*names, "of_a_later_version"]}
        details = event(kind, payload).details
        assert type(details) is record
        assert isinstance(f"{details.subject}{details.cause}{details.why}", str)
        if isinstance(details, ModelRetried):
            assert isinstance(details.next_model, str)


def test_an_odd_field_costs_only_itself() -> None:
    payload = {"tool_name": "t", "exit_code": "3", "output": "x", "later": {"a": 1}}
    assert read_details("tool_completed", payload) == ToolCompleted(tool_name="t", output="x")
    later = {"total_tokens": 7, "input_tokens": 7, "thinking_tokens": 3}
    reply = read_details("model_completed", {"usage": later, "duration_ms": []})
    assert reply == ModelReplied(usage=Usage(input_tokens=7, total_tokens=7))
    assert read_details("context_built", {"use": 3}) == ContextBuilt()
    assert type(read_details("of_a_later_version", {"name": "n"})) is EventDetails


def test_text_and_reasoning_are_told_apart() -> None:
    kinds = [
        type(read_details(kind, {"text": "x"}))
        for kind in ("model_text_delta", "model_reasoning_delta")
    ]
    assert len(set(kinds)) == 2
    assert all(issubclass(kind, Delta) for kind in kinds)


@together(
    ("payload", "why"),
    [
        ({"code": "timeout", "message": "late"}, "late"),
        ({"error": {"code": "c", "message": "m"}, "code": "other"}, "m"),
        ({"code": "hook_failed", "error": "broke"}, "broke (hook_failed)"),
        ({"reason": "no"}, "no"),
        ({}, ""),
    ],
)
def test_the_reason_of_a_failure_is_where_its_writer_has_put_it(
    payload: dict[str, Any], why: str
) -> None:
    assert read_details("tool_failed", payload).why == why
    assert isinstance(read_details("tool_failed", payload), ToolFailed)

"""Every response cut at every byte and split at every byte, as the parser sees it."""

import pytest

import responses_events as service
from agent_core.providers.decoding import EventDecoder
from agent_core.providers.failures import Called, CallError
from agent_core.providers.reply import ReplyAccumulator
from agent_core.providers.responses_events import ResponsesEvents
from agent_core.types import ModelCompleted, ModelEvent
from sweeps import sampled
from tables import together

ERROR = {"code": "server_error", "message": "Sorry."}
FIXTURES: dict[str, bytes] = {
    "words": service.body(service.message("ä 🌍!")),
    "thought and calls": service.body(
        service.reasoning("Hm 🌍", "ok"),
        service.call("run", '{"a":"ä"}', call_id="c1", item_id="fc_1"),
        service.call("run", "{}", call_id="c2", item_id="fc_2"),
    ),
    "refusal": service.body(service.refusal("No.")),
    "search": service.body({"type": "web_search_call", "id": "ws_1"}, service.message("x")),
    "incomplete": service.body(
        service.message("Half"),
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
    "bare": b"".join(
        service.sse(
            [
                *service.events_of([service.message("bare")])[:-1],
                {"type": "response.completed", "response": {}},
            ]
        )
    ),
}


def played(*blocks: bytes) -> list[ModelEvent]:
    """What comes of a body that arrives in these pieces, as `HttpProvider` reads it."""
    called, decoder = Called("openai", "m"), EventDecoder()
    draft = ReplyAccumulator(called, str, history=())
    parser, events = ResponsesEvents(called, draft), list[ModelEvent]()
    for block in blocks:
        for payload in decoder.feed(block):
            if not parser.done:
                parser.take(payload)
        events += draft.deltas()
    if not parser.done:
        parser.at_end = True
        for payload in decoder.end():
            parser.take(payload)
    return events + parser.finish()


def shown(events: list[ModelEvent]) -> str:
    texts = [getattr(event, "text", "") for event in events]
    return "".join(texts)


@together("name", FIXTURES)
def test_a_response_is_the_same_wherever_it_is_split(name: str) -> None:
    body = FIXTURES[name]
    whole = played(body)
    assert isinstance(whole[-1], ModelCompleted)

    for at in sampled(range(1, len(body)), keep=150):
        found = played(body[:at], body[at:])
        assert found[-1] == whole[-1], at
        assert shown(found) == shown(whole), at


@together("name", FIXTURES)
def test_a_response_that_is_cut_is_never_finished(name: str) -> None:
    body = FIXTURES[name]
    last = body.rindex(b"\n\n")
    assert isinstance(played(body[:last])[-1], ModelCompleted)  # all but the blank line

    for at in sampled(range(last), keep=150):
        with pytest.raises(CallError) as caught:
            played(body[:at])
        assert caught.value.retryable, at


def test_what_failed_is_a_failure_wherever_it_is_split() -> None:
    body = service.body(service.message("Half"), status="failed", error=ERROR)

    for at in sampled(range(1, len(body)), keep=100):
        with pytest.raises(CallError):
            played(body[:at], body[at:])

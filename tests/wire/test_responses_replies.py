"""What Responses services really stream, in all its variety, and what core makes of it."""

from collections.abc import Sequence

import orjson
import pytest

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderRegistry
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelReasoningDelta,
    ModelRequest,
    ModelRetry,
    ModelTextDelta,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolCallDelta,
    ToolDefinition,
    Usage,
)
from model_server import Ending, ModelServer, Reply, Sends
from responses_events import (
    USAGE,
    Event,
    body,
    call,
    events_of,
    item_events,
    message,
    reasoning,
    refusal,
    response,
    sse,
)
from tables import together

TOOLS = [
    ToolDefinition(name="run", description=""),
    ToolDefinition(name="code.list_dir", description=""),
]
HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
WHOLE = (
    reasoning("First **look**.", "Then say so."),
    message("Grüße 🌍, here it is.", phase="commentary"),
    call("run", '{"path": "ä/b", "n": 1}', call_id="call_a", item_id="fc_a"),
    call("code__list_dir", "{}", call_id="call_b", item_id="fc_b"),
)


async def played(*replies: Reply, attempts: int = 1) -> list[ModelEvent]:
    retry = RetryConfig(max_attempts=attempts, initial_backoff_ms=0, max_backoff_ms=0)
    request = ModelRequest(model="m", messages=[HELLO], tools=TOOLS)
    async with ModelServer(replies) as server:
        config = ModelConfig(name="m", retry=retry, **server.settings("responses"))
        adapter = ProviderRegistry().create(config)
        events = [event async for event in adapter.stream(request)]
        await adapter.close()
    return events


async def completed(*reply: bytes) -> ModelCompleted:
    last = (await played(Sends(reply)))[-1]
    assert isinstance(last, ModelCompleted), last
    return last


async def failed(*reply: bytes) -> ModelFailed:
    last = (await played(Sends(reply)))[-1]
    assert isinstance(last, ModelFailed), last
    return last


def kinds(events: Sequence[Event], *unwanted: str) -> list[Event]:
    """The events without those whose type ends like this."""
    return [event for event in events if not event["type"].endswith(unwanted)]


def text_of(reply: ModelCompleted) -> str:
    return "".join(each.text for each in reply.content if isinstance(each, TextBlock))


async def test_a_whole_response_is_read() -> None:
    events = await played(Sends(body(*WHOLE)))

    reply = events[-1]
    assert isinstance(reply, ModelCompleted)
    thought, text, *calls = reply.content
    assert isinstance(thought, ReasoningBlock)
    assert isinstance(text, TextBlock)
    assert thought.text == "First **look**.\n\nThen say so."
    assert text == TextBlock(text="Grüße 🌍, here it is.")
    assert [each.name for each in reply.tool_calls] == ["run", "code.list_dir"]
    assert [each.tool_call_id for each in reply.tool_calls] == ["call_a", "call_b"]
    assert [each.arguments for each in reply.tool_calls] == [{"path": "ä/b", "n": 1}, {}]
    assert [each.metadata for each in calls if isinstance(each, ToolCallBlock)] == [
        each.metadata for each in reply.tool_calls
    ]
    assert (reply.stop_reason, reply.raw_stop_reason) == (StopReason.TOOL_USE, "completed")
    assert reply.usage == Usage(
        input_tokens=328,
        output_tokens=52,
        total_tokens=380,
        cache_read_tokens=128,
        reasoning_tokens=40,
        raw_usage=USAGE,
    )
    thoughts = [event.text for event in events if isinstance(event, ModelReasoningDelta)]
    assert "".join(thoughts) == thought.text
    assert "".join(e.text for e in events if isinstance(e, ModelTextDelta)) == text.text
    fragments = [event for event in events if isinstance(event, ToolCallDelta)]
    assert "".join(e.arguments_fragment for e in fragments if e.tool_call_id == "call_a") == (
        '{"path": "ä/b", "n": 1}'
    )


EVENTS = events_of(WHOLE)
END = EVENTS[-1:]
BARE_END: list[Event] = [{**EVENTS[-1], "response": response("completed", [], usage=USAGE)}]
NULL_END: list[Event] = [{"type": "response.completed", "response": {"usage": None}}]


def interleaved() -> list[Event]:
    """All items begin, then their pieces arrive in turn, and they end in another order."""
    items = [list(item_events(index, item)) for index, item in enumerate(WHOLE)]
    begun = [item[0] for item in items]
    middle = [item[1:-1] for item in items]
    longest = max(map(len, middle))
    pieces = [part[at] for at in range(longest) for part in middle if at < len(part)]
    return [*begun, *pieces, *(item[-1] for item in reversed(items)), *BARE_END]


def changed_ids() -> list[Event]:
    """Each event names its item otherwise, as some gateways do."""
    found: list[Event] = []
    for number, event in enumerate(EVENTS[:-1]):
        other = {"item_id": f"x{number}"} if "item_id" in event else {}
        item = {"item": {**event["item"], "id": f"y{number}"}} if "item" in event else {}
        found.append({**event, **other, **item})
    return [*found, *BARE_END]


def without(*fields: str) -> list[Event]:
    return [{k: v for k, v in event.items() if k not in fields} for event in EVENTS[:-1]]


VARIANTS: dict[str, list[Event]] = {
    "only the last event": END,
    "no last output": [*EVENTS[:-1], *BARE_END],
    "no output, status or usage": [*EVENTS[:-1], *NULL_END],
    "only whole items": [*(e for e in EVENTS if e["type"].endswith("item.done")), *BARE_END],
    "only whole texts": [*kinds(EVENTS[:-1], ".delta", "part.done", "item.done"), *BARE_END],
    "no deltas": kinds(EVENTS, ".delta"),
    "no done": [*kinds(EVENTS[:-1], ".done"), *BARE_END],
    "no parts": kinds(EVENTS, "part.added", "part.done"),
    "no begin": [*kinds(EVENTS[:-1], "created", "in_progress", "added"), *BARE_END],
    "no ids": [*without("item_id"), *BARE_END],
    "no places": [*without("output_index", "content_index", "summary_index"), *BARE_END],
    "other ids in every event": changed_ids(),
    "interleaved": interleaved(),
    "numbers that repeat": [{**event, "sequence_number": 0} for event in EVENTS],
    "unknown events": [
        {"type": "response.output_text.annotation.added", "annotation": {"type": "url_citation"}},
        {"type": "response.queued", "response": response("queued")},
        {"type": "keepalive", "sequence_number": 3},
        {"type": "response.something.new", "output_index": 0, "delta": "no text"},
        {},
        {"type": None},
        *EVENTS,
    ],
    "wrong types": [
        {"type": "response.output_text.delta", "output_index": 1, "delta": 7},
        {"type": "response.output_item.added", "item": "x"},
        {"type": "response.output_item.done", "item": None, "output_index": "y"},
        {"type": "response.output_item.added", "item": {"type": 5}, "output_index": 9},
        {"type": "response.function_call_arguments.delta", "delta": "lost"},
        {"type": "response.in_progress", "response": 5},
        *EVENTS,
    ],
    "all at one place": [{**e, "output_index": 0} if "output_index" in e else e for e in EVENTS],
}


@together("name", VARIANTS)
async def test_servers_that_leave_events_out_or_add_some_mean_the_same(name: str) -> None:
    reply = await completed(*sse_of(VARIANTS[name]))

    assert text_of(reply) == "Grüße 🌍, here it is."
    assert [each.name for each in reply.tool_calls] == ["run", "code.list_dir"]
    assert [each.arguments for each in reply.tool_calls] == [{"path": "ä/b", "n": 1}, {}]
    assert reply.stop_reason is StopReason.TOOL_USE
    thoughts = [each.text for each in reply.content if isinstance(each, ReasoningBlock)]
    assert "".join(thoughts) == "First **look**.\n\nThen say so."
    assert reply.usage.total_tokens in {0, 380}


def sse_of(events: Sequence[Event]) -> list[bytes]:
    return [b"data: " + orjson.dumps(event) + b"\n\n" for event in events]


async def test_comments_end_marks_and_names_without_data_change_nothing() -> None:
    noise = [b": keepalive\n\n", b"event: ping\n\n", b"retry: 10\n\n"]

    reply = await completed(*noise, *sse(EVENTS[:4]), *noise, *sse(EVENTS[4:]), b"data: [DONE]\n\n")

    assert text_of(reply) == "Grüße 🌍, here it is."


async def test_the_last_event_counts_over_what_was_streamed() -> None:
    streamed = events_of([message("wrong"), call("run", '{"a":1}', call_id="call_1")])[:-1]
    output = [message("right", item_id="msg_1"), call("run", '{"a":2}', call_id="call_1")]
    last = {"type": "response.completed", "response": response("completed", output)}

    reply = await completed(*sse([*streamed, last]))

    assert text_of(reply) == "right"
    assert [each.arguments for each in reply.tool_calls] == [{"a": 2}]
    assert [each.tool_call_id for each in reply.tool_calls] == ["call_1"]


async def test_several_messages_and_parts_keep_their_order() -> None:
    parts: list[Event] = [
        {"type": "output_text", "text": text, "annotations": []} for text in ("b", "c")
    ]
    output = [message("a"), message("", item_id="msg_2", content=parts), message("d", item_id="m3")]

    for events in (events_of(output), [*events_of(output)[:-1], *BARE_END]):
        assert text_of(await completed(*sse(events))) == "abcd"


@together(
    "item",
    [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}},
        {"type": "file_search_call", "id": "fs_1", "queries": ["x"], "results": None},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": []},
        {"type": "mcp_call", "id": "mcp_1", "name": "x", "arguments": "{}", "output": "y"},
        {"type": "mcp_list_tools", "id": "mcpl_1", "tools": []},
        {"type": "mcp_approval_request", "id": "mcpr_1", "name": "x", "arguments": "{}"},
        {"type": "image_generation_call", "id": "ig_1", "result": "iVBORw0KGgo="},
        {"type": "computer_call", "id": "cu_1", "call_id": "call_c", "action": {}},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_l", "action": {}},
        {"type": "tool_search_call", "id": "ts_1", "call_id": "call_t", "arguments": {}},
        {"type": "made_up_tomorrow", "id": "x_1"},
    ],
    ids=lambda item: item["type"],
)
async def test_items_of_tools_that_were_not_offered_are_no_calls(item: Event) -> None:
    reply = await completed(body(item, message("found it")))

    assert text_of(reply) == "found it"
    assert (reply.tool_calls, reply.stop_reason) == ([], StopReason.END_TURN)


async def test_a_custom_call_has_one_text() -> None:
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run"}

    for events in (
        events_of([{**custom, "input": 'print("hi")\n'}]),
        [*events_of([{**custom, "input": 'print("hi")\n'}])[:-1], *BARE_END],
    ):
        reply = await completed(*sse(events))
        [found] = reply.tool_calls
        assert (found.name, found.arguments) == ("run", {"input": 'print("hi")\n'})


async def test_a_refusal_is_words_and_a_filtered_end() -> None:
    events = events_of([refusal("I cannot help with that.")])

    for variant in (events, events[-1:], [*events[:-1], *BARE_END]):
        reply = await completed(*sse(variant))
        assert text_of(reply) == "I cannot help with that."
        assert (reply.stop_reason, reply.raw_stop_reason) == (
            StopReason.CONTENT_FILTER,
            "refusal",
        )


@together(
    ("reason", "stop"),
    [
        ("max_output_tokens", StopReason.MAX_TOKENS),
        ("content_filter", StopReason.CONTENT_FILTER),
        ("steered", StopReason.ERROR),
        ("made_up_tomorrow", StopReason.ERROR),
    ],
)
async def test_an_incomplete_response_says_why(reason: str, stop: StopReason) -> None:
    more = {"incomplete_details": {"reason": reason}}
    cut = {**call("run", '{"pa', call_id="call_1"), "status": "incomplete"}

    reply = await completed(body(message("Half an"), cut, status="incomplete", **more))

    assert text_of(reply) == "Half an"
    assert (reply.stop_reason, reply.raw_stop_reason) == (stop, reason)
    assert reply.tool_calls[0].metadata["invalid_arguments"] == '{"pa'
    assert reply.usage.total_tokens == 380


async def test_an_incomplete_response_without_a_reason_is_no_finished_turn() -> None:
    reply = await completed(body(message("Half an"), status="incomplete"))

    assert (reply.stop_reason, reply.raw_stop_reason) == (StopReason.ERROR, "incomplete")


async def test_the_status_counts_where_the_name_of_the_event_says_otherwise() -> None:
    last = response("incomplete", [message("a")], incomplete_details={"reason": "content_filter"})
    reply = await completed(*sse([{"type": "response.completed", "response": last}]))
    assert reply.stop_reason is StopReason.CONTENT_FILTER

    error = {"code": "server_error", "message": "The server had an error"}
    last = response("failed", error=error)
    failure = await failed(*sse([{"type": "response.completed", "response": last}]))
    assert "The server had an error" in failure.error.message


FAILURES = [
    ("server_error", ErrorCode.PROVIDER_ERROR, True),
    ("rate_limit_exceeded", ErrorCode.PROVIDER_RATE_LIMITED, True),
    ("insufficient_quota", ErrorCode.PROVIDER_RATE_LIMITED, False),
    ("invalid_api_key", ErrorCode.PROVIDER_AUTH_FAILED, False),
    ("context_length_exceeded", ErrorCode.PROMPT_TOO_LONG, False),
    ("vector_store_timeout", ErrorCode.PROVIDER_ERROR, True),
    ("invalid_prompt", ErrorCode.PROVIDER_ERROR, False),
    ("bio_policy", ErrorCode.PROVIDER_ERROR, False),
    ("image_too_large", ErrorCode.PROVIDER_ERROR, False),
    ("failed_to_download_image", ErrorCode.PROVIDER_ERROR, False),
    ("unsupported_image_media_type", ErrorCode.PROVIDER_ERROR, False),
    ("made_up_tomorrow", ErrorCode.PROVIDER_ERROR, True),
]


@together(("code", "expected", "retryable"), FAILURES)
async def test_errors_in_the_stream_are_what_they_would_be_as_a_status(
    code: str, expected: ErrorCode, *, retryable: bool
) -> None:
    told = {"code": code, "message": "It did not work."}
    shapes: list[Event] = [
        {"type": "response.failed", "response": response("failed", error=told)},
        {"type": "error", **told, "param": None, "sequence_number": 2},
        {"type": "error", "error": {"type": None, **told}, "sequence_number": 2},
    ]
    for last in shapes:
        failure = await failed(*sse([*EVENTS[:4], last]))
        assert failure.error.code is expected
        assert "It did not work." in failure.error.message
        assert code in failure.error.message
        assert failure.error.retryable is retryable


@together(
    "last",
    [
        {"type": "response.failed", "response": response("failed")},
        {"type": "response.failed", "response": None},
        {"type": "response.failed"},
        {"type": "error", "message": None},
        {"type": "response.cancelled", "response": response("cancelled")},
    ],
)
async def test_a_failure_without_an_explanation_is_one(last: Event) -> None:
    failure = await failed(*sse([*EVENTS[:4], last]))

    assert failure.error.code is ErrorCode.PROVIDER_ERROR
    assert "null" not in failure.error.message


async def test_a_failure_before_the_first_delta_is_tried_again() -> None:
    error = {"code": "server_error", "message": "Sorry."}
    last = {"type": "response.failed", "response": response("failed", error=error)}

    events = await played(Sends(sse([*EVENTS[:2], last])), Sends(body(message("ok"))), attempts=2)

    assert [type(event) for event in events].count(ModelRetry) == 1
    assert isinstance(events[-1], ModelCompleted)


@pytest.mark.long
async def test_no_response_is_finished_before_its_last_event() -> None:
    whole = sse(EVENTS)
    for count in range(len(whole)):
        for ending in (Ending.COMPLETE, Ending.CLOSE):
            last = (await played(Sends(whole[:count], ending=ending)))[-1]
            assert isinstance(last, ModelFailed), count


@pytest.mark.long
@pytest.mark.parametrize("piece", [1, 7])
async def test_a_response_is_the_same_in_pieces_of_any_size(piece: int) -> None:
    reply = (await played(Sends(body(*WHOLE), piece=piece)))[-1]

    assert reply == await completed(body(*WHOLE))


async def test_a_server_without_a_last_event_ends_with_its_mark() -> None:
    reply = await completed(*sse(EVENTS[:-1]), b"data: [DONE]\n\n")

    assert text_of(reply) == "Grüße 🌍, here it is."
    assert reply.metadata["stop_reason_missing"] is True


async def test_ids_that_are_missing_or_twice_are_replaced() -> None:
    output = [call("run", "{}", call_id=each, item_id=None) for each in ("", "a b", "c", "c")]

    reply = await completed(body(*output))

    ids = [each.tool_call_id for each in reply.tool_calls]
    assert len(set(ids)) == 4
    assert ids[2] == "c"
    assert reply.tool_calls[1].metadata["raw_tool_call_id"] == "a b"


async def test_thoughts_in_the_open_are_read() -> None:
    """Open models have their words under `content`, with or without a summary."""
    content = [{"type": "reasoning_text", "text": text} for text in ("one", "two")]
    item = reasoning(content=content, encrypted_content=None)

    for events in (events_of([item, message("x")]), events_of([item, message("x")])[-1:]):
        thought = (await completed(*sse(events))).content[0]
        assert isinstance(thought, ReasoningBlock)
        assert thought.text == "one\n\ntwo"

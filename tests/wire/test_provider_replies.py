"""What services really send, in all its variety, and what core makes of it."""

from typing import Any

import orjson
import pytest

from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderRegistry
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelTextDelta,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
    ToolDefinition,
    Usage,
)
from model_server import ModelServer, Sends, sse
from tables import together

TOOLS = [
    ToolDefinition(name="code.list_dir", description=""),
    ToolDefinition(name="run", description=""),
]


async def played(protocol: str, body: bytes, **more: Any) -> list[ModelEvent]:
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    request = ModelRequest(model="m", messages=[hello], tools=TOOLS)
    async with ModelServer([Sends(body, **more)]) as server:
        config = ModelConfig(provider=protocol, name="m", base_url=server.base_url(protocol))
        adapter = ProviderRegistry().create(config)
        events = [event async for event in adapter.stream(request)]
        await adapter.close()
    return events


async def completed(protocol: str, body: bytes, **more: Any) -> ModelCompleted:
    last = (await played(protocol, body, **more))[-1]
    assert isinstance(last, ModelCompleted), last
    return last


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}


def call(index: int | None = None, call_id: str | None = None, **function: Any) -> dict[str, Any]:
    part: dict[str, Any] = {"function": function}
    if index is not None:
        part["index"] = index
    if call_id is not None:
        part["id"] = call_id
    return chunk({"tool_calls": [part]})


DONE = b"data: [DONE]\n\n"


async def test_openai_empty_deltas_comments_and_usage_only_chunks_are_tolerated() -> None:
    body = b": OPENROUTER PROCESSING\n\n" + sse(
        {},
        {"choices": []},
        {"choices": None},
        chunk(None),
        chunk({}),
        chunk({"role": "assistant", "content": None, "tool_calls": None}),
        {"choices": [{"delta": {"content": "hi"}}]},
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
        chunk({}, "stop"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
    )

    reply = await completed("openai", body + DONE)

    assert reply.content == [TextBlock(text="hi")]
    assert (reply.stop_reason, reply.raw_stop_reason) == (StopReason.END_TURN, "stop")
    assert reply.usage.total_tokens == 4


async def test_openai_a_missing_done_is_fine_after_the_stop_reason() -> None:
    reply = await completed("openai", sse(chunk({"content": "hi"}), chunk({}, "length")))

    assert reply.stop_reason is StopReason.MAX_TOKENS


async def test_openai_a_done_after_an_answer_may_stand_for_the_stop_reason() -> None:
    reply = await completed("openai", sse(chunk({"content": "hi"})) + DONE)

    assert reply.content == [TextBlock(text="hi")]
    assert (reply.stop_reason, reply.raw_stop_reason) == (StopReason.END_TURN, None)
    assert reply.metadata == {"stop_reason_missing": True}


async def test_openai_a_done_after_a_call_may_stand_for_the_stop_reason() -> None:
    body = sse(call(0, "a", name="run", arguments='{"n": 1}'), call(1, "b", name="run")) + DONE

    reply = await completed("openai", body)

    whole, begun = reply.tool_calls
    assert (whole.arguments, reply.stop_reason) == ({"n": 1}, StopReason.TOOL_USE)
    assert "invalid_arguments" in begun.metadata


@together("parts", [[], [chunk({"reasoning": "hm"})], [chunk({"content": ""})]])
async def test_openai_a_done_after_no_answer_is_no_end(parts: list[Any]) -> None:
    last = (await played("openai", sse(*parts) + DONE))[-1]

    assert isinstance(last, ModelFailed)
    assert last.error.code is ErrorCode.PROVIDER_ERROR


@together(
    ("raw", "stop"),
    [
        ("model_length", StopReason.MAX_TOKENS),
        ("MAX_TOKENS", StopReason.MAX_TOKENS),
        ("SAFETY", StopReason.CONTENT_FILTER),
        ("content_filter: RECITATION", StopReason.CONTENT_FILTER),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", StopReason.ERROR),
        ("malformed_function_call", StopReason.ERROR),
        ("brand_new", StopReason.ERROR),
        ("toString", StopReason.ERROR),
    ],
)
async def test_openai_a_stop_reason_is_in_the_table_or_an_error(raw: str, stop: StopReason) -> None:
    reply = await completed("openai", sse(chunk({"content": "so"}), chunk({}, raw)) + DONE)

    assert (reply.stop_reason, reply.raw_stop_reason) == (stop, raw)


@together("raw", ["content_filter", "length", "brand_new"])
async def test_openai_a_call_that_was_kept_back_is_not_one_without_arguments(raw: str) -> None:
    body = sse(call(0, "a", name="run", arguments=""), chunk({}, raw)) + DONE

    [kept_back] = (await completed("openai", body)).tool_calls

    assert "invalid_arguments" in kept_back.metadata


async def test_openai_what_follows_the_end_is_not_read() -> None:
    body = sse(chunk({"content": "hi"}, "stop")) + DONE + sse(chunk({"content": "more"})) + b"junk"

    assert (await completed("openai", body)).content == [TextBlock(text="hi")]


COUNTED = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "cached_tokens": 2}


async def test_openai_usage_has_what_was_cached_and_what_was_thought() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 80},
        "completion_tokens_details": {"reasoning_tokens": 15},
    }
    body = sse(chunk({"content": "hi"}, "stop"), {"choices": [], "usage": usage}) + DONE

    assert (await completed("openai", body)).usage == Usage(
        input_tokens=100,
        output_tokens=20,
        total_tokens=120,
        cache_read_tokens=80,
        reasoning_tokens=15,
        raw_usage=usage,
    )


@together(
    "end",
    [
        {**chunk({}, "stop"), "x_groq": {"id": "r", "usage": COUNTED}},
        {"choices": [{"delta": {}, "finish_reason": "stop", "usage": COUNTED, "index": 0}]},
        {**chunk({}, "stop"), "usage": COUNTED, "x_groq": {"id": "r", "usage": None}},
    ],
    ids=["groq", "moonshot", "both"],
)
async def test_openai_usage_is_read_wherever_a_service_puts_it(end: dict[str, Any]) -> None:
    usage = (await completed("openai", sse(chunk({"content": "hi"}), end) + DONE)).usage

    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (10, 3, 2)


@together(
    "failure",
    [
        {**chunk({}), "x_groq": {"id": "r", "error": "no room left"}},
        {**chunk({}, "stop"), "x_groq": {"id": "r", "error": "no room left"}},
        {"message": "no room left", "code": 500, "type": "InternalServerError"},
        {"detail": "no room left"},
    ],
    ids=["groq", "groq-at-the-end", "message", "detail"],
)
async def test_openai_an_error_without_a_field_for_it_is_no_finished_answer(
    failure: dict[str, Any],
) -> None:
    begun = sse(chunk({"content": "hi"})) + b"event: error\n" + sse(failure)
    for body in (begun + DONE, begun.rstrip()):
        last = (await played("openai", body))[-1]

        assert isinstance(last, ModelFailed)
        assert "no room left" in last.error.message


async def test_openai_a_call_in_the_form_before_tools_is_one() -> None:
    parts = [
        chunk({"function_call": {"name": "run", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"n":'}}),
        chunk({"function_call": {"arguments": "1}"}}, "function_call"),
    ]

    [found] = (await completed("openai", sse(*parts) + DONE)).tool_calls

    assert (found.name, found.arguments) == ("run", {"n": 1})


@pytest.mark.parametrize("index", [None, 0])
async def test_openai_whole_calls_at_one_place_without_ids_are_several(index: int | None) -> None:
    parts = [call(index, "", name="run", arguments=f'{{"n": {number}}}') for number in (1, 2)]

    reply = await completed("openai", sse(*parts, chunk({}, "stop")) + DONE)

    assert [item.arguments for item in reply.tool_calls] == [{"n": 1}, {"n": 2}]
    assert len({item.tool_call_id for item in reply.tool_calls}) == 2


async def test_openai_a_name_that_is_repeated_begins_no_other_call() -> None:
    pieces = ['{"n":', "{}", ",", '"m":1', "}", ""]
    parts = [call(0, name="run", arguments=piece) for piece in pieces]

    [found] = (await completed("openai", sse(*parts, chunk({}, "stop")) + DONE)).tool_calls

    assert found.arguments == {"n": {}, "m": 1}


CALLS = {
    "interleaved": [
        call(0, "a", name="run", arguments='{"n":'),
        call(1, "b", name="code__list_dir", arguments='{"m"'),
        call(0, arguments=" 1}"),
        call(1, arguments=": 2}"),
    ],
    "one index for all": [
        call(0, "a", name="run", arguments='{"n": 1}'),
        call(0, "b", name="code__list_dir", arguments='{"m": 2}'),
    ],
    "no index": [
        call(None, "a", name="run", arguments='{"n": 1}'),
        call(None, "b", name="code__list_dir", arguments='{"m": '),
        call(None, arguments="2}"),
    ],
    "one index for all, interleaved by id": [
        call(0, "a", name="run"),
        call(0, "b", name="code__list_dir"),
        call(0, "a", arguments='{"n":'),
        call(0, "b", arguments='{"m": '),
        call(0, "a", name="run", arguments=" 1}"),
        call(0, "b", name="code__list_dir", arguments="2}"),
    ],
    "no index, interleaved by id": [
        call(None, "a", name="run"),
        call(None, "b", name="code__list_dir"),
        call(None, "a", arguments='{"n": 1}'),
        call(None, "b", arguments='{"m": 2}'),
    ],
    "another id in every piece": [
        call(0, "a", name="run", arguments='{"n"'),
        call(0, "a2", arguments=": 1}"),
        call(1, "b", name="code__list_dir", arguments='{"m": 2}'),
    ],
    "ids repeated": [
        call(0, "a", name="run", arguments='{"n"'),
        call(0, "a", name="run", arguments=": 1}"),
        call(1, "b", name="code__list_dir", arguments='{"m": 2}'),
    ],
    "name in pieces": [
        call(0, "a", name="run"),
        call(0, arguments='{"n": 1}'),
        call(1, "b", name="code__"),
        call(1, name="list_dir"),
        call(1, arguments='{"m": 2}'),
    ],
    "arguments as objects": [
        call(0, "a", name="run", arguments={"n": 1}),
        call(1, "b", name="code__list_dir", arguments={"m": 2}),
    ],
    "canonical names": [
        call(0, "a", name="run", arguments='{"n": 1}'),
        call(1, "b", name="code.list_dir", arguments='{"m": 2}'),
    ],
}


@together("parts", CALLS.values(), ids=CALLS.keys())
async def test_c3_openai_calls_are_put_together_again(parts: list[dict[str, Any]]) -> None:
    reply = await completed("openai", sse(*parts, chunk({}, "tool_calls")) + DONE)

    found = [(item.tool_call_id, item.name, item.arguments) for item in reply.tool_calls]
    assert found == [("a", "run", {"n": 1}), ("b", "code.list_dir", {"m": 2})]


@pytest.mark.parametrize("given", [None, ""])
async def test_openai_calls_without_ids_get_some(given: str | None) -> None:
    parts = [call(0, given, name="run", arguments="{}"), call(1, given, name="run", arguments="{}")]

    reply = await completed("openai", sse(*parts, chunk({}, "stop")) + DONE)

    ids = [item.tool_call_id for item in reply.tool_calls]
    assert len(set(ids)) == 2
    assert all(item.startswith("call_") for item in ids)
    assert reply.stop_reason is StopReason.TOOL_USE


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_openai_reasoning_is_read_from_either_field(field: str) -> None:
    body = sse(chunk({field: "let me "}), chunk({field: "see"}), chunk({"content": "ok"}, "stop"))

    reply = await completed("openai", body + DONE)

    thought = ReasoningBlock(
        text="let me see", metadata={"provider": "openai", "model": "m", "field": field}
    )
    assert reply.content == [thought, TextBlock(text="ok")]


async def test_openai_content_in_parts_and_refusals_are_text() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "image"}, {"type": "text", "text": "two"}]
    body = sse(chunk({"content": parts}), chunk({"refusal": ", no"}, "content_filter")) + DONE

    reply = await completed("openai", body)

    assert reply.content == [TextBlock(text="one two, no")]
    assert reply.stop_reason is StopReason.CONTENT_FILTER


async def test_openai_a_refusal_is_no_answer_although_it_ends_as_one() -> None:
    refused = sse(chunk({"content": "", "refusal": "I will"}), chunk({"refusal": " not"}))
    empty = sse(chunk({"content": "yes", "refusal": ""}), chunk({"refusal": None}))
    for words, body, stop in (
        ("I will not", refused, StopReason.CONTENT_FILTER),
        ("yes", empty, StopReason.END_TURN),
    ):
        reply = await completed("openai", body + sse(chunk({}, "stop")) + DONE)
        assert reply.content == [TextBlock(text=words)]
        assert reply.stop_reason is stop


@together("reason", ["error", "abort", "insufficient_system_resource"])
async def test_openai_a_stop_that_means_failure_is_one(reason: str) -> None:
    last = (await played("openai", sse(chunk({"content": "so"}), chunk({}, reason)) + DONE))[-1]

    assert isinstance(last, ModelFailed)
    assert reason in last.error.message


@together(
    ("halves", "text"),
    [
        ([b'"\\ud83d"', b'"\\ude00 ok"'], "\U0001f600 ok"),
        ([b'"a\\ud83d"', b'"b"'], "a\ufffdb"),
        ([b'"end\\ud83d"'], "end\ufffd"),
        ([b'"nul\\u0000"'], "nul\0"),
        ([b'"\xff bad utf-8"'], "\ufffd bad utf-8"),
    ],
)
async def test_openai_half_characters_are_joined_or_replaced(
    halves: list[bytes], text: str
) -> None:
    parts = [b'data: {"choices":[{"delta":{"content":%b}}]}\n\n' % half for half in halves]
    body = b"".join(parts) + sse(chunk({}, "stop")) + DONE

    for piece in (None, 1):
        events = await played("openai", body, piece=piece)
        last = events[-1]
        assert isinstance(last, ModelCompleted)
        assert last.content == [TextBlock(text=text)]
        assert "".join(event.text for event in events if isinstance(event, ModelTextDelta)) == text


@together(
    "chunks",
    [
        [{"choices": "x"}, {"choices": {"a": 1}}, {"choices": [1, None, "x"]}],
        [{"choices": [{"delta": "x"}]}, {"choices": [{"delta": {"content": 7}}]}],
        [chunk({"tool_calls": "x"}), chunk({"tool_calls": [1, None]}), {"usage": "x"}],
        [{"usage": {"prompt_tokens": "many", "completion_tokens": -4}}],
    ],
)
async def test_openai_fields_of_wrong_types_are_passed_over(chunks: list[Any]) -> None:
    body = sse(*chunks, chunk({"content": "fine"}, "stop")) + DONE

    assert (await completed("openai", body)).content == [TextBlock(text="fine")]


async def test_two_hundred_calls_in_one_reply_are_two_hundred_calls() -> None:
    parts = [call(index, f"c{index}", name="run", arguments="{}") for index in range(200)]

    reply = await completed("openai", sse(*parts, chunk({}, "tool_calls")) + DONE)

    assert [item.tool_call_id for item in reply.tool_calls] == [f"c{index}" for index in range(200)]


async def test_ten_megabytes_of_arguments_arrive() -> None:
    text = "x" * 10_000_000
    parts = [call(0, "a", name="run", arguments='{"t": "'), call(0, arguments=text)]

    reply = await completed(
        "openai", sse(*parts, call(0, arguments='"}'), chunk({}, "stop")) + DONE
    )

    assert reply.tool_calls[0].arguments == {"t": text}


def anthropic(*events: dict[str, Any], stop: str = "end_turn") -> bytes:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 3}
    start = {"type": "message_start", "message": {"usage": {**usage, "output_tokens": 1}}}
    end = {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9}}
    return sse({"type": "ping"}, start, *events, end, {"type": "message_stop"})


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


async def test_anthropic_thoughts_come_with_what_they_need_to_go_back() -> None:
    body = anthropic(
        *block(
            0,
            {"type": "thinking", "thinking": ""},
            {"type": "thinking_delta", "thinking": "hm, "},
            {"type": "thinking_delta", "thinking": "yes"},
            {"type": "signature_delta", "signature": "c2ln"},
        ),
        *block(1, {"type": "redacted_thinking", "data": "aGlk"}),
        *block(2, {"type": "thinking", "thinking": "", "signature": "b25seQ=="}),
        *block(3, {"type": "text", "text": "Good"}, {"type": "text_delta", "text": "!"}),
    )

    reply = await completed("anthropic", body)

    mine = {"provider": "anthropic", "model": "m"}
    assert reply.content == [
        ReasoningBlock(text="hm, yes", signature="c2ln", metadata=mine),
        ReasoningBlock(text="", metadata={**mine, "redacted_thinking": "aGlk"}),
        ReasoningBlock(text="", signature="b25seQ==", metadata=mine),
        TextBlock(text="Good!"),
    ]


async def test_anthropic_usage_counts_the_cached_part_as_input() -> None:
    usage = (await completed("anthropic", anthropic())).usage

    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (98, 9, 107)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (90, 3)


async def test_anthropic_usage_has_what_was_thought() -> None:
    details = {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 7}}
    report = {"type": "message_delta", "delta": {}, "usage": details}

    usage = (await completed("anthropic", anthropic(report))).usage

    assert (usage.output_tokens, usage.reasoning_tokens) == (9, 7)


async def test_anthropic_unknown_events_blocks_and_deltas_are_passed_over() -> None:
    body = anthropic(
        {"type": "brand_new"},
        *block(0, {"type": "server_tool_use", "id": "s"}, {"type": "input_json_delta"}),
        *block(
            1, {"type": "text"}, {"type": "citations_delta"}, {"type": "text_delta", "text": "a"}
        ),
        {
            "type": "content_block_delta",
            "index": 9,
            "delta": {"type": "text_delta", "text": "lost"},
        },
    )

    assert (await completed("anthropic", body)).content == [TextBlock(text="a")]


@together("pieces", [[], [""], ['{"path"', ': "a"}']])
async def test_c4_anthropic_input_may_stand_in_the_start_of_its_block(pieces: list[str]) -> None:
    tool = {"type": "tool_use", "id": "t", "name": "code__list_dir", "input": {"path": "a"}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]

    reply = await completed("anthropic", anthropic(*block(0, tool, *deltas), stop="tool_use"))

    [found] = reply.tool_calls
    assert (found.tool_call_id, found.name, found.arguments) == (
        "t",
        "code.list_dir",
        {"path": "a"},
    )


@together(
    ("raw", "stop"),
    [
        ("max_tokens", StopReason.MAX_TOKENS),
        ("stop_sequence", StopReason.STOP_SEQUENCE),
        ("refusal", StopReason.CONTENT_FILTER),
        ("model_context_window_exceeded", StopReason.MAX_TOKENS),
        ("pause_turn", StopReason.MAX_TOKENS),
        ("brand_new", StopReason.ERROR),
    ],
)
async def test_anthropic_stop_reasons(raw: str, stop: StopReason) -> None:
    text = block(0, {"type": "text", "text": "hi"})

    reply = await completed("anthropic", anthropic(*text, stop=raw))

    assert (reply.stop_reason, reply.raw_stop_reason) == (stop, raw)


@together(
    ("kind", "code"),
    [
        ("invalid_request_error", ErrorCode.PROVIDER_ERROR),
        ("authentication_error", ErrorCode.PROVIDER_AUTH_FAILED),
        ("permission_error", ErrorCode.PROVIDER_AUTH_FAILED),
        ("request_too_large", ErrorCode.PROMPT_TOO_LONG),
    ],
)
async def test_anthropic_error_events_have_their_meaning(kind: str, code: ErrorCode) -> None:
    last = (await played("anthropic", sse({"type": "error", "error": {"type": kind}})))[-1]

    assert isinstance(last, ModelFailed)
    assert last.error.code is code


def line(message: dict[str, Any], **more: Any) -> bytes:
    return orjson.dumps({"model": "m", "message": message, "done": False, **more}) + b"\n"


async def test_ollama_an_unknown_reason_is_an_error() -> None:
    body = line({"content": "hi"}) + line({"content": ""}, done=True, done_reason="load")

    assert (await completed("ollama", body)).stop_reason is StopReason.ERROR


END = line({"content": ""}, done=True, done_reason="stop", prompt_eval_count=4, eval_count=2)


async def test_c5_ollama_text_thoughts_and_counts() -> None:
    body = line({"thinking": "hm"}) + line({"content": "he"}) + line({"content": "llo"}) + END

    events = await played("ollama", body)

    last = events[-1]
    assert isinstance(last, ModelCompleted)
    thought = ReasoningBlock(text="hm", metadata={"provider": "ollama", "model": "m"})
    assert last.content == [thought, TextBlock(text="hello")]
    assert last.usage == Usage(
        input_tokens=4,
        output_tokens=2,
        total_tokens=6,
        raw_usage={"prompt_eval_count": 4, "eval_count": 2},
    )


@pytest.mark.parametrize("arguments", [{"path": "."}, '{"path": "."}'])
async def test_c6_ollama_arguments_are_an_object_or_a_string(arguments: object) -> None:
    called = {"function": {"name": "code__list_dir", "arguments": arguments}}

    reply = await completed("ollama", line({"content": "", "tool_calls": [called, called]}) + END)

    assert [found.arguments for found in reply.tool_calls] == [{"path": "."}] * 2
    assert len({found.tool_call_id for found in reply.tool_calls}) == 2
    assert reply.stop_reason is StopReason.TOOL_USE


async def test_ollama_an_old_server_ends_without_a_reason() -> None:
    reply = await completed("ollama", line({"content": "hi"}, done=True) + line({"content": "no"}))

    assert reply.content == [TextBlock(text="hi")]


async def test_ollama_an_error_line_after_text_is_a_failure() -> None:
    events = await played("ollama", line({"content": "hi"}) + b'{"error": "the runner stopped"}\n')

    last = events[-1]
    assert isinstance(last, ModelFailed)
    assert "the runner stopped" in last.error.message

"""Replies that gateways and models send a little differently, and fields that models refuse."""

from typing import Any

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
    ModelRequest,
    ModelRetry,
    ReasoningBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from model_server import Answer, ModelServer, Received, Reply, Sends, Status, sse
from tables import together

QUICK = RetryConfig(max_attempts=2, initial_backoff_ms=1, max_backoff_ms=2)
HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
DONE = b"data: [DONE]\n\n"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "a-secret-of-the-user-1234")


async def played(
    protocol: str, answer: Answer, *messages: ModelMessage, calls: int = 1, **more: Any
) -> tuple[list[list[ModelEvent]], ModelServer]:
    async with ModelServer(answer) as server:
        settings: dict[str, Any] = server.settings(protocol) | {"api_key_env": "OWN_KEY"}
        adapter = ProviderRegistry().create(ModelConfig(name="m", retry=QUICK, **settings))
        request = ModelRequest(model="m", messages=list(messages or [HELLO]), **more)
        found = [[event async for event in adapter.stream(request)] for _ in range(calls)]
        await adapter.close()
    return found, server


async def completed(protocol: str, reply: Reply) -> ModelCompleted:
    [found], _ = await played(protocol, lambda _: reply)
    last = found[-1]
    assert isinstance(last, ModelCompleted), last
    return last


async def failed(protocol: str, reply: Reply) -> ModelFailed:
    [found], _ = await played(protocol, lambda _: reply)
    last = found[-1]
    assert isinstance(last, ModelFailed), last
    return last


def delta(content: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return {"choices": [choice]}


@together("piece", [1, 7, 4096])
@together("before", [b"", b": comment\n\n", b"event: message\n", b"\n"])
async def test_events_may_be_labelled_as_json(before: bytes, piece: int) -> None:
    body = before + sse(delta("so "), delta("far", "stop")) + DONE
    reply = await completed("openai", Sends(body, piece=piece, content_type="application/json"))
    assert reply.content == [TextBlock(text="so far")]


async def test_an_error_labelled_as_json_stays_an_error() -> None:
    body = orjson.dumps({"error": {"message": "no such model", "code": 404}})
    assert "no such model" in (await failed("openai", Status(200, body))).error.message


def message(**fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
WHOLE: dict[str, tuple[str, bytes]] = {
    "openai": ("openai", sse(message(content="hi", reasoning_content="hm")) + DONE),
    "openai with an empty delta": (
        "openai",
        sse({"choices": [{**message(content="hi")["choices"][0], "delta": {}}]}) + DONE,
    ),
    "openai after deltas": (
        "openai",
        sse(delta("hi"), {"choices": [{**message(content="hi")["choices"][0], "delta": {}}]}),
    ),
    "anthropic": (
        "anthropic",
        sse(
            {
                "type": "message",
                "content": [{"type": "text", "text": "hi"}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 3, "output_tokens": 2},
            }
        ),
    ),
    "anthropic at its start": (
        "anthropic",
        sse(
            {
                "type": "message_start",
                "message": {"content": [{"type": "text", "text": "hi"}]},
            },
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            {"type": "message_stop"},
        ),
    ),
    "responses": (
        "responses",
        sse(
            {
                "object": "response",
                "status": "completed",
                "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
            }
        ),
    ),
}


@together(("protocol", "body"), WHOLE.values(), ids=WHOLE)
async def test_a_whole_message_may_come_in_one_event(protocol: str, body: bytes) -> None:
    reply = await completed(protocol, Sends(body))
    assert [each.text for each in reply.content if isinstance(each, TextBlock)] == ["hi"]


async def test_a_whole_message_keeps_its_calls() -> None:
    reply = await completed("openai", Sends(sse(message(content=None, tool_calls=[CALL])) + DONE))
    assert [call.name for call in reply.tool_calls] == ["look"]


def piece(kind: str, text: str, index: int | None = 0) -> dict[str, Any]:
    field = {"text_delta": "text", "thinking_delta": "thinking"}[kind]
    place = {} if index is None else {"index": index}
    return {"type": "content_block_delta", **place, "delta": {"type": kind, field: text}}


@together("places", [(0, 1), (0, 0), (None, None), (0, None)])
async def test_anthropic_deltas_need_no_start(places: tuple[int | None, int | None]) -> None:
    first, second = places
    body = sse(
        piece("thinking_delta", "h", first),
        piece("thinking_delta", "m", first),
        piece("text_delta", "so ", second),
        piece("text_delta", "far", second),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    )
    reply = await completed("anthropic", Sends(body))
    assert [each.text for each in reply.content if isinstance(each, ReasoningBlock)] == ["hm"]
    assert [each.text for each in reply.content if isinstance(each, TextBlock)] == ["so far"]


PLAIN: dict[str, tuple[str, Reply]] = {
    "as data": ("openai", Sends(b"data: upstream said: the engine is gone\n\n")),
    "as a string": ("openai", Sends(b'data: "the engine is gone"\n\n')),
    "after a beginning": ("openai", Sends(sse(delta("so")) + b"data: the engine is gone\n\n")),
    "in place of a stream": ("openai", Sends(b"the engine is gone\n")),
    "anthropic": ("anthropic", Sends(b"event: error\ndata: the engine is gone\n\n")),
    "ollama": ("ollama", Sends(b"error: the engine is gone\n")),
    "ollama without a line end": ("ollama", Sends(b"error: the engine is gone")),
}


@together(("protocol", "reply"), PLAIN.values(), ids=PLAIN)
async def test_an_error_in_plain_words_is_shown(protocol: str, reply: Reply) -> None:
    failure = await failed(protocol, reply)
    assert "the engine is gone" in failure.error.message
    assert failure.error.code is ErrorCode.PROVIDER_ERROR


async def test_plain_words_about_the_length_are_understood() -> None:
    words = b"data: the prompt is too long: it exceeds the maximum context length of 8192\n\n"
    assert (await failed("openai", Sends(words))).error.code is ErrorCode.PROMPT_TOO_LONG


@together(
    ("call_id", "sent"),
    [
        ("call_" + "a" * 35, "call_" + "a" * 35),
        ("functions.code__read_a_file_with_a_long_name:12", None),
        ("ws_" + "b" * 50, ""),
    ],
)
async def test_ids_of_calls_have_at_most_40_characters(call_id: str, sent: str | None) -> None:
    """Kimi's own form is kept, because the model reads it."""
    call = ToolCallBlock(tool_call_id=call_id, name="look")
    result = ToolResultBlock(tool_call_id=call_id, content=[TextBlock(text="seen")])
    history = [
        HELLO,
        ModelMessage(role=Role.ASSISTANT, content=[call]),
        ModelMessage(role=Role.TOOL, content=[result]),
    ]
    _, server = await played("openai", lambda _: "done", *history)
    _, answer, told = server.requests[0].body["messages"]
    found = answer["tool_calls"][0]["id"]
    assert told["tool_call_id"] == found
    assert found == (call_id if sent is None else sent or found)
    assert sent is None or len(found) <= 40


TEMPERATURE = "The model returned the following errors: `temperature` is deprecated for this model."
KIMI = "invalid temperature: only 1 is allowed for this model"


@together("words", [TEMPERATURE, KIMI])
@together("protocol", ["openai", "anthropic", "ollama", "gemini", "bedrock"])
async def test_a_refused_temperature_is_left_out(protocol: str, words: str) -> None:
    def answer(received: Received) -> Reply:
        if '"temperature"' in received.text:
            return Status(400, orjson.dumps({"message": words, "error": {"message": words}}))
        return "done"

    found, server = await played(protocol, answer, calls=2, temperature=0.5)
    assert isinstance(found[0][-1], ModelCompleted), found[0][-1]
    assert sum(isinstance(event, ModelRetry) for event in found[0]) == 1
    assert len(server.requests) == 3


@together(
    ("sent", "read"),
    [
        ('{}{"at": "home"}', {"at": "home"}),
        ('{} \n{"at": "home"}', {"at": "home"}),
        ("{}", {}),
        ('{"at": "one\ntwo\tthree\r\n"}', {"at": "one\ntwo\tthree\r\n"}),
        ('{}{"at": "one\ntwo"}', {"at": "one\ntwo"}),
    ],
)
async def test_arguments_are_read_although_they_are_a_little_off(
    sent: str, read: dict[str, Any]
) -> None:
    function = {"name": "look", "arguments": sent}
    head = {"index": 0, "id": "call_1", "type": "function", "function": function}
    choice = {"index": 0, "delta": {"tool_calls": [head]}, "finish_reason": "tool_calls"}
    reply = await completed("openai", Sends(sse({"choices": [choice]}) + DONE))
    [call] = reply.tool_calls
    assert call.arguments == read
    assert "invalid_arguments" not in call.metadata


@together("sent", ['{"at": 1}{"at": 2}', "{}{", '{}"at"'])
async def test_arguments_that_mean_two_things_stay_invalid(sent: str) -> None:
    function = {"name": "look", "arguments": sent}
    head = {"index": 0, "id": "call_1", "type": "function", "function": function}
    choice = {"index": 0, "delta": {"tool_calls": [head]}, "finish_reason": "tool_calls"}
    reply = await completed("openai", Sends(sse({"choices": [choice]}) + DONE))
    assert "invalid_arguments" in reply.tool_calls[0].metadata

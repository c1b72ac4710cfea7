"""What Bedrock sends, in the dialect of its service model, and what goes back to it."""

import struct
import zlib
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import orjson
import pytest

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ConfigError, ErrorCode, ProviderError
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.bedrock import BedrockProvider
from agent_core.providers.decoding import MAX_PAYLOAD_BYTES, FrameDecoder
from agent_core.providers.failures import Called, CallError
from agent_core.providers.scripted import Calls, ScriptedCall
from agent_core.types import (
    ImageBlock,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ReasoningBlock,
    Role,
    StopReason,
    SystemBlock,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    Usage,
)
from model_server import ModelServer, Reply, Sends, Status
from model_server_wire import Protocol, events as wire_events, frame
from tables import together

CLAUDE = "anthropic.claude-sonnet-4-20250514-v1:0"
TOOLS = [ToolDefinition(name="run", description="")]
HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
CALL = ModelMessage(role=Role.ASSISTANT, content=[ToolCallBlock(tool_call_id="a", name="run")])
RESULT = ModelMessage(
    role=Role.TOOL,
    content=[
        ToolResultBlock(
            tool_call_id="a",
            content=[TextBlock(text="ok"), ImageBlock(mime_type="image/png", data="aGk=")],
        )
    ],
)


async def played(*replies: Reply, **config: Any) -> list[ModelEvent]:
    async with ModelServer(replies) as server:
        settings = ModelConfig(
            provider="bedrock",
            name=CLAUDE,
            base_url=server.url,
            retry=RetryConfig(max_attempts=1),
            **config,
        )
        adapter = ProviderRegistry().create(settings)
        request = ModelRequest(model=CLAUDE, messages=[HELLO], tools=TOOLS)
        events = [event async for event in adapter.stream(request)]
        await adapter.close()
    return events


async def completed(*frames: bytes) -> ModelCompleted:
    last = (await played(Sends(frames)))[-1]
    assert isinstance(last, ModelCompleted), last
    return last


async def failed(reply: Reply, **config: Any) -> ModelFailed:
    last = (await played(reply, **config))[-1]
    assert isinstance(last, ModelFailed), last
    return last


def sent(
    messages: Sequence[ModelMessage],
    *,
    model: str = CLAUDE,
    request: dict[str, Any] | None = None,
    **config: Any,
) -> dict[str, Any]:
    settings = ModelConfig(provider="bedrock", name=model, **config)
    fields: dict[str, Any] = {"tools": TOOLS, **(request or {})}
    asked = ModelRequest(model=model, messages=list(messages), **fields)
    body = BedrockProvider(settings).prepare(asked, Called("bedrock", model)).body
    found: dict[str, Any] = orjson.loads(body)
    return found


def delta(index: int, **part: Any) -> bytes:
    return frame("contentBlockDelta", {"delta": part, "contentBlockIndex": index})


def stop(reason: str) -> bytes:
    return frame("messageStop", {"stopReason": reason})


# Frames


def test_the_frames_of_these_tests_are_frames_of_amazons_own_reader() -> None:
    script = Calls(text="Grüße", calls=[ScriptedCall(name="run", arguments={"a": 1})])
    body = b"".join(wire_events(Protocol.BEDROCK, script, serial=1))
    reader: Any = import_module("botocore.eventstream").EventStreamBuffer()
    reader.add_data(body)

    theirs = [(event.headers[":event-type"], event.payload) for event in reader]

    ours = [next(iter(orjson.loads(raw).items())) for raw in FrameDecoder().feed(body)]
    assert ours == [(kind, orjson.loads(payload)) for kind, payload in theirs]


@together("at", [0, 3, 5, 9, 15, 40, -1])
def test_a_changed_byte_is_found(at: int) -> None:
    whole = frame("contentBlockDelta", {"delta": {"text": "hi"}})
    broken = bytearray(whole)
    broken[at] ^= 1
    decoder = FrameDecoder()

    assert len(decoder.feed(whole + bytes(broken))) == 1
    with pytest.raises(CallError):
        decoder.end()


def test_a_frame_without_end_is_not_collected() -> None:
    prelude = struct.pack(">II", MAX_PAYLOAD_BYTES + 1, 0)

    with pytest.raises(CallError, match="larger"):
        FrameDecoder().feed(prelude + struct.pack(">I", zlib.crc32(prelude)))


@together(
    "raw", [b"\x05ab", b"\x01a\x07\xff\xff", b"\x01a\x63", b"\x01a", b"\x01\xff\x07\x00\x01a"]
)
def test_headers_that_lie_are_an_error(raw: bytes) -> None:
    prelude = struct.pack(">II", 16 + len(raw), len(raw))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + raw

    with pytest.raises(CallError, match="headers"):
        FrameDecoder().feed(whole + struct.pack(">I", zlib.crc32(whole)))


def test_headers_of_every_type_are_passed_over() -> None:
    raw = (
        b"\x01a\x00\x01b\x01\x01c\x02\x01\x01d\x03\x00\x01\x01e\x04" + bytes(4) + b"\x01f\x05"
        + bytes(8) + b"\x01g\x06\x00\x02hi\x01h\x08" + bytes(8) + b"\x01i\x09" + bytes(16)
        + b"\x0b:event-type\x07\x00\x04ping"
    )  # fmt: skip
    prelude = struct.pack(">II", 16 + len(raw), len(raw))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + raw

    assert FrameDecoder().feed(whole + struct.pack(">I", zlib.crc32(whole))) == [b'{"ping":{}}']


# Replies


async def test_hidden_and_signed_thoughts_go_back_as_they_came() -> None:
    reply = await completed(
        frame("messageStart", {"role": "assistant"}),
        delta(0, reasoningContent={"text": "I "}),
        delta(0, reasoningContent={"text": "think."}),
        delta(0, reasoningContent={"signature": "c2ln"}),
        delta(1, reasoningContent={"redactedContent": "aGlkZGVu"}),
        delta(2, text="Hello."),
        frame("aNewEvent", {"x": 1}),
        stop("end_turn"),
    )
    answer = ModelMessage(role=Role.ASSISTANT, content=reply.content)

    assert sent([HELLO, answer])["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "I think.", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "aGlkZGVu"}},
        {"text": "Hello."},
    ]
    other = sent([HELLO, answer], model="amazon.nova-pro-v1:0")
    assert other["messages"][1]["content"] == [{"text": "Hello."}]


@together(
    ("reason", "found"),
    [
        ("end_turn", StopReason.END_TURN),
        ("max_tokens", StopReason.MAX_TOKENS),
        ("model_context_window_exceeded", StopReason.MAX_TOKENS),
        ("stop_sequence", StopReason.STOP_SEQUENCE),
        ("guardrail_intervened", StopReason.CONTENT_FILTER),
        ("content_filtered", StopReason.CONTENT_FILTER),
        ("malformed_model_output", StopReason.ERROR),
        ("malformed_tool_use", StopReason.ERROR),
        ("a_new_one", StopReason.ERROR),
    ],
)
async def test_every_reason_to_stop_is_named(reason: str, found: StopReason) -> None:
    reply = await completed(delta(0, text="so"), stop(reason))

    assert (reply.stop_reason, reply.raw_stop_reason) == (found, reason)


async def test_a_call_that_the_service_runs_itself_is_none() -> None:
    search = {"toolUseId": "t", "name": "nova_grounding", "type": "server_tool_use"}

    reply = await completed(
        frame("contentBlockStart", {"start": {"toolUse": search}, "contentBlockIndex": 0}),
        delta(0, toolUse={"input": '{"q": 1}'}),
        delta(1, text="Found."),
        stop("end_turn"),
    )

    assert (reply.content, reply.tool_calls) == ([TextBlock(text="Found.")], [])


async def test_usage_counts_the_cached_part_of_the_prompt() -> None:
    raw = {
        "inputTokens": 3,
        "outputTokens": 7,
        "totalTokens": 60,
        "cacheReadInputTokens": 40,
        "cacheWriteInputTokens": 10,
    }

    reply = await completed(
        delta(0, text="so"), stop("end_turn"), frame("metadata", {"usage": raw})
    )

    assert reply.usage == Usage(
        input_tokens=53,
        output_tokens=7,
        total_tokens=60,
        cache_read_tokens=40,
        cache_write_tokens=10,
        raw_usage=raw,
    )


@together(
    ("kind", "message", "code", "retryable"),
    [
        ("throttlingException", "Too many requests", ErrorCode.PROVIDER_RATE_LIMITED, True),
        (
            "throttlingException",
            "Too many tokens per day, please wait before trying again.",
            ErrorCode.PROVIDER_RATE_LIMITED,
            False,
        ),
        (
            "validationException",
            "Input is too long for requested model.",
            ErrorCode.PROMPT_TOO_LONG,
            False,
        ),
        (
            "validationException",
            "This model doesn't support tool use in streaming mode.",
            ErrorCode.UNSUPPORTED_CAPABILITY,
            False,
        ),
        ("internalServerException", "oops", ErrorCode.PROVIDER_ERROR, True),
        ("modelStreamErrorException", "oops", ErrorCode.PROVIDER_ERROR, True),
        ("serviceUnavailableException", "oops", ErrorCode.PROVIDER_ERROR, True),
        ("aNewException", "oops", ErrorCode.PROVIDER_ERROR, True),
    ],
)
async def test_an_exception_in_the_stream_is_a_failure(
    kind: str, message: str, code: ErrorCode, retryable: bool
) -> None:
    error = (await failed(Sends([frame(kind, {"message": message})]))).error

    assert (error.code, error.retryable) == (code, retryable)
    assert message in error.message


async def test_an_error_of_the_transport_is_a_failure() -> None:
    broken = frame(
        "ignored", {}, message_type="error", error_code="InternalError", error_message="it broke"
    )

    assert "it broke" in (await failed(Sends([broken]))).error.message


@together(
    ("status", "message", "code", "retryable"),
    [
        (403, "The security token is expired", ErrorCode.PROVIDER_AUTH_FAILED, False),
        (429, "Too many requests", ErrorCode.PROVIDER_RATE_LIMITED, True),
        (400, "This model doesn't support the image content block", "images", False),
        (400, "This model doesn't support documents.", "documents", False),
    ],
)
async def test_a_refusal_says_what_it_is(
    status: int, message: str, code: ErrorCode | str, retryable: bool
) -> None:
    error = (await failed(Status(status, orjson.dumps({"message": message})))).error

    if not isinstance(code, ErrorCode):
        assert error.details["capability"] == code
        code = ErrorCode.UNSUPPORTED_CAPABILITY
    assert (error.code, error.retryable) == (code, retryable)


# Requests


def test_the_cache_is_marked_at_four_places_of_models_that_have_one() -> None:
    point = {"cachePoint": {"type": "default"}}
    system = [
        SystemBlock(block_id="1", source="core", content="You."),
        SystemBlock(block_id="2", source="task", content="Today.", dynamic=True),
    ]

    body = sent([HELLO, CALL, RESULT], request={"system": system})

    assert body["toolConfig"]["tools"][-1] == point
    assert body["system"] == [{"text": "You."}, point, {"text": "Today."}]
    assert [point in message["content"] for message in body["messages"]] == [True, False, True]
    nova = sent([HELLO], model="us.amazon.nova-pro-v1:0", request={"system": system})
    assert point not in nova["toolConfig"]["tools"]
    assert point in nova["system"]
    for model in ("anthropic.claude-3-haiku-20240307-v1:0", "meta.llama3-3-70b-instruct-v1:0"):
        assert "cachePoint" not in str(sent([HELLO], model=model, request={"system": system}))
    switched_on = {"bedrock": {"cachePoints": True}}
    assert "cachePoint" in str(sent([HELLO], model="x", provider_options=switched_on))


def test_pictures_stand_in_results_of_models_that_take_them_there() -> None:
    def blocks(model: str) -> list[str]:
        content = sent([HELLO, CALL, RESULT], model=model)["messages"][2]["content"]
        inner = [key for part in content[0]["toolResult"]["content"] for key in part]
        return [*inner, "|", *(key for part in content[1:] for key in part)]

    assert blocks(CLAUDE) == ["text", "image", "|", "cachePoint"]
    assert blocks("meta.llama4-x-v1:0") == ["text", "|", "text", "image"]


def test_the_calls_of_a_history_are_declared_although_no_tool_is_offered() -> None:
    tools = sent([HELLO, CALL, RESULT], request={"tools": []})["toolConfig"]["tools"]

    assert [tool["toolSpec"]["name"] for tool in tools if "toolSpec" in tool] == ["run"]
    assert "toolConfig" not in sent([HELLO], request={"tools": []})


@together("name", ["", "no such tool!", "ä", "x" * 300])
def test_a_call_of_no_tool_is_declared_by_a_name_that_is_one(name: str) -> None:
    wrong = ToolCallBlock(tool_call_id="a", name=name)
    call = ModelMessage(role=Role.ASSISTANT, content=[wrong])

    body = sent([HELLO, call, RESULT], request={"tools": []})

    declared = body["toolConfig"]["tools"][0]
    called = body["messages"][1]["content"][0]["toolUse"]["name"]
    assert declared["toolSpec"]["name"] == called
    assert 0 < len(called) <= 64


def test_a_document_has_a_name_and_a_text_beside_it() -> None:
    document = ImageBlock(mime_type="application/pdf", data="JVBERi0=")
    message = ModelMessage(role=Role.USER, content=[document])

    [text, part] = sent([message], model="x")["messages"][0]["content"]

    assert part["document"]["format"] == "pdf"
    assert text["text"] == f"[{part['document']['name']}]"


def test_a_picture_of_a_type_that_the_service_does_not_know_is_refused() -> None:
    message = ModelMessage(
        role=Role.USER, content=[ImageBlock(mime_type="image/tiff", data="aGk=")]
    )

    with pytest.raises(ProviderError) as caught:
        sent([message])
    assert caught.value.details["capability"] == "images"


@together(
    ("model", "fields"),
    [
        (CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": 3072}}),
        ("amazon.nova-2-lite-v1:0", {"reasoningConfig": {
            "type": "enabled", "maxReasoningEffort": "high"}}),
        ("openai.gpt-oss-120b-1:0", {"reasoning_effort": "high"}),
    ],
)  # fmt: skip
def test_thinking_is_asked_for_in_the_words_of_the_models_maker(
    model: str, fields: dict[str, Any]
) -> None:
    body = sent([HELLO], model=model, reasoning="high", temperature=0.5)

    assert body["additionalModelRequestFields"] == fields
    assert ("temperature" in body["inferenceConfig"]) is (model != CLAUDE)


def test_claude_does_not_think_where_that_is_refused() -> None:
    thought = ReasoningBlock(
        text="hm", signature="c2ln", metadata={"provider": "bedrock", "model": CLAUDE}
    )
    begun = CALL.model_copy(update={"content": [thought, *CALL.content]})
    forced = {"tool_choice": "required"}

    assert "additionalModelRequestFields" in sent([HELLO, begun, RESULT], reasoning="high")
    assert "additionalModelRequestFields" not in sent([HELLO, CALL, RESULT], reasoning="high")
    assert "additionalModelRequestFields" not in sent([HELLO], request=forced, reasoning="high")


def test_thinking_that_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(ProviderError, match="additionalModelRequestFields"):
        sent([HELLO], model="mistral.x-v1:0", reasoning="high")


def test_unsigned_thoughts_are_left_out() -> None:
    thought = ReasoningBlock(text="hm", metadata={"provider": "bedrock", "model": CLAUDE})
    answer = ModelMessage(role=Role.ASSISTANT, content=[thought, TextBlock(text="so")])

    assert sent([HELLO, answer])["messages"][1]["content"] == [{"text": "so"}]


# Addresses and credentials


@together(
    ("base_url", "region"),
    [
        (None, "eu-west-1"),
        ("https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("https://vpce-1.bedrock-runtime.us-east-2.vpce.amazonaws.com", "us-east-2"),
    ],
)
def test_the_region_is_that_of_the_address_or_of_the_environment(
    base_url: str | None, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    adapter = BedrockProvider(ModelConfig(provider="bedrock", name="m", base_url=base_url))

    assert region in str(adapter.address("m"))


async def test_a_key_is_a_bearer_token_and_needs_no_credentials_and_no_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "a-token")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    async with ModelServer(["hi"]) as server:
        adapter = ProviderRegistry().create(
            ModelConfig(
                provider="bedrock",
                name=CLAUDE,
                base_url=server.url,
                api_key_env="AWS_BEARER_TOKEN_BEDROCK",
            )
        )
        async for _ in adapter.stream(ModelRequest(model=CLAUDE, messages=[HELLO])):
            pass
        await adapter.close()

    assert server.requests[0].headers["authorization"] == "Bearer a-token"


@together(
    "settings",
    [{}, {"api_key_env": "AWS_BEARER_TOKEN_BEDROCK"}, {"base_url": "http://127.0.0.1:8000"}],
    ids=["neither", "no address", "no key, so signatures"],
)
def test_no_region_where_one_is_needed_is_a_configuration_error(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)

    with pytest.raises(ConfigError, match="AWS_REGION"):
        BedrockProvider(
            ModelConfig.model_validate({"provider": "bedrock", "name": "m", **settings})
        )


async def test_no_credentials_are_a_failure_that_says_where_they_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    error = (await failed(Sends([]))).error

    assert error.code is ErrorCode.PROVIDER_AUTH_FAILED
    assert "AWS_ACCESS_KEY_ID" in error.message

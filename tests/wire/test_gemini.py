"""What Gemini sends, in the dialect of its documents, and what goes back to it."""

from collections.abc import Sequence
from typing import Any

import orjson

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.failures import Called
from agent_core.providers.gemini import GeminiProvider
from agent_core.types import (
    ImageBlock,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    Role,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    Usage,
)
from model_server import ModelServer, Sends, Status
from tables import together

TOOLS = [ToolDefinition(name="run", description="")]
HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])


def response(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **more}]}


def sse(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + orjson.dumps(chunk) + b"\r\n\r\n" for chunk in chunks)


async def played(reply: Sends | Status) -> ModelEvent:
    async with ModelServer([reply]) as server:
        config = ModelConfig(
            provider="gemini",
            name="gemini-3-pro",
            base_url=server.url,
            retry=RetryConfig(max_attempts=1),
        )
        adapter = ProviderRegistry().create(config)
        request = ModelRequest(model="gemini-3-pro", messages=[HELLO], tools=TOOLS)
        events = [event async for event in adapter.stream(request)]
        await adapter.close()
    return events[-1]


async def completed(*chunks: dict[str, Any]) -> ModelCompleted:
    last = await played(Sends(sse(*chunks)))
    assert isinstance(last, ModelCompleted), last
    return last


async def failed(reply: Sends | Status) -> ModelFailed:
    last = await played(reply)
    assert isinstance(last, ModelFailed), last
    return last


def sent(
    messages: Sequence[ModelMessage], *, model: str = "gemini-3-pro", **config: Any
) -> dict[str, Any]:
    settings = ModelConfig(provider="gemini", name=model, **config)
    request = ModelRequest(model=model, messages=list(messages), tools=TOOLS)
    body = GeminiProvider(settings).prepare(request, Called("gemini", model)).body
    found: dict[str, Any] = orjson.loads(body)
    return found


PARTS: list[dict[str, Any]] = [
    {"text": "I think.", "thought": True, "thoughtSignature": "c2lnMA=="},
    {"text": "Hello "},
    {"text": "world.", "thoughtSignature": "c2lnMQ=="},
    {"functionCall": {"id": "a", "name": "run", "args": {"x": 1}}, "thoughtSignature": "c2lnMg=="},
    {"functionCall": {"id": "b", "name": "run", "args": {}}},
    {"text": "", "thoughtSignature": "c2lnMw=="},
]


async def test_every_signature_goes_back_in_the_part_it_came_with() -> None:
    reply = await completed(*map(response, PARTS), response(finishReason="STOP"))
    answer = ModelMessage(role=Role.ASSISTANT, content=reply.content)

    assert [block.text for block in reply.content if isinstance(block, TextBlock)] == [
        "Hello ",
        "world.",
    ]
    assert sent([HELLO, answer])["contents"][1] == {"role": "model", "parts": PARTS}


async def test_signatures_go_to_no_other_model() -> None:
    reply = await completed(*map(response, PARTS), response(finishReason="STOP"))
    answer = ModelMessage(role=Role.ASSISTANT, content=reply.content)

    [_, older] = sent([HELLO, answer], model="gemini-2.5-flash")["contents"]
    [_, newer] = sent([HELLO, answer], model="gemini-3-flash")["contents"]

    assert "thoughtSignature" not in str(older)
    assert "I think" not in str(older)
    signed = [part for part in newer["parts"] if "thoughtSignature" in part]
    assert [part["thoughtSignature"] for part in signed] == ["skip_thought_signature_validator"]
    assert signed[0]["functionCall"]["id"] == "a"


async def test_the_text_and_the_thoughts_of_a_stream_are_joined() -> None:
    reply = await completed(
        response({"text": "hm", "thought": True}),
        response({"text": "m", "thought": True}),
        response({"text": "one "}, {"text": "two"}, finishReason="STOP", index=0),
        response({"text": "another"}, index=1, finishReason="SAFETY"),
    )

    assert [(block.type, getattr(block, "text", "")) for block in reply.content] == [
        ("reasoning", "hmm"),
        ("text", "one two"),
    ]
    assert reply.stop_reason is StopReason.END_TURN


@together(
    ("reason", "stop"),
    [
        ("STOP", StopReason.END_TURN),
        ("MAX_TOKENS", StopReason.MAX_TOKENS),
        ("SAFETY", StopReason.CONTENT_FILTER),
        ("RECITATION", StopReason.CONTENT_FILTER),
        ("LANGUAGE", StopReason.CONTENT_FILTER),
        ("BLOCKLIST", StopReason.CONTENT_FILTER),
        ("PROHIBITED_CONTENT", StopReason.CONTENT_FILTER),
        ("SPII", StopReason.CONTENT_FILTER),
        ("IMAGE_SAFETY", StopReason.CONTENT_FILTER),
        ("MALFORMED_FUNCTION_CALL", StopReason.ERROR),
        ("UNEXPECTED_TOOL_CALL", StopReason.ERROR),
        ("MISSING_THOUGHT_SIGNATURE", StopReason.ERROR),
        ("OTHER", StopReason.ERROR),
        ("A_NEW_ONE", StopReason.ERROR),
    ],
)
async def test_every_reason_to_stop_is_named(reason: str, stop: StopReason) -> None:
    reply = await completed(response({"text": "so"}, finishReason=reason))

    assert (reply.stop_reason, reply.raw_stop_reason) == (stop, reason)


async def test_a_call_makes_a_stop_a_use_of_tools() -> None:
    call = {"functionCall": {"name": "run"}}

    reply = await completed(response(call, finishReason="STOP"))

    assert reply.stop_reason is StopReason.TOOL_USE
    assert [call.arguments for call in reply.tool_calls] == [{}]


@together("reason", ["SAFETY", "OTHER", "PROHIBITED_CONTENT", "A_NEW_ONE"])
async def test_a_prompt_that_is_blocked_is_filtered(reason: str) -> None:
    reply = await completed(
        {"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 4}}
    )

    assert reply.stop_reason is StopReason.CONTENT_FILTER
    assert reason in (reply.raw_stop_reason or "")


async def test_an_unspecified_reason_is_none() -> None:
    chunk = response({"text": "so"}, finishReason="FINISH_REASON_UNSPECIFIED")

    assert "without a stop reason" in (await failed(Sends(sse(chunk)))).error.message


async def test_usage_counts_thoughts_and_what_came_from_the_cache() -> None:
    raw = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 80,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 10,
        "thoughtsTokenCount": 30,
        "totalTokenCount": 145,
    }

    reply = await completed(
        {**response({"text": "so"}), "usageMetadata": {"promptTokenCount": 100}},
        {**response(finishReason="STOP"), "usageMetadata": raw},
    )

    assert reply.usage == Usage(
        input_tokens=105,
        output_tokens=40,
        total_tokens=145,
        cache_read_tokens=80,
        reasoning_tokens=30,
        raw_usage=raw,
    )


QUOTA = "You exceeded your current quota, please check your plan and billing details."


def refusal(status: int, kind: str, message: str, *details: dict[str, Any]) -> Status:
    error = {"code": status, "message": message, "status": kind, "details": list(details)}
    return Status(status, orjson.dumps([{"error": error}]))


def violated(quota: str) -> dict[str, Any]:
    return {
        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
        "violations": [{"quotaId": quota, "quotaValue": "20"}],
    }


KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
DELAY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}


@together(
    ("reply", "code", "retryable"),
    [
        (
            refusal(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid one.", KEY),
            ErrorCode.PROVIDER_AUTH_FAILED,
            False,
        ),
        (
            refusal(403, "PERMISSION_DENIED", "Your API key was reported as leaked."),
            ErrorCode.PROVIDER_AUTH_FAILED,
            False,
        ),
        (
            refusal(
                429,
                "RESOURCE_EXHAUSTED",
                QUOTA,
                violated("GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
            ),
            ErrorCode.PROVIDER_RATE_LIMITED,
            False,
        ),
        (
            refusal(
                429,
                "RESOURCE_EXHAUSTED",
                QUOTA,
                violated("GenerateRequestsPerMinutePerProjectPerModel"),
                DELAY,
            ),
            ErrorCode.PROVIDER_RATE_LIMITED,
            True,
        ),
        (
            refusal(503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
            ErrorCode.PROVIDER_ERROR,
            True,
        ),
        (
            refusal(504, "DEADLINE_EXCEEDED", "Deadline expired."),
            ErrorCode.PROVIDER_TIMEOUT,
            True,
        ),
        (
            refusal(400, "INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum"),
            ErrorCode.PROMPT_TOO_LONG,
            False,
        ),
        (
            refusal(400, "INVALID_ARGUMENT", "Function calling is not enabled for models/gemma"),
            ErrorCode.UNSUPPORTED_CAPABILITY,
            False,
        ),
    ],
    ids=["key", "leaked", "day", "minute", "busy", "slow", "long", "tools"],
)
async def test_a_refusal_says_what_it_is(reply: Status, code: ErrorCode, retryable: bool) -> None:
    error = (await failed(reply)).error

    assert (error.code, error.retryable) == (code, retryable)


async def test_an_error_inside_the_stream_is_a_failure() -> None:
    error = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}

    assert (await failed(Sends(sse(response({"text": "so"}), error)))).error.retryable


@together(
    ("model", "effort", "thinking"),
    [
        ("gemini-3-pro", "low", {"includeThoughts": True, "thinkingLevel": "low"}),
        ("gemini-3-flash", "none", {"includeThoughts": False, "thinkingLevel": "minimal"}),
        ("gemini-2.5-flash", "none", {"includeThoughts": False, "thinkingBudget": 0}),
        ("gemini-2.5-pro", "high", {"includeThoughts": True, "thinkingBudget": 24576}),
        ("gemini-flash-latest", "medium", {"includeThoughts": True, "thinkingLevel": "medium"}),
        ("gemini-3-pro", None, None),
    ],
)
def test_thinking_is_asked_for_as_the_model_takes_it(
    model: str, effort: str | None, thinking: dict[str, Any] | None
) -> None:
    settings = sent([HELLO], model=model, reasoning=effort)["generationConfig"]

    assert settings.get("thinkingConfig") == thinking


def test_options_stand_where_the_service_has_them() -> None:
    options: dict[str, Any] = {
        "topK": 4,
        "safetySettings": [],
        "thinkingConfig": {"thinkingBudget": 1},
    }

    body = sent([HELLO], reasoning="high", provider_options={"gemini": options})

    assert body["safetySettings"] == []
    assert body["generationConfig"] == {
        "maxOutputTokens": 4096,
        "thinkingConfig": {"thinkingBudget": 1},
        "topK": 4,
    }


def test_a_document_is_sent_and_a_name_without_a_letter_in_front_gets_one() -> None:
    document = ImageBlock(mime_type="application/pdf", data="JVBERi0=")
    call = ToolCallBlock(tool_call_id="a", name="1st.tool")
    messages = [
        ModelMessage(role=Role.USER, content=[document]),
        ModelMessage(role=Role.ASSISTANT, content=[call]),
    ]

    asked, answered = sent(messages, model="models/gemini-2.5-pro")["contents"]

    assert asked["parts"] == [{"inlineData": {"data": "JVBERi0=", "mimeType": "application/pdf"}}]
    assert answered["parts"][0]["functionCall"]["name"].startswith("_1st__tool_")

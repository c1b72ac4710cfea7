"""How services and the gateways in front of them say no, and what a user reads of it."""

from typing import Any

import orjson

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
    Role,
    TextBlock,
)
from model_server import ModelServer, Reply, Sends, Status
from tables import together

QUICK = RetryConfig(max_attempts=3, initial_backoff_ms=1, max_backoff_ms=2)


async def played(protocol: str, *replies: Reply) -> list[ModelEvent]:
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    async with ModelServer(replies) as server:
        config = ModelConfig(
            provider=protocol, name="m", base_url=server.base_url(protocol), retry=QUICK
        )
        adapter = ProviderRegistry().create(config)
        request = ModelRequest(model="m", messages=[hello])
        events = [event async for event in adapter.stream(request)]
        await adapter.close()
    return events


async def refused(protocol: str, status: int, body: Any) -> ModelFailed:
    """The failure, which is the only thing that happens: there is no other attempt."""
    found = await played(protocol, Status(status, orjson.dumps(body)), "never sent")
    assert len(found) == 2, found
    assert isinstance(found[-1], ModelFailed)
    return found[-1]


DAILY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
}
CREDIT = "Your credit balance is too low to access the Anthropic API."

USED_UP: dict[str, tuple[str, int, Any]] = {
    "openai": ("openai", 429, {"error": {"message": "You exceeded", "code": "insufficient_quota"}}),
    "openai limit": ("openai", 429, {"error": {"code": "billing_hard_limit_reached"}}),
    "openai by day": (
        "openai",
        429,
        {"error": {"message": "Rate limit reached for m on requests per day (RPD): Limit 200"}},
    ),
    "anthropic": (
        "anthropic",
        400,
        {"type": "error", "error": {"type": "invalid_request_error", "message": CREDIT}},
    ),
    "anthropic billing": ("anthropic", 402, {"type": "error", "error": {"type": "billing_error"}}),
    "deepseek": ("openai", 402, {"error": {"message": "Insufficient Balance"}}),
    "openrouter": ("openai", 402, {"error": {"message": "requires more credits", "code": 402}}),
    "xai": ("openai", 403, {"error": "Your team has run out of credits"}),
    "openrouter by day": (
        "openai",
        429,
        {"error": {"message": "Rate limit exceeded: free-models-per-day", "code": 429}},
    ),
    "moonshot": ("openai", 429, {"error": {"type": "exceeded_current_quota_error"}}),
    "dashscope": ("openai", 400, {"error": {"code": "Arrearage", "message": "Access denied"}}),
    "siliconflow": ("openai", 403, {"message": "your account balance is insufficient"}),
    "fireworks": ("openai", 412, {"error": {"message": "suspended: spending limit reached"}}),
    "anthropic limit": (
        "anthropic",
        400,
        {"error": {"message": "You have reached your specified API usage limits."}},
    ),
    "google by day": (
        "openai",
        429,
        [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [DAILY]}}],
    ),
}


@together(("protocol", "status", "body"), USED_UP.values(), ids=USED_UP)
async def test_a_quota_that_is_used_up_is_said_and_not_asked_for_again(
    protocol: str, status: int, body: Any
) -> None:
    error = (await refused(protocol, status, body)).error

    assert error.details["quota_used_up"] is True
    assert "its quota is used up: add credit" in error.message
    assert not error.retryable
    if status == 429:
        assert error.code is ErrorCode.PROVIDER_RATE_LIMITED


async def test_a_quota_of_a_minute_comes_back() -> None:
    minute = {"violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel"}]}
    soon = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.01s"}
    error = {"code": 429, "message": "You exceeded your current quota", "details": [minute, soon]}

    found = await played("openai", Status(429, orjson.dumps([{"error": error}])), "done")

    [retry] = [event for event in found if isinstance(event, ModelRetry)]
    assert retry.error.details["retry_after_s"] == 0.01
    assert isinstance(found[-1], ModelCompleted)


@together(
    "message",
    [
        "Rate limit reached for m on tokens per min (TPM): Limit 30000. Visit account/rate-limits",
        "This request would exceed your rate limit of 50,000 input tokens per minute",
        "Need more tokens? Upgrade today at https://console.test/settings/billing",
        "Service tier capacity exceeded for this model.",
        "slow down",
    ],
)
async def test_a_rate_of_a_minute_is_no_quota(message: str) -> None:
    body = orjson.dumps({"error": {"message": message, "type": "rate_limit_exceeded"}})

    found = await played("openai", Status(429, body), "done")

    [retry] = [event for event in found if isinstance(event, ModelRetry)]
    assert "quota_used_up" not in retry.error.details
    assert isinstance(found[-1], ModelCompleted)


async def test_a_quota_that_is_used_up_is_known_from_inside_a_stream() -> None:
    error = {"error": {"message": "no", "type": "insufficient_quota"}}

    found = await played("openai", Sends([b"data: " + orjson.dumps(error) + b"\n\n"]), "never")

    assert isinstance(found[-1], ModelFailed)
    assert found[-1].error.details["quota_used_up"]
    assert found[-1].error.code is ErrorCode.PROVIDER_RATE_LIMITED


async def test_a_service_may_say_that_another_attempt_is_of_no_use() -> None:
    found = await played("openai", Status(503, headers={"x-should-retry": "false"}), "never")

    assert len(found) == 2


async def test_a_pause_in_milliseconds_is_kept_to() -> None:
    headers = {"Retry-After-Ms": "30", "Retry-After": "50"}

    found = await played("openai", Status(429, headers=headers), "done")

    [retry] = [event for event in found if isinstance(event, ModelRetry)]
    assert retry.error.details["retry_after_s"] == 0.03


FASTAPI = {"detail": [{"loc": ["body", "seed"], "msg": "field required", "type": "missing"}]}
RAW = orjson.dumps({"error": {"message": "seed is unknown here"}}).decode()

SHAPES: dict[str, tuple[Any, str]] = {
    "detail": ({"detail": "seed is unknown"}, "seed is unknown"),
    "detail list": (FASTAPI, "body.seed: field required"),
    "mistral": (
        {"object": "error", "message": FASTAPI, "type": "invalid_request_error"},
        "body.seed: field required (invalid_request_error)",
    ),
    "message": ({"message": "seed is unknown"}, "seed is unknown"),
    "error text": ({"error": "seed is unknown"}, "seed is unknown"),
    "error and message": (
        {"error": "Bad Request", "message": "seed is unknown", "status": 400},
        "seed is unknown",
    ),
    "list": ([{"error": {"message": "seed is unknown"}}], "seed is unknown"),
    "errors": ({"errors": [{"message": "seed is unknown"}, "and more"]}, "seed is unknown; and"),
    "openrouter": (
        {"error": {"message": "Provider returned error", "metadata": {"raw": RAW}}},
        "Provider returned error: ",
    ),
    "openrouter raw": ({"error": {"message": "no", "metadata": {"raw": RAW}}}, "seed is unknown"),
    "problem": ({"type": "about:blank", "title": "Bad", "detail": "seed is unknown"}, "seed is"),
    "amazon": ({"Message": "seed is unknown"}, "seed is unknown"),
    "oauth": ({"error": "invalid_request", "error_description": "seed is unknown"}, "seed is"),
    "text": ("seed is unknown", ": seed is unknown"),
    "nothing": ({}, "{}"),
    "null": (None, "null"),
    "deep": ({"error": {"message": {"message": {"detail": ["seed is unknown"]}}}}, "seed is"),
}


@together(("body", "words"), SHAPES.values(), ids=SHAPES)
async def test_a_refusal_is_readable_whoever_wrote_it(body: Any, words: str) -> None:
    error = (await refused("openai", 400, body)).error

    assert words in error.message
    assert error.code is ErrorCode.PROVIDER_ERROR
    assert len(error.message) < 700


OVERLOADED: dict[str, Reply] = {
    "error chunk": Sends([b'data: {"error": {"code": 502, "message": "upstream"}}\n\n']),
    "error text": Sends([b'data: {"error": "upstream"}\n\n']),
    "error in a list": Sends([b'data: [{"error": {"status": "UNAVAILABLE"}}]\n\n']),
    "error in a choice": Sends(
        [b'data: {"choices": [{"error": {"code": 502}, "finish_reason": "error"}]}\n\n']
    ),
    "finish reason": Sends([b'data: {"choices": [{"delta": {}, "finish_reason": "error"}]}\n\n']),
    "vllm": Sends([b'data: {"object": "error", "message": "engine died", "code": 500}\n\n']),
    "half an event": Sends([b'data: {"choices": [{"delta": {"con']),
    "half a character": Sends([b'data: {"choices": [{"delta": {"content": "\xf0\x9f']),
    "no event": Sends([b""]),
    "a comment": Sends([b": waiting\n\n"]),
    "json": Status(200, b'{"error": {"message": "upstream", "code": 502}}'),
}


@together("reply", OVERLOADED.values(), ids=OVERLOADED)
async def test_what_breaks_before_the_first_words_is_tried_again(reply: Reply) -> None:
    found = await played("openai", reply, "done")

    assert [type(event) for event in found if isinstance(event, ModelRetry)] == [ModelRetry]
    assert isinstance(found[-1], ModelCompleted)


@together(
    "body",
    [
        {"object": "error", "message": "bad", "type": "BadRequestError", "code": 400},
        {"error": {"message": "bad", "type": "BadRequestError"}},
        {"error": {"message": "bad", "status": "INVALID_ARGUMENT"}},
    ],
)
async def test_a_mistake_that_is_reported_inside_a_stream_is_not_repeated(body: Any) -> None:
    found = await played("openai", Sends([b"data: " + orjson.dumps(body) + b"\n\n"]), "never")

    assert len(found) == 2
    assert isinstance(found[-1], ModelFailed)
    assert found[-1].error.details["status"] == 400


async def test_half_an_event_of_every_protocol_is_tried_again() -> None:
    for protocol, begun in (("anthropic", b'data: {"type": "mess'), ("ollama", b'{"message": {"c')):
        found = await played(protocol, Sends([begun]), "done")

        assert isinstance(found[1], ModelRetry)
        assert isinstance(found[-1], ModelCompleted)

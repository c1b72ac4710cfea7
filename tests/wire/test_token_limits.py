"""Words of services about too many tokens, quoted from recorded answers and public reports."""

from typing import Any

import orjson
import pytest

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.failures import Called
from agent_core.providers.token_limits import is_too_long, window_in
from agent_core.types import (
    ModelCompleted,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    Role,
    TextBlock,
)
from model_server import ModelServer, Status
from tables import together

# ruff: noqa: E501 - sentences of services, whole
# fmt: off
TOO_LONG: dict[str, int | None] = {
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.": 8192,
    "Your input exceeds the context window of this model. Please adjust your input and try again.": None,
    "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300112 tokens.": 272000,
    "prompt is too long: 210000 tokens > 200000 maximum": 200000,
    "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again": None,
    "Input is too long for requested model.": None,
    "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).": 1048575,
    "Unable to submit request because the input token count is 2000000 but model only supports up to 1048576. Reduce the input token count and try again.": 1048576,
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.": 131072,
    "Please reduce the length of the messages or completion.": None,
    "Please reduce the length of the messages or completion. Current length is 8204 while limit is 8192": 8192,
    "prompt token count of 132000 exceeds the limit of 128000": 128000,
    "the request exceeds the available context size, try increasing it": None,
    "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length": None,
    "Trying to keep the first 6202 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough": 4096,
    "invalid params, context window exceeds limit (2013)": None,
    "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)": 8192,
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 6512": None,
    "token limit exceeded": None,
    "tokens in request more than max tokens allowed": None,
    "The prompt exceeds the maximum allowed input length of 32768 tokens": 32768,
    "Input length 40000 exceeds maximum allowed input length of 32768 tokens": 32768,
    "prompt too long; exceeded max context length by 4 tokens": None,
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length": 32768,
    "prompt has 40000 tokens, but the configured context size is 32768 tokens": 32768,
    "Request body too large for gpt-4o model. Max size: 8000 tokens.": 8000,
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]": 30720,
    "Prompt exceeds max length (1261)": None,
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 100 `max_new_tokens`": 8193,
    "Input validation error: `inputs` must have less than 1024 tokens. Given: 1500": None,
    "The prompt is too long: 139427, model maximum context length: 131071": 131071,
    "Input Tokens Exceeded: Number of input tokens exceeds maximum length.": None,
    "Malformed input request: expected maxLength: 20000, actual: 25000, please reformat your input and try again.": None,
    "5021: The estimated number of input and maximum output tokens (9000) exceeded this model context window limit (7968).": 7968,
    "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model": 4096,
    "max tokens of 32000 exceeded": None,
    "Total tokens of image and text exceed max message tokens. Request id: 02": None,
    "Context size has been exceeded.": None,
    "Requested tokens (9000) exceed context window of 8192": 8192,
    "litellm.ContextWindowExceededError: ContextWindowExceededError: OpenAIException": None,
    "Reached context length of 4096 tokens with this model, but this model does not support context overflow policy": 4096,
    "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 40960 tokens and your request has 12000 input tokens (32000 > 40960 - 12000).": 40960,
    "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the messages, 8192 in the completion).": 131072,
    "输入内容超过模型最大长度": None,
    "Prompt 超长": None,
    "Requested token count exceeds the model's maximum context length of 32768 tokens.": 32768,
    "The decoder prompt (length 40000) is longer than the maximum model length of 32768.": 32768,
    "the conversation is too long for this model": None,
    "messages exceed the 4096 token limit": None,
    "prompt (5000 tokens) does not fit into the context": None,
    "Input exceeds maximum sequence length": None,
    "the total length of input exceeds the model limit": None,
    "context_length_exceeded": None,
    "Your request is larger than the model's window": None,
    "This model's context window is 8192 tokens": 8192,
    "prompt length 9000 is over the model's limit": None,
    "The sequence length 9000 exceeds max_model_len 8192": 8192,
    "The total number of tokens exceeds the limit": None,
    "Too many input tokens": None,
    "The message you submitted was too long": None,
}
OTHERWISE = [
    "max_tokens is too large: 20480. This model supports at most 16384 completion tokens, whereas you provided 20480.",
    "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 201 instead. (array_above_max_length)",
    "Invalid 'messages[3].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got 50",
    "Request timed out: it exceeded the time limit",
    "The number of tools (200) exceeds the maximum of 128",
    "temperature must be less than or equal to 2",
    "Tool argument validation failed: input length exceeds 1000 characters",
    "Invalid 'stop': too many stop sequences",
    "seed is unknown",
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
    "Input should be a valid dictionary",
    "messages: at least one message is required",
    "invalid_request_error: messages.1: `tool_use` ids were found without `tool_result` blocks immediately after",
    "Too many images in request. Max is 20.",
    "Request rate exceeded the limit",
    "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for claude-3-5-sonnet-20241022",
    "prompt_cache_key is too long",
    "Invalid schema for function 'x': schema exceeds maximum depth",
    "The request was rejected because it was considered high risk",
    "Unrecognized request argument supplied: thinking",
]
OUTPUT: dict[str, tuple[int, int]] = {
    "max_tokens is too large: 20480. This model supports at most 16384 completion tokens, whereas you provided 20480.": (20480, 16384),
    "The parameter `max_completion_tokens` specified in the request are not valid: integer above maximum value, expected a value <= 12288, but got 32000 instead.": (32000, 12288),
    "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for claude-3-5-sonnet-20241022": (200000, 64000),
    "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the `context_window` for this model": (32000, 8192),
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]": (32000, 8192),
    "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 8192]": (32000, 8192),
    "The maximum tokens you requested exceeds the model limit of 8192. Try again with a maximum tokens value that is lower than 8192.": (32000, 8192),
    "Unable to submit request because it has a maxOutputTokens value of 65536 but the supported range is from 1 (inclusive) to 8193 (exclusive). Update the value and try again.": (65536, 8192),
    "max_tokens too large": (8192, 4096),
    "max_output_tokens is too large": (8192, 4096),
    "Param Incorrect max_tokens is too large: 1048576. This model supports at most 131072 completion tokens, whereas you provided 1048576.": (1048576, 131072),
    "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 4096, but got 8192 instead.": (8192, 4096),
    "max_tokens should be in [1, 4096]": (8192, 4096),
    "max_completion_tokens cannot be greater than 4096": (8192, 4096),
}
# fmt: on
"""The limit that was asked for, and the one that is asked for next."""


@together(("words", "window"), TOO_LONG.items(), ids=range(len(TOO_LONG)))
def test_words_about_a_prompt_that_is_too_long(words: str, window: int | None) -> None:
    for status in (400, 422, 500):
        failure = Called("openai", "m").refused(status, words)
        assert failure.code is ErrorCode.PROMPT_TOO_LONG
        assert failure.details.get("context_window") == window
        assert not failure.retryable
    assert window_in(words) == window


@together(
    ("words", "window"),
    [
        ("Your request exceeds the model's token budget of 32768", 32768),
        ("ctx size exceeded", None),
        ("token limit reached", None),
        ("This model can only process 4096 tokens", None),
        ("The sequence length (5000) is longer than the maximum (4096)", None),
        ("prompt tokens (5000) + max_tokens exceed 4096", None),
        ("Please shorten your messages", None),
        ("input_tokens exceeds limit", None),
        ("not enough context left", None),
        ("There is no room left in the context window", None),
        ("Length of prompt must be at most 8192 tokens", None),
    ],
)
def test_words_that_nobody_has_reported(words: str, window: int | None) -> None:
    failure = Called("openai", "m").refused(400, words)
    assert failure.code is ErrorCode.PROMPT_TOO_LONG
    assert failure.details.get("context_window") == window


@together(
    "words",
    [
        "Budget has been exceeded! The tokens of this key cost more than 5 dollars",
        "daily token limit reached",
        "tool_call_id string too long. Expected maximum length 40",
        "stop sequence too long",
    ],
)
def test_other_limits_are_not_about_the_prompt(words: str) -> None:
    assert not is_too_long(400, words)


@together("words", [*OTHERWISE, *OUTPUT])
def test_words_about_something_else(words: str) -> None:
    assert not is_too_long(400, words)


@together("status", [401, 402, 403, 407])
def test_a_refusal_of_the_account_is_never_about_the_length(status: int) -> None:
    assert not is_too_long(status, "prompt is too long")


def test_a_request_larger_than_the_limit_of_a_minute_is_too_long() -> None:
    words = (
        "Request too large for m in organization o on tokens per min (TPM): Limit {}, Requested {}."
    )
    failure = Called("openai", "m").refused(429, words.format(30000, 39000))
    assert failure.code is ErrorCode.PROMPT_TOO_LONG
    assert failure.details["context_window"] == 30000
    assert not failure.retryable
    once_more = Called("openai", "m").refused(429, words.format(30000, 20000))
    assert once_more.code is ErrorCode.PROVIDER_RATE_LIMITED
    assert once_more.retryable


@together("body", [b"", b"{}", b'{"error": {"message": "no"}}', b"<html></html>"])
def test_a_413_needs_no_words(body: bytes) -> None:
    assert is_too_long(413, body.decode())


LIMITS = {
    "openai": ("max_tokens",),
    "responses": ("max_output_tokens",),
    "anthropic": ("max_tokens",),
    "gemini": ("generationConfig", "maxOutputTokens"),
    "bedrock": ("inferenceConfig", "maxTokens"),
    "ollama": ("options", "num_predict"),
}


async def limits_asked_for(protocol: str, words: str, asked: int, calls: int = 1) -> list[int]:
    """Return the limits in the requests, if the service refuses what is larger than it allows."""
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    refusal = Status(400, orjson.dumps({"error": {"message": words}, "message": words}))
    async with ModelServer([refusal, *["done"] * calls]) as server:
        config = ModelConfig(
            **server.settings(protocol),
            name="m",
            max_output_tokens=asked,
            api_key_env="SOME_KEY",
            retry=RetryConfig(max_attempts=1),
        )
        adapter = ProviderRegistry().create(config)
        for _ in range(calls):
            request = ModelRequest(model="m", messages=[hello])
            last = [event async for event in adapter.stream(request)][-1]
            assert isinstance(last, ModelCompleted), last
        await adapter.close()
        found: list[int] = []
        for each in server.requests:
            place: Any = each.body
            for key in LIMITS[protocol]:
                place = place[key]
            found.append(place)
    return found


@together(("words", "limits"), OUTPUT.items(), ids=range(len(OUTPUT)))
async def test_a_limit_that_is_too_large_shrinks(
    words: str, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "a-key")
    assert await limits_asked_for("openai", words, limits[0]) == list(limits)


@together("protocol", LIMITS)
async def test_it_stays_small_in_later_calls_of_every_protocol(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "a-key")
    words = "max_tokens: 64000 > 4096, which is the maximum allowed number of output tokens for m"
    assert await limits_asked_for(protocol, words, 64000, calls=2) == [64000, 4096, 4096]


async def test_a_service_that_refuses_every_limit_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_KEY", "a-key")
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    refusal = Status(400, b'{"error": {"message": "max_tokens is too large"}}')
    async with ModelServer(lambda _: refusal) as server:
        config = ModelConfig(**server.settings("openai"), name="m", max_output_tokens=8192)
        adapter = ProviderRegistry().create(config)
        request = ModelRequest(model="m", messages=[hello])
        last = [event async for event in adapter.stream(request)][-1]
        await adapter.close()
    assert isinstance(last, ModelFailed)
    assert last.error.code is ErrorCode.PROVIDER_ERROR
    assert len(server.requests) == 6

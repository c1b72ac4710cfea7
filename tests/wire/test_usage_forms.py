"""The forms in which services report usage: whatever a count includes, the parts add up."""

from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis.strategies import integers, lists, one_of, sampled_from

from agent_core.budgets.prices import ConfiguredPrice
from agent_core.config.models import ModelConfig, PriceConfig, RetryConfig
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.usage import completed_usage, count
from agent_core.types import (
    ModelCompleted,
    ModelMessage,
    ModelRequest,
    Role,
    TextBlock,
    Usage,
)
from model_server import ModelServer, Sends, sse
from model_server_wire import frame
from responses_events import events_of, message, response, sse as events
from tables import together

HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])


class Counts(NamedTuple):
    """What is expected of a usage."""

    given: int
    taken: int
    read: int = 0
    written: int = 0
    written_1h: int = 0
    reasoning: int = 0


def counts_of(usage: Usage) -> Counts:
    return Counts(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
        usage.reasoning_tokens,
    )


async def usage_in(provider: str, sent: Any) -> Usage:
    async with ModelServer([Sends(sent)]) as server:
        url = f"{server.url}/v1" if provider == "openai" else server.url
        api: Any = {"api": "responses"} if provider == "responses" else {}
        config = ModelConfig(
            provider="openai" if api else provider,
            name="m",
            base_url=url,
            retry=RetryConfig(max_attempts=1),
            **api,
        )
        adapter = ProviderRegistry().create(config)
        request = ModelRequest(model="m", messages=[HELLO])
        *_, last = [event async for event in adapter.stream(request)]
        await adapter.close()
    assert isinstance(last, ModelCompleted), last
    return last.usage


def choice(text: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"index": 0, "delta": {"content": text}, "finish_reason": finish, **more}


def chat(*reports: Any) -> bytes:
    """Return a stream with these reports of usage, the last one after the stop reason."""
    *early, last = reports
    chunks = [{"choices": [choice("hi")], "usage": report} for report in early]
    end = {"choices": [choice(finish="stop")]}
    return sse(*chunks, end, {"choices": [], "usage": last}) + b"data: [DONE]\n\n"


def spent(given: Any, taken: Any, total: Any = None, **more: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": given, "completion_tokens": taken}
    return {**counts, **({} if total is None else {"total_tokens": total}), **more}


def prompt(**details: Any) -> dict[str, Any]:
    return {"prompt_tokens_details": details}


def thought(tokens: Any) -> dict[str, Any]:
    return {"completion_tokens_details": {"reasoning_tokens": tokens}}


CHAT: dict[str, tuple[list[Any], Counts]] = {
    "OpenAI": (
        [spent(100, 310, 410, **thought(300), **prompt(cached_tokens=80))],
        Counts(100, 310, read=80, reasoning=300),
    ),
    "reasoning on top": (
        [spent(100, 10, 410, **thought(300))],
        Counts(100, 310, reasoning=300),
    ),
    "less reasoning on top": (
        [spent(100, 50, 170, **thought(20))],
        Counts(100, 70, reasoning=20),
    ),
    "reasoning on top, no total": (
        [spent(100, 10, **thought(300))],
        Counts(100, 310, reasoning=300),
    ),
    "only reasoning": ([spent(21, 0, 81, **thought(60))], Counts(21, 60, reasoning=60)),
    "cache on top": (
        [spent(100, 10, 910, **prompt(cached_tokens=800))],
        Counts(900, 10, read=800),
    ),
    "cache on top, no total": (
        [spent(100, 10, **prompt(cached_tokens=800))],
        Counts(900, 10, read=800),
    ),
    "cache on top, not in the total": (
        [spent(100, 10, 110, **prompt(cached_tokens=800))],
        Counts(900, 10, read=800),
    ),
    "a small cache on top": (
        [spent(100, 10, 160, **prompt(cached_tokens=50))],
        Counts(150, 10, read=50),
    ),
    "both on top": (
        [spent(100, 10, 460, **thought(300), **prompt(cached_tokens=50))],
        Counts(150, 310, read=50, reasoning=300),
    ),
    "thoughts that are not named": ([spent(20, 424, 1016)], Counts(20, 996)),
    "no prompt": ([spent(0, 10, 110)], Counts(100, 10)),
    "no completion": ([spent(100, 0, 110)], Counts(100, 10)),
    "DeepSeek": (
        [spent(100, 10, 110, prompt_cache_hit_tokens=64, prompt_cache_miss_tokens=36)],
        Counts(100, 10, read=64),
    ),
    "Moonshot": ([spent(100, 10, 110, cached_tokens=64)], Counts(100, 10, read=64)),
    "OpenRouter": (
        [
            spent(
                1000,
                50,
                1050,
                cost=0.01,
                **prompt(cached_tokens=600, cache_write_tokens=300),
                **thought(20),
            )
        ],
        Counts(1000, 50, read=600, written=300, reasoning=20),
    ),
    "a gateway to Anthropic": (
        [spent(100, 10, 110, cache_read_input_tokens=800, cache_creation_input_tokens=50)],
        Counts(950, 10, read=800, written=50),
    ),
    "a gateway that counts the cache as prompt": (
        [
            spent(
                950,
                10,
                960,
                cache_read_input_tokens=800,
                cache_creation_input_tokens=50,
                **prompt(cached_tokens=800, cache_creation_token_details={
                    "ephemeral_5m_input_tokens": 10,
                    "ephemeral_1h_input_tokens": 40,
                }),
            )
        ],
        Counts(950, 10, read=800, written=50, written_1h=40),
    ),
    "a report with every chunk": (
        [
            spent(100, 1, 101, **prompt(cached_tokens=64)),
            spent(100, 5, 105),
            spent(100, 310, 410, **thought(300)),
        ],
        Counts(100, 310, read=64, reasoning=300),
    ),
    "zeros at the end": ([spent(100, 10, 110), spent(0, 0, 0)], Counts(100, 10)),
    "a hostile server": (
        [spent(100, 10, 110), spent(-5, -5, -10, **thought(-3), **prompt(cached_tokens=-9))],
        Counts(100, 10),
    ),
    "nothing but negative numbers": ([spent(-5, -5, -10)], Counts(0, 0)),
    "beyond all bounds": ([spent(2**63, 10, 10**13, **thought(2**63))], Counts(0, 10)),
    "other kinds of values": (
        [spent("100", [], {}, **thought("many"), **prompt(cached_tokens=True))],
        Counts(0, 0),
    ),
    "whole numbers as fractions": ([spent(100.0, 10.0, 110.0)], Counts(100, 10)),
    "a total below its parts": ([spent(100, 10, 50)], Counts(100, 10)),
}  # fmt: skip


@together("form", CHAT)
async def test_chat_completions(form: str) -> None:
    reports, expected = CHAT[form]
    usage = await usage_in("openai", chat(*reports))
    assert counts_of(usage) == expected
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


async def test_moonshot_reports_in_the_choice() -> None:
    report = spent(100, 10, 110, cached_tokens=64)
    body = sse({"choices": [choice("hi")]}, {"choices": [choice(finish="stop", usage=report)]})
    usage = await usage_in("openai", body + b"data: [DONE]\n\n")
    assert counts_of(usage) == Counts(100, 10, read=64)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            {
                "input_tokens": 100,
                "output_tokens": 10,
                "total_tokens": 410,
                "output_tokens_details": {"reasoning_tokens": 300},
            },
            Counts(100, 310, reasoning=300),
        ),
        (
            {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 800, "cache_write_tokens": 40},
                "output_tokens": 10,
                "total_tokens": 950,
            },
            Counts(940, 10, read=800, written=40),
        ),
    ],
    ids=["reasoning on top", "cache on top"],
)
async def test_responses(report: dict[str, Any], expected: Counts) -> None:
    said = message("hi")
    end = {**events_of([said])[-1], "response": response("completed", [said], usage=report)}
    usage = await usage_in("responses", events([*events_of([said])[:-1], end]))
    assert counts_of(usage) == expected
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def anthropic(begin: dict[str, Any], end: dict[str, Any]) -> bytes:
    text = {"type": "text_delta", "text": "hi"}
    return sse(
        {"type": "message_start", "message": {"usage": begin}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": text},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end},
        {"type": "message_stop"},
    )


LIFETIMES = {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 40}
CACHED = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 50}


@together(
    ("begin", "end", "expected"),
    [
        (CACHED, {"output_tokens": 9}, Counts(145, 9, read=90, written=50)),
        (
            CACHED | {"cache_creation": LIFETIMES},
            {"output_tokens": 9},
            Counts(145, 9, read=90, written=50, written_1h=40),
        ),
        (
            CACHED | {"cache_creation": LIFETIMES},
            CACHED | {"cache_creation": None, "output_tokens": 9},
            Counts(145, 9, read=90, written=50, written_1h=40),
        ),
        (
            {"input_tokens": 5, "cache_creation": LIFETIMES},
            {"output_tokens": 9},
            Counts(55, 9, written=50, written_1h=40),
        ),
        (
            {"input_tokens": 0, "output_tokens": 0},
            CACHED | {"output_tokens": 9},
            Counts(145, 9, read=90, written=50),
        ),
        (
            CACHED,
            {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 9},
            Counts(145, 9, read=90, written=50),
        ),
        (
            {"input_tokens": -5, "cache_creation": {"ephemeral_1h_input_tokens": -7}},
            {"output_tokens": 9},
            Counts(0, 9),
        ),
    ],
    ids=["plain", "an hour", "null", "only lifetimes", "at the end", "zeros", "hostile"],
)
async def test_anthropic(begin: dict[str, Any], end: dict[str, Any], expected: Counts) -> None:
    usage = await usage_in("anthropic", anthropic(begin, end))
    assert counts_of(usage) == expected
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def gemini(*reports: dict[str, Any]) -> bytes:
    said = {"content": {"role": "model", "parts": [{"text": "hi"}]}}
    *early, last = reports
    end = {**said, "finishReason": "STOP"}
    chunks = [{"candidates": [said], "usageMetadata": report} for report in early]
    return sse(*chunks, {"candidates": [end], "usageMetadata": last})


@together(
    ("reports", "expected"),
    [
        (
            [
                {"promptTokenCount": 100, "totalTokenCount": 100},
                {
                    "promptTokenCount": 100,
                    "toolUsePromptTokenCount": 5,
                    "candidatesTokenCount": 10,
                    "thoughtsTokenCount": 30,
                    "cachedContentTokenCount": 80,
                    "totalTokenCount": 145,
                },
            ],
            Counts(105, 40, read=80, reasoning=30),
        ),
        (
            [
                {"promptTokenCount": 100, "thoughtsTokenCount": 30, "totalTokenCount": 130},
                {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 140},
            ],
            Counts(100, 40, reasoning=30),
        ),
        ([{"promptTokenCount": 100, "totalTokenCount": 160}], Counts(100, 60)),
        (
            [
                {
                    "promptTokenCount": 100,
                    "cachedContentTokenCount": 800,
                    "candidatesTokenCount": 10,
                    "totalTokenCount": 910,
                }
            ],
            Counts(900, 10, read=800),
        ),
    ],
    ids=["all parts", "thoughts only early", "thoughts that are not named", "cache on top"],
)
async def test_gemini(reports: list[dict[str, Any]], expected: Counts) -> None:
    usage = await usage_in("gemini", gemini(*reports))
    assert counts_of(usage) == expected
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


CACHE_DETAILS = [{"ttl": "1h", "inputTokens": 15}, {"ttl": "5m", "inputTokens": 5}]


@together(
    ("total", "taken"),
    [(60, 7), (10, 7), (360, 307)],
    ids=["of all parts", "without the cache", "with thoughts that are not named"],
)
async def test_bedrock_says_what_is_kept_for_an_hour(total: int, taken: int) -> None:
    report = {
        "inputTokens": 3,
        "outputTokens": 7,
        "totalTokens": total,
        "cacheReadInputTokens": 30,
        "cacheWriteInputTokens": 20,
        "cacheDetails": CACHE_DETAILS,
    }
    sent = [
        frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "hi"}}),
        frame("messageStop", {"stopReason": "end_turn"}),
        frame("metadata", {"usage": report}),
    ]
    usage = await usage_in("bedrock", sent)
    assert counts_of(usage) == Counts(53, taken, read=30, written=20, written_1h=15)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


async def test_ollama_counts_what_it_evaluated() -> None:
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 20, "eval_count": 5}
    lines = [{"message": {"role": "assistant", "content": "hi"}, "done": False}, end]
    usage = await usage_in("ollama", b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert counts_of(usage) == Counts(20, 5)


FIGURES = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
)
TOKENS = one_of(integers(-5, 2000), sampled_from((-(2**70), 2**70, 10**12, 0)))


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(lists(TOKENS, min_size=7, max_size=7))
@example([100, 0, 100, 0, 0, 1, 0])  # kept for an hour, but not written
def test_no_report_costs_less_than_nothing(numbers: list[int]) -> None:
    usage = completed_usage(Usage(**dict(zip(FIGURES, map(count, numbers), strict=True))))
    assert min(counts_of(usage)) >= 0
    assert usage.reasoning_tokens <= usage.output_tokens
    assert usage.cache_read_tokens + usage.cache_write_tokens <= usage.input_tokens
    assert usage.cache_write_1h_tokens <= usage.cache_write_tokens
    if usage.input_tokens or usage.output_tokens:
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    price = ConfiguredPrice(PriceConfig(input=1, output=2, cache_read=0.1, cache_write=1.25))
    assert price.of(usage) >= 0

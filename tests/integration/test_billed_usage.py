"""What a service bills is what a run costs: in its result, its budget, its replay and in sums."""

from pathlib import Path

import pytest

import runtimes
from agent_core import AgentRuntime, Budget, Usage
from agent_core.providers.scripted import Says
from isolation import Home
from model_server import ModelServer, Sends, sse

CONFIG = """[model]
provider = "{provider}"
name = "some-model"
base_url = "{url}"
[model.price]
input = 1.0
output = 10.0
cache_read = 0.1
cache_write = 1.25
cache_write_hour = 2.0
"""


REASONING_ON_TOP = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 410,
    "completion_tokens_details": {"reasoning_tokens": 300},
}
CHAT = (
    sse(
        {"choices": [{"index": 0, "delta": {"content": "Hello."}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": REASONING_ON_TOP},
    )
    + b"data: [DONE]\n\n"
)

KEPT_FOR_AN_HOUR = {
    "input_tokens": 5,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 50,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 40},
}
MESSAGES = sse(
    {"type": "message_start", "message": {"usage": KEPT_FOR_AN_HOUR}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "Hello."},
    },
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 9},
    },
    {"type": "message_stop"},
)


@pytest.mark.parametrize(
    ("provider", "reply", "counts", "dollars"),
    [
        ("openai", CHAT, (100, 310, 0), (100 + 310 * 10) / 1e6),
        (
            "anthropic",
            MESSAGES,
            (145, 9, 40),
            (5 + 90 * 0.1 + 10 * 1.25 + 40 * 2 + 9 * 10) / 1e6,
        ),
    ],
    ids=["reasoning on top", "kept for an hour"],
)
async def test_all_that_is_billed_counts_everywhere(
    home: Home,
    project: Path,
    provider: str,
    reply: bytes,
    counts: tuple[int, int, int],
    dollars: float,
) -> None:
    async with ModelServer([Sends(reply)]) as server:
        url = server.base_url(provider)
        home.write_config(CONFIG.format(provider=provider, url=url))
        async with AgentRuntime(project, home_dir=home.path) as made:
            result = await made.run("hello", budget=Budget(usd=1, output_tokens=10**6))
            replay = await made.replay_session(result.session_id)
            (total,) = await made.costs()
            (summary,) = await made.session_summaries()
    (use,) = replay.budgets
    for usage in (result.usage, replay.runs[0].usage, total.usage, summary.usage):
        found = (usage.input_tokens, usage.output_tokens, usage.cache_write_1h_tokens)
        assert found == counts
        assert usage.cost == pytest.approx(dollars)
    assert (use.spent["input_tokens"], use.spent["output_tokens"]) == counts[:2]
    assert use.spent["usd"] == pytest.approx(dollars)


async def test_an_adapter_of_the_program_is_read_like_a_service(home: Home, project: Path) -> None:
    """Its usage may leave out of the output what the total has, as services do."""
    usage = Usage(input_tokens=100, output_tokens=10, reasoning_tokens=300, total_tokens=410)
    config = runtimes.CONFIG + "[model.price]\ninput = 1.0\noutput = 10.0\n"
    script = [Says(text="Hello.", usage=usage)] * 2
    async with runtimes.runtime(home, project, script, config=config) as made:
        plain = await made.run("hello")
        limited = await made.run("hello", budget=Budget(usd=1))
        (use,) = (await made.replay_session(limited.session_id)).budgets
    for result in (plain, limited):
        assert (result.usage.input_tokens, result.usage.output_tokens) == (100, 310)
        assert result.cost == pytest.approx((100 + 310 * 10) / 1e6)
    assert use.spent["output_tokens"] == 310
    assert use.spent["usd"] == pytest.approx((100 + 310 * 10) / 1e6)

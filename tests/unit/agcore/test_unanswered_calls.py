"""Model calls of the toolkit that bring no reply count at their estimate, in usage and budget."""

import asyncio
from typing import Any

import pytest

from agcore import Agent, Budget
from agcore.agent import AgentError
from agcore.llm import (
    AdapterProvider,
    AssistantTextDelta,
    ChatMessage,
    ChatRequest,
    CompactConfig,
    LlmCycle,
    LlmError,
    MockProvider,
    ModelConfig,
)
from agent_core.config.models import BudgetConfig, PriceConfig, RetryConfig
from agent_core.providers.scripted import Fails, Hangs, Says, ScriptedProvider
from agent_core.types import Usage
from agent_parts import SUMMARY, is_summary

HALF = "word " * 100
HALF_TOKENS = 125
EXACT = Usage.from_input_output(1000, 50)
PRICE = PriceConfig(input=1.0, output=10.0)
AMPLE = Budget(total_tokens=10**7)

ONCE = RetryConfig(max_attempts=1)
BUDGETS = pytest.mark.parametrize("budget", [None, AMPLE], ids=["no budget", "budget"])
PRICES = pytest.mark.parametrize("price", [None, PRICE], ids=["no price", "price"])


def served(*script: Any, price: PriceConfig | None = None) -> AdapterProvider:
    """Return a provider whose service plays the script."""
    config = ModelConfig(provider="scripted", name="m", price=price or PriceConfig())
    return AdapterProvider(ScriptedProvider([*script], retry=ONCE), "m", config=config)


def cycle_of(provider: Any, budget: Budget | None) -> LlmCycle:
    made = LlmCycle(provider)
    return (
        made if budget is None else made.with_budget(BudgetConfig(total_tokens=budget.total_tokens))
    )


def assert_lost(usage: Usage, price: PriceConfig | None) -> None:
    assert usage.is_estimated
    assert usage.output_tokens == HALF_TOKENS
    assert 0 < usage.input_tokens < 1000
    if price is None:
        assert usage.cost is None
    else:
        assert usage.cost == pytest.approx((usage.input_tokens + 10 * HALF_TOKENS) / 10**6)


@BUDGETS
@PRICES
async def test_a_stream_that_is_left_counts(
    price: PriceConfig | None, budget: Budget | None
) -> None:
    cycle = cycle_of(served(Hangs(text=HALF), price=price), budget)
    shown = ""
    events = cycle.submit_stream("hello")
    async for event in events:
        shown += event.text if isinstance(event, AssistantTextDelta) else ""
        if shown == HALF:
            break
    await events.aclose()
    assert_lost(cycle.usage().total(), price)
    assert cycle.turn_usage() == cycle.usage().total()


@BUDGETS
@PRICES
async def test_a_stream_that_breaks_counts(
    price: PriceConfig | None, budget: Budget | None
) -> None:
    cycle = cycle_of(served(Fails(text=HALF), price=price), budget)
    async for _ in cycle.submit_stream("hello"):
        pass
    assert_lost(cycle.usage().total(), price)


async def test_a_client_of_ones_own_that_breaks_off_counts_its_prompt() -> None:
    class Lost(MockProvider):
        async def chat(self, request: ChatRequest) -> Any:
            raise ConnectionResetError("gone")

    cycle = LlmCycle(Lost())
    with pytest.raises(LlmError):
        await cycle.submit("hello " * 100)
    usage = cycle.usage().total()
    assert usage.is_estimated
    assert usage.input_tokens > 150
    assert cycle.usage().calls == 3  # attempts


@BUDGETS
async def test_an_attempt_that_broke_counts_beside_the_reply(budget: Budget | None) -> None:
    gone = Fails(message="gone", retryable=True)
    agent = Agent("a", model=served(gone, Says(text="ok", usage=EXACT), price=PRICE))
    result = await agent.run("hello", budget=budget)
    lost = result.usage.input_tokens - 1000
    assert result.usage.is_estimated
    assert lost > 0
    assert result.usage.output_tokens == 50
    assert result.usage.cost == pytest.approx((lost + 1000 + 10 * 50) / 10**6)


async def test_a_refused_attempt_costs_nothing() -> None:
    provider = MockProvider([LlmError.RateLimit("slow down", retry_after_s=0.0), "ok"])
    result = await Agent("a", model=provider).run("hello")
    assert not result.usage.is_estimated


async def test_a_run_out_of_time_counts_its_prompt() -> None:
    async with Agent("a", model=served(Hangs(text=HALF))).session() as session:
        with pytest.raises(AgentError.LimitExceeded, match="wall_s"):
            await session.run("hello", budget=Budget(wall_s=0.3))
        assert session.usage().total().is_estimated
        assert session.usage().total().input_tokens > 0


async def test_a_summary_that_fails_counts() -> None:
    class Frail(MockProvider):
        async def chat(self, request: ChatRequest) -> Any:
            if is_summary(request):
                raise ConnectionResetError("gone")
            return await super().chat(request)

    history = [
        message
        for number in range(8)
        for message in (
            ChatMessage.user_text(f"question {number} " + "w" * 400),
            ChatMessage.assistant_text(f"answer {number} " + "w" * 400),
        )
    ]
    provider = Frail(lambda _: SUMMARY)
    cycle = LlmCycle(provider).with_messages(history)
    cycle = cycle.with_compact_config(CompactConfig(max_tokens=1000, keep_recent=2))
    await cycle.submit("next")
    assert cycle.usage().total().is_estimated
    assert cycle.usage().total().input_tokens > 500
    assert cycle.turn_usage() == cycle.usage().total()


async def test_a_cancelled_task_counts() -> None:
    session = Agent("a", model=served(Hangs(text=HALF), price=PRICE)).session()
    asked = asyncio.Event()

    async def follow() -> None:
        async for event in session.submit_turn_stream("hello"):
            if isinstance(event, AssistantTextDelta):
                asked.set()

    async with session:
        following = asyncio.create_task(follow())
        await asyncio.wait_for(asked.wait(), 20)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        assert session.usage().total().is_estimated
        assert session.usage().total().cost is not None

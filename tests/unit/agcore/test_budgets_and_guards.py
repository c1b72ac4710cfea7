"""What a run or a session of the toolkit may spend, what it costs, and what guards make of it."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from agcore import Agent, Budget, tool
from agcore.agent import AgentConfig, AgentError, AgentSession
from agcore.llm import (
    AdapterProvider,
    AssistantTextDelta,
    ChatChunk,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    CompactConfig,
    Error,
    HookEvent,
    LlmCycle,
    LlmError,
    MockProvider,
    ModelConfig,
    TurnComplete,
    Usage,
    tool_call_reply,
)
from agcore.memory import ConversationMemory, ConversationMemoryConfig, InMemoryStore
from agent_core import GuardStop, on_answer, on_message, on_tool_call
from agent_core.config.models import BudgetConfig, PriceConfig
from agent_core.testing import ScriptedProvider
from agent_core.types import ToolCall
from agent_parts import SUMMARY, Watches, bundle, is_summary


@tool(permission="readonly")
def look() -> str:
    """Look."""
    return "seen"


@dataclass(frozen=True)
class Answer:
    left: int


def reply(text: str, tokens: int = 10) -> ChatResponse:
    return ChatResponse(ChatMessage.assistant_text(text), Usage.from_input_output(tokens, 5))


def endless() -> MockProvider:
    return MockProvider(lambda _: tool_call_reply("look"))


# --- budgets --------------------------------------------------------------------------------------


async def test_a_run_ends_when_its_requests_are_spent() -> None:
    provider = endless()
    agent = Agent("a", model=provider, tools=[look], budget=Budget(requests=3))
    with pytest.raises(AgentError.LimitExceeded) as spent:
        await agent.run("go")
    assert spent.value.code == "budget_exceeded"
    assert spent.value.details["limit"] == "requests"
    assert len(provider.requests) == 3
    assert (
        await agent.run("go", model=MockProvider(["ok"]))
    ).output == "ok"  # each run has its own


async def test_tool_calls_are_counted_and_the_typed_answer_is_none() -> None:
    agent = Agent("a", tools=[look], budget=Budget(tool_calls=2), output_type=Answer)
    script = [tool_call_reply("look"), tool_call_reply("look"), '{"left": 1}']
    assert (await agent.run("go", model=MockProvider(script))).output == Answer(1)
    with pytest.raises(AgentError.LimitExceeded, match="tool_calls"):
        await agent.run("go", model=endless())


async def test_time_that_is_spent_stops_a_call_in_the_middle() -> None:
    ended = asyncio.Event()

    class Hangs(MockProvider):
        async def chat(self, request: ChatRequest) -> ChatResponse:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return await super().chat(request)

    with pytest.raises(AgentError.LimitExceeded, match="wall_s"):
        await Agent("a", model=Hangs(), budget=Budget(wall_s=1)).run("go")
    assert ended.is_set()


async def test_an_answer_is_asked_for_no_longer_than_the_budget_has_room() -> None:
    provider = MockProvider(["ok", "ok"])
    await Agent("a", model=provider, budget=Budget(output_tokens=300)).run("go")
    await Agent("a", model=provider, max_output_tokens=100).run("go", budget=Budget(requests=1))
    assert [request.max_output_tokens for request in provider.requests] == [300, 100]
    with pytest.raises(AgentError.LimitExceeded):
        await Agent("a", model=provider, budget=Budget(output_tokens=200)).run("go")
    assert len(provider.requests) == 2


async def test_attempts_count_as_requests_and_refused_ones_cost_no_tokens() -> None:
    script = [LlmError.RateLimit("slow down", retry_after_s=0.0), reply("ok", 50)]
    provider = MockProvider(script)
    agent = Agent("a", model=provider, budget=Budget(requests=2, input_tokens=200))
    assert (await agent.run("go")).output == "ok"
    with pytest.raises(AgentError.LimitExceeded, match="requests"):
        await agent.run("go", model=MockProvider(script), budget=Budget(requests=1))


async def test_all_turns_of_a_session_share_its_budget() -> None:
    for budget in (Budget(requests=3), BudgetConfig(requests=3)):
        provider = MockProvider(lambda _: "ok")
        config = AgentConfig(budget=budget)
        session = AgentSession(Agent("a"), "s1", bundle(provider, config=config))
        for _ in range(3):
            await session.submit_turn("go")
        with pytest.raises(AgentError.LimitExceeded, match="session"):
            await session.submit_turn("go")
        assert session.turn_index() == 3


async def test_summaries_are_paid_as_well() -> None:
    provider = MockProvider(lambda request: SUMMARY if is_summary(request) else "ok")
    cycle = LlmCycle(provider).with_compact_config(CompactConfig(max_tokens=2000))
    cycle.with_messages(
        message
        for _ in range(20)
        for message in (ChatMessage.user_text("w " * 400), ChatMessage.assistant_text("x"))
    )
    with pytest.raises(LlmError) as spent:
        await cycle.submit("go", budget=Budget(requests=1))
    assert spent.value.code == "budget_exceeded"
    assert [is_summary(request) for request in provider.requests] == [True]


async def test_a_stream_ends_with_the_error_and_the_session_goes_on() -> None:
    conversation = ConversationMemory(InMemoryStore(), "s1", ConversationMemoryConfig.full())
    agent = Agent("a", model=endless(), tools=[look])
    async with agent.session("s1", conversation=conversation) as session:
        turn = session.submit_turn_stream("go", budget=Budget(requests=2))
        last = [event async for event in turn][-1]
        assert isinstance(last, Error)
        assert last.error.code == "budget_exceeded"
    answered = [message for message in await conversation.get_history() if message.tool_calls]
    assert answered
    assert (await agent.run("?", conversation=conversation, model=MockProvider(["fine"]))).output


async def test_a_stream_that_is_left_is_settled_by_what_arrived() -> None:
    class Slow(MockProvider):
        async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk | ChatResponse]:
            self.requests.append(request)
            yield ChatChunk(text="x" * 400)
            await asyncio.Event().wait()

    config = AgentConfig(budget=Budget(output_tokens=10_000))
    session = AgentSession(Agent("a"), "s1", bundle(Slow(), config=config))
    stream = session.submit_turn_stream("go")
    async for _ in stream:
        break
    await stream.aclose()
    with pytest.raises(AgentError.LimitExceeded) as spent:
        await session.submit_turn("go", budget=Budget(requests=0))
    assert spent.value.details["limit"] == "requests"


async def test_a_reply_has_its_price_and_an_unknown_one_is_none() -> None:
    priced = ModelConfig(
        provider="custom", name="m", price=PriceConfig(input=1_000_000.0, output=2_000_000.0)
    )
    watches = Watches(HookEvent.POST_REQUEST, HookEvent.ON_TURN_END)
    provider = AdapterProvider(ScriptedProvider(["a b c"]), "m", config=priced)
    result = await Agent("a", model=provider, hooks=watches.executor).run("go")
    expected = result.usage.input_tokens + 2 * result.usage.output_tokens
    assert result.cost == pytest.approx(expected)
    assert [context.usage.cost for context in watches.seen if context.usage] == [result.cost] * 2
    assert (await Agent("a", model=MockProvider(["ok"])).run("go")).cost is None


async def test_dollars_are_a_limit_where_the_price_is_known() -> None:
    priced = ModelConfig(provider="custom", name="m", price=PriceConfig(input=1.0, output=1000.0))
    provider = AdapterProvider(ScriptedProvider(["a", "b"]), "m", config=priced)
    agent = Agent("a", model=provider, max_output_tokens=1000)
    with pytest.raises(AgentError.LimitExceeded, match="usd"):
        await agent.run("go", budget=Budget(usd=0.1))
    assert (await agent.run("go", budget=Budget(usd=10.0))).output == "a"


# --- guards ---------------------------------------------------------------------------------------


@on_message
async def no_names(text: str) -> str | None:
    return text.replace("Ada", "[name]") if "Ada" in text else None


@on_message(look_only=True)
async def polite(text: str) -> None:
    await asyncio.sleep(0)
    if "stupid" in text:
        raise GuardStop("be polite")


@on_tool_call
async def no_looking(call: ToolCall) -> str | None:
    return "you may not look" if call.name == "look" else None


@on_answer
async def short(answer: str) -> str | None:
    return answer[:5] if len(answer) > 5 else None


async def test_a_message_is_replaced_before_it_is_sent_or_stored() -> None:
    provider = MockProvider(["hello"])
    memory = ConversationMemory(InMemoryStore(), "s1")
    agent = Agent("a", model=provider, guards=[no_names, polite])
    await agent.run("I am Ada.", conversation=memory)
    assert provider.requests[0].messages[-1].text == "I am [name]."
    assert [message.text for message in await memory.get_history()] == ["I am [name].", "hello"]


async def test_a_guard_stops_a_run() -> None:
    agent = Agent("a", model=MockProvider(lambda _: "hello"), guards=[polite])
    with pytest.raises(AgentError.HookBlocked, match="be polite") as stopped:
        await agent.run("you stupid thing")
    assert stopped.value.code == "guard_stopped"
    assert (await agent.run("dear thing")).output == "hello"


async def test_a_tool_call_is_answered_by_a_guard() -> None:
    provider = MockProvider([tool_call_reply("look"), "I could not."])
    await Agent("a", model=provider, tools=[look], guards=[no_looking]).run("go")
    assert "you may not look" in str(provider.requests[1].messages[-1].content)


async def test_an_answer_is_replaced_before_it_is_shown_or_stored() -> None:
    memory = ConversationMemory(InMemoryStore(), "s1")
    agent = Agent("a", model=MockProvider(["a long answer", "a long answer"]), guards=[short])
    assert (await agent.run("go", conversation=memory)).output == "a lon"
    events = [event async for event in agent.stream("go", conversation=memory)]
    shown = "".join(event.text for event in events if isinstance(event, AssistantTextDelta))
    assert shown == "a lon"
    assert isinstance(events[-1], TurnComplete)
    assert events[-1].response.text == "a lon"
    told = [message.text for message in await memory.get_history()]
    assert told == ["go", "a lon", "go", "a lon"]


async def test_a_guard_that_breaks_stops_the_run() -> None:
    @on_answer
    async def broken(_: str) -> Any:
        raise RuntimeError("no")

    with pytest.raises(AgentError.HookBlocked, match="failed"):
        await Agent("a", model=MockProvider(["hello"]), guards=[broken]).run("go")


async def test_what_is_no_guard_is_refused() -> None:
    wrong: Any = [lambda text: text]  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(AgentError.Config, match="guards"):
        await Agent("a", model=MockProvider(["ok"]), guards=wrong).run("go")


async def test_a_budget_that_cannot_count_dollars_says_so(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("a", model=MockProvider(["a", "b"]))
    await agent.run("go", budget=Budget(requests=1))
    assert caplog.messages == []
    await agent.run("go", budget=Budget(usd=0.5))
    assert "is not known" in caplog.text
    assert "[model.price]" in caplog.text

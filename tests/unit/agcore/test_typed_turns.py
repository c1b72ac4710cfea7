"""Typed answers, dependencies and limits of single submissions."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from agcore.agent import Agent, AgentBuilder, AgentError, AgentSession
from agcore.llm import (
    AdapterProvider,
    ChatMessage,
    ChatResponse,
    ChatRole,
    CycleConfig,
    HookExecutor,
    LlmCycle,
    LlmError,
    MockProvider,
    ToolCall,
    TurnComplete,
    tool_call_reply,
)
from agcore.memory import ConversationMemory, ConversationMemoryConfig, InMemoryStore
from agcore.tools import ToolContext, ToolRegistry, tool
from agent_core.providers.scripted import ScriptedProvider
from agent_parts import bundle
from tables import together


class City(BaseModel):
    name: str
    people: int


@dataclass(frozen=True)
class Shop:
    stock: dict[str, int]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@tool(permission="readonly")
def stock(item: str, context: ToolContext[Shop]) -> int:
    """How many there are."""
    return context.deps.stock[item]


OSLO = {"name": "Oslo", "people": 700_000}
ANSWER = tool_call_reply("final_answer", **OSLO)
MISFIT = tool_call_reply("final_answer", name="Oslo", people="many")


@pytest.mark.parametrize("answer", [ANSWER, '{"name": "Oslo", "people": 700000}'])
async def test_a_reply_is_of_the_type_that_was_asked_for(answer: ChatResponse | str) -> None:
    provider = MockProvider([answer])
    cycle = LlmCycle(provider)
    reply = await cycle.submit("Where?", output_type=City)
    assert reply.output == City(name="Oslo", people=700_000)
    assert (reply.text, reply.tool_calls) == ('{"name": "Oslo", "people": 700000}', [])
    assert [each.name for each in provider.requests[0].tools] == ["final_answer"]
    assert [message.role.value for message in cycle.messages()] == ["user", "assistant"]


@together(
    ("output_type", "answer", "value"),
    [
        (Colour, '"red"', Colour.RED),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "7", 7),
        ({"type": "object", "required": ["a"]}, '{"a": 1}', {"a": 1}),
    ],
)
async def test_any_type_and_any_schema_may_be_asked_for(
    output_type: Any, answer: str, value: Any
) -> None:
    assert (
        await LlmCycle(MockProvider([answer])).submit("?", output_type=output_type)
    ).output == value


async def test_tools_and_a_typed_answer_work_together() -> None:
    provider = MockProvider([tool_call_reply("stock", item="lamp"), ANSWER])
    cycle = LlmCycle(provider, CycleConfig(max_tool_turns=1))
    reply = await cycle.submit_with_tools(
        "go", ToolRegistry([stock]), output_type=City, deps=Shop({"lamp": 12})
    )
    assert reply.output == City(name="Oslo", people=700_000)
    assert "12" in str(provider.requests[1].messages[-1].content)


async def test_an_answer_that_does_not_fit_goes_back_with_the_reason() -> None:
    provider = MockProvider([MISFIT, "no idea", ANSWER, "Yes."])
    cycle = LlmCycle(provider)
    reply = await cycle.submit("go", output_type=City)
    assert reply.output == City(name="Oslo", people=700_000)
    assert "$.people" in provider.requests[1].messages[-1].text
    await cycle.submit("Sure?")  # the history tells what happened
    roles = [m.role for m in provider.requests[3].messages if m.role is not ChatRole.SYSTEM]
    assert roles == [ChatRole.USER, ChatRole.ASSISTANT] * 3 + [ChatRole.USER]


async def test_after_the_retries_it_fails_and_the_conversation_goes_on() -> None:
    provider = MockProvider([MISFIT, "no", "fine"])
    cycle = LlmCycle(provider)
    with pytest.raises(LlmError) as failed:
        await cycle.submit("go", output_type=City, output_retries=1)
    assert failed.value.code == "output_invalid"
    assert failed.value.details["errors"]
    assert cycle.messages() == []
    assert (await cycle.submit("go on")).text == "fine"


async def test_a_stream_ends_with_the_typed_answer() -> None:
    events = [event async for event in LlmCycle(MockProvider([ANSWER])).submit_stream(
        "go", output_type=City
    )]  # fmt: skip
    last = events[-1]
    assert isinstance(last, TurnComplete)
    assert last.response.output == City(name="Oslo", people=700_000)


async def test_a_caller_may_run_the_tools_and_still_have_a_typed_answer() -> None:
    provider = MockProvider([tool_call_reply("stock", item="lamp"), ANSWER])
    cycle = LlmCycle(provider)
    first = await cycle.submit("go", [stock.definition], output_type=City)
    assert (first.output, [call.name for call in first.tool_calls]) == (None, ["stock"])
    cycle.extend_messages([ChatMessage.tool_text(first.tool_calls[0].tool_call_id, "12")])
    assert (await cycle.submit("And?", [stock.definition], output_type=City)).output is not None


async def test_native_mode_needs_an_adapter_that_has_one() -> None:
    adapter = AdapterProvider(ScriptedProvider(["{}"]), "m")
    for provider in (adapter, MockProvider(["{}"])):
        with pytest.raises(LlmError) as refused:
            await LlmCycle(provider).submit("go", output_type=City, output_mode="native")
        assert refused.value.code == "unsupported_capability"


async def test_a_scripted_adapter_answers_as_a_type() -> None:
    adapter = AdapterProvider(ScriptedProvider(['{"name": "Oslo", "people": 1}']), "m")
    reply = await LlmCycle(adapter).submit("go", output_type=City)
    assert reply.output == City(name="Oslo", people=1)


async def test_a_session_takes_them_with_a_turn() -> None:
    provider = MockProvider([tool_call_reply("stock", item="lamp"), MISFIT, ANSWER, "Bye."])
    parts = AgentBuilder().provider(provider).tool_registry(ToolRegistry([stock]))
    memory = ConversationMemory(InMemoryStore(), "s1", ConversationMemoryConfig.full())
    session = AgentSession(
        Agent("shop"), "s1", parts.hook_executor(HookExecutor()).build(), conversation=memory
    )
    reply = await session.submit_turn("go", output_type=City, deps=Shop({"lamp": 12}))
    assert reply.output == City(name="Oslo", people=700_000)
    window = ConversationMemory(InMemoryStore(), "s2", ConversationMemoryConfig.sliding_window(1))
    await window.add_messages(await memory.get_history())
    assert len(await window.get_history()) == len(await memory.get_history())  # it is one turn
    assert (await session.submit_turn("bye", deps=Shop({}))).text == "Bye."


async def test_dependencies_of_another_type_are_refused_before_anything_is_sent() -> None:
    provider = MockProvider(lambda _: "ok")
    parts = AgentBuilder().provider(provider).tool_registry(ToolRegistry([stock]))
    session = AgentSession(Agent("shop"), "s1", parts.hook_executor(HookExecutor()).build())
    for deps in (None, {"lamp": 12}):
        with pytest.raises(AgentError.Config, match=r"ToolContext\[Shop\]"):
            await session.submit_turn("go", deps=deps)
    assert provider.requests == []


async def test_max_turns_bounds_the_calls_of_one_turn_and_widens_nothing() -> None:
    calls = [tool_call_reply("echo", text="x")] * 20
    session = AgentSession(Agent("a"), "s1", bundle(MockProvider(calls)))
    with pytest.raises(AgentError.LimitExceeded, match="2 turns"):
        await session.submit_turn("go", max_turns=2)
    with pytest.raises(AgentError.LimitExceeded, match="10 rounds"):
        await session.submit_turn("go", max_turns=100)


@together(("name", "value"), [("output_retries", -1), ("max_turns", 0), ("output_mode", "odd")])
async def test_an_option_that_cannot_be_is_refused_by_its_name(name: str, value: Any) -> None:
    provider = MockProvider(["ok"])
    given: Any = {name: value}
    with pytest.raises(AgentError.Config, match=name):
        await AgentSession(Agent("a"), "s1", bundle(provider)).submit_turn("go", **given)
    assert provider.requests == []


async def test_a_tool_of_the_name_of_the_answer_is_refused() -> None:
    @tool
    def final_answer() -> str:
        """Mine."""
        return ""

    with pytest.raises(Exception, match="final_answer"):
        await LlmCycle(MockProvider(["ok"])).submit_with_tools(
            "go", ToolRegistry([final_answer]), output_type=City
        )


async def test_an_answer_beside_other_calls_counts_after_them() -> None:
    calls = [
        ToolCall(tool_call_id="a", name="stock", arguments={"item": "lamp"}),
        ToolCall(tool_call_id="b", name="final_answer", arguments=OSLO),
    ]
    provider = MockProvider([ChatResponse(ChatMessage.assistant_text("", calls))])
    reply = await LlmCycle(provider).submit_with_tools(
        "go", ToolRegistry([stock]), output_type=City, deps=Shop({"lamp": 1})
    )
    assert reply.output == City(name="Oslo", people=700_000)

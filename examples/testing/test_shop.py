"""Tests of a small agent: its tool alone, and the agent by script, by function and by recording.

pytest examples/testing
"""

import unittest
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentRuntime,
    Budget,
    EventType,
    ModelRequest,
    PermissionDecision,
    PermissionRequest,
    RunError,
    TextBlock,
    ToolContext,
    ToolRetry,
    tool,
)
from agent_core.testing import (
    Fails,
    FakeToolContext,
    Piece,
    Says,
    ScriptedProvider,
    ScriptedRuntime,
    allow_real_models,
    calls,
    function_model,
    record,
    replay,
)

allow_real_models(False)


@dataclass
class Shop:
    lamps: int


@tool(permission="readonly")
def stock(item: str, context: ToolContext[Shop]) -> int:
    """How many of an item are left."""
    context.progress(f"counting {item}s")
    if item != "lamp":
        raise ToolRetry("only lamps are sold here; ask for item lamp")
    return context.deps.lamps


@tool
def order(item: str, amount: int) -> str:
    """Order more of an item."""
    return f"{amount} of {item} are on their way"


@dataclass
class Answer:
    item: str
    left: int


# --- a tool alone


def test_the_tool_counts_lamps() -> None:
    context = FakeToolContext(Shop(lamps=12))
    assert stock("lamp", context) == 12
    assert context.lines == ["counting lamps"]


def test_the_tool_asks_for_another_call() -> None:
    with pytest.raises(ToolRetry, match="only lamps"):
        stock("chair", FakeToolContext(Shop(lamps=12)))


# --- an agent by script


async def test_the_agent_looks_before_it_answers(agent_runtime: ScriptedRuntime) -> None:
    model = agent_runtime.script
    model.add(calls("stock", item="lamp"), "There are twelve lamps.")

    result = await agent_runtime.run("How many lamps?", tools=[stock], deps=Shop(lamps=12))

    assert result.text == "There are twelve lamps."
    model.assert_complete()
    first, second = model.requests
    assert [each.name for each in first.tools] == ["stock"]
    assert first.messages[-1].content == [TextBlock(text="How many lamps?")]
    assert "12" in str(second.messages[-1].content)


def test_the_same_without_an_event_loop(agent_runtime: ScriptedRuntime) -> None:
    agent_runtime.script.add("Hello.")
    assert agent_runtime.run_sync("Hi").text == "Hello."


async def test_a_model_that_is_busy_is_asked_again(agent_runtime: ScriptedRuntime) -> None:
    busy = Fails(code="provider_rate_limited", message="slow down", retryable=True)
    agent_runtime.script.add(busy, "Hello.")
    result = await agent_runtime.run("Hi", events=True)
    assert result.text == "Hello."
    retries = [e for e in result.events or [] if e.event_type is EventType.MODEL_RETRY]
    assert [retry.payload["attempt"] for retry in retries] == [1]


async def test_a_call_that_was_wrong_is_made_again(agent_runtime: ScriptedRuntime) -> None:
    model = agent_runtime.script
    model.add(calls("stock", item="chair"), calls("stock", item="lamp"), "Twelve.")
    await agent_runtime.run("How many lamps?", tools=[stock], deps=Shop(lamps=12))
    model.assert_complete()
    assert "only lamps are sold here" in str(model.requests[1].messages[-1].content)


async def test_a_typed_answer(agent_runtime: ScriptedRuntime) -> None:
    agent_runtime.script.add('{"item": "lamp", "left": 12}')
    result = await agent_runtime.run("How many lamps?", output_type=Answer)
    assert result.output == Answer(item="lamp", left=12)


# --- approvals


async def test_an_order_is_made_once_it_is_allowed() -> None:
    asked: list[PermissionRequest] = []

    async def allow(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(decision="allow_once")

    model = ScriptedProvider([calls("order", item="lamp", amount=3), "Ordered."])
    async with AgentRuntime(model=model, persist=False, permission_callback=allow) as runtime:
        await runtime.run("Order three lamps.", tools=[order])
    assert [request.tool_name for request in asked] == ["order"]
    assert "3 of lamp are on their way" in str(model.requests[1].messages[-1].content)


async def test_an_order_is_refused_where_nobody_can_be_asked(
    agent_runtime: ScriptedRuntime,
) -> None:
    agent_runtime.script.add(calls("order", item="lamp", amount=3), "I may not.")
    result = await agent_runtime.run("Order three lamps.", tools=[order], events=True)
    assert EventType.TOOL_DENIED in [event.event_type for event in result.events or []]


# --- streams, failures, budgets


async def test_text_arrives_in_pieces(agent_runtime: ScriptedRuntime) -> None:
    agent_runtime.script.add(Says(text="one two three", chunks=3))
    handle = await agent_runtime.start("Count.")
    pieces = [
        event.payload["text"]
        async for event in handle.events()
        if event.event_type is EventType.MODEL_TEXT_DELTA
    ]
    assert "".join(pieces) == "one two three"


async def test_a_budget_ends_the_run(agent_runtime: ScriptedRuntime) -> None:
    agent_runtime.script.add(*[calls("stock", item="lamp")] * 5)
    with pytest.raises(RunError) as caught:
        await agent_runtime.run(
            "Go on counting.", tools=[stock], deps=Shop(lamps=12), budget=Budget(requests=2)
        )
    assert caught.value.code == "budget_exceeded"
    assert len(agent_runtime.script.requests) == 2


# --- an agent by function


async def test_a_function_answers_what_it_is_asked() -> None:
    async def answer(request: ModelRequest) -> AsyncIterator[Piece]:
        if len(request.messages) == 1:
            yield "Let me look."
            yield calls("stock", item="lamp")
        else:
            yield f"I have read {len(request.messages)} messages."

    runtime = AgentRuntime(model=function_model(answer), persist=False)
    async with runtime:
        result = await runtime.run("How many lamps?", tools=[stock], deps=Shop(lamps=12))
    assert result.text == "I have read 3 messages."


# --- an agent by recording


async def test_a_session_is_recorded_and_replayed(tmp_path: Path) -> None:
    fixture = tmp_path / "lamps.yaml"
    options: dict[str, Any] = {"tools": [stock], "deps": Shop(lamps=12)}

    live = ScriptedProvider([calls("stock", item="lamp"), "Twelve."])  # a real model, once
    async with AgentRuntime(model=live, persist=False) as runtime:
        session = runtime.session("lamps")
        await session.run("How many lamps?", **options)
        await record(session, fixture)

    model = replay(fixture)
    async with AgentRuntime(model=model, persist=False) as runtime:
        assert (await runtime.run("How many lamps?", **options)).text == "Twelve."
        model.assert_complete()
        with pytest.raises(RunError):
            await runtime.run("How many chairs?", **options)


# --- without pytest


class TestShop(unittest.IsolatedAsyncioTestCase):
    async def test_the_agent_answers(self) -> None:
        model = ScriptedProvider(["Hello."])
        async with AgentRuntime(model=model, persist=False) as runtime:
            assert (await runtime.run("Hi")).text == "Hello."

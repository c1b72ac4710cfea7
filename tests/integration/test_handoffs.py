"""Handoffs: the conversation continues under another agent, in the same run and session."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agent_core import (
    Agent,
    AgentRuntime,
    EventType,
    ModelRequest,
    RunError,
    tool,
)
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.types.event_details import AgentChanged
from isolation import Home
from runtimes import CONFIG, Asked, runtime


class Refund(BaseModel):
    """A refund."""

    cents: int


@tool(readonly=True)
def search(query: str) -> str:
    """Search."""
    return f"found {query}"


@tool
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def names_of(request: ModelRequest) -> set[str]:
    return {each.name for each in request.tools}


def system_of(request: ModelRequest) -> str:
    return "\n".join(block.content for block in request.system)


async def test_the_other_agent_has_the_whole_conversation_and_answers(tmp_path: Path) -> None:
    theirs = ScriptedProvider(['{"cents": 5}'])
    refunds = Agent(
        "refunds", "You refund.", description="Refunds.", model=theirs, output_type=Refund
    )
    triage = Agent("triage", "You sort.", tools=[search], handoffs=[refunds])
    ours = ScriptedProvider([calls("search", query="order"), calls("handoff_to_refunds")])
    async with AgentRuntime(tmp_path, model=ours, persist=False) as made:
        result = await made.run("Give me my money.", "s", agent=triage, events=True)
        nodes = (await made.replay_session("s")).nodes
        (run,) = (await made.replay_run(result.run_id)).runs
    (offered,) = [each for each in ours.requests[0].tools if each.name.startswith("handoff_to_")]
    assert offered.name == "handoff_to_refunds"
    assert offered.description.endswith("refunds: Refunds.")
    (request,) = theirs.requests
    assert "You refund." in system_of(request)
    assert "You sort." not in system_of(request)
    assert "Give me my money." in str(request.messages)
    assert "found order" in str(request.messages)
    assert result.output == Refund(cents=5)
    changed = [e for e in result.events or () if e.event_type is EventType.AGENT_CHANGED]
    assert [event.payload for event in changed] == [{"from": "triage", "to": "refunds"}]
    details = changed[0].details
    assert isinstance(details, AgentChanged)
    assert (details.from_agent, details.to) == ("triage", "refunds")
    assert run.turn_count == 3
    assert {node.run_id for node in nodes} == {result.run_id}


async def test_a_session_goes_on_under_the_agent_that_has_it(tmp_path: Path) -> None:
    refunds = Agent("refunds", "You refund.", tools=[pay])
    provider = ScriptedProvider([calls("handoff_to_refunds"), "one", "two", "three", "four"])
    async with AgentRuntime(tmp_path, model=provider, persist=False, handoffs=[refunds]) as made:
        assert (await made.run("first", "s")).text == "one"
        second = await made.run("second", "s", events=True)
        await made.run("third", "s", agent=Agent("other", "You are other.", tools=()))
        await made.run("elsewhere", "t")
    first, after, second_, third, elsewhere = map(system_of, provider.requests)
    assert "You refund." not in first
    assert "You refund." in after
    assert "You refund." in second_
    assert "You are other." in third
    assert "You refund." not in third
    assert "You refund." not in elsewhere
    assert "handoff_to_refunds" not in names_of(provider.requests[2])
    kinds = [event.event_type for event in second.events or ()]
    assert EventType.AGENT_CHANGED not in kinds


async def test_agents_hand_over_to_one_another(tmp_path: Path) -> None:
    writer = Agent("writer", "You write.", tools=())
    critic = Agent("critic", "You judge.", tools=(), handoffs=[writer], max_turns=9)
    script = [calls("handoff_to_critic"), calls("handoff_to_writer"), "a text"]
    provider = ScriptedProvider(script)
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", handoffs=[critic], tools=(), events=True)
    assert result.text == "a text"
    changes = [
        (event.payload["from"], event.payload["to"])
        for event in result.events or ()
        if event.event_type is EventType.AGENT_CHANGED
    ]
    assert changes == [("main", "critic"), ("critic", "writer")]
    assert "handoff_to_critic" in names_of(provider.requests[0])
    assert "handoff_to_writer" in names_of(provider.requests[1])


async def test_only_the_first_handoff_of_a_reply_counts(tmp_path: Path) -> None:
    one, two = Agent("one", "You are one.", tools=()), Agent("two", "You are two.", tools=())
    both = Calls(calls=[ScriptedCall(name="handoff_to_one"), ScriptedCall(name="handoff_to_two")])
    provider = ScriptedProvider([both, "done"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", handoffs=[one, two])
        nodes = (await made.replay_run(result.run_id)).nodes
    results = [each for node in nodes for each in node.results]
    assert [each.is_error for each in results] == [False, True]
    assert "You are one." in system_of(provider.requests[1])


async def test_a_handoff_asks_nobody_and_its_agent_asks_as_ever(home: Home, project: Path) -> None:
    asked = Asked("deny")
    refunds = Agent("refunds", "You refund.", tools=[pay])
    provider = ScriptedProvider([calls("handoff_to_refunds"), calls("pay", cents=5), "denied"])
    config = CONFIG + '[permissions]\nreadonly_default = "ask"\n'
    async with runtime(home, project, provider, config=config, permission_callback=asked) as made:
        await made.run("go", handoffs=[refunds])
    assert [each.tool_name for each in asked.requests] == ["pay"]


async def test_a_run_that_waits_continues_under_the_agent_that_asked(
    home: Home, project: Path
) -> None:
    refunds = Agent("refunds", "You refund.", tools=[pay])
    provider = ScriptedProvider([calls("handoff_to_refunds"), calls("pay", cents=5), "paid"])
    config = CONFIG + '[permissions]\nunattended = "park"\n'
    async with runtime(home, project, provider, config=config) as made:
        result = await made.run("go", "s", handoffs=[refunds])
        (request_id,) = result.pending_requests
    async with runtime(home, project, provider, config=config) as made:
        handle = await made.answer(request_id, "allow_once", handoffs=[refunds])
        assert (await handle.result()).text == "paid"
        events = (await made.replay_run(handle.run_id)).events
    assert "You refund." in system_of(provider.requests[2])
    assert "paid 5" in str(provider.requests[2].messages)
    assert [e.event_type for e in events].count(EventType.AGENT_CHANGED) == 1


async def test_a_tool_of_the_new_agent_that_does_not_exist_fails_the_run(tmp_path: Path) -> None:
    broken = Agent("broken", "You break.", tools=["no.such_tool"])
    provider = ScriptedProvider([calls("handoff_to_broken")])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        with pytest.raises(RunError, match=r"no\.such_tool"):
            await made.run("go", handoffs=[broken])


async def test_a_handoff_to_nobody_changes_nothing(tmp_path: Path) -> None:
    refunds = Agent("refunds", "You refund.", tools=())
    provider = ScriptedProvider([calls("handoff_to_nobody"), "still here"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", handoffs=[refunds])
    assert result.text == "still here"
    assert "You refund." not in system_of(provider.requests[1])


async def test_the_new_agent_keeps_its_own_settings_and_the_caller_its_type(tmp_path: Path) -> None:
    theirs = ScriptedProvider(['{"cents": 5}'])
    refunds = Agent("refunds", model=theirs, tools=[search], stop=["END"], output_type=list[str])
    ours = ScriptedProvider([calls("handoff_to_refunds")])
    async with AgentRuntime(tmp_path, model=ScriptedProvider([]), persist=False) as made:
        result = await made.run(
            "go", model=ours, tools=(), seed=7, stop=["X"], output_type=Refund, handoffs=[refunds]
        )
    (request,) = theirs.requests
    assert result.output == Refund(cents=5)
    assert names_of(request) == {"search", "final_answer"}
    assert (request.stop, request.seed) == (["END"], 7)
    assert (ours.requests[0].stop, names_of(ours.requests[0]) & {"search"}) == (["X"], set())


@pytest.mark.parametrize("is_typed", [True, False])
async def test_the_answer_is_of_the_type_of_the_agent_that_gives_it(
    home: Home, project: Path, is_typed: bool
) -> None:
    typed: Agent[Any] = Agent("typed", "You refund.", tools=(), output_type=Refund)
    plain: Agent[Any] = Agent("plain", "You write.", tools=())
    first, second = (plain, typed) if is_typed else (typed, plain)
    first = replace(first, handoffs=[second])
    script = [calls(f"handoff_to_{second.name}"), '{"cents": 5}' if is_typed else "In words."]
    output: Any = Refund(cents=5) if is_typed else "In words."
    provider = ScriptedProvider(script)
    async with runtime(home, project, provider) as made:
        handle = await made.start("go", "s1", agent=first)
        seen = [each async for each in handle.partial_output()]
        assert (await handle.result()).output == output
    assert seen[-1] == output
    assert [each.output is None for each in provider.requests] == [is_typed, not is_typed]
    async with runtime(home, project) as made:
        stored = await (await made.attach(handle.run_id)).result()
    assert stored.output == ({"cents": 5} if is_typed else "In words.")

"""Settings of calls: a cycle's, a session's, and those of one submission."""

from typing import Any

import pytest

from agcore.agent import Agent, AgentConfig, AgentSession
from agcore.llm import (
    ChatMessage,
    ChatRequest,
    CompactConfig,
    CycleConfig,
    LlmCycle,
    MockProvider,
    tool_call_reply,
)
from agcore.tools import ToolRegistry
from agent_core import ExtensionContext
from agent_parts import SUMMARY, Echo, bundle, is_summary

OPTIONS: dict[str, Any] = {"openai": {"seed": 7}}
CONFIG = CycleConfig(tool_choice="echo", stop=["END"], provider_options=OPTIONS)


def facts(request: ChatRequest) -> tuple[str | None, list[str], dict[str, Any]]:
    return request.tool_choice, list(request.stop), request.provider_options


async def test_a_cycle_sends_its_settings_and_forces_a_tool_once() -> None:
    provider = MockProvider([tool_call_reply("echo", text="a"), "done", "again"])
    cycle = LlmCycle(provider, CONFIG)
    await cycle.submit_with_tools("go", ToolRegistry([Echo()]))
    await cycle.submit("and")
    assert [facts(request) for request in provider.requests] == [
        ("echo", ["END"], OPTIONS),
        (None, ["END"], OPTIONS),
        ("echo", ["END"], OPTIONS),
    ]


async def test_a_disabled_tool_is_not_offered_whoever_would_run_it() -> None:
    provider = MockProvider(lambda _: "ok")
    cycle, registry = LlmCycle(provider), ToolRegistry([Echo()])
    await cycle.submit("go", registry.definitions(), disabled_tools=["echo"])
    await cycle.submit_with_tools("go", registry, disabled_tools=["echo"])
    assert [list(request.tools) for request in provider.requests] == [[], []]


async def test_what_only_a_cycle_has_is_no_setting_of_a_submission() -> None:
    cycle = LlmCycle(MockProvider())
    wrong: dict[str, Any] = {"max_tool_turns": 1}
    with pytest.raises(TypeError, match="max_tool_turns"):
        await cycle.submit("go", **wrong)


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_what_forces_nothing_holds_for_every_request(choice: str) -> None:
    provider = MockProvider([tool_call_reply("echo", text="a"), "done"])
    cycle = LlmCycle(provider, CycleConfig(tool_choice=choice))
    await cycle.submit_with_tools("go", ToolRegistry([Echo()]))
    assert [request.tool_choice for request in provider.requests] == [choice, choice]


async def test_one_submission_has_settings_of_its_own() -> None:
    provider = MockProvider(lambda _: "ok")
    cycle = LlmCycle(provider, CONFIG)
    await cycle.submit("1", tool_choice="none", stop=[], model="other", temperature=0.5)
    await cycle.submit_messages([ChatMessage.user_text("2")], max_output_tokens=9)
    async for _ in cycle.submit_stream("3", provider_options={}):
        pass
    await cycle.submit("4")
    first, second, third, fourth = provider.requests
    assert (*facts(first), first.model, first.temperature) == ("none", [], OPTIONS, "other", 0.5)
    assert (*facts(second), second.max_output_tokens) == ("echo", ["END"], OPTIONS, 9)
    assert facts(third) == ("echo", ["END"], {})
    assert facts(fourth) == ("echo", ["END"], OPTIONS)


async def test_a_session_takes_them_from_its_bundle_and_with_a_turn() -> None:
    provider = MockProvider(lambda _: "ok")
    session = AgentSession(Agent("a"), "s1", bundle(provider, config=AgentConfig(cycle=CONFIG)))
    await session.submit_turn("1")
    await session.submit_turn("2", tool_choice="required", stop=["X"])
    async for _ in session.submit_turn_stream("3", provider_options={"ollama": {}}):
        pass
    assert [facts(request) for request in provider.requests] == [
        ("echo", ["END"], OPTIONS),
        ("required", ["X"], OPTIONS),
        ("echo", ["END"], {"ollama": {}}),
    ]


async def test_a_summary_is_neither_stopped_nor_made_to_call_a_tool() -> None:
    provider = MockProvider(lambda request: SUMMARY if is_summary(request) else "ok")
    cycle = LlmCycle(provider, CONFIG).with_compact_config(CompactConfig(max_tokens=2000))
    cycle.with_messages(
        message
        for _ in range(20)
        for message in (ChatMessage.user_text("w " * 400), ChatMessage.assistant_text("x"))
    )
    await cycle.submit("go")
    summaries = [request for request in provider.requests if is_summary(request)]
    assert summaries
    assert {facts(request)[0] for request in summaries} == {None}
    assert all(not request.stop for request in summaries)
    assert cycle.turn_usage() == cycle.usage().total()


async def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="top_k"):
        await LlmCycle(MockProvider(["ok"])).submit("go", top_k=1)  # pyright: ignore[reportCallIssue]


async def test_seed_and_reasoning_reach_the_provider() -> None:
    provider = MockProvider(lambda _: "ok")
    cycle = LlmCycle(provider, CycleConfig(seed=1, reasoning="low"))
    await cycle.submit("1")
    await cycle.submit("2", seed=2, reasoning=None)
    agent = Agent("a", model=provider, seed=3)
    await agent.run("3", reasoning="high")
    facts = [(each.seed, each.reasoning) for each in provider.requests]
    assert facts == [(1, "low"), (2, None), (3, "high")]


async def test_instructions_of_a_run_may_be_a_function_of_its_deps() -> None:
    provider = MockProvider(lambda _: "ok")

    async def write(context: ExtensionContext) -> str:
        return f"You serve {context.deps}."

    agent = Agent("a", "Be brief.", deps_type=str, model=provider)
    await agent.run("1", instructions=write, deps="Ada")
    (request,) = provider.requests
    assert "You serve Ada." in "".join(message.text for message in request.messages)


async def test_instructions_of_an_agent_may_be_a_function_called_for_every_turn() -> None:
    provider = MockProvider(lambda _: "ok")

    def write(context: ExtensionContext) -> str:
        return f"You serve {context.deps}."

    agent = Agent("a", write, deps_type=str, model=provider)
    await agent.run("1", deps="Ada")
    await agent.run("2", deps="Bob", instructions="Be brief.")
    first, second = ["".join(m.text for m in each.messages) for each in provider.requests]
    assert "You serve Ada." in first
    assert "You serve Bob.\n\nBe brief." in second

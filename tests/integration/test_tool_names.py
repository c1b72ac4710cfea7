"""No tool of a program takes the name of another, or of one that the engine makes for a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agcore.agent import Agent as ToolkitAgent, AgentError
from agcore.llm import MockProvider
from agent_core import Agent, AgentCoreError, AgentRuntime, ErrorCode, tool
from agent_core.providers.scripted import ScriptedProvider
from agent_core.tools.base import Tool
from agent_core.tools.toolsets import Toolset
from tables import together

BILLING = Agent("billing", "You bill.")
LOUD = Agent("BILLING", "You bill loudly.")


def named(name: str) -> Tool:
    @tool(name=name, readonly=True)
    def work() -> str:
        """Work."""
        return "done"

    return work


class Kit(Toolset):
    async def open(self) -> Sequence[Tool]:
        return [named("handoff_to_billing")]


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "handoff": (
        {"tools": [named("handoff_to_billing")], "handoffs": [BILLING]},
        "handoff_to_billing",
        "the handoff to the agent billing",
    ),
    "another case": (
        {"tools": [named("Handoff_To_Billing")], "handoffs": [BILLING]},
        "Handoff_To_Billing",
        "the handoff to the agent billing",
    ),
    "of an agent": (
        {"agent": Agent("a", tools=[named("handoff_to_billing")], handoffs=[BILLING])},
        "handoff_to_billing",
        "the handoff to the agent billing",
    ),
    "of an agent further on": (
        {"handoffs": [Agent("a", tools=[named("handoff_to_billing")], handoffs=[BILLING])]},
        "the agent a include handoff_to_billing",
        "the handoff to the agent billing",
    ),
    "inherited by an agent further on": (
        {"handoffs": [Agent("a", handoffs=[BILLING])], "tools": [named("handoff_to_billing")]},
        "the agent a include handoff_to_billing",
        "the handoff to the agent billing",
    ),
    "an agent as a tool": (
        {"tools": [BILLING.as_tool(name="handoff_to_billing")], "handoffs": [BILLING]},
        "handoff_to_billing",
        "the handoff to the agent billing",
    ),
    "two agents": ({"handoffs": [BILLING, LOUD]}, "BILLING", "the handoff to the agent billing"),
    "two agents as tools": (
        {"tools": [BILLING.as_tool(), LOUD.as_tool()]},
        "the tool BILLING",
        "the tool billing",
    ),
    "final_answer": (
        {"tools": [named("final_answer")], "output_type": int},
        "final_answer",
        "the tool that gives a typed answer",
    ),
    "final_answer of a child": (
        {"agents": [Agent("a", tools=[named("final_answer")], output_type=int)]},
        "final_answer",
        "the tool that gives a typed answer",
    ),
    "final_answer after a handoff": (
        {"handoffs": [Agent("a", output_type=int)], "tools": [named("final_answer")]},
        "final_answer",
        "the tool that gives a typed answer",
    ),
    "another case of a built-in tool": (
        {"tools": [named("a"), named("A")]},
        "the tool A",
        "the tool a",
    ),
}


@together(("options", "mine", "other"), CASES.values(), ids=CASES)
async def test_a_name_that_is_taken_is_refused_at_start(
    tmp_path: Path, options: dict[str, Any], mine: str, other: str
) -> None:
    async with AgentRuntime(tmp_path, model=ScriptedProvider([]), persist=False) as made:
        with pytest.raises(AgentCoreError) as caught:
            await made.start("go", **options)
        assert (await made.list_sessions()) == []
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert mine in caught.value.message
    assert other in caught.value.message


async def test_a_runtime_is_refused_too(tmp_path: Path) -> None:
    given: dict[str, Any] = {"tools": [named("handoff_to_billing")], "handoffs": [BILLING]}
    with pytest.raises(AgentCoreError, match="the handoff to the agent billing"):
        async with AgentRuntime(tmp_path, model=ScriptedProvider([]), persist=False, **given):
            pass
    async with AgentRuntime(
        tmp_path, model=ScriptedProvider([]), persist=False, handoffs=[BILLING]
    ) as made:
        with pytest.raises(AgentCoreError, match="the handoff to the agent billing"):
            made.register_tool(named("handoff_to_billing"))
    kit = Kit("kit")
    async with AgentRuntime(
        tmp_path, model=ScriptedProvider([]), persist=False, handoffs=[BILLING], toolsets=[kit]
    ) as made:
        with pytest.raises(AgentCoreError, match="the handoff to the agent billing"):
            await made.run("go")


async def test_a_name_is_free_where_nothing_has_it(tmp_path: Path) -> None:
    agent = Agent("typed", tools=(), output_type=int)
    provider = ScriptedProvider(["1", "ok", "ok"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        assert (await made.run("go", agent=agent)).output == 1
        given = [named("final_answer"), named("handoff_to_billing")]
        assert (await made.run("go", tools=given)).output == "ok"
        assert (await made.run("go", tools=given, agents=[agent])).output == "ok"


async def test_the_toolkit_refuses_another_case() -> None:
    agent = ToolkitAgent("a", model=MockProvider(["ok"]), tools=[named("work"), named("Work")])
    with pytest.raises(AgentError.Config, match="the tool Work has the name of the tool work"):
        await agent.run("go")

"""Answers in another process: what an agent brings along need not be given beside it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agent_core import (
    Agent,
    AgentCoreError,
    AgentRuntime,
    Extension,
    ExtensionContext,
    RunHandle,
)
from agent_core.extensions import RunTool
from agent_core.loop.guards import on_tool_call
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.types import RunStatus, ToolCall
from isolation import Home
from sweeps import kept


class Version(BaseModel):
    number: int


class Watch(Extension):
    """Notes the tool calls of a run."""

    def __init__(self, shop: "Shop") -> None:
        self._shop = shop

    async def wrap_tool_call(
        self,
        context: ExtensionContext,
        call: ToolCall,
        proceed: RunTool,
    ) -> Any:
        self._shop.watched.append(call.name)
        return await proceed()


class Shop:
    """A program: its functions, as each of its processes has them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.checked: list[str] = []
        self.watched: list[str] = []
        shop = self

        async def deploy(version: str) -> str:
            """Deploy a version."""
            shop.done.append(version)
            return "deployed"

        async def release(number: int) -> Version:
            """Release a version."""
            return Version(number=number)

        async def later(version: Version) -> Version:
            return Version(number=version.number + 1)

        @on_tool_call
        async def check(call: ToolCall) -> None:
            shop.checked.append(call.name)

        @on_tool_call
        async def own(call: ToolCall) -> None:
            shop.checked.append(f"own {call.name}")

        self.own = own
        self.agent = Agent(
            "releaser",
            "You release.",
            tools=[deploy],
            guards=[check],
            extensions=[Watch(shop)],
            output_type=release,
            output_validators=[later],
        )


def deploy(version: str, call_id: str) -> ScriptedCall:
    return ScriptedCall(name="deploy", arguments={"version": version}, tool_call_id=call_id)


async def park(made: AgentRuntime, **options: Any) -> RunHandle[Any]:
    handle = await made.start("go", "s1", **options)
    assert await handle.wait() is RunStatus.WAITING, handle.error
    return handle


def opened(home: Home, project: Path, *script: Any, agents: Sequence[Agent[Any]] = ()) -> Any:
    return AgentRuntime(
        project,
        home_dir=home.path,
        config={"permissions": {"unattended": "park"}},
        model=ScriptedProvider(script),
        agents=agents,
    )


FIRST = Calls(calls=[deploy("1", "call_1")])


@pytest.mark.parametrize("decision", ["allow_once", "deny"])
@pytest.mark.parametrize("by", kept(["value", "name", "runtime"], "name"))
async def test_the_agent_brings_all_that_it_has(
    home: Home, project: Path, by: str, decision: str
) -> None:
    shop, other = Shop(), Shop()
    given: dict[str, Any] = {"agent": shop.agent if by == "value" else "releaser"}
    if by == "name":
        given["agents"] = [shop.agent]
    is_runtimes = by == "runtime"
    async with opened(home, project, FIRST, agents=[shop.agent] if is_runtimes else ()) as made:
        handle = await park(made, **given)
    (request_id,) = handle.pending_requests
    own = [other.agent] if is_runtimes else ()
    async with opened(home, project, '{"number": 2}', agents=own) as made:
        if not is_runtimes:
            with pytest.raises(AgentCoreError, match="nothing was answered"):
                await made.answer(request_id, decision)
        again = await made.answer(request_id, decision, agents=() if own else [other.agent])
        assert (await again.result()).output == Version(number=3)
    assert shop.done == []
    made_calls = ["deploy"] if decision == "allow_once" else []
    assert (len(other.done), other.checked, other.watched) == (
        len(made_calls),
        made_calls,
        made_calls,
    )


async def test_what_the_run_has_itself_is_still_asked_for(home: Home, project: Path) -> None:
    shop, other = Shop(), Shop()
    async with opened(home, project, FIRST) as made:
        handle = await park(made, agent=shop.agent, guards=[shop.own], output_type=Version)
    (request_id,) = handle.pending_requests
    async with opened(home, project, '{"number": 2}') as made:
        with pytest.raises(AgentCoreError, match="nothing was answered") as refused:
            await made.answer(request_id, "allow_once", agents=[other.agent])
        assert refused.value.details["options"] == ["guards"]
        again = await made.answer(
            request_id,
            "allow_once",
            agents=[other.agent],
            guards=[other.own],
            output_type=Version,
        )
        assert (await again.result()).output == Version(number=3)
    assert other.checked == ["own deploy", "deploy"]


async def test_arguments_may_be_changed_with_the_tool_of_an_agent(
    home: Home, project: Path
) -> None:
    shop, other = Shop(), Shop()
    async with opened(home, project, FIRST) as made:
        handle = await park(made, agent=shop.agent)
    (request_id,) = handle.pending_requests
    async with opened(home, project, '{"number": 2}') as made:
        again = await made.answer(
            request_id, "allow_once", arguments={"version": "7"}, agents=[other.agent]
        )
        await again.result()
    assert other.done == ["7"]


@pytest.mark.sweep
async def test_a_child_that_asked_is_one_of_the_agents(home: Home, project: Path) -> None:
    shop, other = Shop(), Shop()
    start = calls("agent.create_sub_agent", agent_definition_id="releaser", task="go")
    async with opened(home, project, start, FIRST) as made:
        handle = await park(made, agents=[shop.agent])
    (request_id,) = handle.pending_requests
    async with opened(home, project, '{"number": 2}', "done") as made:
        with pytest.raises(AgentCoreError, match="nothing was answered"):
            await made.answer(request_id, "allow_once")
        again = await made.answer(request_id, "allow_once", agents=[other.agent])
        assert (await again.result()).text == "done"
    assert other.done == ["1"]


@pytest.mark.parametrize("is_nested", kept([False, True], True))
@pytest.mark.parametrize("is_here", kept([True, False], False))
async def test_an_agent_that_is_a_tool_continues_after_the_answer(
    home: Home, project: Path, is_here: bool, is_nested: bool
) -> None:
    def asking(shop: Shop) -> list[Any]:
        tool = replace(shop.agent, output_type=None, output_validators=()).as_tool()
        return [Agent("lead", "You lead.", tools=[tool]).as_tool()] if is_nested else [tool]

    shop, other = Shop(), Shop()
    asks = [calls("releaser", message="go")]
    asks = [calls("lead", message="go"), *asks] if is_nested else asks
    rest = ["released", "led", "done"] if is_nested else ["released", "done"]
    script = [*asks, FIRST, *(rest if is_here else ())]
    async with opened(home, project, *script) as made:
        (request_id,) = (await park(made, tools=asking(shop))).pending_requests
        if is_here:
            again = await made.answer(request_id, "allow_once", arguments={"version": "7"})
            assert (await again.result()).text == "done"
    if not is_here:
        async with opened(home, project, *rest) as made:
            with pytest.raises(AgentCoreError, match="nothing was answered"):
                await made.answer(request_id, "allow_once")
            again = await made.answer(
                request_id, "allow_once", arguments={"version": "7"}, tools=asking(other)
            )
            assert (await again.result()).text == "done"
    assert (shop if is_here else other).done == ["7"]


async def test_after_a_handoff_the_first_agent_brings_the_others(home: Home, project: Path) -> None:
    shop, other = Shop(), Shop()
    first = Agent("triage", "You sort.", tools=(), handoffs=[shop.agent])
    second = Agent("triage", "You sort.", tools=(), handoffs=[other.agent])
    async with opened(home, project, calls("handoff_to_releaser"), FIRST) as made:
        handle = await park(made, agent=first)
    (request_id,) = handle.pending_requests
    async with opened(home, project, '{"number": 2}') as made:
        again = await made.answer(request_id, "allow_once", agents=[second])
        assert (await again.result()).output == Version(number=3)
    assert other.done == ["1"]

"""Validators of a program: they see the value of an answer, with the context of its run."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import agcore
from agcore.llm import MockProvider
from agent_core import (
    Agent,
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    ExtensionContext,
    RunError,
    ToolRetry,
)
from agent_core.providers.scripted import ScriptedProvider, calls


class City(BaseModel):
    """A city."""

    name: str


async def known(city: City, context: ExtensionContext) -> City:
    if city.name not in context.deps:
        raise ToolRetry(f"there is no city {city.name}")
    return City(name=city.name.upper())


def loud(text: str) -> str:
    if text == "quiet":
        raise ToolRetry("say it louder")
    return f"{text}!"


async def test_a_validator_sees_the_typed_value_and_may_replace_it(tmp_path: Path) -> None:
    provider = ScriptedProvider(['{"name": "Atlantis"}', '{"name": "Bern"}'])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", output_type=City, output_validators=[known], deps=["Bern"])
        (run,) = (await made.replay_run(result.run_id)).runs
    assert result.output == City(name="BERN")
    assert "there is no city Atlantis" in str(provider.requests[1].messages[-1])
    assert run.options is not None
    assert run.options.needs_caller == ["deps", "output_validators"]


async def test_a_text_is_validated_too_and_validators_follow_one_another(tmp_path: Path) -> None:
    provider = ScriptedProvider(["quiet", "hello"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", output_validators=[loud, str.upper])
    assert (result.output, result.text) == ("HELLO!", "hello")


async def test_an_answer_that_stays_wrong_fails_the_run(tmp_path: Path) -> None:
    provider = ScriptedProvider(["quiet", "quiet"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        with pytest.raises(RunError, match="refused after 1 retry: say it louder") as caught:
            await made.run("go", output_validators=[loud], output_retries=1)
    assert caught.value.code == ErrorCode.OUTPUT_INVALID
    assert caught.value.details["errors"] == [{"path": "$", "message": "say it louder"}]


async def test_a_validator_that_breaks_is_named(tmp_path: Path) -> None:
    def broken(_: str) -> str:
        raise ValueError("no database")

    async with AgentRuntime(tmp_path, model=ScriptedProvider(["a"]), persist=False) as made:
        with pytest.raises(RunError, match="validator broken failed: ValueError: no database"):
            await made.run("go", output_validators=[broken])
        wrong: Any = {"output_validators": [7]}
        with pytest.raises(AgentCoreError, match="one must be a function"):
            await made.start("go", **wrong)


async def test_a_validator_that_returns_nothing_is_named(tmp_path: Path) -> None:
    def look(_: City) -> None:
        pass

    def unknown(_: City | None) -> None:
        return None

    paris = '{"name": "Paris"}'
    async with AgentRuntime(tmp_path, model=ScriptedProvider([paris] * 2), persist=False) as made:
        with pytest.raises(RunError, match="validator look returned None; return the value"):
            await made.run("go", output_type=City, output_validators=[look])
        result = await made.run("go", output_type=City | None, output_validators=[unknown])
    assert result.output is None


async def test_validators_of_an_agent_are_its_own(tmp_path: Path) -> None:
    worker = Agent("worker", "You work.", tools=(), output_validators=[loud])
    start = calls("agent.create_sub_agent", agent_definition_id="worker", task="go")
    provider = ScriptedProvider([start, "quiet", "hello", "quiet"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", agents=[worker])
    assert result.output == "quiet"
    provider.assert_complete()


async def test_validators_hold_in_the_toolkit() -> None:
    provider = MockProvider(["quiet", "hello", '{"name": "Bern"}'])
    agent = agcore.Agent("a", model=provider, deps_type=list[str])
    result: Any = await agent.run("go", output_validators=[loud], deps=["Bern"])
    assert result.output == "hello!"
    typed = await agent.run("go", output_type=City, output_validators=[known], deps=["Bern"])
    assert typed.output == City(name="BERN")

"""Signatures of what starts a run: they list every keyword, with its default."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest

from agcore import Agent, AgentSession
from agcore.agent.spec import RunSettings
from agent_core import AgentCoreError, AgentRuntime, ErrorCode, RunOptions, Session
from agent_core.api.keywords import run_keywords
from agent_core.loop.options import RunFields, StartFields
from agent_core.testing import ScriptedProvider, ScriptedRuntime
from tables import together

STARTS = [
    *(AgentRuntime.start, AgentRuntime.run, AgentRuntime.run_sync),
    *(Session.start, Session.run, Session.run_sync),
]
TOOLKIT = [Agent.run, Agent.run_sync, Agent.stream, AgentSession.run, AgentSession.stream]


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_the_listed_keywords_are_those_of_the_options_and_the_placement() -> None:
    typed = {"output_type", "agent"}
    assert {*parameters(run_keywords)} == {*StartFields.__annotations__, *typed}
    assert {*RunFields.__annotations__, *typed} == {each.name for each in fields(RunOptions)}


@together(
    "option",
    [each for each in fields(RunOptions) if each.name != "metadata"],
    ids=lambda each: each.name,
)
def test_the_listed_default_is_that_of_the_option(option: Any) -> None:
    assert option.default is not MISSING
    assert parameters(run_keywords)[option.name].default == option.default


@together("function", STARTS, ids=lambda each: each.__qualname__)
def test_what_starts_a_run_lists_its_keywords(function: Callable[..., Any]) -> None:
    listed = parameters(function)
    assert {*parameters(run_keywords), "mode", "options"} <= {*listed}
    assert {each.kind for each in listed.values()} == {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }


@together("function", TOOLKIT, ids=lambda each: each.__qualname__)
def test_the_toolkit_lists_its_keywords(function: Callable[..., Any]) -> None:
    listed = parameters(function)
    assert {*RunSettings.__annotations__} <= {*listed}
    assert listed["budget"].default is ...


def test_help_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    help(AgentRuntime.start)
    shown = capsys.readouterr().out
    assert "max_turns: int | None = None" in shown
    assert "**fields" not in shown


async def test_session_and_mode_may_be_given_by_position() -> None:
    async with ScriptedRuntime(["one", "two"]) as runtime:
        assert (await runtime.run("go", "s1", "normal")).session_id == "s1"
        with pytest.raises(AgentCoreError, match="there is no mode 'odd'"):
            await runtime.run("go", "s1", "odd")  # pyright: ignore[reportCallIssue, reportArgumentType]
        with pytest.raises(AgentCoreError, match="plan is a permission_mode"):
            await runtime.run("go", mode="plan")  # pyright: ignore[reportCallIssue, reportArgumentType]
        with pytest.raises(AgentCoreError, match="not a list; earlier messages are given as hist"):
            await runtime.run([{"role": "user"}])  # pyright: ignore[reportCallIssue, reportArgumentType]
        with pytest.raises(AgentCoreError, match="max_turn is not an option of a run"):
            await runtime.run("go", "s1", max_turn=2)  # pyright: ignore[reportCallIssue]


@together(
    ("elsewhere", "here"),
    [
        ("system_prompt", "instructions"),
        ("message_history", "history"),
        ("response_format", "output_type"),
        ("thread_id", "session_id"),
        ("max_turn", "max_turns"),
    ],
)
async def test_a_name_of_another_framework_is_answered_with_the_one_here(
    elsewhere: str, here: str
) -> None:
    options: dict[str, Any] = {elsewhere: "a"}
    async with ScriptedRuntime(["one"]) as runtime:
        with pytest.raises(AgentCoreError, match=f"did you mean {here}") as caught:
            await runtime.run("go", **options)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize(
    ("elsewhere", "here"), [("middleware", "extensions"), ("usage_limits", "budget")]
)
async def test_the_toolkit_knows_them_too(elsewhere: str, here: str) -> None:
    options: dict[str, Any] = {elsewhere: []}
    with pytest.raises(TypeError, match=f"did you mean {here}"):
        Agent("a", **options)
    with pytest.raises(TypeError, match=f"did you mean {here}"):
        await Agent("a", model=ScriptedProvider(["b"])).run("go", **options)

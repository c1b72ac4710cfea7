"""`run`, `run_sync`, `session()` and `handle.result()`: start a run, and have what came of it."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentCoreError,
    ArgumentError,
    Budget,
    EventType,
    RunError,
    RunOptions,
    RunStatus,
)
from agent_core.providers.scripted import Fails, Hangs, Pauses
from agent_core.types import ModelRequest
from isolation import Home
from runtimes import runtime
from tables import together


@dataclass
class Answer:
    number: int


async def test_run_returns_what_came_of_it(home: Home, project: Path) -> None:
    async with runtime(home, project, ["seven"]) as made:
        result = await made.run("which number?", "s1", move_session=True)

    assert (result.output, result.text, result.status) == ("seven", "seven", RunStatus.COMPLETED)
    assert result.session_id == "s1"
    assert result.run_id.startswith("run_")
    assert result.events is None


async def test_run_keeps_the_events_when_it_is_asked_to(home: Home, project: Path) -> None:
    async with runtime(home, project, ["seven"]) as made:
        result = await made.run("which number?", events=True)

    assert result.events is not None
    kinds = [event.event_type for event in result.events]
    assert EventType.MODEL_TEXT_DELTA in kinds
    assert kinds[-1] is EventType.RUN_COMPLETED


async def test_a_run_that_fails_raises_and_brings_its_result(home: Home, project: Path) -> None:
    script = [Fails(message="no such model")]
    async with runtime(home, project, script) as made:
        with pytest.raises(RunError, match="no such model") as caught:
            await made.run("hello", session_id="s1", events=True)
        history = await made.replay_session("s1")

    error = caught.value
    assert error.code == "provider_error"
    assert error.result.status is RunStatus.FAILED
    assert error.result.session_id == "s1"
    assert error.result.events
    assert history.nodes[0].text == "hello"


async def test_a_run_that_is_cancelled_by_another_raises(home: Home, project: Path) -> None:
    async with runtime(home, project, [Hangs()]) as made:
        handle = await made.start("hello")
        waiting = asyncio.create_task(handle.result())
        await handle.cancel()
        with pytest.raises(RunError, match="cancelled") as caught:
            await waiting

    assert caught.value.code == "cancelled"


async def test_a_caller_that_is_cancelled_cancels_the_run(home: Home, project: Path) -> None:
    asked = asyncio.Event()

    def hangs(_: ModelRequest) -> Hangs:
        asked.set()
        return Hangs()

    async with runtime(home, project, [hangs]) as made:
        running = asyncio.create_task(made.run("hello", session_id="s1"))
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        history = await made.replay_session("s1")
        assert [run.status for run in history.runs] == [RunStatus.CANCELLED]


async def test_a_conversation_goes_on_in_its_session(home: Home, project: Path) -> None:
    async with runtime(home, project, ["noted", "seven"]) as made:
        async with made.session("numbers") as session:
            await session.run("the number is seven")
            result = await session.run("which one was it?")
        history = await made.replay_session("numbers")

    assert result.output == "seven"
    assert [node.text for node in history.nodes] == [
        "the number is seven",
        "noted",
        "which one was it?",
        "seven",
    ]


async def test_a_conversation_is_left_when_its_runs_are_over(home: Home, project: Path) -> None:
    async with runtime(home, project, [Pauses(seconds=0.2), "late"]) as made:
        async with made.session() as session:
            handle = await session.start("hello")
        assert handle.status is RunStatus.COMPLETED


async def test_a_conversation_left_by_an_error_cancels_its_runs(home: Home, project: Path) -> None:
    async with runtime(home, project, [Hangs()]) as made:
        with suppress(ZeroDivisionError):
            async with made.session("s1") as session:
                await session.start("hello")
                raise ZeroDivisionError
        history = await made.replay_session("s1")
        assert [run.status for run in history.runs] == [RunStatus.CANCELLED]


def test_a_script_needs_no_event_loop(home: Home, project: Path) -> None:
    made = runtime(home, project, ["one", "two"])

    first = made.run_sync("first", session_id="s1")
    second = made.run_sync("second", first.session_id)

    assert (first.output, second.output) == ("one", "two")


async def test_inside_an_event_loop_the_script_is_told_what_to_write(
    home: Home, project: Path
) -> None:
    with pytest.raises(AgentCoreError, match="write `await"):
        runtime(home, project).run_sync("hello")

    async with runtime(home, project, ["hi"]) as made:
        with pytest.raises(AgentCoreError, match="write `await"):
            made.run_sync("hello")
        assert (await asyncio.to_thread(made.run_sync, "hello")).text == "hi"


MALFORMED: list[tuple[dict[str, Any], str, str]] = [
    ({"max_turn": 3}, "max_turn", "did you mean max_turns"),
    ({"options": {"max_turns": 3}}, "options", "RunOptions, not a dict"),
    ({"options": RunOptions(max_turns=3), "max_turns": 4}, "max_turns", "given twice"),
    ({"options": RunOptions(metadata={"a": 1}), "metadata": {}}, "metadata", "given twice"),
    ({"max_turns": 0}, "max_turns", "greater than 0"),
    ({"max_turns": "3"}, "max_turns", "an integer"),
    ({"max_turns": True}, "max_turns", "an integer"),
    ({"instructions": 7}, "instructions", "a text"),
    ({"model": 7}, "model", "provider:name"),
    ({"tools": "code.read_file"}, "tools", "must be a list"),
    ({"tools": [7]}, "tools", "is an int"),
    ({"disabled_tools": "code.read_file"}, "disabled_tools", "must be a list"),
    ({"disabled_tools": [7]}, "disabled_tools", "a text"),
    ({"output_retries": -1}, "output_retries", "greater than or equal to 0"),
    ({"output_mode": "json"}, "output_mode", "'native'"),
    ({"output_mode": "json", "output_type": int}, "output_mode", "'native'"),
    ({"output_retries": "2", "output_type": int}, "output_retries", "an integer"),
    ({"output_type": 3}, "output_type", "cannot be used"),
    ({"budget": 3}, "budget", "Budget"),
    ({"budget": {"usd": -1}}, "budget", "greater than or equal to 0"),
    ({"model": RunOptions}, "model", "an adapter, not a type"),
    ({"metadata": []}, "metadata", "must be a dict"),
    ({"metadata": {"when": {1, 2}}}, "metadata", "JSON"),
    ({"metadata": {"part": float("nan")}}, "metadata", "JSON"),
    ({"guards": 1}, "guards", "must be a list"),
]


@together(("given", "name", "reason"), MALFORMED, ids=str)
async def test_an_option_that_does_not_fit_is_named(
    home: Home, project: Path, given: dict[str, Any], name: str, reason: str
) -> None:
    async with runtime(home, project, ["never"]) as made:
        with pytest.raises(ArgumentError, match=reason) as caught:
            await made.start("hello", **given)
        assert await made.list_sessions() == []

    assert caught.value.code == "validation_error"
    assert caught.value.details["option"] == name
    assert caught.value.message.startswith(name)


async def test_options_are_given_whole_or_one_by_one(home: Home, project: Path) -> None:
    budget = Budget(requests=3)
    async with runtime(home, project, ["a", "b"]) as made:
        whole = await made.run("hello", options=RunOptions(max_turns=2, budget=budget))
        single = await made.run("hello", options=RunOptions(budget=budget), max_turns=2)
    assert (whole.output, single.output) == ("a", "b")

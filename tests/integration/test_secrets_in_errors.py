"""An argument that is a key, or holds a password, is not repeated by the error that refuses it."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agcore.agent import Agent
from agcore.llm import CycleConfig, MockProvider
from agcore.memory import SqliteStore
from agent_core import AgentCoreError, AgentRuntime, RunOptions, ToolError
from agent_core.errors import ErrorCode, StorageError
from agent_core.testing import ScriptedProvider
from agent_core.text import not_a_list, quoted, shown_id, shown_value
from tables import together

SECRETS = (
    "sk-proj-AbCdEf1234567890AbCdEf1234567890",
    "postgres://ada:hunter2secret@db/shop",
    "password=hunter2secret",
)
PARTS = ("AbCdEf1234567890", "hunter2secret")


def repeats(error: BaseException) -> bool:
    return any(part in f"{error}{getattr(error, 'details', '')}" for part in PARTS)


def shapes(secret: str) -> Iterator[Any]:
    yield secret
    yield [secret]
    yield {secret: secret}


async def leaks(calls: Iterator[tuple[str, Callable[[], Any]]]) -> list[str]:
    """The calls that fail with an error that repeats a secret."""
    found: list[str] = []
    for name, call in calls:
        try:
            answer = call()
            if inspect.isawaitable(answer):
                answer = await answer
            elif hasattr(answer, "__aiter__"):
                await anext(aiter(answer), None)
        except Exception as error:  # noqa: BLE001 - any error may repeat it
            if repeats(error):
                found.append(f"{name}: {error}")
    return found


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.kind not in {each.VAR_KEYWORD, each.VAR_POSITIONAL}]


async def test_options_of_a_run(tmp_path: Path) -> None:
    async with AgentRuntime(
        tmp_path, model=ScriptedProvider(["a"] * 500), persist=False
    ) as runtime:

        def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
            for name in (each.name for each in fields(RunOptions)):
                for value in (value for secret in SECRETS for value in shapes(secret)):
                    yield name, lambda name=name, value=value: runtime.run("go", **{name: value})

        assert await leaks(calls()) == []


async def test_methods_of_the_runtime(tmp_path: Path) -> None:
    async with AgentRuntime(
        tmp_path, model=ScriptedProvider(["a"] * 500), persist=False
    ) as runtime:

        def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
            for name, function in inspect.getmembers(runtime, inspect.ismethod):
                parameters = parameters_of(function)
                if name.startswith(("_", "close")) or name == "run_sync":
                    continue
                needed = {each.name: "x" for each in parameters if each.default is each.empty}
                for each in parameters:
                    for secret in SECRETS:
                        given = needed | {each.name: secret}
                        yield (
                            f"{name}({each.name})",
                            lambda function=function, given=given: function(**given),
                        )

        assert await leaks(calls()) == []


async def test_arguments_of_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def opened(**given: Any) -> None:
        async with AgentRuntime(tmp_path, **given):
            pass

    def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
        for each in parameters_of(AgentRuntime):
            for value in (value for secret in SECRETS for value in shapes(secret)):
                if each.name != "project_dir":
                    yield each.name, lambda name=each.name, value=value: opened(**{name: value})

    assert await leaks(calls()) == []


async def test_arguments_of_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent: Any = Agent("a", model=MockProvider(["a"] * 50))
    cycle: Any = CycleConfig
    names = ("session_id", "model", "stop", "reasoning", "output_mode", "tools", "disabled_tools")

    def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
        for secret in SECRETS:
            for name in names:
                for value in shapes(secret):
                    yield name, lambda name=name, value=value: agent.run("go", **{name: value})
            yield "cycle", lambda secret=secret: cycle(reasoning=secret)
            yield "name", lambda secret=secret: Agent("a").as_tool(secret)
            place = f"{secret}/nowhere\0"
            yield "path", lambda place=place: SqliteStore.open(place)

    assert await leaks(calls()) == []


@together("secret", SECRETS)
def test_every_way_to_show_a_value(secret: str) -> None:
    for shown in (quoted(secret), shown_id(secret), shown_value(secret), not_a_list("a", secret)):
        assert not any(part in shown for part in PARTS)
    error = StorageError(ErrorCode.RUN_NOT_FOUND, f"no run {secret}", details={"ids": [secret]})
    assert not repeats(error)


def test_what_explains_a_key_stays() -> None:
    for message in (
        "api_key: set the variable OPENAI_API_KEY",
        "headers.Authorization: must be a text",
        "max_output_tokens=5000 is more than the model writes",
        "write openai:my-model@http://127.0.0.1:8000/v1",
    ):
        error = AgentCoreError(ErrorCode.CONFIG_ERROR, message, details={"fact": message})
        assert (error.message, error.details["fact"]) == (message, message)


def test_the_model_reads_the_text_of_a_file() -> None:
    message = f"no such text: {SECRETS[1]}"
    assert ToolError(ErrorCode.TEXT_NOT_FOUND, message).message == message

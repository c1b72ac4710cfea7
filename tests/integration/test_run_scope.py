"""A run keeps its own model, meter and variables, whatever other runs begin meanwhile."""

import asyncio
import gc
import subprocess
import sys
import weakref
from contextvars import ContextVar
from pathlib import Path

import pytest

from agent_core import AgentRuntime, ModelRequest, RunOptions, RunStatus, TextBlock, tool
from agent_core.config.models import ModelConfig
from agent_core.providers.scripted import Calls, ScriptedProvider, calls
from isolation import Home, program_file
from runtimes import Asked, ask, collect, runtime

CONFIG = """
[model]
provider = "custom"
name = "script"
context_window = 16384

[memory]
enabled = false

[compact]
keep_recent_tokens = 400
reserve_tokens = 12000
"""
OTHER_RUNS = 70
"""More than any cache of runs has held."""


def is_compact(request: ModelRequest) -> bool:
    return request.metadata.get("purpose") == "compact"


def own_model(provider: str, name: str = "own") -> ModelConfig:
    return ModelConfig(provider=provider, name=name, context_window=16384)


async def test_a_run_is_summarised_by_its_own_model_after_many_others_have_begun(
    home: Home, project: Path
) -> None:
    asked = asyncio.Event()
    configured = ScriptedProvider(lambda _: "not mine")
    others = ScriptedProvider(lambda _: "other")

    @tool
    async def run_others() -> str:
        """Run many others."""
        for number in range(OTHER_RUNS):
            options = RunOptions(model=own_model("others", f"other-{number}"))
            await made.run("hi", f"other_{number}", options=options)
        return "they have ended"

    @tool
    async def read() -> str:
        """Read something long."""
        return "blah " * 400

    def answer(request: ModelRequest) -> str | Calls:
        if is_compact(request):
            asked.set()
            return '{"summary": "shorter, in as many words as a summary needs to be one"}'
        if "read all of it" not in str(request.messages):
            return "blah " * 400
        results = sum(message.role == "tool" for message in request.messages)
        if results == 0:
            return calls("run_others")
        return calls("read") if results < 12 and not asked.is_set() else "done"

    mine = ScriptedProvider(answer)
    made = runtime(
        home, project, configured, config=CONFIG, permission_callback=Asked("allow_once")
    )
    made.register_provider("mine", lambda _: mine)
    made.register_provider("others", lambda _: others)
    async with made:
        options = RunOptions(model=own_model("mine"), tools=[run_others, read])
        for text in ["question 1", "question 2", "question 3", "please read all of it"]:
            assert not asked.is_set()
            handle = await made.start(text, "s1", options=options)
            await handle.wait()
            assert handle.status is RunStatus.COMPLETED
        await asyncio.wait_for(asked.wait(), timeout=20)
    assert len(others.requests) >= OTHER_RUNS
    assert configured.requests == []


user: ContextVar[str] = ContextVar("user", default="nobody")


@pytest.mark.parametrize("waits_for", ["session", "place"])
async def test_a_run_that_waited_has_the_context_variables_of_its_start(
    home: Home, project: Path, waits_for: str
) -> None:
    seen: list[tuple[str, str, str]] = []

    @tool
    async def note(name: str) -> str:
        """Note who is asking."""
        in_thread = await asyncio.to_thread(user.get)
        seen.append((name, user.get(), in_thread))
        return "noted"

    def answer(request: ModelRequest) -> str | Calls:
        (block, *_) = request.messages[-1].content
        return calls("note", name=block.text) if isinstance(block, TextBlock) else "done"

    config = CONFIG.replace("[memory]", "[runtime]\nmax_concurrent_runs = 1\n\n[memory]")
    async with runtime(
        home,
        project,
        ScriptedProvider(answer),
        config=config,
        permission_callback=Asked("allow_once"),
    ) as made:

        async def ask_as(name: str, made: AgentRuntime) -> None:
            user.set(name)
            session = "s1" if waits_for == "session" else f"s_{name}"
            handle = await made.start(name, session, options=RunOptions(tools=[note]))
            await collect(handle)

        names = ["ada", "bob", "cy"]
        await asyncio.gather(*(asyncio.create_task(ask_as(name, made)) for name in names))
        handle = await made.start("me", "s_me", options=RunOptions(tools=[note]))
        await handle.wait()
    assert sorted(seen) == [
        ("ada", "ada", "ada"),
        ("bob", "bob", "bob"),
        ("cy", "cy", "cy"),
        ("me", "nobody", "nobody"),
    ]


class Notes:
    """A tool that notes who is asking, and a model that calls it with each message."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def options(self) -> RunOptions:
        @tool
        async def note(name: str) -> str:
            """Note who is asking."""
            self.seen.append((name, user.get()))
            return "noted"

        return RunOptions(tools=[note])

    @staticmethod
    def answer(request: ModelRequest) -> str | Calls:
        (block, *_) = request.messages[-1].content
        return calls("note", name=block.text) if isinstance(block, TextBlock) else "done"


async def test_an_answered_run_keeps_the_context_variables_of_its_start(
    home: Home, project: Path
) -> None:
    notes = Notes()
    config = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
    async with runtime(home, project, ScriptedProvider(notes.answer), config=config) as made:
        user.set("ada")
        handle = await made.start("hello", "s1", options=notes.options())
        await handle.wait()
        assert handle.status is RunStatus.WAITING
        (request,) = await made.approvals()

        async def answer_as(name: str) -> None:
            user.set(name)
            await (await made.answer(request.request_id, "allow_once")).wait()

        await asyncio.create_task(answer_as("boss"))
    assert notes.seen == [("hello", "ada")]


class Request:
    """An object that a program keeps in a context variable."""


async def test_an_ended_run_keeps_none_of_its_context_variables_alive(
    home: Home, project: Path
) -> None:
    request: ContextVar[Request | None] = ContextVar("request", default=None)
    config = CONFIG.replace("enabled = false", "idle_seconds = 3600")

    async def ask_with_one(made: AgentRuntime) -> "weakref.ref[Request]":
        request.set(kept := Request())
        await ask(made, "hello")
        return weakref.ref(kept)

    async with runtime(home, project, ScriptedProvider(["hello"]), config=config) as made:
        kept = await asyncio.create_task(ask_with_one(made))
        deadline = asyncio.get_running_loop().time() + 30
        while kept() is not None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
            gc.collect()
        assert kept() is None


LEFT = """
import asyncio, os, sys
from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs, ScriptedProvider

async def main():
    made = AgentRuntime(sys.argv[2], home_dir=sys.argv[1])
    made.register_provider("custom", lambda _: ScriptedProvider([Hangs()]))
    await made.__aenter__()
    await made.start("hangs", "s1")
    await made.start("left", "s1")
    os._exit(0)

asyncio.run(main())
"""


async def test_a_run_of_a_dead_process_has_no_context_variables_of_another_run(
    home: Home, project: Path
) -> None:
    seen: list[tuple[str, str]] = []

    def answer(request: ModelRequest) -> str:
        (block, *_) = request.messages[-1].content
        assert isinstance(block, TextBlock)
        seen.append((block.text, user.get()))
        return "done"

    async with runtime(home, project, ScriptedProvider(answer), config=CONFIG) as made:
        program = [sys.executable, program_file(LEFT), str(home.path), str(project)]
        await asyncio.to_thread(subprocess.run, program, check=True)
        user.set("bob")
        await ask(made, "mine", "s1")
    assert seen == [("left", "nobody"), ("mine", "bob")]

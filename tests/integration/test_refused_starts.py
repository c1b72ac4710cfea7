"""A start that cannot work stores nothing, and the last session is the last one with an answer."""

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agcore.agent import Agent
from agcore.agent.error import AgentError
from agcore.memory import ConversationMemory, InMemoryStore
from agent_core import AgentCoreError, AgentRuntime, ConfigError, ModelConfig, ToolContext, tool
from agent_core.providers.scripted import Fails, ScriptedProvider, calls
from agent_core.types import Budget
from captures import Key, record
from editors import Editor, EditorError
from in_process import carry_out
from isolation import Home
from model_server import ModelServer
from runtimes import CONFIG, runtime
from sweeps import sampled

pytestmark = pytest.mark.timeout(120)

KEYLESS = """
[model]
provider = "openai"
name = "x"
api_key_env = "NO_SUCH_KEY"
base_url = "http://127.0.0.1:9"
"""
POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""


def stored_files(home: Home) -> list[str]:
    """The files that a session leaves beside its rows."""
    folder = home.path / "sessions"
    return sorted(each.name for each in folder.glob("s*")) if folder.exists() else []


async def is_empty(made: AgentRuntime, home: Home) -> bool:
    return await made.list_sessions() == [] and stored_files(home) == []


DOORS: dict[str, Callable[[AgentRuntime], Awaitable[object]]] = {
    "start": lambda made: made.start("go"),
    "named": lambda made: made.start("go", "s1"),
    "run": lambda made: made.run("go"),
    "session": lambda made: made.session("s1").run("go"),
    "orchestrator": lambda made: made.start("go", mode="orchestrator"),
}


@pytest.mark.parametrize("door", sampled(DOORS, keep=2))
async def test_a_start_without_the_models_key_stores_nothing(
    home: Home, project: Path, door: str
) -> None:
    home.write_config(KEYLESS + POOL)
    async with AgentRuntime(project_dir=project) as made:
        with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set") as caught:
            await DOORS[door](made)
        assert caught.value.details["variable"] == "NO_SUCH_KEY"
        assert await is_empty(made, home)


def test_run_sync_without_the_models_key_stores_nothing(home: Home, project: Path) -> None:
    home.write_config(KEYLESS)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        AgentRuntime(project_dir=project).run_sync("go")
    assert stored_files(home) == []


CONFIGS = {
    "an unknown option": ("provider_options = { openai = { nonsense = 1 } }", "nonsense"),
    "certificates that are not there": (
        'base_url = "https://127.0.0.1:9"\nca_file = "/no/such/file"',
        "ca_file",
    ),
    "a key that is none": ('api_key_env = "ODD_KEY"', "ODD_KEY"),
}


@pytest.mark.parametrize("name", CONFIGS)
async def test_settings_that_no_call_can_use_are_found_by_start(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    line, named = CONFIGS[name]
    monkeypatch.setenv("ODD_KEY", "schlüssel")
    base = "" if "base_url" in line else 'base_url = "http://127.0.0.1:9"\n'
    home.write_config(f'[model]\nprovider = "openai"\nname = "x"\n{base}{line}\n')
    async with AgentRuntime(project_dir=project) as made:
        with pytest.raises(ConfigError, match=named):
            await made.start("go")
        assert await is_empty(made, home)


class Stock:
    """The stock of a shop."""


@tool(permission="readonly")
async def count_items(context: ToolContext[Stock]) -> int:
    """Count."""
    return len(vars(context.deps))


OPTIONS: dict[str, dict[str, Any]] = {
    "an unknown provider": {"model": "nobody:x"},
    "no model": {"model": "nothing"},
    "a key of its own": {"model": ModelConfig(provider="openai", name="x", api_key_env="NO_SUCH")},
    "a tool that there is not": {"tools": ["code.reed_file"]},
    "a disabled tool that there is not": {"disabled_tools": ["nothing"]},
    "no dependencies": {"tools": [count_items]},
    "other dependencies": {"tools": [count_items], "deps": 5},
    "no option of a run": {"nonsense": 1},
    "a number of turns": {"max_turns": 0},
    "an output": {"output_type": Stock},
    "guards": {"guards": [print]},
    "metadata": {"metadata": {"a": object()}},
}


@pytest.mark.parametrize("name", sampled(OPTIONS, keep=3))
async def test_options_that_cannot_be_met_store_nothing(
    home: Home, project: Path, name: str
) -> None:
    async with runtime(home, project, ["never"]) as made:
        with pytest.raises(AgentCoreError):
            await made.start("go", "s1", **OPTIONS[name])
        assert await is_empty(made, home)


async def test_a_registered_tool_without_its_dependencies_stores_nothing(
    home: Home, project: Path
) -> None:
    made = runtime(home, project, ["fine", "fine too"])
    made.register_tool(count_items)
    async with made:
        with pytest.raises(ConfigError, match=r"count_items takes ToolContext\[Stock\]"):
            await made.start("go")
        assert await is_empty(made, home)
        assert (await made.run("go", deps=Stock())).text == "fine"
        assert (await made.run("go", disabled_tools=["count_items"])).text == "fine too"


async def test_a_later_message_that_cannot_be_started_leaves_the_session_as_it_is(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["first", "second"]) as made:
        await made.run("one", "s1")
        before = await made.replay_session("s1")
        model = ModelConfig(provider="openai", name="x", api_key_env="NO_SUCH_KEY")
        with pytest.raises(ConfigError):
            await made.start("two", "s1", model=model)
        after = await made.replay_session("s1")
        assert [run.status for run in after.runs] == [run.status for run in before.runs]
        assert after.session.updated_at == before.session.updated_at
        assert (await made.run("three", "s1")).text == "second"


async def test_a_summary_that_the_settings_forbid_is_refused_before_it_is_stored(
    home: Home, project: Path
) -> None:
    config = f"{CONFIG}\n[compact]\nenabled = false\n"
    async with runtime(home, project, ["first"], config=config) as made:
        await made.run("one", "s1")
        with pytest.raises(ConfigError, match=r"\[compact\] enabled"):
            await made.compact_session("s1")
        assert len(await made.session_runs("s1")) == 1


async def test_the_last_session_is_the_last_one_with_an_answer(home: Home, project: Path) -> None:
    script = [
        "an answer",
        Fails(text="It is fo", message="broken"),
        calls("code.list_dir", path="."),
    ]
    async with runtime(home, project, script) as made:
        assert await made.last_session(project) is None
        await made.run("one", "answered")
        with pytest.raises(AgentCoreError):
            await made.run("two", "failed")
        assert await made.last_session() == "answered"
        assert await made.last_session(project) == "answered"
        # An interrupted session has an answer to continue from.
        with pytest.raises(AgentCoreError):
            await made.run("three", "broken-off", max_turns=1)
        assert await made.last_session(project) == "broken-off"
        fork = await made.fork("answered")
        assert await made.last_session(project) == fork.session.session_id


async def test_the_last_session_on_postgres_is_the_last_one_with_an_answer(
    home: Home, project: Path, database_url: str
) -> None:
    home.write_config(CONFIG)
    made = AgentRuntime(project_dir=project, home_dir=home.path, database_url=database_url)
    provider = ScriptedProvider(["an answer", Fails(text="It is fo", message="broken")])
    made.register_provider("custom", lambda _: provider)
    async with made:
        await made.run("one", "answered", here=True)
        with pytest.raises(AgentCoreError):
            await made.run("two", "failed", here=True)
        assert await made.last_session() == "answered"
        assert await made.last_session(project) == "answered"


def soong_agent(home: Home, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return carry_out(words, home.env(), project)


def configure(home: Home, server: ModelServer, key: str = "") -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f'api_key_env = "{key}"\n[memory]\nenabled = false\n[model.retry]\nmax_attempts = 1\n'
    )


@pytest.mark.long
def test_run_without_the_models_key_ends_with_2_and_continue_finds_the_answer_before(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread(["one", Fails(message="broken"), "two"]) as server:
        configure(home, server)
        assert soong_agent(home, project, "run", "first").stdout == "one\n"
        (answered,) = listed(home, project)
        configure(home, server, key="NO_SUCH_KEY")
        for more in ((), ("--session-id", "s9"), ("--orchestrator",)):
            refused = soong_agent(home, project, "run", *more, "second")
            assert (refused.returncode, refused.stdout) == (2, ""), refused.stderr
            assert "NO_SUCH_KEY" in refused.stderr or "worker pool" in refused.stderr
        assert listed(home, project) == [answered]
        configure(home, server)
        assert soong_agent(home, project, "run", "it breaks").returncode == 1
        assert soong_agent(home, project, "run", "--continue", "third").stdout == "two\n"
        messages = server.requests[-1].body["messages"]
    assert [each["content"] for each in messages[-3:]] == ["first", "one", "third"]


def listed(home: Home, project: Path) -> list[str]:
    done = soong_agent(home, project, "sessions", "list", "--json")
    return [json.loads(line)["session_id"] for line in done.stdout.splitlines()]


@pytest.mark.sweep
def test_continue_without_an_answer_says_so(home: Home, project: Path) -> None:
    with ModelServer.in_thread([Fails(message="broken")]) as server:
        configure(home, server)
        assert soong_agent(home, project, "run", "it breaks").returncode == 1
        for words in (("run", "--continue", "go"), ("undo",)):
            done = soong_agent(home, project, *words)
            assert done.returncode != 0
            assert "has an answer yet" in done.stderr
        assert len(server.requests) == 1


def test_chat_without_the_models_key_stores_nothing_and_keeps_the_message(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([]) as server:
        configure(home, server, key="NO_SUCH_KEY")
        scene = record(
            [sys.executable, "-m", "agent_core.cli", "chat"],
            env=home.env(),
            cwd=project,
            keys=[Key("sandbox off", "hello\r"), Key("is not set", "\x03"), Key("", "\x04")],
            seconds=40,
        )
        assert scene.code == 0
        assert listed(home, project) == []


@pytest.mark.sweep
def test_an_editor_without_the_models_key_stores_nothing(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as server:
        configure(home, server, key="NO_SUCH_KEY")
        with Editor(home) as editor:
            session_id = editor.open(project)
            with pytest.raises(EditorError, match="NO_SUCH_KEY"):
                editor.prompt(session_id, "hello")
    assert listed(home, project) == []


async def test_an_agent_of_the_toolkit_without_its_key_keeps_nothing() -> None:
    store = InMemoryStore()
    memory = ConversationMemory(store, "s1")
    agent = Agent(
        "a", "Be brief.", model=ModelConfig(provider="openai", name="x", api_key_env="NO")
    )
    with pytest.raises(AgentError.Config, match="NO is not set"):
        await agent.run("go", conversation=memory)
    assert await memory.get_history() == []


async def test_a_budget_that_is_none_stores_nothing(home: Home, project: Path) -> None:
    async with runtime(home, project, ["never"]) as made:
        given: Any = {"usd": -1}
        with pytest.raises(AgentCoreError, match="budget"):
            await made.start("go", budget=given)
        assert await is_empty(made, home)
    with pytest.raises(ValueError, match="usd"):
        Budget(usd=-1)

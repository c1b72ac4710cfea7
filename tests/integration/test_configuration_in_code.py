"""A runtime from code alone: no file is read, and with `persist=False` none is written."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentRuntime,
    ArgumentError,
    Config,
    ConfigError,
    Extension,
    ModelConfig,
    RunStatus,
    StorageError,
    tool,
)
from agent_core.config.models import ToolsConfig
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.scripted import ScriptedProvider, calls
from isolation import Home, program_file
from runtimes import Asked
from sweeps import sampled
from tables import together

BROKEN = "this is no TOML ["


def registry(*script: Any) -> ProviderRegistry:
    made, provider = ProviderRegistry(), ScriptedProvider(script)

    def factory(_: ModelConfig) -> ProviderAdapter:
        return provider

    made.register("custom", factory)
    return made


WAYS: list[dict[str, Any]] = [
    {"model": "custom:script"},
    {"model": ModelConfig(provider="custom", name="script")},
    {"config": {"model": "custom:script"}},
    {"config": {"model": {"provider": "custom", "name": "script"}}},
    {"config": {"model": ModelConfig(provider="custom", name="script")}},
    {"config": Config(model=ModelConfig(provider="custom", name="script"))},
    {"config": {"tools": {"disabled": ["code.run_command"]}}, "model": "custom:script"},
    {"config": {"model": "openai:gpt-5"}, "model": "custom:script"},
    {"config": {"model": ScriptedProvider(["hello", "again"])}},
    {"model": ScriptedProvider(["hello", "again"])},
]


@pytest.mark.parametrize("way", sampled(WAYS, keep=2), ids=map(str, range(len(WAYS))))
async def test_a_runtime_needs_no_file(home: Home, project: Path, way: dict[str, Any]) -> None:
    home.write_config(BROKEN)
    providers = registry("hello", "again")
    async with AgentRuntime(
        project, home_dir=home.path, provider_registry=providers, **way
    ) as made:
        first = await made.run("hi", session_id="s1")
    async with AgentRuntime(
        project, home_dir=home.path, provider_registry=providers, **way
    ) as made:
        second = await made.run("hi", session_id="s1")
        history = await made.replay_session("s1")

    assert (first.text, second.text) == ("hello", "again")
    assert len(history.nodes) == 4


async def test_a_home_need_not_exist(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "not" / "there"
    async with AgentRuntime(
        project, home_dir=home, model="custom:x", provider_registry=registry("hello")
    ) as made:
        assert (await made.run("hi")).text == "hello"
    assert sorted(path.name for path in home.iterdir()) == ["sessions", "sessions.sqlite"]


async def test_where_there_is_no_home_at_all_a_program_can_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", "~nobody-of-this-name/x")
    async with AgentRuntime(project, model=ScriptedProvider(["hello"]), persist=False) as made:
        assert (await made.run("hi")).text == "hello"
    with pytest.raises(ConfigError, match="home"):
        async with AgentRuntime(project, model=ScriptedProvider(["hello"])):
            pass


WRONG: list[tuple[Any, str]] = [
    ({"model": {"provider": "custom"}}, "model.name is missing"),
    ({"tools": {"disabled": []}}, "model is missing"),
    ({"model": "custom:x", "tols": {}}, "tols is not a known key"),
    ({"model": "custom:x", "tools": {"result_limit_byte": 3}}, "tools.result_limit_byte"),
    ({"model": "custom:x", "runtime": {"max_turns": "3"}}, "runtime.max_turns must be"),
    ({"model": "custom:x", "compact": {"model_profile": "cheap"}}, "compact.model_profile"),
    ({"model": "custom:x", "plan": {"default_dir": "${HOME}/x"}}, "plan.default_dir"),
    (
        {"model": "gpt-5"},
        "cannot be used: model must be provider:name, such as openai:gpt-5, not 'gpt-5'",
    ),
    ({"model": "custom:x", "tools": {"disabled": ("a",)}}, "must be an array, not a tuple"),
    ({"model": "custom:x", "plan": {"default_dir": Path("/x")}}, "string, not a PosixPath"),
    ({"model": "custom:x", "tools": None}, "tools must be a table, not an empty value"),
    ({"model": "custom:x", 1: 2}, '"1" is not a known key'),
    ({"model": ScriptedProvider}, "model must be a table, not a "),
]


@pytest.mark.parametrize(("config", "message"), WRONG, ids=str)
async def test_a_configuration_in_code_is_checked_like_the_file(
    project: Path, config: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        async with AgentRuntime(project, config=config, persist=False):
            pass
    assert message in caught.value.message
    assert "the configuration given in code" in caught.value.message


async def test_the_file_and_the_code_are_not_mixed(home: Home, project: Path) -> None:
    file = home.path / "config.toml"
    with pytest.raises(ArgumentError, match="give one"):
        AgentRuntime(project, model="custom:x", config_path=file)
    with pytest.raises(ArgumentError, match="give one"):
        AgentRuntime(project, model="custom:x", session_db_path=file, persist=False)


class Ranked(Extension):
    """Has an attribute of its own that is named as one of all extensions."""

    rank: Any = 5


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: ""}, name)
        for name in ("project_dir", "config_path", "home_dir", "session_db_path", "database_url")
    ),
    ({"project_dir": 5}, "project_dir"),
    ({"home_dir": b"/x"}, "home_dir"),
    ({"persist": "no"}, "persist"),
    ({"config": "config.toml"}, "config"),
    ({"config": 7}, "config"),
    ({"model": "gpt-5"}, "model"),
    ({"model": ""}, "model"),
    ({"model": 5}, "model"),
    ({"model": ScriptedProvider}, "model"),
    ({"database_url": "mysql://me:hunter22@host/x"}, "database_url"),
    ({"database_url": "postgresql://me:hun@ter22@host/x"}, "database_url"),
    ({"session_db_path": "postgresql://me:hunter22@host/x"}, "session_db_path"),
    ({"model": "openai:hunter22@host.example"}, "model"),
    ({"model": "sk-hunter22"}, "model"),
    ({"tenant": "postgresql://me:hunter22@host/x"}, "tenant"),
    ({"memory": "postgresql://me:hunter22@host/x"}, "memory"),
    ({"tools": "postgresql://me:hunter22@host/x"}, "tools"),
    ({"tenant": "a b"}, "tenant"),
    ({"memory": "mine"}, "memory"),
    ({"telemetry": True}, "telemetry"),
    ({"provider_registry": {}}, "provider_registry"),
    ({"tool_registry": []}, "tool_registry"),
    ({"toolsets": 5}, "toolsets"),
    ({"toolsets": [5]}, "toolsets"),
    ({"tools": [5]}, "tools"),
    ({"extensions": 5}, "extensions"),
    ({"extensions": [5]}, "extensions"),
    ({"extensions": [Ranked()]}, "extensions"),
    ({"agents": "writer"}, "agents"),
    ({"handoffs": [5]}, "handoffs"),
    ({"default_snapshots": "on"}, "default_snapshots"),
    ({"permission_callback": 5}, "permission_callback"),
]


@together(("given", "name"), UNUSABLE, ids=str)
def test_an_argument_that_cannot_be_used_is_named_by_the_constructor(
    given: dict[str, Any], name: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        AgentRuntime(**given)
    assert caught.value.code == "validation_error"
    assert caught.value.details["option"] == name
    assert name in caught.value.message
    assert "hun" not in caught.value.message


ADDRESS = "postgresql://me:hunter22@host/x"


@together(
    "given",
    [
        *({"model": text} for text in ("sk-hunter22", ADDRESS, f"openai:m@{ADDRESS}")),
        *({name: ADDRESS} for name in ("agent", "mode", "permission_mode", "session_id", "memory")),
        *({name: ADDRESS} for name in ("reasoning", "output_mode", "tools", "stop")),
    ],
    ids=str,
)
async def test_no_option_of_a_run_is_repeated_that_may_be_a_key_or_an_address(
    project: Path, given: dict[str, Any]
) -> None:
    async with AgentRuntime(project, model=ScriptedProvider(["hi"]), persist=False) as made:
        with pytest.raises(ConfigError) as caught:
            await made.run("hello", **given)
    assert "hunter22" not in f"{caught.value!r} {caught.value.details}"


async def test_no_other_model_of_the_configuration_is_repeated_that_may_be_a_key(
    project: Path,
) -> None:
    config = {"model": "openai:m", "compact": {"model_profile": "sk-hunter22"}}
    with pytest.raises(ConfigError, match=r"compact\.model_profile") as caught:
        await AgentRuntime(project, config=config, persist=False).run("hello")
    assert "hunter22" not in f"{caught.value!r} {caught.value.details}"


async def test_a_project_that_is_missing_is_refused_when_the_runtime_is_entered(
    project: Path,
) -> None:
    made = AgentRuntime(project / "later", model=ScriptedProvider(["hi"]), persist=False)
    with pytest.raises(ConfigError, match="project_dir") as caught:
        await made.run("hello")
    assert caught.value.code == "config_error"
    (project / "later").mkdir()
    assert (await made.run("hello")).text == "hi"
    await made.close()


async def test_a_config_keeps_what_it_forbids(project: Path) -> None:
    config = Config(
        model=ModelConfig(provider="custom", name="x"), tools=ToolsConfig(disabled=["noted"])
    )

    @tool
    def noted(text: str) -> str:
        """Note a text."""
        return text

    providers = registry(calls("noted", text="a"), "done")
    runtime = AgentRuntime(
        project,
        config=config,
        persist=False,
        provider_registry=providers,
        permission_callback=Asked("allow_once"),
    )
    async with runtime as made:
        made.register_tool(noted)
        result = await made.run("hi", events=True)
    assert "tool_not_available" in str(result.events)


async def test_without_a_home_the_users_own_settings_do_not_count(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.path / "hooks.json").write_text(BROKEN)
    (home.path / "mcp.json").write_text(BROKEN)
    (home.path / "agents").mkdir()
    (home.path / "agents" / "broken.md").write_text(BROKEN)
    (home.path / "AGENTS.md").write_text("Speak like a pirate.")
    monkeypatch.setenv("SOONG_AGENT_HOME", str(home.path))
    provider = ScriptedProvider(["hello"])
    providers = ProviderRegistry()
    providers.register("custom", lambda _: provider)
    async with AgentRuntime(project, model="custom:x", provider_registry=providers) as made:
        await made.run("hi")
    assert "pirate" not in str(provider.requests[0].system)

    with pytest.raises(ConfigError, match=r"hooks\.json"):
        async with AgentRuntime(project, model="custom:x", home_dir=home.path):
            pass


async def test_what_is_kept_in_memory_behaves_as_what_is_stored(project: Path) -> None:
    @tool(permission="readonly")
    def long_text() -> str:
        """A long text."""
        return "line\n" * 40_000

    providers = registry(calls("long_text"), "first", "second", "third")
    model = ModelConfig(provider="custom", name="x", context_window=128_000)
    made = AgentRuntime(project, model=model, persist=False, provider_registry=providers)
    async with made:
        made.register_tool(long_text)
        await made.run("one", session_id="s1")
        await made.run("two", session_id="s1")
        history = await made.replay_session("s1")
        assert [artifact.size_bytes for artifact in history.artifacts] == [200_000]
        await made.switch_node("s1", history.nodes[-2].node_id)
        await made.run("three", session_id="s1")
        path = await made.get_node_path(
            (await made.replay_session("s1")).session.active_node_id or ""
        )
        assert [node.text for node in path][-3:] == ["two", "three", "third"]

    async with made:  # it lasts as long as the object
        assert [each.session_id for each in await made.list_sessions()] == ["s1"]
        cleaned = await made.cleanup_artifacts(include_all=True, dry_run=False)
        assert (len(cleaned.deleted), cleaned.freed_bytes) == (1, 200_000)
        await made.delete_session("s1")
        with pytest.raises(StorageError, match="s1"):
            await made.replay_session("s1")


def test_scripts_continue_a_session_that_is_kept_in_memory(project: Path) -> None:
    made = AgentRuntime(
        project, model="custom:x", persist=False, provider_registry=registry("one", "two")
    )
    made.run_sync("first", session_id="s1")
    made.run_sync("second", session_id="s1")

    async def texts() -> list[str]:
        async with made:
            return [node.text for node in (await made.replay_session("s1")).nodes]

    assert asyncio.run(texts()) == ["first", "one", "second", "two"]


POOL = {"pool_id": "b", "workers": [{"agent_definition_id": "default_worker_agent"}]}


async def test_tasks_go_on_in_memory(project: Path) -> None:
    create = calls(
        "agent.task_create",
        task_id="t1",
        wal_name="work",
        title="One thing",
        steps=[{"step_id": "s1", "title": "The thing"}],
    )
    again = calls("agent.task_create", task_id="t2", wal_name="work", title="x", steps=[])
    provider = ScriptedProvider([create, "planned", again, "seen", "seen again"])
    made = AgentRuntime(
        project,
        config={"model": "custom:x", "agents": {"worker_pools": [POOL]}},
        model=provider,
        persist=False,
    )
    async with made:
        await made.run("plan", session_id="s1", mode="orchestrator")
        await made.run("go on", session_id="s1", mode="orchestrator")
    async with made:
        await made.run("and on", session_id="s1", mode="orchestrator")

    assert "One thing" in str(provider.requests[2].messages[-1])
    assert "path_conflict" in str(provider.requests[3].messages)
    assert "One thing" in str(provider.requests[4].messages[-1])
    assert list(project.iterdir()) == []


PROGRAM = '''
import asyncio, json, os, sys

touched = []

def look(name, args):
    if name == "open":
        path, mode, flags = args
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and str(path) != "/dev/null":
            touched.append(str(path))
        elif "home" in str(path):
            touched.append(str(path))
    elif name in ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.chmod", "sqlite3.connect"):
        touched.append(f"{name} {args[0]}")

from agent_core import AgentRuntime, tool
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.scripted import ScriptedProvider, calls

@tool(permission="readonly")
def long_text() -> str:
    """A long text."""
    return "line\\n" * 40_000

create = calls("agent.task_create", task_id="t", wal_name="w", title="T", steps=[])
provider = ScriptedProvider([calls("long_text"), calls("missing"), "done", create, "again"])
pool = {"pool_id": "b", "workers": [{"agent_definition_id": "default_worker_agent"}]}
model = {"provider": "custom", "name": "x", "context_window": 128_000}
config = {"model": model, "agents": {"worker_pools": [pool]}}
providers = ProviderRegistry()
providers.register("custom", lambda _: provider)

async def main():
    async with AgentRuntime(
        sys.argv[1], config=config, persist=False, debug=True, provider_registry=providers
    ) as made:
        made.register_tool(long_text)
        await made.run("one", session_id="s1")
        await made.run("two", session_id="s1", mode="orchestrator")
        await (await made.compact_session("s1")).wait()

sys.dont_write_bytecode = True
sys.addaudithook(look)
asyncio.run(main())
print(json.dumps(touched))
'''


def test_nothing_is_written(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    environ = {
        **{name: value for name, value in os.environ.items() if name.startswith(("LC_", "LANG"))},
        "HOME": str(home),
        "SOONG_AGENT_HOME": str(home),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, program_file(PROGRAM), str(project)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) <= {"sqlite3.connect :memory:"}
    assert not home.exists()
    assert list(project.iterdir()) == []


async def test_an_environment_variable_names_the_model(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOONG_AGENT_MODEL", "custom:script")
    providers = registry("hello", "again", "third")
    async with AgentRuntime(project, home_dir=home.path, provider_registry=providers) as made:
        assert (await made.run("hi")).text == "hello"
    home.write_config('[model]\nprovider = "ollama"\nname = "a"\n[tools]\ndisabled = ["noted"]\n')
    async with AgentRuntime(project, home_dir=home.path, provider_registry=providers) as made:
        assert (await made.run("hi")).status is RunStatus.COMPLETED
    async with AgentRuntime(
        project, model="custom:b", persist=False, provider_registry=providers
    ) as made:
        assert (await made.run("hi")).text == "third"
    monkeypatch.setenv("SOONG_AGENT_MODEL", "gpt-5")
    with pytest.raises(ConfigError, match="gpt-5"):
        async with AgentRuntime(project, home_dir=home.path):
            pass


@pytest.mark.parametrize(
    "given",
    [
        {"project_dir": "~nosuchuser/x"},
        {"home_dir": "~nosuchuser/x", "model": None},
        {"config_path": "~nosuchuser/x", "model": None},
        {"session_db_path": "~nosuchuser/x"},
        {"model": "scripted:~nosuchuser/x"},
        {"model": "local:~nosuchuser/x"},
        {
            "config": {"model": {"provider": "local", "name": "m", "path": "~nosuchuser/x"}},
            "model": None,
        },
    ],
    ids=str,
)
async def test_a_path_in_the_home_of_an_unknown_user_is_refused(
    project: Path, given: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {"project_dir": project, "model": "openai:m", **given}
    with pytest.raises(ConfigError, match="~nosuchuser/x"):
        async with AgentRuntime(**arguments) as made:
            await made.start("hello")

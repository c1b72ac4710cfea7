"""What the options of a run do to it, how they are stored, and what a kill leaves of them."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentCoreError,
    AgentDefinition,
    AgentRuntime,
    ConfigError,
    ErrorCode,
    EventType,
    ExtensionContext,
    ModelConfig,
    RunError,
    RunOptions,
    ToolDefinition,
    ToolPermission,
    tool,
)
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import Fails, Hangs, ScriptedProvider, calls
from agent_core.storage.migrations import LEDGER, MIGRATIONS
from agent_core.types import ModelRequest, RunRecord
from isolation import Home
from runtimes import CONFIG, Asked, runtime
from sweeps import sampled

SECRET = "s3cret-value-of-a-key"  # noqa: S105 - made up


@tool(permission="readonly")
def stock(item: str) -> int:
    """How many of an item are left."""
    return len(item)


def system_of(request: ModelRequest) -> str:
    return "\n".join(block.content for block in request.system)


def names_of(request: ModelRequest) -> set[str]:
    return {each.name for each in request.tools}


def other_provider(made: AgentRuntime, key: str, *script: Any) -> ScriptedProvider:
    provider = ScriptedProvider(script)

    def factory(_: ModelConfig) -> ProviderAdapter:
        return provider

    made.register_provider(key, factory)
    return provider


async def test_instructions_are_the_same_block_in_every_turn_of_their_run_only(
    home: Home, project: Path
) -> None:
    provider = ScriptedProvider([calls("stock", item="a"), "done", "plain"])
    async with runtime(home, project, provider) as made:
        made.register_tool(stock)
        await made.run("one", session_id="s1", instructions="Speak like a pirate.")
        await made.run("two", session_id="s1")

    first, second, plain = provider.requests
    assert first.system == second.system
    assert "Speak like a pirate." in system_of(first)
    assert "Speak like a pirate." not in system_of(plain)
    static = [block.block_id for block in first.system if not block.dynamic]
    assert static[-1] == "run_instructions"


async def test_long_instructions_are_never_cut(home: Home, project: Path) -> None:
    text = "rule\n" * 14_000
    provider = ScriptedProvider(["done"])
    config = CONFIG.replace("32000", "64000")
    async with runtime(home, project, provider, config=config) as made:
        await made.run("one", instructions=text)
    assert text in system_of(provider.requests[0])


async def test_a_run_has_the_model_that_it_asks_for(home: Home, project: Path) -> None:
    async with runtime(home, project, ["mine", "mine"]) as made:
        other = other_provider(made, "other", "theirs", "theirs again")
        assert (await made.run("one", model="other:large")).text == "theirs"
        assert (await made.run("two")).text == "mine"
        whole = ModelConfig(provider="other", name="small", context_window=16_000)
        assert (await made.run("three", model=whole)).text == "theirs again"
        assert (await made.run("four", model=ScriptedProvider(["brought"]))).text == "brought"
    assert [request.model for request in other.requests] == ["large", "small"]


async def test_a_runtime_takes_an_adapter_as_its_model(project: Path) -> None:
    provider = ScriptedProvider(["hello"])
    async with AgentRuntime(project, model=provider, persist=False) as made:
        assert (await made.run("hi")).text == "hello"
    provider.assert_complete()
    assert not provider.closed


async def test_a_model_that_cannot_be_had_stores_nothing(home: Home, project: Path) -> None:
    async with runtime(home, project) as made:
        for model, reason in (
            ("gpt-5", "must be provider:name"),
            ("nobody:x", "not a known provider"),
            ("openai:x@localhost:1", "an address http"),
        ):
            with pytest.raises(ConfigError, match=reason):
                await made.start("hi", model=model)
        assert await made.list_sessions() == []


async def test_the_name_of_an_override_is_a_model(home: Home, project: Path) -> None:
    config = CONFIG + '[model_overrides.cheap]\nname = "cheap-one"\n'
    provider = ScriptedProvider(["a"])
    async with runtime(home, project, provider, config=config) as made:
        await made.run("hi", model="cheap")
    assert provider.requests[0].model == "cheap-one"


async def test_tools_bound_what_a_run_has(home: Home, project: Path) -> None:
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    definition = ToolDefinition(
        name="echo",
        description="Say it again.",
        input_schema={},
        permission=ToolPermission.READONLY,
    )
    provider = ScriptedProvider(["a"] * 4)
    async with runtime(home, project, provider) as made:
        made.register_tool(stock)
        await made.run("one", tools=["code.read_file", stock, double])
        await made.run("two", tools=[])
        await made.run("three", tools=[(definition, lambda arguments, context: "x")])
        await made.run("four", disabled_tools=["code.read_file", "stock"])

    first, second, third, fourth = map(names_of, provider.requests)
    assert first == {"code.read_file", "stock", "double"}
    assert second == set()
    assert third == {"echo"}
    assert "code.list_dir" in fourth
    assert not fourth & {"code.read_file", "stock"}


async def test_a_tool_of_a_run_is_called(home: Home, project: Path) -> None:
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    asked = Asked("allow_once")
    provider = ScriptedProvider([calls("double", number=21), "done"])
    async with runtime(home, project, provider, permission_callback=asked) as made:
        await made.run("one", tools=[double])
    (result,) = provider.requests[1].messages[-1].content
    assert "42" in str(result)
    assert [request.tool_name for request in asked.requests] == ["double"]


async def test_what_is_disabled_stays_disabled(home: Home, project: Path) -> None:
    provider = ScriptedProvider(["a"])
    config = CONFIG + '[tools]\ndisabled = ["code.read_file"]\n'
    async with runtime(home, project, provider, config=config) as made:
        await made.run("one", tools=["code.read_file", "code.list_dir"])
    assert names_of(provider.requests[0]) == {"code.list_dir"}


WRONG_TOOLS: list[tuple[dict[str, Any], str]] = [
    ({"tools": ["code.read_fil"]}, "tools names code.read_fil.*mean code.read_file"),
    ({"disabled_tools": ["code.read_fil"]}, "disabled_tools names code.read_fil.*mean code"),
    (
        {"tools": [tool(name="code.read_file")(lambda: 1)]},
        "code.read_file cannot be the name of a tool",
    ),
    ({"tools": [stock, tool(name="stock")(lambda: 1)]}, "already a tool named stock"),
    ({"tools": [iter]}, "cannot be a tool"),
]


@pytest.mark.parametrize(
    ("given", "reason"), sampled(WRONG_TOOLS, keep=2), ids=lambda each: str(each)[:40]
)
async def test_a_tool_that_there_is_not_is_named(
    home: Home, project: Path, given: dict[str, Any], reason: str
) -> None:
    async with runtime(home, project) as made:
        with pytest.raises(AgentCoreError, match=reason) as caught:
            await made.start("hi", **given)
        assert await made.list_sessions() == []
    assert caught.value.code == "validation_error"


@pytest.mark.parametrize(("asked", "had"), [(2, 2), (50, 3)])
async def test_the_smaller_number_of_turns_wins(
    home: Home, project: Path, asked: int, had: int
) -> None:
    provider = ScriptedProvider(lambda _: calls("stock", item="a"))
    config = CONFIG + "[runtime]\nmax_turns = 3\n"
    async with runtime(home, project, provider, config=config) as made:
        made.register_tool(stock)
        with pytest.raises(RunError) as caught:
            await made.run("one", max_turns=asked)
    assert caught.value.code == "max_turns"
    assert len(provider.requests) == had


async def test_options_are_stored_with_the_run_and_shown(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    home_config = CONFIG + 'api_key_env = "MY_KEY"\n'
    options = RunOptions(
        instructions=f"Use {SECRET}.",
        tools=["code.read_file"],
        deps=object(),
        max_turns=4,
        metadata={"ticket": 7, "key": SECRET, "\ud800": ["\udfff"]},
    )
    async with runtime(home, project, ["a", "b"], config=home_config) as made:
        result = await made.run("hi", options=options)
        plain = await made.run("hi")
        (run,) = (await made.replay_run(result.run_id)).runs
        (other,) = (await made.replay_run(plain.run_id)).runs

    stored = run.options
    assert stored is not None
    assert stored.tools == ["code.read_file"]
    assert stored.max_turns == 4
    assert stored.needs_caller == ["deps"]
    assert stored.metadata["ticket"] == 7
    assert SECRET not in str(stored)
    assert other.options is None
    for path in home.path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


async def test_the_secrets_of_a_runs_own_model_are_kept_out(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", SECRET)
    model = ModelConfig(
        provider="other",
        name="x",
        api_key_env="THEIR_KEY",
        base_url="http://me:hunter22hunter22@127.0.0.1:1/v1",
    )
    async with runtime(home, project) as made:
        other_provider(made, "other", f"the key is {SECRET} and hunter22hunter22")
        result = await made.run("hi", model=model, metadata={"a": SECRET})
        (run,) = (await made.replay_run(result.run_id, include_sensitive=True)).runs
    assert SECRET not in result.text
    assert run.options is not None
    assert run.options.needs_caller == ["model"]
    for path in home.path.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert SECRET.encode() not in content
        assert b"hunter22hunter22" not in content


async def test_children_have_the_runs_model_and_no_more_tools(home: Home, project: Path) -> None:
    delegate = calls("agent.create_sub_agent", task="look")
    async with runtime(home, project) as made:
        other = other_provider(made, "other", delegate, "child", "done")
        made.register_tool(stock)
        await made.run(
            "one",
            model="other:x",
            instructions="Speak like a pirate.",
            tools=["agent.create_sub_agent", "code.read_file", "stock"],
            disabled_tools=["stock"],
        )
    lead, child, _ = other.requests
    assert names_of(lead) == {"agent.create_sub_agent", "code.read_file"}
    assert {name for name in names_of(child) if name.startswith(("code.", "stock"))} == {
        "code.read_file"
    }
    assert "pirate" not in system_of(child)


SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "seed": 7,
    "stop": ["END"],
    "reasoning": "low",
    "max_output_tokens": 900,
}


def sampling_of(request: ModelRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in SAMPLING}


async def test_a_run_says_how_its_model_answers(home: Home, project: Path) -> None:
    provider = ScriptedProvider([calls("code.list_dir", path="."), "done", "plain"])
    config = CONFIG + "temperature = 1.0\nmax_output_tokens = 700\n"
    async with runtime(home, project, provider, config=config) as made:
        result = await made.run("one", **SAMPLING)
        await made.run("two")
        (run,) = (await made.replay_run(result.run_id)).runs
        rebuilt = (await made.inspect_run(result.run_id)).requests
    first, second, plain = map(sampling_of, provider.requests)
    assert first == second == SAMPLING
    assert plain == {
        "temperature": 1.0,
        "seed": None,
        "stop": [],
        "reasoning": None,
        "max_output_tokens": 700,
    }
    assert run.options is not None
    assert {name: getattr(run.options, name) for name in SAMPLING} == SAMPLING
    assert [sampling_of(each) for each in rebuilt] == [SAMPLING, SAMPLING]


async def test_a_model_that_takes_over_is_asked_in_the_same_way(home: Home, project: Path) -> None:
    broken = ScriptedProvider([Fails(code=ErrorCode.PROVIDER_ERROR, retryable=True)])
    config = CONFIG + (
        "[model.retry]\nmax_attempts = 1\n"
        '[[model_fallbacks]]\nprovider = "other"\nname = "second"\ncontext_window = 32000\n'
    )
    async with runtime(home, project, broken, config=config) as made:
        other = other_provider(made, "other", calls("code.list_dir", path="."), "done")
        await made.run("one", **SAMPLING)
    assert [sampling_of(each) for each in other.requests] == [SAMPLING, SAMPLING]


@pytest.mark.parametrize("own_model", [None, "other:own"])
async def test_children_are_asked_as_the_run_is_on_the_same_model(
    home: Home, project: Path, own_model: str | None
) -> None:
    definition = AgentDefinition(
        agent_definition_id="looker",
        name="Looker",
        description="Looks.",
        model_profile=own_model,
    )
    delegate = calls("agent.create_sub_agent", task="look", agent_definition_id="looker")
    async with runtime(home, project) as made:
        other = other_provider(made, "other", delegate, "child", "done")
        made.register_agent_definition(definition)
        await made.run("one", model="other:x", **SAMPLING)
    _, child, _ = other.requests
    inherited = {"temperature": 0.5, "seed": 7, "reasoning": "low"}
    said = sampling_of(child)
    expected = dict.fromkeys(inherited) if own_model else inherited
    assert {name: said[name] for name in inherited} == expected
    assert said["stop"] == []
    assert said["max_output_tokens"] != 900


@pytest.mark.parametrize(
    ("option", "value"),
    sampled(
        [
            ("temperature", "warm"),
            ("temperature", -1),
            ("seed", 0.5),
            ("seed", True),
            ("stop", "END"),
            ("stop", [""]),
            ("reasoning", "much"),
            ("max_output_tokens", 0),
        ],
        keep=3,
    ),
)
async def test_a_setting_that_is_none_is_named(
    home: Home, project: Path, option: str, value: Any
) -> None:
    async with runtime(home, project) as made:
        with pytest.raises(AgentCoreError, match=option) as caught:
            await made.start("one", **{option: value})
        assert await made.list_sessions() == []
    assert caught.value.details == {"option": option}


async def test_instructions_may_be_a_function_of_the_deps(home: Home, project: Path) -> None:
    provider = ScriptedProvider([calls("stock", item="a"), "done", "again", "nothing"])
    seen: list[ExtensionContext] = []

    def written(context: ExtensionContext) -> str:
        seen.append(context)
        return f"You serve {context.deps['name']}."

    async def awaited(context: ExtensionContext) -> str:
        return written(context) + " Softly."

    def silent(context: ExtensionContext) -> None:
        seen.append(context)

    async with runtime(home, project, provider) as made:
        made.register_tool(stock)
        result = await made.run("one", instructions=written, deps={"name": "Ada"})
        options = RunOptions(instructions=awaited, deps={"name": "Bob"})
        await made.run("two", options=options)
        await made.run("three", instructions=silent)
        (run,) = (await made.replay_run(result.run_id)).runs
    first, second, third, fourth = map(system_of, provider.requests)
    assert "You serve Ada." in first
    assert first == second
    assert "You serve Bob. Softly." in third
    assert "You serve" not in fourth
    assert [context.run.run_id == result.run_id for context in seen] == [True, False, False]
    assert run.options is not None
    assert run.options.instructions == "You serve Ada."


@pytest.mark.parametrize(
    ("result", "reason"), [(7, "returned an int"), (ValueError("no such user"), "no such user")]
)
async def test_a_function_that_writes_no_instructions_is_refused(
    home: Home, project: Path, result: Any, reason: str
) -> None:
    def write(_: ExtensionContext) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    async with runtime(home, project) as made:
        with pytest.raises(AgentCoreError, match=reason):
            await made.start("one", instructions=write)
        assert await made.list_sessions() == []


async def test_a_budget_may_be_a_mapping(home: Home, project: Path) -> None:
    budget: Any = {"requests": 1}
    async with runtime(home, project, [calls("code.list_dir", path="."), "never"]) as made:
        with pytest.raises(RunError) as caught:
            await made.run("one", budget=budget)
    assert caught.value.code == "budget_exceeded"


async def test_a_definition_names_its_model_in_one_string(home: Home, project: Path) -> None:
    definition = AgentDefinition(
        agent_definition_id="looker", name="Looker", description="Looks.", model_profile="other:own"
    )
    delegate = calls("agent.create_sub_agent", task="look", agent_definition_id="looker")
    async with runtime(home, project, [delegate, "done"]) as made:
        other = other_provider(made, "other", "child")
        made.register_agent_definition(definition)
        await made.run("one")
        with pytest.raises(ConfigError, match="must be provider:name"):
            made.register_agent_definition(
                definition.model_copy(
                    update={"agent_definition_id": "other", "model_profile": "own"}
                )
            )
    assert [request.model for request in other.requests] == ["own"]


async def test_a_definition_with_a_model_keeps_it(home: Home, project: Path) -> None:
    folder = home.path / "agents"
    folder.mkdir()
    header = "id: looker\nname: Looker\ndescription: Looks.\n"
    (folder / "looker.md").write_text(f"---\n{header}model_profile:\n  name: own\n---\nLook.\n")
    delegate = calls("agent.create_sub_agent", task="look", agent_definition_id="looker")
    async with runtime(home, project) as made:
        other = other_provider(made, "other", delegate, "child", "done")
        await made.run("one", model="other:x")
    assert [request.model for request in other.requests] == ["x", "own", "x"]


async def test_an_orchestrator_keeps_its_own_tools(home: Home, project: Path) -> None:
    pool = (
        '[[agents.worker_pools]]\npool_id = "p"\n'
        '[[agents.worker_pools.workers]]\nagent_definition_id = "default_sub_agent"\n'
    )
    provider = ScriptedProvider(["done"])
    async with runtime(home, project, provider, config=CONFIG + pool) as made:
        await made.run("one", mode="orchestrator", tools=["code.read_file"])
    names = names_of(provider.requests[0])
    assert "agent.dispatch_worker" in names
    assert {name for name in names if not name.startswith(("agent.", "internal."))} <= {
        "code.read_file"
    }


async def test_a_queued_run_keeps_its_options(home: Home, project: Path) -> None:
    provider = ScriptedProvider([Hangs(text="hm "), "second"])
    async with runtime(home, project, provider) as made:
        first = await made.start("one", session_id="s1")
        async for event in first.events():
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                break
        second = await made.start("two", "s1", instructions="Speak like a pirate.")
        assert second.status == "queued"
        await first.cancel()
        await second.wait()
    assert "pirate" in system_of(provider.requests[-1])


VICTIM = """
import asyncio, os, sys
from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs, ScriptedProvider
from pydantic import BaseModel

class City(BaseModel):
    name: str

async def main():
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_provider("custom", lambda model: ScriptedProvider([Hangs(text="hm ")]))
    runtime.register_provider("other", lambda model: ScriptedProvider([]))
    async with runtime:
        first = await runtime.start("first", session_id="s1")
        async for event in first.events():
            if event.event_type == "model_text_delta":
                break
        await runtime.start(
            "second", "s1", model="other:x", instructions="Speak like a pirate.",
            tools=["code.read_file"], max_turns=1, metadata={"a": 1},
        )
        await runtime.start("third", "s1", deps=object(), tools=[lambda: 1][:0])
        await runtime.start(
            "fourth", "s1", disabled_tools=["code.read_file"], output_type=City, output_retries=0,
        )
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_a_run_that_another_process_takes_over_keeps_its_options(
    home: Home, project: Path
) -> None:
    home.write_config(CONFIG)
    script = home.write("victim.py", VICTIM)
    arguments = [sys.executable, str(script), str(home.path), str(project)]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    provider = ScriptedProvider(['{"name": "Rome"}', "of the fifth"])
    async with runtime(home, project, provider) as made:
        other = other_provider(made, "other", calls("code.read_file", path="a"))
        await made.run("fifth", session_id="s1")
        runs = (await made.replay_session("s1")).runs

    by_text: dict[str, RunRecord] = dict(
        zip(("first", "second", "third", "fourth", "fifth"), runs, strict=True)
    )
    (request,) = other.requests
    assert request.model == "x"
    assert "pirate" in system_of(request)
    assert names_of(request) == {"code.read_file"}
    assert by_text["second"].error is not None
    assert by_text["second"].error.code == "max_turns"
    third = by_text["third"].error
    assert third is not None
    assert (third.code, third.details["options"]) == ("config_error", ["deps"])
    assert "start the run again" in third.message
    assert by_text["fourth"].status == by_text["fifth"].status == "completed"
    assert "code.read_file" not in names_of(provider.requests[0])
    assert provider.requests[0].output is not None
    assert provider.requests[0].output.name == "City"
    assert "code.read_file" in names_of(provider.requests[1])
    assert provider.requests[1].output is None


def make_older(database: Path, version: int) -> None:
    """Replace a database by one of an earlier schema with the same rows."""
    older = database.with_name("older.sqlite")
    with closing(sqlite3.connect(older, isolation_level=None)) as connection:
        connection.execute(LEDGER)
        for migration in MIGRATIONS[:version]:
            for statement in migration.statements:
                connection.execute(statement)
            row = (migration.version, migration.name, "then")
            connection.execute("INSERT INTO schema_migrations VALUES (?, ?, ?)", row)
        connection.execute("ATTACH ? AS newer", (str(database),))
        for table in ("sessions", "agents", "runs", "nodes", "events"):
            found = f"FROM pragma_table_info('{table}', "
            there = {name for (name,) in connection.execute(f"SELECT name {found}'newer')")}
            here = [name for (name,) in connection.execute(f"SELECT name {found}'main')")]
            columns = ", ".join(name for name in here if name in there)
            connection.execute(
                f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}"  # noqa: S608
            )
    older.replace(database)


async def test_options_of_an_earlier_schema_are_none(home: Home, project: Path) -> None:
    async with runtime(home, project, ["a"]) as made:
        await made.run("one", session_id="s1")
    make_older(home.path / "sessions.sqlite", 4)
    async with runtime(home, project, ["b"]) as made:
        await made.run("two", session_id="s1", max_turns=2)
        runs = (await made.replay_session("s1")).runs
    assert [run.options and run.options.max_turns for run in runs] == [None, 2]

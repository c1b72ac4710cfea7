"""Toolsets of a runtime and of one run: opened once, closed on every way out, MCP servers too."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    Agent,
    AgentCoreError,
    AgentRuntime,
    ConfigError,
    ErrorCode,
    EventType,
    McpHttp,
    McpStdio,
    RunError,
    ToolContext,
    ToolDefinition,
    Toolset,
    tool,
)
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider
from agent_core.tools import Tool, toolsets
from mcp_bench import SERVERS
from tables import together


@tool(permission="readonly")
async def ping() -> str:
    """Ping."""
    return "pong"


@tool(permission="readonly")
async def pong() -> str:
    """Pong."""
    return "ping"


class Database(Toolset):
    """Counts how often it was opened and closed."""

    def __init__(self, name: str = "db", fails: int = 0, **more: Any) -> None:
        super().__init__(name, **more)
        self.opened = self.closed = 0
        self.fails = fails

    async def open(self) -> Iterable[Tool]:
        self.opened += 1
        if self.opened <= self.fails:
            raise OSError("no route to the database")

        @tool(permission="readonly")
        async def query(text: str) -> str:
            """Ask."""
            assert self.opened > self.closed
            return f"rows of {text}"

        return [query]

    async def close(self) -> None:
        self.closed += 1


def call(name: str, **arguments: Any) -> Calls:
    return Calls(calls=[ScriptedCall(name=name, arguments=arguments)])


@asynccontextmanager
async def opened(
    tmp_path: Path, script: list[Any], *toolsets: Toolset
) -> AsyncGenerator[tuple[AgentRuntime, ScriptedProvider]]:
    provider = ScriptedProvider(script)
    config = {"model": {"provider": "custom", "name": "m", "context_window": 32_000}}
    made = AgentRuntime(tmp_path, config=config, persist=False, toolsets=toolsets)
    made.register_provider("custom", lambda _: provider)
    async with made:
        yield made, provider


def names(provider: ScriptedProvider, turn: int = 0) -> set[str]:
    return {each.name for each in provider.requests[turn].tools}


def plain(tmp_path: Path, *traits: str, name: str = "shop", **more: Any) -> McpStdio:
    env = {"PLAIN_DIARY": str(tmp_path / "diary")}
    arguments = [str(SERVERS / "plain.py"), *traits]
    return McpStdio(name, sys.executable, arguments, env=env, **more)


def diary(tmp_path: Path) -> str:
    path = tmp_path / "diary"
    return path.read_text("utf-8") if path.exists() else ""


async def test_a_toolset_of_the_runtime_is_opened_once_and_closed_with_it(tmp_path: Path) -> None:
    db = Database(prefix="db.")
    script = [call("db.query", text="a"), "done", "again"]
    async with opened(tmp_path, script, db) as (made, provider):
        assert db.opened == 0
        await made.run("look")
        await made.run("more")
        assert (db.opened, db.closed) == (1, 0)
    assert (db.opened, db.closed) == (1, 1)
    assert "db.query" in names(provider) & names(provider, 2)
    assert "rows of a" in str(provider.requests[1].messages)


async def test_the_tools_of_a_runtime_are_those_of_every_run(tmp_path: Path) -> None:
    def hello(name: str) -> str:
        """Greet."""
        return f"hello {name}"

    definition = ToolDefinition(
        name="shop.price", description="Price.", input_schema={"type": "object"}
    )

    def price(arguments: dict[str, Any], context: ToolContext) -> str:
        return "7"

    database = Database()
    given: Any = [hello, ping, (definition, price), database]
    provider = ScriptedProvider([call("ping"), "one", "two"])
    async with AgentRuntime(tmp_path, model=provider, persist=False, tools=given) as made:
        await made.run("hi", "s1")
        await made.run("hi", "s2", tools=[ping, "hello"])
        with pytest.raises(AgentCoreError, match="already a tool named"):
            await made.run("hi", "s3", tools=[tool(name="ping")(hello)])
        with pytest.raises(ConfigError, match="already a tool named ping"):
            made.register_tool(ping)
    assert {"hello", "ping", "shop.price", "query"} <= names(provider)
    assert names(provider, 2) == {"ping", "hello"}
    assert database.opened == database.closed == 1


@together(
    ("given", "reason"),
    [
        (["ping"], "of a runtime names ping"),
        ("ping", "must be a list"),
        ([7], r"tools\[0\] is an int; a tool is .* known tool$"),
        ([Agent("clerk")], "known tool; give the agent's as_tool"),
        ([tool(name="agent.ping")(lambda: "a")], "names that begin with"),
    ],
)
def test_what_is_no_tool_of_a_runtime_is_refused_where_it_is_given(given: Any, reason: str) -> None:
    with pytest.raises(AgentCoreError, match=reason):
        AgentRuntime(model=ScriptedProvider([]), tools=given)


async def test_a_tool_of_a_run_takes_no_reserved_name(tmp_path: Path) -> None:
    async with AgentRuntime(tmp_path, model=ScriptedProvider([]), persist=False) as made:
        for name in ("agent.ping", "internal.ping", "mcp.a.ping", "code__ping"):
            with pytest.raises(ConfigError, match="names that begin with"):
                await made.start("hi", tools=[tool(name=name)(lambda: "a")])


async def test_a_toolset_of_a_run_is_open_for_that_run_alone(tmp_path: Path) -> None:
    db = Database()
    script = [call("query", text="a"), "done", "again"]
    async with opened(tmp_path, script) as (made, provider):
        await made.run("look", tools=["code.read_file", db])
        assert (db.opened, db.closed) == (1, 1)
        await made.run("more")
    assert names(provider) == {"code.read_file", "query"}
    assert "query" not in names(provider, 2)


@together("way", ["fails", "is cancelled", "breaks"])
async def test_it_is_closed_on_every_way_out(tmp_path: Path, way: str) -> None:
    hangs = asyncio.Event()

    @tool(permission="readonly")
    async def hang() -> None:
        """Hang."""
        hangs.set()
        await asyncio.Event().wait()

    db, other = Database(), Toolset("other", [hang])
    script = [call("hang")] if way == "is cancelled" else []
    async with opened(tmp_path, script) as (made, _):
        handle = await made.start("look", tools=[db, other])
        if way == "is cancelled":
            await hangs.wait()
            await handle.cancel()
        else:
            await handle.wait()
        assert handle.status != "completed"
        assert (db.opened, db.closed) == (1, 1)


class Slow(Database):
    """Opens, and closes, when it may."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.begun, self.may_open, self.may_close = (asyncio.Event() for _ in range(3))
        self.may_close.set()

    async def open(self) -> Iterable[Tool]:
        self.begun.set()
        await self.may_open.wait()
        return await super().open()

    async def close(self) -> None:
        await self.may_close.wait()
        await super().close()


async def test_a_run_that_is_cancelled_while_another_opens_closes_nothing(tmp_path: Path) -> None:
    db = Slow()
    ask = call("query", text="all")
    async with opened(tmp_path, [ask, "done"]) as (made, _):
        first = await made.start("look", tools=[db])
        await db.begun.wait()
        second = await made.start("look", tools=[db])
        await asyncio.sleep(0.2)  # it waits for its turn by now
        cancelled = asyncio.create_task(second.cancel())
        await asyncio.sleep(0.1)
        db.may_open.set()
        await cancelled
        assert (await first.result()).output == "done"
        replay = await made.replay_run(first.run_id)
        assert EventType.TOOL_COMPLETED in [event.event_type for event in replay.events]
    assert (db.opened, db.closed) == (1, 1)


async def test_a_run_that_waits_for_one_that_fails_to_open_opens_it_itself(tmp_path: Path) -> None:
    db = Slow(fails=1)
    async with opened(tmp_path, [call("query", text="all"), "done"]) as (made, provider):
        first = await made.start("look", tools=[db])
        await db.begun.wait()
        second = await made.start("look", tools=[db])
        await asyncio.sleep(0.2)
        db.may_open.set()
        assert await first.wait() == "failed"
        assert (await second.result()).output == "done"
        assert "query" in names(provider)
    assert (db.opened, db.closed) == (2, 2)


async def test_a_run_does_not_wait_for_ever_for_what_does_not_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolsets, "_LONGEST_CLOSE_S", 0.1)
    db = Slow()
    db.may_open.set()
    db.may_close.clear()
    async with opened(tmp_path, ["done"]) as (made, _):
        assert (await made.run("look", tools=[db])).output == "done"


class Leaving(Toolset):
    async def open(self) -> Iterable[Tool]:
        sys.exit(3)

    async def close(self) -> None:
        sys.exit(3)


BROKEN: list[tuple[Toolset, str]] = [
    (Leaving("db"), "cannot be opened: SystemExit"),
    (Toolset("db", [ping], filter=lambda _: bool(1 / 0)), "filter or prefix.*ZeroDivisionError"),
    (Toolset("db", [ping], prefix="a b "), "filter or prefix.*should match pattern"),
]


@together(("toolset", "reason"), BROKEN)
async def test_what_breaks_in_a_toolset_fails_the_run_and_not_the_program(
    tmp_path: Path, toolset: Toolset, reason: str
) -> None:
    async with opened(tmp_path, ["done"]) as (made, _):
        with pytest.raises(RunError, match=f"(?s)'db' .*{reason}") as caught:
            await made.run("look", tools=[toolset])
        assert caught.value.code is ErrorCode.TOOL_NOT_AVAILABLE
        assert (await made.run("go on")).output == "done"


async def test_runs_side_by_side_share_what_is_open(tmp_path: Path) -> None:
    db, all_here = Database(), asyncio.Barrier(3)

    @tool(permission="readonly")
    async def meet() -> None:
        """Wait for the others."""
        await all_here.wait()

    script = [call("meet")] * 3 + ["done"] * 3
    async with opened(tmp_path, script) as (made, _):
        await asyncio.gather(*(made.run("look", tools=[db, meet]) for _ in range(3)))
        assert (db.opened, db.closed) == (1, 1)


async def test_children_have_the_tools_of_a_run(tmp_path: Path) -> None:
    child = call("agent.create_sub_agent", task="look")
    script = [child, call("query", text="a"), "child done", "done"]
    db = Database()
    async with opened(tmp_path, script) as (made, provider):
        await made.run("look", tools=["agent.create_sub_agent", db])
    assert "rows of a" in str(provider.requests[2].messages)
    assert (db.opened, db.closed) == (1, 1)


async def test_one_that_cannot_be_opened_fails_the_run_with_its_name(tmp_path: Path) -> None:
    db = Database("accounts", fails=1)
    async with opened(tmp_path, ["done"]) as (made, provider):
        with pytest.raises(RunError, match=r"'accounts' cannot be opened: OSError: no route"):
            await made.run("look", tools=[db])
        assert (db.opened, db.closed) == (1, 1)
        assert provider.requests == []
        assert (await made.run("look", tools=[db])).output == "done"


async def test_one_of_the_runtime_is_tried_again_by_a_later_run(tmp_path: Path) -> None:
    db = Database("accounts", fails=2)
    async with opened(tmp_path, ["done"], Toolset("fine", [ping]), db) as (made, provider):
        with pytest.raises(RunError, match="accounts"):
            await made.run("look")
        assert (await made.run("look")).output == "done"
        assert {"ping", "query"} <= names(provider)
    assert (db.opened, db.closed) == (3, 3)


async def test_a_filter_chooses_and_a_prefix_names(tmp_path: Path) -> None:
    first = Toolset("first", [ping, pong], filter=["ping"], prefix="a_")
    second = Toolset("second", [ping, pong], filter=lambda each: each.description == "Pong.")
    async with opened(tmp_path, ["done"], first) as (made, provider):
        await made.run("look", tools=["a_ping", second])
    assert names(provider) == {"a_ping", "pong"}


@pytest.mark.parametrize("prefix", ["", "code."])
async def test_names_that_collide_or_are_reserved_are_refused(tmp_path: Path, prefix: str) -> None:
    first, second = Toolset("first", [ping]), Toolset("second", [ping], prefix=prefix)
    async with opened(tmp_path, ["done"], first) as (made, _):
        with pytest.raises(RunError, match="ping") as caught:
            await made.run("look", tools=[second])
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
    async with opened(tmp_path, ["done"], first, second) as (made, _):
        with pytest.raises(RunError, match="ping"):
            await made.run("look")


async def test_a_server_of_the_runtime_is_like_one_of_the_home(tmp_path: Path) -> None:
    shop = plain(tmp_path, filter=["echo", "write"])
    script = [call("mcp.shop.echo", text="hi"), "done", call("mcp.shop.echo", text="ho"), "done"]
    async with opened(tmp_path, script, shop) as (made, provider):
        await made.run("look")
        await made.run("more")
        assert diary(tmp_path).count("start") == 1
    served = {name for name in names(provider) if name.startswith("mcp.")}
    assert served == {"mcp.shop.echo", "mcp.shop.write"}
    assert "hi" in str(provider.requests[1].messages[-1])


async def test_a_server_of_a_run_ends_with_it(tmp_path: Path) -> None:
    shop = plain(tmp_path)
    script = [call("mcp.shop.echo", text="hi"), "done", "more"]
    async with opened(tmp_path, script) as (made, provider):
        result = await made.run("look", tools=[shop, "code.read_file"], events=True)
        assert result.events is not None
        await made.run("more")
    kinds = [event.event_type for event in result.events]
    assert EventType.TOOL_COMPLETED in kinds
    assert "hi" in str(provider.requests[1].messages[-1])
    assert not any(name.startswith("mcp.") for name in names(provider, 2))
    assert diary(tmp_path).count("start") == 1


async def test_a_server_that_fails_is_reported_and_its_tools_are_absent(tmp_path: Path) -> None:
    bad = plain(tmp_path, "crash", name="bad")
    async with opened(tmp_path, ["done", "done"], bad) as (made, provider):
        for given in (None, [plain(tmp_path, "crash", name="worse"), "code.read_file"]):
            result = await made.run("look", tools=given, events=True)
            assert result.events is not None
            failed = [e for e in result.events if e.event_type is EventType.MCP_SERVER_FAILED]
            found = {event.payload["server_id"] for event in failed}
            assert found == ({"worse", "bad"} if given else {"bad"})
    assert names(provider, 1) == {"code.read_file"}


async def test_a_server_that_is_killed_in_a_call_fails_the_call(tmp_path: Path) -> None:
    script = [call("mcp.shop.die"), call("mcp.shop.echo", text="back"), "done"]
    shop = plain(tmp_path)
    config = {
        "model": {"provider": "custom", "name": "m", "context_window": 32_000},
        "tools": {"mcp": {"tool_overrides": {"mcp.shop": {"permission": "readonly"}}}},
    }
    provider = ScriptedProvider(script)
    made = AgentRuntime(tmp_path, config=config, persist=False)
    made.register_provider("custom", lambda _: provider)
    async with made:
        assert (await made.run("look", tools=[shop])).output == "done"
    assert "mcp_server_failed" in str(provider.requests[1].messages[-1])
    assert "back" in str(provider.requests[2].messages[-1])


async def test_two_servers_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shop"):
        async with opened(tmp_path, [], plain(tmp_path), plain(tmp_path)):
            pass
    async with opened(tmp_path, ["done"], plain(tmp_path)) as (made, _):
        with pytest.raises(RunError, match="shop"):
            await made.run("look", tools=[plain(tmp_path)])


async def test_values_of_env_and_headers_are_secrets(tmp_path: Path) -> None:
    env = {"PLAIN_DIARY": str(tmp_path / "diary"), "TOKEN": "sesame-opens-all"}
    shop = McpStdio("shop", sys.executable, [str(SERVERS / "plain.py")], env=env)
    web = McpHttp("web", "http://127.0.0.1:9/mcp", headers={"X-Key": "hunter2-hunter2"})
    script = [call("mcp.shop.echo", text="sesame-opens-all hunter2-hunter2"), "done"]
    async with opened(tmp_path, script) as (made, _):
        result = await made.run("look", tools=[shop, web])
        replay = await made.replay_run(result.run_id)
    written = "".join(node.model_dump_json() for node in replay.nodes)
    assert "sesame-opens-all" not in written
    assert "hunter2-hunter2" not in written


@together(
    ("make", "said"),
    [
        (lambda: McpStdio("a b", "x"), "name"),
        (lambda: McpStdio("a", ""), "command"),
        (lambda: McpStdio("a", "x", env={"A=B": "c"}), "env"),
        (lambda: McpHttp("a", "ftp://x"), "url"),
        (lambda: McpHttp("a", "http://u:p@x/"), "url"),
        (lambda: McpHttp("a", "http://x/", headers={"X": "a\nb"}), "headers"),
    ],
)
def test_a_server_that_cannot_be_is_refused_where_it_is_named(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        make()
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_options_never_bring_back_what_the_configuration_takes_away(tmp_path: Path) -> None:
    config = {
        "model": {"provider": "custom", "name": "m", "context_window": 32_000},
        "tools": {"disabled": ["ping"], "mcp": {"disabled_servers": ["shop"]}},
    }
    provider = ScriptedProvider(["done"])
    made = AgentRuntime(tmp_path, config=config, persist=False)
    made.register_provider("custom", lambda _: provider)
    async with made:
        await made.run("look", tools=[Toolset("first", [ping, pong]), plain(tmp_path)])
    assert names(provider) == {"pong"}
    assert diary(tmp_path) == ""

"""MCP servers over stdio: real processes, well-behaved, hostile, dying and changing."""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest

from agent_core.config.models import McpConfig, ToolOverrideConfig, ToolsConfig
from agent_core.errors import ErrorCode, ToolError
from agent_core.mcp import McpTools, ServerFailure
from agent_core.mcp.config import StdioServer
from agent_core.mcp.discovery import DiscoveryCache
from agent_core.tools.base import Concurrency
from agent_core.types import ToolPermission
from mcp_bench import bench, diary_lines, is_alive, plain
from sweeps import sampled


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


async def refusal(call: Awaitable[object]) -> ToolError:
    with pytest.raises(ToolError) as caught:
        await call
    return caught.value


async def test_n1_servers_are_started_when_their_tools_are_asked_for(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        assert bench_.lines() == []
        tools = await bench_.tools()
        assert "mcp.shop.echo" in tools
        assert await bench_.text("mcp.shop.echo", text="hi") == "hi"
        assert len(bench_.lines("start")) == 1


async def test_n2_a_server_that_fails_is_reported_and_its_tools_are_absent(diary: Path) -> None:
    script = diary.parent / "script"
    script.write_bytes(b"#!/no/such/interpreter\n")
    script.chmod(0o755)
    servers = {
        "script": StdioServer(command=str(script), cwd=str(diary.parent)),
        "homeless": StdioServer(command="sh", cwd=str(diary.parent / "gone")),
        "shell": StdioServer(command="sh", args=["-c", "./script"], cwd=str(diary.parent)),
        "good": plain(diary),
        "crash": plain(diary, "crash"),
        "absent": StdioServer(command="no-such-program-anywhere", cwd=str(diary.parent)),
        "mute": plain(diary, "mute", timeout_ms=300),
    }
    async with bench(diary, servers) as bench_:
        started = time.monotonic()
        tools = await bench_.tools()
        assert {name.split(".")[1] for name in tools} == {"good"}
        failures = {failure.server_id: failure.message for failure in bench_.failures}
        assert failures.keys() == {"crash", "absent", "mute", "script", "homeless", "shell"}
        assert "'/no/such/interpreter' does not exist" in failures["script"]
        assert "gone does not exist" in failures["homeless"]
        assert "'/no/such/interpreter' does not exist" in failures["shell"]
        assert "exit code 1: this server never works" in failures["crash"]
        assert "no-such-program-anywhere" in failures["absent"]
        assert "not ready in 0.3 s" in failures["mute"]
        assert time.monotonic() - started < 40


async def test_n3_a_disabled_server_is_never_started(diary: Path) -> None:
    off = McpConfig(disabled_servers=["shop"])
    async with bench(diary, {"shop": plain(diary)}, mcp=off) as bench_:
        assert await bench_.tools() == {}
    assert bench_.lines() == []


async def test_n4_a_disabled_tool_is_absent_and_its_neighbours_are_not(diary: Path) -> None:
    overrides = {"mcp.shop.slow": ToolOverrideConfig(disabled=True)}
    off = McpConfig(disabled_tools=["mcp.shop.echo"], tool_overrides=overrides)
    async with bench(diary, {"shop": plain(diary)}, mcp=off) as bench_:
        names = set(await bench_.tools())
    assert not names & {"mcp.shop.echo", "mcp.shop.slow"}
    assert "mcp.shop.write" in names


async def test_n5_what_is_not_marked_readonly_asks(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        tools = await bench_.tools()
        reader, writer = tools["mcp.shop.echo"], tools["mcp.shop.write"]
        assert (reader.definition.permission, reader.concurrency) == (
            ToolPermission.READONLY,
            Concurrency.READ,
        )
        assert (writer.definition.permission, writer.concurrency) == (
            ToolPermission.WRITE,
            Concurrency.WRITE,
        )
        assert reader.definition.tags == {"mcp", "readonly"}
        assert writer.definition.tags == {"mcp", "write"}
        look = await reader.prepare(reader.parse({"text": "x"}), bench_.context())
        change = await writer.prepare(writer.parse({}), bench_.context())
        assert not look.access.asks
        assert change.access.asks
        assert "shop" in (change.access.target or "")
        assert bench_.lines("call") == []


async def test_hints_that_contradict_each_other_ask_and_an_override_stands_above(
    diary: Path,
) -> None:
    mcp = McpConfig(
        tool_overrides={"mcp.shop.both_as_text": ToolOverrideConfig(permission="readonly")}
    )
    async with bench(diary, {"shop": plain(diary, "contradictory")}, mcp=mcp) as bench_:
        tools = await bench_.tools()
        asks = {
            name: (await tools[f"mcp.shop.{name}"].prepare({}, bench_.context())).access.asks
            for name in ("both", "both_as_text", "both_as_numbers", "neither", "unsaid", "reads")
        }
    assert asks == {
        "both": True,
        "both_as_text": False,
        "both_as_numbers": True,
        "neither": True,
        "unsaid": True,
        "reads": False,
    }


async def test_only_a_hint_that_is_true_in_json_makes_a_tool_readonly(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary, "unclear")}) as bench_:
        tools = await bench_.tools()
        assert bench_.failures == []
        known = {name.rpartition(".")[2]: tool.definition for name, tool in tools.items()}
    plain_ones = {"echo", "long", "slow", "march", "environment", "raw", "ask"}
    readonly = {name for name, one in known.items() if one.permission is ToolPermission.READONLY}
    assert readonly == plain_ones | {"reads"}
    assert {"text", "word", "list", "perhaps_destroys", "no_table", "title_only"} <= set(known)


async def test_overrides_of_a_tool_stand_above_those_of_its_server(diary: Path) -> None:
    overrides = {
        "mcp.shop": ToolOverrideConfig(permission="readonly", tags=["trusted"]),
        "mcp.shop.write": ToolOverrideConfig(permission="write"),
    }
    mcp = McpConfig(tool_overrides=overrides)
    async with bench(diary, {"shop": plain(diary)}, mcp=mcp) as bench_:
        tools = await bench_.tools()
    assert tools["mcp.shop.die"].definition.permission is ToolPermission.READONLY
    assert tools["mcp.shop.write"].definition.permission is ToolPermission.WRITE
    assert tools["mcp.shop.write"].definition.tags == {"mcp", "write", "trusted"}


async def test_servers_of_which_no_tool_is_wanted_are_left_alone(diary: Path) -> None:
    async with bench(diary, {"a": plain(diary), "b": plain(diary, "chatty")}) as bench_:
        (tool,) = await bench_.mcp.tools({"mcp.b.echo", "code.read_file"})
        assert tool.name == "mcp.b.echo"
        assert len(bench_.lines("start")) == 1


async def test_a_connection_is_reused_by_every_run(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        for _ in range(3):
            assert await bench_.text("mcp.shop.echo", text="hi") == "hi"
        both = await asyncio.gather(bench_.tools(), bench_.tools())
        assert set(both[0]) == set(both[1])
        assert (len(bench_.lines("start")), len(bench_.lines("list"))) == (1, 1)


async def test_runtimes_with_the_same_servers_share_a_discovery(diary: Path) -> None:
    cache = DiscoveryCache()
    servers = {"shop": plain(diary)}
    first, second = (McpTools(servers, ToolsConfig(), cache=cache) for _ in range(2))
    made = await first.tools()
    assert len(made) == len(await second.tools()) > 0
    assert all(one is other for one, other in zip(made, await first.tools(), strict=True))
    await first.aclose()
    await second.aclose()
    assert len(diary_lines(diary, "start")) == 1


async def test_an_old_discovery_is_made_again(diary: Path) -> None:
    always = McpConfig(discovery_cache_ttl_ms=0)
    async with bench(diary, {"shop": plain(diary)}, mcp=always) as bench_:
        await bench_.tools()
        await bench_.tools()
        assert (len(bench_.lines("start")), len(bench_.lines("list"))) == (1, 2)


async def test_a_changed_list_is_asked_for_again(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        before = (await bench_.tools())["mcp.shop.write"]
        await bench_.call("mcp.shop.change")
        after = (await bench_.tools())["mcp.shop.write"]
        assert after.definition.description == "Changes something else."
        versions = {tool.definition.metadata["version"] for tool in (before, after)}
        assert len(versions) == 2


async def test_what_was_agreed_to_is_not_done_if_it_has_become_something_else(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        tools = await bench_.tools()
        action = await tools["mcp.shop.write"].prepare({}, bench_.context())
        await bench_.run(tools["mcp.shop.change"])
        error = await refusal(action.run())
        assert error.code is ErrorCode.TOOL_NOT_AVAILABLE
        assert "has changed its tool write" in error.message
        assert bench_.lines("call write") == []


async def test_a_server_that_dies_fails_the_call_and_is_started_for_the_next(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary), "other": plain(diary)}) as bench_:
        neighbour = asyncio.create_task(bench_.text("mcp.other.slow", seconds=1.0))
        error = await refusal(bench_.call("mcp.shop.die"))
        assert error.code is ErrorCode.MCP_SERVER_FAILED
        assert "exit code 3: I am done for" in error.message
        assert await bench_.text("mcp.shop.echo", text="back") == "back"
        assert await neighbour == "slept"
        assert len(bench_.lines("start")) == 3


async def test_a_server_that_was_killed_while_idle_is_started_again(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        tools = await bench_.tools()
        os.kill(int(bench_.lines("start")[0].split()[1]), signal.SIGKILL)
        await asyncio.sleep(0.1)
        assert (await bench_.run(tools["mcp.shop.echo"], text="x")).is_error is False
        assert len(bench_.lines("start")) == 2


async def test_cancelling_a_call_notifies_the_server_and_harms_no_other_call(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        await bench_.tools()
        neighbour = asyncio.create_task(bench_.text("mcp.shop.slow", seconds=0.6))
        call = asyncio.create_task(bench_.call("mcp.shop.slow", seconds=30))
        await asyncio.sleep(0.2)
        started = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert time.monotonic() - started < 20
        assert await neighbour == "slept"
        assert bench_.lines("cancelled") == ["cancelled"]
        assert bench_.lines("stopped") == ["stopped slow"]
        assert len(bench_.lines("start")) == 1


async def test_a_server_that_ignores_a_cancellation_is_not_waited_for(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary, "deaf")}) as bench_:
        call = asyncio.create_task(bench_.call("mcp.shop.slow", seconds=30))
        await bench_.until("call")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await bench_.text("mcp.shop.echo", text="still here") == "still here"


async def test_a_call_without_a_sign_of_life_ends(diary: Path) -> None:
    config = ToolsConfig(default_timeout_ms=300)
    async with bench(diary, {"shop": plain(diary)}, config=config) as bench_:
        await bench_.tools()
        error = await refusal(bench_.call("mcp.shop.slow", seconds=30))
        assert error.code is ErrorCode.TIMEOUT
        marching = await bench_.text("mcp.shop.march", steps=5, pause=0.15)
        assert marching == "arrived"
        assert any("left (" in line for line in bench_.kept.lines)


async def test_progress_does_not_make_a_call_endless(diary: Path) -> None:
    config = ToolsConfig(default_timeout_ms=300, max_timeout_ms=600)
    async with bench(diary, {"shop": plain(diary)}, config=config) as bench_:
        error = await refusal(bench_.call("mcp.shop.march", steps=100, pause=0.05))
        assert error.code is ErrorCode.TIMEOUT


async def test_a_long_line_works_and_a_bomb_is_refused(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary), "bomb": plain(diary, "bomb")}) as bench_:
        assert len(await bench_.text("mcp.shop.long", length=70_000)) == 70_000
        assert len(await bench_.text("mcp.shop.long", length=4_000_000)) == 4_000_000
        (failure,) = bench_.failures[:1]
        assert failure.server_id == "bomb"
        assert "line of more than" in failure.message
        error = await refusal(bench_.call("mcp.shop.long", length=9_000_000))
        assert error.code is ErrorCode.MCP_SERVER_FAILED
        assert await bench_.text("mcp.shop.echo", text="again") == "again"


async def test_noise_is_kept_from_the_terminal_and_from_the_protocol(
    diary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with bench(diary, {"shop": plain(diary, "chatty")}) as bench_:
        assert await bench_.text("mcp.shop.echo", text="hi") == "hi"
        await refusal(bench_.call("mcp.shop.raw", line='{"jsonrpc":"2.0","id":ID,"result":[]}'))
    assert any("noise" in line for line in bench_.log)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            '{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"no"}}',
            "failed the call: no",
        ),
        ('{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no"}}', "refused the argum"),
        (
            '{"jsonrpc":"2.0","id":ID,"result":{"content":7}}',
            "its answer is not a tool result",
        ),
        ('{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"virus"}]}}', "not a tool result"),
    ],
)
async def test_a_bad_answer_is_an_error_of_this_call_only(
    diary: Path, line: str, expected: str
) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        error = await refusal(bench_.call("mcp.shop.raw", line=line))
        assert expected in error.message
        assert await bench_.text("mcp.shop.echo", text="on") == "on"
        assert len(bench_.lines("start")) == 1


def result_line(result: str) -> str:
    return f'{{"jsonrpc":"2.0","id":ID,"result":{result}}}'


@pytest.mark.parametrize(
    ("result", "expected"),
    sampled(
        [
            ('{"content":[{"type":"text","text":"a"},{"type":"virus"}]}', ["a", "cannot be read"]),
            ('{"content":[{"type":"note","body":"made"}]}', ['"body": "made"']),
            ('{"content":[{"type":"text","text":7}]}', ['"text": 7']),
            (
                '{"content":[{"type":"text","text":"a","annotations":{"audience":["robot"]}}]}',
                ["a"],
            ),
            ('{"content":"made"}', ["made"]),
            ('{"content":{"type":"text","text":"made"}}', ["made"]),
            ('{"structuredContent":{"made":1}}', ["made"]),
            ('{"content":[],"structuredContent":[1]}', ["[1]"]),
            ('{"content":[],"structuredContent":5}', ["5"]),
            ('{"toolResult":"made"}', ["made"]),
            ('{"content":[{"type":"text","text":"a"}],"isError":null,"_meta":7}', ["a"]),
        ],
        keep=2,
    ),
)
async def test_a_result_is_kept_as_far_as_it_can_be_read(
    diary: Path, result: str, expected: list[str]
) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        kept = await bench_.call("mcp.shop.raw", line=result_line(result))
        assert not kept.is_error
        written = kept.model_dump_json()
        assert all(json.dumps(each)[1:-1] in written for each in expected), written


async def test_a_result_that_does_not_fit_its_output_schema_is_kept(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary, "typed")}) as bench_:
        result = '{"content":[{"type":"text","text":"made"}],"structuredContent":{"odd":1}}'
        kept = await bench_.call("mcp.shop.typed", line=result_line(result))
        assert not kept.is_error
        assert "made" in kept.model_dump_json()


async def test_a_result_that_says_nothing_is_an_error_that_says_that_the_call_was_made(
    diary: Path,
) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        error = await refusal(bench_.call("mcp.shop.raw", line=result_line('{"content":7}')))
        assert "made the call" in error.message


async def test_text_that_is_not_unicode_is_mended(diary: Path) -> None:
    line = r'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a\ud800b"}]}}'
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        assert await bench_.text("mcp.shop.raw", line=line) == "a?b"


async def test_an_answer_nested_without_end_breaks_nothing(diary: Path) -> None:
    deep = "[" * 100_000
    config = ToolsConfig(default_timeout_ms=500)
    async with bench(diary, {"shop": plain(diary)}, config=config) as bench_:
        line = '{"jsonrpc":"2.0","id":ID,"result":' + deep
        assert (await refusal(bench_.call("mcp.shop.raw", line=line))).code is ErrorCode.TIMEOUT
        assert await bench_.text("mcp.shop.echo", text="on") == "on"


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "elicitation/create"])
async def test_what_a_server_asks_unasked_is_refused(diary: Path, method: str) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        answered = json.loads(await bench_.text("mcp.shop.ask", method=method))
        assert answered["code"] < 0


async def test_what_cannot_be_offered_safely_is_left_out(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary, "unusable")}) as bench_:
        names = set(await bench_.tools())
    assert "mcp.shop.echo" in names
    assert not {name for name in names if "vast" in name or "broken" in name or "odd" in name}
    assert len([line for line in bench_.log if "is left out" in line]) == 3
    reported = [failure.message for failure in bench_.failures]
    assert len([message for message in reported if "is left out" in message]) == 3


@pytest.mark.parametrize(("trait", "reason"), [("many", "1000 tools"), ("endless", "pages")])
async def test_a_list_beyond_all_measure_is_no_list(diary: Path, trait: str, reason: str) -> None:
    async with bench(diary, {"shop": plain(diary, trait)}) as bench_:
        assert await bench_.tools() == {}
        assert reason in bench_.failures[0].message


async def test_a_server_sees_the_allowlist_and_what_is_configured(
    diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HARMLESS", "yes")
    server = plain(diary).model_copy(update={"env": {"PLAIN_DIARY": str(diary), "MINE": "$HOME"}})
    config = ToolsConfig(env_allowlist=["PATH", "HARMLESS"])
    async with bench(diary, {"shop": server}, config=config) as bench_:
        seen = json.loads(await bench_.text("mcp.shop.environment"))
    assert seen.keys() - {"LC_CTYPE"} == {"PATH", "HARMLESS", "PLAIN_DIARY", "MINE"}
    assert seen["MINE"] == "$HOME"


async def test_a_stubborn_server_and_its_children_do_not_survive(diary: Path) -> None:
    server = plain(diary, "stubborn", "child")
    async with bench(diary, {"shop": server}) as bench_:
        await bench_.tools()
        assert len(bench_.lines("child")) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has subreapers")
@pytest.mark.parametrize("ending", ["close", "die"])
async def test_a_daemon_of_a_server_does_not_survive(diary: Path, ending: str) -> None:
    async with bench(diary, {"shop": plain(diary, "daemon")}) as bench_:
        await bench_.tools()
        await bench_.until("child")
        if ending == "die":
            await refusal(bench_.call("mcp.shop.die"))


async def test_closing_in_the_middle_of_a_start_leaves_nothing(diary: Path) -> None:
    async with bench(diary, {"mute": plain(diary, "mute")}) as bench_:
        asking = asyncio.create_task(bench_.tools())
        await bench_.until("start")
        await bench_.mcp.aclose()
        assert await asking == {}
        assert "closed while it was starting" in bench_.failures[0].message


async def test_closing_answers_the_calls_that_run(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        tools = await bench_.tools()
        call = asyncio.create_task(bench_.call("mcp.shop.slow", seconds=30))
        await bench_.until("call")
        await bench_.mcp.aclose()
        assert (await refusal(call)).code is ErrorCode.MCP_SERVER_FAILED
        late = await refusal(bench_.run(tools["mcp.shop.echo"], text="x"))
        assert "closed with its runtime" in late.message


async def test_a_run_that_is_cancelled_while_servers_start_leaves_them_to_the_others(
    diary: Path,
) -> None:
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        impatient = asyncio.create_task(bench_.tools())
        patient = asyncio.create_task(bench_.tools())
        await asyncio.sleep(0)  # both wait for the server, which cannot have answered yet
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert "mcp.shop.echo" in await patient


def test_a_program_that_is_interrupted_leaves_no_server(diary: Path) -> None:
    server = plain(diary, "stubborn", "child")

    async def forgetful() -> None:
        tools = McpTools({"shop": server}, ToolsConfig(), cache=DiscoveryCache())
        await tools.tools()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(forgetful())
    lines = [*diary_lines(diary, "start"), *diary_lines(diary, "child")]
    pids = [int(line.split()[1]) for line in lines]
    assert len(pids) == 2
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.long
async def test_crashes_leave_no_descriptors_tasks_or_threads(diary: Path) -> None:
    def held() -> tuple[int, int, int]:
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return descriptors, len(asyncio.all_tasks()), threading.active_count()

    async with bench(diary, {"shop": plain(diary)}) as bench_:
        tools = await bench_.tools()
        before = held()
        for _ in range(10):
            await refusal(bench_.run(tools["mcp.shop.die"]))
            await bench_.run(tools["mcp.shop.echo"], text="again")
        await asyncio.sleep(0.1)
        assert all(now <= then for now, then in zip(held(), before, strict=True))
        assert len(bench_.lines("start")) == 11


async def test_a_failure_that_took_long_is_not_repeated_at_once(diary: Path) -> None:
    async with bench(diary, {"mute": plain(diary, "mute", timeout_ms=400)}) as bench_:
        await bench_.tools()
        await bench_.tools()
        assert len(bench_.lines("start")) == 1
        assert [failure.server_id for failure in bench_.failures] == ["mute", "mute"]
        assert bench_.failures[0] == ServerFailure("mute", bench_.failures[1].message)
        assert len(bench_.lines("start")) == 1


async def test_the_folder_of_a_server_is_not_the_current_one(diary: Path) -> None:
    # `python -m` imports from its folder: a server must not start in the user's project.
    (diary.parent / "home").mkdir()
    code = "import os, sys; sys.stderr.write(os.getcwd()); sys.exit(1)"
    server = StdioServer(command=sys.executable, args=["-c", code], cwd=str(diary.parent / "home"))
    async with bench(diary, {"shop": server}) as bench_:
        await bench_.tools()
    assert str(diary.parent / "home") in bench_.failures[0].message

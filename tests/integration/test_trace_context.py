"""One trace across programs: callers, servers, commands, and a run that two processes share."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_core import AgentRuntime, RunStatus
from agent_core.testing import Calls, ScriptedCall, ScriptedProvider, calls
from isolation import Home, program_file
from mcp_bench import SERVERS
from model_server import ModelServer, Received, Reply
from otlp_receiver import OtlpReceiver
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import kept, sampled

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n'


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Generator[OtlpReceiver]:
    with OtlpReceiver.open() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver


async def texts(made: AgentRuntime) -> list[str]:
    """What the calls of the session have answered."""
    page = await made.replay_session("s1")
    blocks = [block for node in page.nodes for result in node.results for block in result.content]
    return [block.model_dump_json() for block in blocks]


async def test_a_command_gets_the_span_of_its_call(
    home: Home, project: Path, collector: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{CALLER}-01")
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    show = 'echo "$TRACEPARENT|$TRACESTATE|$OTEL_EXPORTER_OTLP_ENDPOINT"'
    script = [calls("code.run_command", argv=["sh", "-c", show]), "done"]
    async with runtime(home, project, script, permission_callback=Asked("allow_once")) as made:
        await ask(made)
        (answer,) = await texts(made)
    tool = collector.named("execute_tool code.run_command")
    assert f"00-{TRACE}-{tool.span_id}-01|vendor=1|" in answer
    assert collector.url not in answer
    run = collector.named("invoke_agent main")
    assert (run.trace_id, run.parent_id) == (TRACE, CALLER)


@pytest.mark.parametrize(
    "trace_parent",
    sampled(["", "garbage", f"00-{'0' * 32}-{CALLER}-01", f"ff-{TRACE}-{CALLER}-01"], keep=2),
)
async def test_what_names_no_span_begins_a_trace_of_its_own(
    home: Home,
    project: Path,
    collector: OtlpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    trace_parent: str,
) -> None:
    monkeypatch.setenv("TRACEPARENT", trace_parent)
    async with runtime(home, project, ["done"]) as made:
        await ask(made)
    assert collector.named("invoke_agent main").parent_id == ""


@pytest.mark.sweep
async def test_a_command_of_a_run_that_is_not_recorded_gets_nothing(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{CALLER}-01")
    script = [calls("code.run_command", argv=["env"]), "done"]
    async with runtime(home, project, script, permission_callback=Asked("allow_once")) as made:
        await ask(made)
        (answer,) = await texts(made)
    assert "PATH=" in answer
    assert "TRACEPARENT" not in answer


async def test_a_hook_gets_the_span_of_the_call_it_is_about(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    seen = project / "seen"
    hook = {"type": "command", "command": f"echo $TRACEPARENT >> {seen}"}
    events = {event: [{"hooks": [hook]}] for event in ("UserPromptSubmit", "PreToolUse")}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": events}))
    async with runtime(home, project, [calls("code.list_dir", path="."), "done"]) as made:
        await ask(made)
    run, tool = collector.named("invoke_agent main"), collector.named("execute_tool code.list_dir")
    told = [line.split("-")[2] for line in seen.read_text(encoding="utf-8").split()]
    assert told == [run.span_id, tool.span_id]


@pytest.mark.sweep
async def test_a_trace_that_is_not_sampled_is_passed_on_and_not_exported(
    home: Home, project: Path, collector: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{CALLER}-00")
    script = [calls("code.run_command", argv=["env"]), "done"]
    async with runtime(home, project, script, permission_callback=Asked("allow_once")) as made:
        await ask(made)
        (answer,) = await texts(made)
    assert collector.spans == []
    assert collector.measured("soong_agent.run.duration")
    assert re.search(f"TRACEPARENT=00-{TRACE}-[0-9a-f]{{16}}-00", answer)


@pytest.mark.sweep
async def test_where_only_metrics_are_wanted_the_callers_span_is_passed_on(
    home: Home, project: Path, collector: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{CALLER}-01")
    script = [calls("code.run_command", argv=["env"]), "done"]
    async with runtime(home, project, script, permission_callback=Asked("allow_once")) as made:
        await ask(made)
        (answer,) = await texts(made)
    assert collector.spans == []
    assert collector.measured("soong_agent.run.duration")
    assert f"TRACEPARENT=00-{TRACE}-{CALLER}-01" in answer


@pytest.mark.sweep
async def test_calls_that_run_together_start_their_commands_with_their_own_span(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    home.write(
        "tools/where.json",
        json.dumps(
            {
                "name": "where",
                "description": "Says where it is.",
                "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
                "command_type": "exec",
                "command": "/usr/bin/env",
                "permission": "readonly",
            }
        ),
    )
    together = Calls(calls=[ScriptedCall(name="where", arguments={"n": n}) for n in range(4)])
    async with runtime(
        home, project, [together, "done"], permission_callback=Asked("allow_for_session")
    ) as made:
        await ask(made)
        answers = await texts(made)
    spans = {span.span_id for span in collector.spans if span.name == "execute_tool where"}
    assert len(spans) == 4
    assert {span for span in spans for answer in answers if span in answer} == spans


async def test_a_server_behind_pipes_gets_the_span_in_its_requests(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    server = {"command": sys.executable, "args": [str(SERVERS / "plain.py"), "reports"]}
    home.write("mcp.json", json.dumps({"mcpServers": {"plain": server}}))
    script = [calls("mcp.plain.meta"), calls("mcp.plain.environment"), "done"]
    async with runtime(
        home, project, script, permission_callback=Asked("allow_for_session")
    ) as made:
        await ask(made)
        told, environment = await texts(made)
    tool = collector.named("execute_tool mcp.plain.meta")
    assert tool.attributes["mcp.method.name"] == "tools/call"
    assert f"00-{tool.trace_id}-{tool.span_id}-" in told
    assert "TRACEPARENT" not in environment  # the server outlives the call


@asynccontextmanager
async def http_tools(seen: list[tuple[str, str | None, dict[str, Any]]]) -> AsyncGenerator[str]:
    """An MCP server that keeps the method, the header and the `_meta` of each request."""

    async def post(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        params: dict[str, Any] = message.get("params", {})
        method = message["method"]
        seen.append((method, request.headers.get("traceparent"), params.get("_meta", {})))
        if "id" not in message:
            return web.Response(status=202)
        result: dict[str, Any] = {"content": [{"type": "text", "text": "pong"}]}
        if method == "initialize":
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            }
        elif method == "tools/list":
            hints = {"readOnlyHint": True}
            schema = {"type": "object"}
            tool = {"name": "ping", "inputSchema": schema, "annotations": hints}
            result = {"tools": [tool]}
        elif method != "tools/call":
            error = {"code": -32601, "message": "no such method"}
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    app = web.Application()
    app.router.add_post("/mcp", post)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


async def test_a_server_over_http_gets_it_in_a_header_too(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    seen: list[tuple[str, str | None, dict[str, Any]]] = []
    async with http_tools(seen) as url:
        home.write("mcp.json", json.dumps({"mcpServers": {"web": {"url": url}}}))
        script = [calls("mcp.web.ping"), "done"]
        async with runtime(
            home, project, script, permission_callback=Asked("allow_for_session")
        ) as made:
            await ask(made)
    tool = collector.named("execute_tool mcp.web.ping")
    [(_, header, meta)] = [each for each in seen if each[0] == "tools/call"]
    assert header is not None
    assert header == meta["traceparent"]
    assert header.startswith(f"00-{tool.trace_id}-{tool.span_id}-")


@pytest.mark.sweep
async def test_a_run_that_waits_goes_on_in_the_same_trace(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    write = calls("code.write_file", path="a.txt", content="x")
    async with runtime(home, project, [write], config=PARK) as made:
        handle = await made.start("go", session_id="s1")
        assert await handle.wait() is RunStatus.WAITING
    [question] = handle.pending_requests
    first = collector.named("invoke_agent main")
    assert (first.status, first.attributes["soong_agent.run.status"]) == ("unset", "waiting")
    [tool] = [span for span in collector.spans if span.name == "execute_tool code.write_file"]
    assert tool.status == "unset"
    async with runtime(home, project, ["done"], config=PARK) as made:
        again = await made.answer(question, "allow_once")
        assert await again.wait() is RunStatus.COMPLETED
    assert collector.tree() == [
        "invoke_agent main",
        "  chat script",
        "  execute_tool code.write_file",
        "  invoke_agent main",
        "    execute_tool code.write_file",
        "    chat script",
    ]
    assert len({span.trace_id for span in collector.spans}) == 1
    [_, last] = [span for span in collector.spans if span.name == "invoke_agent main"]
    assert last.attributes["soong_agent.run.status"] == "completed"
    assert last.attributes["soong_agent.run.id"] == first.attributes["soong_agent.run.id"]


@pytest.mark.sweep
async def test_a_run_that_was_not_recorded_where_it_began_is_one_trace_from_then_on(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    home.write_config(PARK)
    writes = [calls("code.write_file", path=name, content="x") for name in ("a.txt", "b.txt")]
    provider = ScriptedProvider([*writes, "done"])

    def opened(**more: Any) -> AgentRuntime:
        made = AgentRuntime(project_dir=project, home_dir=home.path, **more)
        made.register_provider("custom", lambda _: provider)
        return made

    async with opened(telemetry=False) as made:
        handle = await made.start("go", session_id="s1")
        assert await handle.wait() is RunStatus.WAITING
    for _ in range(2):
        async with opened() as made:
            handle = await made.answer(handle.pending_requests[0], "allow_once")
            await handle.wait()
    assert handle.status is RunStatus.COMPLETED
    runs = [span for span in collector.spans if span.name == "invoke_agent main"]
    assert len(runs) == 2
    assert len({span.trace_id for span in collector.spans}) == 1


@pytest.mark.sweep
async def test_a_child_that_waits_goes_on_in_the_trace_that_was_begun_without_a_caller(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    home.write_config(PARK)
    child = calls("agent.create_sub_agent", task="write", allowed_tools=["code.write_file"])
    writes = [calls("code.write_file", path=name, content="x") for name in ("a.txt", "b.txt")]
    provider = ScriptedProvider([child, *writes, "child done", "done"])

    def opened(**more: Any) -> AgentRuntime:
        made = AgentRuntime(project_dir=project, home_dir=home.path, **more)
        made.register_provider("custom", lambda _: provider)
        return made

    async with opened(telemetry=False) as made:
        handle = await made.start("go", session_id="s1")
        assert await handle.wait() is RunStatus.WAITING
    for _ in range(2):
        async with opened() as made:
            handle = await made.answer(handle.pending_requests[0], "allow_once")
            await handle.wait()
    assert handle.status is RunStatus.COMPLETED
    assert len({span.trace_id for span in collector.spans}) == 1
    assert [span.name for span in collector.roots()] == ["invoke_agent main"]


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from agent_core import AgentRuntime

async def main():
    made = AgentRuntime(sys.argv[1])
    await made.__aenter__()
    handle = await made.start("go", session_id="s1")
    if sys.argv[2] == "queued":
        handle = await made.start("and then", session_id="s1")
        assert handle.status == "queued"
    else:
        await handle.wait()
        assert handle.status == "waiting"
    print(handle.run_id, *handle.pending_requests, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def killed(home: Home, project: Path, what: str, url: str) -> list[str]:
    """A process that is killed once its run waits, or is queued; what it has printed."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, program_file(KILLED), str(project), what],
        env=home.env(TRACEPARENT=f"00-{TRACE}-{CALLER}-01", OTEL_EXPORTER_OTLP_ENDPOINT=url),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.split()


@pytest.mark.long
@pytest.mark.parametrize("what", kept(["waiting", "queued"], "waiting"))
async def test_what_a_killed_process_has_left_goes_on_in_the_same_trace(
    home: Home, project: Path, collector: OtlpReceiver, what: str
) -> None:
    def answer(asked: Received) -> Reply:
        if what == "queued" and "and then" not in asked.text:
            return calls("code.run_command", argv=["sleep", "0"])  # it waits for an answer
        if "tool_call_id" in asked.text:
            return "done"
        return calls("code.write_file", path="a.txt", content="x")

    with ModelServer.in_thread(answer) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            f'[permissions]\nunattended = "{"park" if what == "waiting" else "wait"}"\n'
        )
        run_id, *requests = await killed(home, project, what, collector.url)
        collector.spans.clear()
        async with AgentRuntime(project, permission_callback=Asked("allow_once")) as made:
            if what == "waiting":
                handle = await made.answer(requests[0], "allow_once")
            else:
                await (await made.start("last", session_id="s1")).wait()
                handle = await made.attach(run_id)
            await handle.wait()
            assert handle.status is RunStatus.COMPLETED
    [run] = [s for s in collector.spans if s.attributes.get("soong_agent.run.id") == run_id]
    assert run.trace_id == TRACE
    assert {span.trace_id for span in collector.children(run)} == {TRACE}

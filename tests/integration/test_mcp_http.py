"""MCP servers over HTTP: the SDK's own server, and a hostile one behind a real socket."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_core.config.models import McpConfig, ToolsConfig
from agent_core.errors import ErrorCode, ToolError
from agent_core.mcp.config import HttpServer
from agent_core.types import JsonBlock
from mcp_bench import SERVERS, Bench, bench
from sweeps import kept
from tables import together


@asynccontextmanager
async def workshop(transport: str) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVERS / "workshop.py"), transport, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("transport", "path"),
    kept([("streamable_http", "/mcp"), ("sse", "/sse")], ("streamable_http", "/mcp")),
    ids=kept(["http", "sse"], "http"),
)
async def test_a_server_is_used_and_lost_over_http(
    tmp_path: Path, transport: str, path: str
) -> None:
    how = {"streamable_http": "http", "sse": "sse"}[transport]
    async with workshop(how) as (process, origin):
        server = HttpServer.model_validate({"url": origin + path, "transport": transport})
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            assert await bench_.text("mcp.shop.greet", name="Ada") == "Hello, Ada!"
            result = await bench_.call("mcp.shop.measure", length=3)
            assert result.content == [JsonBlock(data={"length": 3, "unit": "mm"})]
            assert await bench_.text("mcp.shop.saw", planks=3) == "sawn"
            assert any("sawing" in line for line in bench_.kept.lines)
            await bench_.call("mcp.shop.extend")
            assert await novelty(bench_)
            dying = asyncio.create_task(bench_.call("mcp.shop.saw", planks=1000))
            await asyncio.sleep(0.2)
            process.kill()
            with pytest.raises(ToolError) as lost:
                await dying
            assert lost.value.code is ErrorCode.MCP_SERVER_FAILED
            with pytest.raises(ToolError) as absent:
                await bench_.call("mcp.shop.greet", name="Ada")
            assert absent.value.code is ErrorCode.MCP_SERVER_FAILED


async def novelty(bench_: Bench) -> bool:
    """The news of a changed list travels on a stream of its own."""
    for _ in range(100):
        if "mcp.shop.novelty" in await bench_.tools():
            return True
        await asyncio.sleep(0.02)
    return False


Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def http_server(answer: Answer) -> AsyncGenerator[str]:
    """`answer` gets each message; what else a server needs is here."""

    async def post(request: web.Request) -> web.StreamResponse:
        return await answer(request, await request.json())

    async def no_stream(_: web.Request) -> web.StreamResponse:
        return web.Response(status=405)

    app = web.Application()
    app.router.add_post("/mcp", post)
    app.router.add_get("/mcp", no_stream)
    app.router.add_delete("/mcp", no_stream)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield "http://127.0.0.1:{1}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


def result_of(message: dict[str, Any]) -> dict[str, Any] | None:
    """What an ordinary server of the 2025 protocol would answer."""
    match message.get("method"):
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "rude", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": "greet", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": "hello"}]}
        case _:
            return None


def ordinary(message: dict[str, Any], **headers: str) -> web.Response:
    if "id" not in message:
        return web.Response(status=202)
    result = result_of(message)
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    body |= {"result": result} if result else {"error": {"code": -32601, "message": "unknown"}}
    return web.json_response(body, headers={k.replace("_", "-"): v for k, v in headers.items()})


async def test_configured_headers_are_sent(tmp_path: Path) -> None:
    seen: set[str] = set()

    async def answer(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        seen.add(request.headers.get("Authorization", ""))
        return ordinary(message)

    async with http_server(answer) as origin:
        server = HttpServer(url=f"{origin}/mcp", headers={"Authorization": "Bearer t0ken"})
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            assert await bench_.text("mcp.shop.greet") == "hello"
    assert seen == {"Bearer t0ken"}


@together("hint", [True, "true", 1, None])
async def test_over_http_too_only_true_in_json_makes_a_tool_readonly(
    tmp_path: Path, hint: object
) -> None:
    async def answer(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message.get("method") != "tools/list":
            return ordinary(message)
        hints = {"readOnlyHint": hint}
        tool = {"name": "greet", "inputSchema": {"type": "object"}, "annotations": hints}
        return web.json_response(
            {"jsonrpc": "2.0", "id": message["id"], "result": {"tools": [tool]}}
        )

    async with http_server(answer) as origin:
        server = HttpServer(url=f"{origin}/mcp")
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            tools = await bench_.tools()
    assert (tools["mcp.shop.greet"].definition.permission == "readonly") is (hint is True)


@together("status", [301, 302, 307, 308])
async def test_a_token_never_follows_a_redirect_to_another_origin(
    tmp_path: Path, status: int
) -> None:
    stolen: list[str] = []

    async def thief(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        stolen.append(request.headers.get("Authorization", ""))
        return ordinary(message)

    async with http_server(thief) as elsewhere:

        async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": f"{elsewhere}/mcp"})

        async with http_server(answer) as origin:
            server = HttpServer(url=f"{origin}/mcp", headers={"Authorization": "Bearer t0ken"})
            async with bench(tmp_path / "diary", {"shop": server}) as bench_:
                assert await bench_.tools() == {}
                assert "not followed" in bench_.failures[0].message
                assert "t0ken" not in bench_.failures[0].message
    assert stolen == []


@pytest.mark.parametrize("ttl_ms", [0, 60_000], ids=["at the listing", "at the call"])
async def test_a_forgotten_session_is_made_again_and_the_call_is_made_once(
    tmp_path: Path, ttl_ms: int
) -> None:
    sessions: list[str] = []
    calls: list[str] = []

    async def answer(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message.get("method") == "initialize":
            sessions.append(f"s{len(sessions)}")
            return ordinary(message, Mcp_Session_Id=sessions[-1])
        session = request.headers.get("Mcp-Session-Id")
        if session is not None and session != sessions[-1]:
            return web.Response(status=404)
        if message.get("method") == "tools/call":
            calls.append(session or "")
        return ordinary(message)

    async with http_server(answer) as origin:
        servers = {"shop": HttpServer(url=f"{origin}/mcp")}
        mcp = McpConfig(discovery_cache_ttl_ms=ttl_ms)
        async with bench(tmp_path / "diary", servers, mcp=mcp) as bench_:
            assert await bench_.text("mcp.shop.greet") == "hello"
            sessions.append("the server was restarted")
            assert await bench_.text("mcp.shop.greet") == "hello"
    assert len(calls) == 2


@together("kind", ["json", "sse", "gzip"])
async def test_a_bomb_in_a_body_is_refused(tmp_path: Path, kind: str) -> None:
    big = "x" * 9_000_000

    async def answer(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message.get("method") != "tools/call":
            return ordinary(message)
        result = {"content": [{"type": "text", "text": big}]}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        if kind == "sse":
            return web.Response(text=f"data: {body}\n\n", content_type="text/event-stream")
        response = web.Response(text=body, content_type="application/json")
        if kind == "gzip":
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async with http_server(answer) as origin:
        server = HttpServer(url=f"{origin}/mcp")
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            with pytest.raises(ToolError) as bomb:
                await bench_.call("mcp.shop.greet")
            assert bomb.value.code is ErrorCode.MCP_SERVER_FAILED
            assert len(bomb.value.message) < 1500
            assert "mcp.shop.greet" in await bench_.tools()


async def test_a_refusal_names_the_status(tmp_path: Path) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=401, text="who are you?")

    async with http_server(answer) as origin:
        servers = {"shop": HttpServer(url=f"{origin}/mcp")}
        async with bench(tmp_path / "diary", servers) as bench_:
            assert await bench_.tools() == {}
    assert "401" in bench_.failures[0].message


async def test_an_address_without_a_server_is_a_failure(tmp_path: Path) -> None:
    server = HttpServer(url="http://127.0.0.1:9/mcp?key=s3cret")
    async with bench(tmp_path / "diary", {"shop": server}) as bench_:
        assert await bench_.tools() == {}
    assert bench_.failures[0].server_id == "shop"
    assert "s3cret" not in bench_.failures[0].message
    assert "cannot be reached at 127.0.0.1:9: " in bench_.failures[0].message


async def test_headers_and_then_silence_end_in_a_timeout(tmp_path: Path) -> None:
    async def answer(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message.get("method") != "tools/call":
            return ordinary(message)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(30)
        return response

    async with http_server(answer) as origin:
        config = ToolsConfig(default_timeout_ms=300)
        servers = {"shop": HttpServer(url=f"{origin}/mcp")}
        async with bench(tmp_path / "diary", servers, config=config) as bench_:
            with pytest.raises(ToolError) as silence:
                await bench_.call("mcp.shop.greet")
            assert silence.value.code is ErrorCode.TIMEOUT

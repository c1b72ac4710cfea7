"""Requests with credentials: no proxy for this machine, and nothing for another origin."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_core.errors import ToolError
from agent_core.mcp import Host
from agent_core.mcp.config import HttpServer
from agent_core.mcp.route import RoutedTransport
from agent_core.telemetry.exporting import ExportSession, open_exporters
from mcp_bench import bench
from otlp_receiver import OtlpReceiver
from sweeps import paired
from tables import together
from web_proxy import WebProxy

SECRET = {"Authorization": "Bearer t0ken", "X-Api-Key": "k3y"}


@asynccontextmanager
async def service(handler: Any) -> AsyncGenerator[int]:
    """Answer all requests with a handler, and give the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def mcp(request: web.Request) -> web.StreamResponse:
    """Answer as an ordinary MCP server with one tool."""
    if request.method != "POST":
        return web.Response(status=405)
    message = await request.json()
    if "id" not in message:
        return web.Response(status=202)
    answers: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "plain", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "greet", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "hello"}]},
    }
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    found = answers.get(message["method"])
    error = {"error": {"code": -32601, "message": "unknown"}}
    return web.json_response(body | ({"result": found} if found else error))


def use_proxy(monkeypatch: pytest.MonkeyPatch, variable: str, proxy: WebProxy) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv(variable, proxy.url)


@pytest.mark.long
@together(
    ("host", "variable"),
    paired(
        ["127.0.0.1", "localhost", "127.0.0.2", "127.1", "LOCALHOST"],
        ["HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"],
    ),
)
async def test_an_mcp_server_of_this_machine_is_called_directly(
    host: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = web.Application()
    app.router.add_route("*", "/mcp", mcp)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()  # noqa: S104 - the whole of 127.0.0.0/8
    port = runner.addresses[0][1]
    try:
        async with WebProxy(port) as proxy:
            use_proxy(monkeypatch, variable, proxy)
            server = HttpServer(url=f"http://{host}:{port}/mcp", headers=SECRET)
            async with bench(tmp_path / "diary", {"shop": server}) as bench_:
                assert await bench_.text("mcp.shop.greet") == "hello"
            assert proxy.asked == []
    finally:
        await runner.cleanup()


async def test_another_mcp_server_is_called_through_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(mcp) as port, WebProxy(port) as proxy:
        use_proxy(monkeypatch, "HTTP_PROXY", proxy)
        server = HttpServer(url="http://mcp.test/mcp", headers=SECRET)
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            assert await bench_.text("mcp.shop.greet") == "hello"
        assert proxy.asked
        asked = len(proxy.asked)
        monkeypatch.setenv("NO_PROXY", "127.0.0.0/8,*.test")
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            await bench_.tools()
        assert len(proxy.asked) == asked


async def test_a_proxy_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(mcp) as port, WebProxy(port) as proxy:
        use_proxy(monkeypatch, "HTTP_PROXY", proxy)
        monkeypatch.setenv("HTTP_PROXY", "socks5://name:pass@somewhere")
        server = HttpServer(url="http://mcp.test/mcp")
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            await bench_.tools()
            (failure,) = bench_.failures
    assert "HTTP_PROXY" in failure.message
    assert "NO_PROXY" in failure.message
    assert "pass" not in failure.message.replace("password", "")


@together("transport", ["streamable_http", "sse"])
@together("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_carries_nothing(
    status: int, transport: str, tmp_path: Path
) -> None:
    got: list[dict[str, str]] = []

    async def other(request: web.Request) -> web.StreamResponse:
        got.append(dict(request.headers))
        return await mcp(request)

    async with AsyncExitStack() as stack:
        elsewhere = await stack.enter_async_context(service(other))

        async def leave(_: web.Request) -> web.StreamResponse:
            place = f"http://127.0.0.1:{elsewhere}/mcp"
            return web.Response(status=status, headers={"Location": place})

        port = await stack.enter_async_context(service(leave))
        server = HttpServer.model_validate(
            {"url": f"http://127.0.0.1:{port}/mcp", "headers": SECRET, "transport": transport}
        )
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            with pytest.raises((ToolError, KeyError)):
                await bench_.call("mcp.shop.greet")
    assert [headers for headers in got if SECRET.keys() & headers.keys()] == []


async def test_a_server_that_logs_in_gets_the_configured_headers_alone(tmp_path: Path) -> None:
    """The authorization server, on another origin, sees none of them, through no proxy either."""
    got: list[dict[str, str]] = []

    async def authority(request: web.Request) -> web.StreamResponse:
        got.append({**request.headers, "path": request.path})
        if "well-known" not in request.path:
            return web.json_response({"client_id": "c", "redirect_uris": ["http://127.0.0.1:1/"]})
        origin = f"http://{request.host}"
        return web.json_response(
            {
                "issuer": origin,
                "authorization_endpoint": f"{origin}/authorize",
                "token_endpoint": f"{origin}/token",
                "registration_endpoint": f"{origin}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async with AsyncExitStack() as stack:
        login = await stack.enter_async_context(service(authority))

        async def guarded(request: web.Request) -> web.StreamResponse:
            origin = f"http://{request.host}"
            if "well-known" in request.path:
                found = {
                    "resource": f"{origin}/mcp",
                    "authorization_servers": [f"http://127.0.0.1:{login}"],
                }
                return web.json_response(found)
            return web.Response(status=401)

        port = await stack.enter_async_context(service(guarded))
        server = HttpServer(url=f"http://127.0.0.1:{port}/mcp", headers={"X-Api-Key": "k3y"})
        host = Host(home=tmp_path)
        async with bench(tmp_path / "diary", {"shop": server}, host=host) as bench_:
            await bench_.tools()
    assert any("register" in each["path"] for each in got)
    assert [each for each in got if "X-Api-Key" in each] == []


async def test_the_client_of_pydantic_ai_calls_this_machine_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import httpx2  # noqa: PLC0415 - slow to import

    async with service(mcp) as port, WebProxy(port) as proxy:
        use_proxy(monkeypatch, "ALL_PROXY", proxy)
        async with httpx2.AsyncClient(transport=RoutedTransport()) as client:
            here = await client.get(f"http://127.0.0.1:{port}/", headers=SECRET)
            there = await client.get("http://model.test/", headers=SECRET)
        assert (here.status_code, there.status_code) == (405, 405)
        assert proxy.asked == ["GET http://model.test/"]


async def test_traces_go_to_a_collector_of_this_machine_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with OtlpReceiver.open() as receiver:
        async with WebProxy(1) as proxy:
            use_proxy(monkeypatch, "HTTP_PROXY", proxy)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20t0ken")
            telemetry = open_exporters(["traces"], {})
            assert telemetry is not None
            with telemetry.tracer.start_as_current_span("one"):
                pass
            await telemetry.close()
            assert proxy.asked == []
        assert receiver.tree() == ["one"]


async def test_exports_follow_no_redirect_to_another_origin() -> None:
    got: list[str] = []

    async def other(request: web.Request) -> web.StreamResponse:
        got.append(json.dumps(dict(request.headers)))
        return web.Response()

    async with AsyncExitStack() as stack:
        elsewhere = await stack.enter_async_context(service(other))

        async def leave(request: web.Request) -> web.StreamResponse:
            if request.path == "/here":
                return web.Response(status=308, headers={"Location": "/there"})
            place = f"http://127.0.0.1:{elsewhere}/"
            return web.Response(status=307, headers={"Location": place})

        port = await stack.enter_async_context(service(leave))
        with ExportSession() as session:
            answer = await asyncio.to_thread(
                session.post, f"http://127.0.0.1:{port}/here", headers=SECRET, data=b"x"
            )
    assert answer.status_code == 307
    assert str(answer.url).endswith("/there")
    assert got == []

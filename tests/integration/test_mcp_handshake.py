"""Servers that cannot stand the first request for the newest protocol."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_core.errors import ToolError
from agent_core.mcp import Host, McpHttp, McpStdio
from agent_core.mcp.config import HttpServer, StdioServer
from integration.test_mcp_http import http_server, ordinary
from mcp_bench import bench, plain
from sweeps import kept


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


@pytest.mark.parametrize("trait", kept(["strict", "strict_quiet", "strict_later"], "strict_quiet"))
async def test_a_server_that_ends_at_the_probe_is_started_again(diary: Path, trait: str) -> None:
    async with bench(diary, {"shop": plain(diary, trait)}) as bench_:
        assert "mcp.shop.echo" in await bench_.tools()
        assert bench_.failures == []
        assert await bench_.text("mcp.shop.echo", text="hi") == "hi"
        assert (len(bench_.lines("start")), len(bench_.lines("probed"))) == (2, 1)
        assert bench_.mcp.offers["shop"].is_older

        with pytest.raises(ToolError, match="ended while the call ran"):
            await bench_.call("mcp.shop.die")
        assert await bench_.text("mcp.shop.echo", text="again") == "again"
        assert (len(bench_.lines("start")), len(bench_.lines("probed"))) == (3, 1), "remembered"


@pytest.mark.long
async def test_a_server_that_is_silent_after_the_probe_is_asked_differently_next_time(
    diary: Path,
) -> None:
    server = plain(diary, "strict_deaf", timeout_ms=3000)
    async with bench(diary, {"shop": server}) as bench_:
        assert await bench_.tools() == {}
        [failure] = bench_.failures
        assert "not ready in 3 s" in failure.message
        assert '"protocol": "2025-11-25" for it in mcp.json' in failure.message
        shop = bench_.mcp.server("shop")
        shop._failure = (0.0, None)  # the pause is over
        assert "mcp.shop.echo" in await bench_.tools()


async def test_a_server_that_never_works_is_tried_in_both_ways_and_named(diary: Path) -> None:
    async with bench(diary, {"shop": plain(diary, "crash")}) as bench_:
        assert await bench_.tools() == {}
        [failure] = bench_.failures
        assert "exit code 1: this server never works" in failure.message
        assert "protocol" in failure.message
        assert len(bench_.lines("start")) == 2


async def test_the_named_protocol_is_the_only_one_that_is_tried(diary: Path) -> None:
    strict = plain(diary, "strict").model_copy(update={"protocol": "2025-11-25"})
    async with bench(diary, {"shop": strict}) as bench_:
        assert "mcp.shop.echo" in await bench_.tools()
        assert (len(bench_.lines("start")), bench_.lines("probed")) == (1, [])


@pytest.mark.parametrize("refusal", ["cut", "500", "404"])
async def test_a_server_over_http_that_fails_at_the_probe_is_used_all_the_same(
    diary: Path, refusal: str
) -> None:
    probes: list[str] = []

    async def answer(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message.get("method") == "server/discover":
            probes.append("probe")
            if refusal != "cut":
                return web.Response(status=int(refusal), text="no such thing")
            assert request.transport is not None
            request.transport.abort()
        return ordinary(message)

    async with http_server(answer) as origin:
        server = HttpServer(url=f"{origin}/mcp")
        async with bench(diary, {"shop": server}) as bench_:
            assert await bench_.text("mcp.shop.greet") == "hello", bench_.failures
    assert probes == ["probe"]


def test_a_program_names_the_protocol() -> None:
    stdio = McpStdio("shop", "shop-server", protocol="2025-11-25").server
    http = McpHttp("shop", "http://127.0.0.1:1/mcp", protocol="2025-11-25").server
    assert stdio.protocol == http.protocol == "2025-11-25"
    assert McpStdio("shop", "shop-server").server.protocol == "auto"


async def test_a_real_server_of_the_rust_sdk_works(diary: Path) -> None:
    folder = os.environ.get("MCP_TEST_BIN", "")
    program = shutil.which("cnb-rs-mcp", path=folder or None)
    if program is None:
        pytest.skip("cnb-rs-mcp is not installed")
    server = StdioServer(command=program, cwd=str(diary.parent))
    async with bench(diary, {"cnb": server}, host=Host(home=diary.parent)) as bench_:
        assert len(await bench_.tools()) > 5, bench_.failures
        assert bench_.mcp.offers["cnb"].is_older

"""Sessions that a server over HTTP has forgotten, and the statuses of its refusals."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_core.errors import ToolError
from agent_core.mcp.config import HttpServer
from integration.test_mcp_http import http_server, ordinary
from mcp_bench import bench
from tables import together

LOST: dict[str, tuple[int, Any]] = {
    "empty": (404, ""),
    "other code": (404, {"code": -32000, "message": "gone"}),
    "no id": (400, {"code": -32000, "message": "Bad Request: No valid session ID provided"}),
    "not initialized": (400, {"code": -32000, "message": "Bad Request: Server not initialized"}),
    "words": (400, "unknown Mcp-Session-Id"),
}


@pytest.mark.long
@together(("status", "body"), LOST.values(), ids=LOST)
async def test_a_lost_session_is_begun_anew_once(tmp_path: Path, status: int, body: Any) -> None:
    sessions: list[str] = []

    async def answer(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message.get("method") == "initialize":
            sessions.append(f"s{len(sessions)}")
            return ordinary(message, Mcp_Session_Id=sessions[-1])
        if message.get("method") == "tools/call" and request.headers["Mcp-Session-Id"] == "s0":
            if isinstance(body, str):
                return web.Response(status=status, text=body)
            refusal = {"jsonrpc": "2.0", "id": message["id"], "error": body}
            return web.json_response(refusal, status=status)
        return ordinary(message)

    async with http_server(answer) as origin:
        server = HttpServer(url=f"{origin}/mcp")
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            assert await bench_.text("mcp.shop.greet") == "hello"
    assert sessions == ["s0", "s1"]


@together("status", [400, 413, 503])
async def test_the_status_of_a_failed_call_is_kept(tmp_path: Path, status: int) -> None:
    async def answer(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message.get("method") == "tools/call":
            return web.Response(status=status, text="no")
        return ordinary(message, Mcp_Session_Id="s0")

    async with http_server(answer) as origin:
        server = HttpServer(url=f"{origin}/mcp")
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            with pytest.raises(ToolError, match=f"HTTP status {status}") as failed:
                await bench_.call("mcp.shop.greet")
    assert failed.value.details["status"] == status


async def test_a_missing_file_of_certificates_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    server = HttpServer(url="https://127.0.0.1:1/mcp")
    async with bench(tmp_path / "diary", {"shop": server}) as bench_:
        assert await bench_.tools() == {}
        assert "SSL_CERT_FILE" in bench_.failures[0].message
        assert "gone.pem" in bench_.failures[0].message

"""Servers that other people wrote and many people use.

They are not installed with the package. The tests look for the folder of an npm installation with
`@modelcontextprotocol/server-everything`, `…-filesystem` and `…-memory` in `MCP_TEST_NPM`, for Node
in `NODE` or on `PATH`, for the programs `mcp-server-git` and `mcp-server-time` in `MCP_TEST_BIN` or
on `PATH`, and for a Python that has `fastmcp` in `MCP_TEST_FASTMCP`. `docs/mcp.md` says how to
install them.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest

from agent_core.errors import ErrorCode, ToolError
from agent_core.mcp import Host
from agent_core.mcp.config import HttpServer, StdioServer
from agent_core.types import (
    ElicitationAnswer,
    ElicitationRequest,
    ImageBlock,
    JsonBlock,
    ToolPermission,
)
from mcp_bench import bench

pytestmark = pytest.mark.timeout(120)


FASTMCP_HOUSE = '''
import sys
from dataclasses import dataclass

from fastmcp import Context, FastMCP
from fastmcp.server.auth.auth import ClientRegistrationOptions
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider


@dataclass
class Order:
    drink: str
    cups: int


PORT = int(sys.argv[1])
server = FastMCP(
    "house",
    instructions="Order before you leave.",
    auth=InMemoryOAuthProvider(
        base_url=f"http://127.0.0.1:{PORT}",
        client_registration_options=ClientRegistrationOptions(enabled=True),
    ),
)


@server.tool
async def order(context: Context) -> str:
    """Ask what the user wants to drink."""
    answer = await context.elicit("What may it be?", response_type=Order)
    if answer.action != "accept":
        return answer.action
    return f"{answer.data.cups} {answer.data.drink}"


@server.resource("book://tides")
def tides() -> str:
    return "The moon does it."


@server.prompt
def summary(book: str) -> str:
    return f"Sum up {book}."


if __name__ == "__main__":
    server.run(transport="http", host="127.0.0.1", port=PORT, show_banner=False)
'''
"""A server that wants a login and asks questions; it runs in a Python of its own."""


def npm_server(name: str) -> tuple[str, str]:
    folder = os.environ.get("MCP_TEST_NPM")
    node = os.environ.get("NODE") or shutil.which("node")
    if not folder or not node:
        pytest.skip("MCP_TEST_NPM names no npm folder, or there is no Node: see docs/mcp.md")
    script = Path(folder, "node_modules", "@modelcontextprotocol", name, "dist", "index.js")
    if not script.exists():
        pytest.skip(f"{name} is not installed in {folder}")
    return node, str(script)


def python_server(name: str) -> str:
    path = os.pathsep.join([os.environ.get("MCP_TEST_BIN", ""), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if not found:
        pytest.skip(f"{name} is neither in MCP_TEST_BIN nor on PATH: see docs/mcp.md")
    return found


@asynccontextmanager
async def everything_over_http(how: str) -> AsyncGenerator[str]:
    node, script = npm_server("server-everything")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(node, script, how),
        env=os.environ | {"PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(20):
            await answers(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def answers(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            await writer.wait_closed()
            return


async def test_everything_over_stdio(tmp_path: Path) -> None:
    node, script = npm_server("server-everything")
    server = StdioServer(command=node, args=[script, "stdio"], cwd=str(tmp_path))
    async with bench(tmp_path / "diary", {"all": server}) as bench_:
        assert await bench_.text("mcp.all.echo", message="hi") == "Echo: hi"
        assert "5" in await bench_.text("mcp.all.get-sum", a=2, b=3)
        image = await bench_.call("mcp.all.get-tiny-image")
        assert any(isinstance(block, ImageBlock) for block in image.content)
        links = await bench_.call("mcp.all.get-resource-links", count=2)
        assert len([block for block in links.content if isinstance(block, JsonBlock)]) == 2
        structured = await bench_.call("mcp.all.get-structured-content", location="Chicago")
        assert [type(block) for block in structured.content] == [JsonBlock]
        long = {"duration": 1, "steps": 4}
        await bench_.call("mcp.all.trigger-long-running-operation", **long)
        assert bench_.kept.lines


class Agreeable:
    """A user who fills in the required fields, opens every address, and logs in."""

    def __init__(self, **content: Any) -> None:
        self.requests: list[ElicitationRequest] = []
        self._content = content

    async def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        self.requests.append(request)
        if request.purpose == "login":
            async with httpx2.AsyncClient() as browser:
                sent_to = (await browser.get(str(request.url))).headers["location"]
                await browser.get(sent_to)
        content = self._content if request.mode == "form" else None
        return ElicitationAnswer(action="accept", content=content)


async def test_everything_asks_and_has_resources_prompts_and_advice(tmp_path: Path) -> None:
    node, script = npm_server("server-everything")
    server = StdioServer(command=node, args=[script, "stdio"], cwd=str(tmp_path))
    user = Agreeable(name="Ada")
    async with bench(tmp_path / "diary", {"all": server}, host=Host(elicit=user)) as bench_:
        assert "Name: Ada" in await bench_.text("mcp.all.trigger-elicitation-request")
        page = {"url": "https://pay.example/x", "message": "Pay."}
        said = await bench_.text("mcp.all.trigger-url-elicitation", **page)
        assert "User completed" in said
        first = bench_.call("mcp.all.trigger-url-elicitation", errorPath=True, **page)
        with pytest.raises(ToolError, match="call again once that is done") as asked:
            await first
        assert asked.value.code is ErrorCode.TOOL_ERROR
        hosts = [request.host for request in user.requests]
        assert hosts == [None, "pay.example", "modelcontextprotocol.io"]
        assert bench_.mcp.offers["all"].instructions.startswith("# Everything Server")
        text = await bench_.mcp.read_resource("all", "demo://resource/dynamic/text/1", bench_.kept)
        assert "Resource 1" in str(text.content)
        blob = await bench_.mcp.read_resource("all", "demo://resource/dynamic/blob/1", bench_.kept)
        assert not blob.is_error
        assert "simple-prompt" in {each["name"] for each in await bench_.mcp.prompts("all")}
        prompt = await bench_.mcp.prompt("all", "args-prompt", "Lisbon")
        assert "Lisbon" in str(prompt.content)


async def test_the_memory_server_remembers(tmp_path: Path) -> None:
    node, script = npm_server("server-memory")
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}
    server = StdioServer(command=node, args=[script], cwd=str(tmp_path), env=env)
    async with bench(tmp_path / "diary", {"memory": server}) as bench_:
        ada = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
        await bench_.call("mcp.memory.create_entities", entities=[ada])
        found = await bench_.call("mcp.memory.search_nodes", query="tea")
        assert "Ada" in str(found.content)


@pytest.mark.parametrize("protocol", ["auto", "2025-11-25"])
async def test_a_fastmcp_server_lets_its_user_in_and_asks(
    tmp_path: Path, protocol: Literal["auto", "2025-11-25"]
) -> None:
    python = os.environ.get("MCP_TEST_FASTMCP")
    if not python:
        pytest.skip("MCP_TEST_FASTMCP names no Python with fastmcp: see docs/mcp.md")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(python, "-c", FASTMCP_HOUSE, str(port)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(40):
            await answers(port)
        user = Agreeable(drink="tea", cups=2)
        server = HttpServer(url=f"http://127.0.0.1:{port}/mcp", protocol=protocol)
        host = Host(elicit=user, home=tmp_path)
        async with bench(tmp_path / "diary", {"house": server}, host=host) as bench_:
            said = await bench_.text("mcp.house.order")
            # It can ask in the older protocol only, and says so in the newer one.
            assert said == "2 tea" if protocol != "auto" else "unavailable" in said
            assert [request.purpose for request in user.requests][:1] == ["login"]
            assert bench_.mcp.offers["house"].instructions == "Order before you leave."
            prompt = await bench_.mcp.prompt("house", "summary", {"book": "Emma"})
            assert "Sum up Emma." in str(prompt.content)
            tides = await bench_.mcp.read_resource("house", "book://tides", bench_.kept)
            assert "The moon does it." in str(tides.content)
    finally:
        process.kill()
        await process.wait()


async def test_everything_is_cancelled_and_killed_in_mid_call(tmp_path: Path) -> None:
    node, script = npm_server("server-everything")
    server = StdioServer(command=node, args=[script, "stdio"], cwd=str(tmp_path))
    name = "mcp.all.trigger-long-running-operation"
    async with bench(tmp_path / "diary", {"all": server}) as bench_:
        tools = await bench_.tools()
        cancelled = asyncio.create_task(bench_.call(name, duration=30, steps=5))
        await asyncio.sleep(0.2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await bench_.text("mcp.all.echo", message="on") == "Echo: on"
        killed = asyncio.create_task(bench_.run(tools[name], duration=30, steps=5))
        await asyncio.sleep(0.2)
        (pid,) = [each for each in standing_in(tmp_path) if runs_node(each)]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ToolError) as dead:
            await killed
        assert dead.value.code is ErrorCode.MCP_SERVER_FAILED
        assert await bench_.text("mcp.all.echo", message="again") == "Echo: again"
    assert standing_in(tmp_path) == []


def runs_node(pid: int) -> bool:
    """It is the server, and not the process that looks after it."""
    return b"server-everything" in Path(f"/proc/{pid}/cmdline").read_bytes()


def standing_in(folder: Path) -> list[int]:
    """The processes whose current folder this is."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


@pytest.mark.parametrize(
    ("how", "path", "transport"),
    [("streamableHttp", "/mcp", "streamable_http"), ("sse", "/sse", "sse")],
    ids=["http", "sse"],
)
async def test_everything_over_http(tmp_path: Path, how: str, path: str, transport: str) -> None:
    async with everything_over_http(how) as origin:
        server = HttpServer.model_validate({"url": origin + path, "transport": transport})
        async with bench(tmp_path / "diary", {"all": server}) as bench_:
            assert await bench_.text("mcp.all.echo", message="hi") == "Echo: hi"
            long = {"duration": 1, "steps": 4}
            await bench_.call("mcp.all.trigger-long-running-operation", **long)
            assert bench_.kept.lines


async def test_the_filesystem_server_reads_and_asks_before_it_writes(tmp_path: Path) -> None:
    node, script = npm_server("server-filesystem")
    (tmp_path / "a.txt").write_text("alpha", encoding="utf-8")
    server = StdioServer(command=node, args=[script, str(tmp_path)], cwd=str(tmp_path))
    async with bench(tmp_path / "diary", {"fs": server}) as bench_:
        tools = await bench_.tools()
        assert tools["mcp.fs.read_text_file"].definition.permission is ToolPermission.READONLY
        assert tools["mcp.fs.write_file"].definition.permission is ToolPermission.WRITE
        read = await bench_.call("mcp.fs.read_text_file", path=str(tmp_path / "a.txt"))
        assert "alpha" in str(read.content)
        outside = await bench_.call("mcp.fs.read_text_file", path="/etc/hostname")
        assert outside.is_error
        assert outside.error is not None
        assert "denied" in outside.error.message


async def test_the_git_server_reads_a_repository(tmp_path: Path) -> None:
    command = python_server("mcp-server-git")
    for step in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *step], cwd=tmp_path, check=True)  # noqa: ASYNC221, S603, S607
    server = StdioServer(command=command, args=["--repository", str(tmp_path)], cwd=str(tmp_path))
    async with bench(tmp_path / "diary", {"git": server}) as bench_:
        assert "first" in await bench_.text("mcp.git.git_log", repo_path=str(tmp_path))
        wrong = await bench_.call("mcp.git.git_log", repo_path="/")
        assert wrong.is_error


async def test_the_time_server_tells_the_time(tmp_path: Path) -> None:
    server = StdioServer(command=python_server("mcp-server-time"), cwd=str(tmp_path))
    async with bench(tmp_path / "diary", {"time": server}) as bench_:
        now = await bench_.call("mcp.time.get_current_time", timezone="Europe/Lisbon")
        (block,) = now.content
        assert isinstance(block, JsonBlock)
        assert block.data["timezone"] == "Europe/Lisbon"

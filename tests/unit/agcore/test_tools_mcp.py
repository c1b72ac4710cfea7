"""The MCP client of the toolkit, against servers that are real processes."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agcore.llm import LlmCycle, MockProvider, tool_call_reply
from agcore.tools import McpClient, ToolError, ToolRegistry
from tables import together

SERVERS = Path(__file__).parents[2] / "mcp_servers"
PLAIN = SERVERS / "plain.py"


@contextmanager
def workshop() -> Generator[str]:
    """A server on the official SDK, over HTTP; its address."""
    command = [sys.executable, str(SERVERS / "workshop.py"), "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


def client(*traits: str, timeout_s: float = 10.0) -> McpClient:
    return McpClient(sys.executable, [str(PLAIN), *traits], timeout_s=timeout_s, server_id="plain")


async def test_phase2_a_server_is_started_listed_called_and_ended() -> None:
    async with client() as server:
        names = [definition.name for definition in await server.list_tools()]
        assert "mcp.plain.echo" in names
        assert await server.call_tool("echo", {"text": "hello"}) == "hello"
        assert await server.call_tool("mcp.plain.echo", {"text": "again"}) == "again"
    with pytest.raises(ToolError.Mcp):
        await server.call_tool("echo", {"text": "too late"})


async def test_phase2_a_servers_tools_are_tools_like_any_other() -> None:
    async with client() as server:
        tools = ToolRegistry(server.tools())
        assert await tools.invoke("mcp.plain.echo", {"text": "hello"}) == "hello"
        with pytest.raises(ToolError.InvalidArguments):
            await tools.invoke("mcp.plain.echo", {"text": 7})


async def test_a_server_that_cannot_be_started_says_so() -> None:
    with pytest.raises(ToolError.Mcp, match="no-such-program"):
        await McpClient("no-such-program").start()


async def test_a_server_that_dies_in_a_call_is_an_mcp_error() -> None:
    async with client() as server:
        with pytest.raises(ToolError.Mcp):
            await server.call_tool("die")


async def test_a_server_that_does_not_answer_in_time_is_not_waited_for() -> None:
    async with client(timeout_s=2.0) as server:
        with pytest.raises(ToolError.Timeout):
            await server.call_tool("slow", {"seconds": 60})


async def test_a_server_that_cannot_be_started_leaves_nothing_open() -> None:
    with pytest.raises(ToolError.Mcp):
        async with McpClient("no-such-program"):
            raise AssertionError("it has not started")


async def test_a_server_over_http_is_a_server_like_any_other() -> None:
    with workshop() as url:
        async with McpClient(url=url, server_id="shop") as server:
            assert "mcp.shop.greet" in [each.name for each in await server.list_tools()]
            assert await server.call_tool("greet", {"name": "Ada"}) == "Hello, Ada!"
            provider = MockProvider([tool_call_reply("mcp.shop.measure", length=3), "done"])
            await LlmCycle(provider).submit_with_tools("go", ToolRegistry(server.tools()))
            assert "mm" in str(provider.requests[1].messages[-1].content)
        with pytest.raises(ToolError.Mcp):
            await server.call_tool("greet", {"name": "Ada"})


@together("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_time_limit_in_which_no_call_can_end_is_refused(timeout_s: float) -> None:
    with pytest.raises(ToolError.Mcp, match="give seconds above 0"):
        client(timeout_s=timeout_s)


async def test_what_a_result_cannot_carry_is_named_and_its_text_kept() -> None:
    async with McpClient(sys.executable, [str(SERVERS / "workshop.py"), "stdio"]) as server:
        parts: list[Any] = await server.call_tool("everything")
    texts = [part for part in parts if isinstance(part, str)]
    assert "words" in texts
    assert "[memo://1]\na memo" in texts
    (sound,) = (text for text in texts if "audio/wav" in text)
    (other,) = (text for text in texts if "x/y" in text)
    assert "could not be kept" in sound
    assert "memo://2" in other


async def test_a_server_over_http_that_is_gone_is_an_mcp_error() -> None:
    with workshop() as url:
        client = McpClient(url=url, timeout_s=5)
        await client.start()
    with pytest.raises(ToolError.Mcp):
        await client.call_tool("greet", {"name": "Ada"})
    await client.close()
    with pytest.raises(ToolError.Mcp):
        await McpClient(url=url, timeout_s=5).start()


async def test_keys_for_a_server_do_not_come_back() -> None:
    got: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        body = b"planted-key-0003 is wrong"
        writer.write(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    service = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with service:
        port = service.sockets[0].getsockname()[1]
        headers = {"Authorization": "Bearer planted-key-0003"}
        client = McpClient(url=f"http://127.0.0.1:{port}/mcp", headers=headers, timeout_s=5)
        with pytest.raises(ToolError.Mcp) as refused:
            await client.start()
        await client.close()
    assert b"planted-key-0003" in got[0]
    assert "planted" not in repr(refused.value)


@together(
    ("given", "reason"),
    [
        ({}, "exactly one of command and url"),
        ({"command": "x", "url": "http://x/"}, "exactly one of command and url"),
        ({"url": "ftp://x/"}, "url"),
        ({"url": "http://a:b@x/"}, "credentials"),
        ({"url": "http://x/", "headers": {"a b": "c"}}, "headers"),
        ({"command": ""}, "command"),
        ({"command": "a\0b"}, "NUL"),
    ],
)
def test_what_names_no_server_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ToolError.Mcp, match=reason):
        McpClient(**given)

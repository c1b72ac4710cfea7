"""The MCP client of the toolkit, against servers that are real processes."""

import sys
from pathlib import Path

import pytest

from agcore.tools import McpClient, ToolError, ToolRegistry

PLAIN = Path(__file__).parents[2] / "mcp_servers" / "plain.py"


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

"""The newest protocol over stdio: a well-behaved server on the official SDK."""

import asyncio
import sys
from pathlib import Path

import warm
from agent_core.mcp.config import StdioServer
from agent_core.types import (
    ArtifactRefBlock,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolPermission,
)
from mcp_bench import SERVERS, bench


def workshop(folder: Path) -> StdioServer:
    script = str(SERVERS / "workshop.py")
    return StdioServer(command=sys.executable, args=warm.arguments(script), cwd=str(folder))


async def test_answers_and_news_of_a_changed_list_are_heard(tmp_path: Path) -> None:
    async with bench(tmp_path / "diary", {"shop": workshop(tmp_path)}) as bench_:
        tools = await bench_.tools()
        greet = tools["mcp.shop.greet"].definition
        assert greet.description == "Greet somebody."
        assert greet.permission is ToolPermission.READONLY
        assert greet.input_schema["properties"]["name"]["description"] == "Whom to greet"
        assert await bench_.text("mcp.shop.greet", name="Ada") == "Hello, Ada!"
        kinds = [type(block) for block in (await bench_.call("mcp.shop.everything")).content]
        assert kinds == [
            TextBlock,
            ImageBlock,
            ArtifactRefBlock,
            JsonBlock,
            TextBlock,
            ArtifactRefBlock,
        ]
        failed = await bench_.call("mcp.shop.fail")
        assert failed.is_error
        assert failed.error is not None
        assert failed.error.message == "Error executing tool fail"

        assert "mcp.shop.novelty" not in tools
        await bench_.call("mcp.shop.extend")
        async with asyncio.timeout(50):
            while "mcp.shop.novelty" not in await bench_.tools():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await bench_.text("mcp.shop.novelty") == "new"


async def test_progress_is_shown_and_a_cancelled_call_ends_alone(tmp_path: Path) -> None:
    async with bench(tmp_path / "diary", {"shop": workshop(tmp_path)}) as bench_:
        sawing = asyncio.create_task(bench_.call("mcp.shop.saw", planks=10_000))
        async with asyncio.timeout(50):
            while not bench_.kept.lines:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        sawing.cancel()
        await asyncio.wait([sawing])
        assert sawing.cancelled()
        assert bench_.kept.lines[0].startswith("sawing (")
        assert await bench_.text("mcp.shop.greet", name="Ada") == "Hello, Ada!"

"""Runs MCP tools the way a run does, and looks after what the servers leave behind."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_core.config.models import McpConfig, ToolsConfig
from agent_core.mcp import Host, McpTools, ServerFailure
from agent_core.mcp.config import ServerConfig, StdioServer
from agent_core.mcp.discovery import DiscoveryCache
from agent_core.tools.base import Tool, ToolContext
from agent_core.tools.results import wrap
from agent_core.types import RunIdentity, TextBlock, ToolResult
from tool_facts import Kept

SERVERS = Path(__file__).parent / "mcp_servers"


@dataclass
class Bench:
    """Servers, what they offer, and what they reported."""

    mcp: McpTools
    diary: Path
    kept: Kept = field(default_factory=Kept)
    failures: list[ServerFailure] = field(default_factory=list[ServerFailure])
    log: list[str] = field(default_factory=list[str])

    async def tools(self) -> dict[str, Tool]:
        async def failed(failure: ServerFailure) -> None:
            self.failures.append(failure)

        return {tool.name: tool for tool in await self.mcp.tools(on_failure=failed)}

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:
        return await self.run((await self.tools())[name], **arguments)

    async def run(self, tool: Tool, /, **arguments: Any) -> ToolResult:
        action = await tool.prepare(tool.parse(arguments), self.context())
        return wrap(await action.run())

    def context(self) -> ToolContext:
        return ToolContext(
            run=RunIdentity(session_id="sess_1", agent_id="agent_1", run_id="run_1"),
            tool_call_id="call_1",
            project_dir=self.diary.parent,
            progress=self.kept.lines.append,
            artifact=self.kept,
            is_cancelled=bool,
        )

    async def text(self, name: str, /, **arguments: Any) -> str:
        result = await self.call(name, **arguments)
        return "".join(block.text for block in result.content if isinstance(block, TextBlock))

    def lines(self, start: str = "") -> list[str]:
        """What the plain servers have written down."""
        return diary_lines(self.diary, start)

    async def until(self, start: str) -> None:
        """Wait for a plain server to write a line that begins like this."""
        async with asyncio.timeout(50):
            while not self.lines(start):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)


def diary_lines(diary: Path, start: str = "") -> list[str]:
    """What plain servers have written into their diary."""
    written = diary.read_text(encoding="utf-8") if diary.exists() else ""
    return [line for line in written.splitlines() if line.startswith(start)]


def plain(diary: Path, *traits: str, timeout_ms: int = 10_000) -> StdioServer:
    """A hostile server that writes a diary."""
    return StdioServer(
        command=sys.executable,
        args=["-S", str(SERVERS / "plain.py"), *traits],
        env={"PLAIN_DIARY": str(diary)},
        cwd=str(diary.parent),
        timeout_ms=timeout_ms,
    )


@asynccontextmanager
async def bench(
    diary: Path,
    servers: Mapping[str, ServerConfig],
    *,
    mcp: McpConfig | None = None,
    config: ToolsConfig | None = None,
    host: Host | None = None,
) -> AsyncGenerator[Bench]:
    """The servers until the test is over; afterwards none of their processes may live."""
    made = (config or ToolsConfig()).model_copy(update={"mcp": mcp or McpConfig()})
    log: list[str] = []
    tools = McpTools(
        servers,
        made,
        host=host or Host(log=lambda server_id, line: log.append(f"{server_id}: {line}")),
        cache=DiscoveryCache(),
    )
    opened = Bench(tools, diary, log=log)
    try:
        yield opened
    finally:
        await tools.aclose()
    pids = [int(line.split()[1]) for line in opened.lines() if line.startswith(("start", "child"))]
    assert not [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Whether the process still runs; a moment is allowed for another process to reap it."""
    for _ in range(50):
        try:
            os.kill(pid, 0)
            if (
                Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
                == "Z"
            ):
                return False
        except (ProcessLookupError, FileNotFoundError):
            return False
        time.sleep(0.01)
    return True

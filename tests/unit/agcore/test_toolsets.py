"""Toolsets of an agent: opened for a run or a session, closed on every way out."""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agcore import Agent
from agcore.agent import AgentError, AgentSession
from agcore.llm import MockProvider, tool_call_reply
from agent_core import McpStdio, Toolset
from agent_parts import bundle, cancel_once

PLAIN = Path(__file__).parents[2] / "mcp_servers" / "plain.py"


class Diary(Toolset):
    """A toolset that writes down when it is opened and closed."""

    def __init__(self, name: str = "diary", **more: Any) -> None:
        super().__init__(name, **more)
        self.lines: list[str] = []
        self.fails = False
        self.waits = asyncio.Event()

    async def open(self) -> Iterable[Any]:
        self.lines.append("open")
        if self.fails:
            raise OSError("no connection")

        def read(page: int) -> str:
            """Read a page."""
            self.lines.append(f"read {page}")
            return "Dear diary"

        async def wait() -> None:
            """Wait."""
            self.waits.set()
            await asyncio.Event().wait()

        return [read, wait]

    async def close(self) -> None:
        self.lines.append("close")


def reads() -> list[Any]:
    return [tool_call_reply("my_read", page=1), "done"]


async def test_a_toolset_is_open_for_a_run() -> None:
    diary = Diary(prefix="my_", filter=["read"])
    provider = MockProvider([*reads(), *reads()])
    agent = Agent("a", model=provider, tools=[diary])
    assert (await agent.run("go")).output == "done"
    assert [each.name for each in provider.requests[0].tools] == ["my_read"]
    async for _ in agent.stream("go"):
        pass
    assert diary.lines == ["open", "read 1", "close"] * 2


async def test_a_session_in_use_keeps_it_open() -> None:
    diary = Diary(prefix="my_")
    async with Agent("a", model=MockProvider([*reads(), *reads()]), tools=[diary]).session() as s:
        await s.run("1")
        await s.run("2")
        assert diary.lines == ["open", "read 1", "read 1"]
    assert diary.lines[-1] == "close"
    session = AgentSession(
        Agent("a", tools=["echo", diary]), "s1", bundle(MockProvider([*reads(), *reads()]))
    )
    diary.lines.clear()
    await session.submit_turn("1")
    await session.submit_turn("2")
    assert diary.lines == ["open", "read 1", "close"] * 2


async def test_it_is_closed_however_a_run_ends() -> None:
    cancelled, failed = Diary(), Diary()
    agent = Agent("a", model=MockProvider([tool_call_reply("wait")]), tools=[cancelled])
    await cancel_once(cancelled.waits, agent.run("go"))
    with pytest.raises(AgentError.Llm):
        await Agent("a", model=MockProvider(), tools=[failed]).run("go")
    assert (cancelled.lines, failed.lines) == (["open", "close"], ["open", "close"])


async def test_one_that_cannot_be_opened_fails_the_run_with_its_name() -> None:
    first, second = Diary("first", prefix="a_"), Diary("second")
    second.fails = True
    provider = MockProvider(["ok"])
    with pytest.raises(AgentError.Tool, match=r"second.*no connection"):
        await Agent("a", model=provider, tools=[first, second]).run("go")
    assert (first.lines, second.lines) == (["open", "close"], ["open", "close"])
    assert provider.requests == []


async def test_names_that_collide_are_refused() -> None:
    with pytest.raises(AgentError.Config, match="already a tool named read"):
        await Agent("a", model=MockProvider(["ok"]), tools=[Diary(), Diary()]).run("go")


async def test_an_mcp_server_is_a_toolset() -> None:
    server = McpStdio("plain", sys.executable, [str(PLAIN)], filter=["echo"])
    provider = MockProvider([tool_call_reply("mcp.plain.echo", text="hello"), "done"])
    assert (await Agent("a", model=provider, tools=[server]).run("go")).output == "done"
    assert [each.name for each in provider.requests[0].tools] == ["mcp.plain.echo"]
    assert "hello" in str(provider.requests[1].messages[-1].content)
    gone = McpStdio("gone", "no-such-program")
    with pytest.raises(AgentError.Tool, match="no-such-program"):
        await Agent("a", model=MockProvider(["ok"]), tools=[gone]).run("go")

"""The server in this process: what takes minutes with a real client."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, InputRequiredResult

from agent_core.cli.mcp_server import agent as module, runs
from agent_core.cli.mcp_server.agent import AgentServer
from agent_core.cli.setup import read_command_setup
from agent_core.providers.scripted import Hangs, calls
from agent_core.redaction import Redactor
from isolation import Home
from mcp_clients import accepts, configure, facts
from model_server import ModelServer

WRITE = calls("code.write_file", path="a.txt", content="hi\n")


@asynccontextmanager
async def opened(
    home: Home, project: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Client]:
    configure(home, server.base_url("openai"))
    monkeypatch.setenv("SOONG_AGENT_HOME", str(home.path))
    setup = read_command_setup(project, None)
    agent = AgentServer(
        setup, [project], model=None, mode="ask", approvals="ask", redactor=Redactor({})
    )
    try:
        async with Client(agent.server, elicitation_callback=accepts("allow_once")) as client:
            yield client
    finally:
        await agent.close()


async def sent_away(client: Client) -> InputRequiredResult:
    arguments = {"message": "write it"}
    result = await client.session.call_tool("run", arguments, allow_input_required=True)
    assert isinstance(result, InputRequiredResult)
    return result


async def come_back(client: Client, first: InputRequiredResult, answer: ElicitResult) -> Any:
    return await client.session.call_tool(
        "run",
        {"message": "write it"},
        input_responses=dict.fromkeys(first.input_requests or {}, answer),
        request_state=first.request_state,
    )


async def status_of(client: Client) -> str:
    result = await client.call_tool("sessions_list", {})
    (entry,) = facts(result)["sessions"]
    return str(entry["status"])


async def test_a_run_whose_client_does_not_come_back_is_cancelled(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_COME_BACK_S", 0.01)
    async with (
        ModelServer([WRITE]) as server,
        opened(home, project, server, monkeypatch) as client,
    ):
        first = await sent_away(client)
        while await status_of(client) != "cancelled":
            pass
        with pytest.raises(MCPError, match="too old"):
            await come_back(client, first, ElicitResult(action="accept"))
    assert not (project / "a.txt").exists()


async def test_the_state_of_a_request_is_used_once_and_cannot_be_made_up(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yes = ElicitResult(action="accept", content={"decision": "allow_once"})
    async with (
        ModelServer([WRITE, "written"]) as server,
        opened(home, project, server, monkeypatch) as client,
    ):
        first = await sent_away(client)
        with pytest.raises(MCPError, match="unknown"):
            await come_back(client, first.model_copy(update={"request_state": "made up"}), yes)
        result = await come_back(client, first, yes)
        with pytest.raises(MCPError, match="used"):
            await come_back(client, first, yes)
    assert facts(result)["text"] == "written"
    assert (project / "a.txt").exists()


async def test_a_client_that_comes_back_without_an_answer_is_asked_again(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ModelServer([WRITE, "not written"]) as server,
        opened(home, project, server, monkeypatch) as client,
    ):
        result: Any = await sent_away(client)
        rounds = 1
        while isinstance(result, InputRequiredResult):
            result = await client.session.call_tool(
                "run",
                {"message": "write it"},
                request_state=result.request_state,
                allow_input_required=True,
            )
            rounds += 1
    assert rounds == 10
    assert facts(result)["denied"]


async def test_a_sign_of_life_is_sent_while_nothing_happens(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.01)
    told: list[str | None] = []
    enough = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert (progress, total) == (len(told) + 1, None)
        told.append(message)
        if told.count("still at work") >= 3 and server.requests:
            enough.set()

    async with (
        ModelServer([Hangs(text="thinking")]) as server,
        opened(home, project, server, monkeypatch) as client,
    ):
        arguments = {"message": "work"}
        work = asyncio.create_task(client.call_tool("run", arguments, progress_callback=note))
        await enough.wait()
        work.cancel()
        await asyncio.wait([work])
        while await status_of(client) != "cancelled":
            pass

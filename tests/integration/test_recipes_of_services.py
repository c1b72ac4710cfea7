"""The recipes that hand over, stop, ask and remember, run as they stand."""

import asyncio
import json
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from agent_core.providers.scripted import Hangs, calls
from isolation import Home
from model_server import ModelServer
from recipe_programs import RECIPES, environment, run

pytestmark = pytest.mark.timeout(120)


def test_a_conversation_is_handed_over_and_stays_with_its_agent(home: Home, project: Path) -> None:
    script = [
        calls("handoff_to_rentals"),
        calls("extend_rental", bicycle="tandem", days=3),
        "Done.",
        calls("handoff_to_triage"),
        calls("handoff_to_workshop"),
        calls("free_slots", day="Monday"),
        calls("book_slot", day="Monday", time="9:00"),
        "See you on Monday.",
    ]
    with ModelServer.in_thread(script) as server:
        typed = "Keep the tandem longer.\nRepair it.\n"
        done = run(home, server, "handoffs", cwd=project, typed=typed)
        server.assert_complete()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(triage -> rentals)",
        "Done.",
        "(rentals -> triage)",
        "(triage -> workshop)",
        "See you on Monday.",
        "Customer(rentals={'tandem': 5}, appointment='Monday at 9:00')",
    ]
    offered = [[tool["function"]["name"] for tool in r.body["tools"]] for r in server.requests]
    assert offered[0] == ["handoff_to_rentals", "handoff_to_workshop"]
    assert offered[3] == ["extend_rental", "handoff_to_triage", "handoff_to_workshop"]


@asynccontextmanager
async def stopping_service(
    home: Home, project: Path, model: ModelServer, stop: signal.Signals
) -> AsyncGenerator[tuple[ClientSession, asyncio.Event]]:
    """Start the service; send it `stop` once the event is set; expect exit code 0."""
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        str(RECIPES / "stopping_service.py"),
        cwd=project,
        env={**environment(home, model), "PORT": "0", "PYTHONWARNINGS": "error"},
        stderr=PIPE,
    )
    assert server.stderr is not None
    stopped = asyncio.Event()

    async def send() -> None:
        await stopped.wait()
        server.send_signal(stop)

    sending = asyncio.create_task(send())
    try:
        said = ""
        while (found := re.search(r"http://127\.0\.0\.1:\d+", said)) is None:
            line = await server.stderr.readline()
            assert line, said
            said += line.decode()
        async with ClientSession(found[0]) as client:
            yield client, stopped
            stopped.set()
            await sending
            _, complaints = await server.communicate()
            assert b"Traceback" not in complaints, complaints.decode()
            assert server.returncode == 0
    finally:
        sending.cancel()
        with suppress(ProcessLookupError):
            server.kill()


async def say(client: ClientSession, message: str) -> str:
    async with client.post("/runs", json={"message": message, "session": "told"}) as done:
        return (await done.json())["run_id"]


async def shown(client: ClientSession, run_id: str) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    async with client.get(f"/runs/{run_id}/events") as response:
        kind = ""
        async for line in response.content:  # a connection that is cut off raises
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_a_service_that_is_stopped_ends_its_streams_and_the_next_one_continues(
    home: Home, project: Path, stop: signal.Signals
) -> None:
    with ModelServer.in_thread([Hangs(text="Once upon a time"), "Where were we?"]) as model:
        async with stopping_service(home, project, model, stop) as (client, stopped):
            run_id, seen = await say(client, "Tell a story."), list[str]()
            async for kind, _ in shown(client, run_id):
                seen.append(kind)
                if kind == "model_text_delta":
                    stopped.set()
        async with stopping_service(home, project, model, stop) as (client, _):
            again = [kind async for kind, _ in shown(client, run_id)]
            rest = [kind async for kind, _ in shown(client, await say(client, "Go on."))]
    stored = [kind for kind in seen if kind != "model_text_delta"]
    assert stored == again
    assert again[-1] == "run_cancelled"
    assert rest[-1] == "run_completed"
    said = [m["content"] for m in model.requests[1].body["messages"] if m["role"] == "user"]
    assert said == ["Tell a story.", "Go on."]

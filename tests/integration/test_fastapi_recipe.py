"""The recipe with FastAPI, as it stands: two processes, one database, a scripted model service."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector

from agent_core.providers.scripted import Calls, Says, ScriptedCall
from isolation import Home, program_file
from model_server import ModelServer, Received, Reply
from sweeps import is_whole

pytestmark = pytest.mark.timeout(180)

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
MAIL = ScriptedCall(name="send_mail", arguments={"to": "a@b.org", "text": "Hi"})
ASKS = Calls(calls=[MAIL], text="I will write. ")
STARTED = r"Started server process \[(\d+)\]"
WORKER = """
import socket, sys
from contextlib import suppress

import uvicorn

sys.path.insert(0, sys.argv[1])
config = uvicorn.Config("fastapi_service:app", timeout_graceful_shutdown=5)
with suppress(KeyboardInterrupt):
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[2]))])
"""
"""What `uvicorn --workers` starts several times, each from scratch; this one may be a copy."""


def say_what_came_of_it(asked: Received) -> Reply:
    is_sent = "sent 2 characters to a@b.org" in asked.body["messages"][-1]["content"]
    return Says(text="It is sent." if is_sent else "I did not.")


class Service:
    """The service: its client, its processes, and what it has said."""

    def __init__(self, processes: list[Process], client: ClientSession, said: list[str]) -> None:
        self.processes = processes
        self.client = client
        self.said = said

    @property
    def workers(self) -> list[int]:
        """The ids of the processes that have started, oldest first."""
        return [int(each) for each in re.findall(STARTED, "".join(self.said))]

    async def started(self, number: int) -> None:
        """Wait until so many processes have started."""
        ready = "Application startup complete"
        while "".join(self.said).count(ready) < number:
            assert all(each.returncode is None for each in self.processes), "".join(self.said)
            await asyncio.sleep(0.05)

    def interrupt(self) -> None:
        for each in self.processes:
            with suppress(ProcessLookupError):
                each.send_signal(signal.SIGINT)

    async def post(self, path: str, user: str = "ann", **body: Any) -> tuple[int, Any]:
        async with self.client.post(path, json=body, headers={"X-User": user}) as done:
            return done.status, await done.json()

    async def get(self, path: str, user: str = "ann") -> tuple[int, Any]:
        async with self.client.get(path, headers={"X-User": user}) as done:
            return done.status, await done.json()

    async def start(self, chat: str = "c1", user: str = "ann") -> str:
        status, answer = await self.post("/runs", user, text="Write to Ada", chat=chat)
        assert status == 200, answer
        return answer["run_id"]

    async def events(self, run_id: str, after: str = "0") -> AsyncGenerator[tuple[str, str, Any]]:
        headers = {"X-User": "ann", "Last-Event-ID": after}
        async with self.client.get(f"/runs/{run_id}/events", headers=headers) as response:
            assert response.status == 200, await response.text()
            fields: dict[str, str] = {}
            async for line in response.content:
                if line.strip():
                    name, _, value = line.decode().rstrip("\r\n").partition(": ")
                    fields |= {name: value} if name else {}  # a line without a name is a ping
                elif fields:
                    yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
                    fields = {}

    async def question(self) -> dict[str, Any]:
        """Return the question of a user, once there is one."""
        while not (found := (await self.get("/questions"))[1]):  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)
        return found[0]

    async def text_of(self, run_id: str) -> str:
        """Follow a run to its end, as a browser does: anew whenever the stream ends."""
        last, text = "0", ""
        while True:
            async with aclosing(self.events(run_id, last)) as shown:
                async for number, kind, payload in shown:
                    last = number or last
                    if kind == "model_text_delta":
                        text = (
                            payload["text"] if payload.get("from_start") else text + payload["text"]
                        )
                    elif kind == "model_started":
                        text = ""
                    elif kind == "run_completed":
                        return text
            await asyncio.sleep(0.05)


@asynccontextmanager
async def service(
    home: Home, project: Path, model: ModelServer, url: str
) -> AsyncGenerator[Service]:
    """Start two processes that listen on one port, by uvicorn's supervisor if all is tried."""
    environ = {
        **os.environ,
        "SOONG_AGENT_HOME": str(home.path),
        "MODEL": f"openai:gpt-5-mini@{model.base_url('openai')}",
        "DATABASE_URL": url,
    }
    with socket.create_server(("127.0.0.1", 0)) as door:
        port, number = door.getsockname()[1], door.fileno()
        commands = [[program_file(WORKER), str(RECIPES), str(number)]] * 2
        if is_whole():
            supervised = f"-m uvicorn --app-dir {RECIPES} --fd {number} --workers 2"
            last = "--timeout-graceful-shutdown 5 fastapi_service:app"
            commands = [[*supervised.split(), *last.split()]]
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                cwd=project,
                env=environ,
                stderr=PIPE,
                pass_fds=[number],
            )
            for command in commands
        ]
    said: list[str] = []

    async def listen(process: Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            said.append(line.decode())  # noqa: PERF401 - seen while it is collected

    listening = [asyncio.create_task(listen(each)) for each in processes]
    connector = TCPConnector(force_close=True)  # each request may reach either process
    async with ClientSession(f"http://127.0.0.1:{port}", connector=connector) as client:
        made = Service(processes, client, said)
        try:
            await made.started(2)
            yield made
        finally:
            made.interrupt()
            for each in processes:
                await each.wait()
            await asyncio.gather(*listening)
    assert "Traceback" not in "".join(said), "".join(said)


@pytest.mark.long
async def test_two_processes_serve_the_runs_of_several_users(
    home: Home, project: Path, database_url: str
) -> None:
    """One service: runs and questions, other users, killed processes, and its end."""
    replies = [*[ASKS, say_what_came_of_it] * 3, "hello", ASKS, say_what_came_of_it, ASKS]
    with ModelServer.in_thread(replies) as model:
        async with service(home, project, model, database_url) as made:
            await answer_in_any_process(made)
            sent = [request.text for request in model.requests if "sent 2 char" in request.text]
            assert len(sent) == 3
            await keep_users_apart(made)
            if is_whole():
                await answer_after_a_kill(made)
            await end_with_an_open_stream(made)
    offered = [each["function"]["name"] for r in model.requests for each in r.body["tools"]]
    assert set(offered) == {"send_mail"}


async def answer_in_any_process(made: Service) -> None:
    for number in range(3):
        run_id = await made.start(f"c{number}")
        question = await made.question()
        assert question["arguments"] == MAIL.arguments
        assert (await made.get("/questions", "bob"))[1] == []
        path = f"/questions/{question['id']}"
        assert (await made.post(path, "bob", allow=True))[0] == 404
        assert (await made.post(path, allow=True))[0] == 200
        assert (await made.post(path, allow=True))[0] == 409
        assert await made.text_of(run_id) in {"It is sent.", ""}


async def keep_users_apart(made: Service) -> None:
    run_id = await made.start("c1")
    await made.text_of(run_id)
    assert (await made.get(f"/runs/{run_id}/events", "bob"))[0] == 404
    assert (await made.post(f"/runs/{run_id}/cancel", "bob"))[0] == 404
    assert (await made.post("/runs/run_x/cancel"))[0] == 404
    # "ann" with the chat "b-c1" and "ann-b" with "c1" would share a session.
    assert (await made.post("/runs", "ann-b", text="Hi", chat="c1"))[0] == 401
    assert (await made.post("/runs", text="", chat="c"))[0] == 400


async def answer_after_a_kill(made: Service) -> None:
    run_id = await made.start("killed")
    question = await made.question()
    for pid in made.workers:
        os.kill(pid, signal.SIGKILL)
    await made.started(4)  # the supervisor has started others
    assert (await made.post(f"/questions/{question['id']}", allow=True))[0] == 200
    await made.text_of(run_id)


async def end_with_an_open_stream(made: Service) -> None:
    run_id = await made.start("open")
    await made.question()
    async with aclosing(made.events(run_id)) as shown:
        assert (await anext(shown))[1]
        made.interrupt()
        for each in made.processes:
            assert await asyncio.wait_for(each.wait(), 60) in {0, -signal.SIGINT, 130}

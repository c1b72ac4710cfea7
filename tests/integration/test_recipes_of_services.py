"""The recipes that hand over, stop, ask and remember, run as they stand."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from agent_core.providers.scripted import Calls, Hangs, Says, ScriptedCall, calls
from isolation import Home
from model_server import ModelServer, Received, Reply
from recipe_programs import RECIPES, environment, run
from sweeps import kept, sampled

pytestmark = pytest.mark.timeout(120)


@pytest.mark.sweep
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


@pytest.mark.sweep
@pytest.mark.parametrize("stop", kept([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
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


def test_a_coding_agent_asks_before_an_edit_and_never_edits_a_lock_file(
    home: Home, project: Path
) -> None:
    (project / "failures.txt").write_text("3 + 4 is not -1\n", encoding="utf-8")
    (project / "total.py").write_text("return a - b\n", encoding="utf-8")
    (project / "uv.lock").write_text("1\n", encoding="utf-8")
    script = [
        Calls(calls=[ScriptedCall(name="failures", arguments={})], text="I look. "),
        calls("code.edit_file", path="total.py", edits=[{"old": "a - b", "new": "a + b"}]),
        calls("code.edit_file", path="total.py", edits=[{"old": "return", "new": "print"}]),
        calls("code.edit_file", path="uv.lock", edits=[{"old": "1", "new": "2"}]),
        "It adds now.",
    ]
    with ModelServer.in_thread(script) as server:
        done = run(home, server, "coding_agent", "Repair it.", cwd=project, typed="y\nn\n")
        server.assert_complete()
    assert done.returncode == 0, done.stderr
    assert (project / "total.py").read_text(encoding="utf-8") == "return a + b\n"
    assert (project / "uv.lock").read_text(encoding="utf-8") == "1\n"
    assert done.stdout.count("[y/n]") == 2
    assert "+return a + b" in done.stdout
    assert "I look. " in done.stdout
    assert "It adds now." in done.stdout
    seen = [request.body["messages"][-1]["content"] for request in server.requests]
    assert "3 + 4 is not -1" in seen[1]
    assert "lock files are generated" in seen[4]


def answer_as_bot(asked: Received) -> Reply:
    said = "\n".join(str(message["content"]) for message in asked.body["messages"])
    last = asked.body["messages"][-1]["content"]
    if "worth remembering" in said:
        if (told := re.search(r"\[user (node_\w+)\]\nRemember that I like short", said)) is None:
            return Says(text='{"explicit": false, "memories": []}')
        wish: dict[str, Any] = {
            "decision": "new",
            "category": "user",
            "filename": "short",
            "tags": [],
        }
        wish |= {"summary": "Likes short answers", "content": "The user likes short answers."}
        memory = {**wish, "source_node_ids": [told[1]]}
        return Says(text=json.dumps({"explicit": True, "memories": [memory]}))
    if "You summarise a conversation" in said:
        return Says(text='{"summary": "They spoke at length of one word, many times."}')
    if "What do I like?" in last:
        return Says(text="Short answers." if "Likes short answers" in said else "I do not know.")
    return Says(text="Yes.")


@pytest.mark.sweep
def test_a_bot_continues_its_chats_and_remembers_each_user(home: Home, project: Path) -> None:
    long = [f"ada long {number} {'word ' * 2000}" for number in range(14)]
    first = ["ada c1 Remember that I like short answers.", *long]
    second = [
        "ada c2 What do I like?",
        "bob c1 What do I like?",
        "ada long The last one?",
        "ada c1 /chats",
        "ada c1 /delete",
        "ada c1 /delete",
        "ada c1 /chats",
    ]
    with ModelServer.in_thread(answer_as_bot) as server:
        done = run(home, server, "chat_bot", cwd=project, typed="\n".join(first))
        assert done.returncode == 0, done.stderr
        again = run(home, server, "chat_bot", cwd=project, typed="\n".join(second))
        assert again.returncode == 0, again.stderr
        (last,) = [each for each in server.requests if "The last one?" in each.text]
    likes, nothing, _, chats, deleted, unknown, left = again.stdout.splitlines()
    assert (likes, nothing) == ("ada c2: Short answers.", "bob c1: I do not know.")
    assert set(re.findall(r"(\w+) \(", chats)) == {"c1", "c2", "long"}
    assert deleted == "ada c1: deleted"
    assert unknown.startswith("ada c1: there is no session ada-c1")
    assert set(re.findall(r"(\w+) \(", left)) == {"c2", "long"}
    assert "They spoke at length of one word" in last.text
    assert len(last.text) < 120_000 < sum(map(len, long))


@pytest.mark.long
def test_a_job_continues_after_its_process_was_killed(home: Home, project: Path) -> None:
    script = [calls("measure", step=1), Hangs(), calls("measure", step=2), "Measured."]
    with ModelServer.in_thread(script) as server:
        variables = {**environment(home, server), "SECONDS": "0"}
        command = [sys.executable, str(RECIPES / "resume.py")]
        with subprocess.Popen(command, cwd=project, env=variables) as first:  # noqa: S603 - ours
            while len(server.requests) < 2:  # the model has the result of the first step
                assert first.poll() is None
                time.sleep(0.02)
            first.kill()
        again = run(home, server, "resume", cwd=project)
        server.assert_complete()
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines() == ["measuring 2", "Measured."]
    continued = server.requests[2].body["messages"]
    said = [m["content"] for m in continued if m["role"] == "user"]
    assert said == ["Measure the steps 1, 2 and 3.", "Go on."]
    assert ["1.5" in m["content"] for m in continued if m["role"] == "tool"] == [True]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("decision", "output"), sampled([("yes", "refunded order 7"), ("no", "denied")], keep=1)
)
def test_a_refund_is_approved_by_another_process(
    home: Home, project: Path, decision: str, output: str
) -> None:
    with ModelServer.in_thread([calls("refund", order=7), "Done."]) as server:
        asked = run(home, server, "remote_approval", "ask", "Refund order 7.", cwd=project)
        assert asked.returncode == 0, asked.stderr
        request = asked.stdout.strip()
        said = run(home, server, "remote_approval", "answer", request, decision, cwd=project)
        again = run(home, server, "remote_approval", "answer", request, decision, cwd=project)
        server.assert_complete()
    assert said.stdout.splitlines() == ["Done."], said.stderr
    assert output in server.requests[1].body["messages"][-1]["content"]
    assert again.returncode != 0
    assert "already answered" in again.stderr

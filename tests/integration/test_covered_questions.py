"""An answer for the session settles what it covers: of parallel calls, children and parked runs."""

import asyncio
import json
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

import pytest

from agent_core import PermissionDecision, PermissionRequest
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider
from agent_core.types import Decision, RunStatus
from casts import Cast
from isolation import Home
from runtimes import CONFIG, Asked, runtime
from sweeps import kept

PARK = CONFIG + '[permissions]\nunattended = "park"\n'


def write(path: str) -> ScriptedCall:
    arguments = {"path": path, "content": "x\n", "overwrite": True}
    return ScriptedCall(name="code.write_file", arguments=arguments)


def command(*argv: str) -> ScriptedCall:
    return ScriptedCall(name="code.run_command", arguments={"argv": [*argv]})


def read(path: str) -> ScriptedCall:
    return ScriptedCall(name="code.read_file", arguments={"path": path})


@pytest.fixture
def files(project: Path) -> Path:
    (project / "a.txt").write_text("one\n", encoding="utf-8")
    return project


@pytest.mark.parametrize(
    "is_new_process", kept([False, True], True), ids=kept(["same", "restarted"], "restarted")
)
@pytest.mark.parametrize("scope", kept(["session", "session_stored"], "session_stored"))
async def test_an_answer_settles_the_other_questions_of_a_parked_run(
    home: Home, files: Path, is_new_process: bool, scope: str
) -> None:
    config = PARK + f'readonly_default = "ask"\nremember_scope = "{scope}"\n'
    provider = ScriptedProvider(
        [Calls(calls=[read("a.txt"), read("a.txt"), read("a.txt")]), "done"]
    )
    first = runtime(home, files, provider, config=config)
    async with first:
        result = await first.run("go", "s1")
        assert result.status is RunStatus.WAITING
        assert len(result.pending_requests) == 3
        if not is_new_process:
            handle = await first.answer(result.pending_requests[1], "allow_for_session")
            assert (await handle.result()).text == "done"
    async with runtime(home, files, provider, config=config) as made:
        if is_new_process:
            handle = await made.answer(result.pending_requests[1], "allow_for_session")
            assert (await handle.result()).text == "done"
            assert handle.pending_requests == []
        closed = await made.approvals("s1", is_open=False)
    assert len(closed) == 3
    assert {each.decision for each in closed} == {Decision.ALLOW_FOR_SESSION}
    assert [each.decided_by for each in closed] == ["session", "sdk", "session"]
    assert f"the answer to {result.pending_requests[1]} covers it" in {e.reason for e in closed}


@pytest.mark.parametrize(
    ("call", "decision"),
    [(command("cat", "a.txt"), "allow_reads"), (write("b.txt"), "allow_edits")],
    ids=["reads", "edits"],
)
async def test_an_answer_settles_questions_of_other_children(
    home: Home, files: Path, call: ScriptedCall, decision: str
) -> None:
    """Two children ask at the same time, and the parent's user answers one of them."""
    asked: list[PermissionRequest] = []
    both, forever = asyncio.Event(), asyncio.Event()

    async def answer(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        if len(asked) == 2:
            both.set()
            await forever.wait()  # nobody answers this one
        await both.wait()
        return PermissionDecision(decision=Decision(decision))

    tasks = ["look at one", "look at two"]
    start = [
        ScriptedCall(name="agent.create_sub_agent", arguments={"task": task}) for task in tasks
    ]
    played = Cast({
        "go": [Calls(calls=start), "done"],
        **{task: [Calls(calls=[call]), "a report"] for task in tasks},
    })  # fmt: skip
    made = runtime(home, files, played, permission_callback=cast("Asked", answer))
    async with made, asyncio.timeout(50):
        result = await made.run("go", "s1")
        closed = await made.approvals("s1", is_open=False)
    assert result.text == "done"
    assert len({request.agent_id for request in asked}) == 2
    assert {request.metadata["agent_task"] for request in asked} == {"look at one", "look at two"}
    assert {each.decision for each in closed} == {Decision(decision)}
    assert {each.decided_by for each in closed} == {"callback", "session"}


@pytest.mark.sweep
async def test_the_end_of_the_input_does_not_deny_what_an_answer_covers(
    home: Home, files: Path
) -> None:
    """Four calls ask at once, two with each scope; the pipe has two answers."""
    odd = "b\\c.txt"  # the words of its scope may be those of another one
    (files / odd).write_text("two\n", encoding="utf-8")
    paths = ("a.txt", odd, "a.txt", odd)
    made = [{"name": "code.read_file", "arguments": {"path": path}} for path in paths]
    home.write("replies.json", json.dumps([{"type": "calls", "calls": made}, "done"]))
    home.write_config(
        f'[model]\nprovider = "scripted"\nname = "script"\npath = "{home.path}/replies.json"\n'
        '[permissions]\nreadonly_default = "ask"\n'
    )
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "agent_core.cli", "run", "--path", str(files), "go"]
    running = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env=home.env()
    )
    async with asyncio.timeout(60):
        await opened(home.path / "sessions.sqlite", 4)
        out, err = await running.communicate(b"2\n2\n")
    shown = err.decode()
    assert (running.returncode, out) == (0, b"done\n"), shown
    asked = [line for line in shown.splitlines() if "asks for permission" in line]
    numbers = [line.partition("), ")[2] for line in asked]
    assert numbers in (["", "2 of 3"], ["", "2 of 4"])  # of those that wait by then
    assert "nobody could be asked" not in shown
    assert "denied" not in shown


async def opened(database: Path, count: int) -> None:
    """Return when so many questions are open in a database."""
    while True:
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT 1 FROM approvals WHERE state = 'open'").fetchall()
            if len(rows) == count:
                return
        await asyncio.sleep(0.05)

"""The next message of a session: kept in memory by one process, and used by others in between."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, RunStatus, StorageError, tool
from agent_core.errors import ErrorCode
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider
from agent_core.storage import sqlite
from agent_core.storage.sqlite import ReaderThreads
from agent_core.types import EventType, ModelRequest, Node
from isolation import Home, program_file
from loop_parts import spoken
from runtimes import CONFIG, ask, runtime
from sweeps import sampled

PEER = """
import asyncio, json, os, sys
from agent_core import AgentRuntime, StorageError
from agent_core.providers.scripted import ScriptedProvider

def answer(request):
    shown.append([block.text for message in request.messages for block in message.content])
    return f"reply {len(shown)} of another"

shown = []

async def work(runtime, what, text):
    if what == "ask":
        handle = await runtime.start(text, session_id="s1")
        return (await handle.wait()).value, shown[-1]
    if what == "die":
        handle = await runtime.start("dying", session_id="s1")
        count = 0
        async for event in handle.events(debug=True):
            count += 1
            if count == int(text):
                os.kill(os.getpid(), 9)
        return "alive"
    if what == "undo":
        return (await runtime.undo("s1")).node_id
    if what == "redo":
        return (await runtime.redo("s1")).node_id
    if what == "rename":
        return (await runtime.rename_session("s1", text)).title
    if what == "fork":
        return (await runtime.fork("s1")).session_id
    if what == "delete":
        await runtime.delete_session("s1")

async def main():
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_provider("custom", lambda model: ScriptedProvider(answer))
    async with runtime:
        print(flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                done = await work(runtime, *json.loads(line))
            except StorageError as error:
                done = ["refused", error.code]
            print(json.dumps(done), flush=True)

asyncio.run(main())
"""


class Peer:
    """A runtime of the same home and project in another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self.process, self._input, self._output = process, process.stdin, process.stdout

    async def __call__(self, what: str, text: str = "") -> Any:
        self._input.write(json.dumps([what, text]).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        line = await asyncio.wait_for(self._output.readline(), 30)
        return json.loads(line) if line.strip() else None


@pytest.fixture
async def peer(home: Home, project: Path) -> AsyncIterator[Peer]:
    home.write_config(CONFIG)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, program_file(PEER), str(home.path), str(project)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    peer = Peer(process)
    await peer.answer()
    yield peer
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()
    await process.wait()


class Here:
    """This process' runtime: what its model was shown last."""

    def __init__(self, home: Home, project: Path) -> None:
        self.requests: list[ModelRequest] = []
        self.home, self.project = home, project

    def open(self) -> AgentRuntime:
        def answer(request: ModelRequest) -> str:
            self.requests.append(request)
            return f"reply {len(self.requests)} here"

        return runtime(self.home, self.project, ScriptedProvider(answer))

    @property
    def shown(self) -> list[str]:
        blocks = [block for each in self.requests[-1].messages for block in each.content]
        return [block.text for block in blocks if block.type == "text"]


@pytest.fixture
def here(home: Home, project: Path) -> Here:
    return Here(home, project)


async def path_of(made: AgentRuntime) -> list[str]:
    """The conversation that the next message continues."""
    page = await made.replay_session("s1")
    by_id = {node.node_id: node for node in page.nodes}
    found: list[Node] = []
    node_id = page.session.active_node_id
    while node_id is not None:
        found.append(by_id[node_id])
        node_id = found[-1].parent_id
    return spoken(reversed(found))


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Count what is read from files from now on."""
    read: list[object] = []
    whole = ReaderThreads.read

    async def counted(self: ReaderThreads, query: Any, *, is_single: bool = False) -> Any:
        read.append(query)
        return await whole(self, query, is_single=is_single)

    monkeypatch.setattr(ReaderThreads, "read", counted)
    return read


async def test_the_next_message_reads_nothing(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    read = count_reads(monkeypatch)
    async with here.open() as made:
        await ask(made, "one")
        read.clear()
        for text in ("two", "three"):
            await ask(made, text)
        assert read == []
        assert here.shown == ["one", "reply 1 here", "two", "reply 2 here", "three"]
        assert await path_of(made) == [
            *("user: one", "assistant: reply 1 here", "user: two", "assistant: reply 2 here"),
            *("user: three", "assistant: reply 3 here"),
        ]


async def test_a_message_right_after_the_closing_event_reads_nothing_either(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the writer's thread has stored the end of the run before."""
    read = count_reads(monkeypatch)
    monkeypatch.setattr(sqlite, "_CHECKPOINT_EVERY", 4)
    async with here.open() as made:
        await ask(made, "0")
        read.clear()
        for number in range(1, 8):
            handle = await made.start(str(number), session_id="s1")
            async for event in handle.events():
                assert event.event_type is not EventType.RUN_QUEUED
    assert read == []
    assert len(here.shown) == 15


async def test_two_processes_take_turns_in_a_session(here: Here, peer: Peer) -> None:
    async with here.open() as made:
        await ask(made, "one")
        assert await peer("ask", "two") == ["completed", ["one", "reply 1 here", "two"]]
        await ask(made, "three")
        assert here.shown == ["one", "reply 1 here", "two", "reply 1 of another", "three"]
        await ask(made, "four")
        said = [*here.shown, "reply 3 here", "five"]
        assert await peer("ask", "five") == ["completed", said]
        assert await peer("ask", "six") == ["completed", [*said, "reply 2 of another", "six"]]
        await ask(made, "seven")
        assert here.shown == [*said, "reply 2 of another", "six", "reply 3 of another", "seven"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("moves", "shown"),
    sampled(
        [
            (["undo"], ["one", "reply 1 here", "four"]),
            (["undo", "undo"], ["four"]),
            (["undo", "redo"], ["one", "reply 1 here", "two", "reply 2 here", "four"]),
            (["rename"], ["one", "reply 1 here", "two", "reply 2 here", "four"]),
            (["fork"], ["one", "reply 1 here", "two", "reply 2 here", "four"]),
            (["undo", "ask"], ["one", "reply 1 here", "three", "reply 1 of another", "four"]),
            (["delete"], ["four"]),
            (["delete", "ask"], ["three", "reply 1 of another", "four"]),
        ],
        keep=2,
    ),
    ids=" ".join,
)
async def test_what_another_process_does_between_two_messages_counts(
    here: Here, peer: Peer, moves: list[str], shown: list[str]
) -> None:
    async with here.open() as made:
        await ask(made, "one")
        await ask(made, "two")
        for move in moves:
            done = await peer(move, "three")
            assert not isinstance(done, list) or done[0] == "completed", done
        await ask(made, "four")
        assert here.shown == shown
        await ask(made, "five")
        assert here.shown == [*shown, "reply 3 here", "five"]
        if "rename" in moves:
            assert (await made.replay_session("s1")).session.title == "three"


@pytest.mark.parametrize("at", sampled(range(1, 9), 1))
async def test_a_process_that_is_killed_in_its_next_message_leaves_the_session_to_others(
    here: Here, peer: Peer, at: int
) -> None:
    async with here.open() as made:
        await ask(made, "one")
        await peer("ask", "two")
        assert await peer("die", f"{at}") is None
        assert await peer.process.wait() == -signal.SIGKILL
        handle = await ask(made, "four")
        assert handle.status is RunStatus.COMPLETED
        said = [text for text in here.shown if not text.startswith("reply")]
        assert said in (["one", "two", "four"], ["one", "two", "dying", "four"])
        page = await made.replay_session("s1")
        ends = [run.status for run in page.runs]
        assert ends.count(RunStatus.COMPLETED) >= 3
        assert set(ends) <= {RunStatus.COMPLETED, RunStatus.FAILED}
        assert page.session.owner is None
        await ask(made, "five")
        assert here.shown[-3:] == ["four", "reply 2 here", "five"]


async def test_two_processes_that_write_at_the_same_time_lose_and_repeat_nothing(
    here: Here, peer: Peer
) -> None:
    rounds, said = 12, ["user: begin"]
    async with here.open() as made:
        await ask(made, "begin")
        for number in range(rounds):
            theirs = asyncio.create_task(peer("ask", f"theirs {number}"))
            try:
                await ask(made, f"ours {number}")
                said.append(f"user: ours {number}")
            except StorageError as error:
                if error.code is not ErrorCode.SESSION_ACTIVE:
                    raise
            done = await theirs
            if done[0] == "completed":
                said.append(f"user: theirs {number}")
            else:
                assert done == ["refused", "session_active"]
        path = await path_of(made)
        assert sorted(each for each in path if each.startswith("user")) == sorted(said)
        assert len(path) == 2 * len(said)
        page = await made.replay_session("s1")
        assert len(page.nodes) == len(path), "a message is on another branch"


@pytest.mark.sweep
async def test_a_runtime_that_is_closed_leaves_the_session_to_others(
    here: Here, peer: Peer
) -> None:
    async with here.open() as made:
        await ask(made, "one")
        await ask(made, "two")
    assert (await peer("ask", "three"))[0] == "completed"
    async with here.open() as made:
        await ask(made, "four")
        assert here.shown[4:] == ["three", "reply 1 of another", "four"]
        # It waits in this process, behind one that is at work.
        first, second = [await made.start(text, session_id="s1") for text in ("five", "six")]
        await asyncio.gather(first.wait(), second.wait())
        assert here.shown[-3:] == ["five", "reply 4 here", "six"]


async def test_a_message_after_one_that_was_cancelled_or_has_failed_continues_at_its_end(
    here: Here,
) -> None:
    async with here.open() as made:
        await ask(made, "one")
        handle = await made.start("two", session_id="s1")
        await handle.cancel()
        await ask(made, "three")
        said = [text for text in here.shown if not text.startswith("reply")]
        assert said in (["one", "three"], ["one", "two", "three"])
        await made.undo("s1")
        await ask(made, "four")
        assert "three" not in here.shown
        assert await path_of(made) == [
            *(f"{'assistant' if t.startswith('reply') else 'user'}: {t}" for t in here.shown),
            f"assistant: reply {len(here.requests)} here",
        ]


@tool(permission="readonly")
async def add(a: int) -> int:
    """Add one."""
    return a + 1


async def test_a_model_that_repeats_the_id_of_a_call_gets_another_in_every_message(
    home: Home, project: Path
) -> None:
    call = Calls(calls=[ScriptedCall(name="add", arguments={"a": 1}, tool_call_id="call_0")])
    script = [each for _ in range(4) for each in (call, "done")]
    made = runtime(home, project, script)
    made.register_tool(add)
    async with made:
        for text in ("one", "two", "three", "four"):
            await ask(made, text)
        page = await made.replay_session("s1")
        ids = [call.tool_call_id for node in page.nodes for call in node.calls]
        assert len(ids) == len(set(ids)) == 4
        assert [each.tool_call_id for node in page.nodes for each in node.results] == ids
        ends = [run.end_node_id for run in page.runs]
        assert ends == [node.node_id for node in page.nodes if node.text == "done"]

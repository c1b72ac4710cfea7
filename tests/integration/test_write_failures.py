"""A write that fails ends one run, honestly, and nothing else."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from agent_core import AgentRuntime, EventType, RunHandle, RunStatus, StorageError
from agent_core.providers.scripted import Calls, Says, ScriptedProvider, calls
from agent_core.types import CLOSING_EVENTS, ModelRequest, RunRecord, RuntimeEvent
from failing_disk import Disk, put_under
from isolation import Home
from runtimes import CONFIG, Asked, collect, runtime
from sweeps import is_whole

FAST = CONFIG + "\n[memory]\nenabled = false\n"
EVERY = 1 if is_whole() else 3
"""Which writes of a child or a summary fail, one in each trial."""


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    put_under(monkeypatch, made)
    return made


def talkative(request: ModelRequest) -> str | Calls:
    """Reads, writes, reads with two calls at once, then answers; says plainly who is next."""
    turn = sum(message.role == "tool" for message in request.messages)
    asked = [b.text for b in request.messages[-1].content if b.type == "text"]
    if asked == ["next"]:
        return "here I am"
    if turn == 0:
        return calls("code.list_dir", path=".")
    if turn == 1:
        return calls("code.write_file", path="a.txt", content="x")
    return "done"


def rows(home: Home) -> list[RunRecord]:
    with sqlite3.connect(home.path / "sessions.sqlite") as db:
        db.row_factory = sqlite3.Row
        found = db.execute(
            "SELECT run_id, session_id, agent_id, status, mode, created_at,"
            " updated_at, parent_run_id FROM runs ORDER BY rowid"
        ).fetchall()
    db.close()
    return [RunRecord.model_validate(dict(row)) for row in found]


async def begin(made: AgentRuntime, text: str) -> tuple[RunHandle | None, list[RuntimeEvent]]:
    """Run a message to its end; no handle if it could not be opened."""
    try:
        handle = await made.start(text, session_id="s1")
    except StorageError:
        return None, []
    events = await collect(handle, debug=True)
    await handle.wait()
    return handle, events


async def check_agreement(made: AgentRuntime, handle: RunHandle, shown: list[RuntimeEvent]) -> None:
    """Handle, stream, row and replay tell of the same end, and point at what is there."""
    replay = await made.replay_run(handle.run_id, include_sensitive=True)
    (row,) = replay.runs
    closing = [event for event in replay.events if event.event_type in CLOSING_EVENTS]
    assert row.status is handle.status
    assert [event.event_type for event in closing] == [shown[-1].event_type]
    assert replay.events[-1].event_type == shown[-1].event_type
    assert shown[-1].event_type == f"run_{handle.status}"
    assert closing[0].payload.get("error") == shown[-1].payload.get("error")
    stored = {node.node_id for node in replay.nodes}
    for node_id in (row.start_node_id, row.end_node_id):
        assert node_id is None or (await made.get_node_path(node_id))[-1].node_id == node_id
    kept = {event.event_id for event in replay.events}
    structural = [event for event in shown if event.seq is not None]
    assert {event.event_id for event in structural} <= kept
    assert {event.node_id for event in replay.events if event.node_id} <= stored


async def check_goes_on(made: AgentRuntime) -> None:
    handle = await made.start("next", session_id="s1")
    events = await collect(handle, debug=True)
    await handle.wait()
    assert handle.status is RunStatus.COMPLETED, handle.error
    assert handle.result_text == "here I am"
    await check_agreement(made, handle, events)


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "failures"),
    [
        (sqlite3.SQLITE_IOERR, 2),
        *(
            pytest.param(code, failures, marks=pytest.mark.sweep)
            for code, failures in (
                *((sqlite3.SQLITE_FULL, n) for n in (1, 2, 3)),
                *((sqlite3.SQLITE_IOERR, n) for n in (1, 3)),
            )
        ),
    ],
)
async def test_whichever_write_fails_the_run_ends_on_what_is_stored_and_the_session_goes_on(
    home: Home, project: Path, disk: Disk, code: int, failures: int
) -> None:
    disk.code = code
    step = 1 if is_whole() else failures  # each write fails in some trial either way
    number = 1 - step
    while True:
        number += step
        (home.path / "sessions.sqlite").unlink(missing_ok=True)
        (project / "a.txt").unlink(missing_ok=True)
        provider = ScriptedProvider(talkative)
        allowed = Asked("allow_for_session")
        async with runtime(
            home, project, provider, config=FAST, permission_callback=allowed
        ) as made:
            disk.arm(*range(number, number + failures))
            handle, events = await begin(made, "go")
            met = disk.failed
            disk.disarm()
            if handle is not None:
                if met and handle.status is RunStatus.COMPLETED:  # the question was not stored
                    (refused,) = (e for e in events if e.event_type == "tool_failed")
                    assert refused.payload["code"] == "storage_error"
                    assert not (project / "a.txt").exists()
                elif met:
                    assert handle.status is RunStatus.FAILED
                    assert handle.error is not None
                    assert "sessions.sqlite" in handle.error.message
                assert events[-1].event_type == f"run_{handle.status}"
            await check_goes_on(made)
            if handle is not None:
                await check_agreement(made, handle, events)
            assert all(run.status.is_terminal for run in rows(home))
        async with runtime(home, project, ScriptedProvider(talkative), config=FAST) as again:
            await check_goes_on(again)
        if not met:
            break
    assert number > 5


async def test_an_end_that_cannot_be_stored_is_stored_when_there_is_room_again(
    home: Home, project: Path, disk: Disk
) -> None:
    async with runtime(home, project, ScriptedProvider(talkative), config=FAST) as made:
        disk.arm(since=3)
        handle, events = await begin(made, "go")
        assert handle is not None
        assert (handle.status, events[-1].event_type) == (RunStatus.FAILED, EventType.RUN_FAILED)
        with pytest.raises(StorageError):
            await made.start("next", session_id="s1")
        disk.disarm()
    # Closing the runtime was the next occasion.
    assert [run.status for run in rows(home)] == [RunStatus.FAILED]
    async with runtime(home, project, ScriptedProvider(talkative), config=FAST) as made:
        await check_agreement(made, handle, events)
        await check_goes_on(made)


async def test_a_disk_that_stays_full_leaves_the_run_to_the_next_process(
    home: Home, project: Path, disk: Disk
) -> None:
    async with runtime(home, project, ScriptedProvider(talkative), config=FAST) as made:
        disk.arm(since=3)
        handle, _ = await begin(made, "go")
        assert handle is not None
    disk.disarm()
    async with runtime(home, project, ScriptedProvider(talkative), config=FAST) as made:
        (row,) = (await made.replay_run(handle.run_id)).runs
        assert (row.status, row.metadata["reason"]) == (RunStatus.FAILED, "owner_lost")
        await check_goes_on(made)


async def test_a_transaction_that_a_failure_leaves_open_is_taken_back(
    home: Home, project: Path, disk: Disk
) -> None:
    disk.leaves_transaction_open = True
    async with runtime(home, project, ScriptedProvider(talkative), config=FAST) as made:
        disk.arm(3)
        handle, events = await begin(made, "go")
        assert handle is not None
        assert handle.status is RunStatus.FAILED
        await check_agreement(made, handle, events)
        await check_goes_on(made)
    async with runtime(home, project, ScriptedProvider(talkative), config=FAST) as made:
        await check_goes_on(made)


@pytest.mark.long
async def test_runs_beside_the_failing_one_are_judged_by_their_own_writes(
    home: Home, project: Path, disk: Disk
) -> None:
    def echo(request: ModelRequest) -> Says:
        return Says(text="fine", chunks=1)

    for number in range(1, 30, 4 if is_whole() else 9):
        async with runtime(home, project, ScriptedProvider(echo), config=FAST) as made:
            disk.arm(number)
            names = [f"n{number}s{n}" for n in range(8)]
            opened = await asyncio.gather(
                *(made.start("hi", session_id=name) for name in names), return_exceptions=True
            )
            handles = [one for one in opened if isinstance(one, RunHandle)]
            await asyncio.gather(*(handle.wait() for handle in handles))
            disk.disarm()
            for handle in handles:
                (row,) = (await made.replay_run(handle.run_id)).runs
                assert row.status is handle.status
            for name in names:
                after = await made.start("again", session_id=name)
                assert await after.wait() is RunStatus.COMPLETED


def family(request: ModelRequest) -> str | Calls:
    """A leader with a child and a fork; both answer at once."""
    asked = [b.text for m in request.messages for b in m.content if b.type == "text"]
    if asked[-1] == "next":
        return "here I am"
    if "lead" not in asked[-1] and request.metadata.get("parent") is None and "work" in asked[-1]:
        return "the work is done"
    turn = sum(message.role == "tool" for message in request.messages)
    if turn == 0:
        return calls("agent.create_sub_agent", task="work on it")
    if turn == 1:
        return calls("agent.fork_agent", task="work on it too")
    return "done"


@pytest.mark.long
async def test_whichever_write_of_a_child_fails_every_run_has_one_end(
    home: Home, project: Path, disk: Disk
) -> None:
    number = 1 - EVERY
    while True:
        number += EVERY
        (home.path / "sessions.sqlite").unlink(missing_ok=True)
        async with runtime(home, project, ScriptedProvider(family), config=FAST) as made:
            disk.arm(number)
            handle, events = await begin(made, "lead")
            met = disk.failed
            disk.disarm()
            if handle is not None:
                assert handle.status.is_terminal
                await check_agreement(made, handle, events)
            await check_goes_on(made)
            for run in rows(home):
                assert run.status.is_terminal, run
                ends = [
                    event.event_type
                    for event in (await made.replay_run(run.run_id)).events
                    if event.event_type in CLOSING_EVENTS
                ]
                assert ends == [f"run_{run.status}"]
        if not met:
            break
    assert number > 8


COMPACTING = """
[model]
provider = "custom"
name = "script"
context_window = 16384

[memory]
enabled = false

[compact]
keep_recent_tokens = 400
reserve_tokens = 12000
"""


def verbose(request: ModelRequest) -> str:
    if request.metadata.get("purpose") == "compact":
        return "## Goal\nshorter, said in as many words as a summary needs"
    asked = [b.text for b in request.messages[-1].content if b.type == "text"]
    return "here I am" if asked == ["next"] else "blah " * 400


@pytest.mark.long
@pytest.mark.parametrize("by_request", [pytest.param(True, marks=pytest.mark.sweep), False])
async def test_whichever_write_of_a_summary_fails_the_session_goes_on(
    home: Home, project: Path, disk: Disk, by_request: bool
) -> None:
    number = 1 - EVERY
    while True:
        number += EVERY
        (home.path / "sessions.sqlite").unlink(missing_ok=True)
        async with runtime(home, project, ScriptedProvider(verbose), config=COMPACTING) as made:
            if by_request:
                for _ in range(6):
                    await begin(made, "more")
                disk.arm(number)
                try:
                    await (await made.compact_session("s1")).wait()
                except StorageError:
                    assert disk.failed
            else:
                disk.arm(number)
                for _ in range(6):
                    await begin(made, "more")
            met = disk.failed
            disk.disarm()
            await check_goes_on(made)
        (owner,) = query(home, "SELECT owner FROM sessions")
        assert owner is None
        assert all(run.status.is_terminal for run in rows(home))
        async with runtime(home, project, ScriptedProvider(verbose), config=COMPACTING) as made:
            await check_goes_on(made)
        if not met or number > 40:
            break
    assert number > 4


def query(home: Home, sql: str) -> tuple[object, ...]:
    with sqlite3.connect(home.path / "sessions.sqlite") as db:
        found = db.execute(sql).fetchone()
    db.close()
    return found


async def test_a_session_whose_active_node_was_never_stored_goes_on_from_the_last_that_was(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ScriptedProvider(talkative), config=FAST) as made:
        await begin(made, "next")
    with sqlite3.connect(home.path / "sessions.sqlite") as db:
        db.execute("UPDATE sessions SET active_node_id = 'node_gone', owner = NULL")
    db.close()
    async with runtime(home, project, ScriptedProvider(talkative), config=FAST) as made:
        await check_goes_on(made)
        nodes = (await made.replay_session("s1")).nodes
    assert [node.parent_id for node in nodes] == [None, *(node.node_id for node in nodes[:-1])]

"""Nothing costs more because there is more history: counted in steps of SQLite's machine."""

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_core.storage.sqlite import InlineConnection, SqliteSessionStore
from agent_core.types import (
    AgentStatus,
    BudgetHold,
    BudgetScope,
    CostUnit,
    EventType,
    RunChange,
    RunStatus,
    Usage,
    new_id,
    utc_now,
)
from rows import a_batch, a_child, a_child_run, a_node, an_event, an_opening

MOST_WRITTEN = 140_000
"""Bytes of the log for a run with a call, a little above what was measured."""

Work = Callable[[SqliteSessionStore], Awaitable[object]]


WORK: list[tuple[str, Work]] = [
    (
        "append",
        lambda s: s.append(a_batch(a_node("new", "root", run_id="run_child"), run_id="run_child")),
    ),
    ("open", lambda s: s.open_run(an_opening(run_id="run_2"))),
    ("close lost", lambda s: s.close_lost_runs()),
    ("heartbeat", lambda s: s.heartbeat("me")),
    ("cancel", lambda s: s.request_cancel("run_child")),
    ("page", lambda s: s.page("s1", from_seq=101, to_seq=150, limit=20)),
    ("path", lambda s: s.path("n7")),
    ("run", lambda s: s.run_history("run_child")),
    ("events after", lambda s: s.events_after("run_1", 150, limit=20)),
    ("calls", lambda s: s.open_calls("run_1", ["c1", "c2"])),
    ("active", lambda s: s.active_run_ids("s1")),
    ("list", lambda s: s.sessions()),
]


async def grown(nodes: int) -> SqliteSessionStore:
    """A session whose root is followed by many children of it, each with nine events."""
    store = SqliteSessionStore.in_memory()
    await store.open_run(an_opening())
    await store.append(a_batch(a_node("root"), active_node_id="root"))
    await store.add_agent(a_child())
    await store.add_run(a_child_run())
    for i in range(nodes):
        rows = [an_event(EventType.TOOL_COMPLETED, tool_call_id=f"c{i % 7}") for _ in range(9)]
        await store.append(a_batch(a_node(f"n{i}", "root"), *rows))
    await store.append(a_batch(run=RunChange(status=RunStatus.COMPLETED), release="me"))
    return store


async def steps(store: SqliteSessionStore, work: Work) -> int:
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    executor = store.writer
    assert isinstance(executor, InlineConnection)
    executor._connection.set_progress_handler(tick, 1)
    try:
        await work(store)
    finally:
        executor._connection.set_progress_handler(None, 1)
    return count


@pytest.mark.long
async def test_the_cost_does_not_grow_with_history() -> None:
    """A small session and one with 30,000 events."""
    small, large = await grown(20), await grown(3000)
    for name, work in WORK:
        few, many = await steps(small, work), await steps(large, work)
        assert few > 5, name
        assert many <= few * 1.1 + 10, name


def a_hold(run_id: str) -> BudgetHold:
    return BudgetHold(
        hold_id=f"hold_{run_id}",
        session_id="s1",
        run_id=run_id,
        agent_id="agent_child",
        scopes=[
            BudgetScope(kind="session", scope_id="s1", limits={"requests": 10**6}),
            BudgetScope(kind="child", scope_id=run_id, limits={}),
        ],
        fixed={"requests": 1},
    )


@pytest.mark.long
async def test_the_cost_of_a_share_does_not_grow_with_children_that_have_ended() -> None:
    counts: list[int] = []
    for children in (20, 400):
        store = await grown(1)
        for run_id in [f"run_{i}" for i in range(2, children)]:
            await store.add_run(a_child_run(run_id))
            await store.reserve_budget(a_hold(run_id), at_once=True)
            end = RunChange(status=RunStatus.COMPLETED)
            await store.append(a_batch(run_id=run_id, run=end))
        await store.add_run(a_child_run("run_new"))
        counts.append(await steps(store, lambda s: s.reserve_budget(a_hold("run_new"))))
    few, many = counts
    assert many <= few * 1.1 + 10


async def crowded(sessions: int) -> SqliteSessionStore:
    """A session of some length, among others that have ended."""
    store = await grown(20)
    for i in range(sessions):
        session_id, run_id = f"other_{i}", f"run_other_{i}"
        await store.open_run(an_opening(session_id, run_id))
        end = RunChange(status=RunStatus.COMPLETED)
        await store.append(a_batch(session_id=session_id, run_id=run_id, run=end, release="me"))
    return store


@pytest.mark.long
async def test_the_cost_does_not_grow_with_the_number_of_sessions() -> None:
    few_sessions, many_sessions = await crowded(60), await crowded(1500)
    for name, work in WORK:
        few, many = await steps(few_sessions, work), await steps(many_sessions, work)
        assert many <= few * 1.1 + 10, name
    later = [await steps(store, lambda s: s.sessions(limit=20, offset=30))
             for store in (few_sessions, many_sessions)]  # fmt: skip
    assert later[1] <= later[0] * 1.1 + 10


@pytest.mark.long
async def test_folders_nearby_are_found_without_reading_those_of_others() -> None:
    """The first of many folders, and the first sessions in a folder of many."""
    counts: list[int] = []
    for folders in (1_100, 2_200):
        store = SqliteSessionStore.in_memory()
        for i in range(folders):
            await store.open_run(an_opening(f"s{i}", f"run_{i}", cwd=f"/many/{i:04}"))
            await store.open_run(an_opening(f"t{i}", f"run_t{i}", cwd="/few"))
        assert await store.sessions_nearby("/few/x", limit=10) == {"/few": 1000}
        assert len(await store.sessions_nearby("/many", limit=10)) == 10
        counts.append(await steps(store, lambda s: s.sessions_nearby("/few/x", limit=10)))
        counts.append(await steps(store, lambda s: s.sessions_nearby("/many", limit=10)))
    assert counts[2] <= counts[0] * 1.1 + 10
    assert counts[3] <= counts[1] * 1.1 + 10 <= 2_000


UNITS: tuple[CostUnit, ...] = ("all", "day", "model", "project", "session")


async def test_sums_of_what_was_spent_read_numbers_and_no_json() -> None:
    store = SqliteSessionStore.in_memory()
    end = RunChange(status=RunStatus.COMPLETED, turn_count=1, usage=Usage(total_tokens=5, cost=0.1))
    for i in range(300):
        await store.open_run(an_opening(f"s{i}", f"run_{i}"))
        batch = a_batch(session_id=f"s{i}", run_id=f"run_{i}", run=end, release="me")
        await store.append(batch)
    executor = store.writer
    assert isinstance(executor, InlineConnection)
    read: set[tuple[str | None, str | None]] = set()

    def note(action: int, table: str | None, column: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            read.add((table, column))
        return sqlite3.SQLITE_OK

    executor._connection.set_authorizer(note)
    for by in UNITS:
        for since in (None, utc_now()):
            await store.costs(by, since=since, project="/project")
    assert {table for table, _ in read} <= {"spending", "sessions", "json_each", "", None}
    assert not [column for _, column in read if column and column.endswith("_json")]
    assert await steps(store, lambda s: s.costs("session", limit=10)) <= 5000
    assert await steps(store, lambda s: s.costs("day", since=utc_now())) <= 1000


async def test_short_processes_beside_an_idle_one_leave_no_endless_log(tmp_path: Path) -> None:
    """None of them writes enough for a checkpoint, and none is the last to close the database."""
    path = tmp_path / "s.sqlite"
    text = "x" * 2**20
    async with SqliteSessionStore.open(path) as idle:
        await idle.open_run(an_opening())
        for _ in range(40):
            async with SqliteSessionStore.open(path) as short:
                await short.append(a_batch(an_event(EventType.TOOL_COMPLETED, {"text": text})))
        log = path.with_name("s.sqlite-wal")
        assert log.stat().st_size < 16 * 2**20
        assert len((await idle.run_history("run_1")).events) == 40


async def store_run(store: SqliteSessionStore, run_id: str) -> None:
    """Store a run of two turns with a call, in a new session, as its journal does."""
    session_id = f"session_{run_id}"
    of: dict[str, Any] = {"session_id": session_id, "run_id": run_id, "owner": "me"}
    nodes = [new_id("node") for _ in range(4)]
    asked, called, told, answered = [
        a_node(node, parent, session_id=session_id, run_id=run_id)
        for node, parent in zip(nodes, [None, *nodes], strict=False)
    ]
    report = {"first": "x" * 1_700, "next": "x" * 900}
    built = [an_event(EventType.CONTEXT_BUILT, {"report": each}) for each in report.values()]
    replied = [an_event(EventType.MODEL_COMPLETED, {"usage": "x" * 380}) for _ in range(2)]
    begun, ended = [
        an_event(kind, {"tool_name": "add", "summary": "x" * 100}, tool_call_id="call_1")
        for kind in (EventType.TOOL_STARTED, EventType.TOOL_COMPLETED)
    ]
    done = RunChange(status=RunStatus.COMPLETED, turn_count=2, usage=Usage(total_tokens=5))
    await store.open_run(an_opening(session_id, run_id, status=RunStatus.RUNNING))
    for batch in (
        a_batch(an_event(), asked, built[0], an_event(), **of),
        a_batch(replied[0], called, begun, **of),
        a_batch(told, ended, built[1], an_event(), **of),
        a_batch(replied[1], answered, an_event(), an_event(), run=done, release="me", **of),
    ):
        last = batch.nodes[-1].node_id
        await store.append(replace(batch, active_node_id=last, agent_status=AgentStatus.IDLE))


async def test_a_run_writes_few_pages(tmp_path: Path) -> None:
    """Each transaction writes the pages that it changes; an index costs one more."""
    log = tmp_path / "s.sqlite-wal"
    async with SqliteSessionStore.open(tmp_path / "s.sqlite") as store:
        for _ in range(3):
            await store_run(store, new_id("run"))
        before = log.stat().st_size
        for _ in range(8):
            await store_run(store, new_id("run"))
        written = (log.stat().st_size - before) / 8
    assert written <= MOST_WRITTEN

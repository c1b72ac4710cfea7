"""Nothing costs more because there is more history: counted in steps of SQLite's machine."""

import sqlite3
from collections.abc import Callable, Generator

import pytest

from agent_core.storage import claims, queries
from agent_core.storage.connections import open_writer
from agent_core.storage.rows import insert
from agent_core.storage.timeline import append_job
from agent_core.types import LEASE, EventType, RunChange, RunStatus, utc_now
from rows import a_batch, a_child, a_child_run, a_node, an_event, an_opening

Work = Callable[[sqlite3.Connection], object]


def alive(owner: str, lease: object) -> bool:
    return False


WORK: list[tuple[str, Work]] = [
    (
        "append",
        append_job(a_batch(a_node("new", "root", run_id="run_child"), run_id="run_child"), 1),
    ),
    ("open", lambda c: claims.open_run(c, an_opening(run_id="run_2"), alive, utc_now())),
    ("close lost", lambda c: claims.close_lost_runs(c, alive, utc_now())),
    ("page", lambda c: queries.page(c, "s1", (101, 150), 20)),
    ("path", lambda c: queries.path(c, "n7")),
    ("run", lambda c: queries.run_history(c, "run_child")),
    ("calls", lambda c: queries.open_calls(c, "s1", ["c1", "c2"], None)),
    ("events after", lambda c: queries.events_after(c, "run_1", 150, 20)),
    ("heartbeat", lambda c: claims.heartbeat(c, "me", LEASE, utc_now())),
    ("cancel", lambda c: claims.request_cancel(c, "run_child", utc_now())),
    ("active", lambda c: queries.active_run_ids(c, "s1")),
    ("list", lambda c: queries.sessions(c, 50, 0)),
]


def grow(connection: sqlite3.Connection, nodes: int) -> None:
    """A session whose root is followed by many children of it, each with nine events."""
    connection.execute("BEGIN IMMEDIATE")
    claims.open_run(connection, an_opening(), alive, utc_now())
    append_job(a_batch(a_node("root"), active_node_id="root"), 1)(connection)
    insert(connection, a_child())
    claims.add_run(connection, a_child_run(), [], None, utc_now())
    for i in range(nodes):
        rows = [an_event(EventType.TOOL_COMPLETED, tool_call_id=f"c{i % 7}") for _ in range(9)]
        append_job(a_batch(a_node(f"n{i}", "root"), *rows), 1)(connection)
    done = RunChange(status=RunStatus.COMPLETED)
    append_job(a_batch(run=done, release="me"), 1)(connection)
    connection.execute("COMMIT")


def steps(connection: sqlite3.Connection, work: Work) -> int:
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    connection.execute("BEGIN")
    connection.set_progress_handler(tick, 1)
    try:
        work(connection)
    finally:
        connection.set_progress_handler(None, 1)
        connection.execute("ROLLBACK")
    return count


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[sqlite3.Connection]]:
    """A small session and one with 30,000 events."""
    folder = tmp_path_factory.mktemp("cost")
    opened = [open_writer(folder / name) for name in ("small", "large")]
    for connection, nodes in zip(opened, (20, 3000), strict=True):
        grow(connection, nodes)
    yield opened
    for connection in opened:
        connection.close()


@pytest.mark.parametrize(("name", "work"), WORK)
def test_the_cost_does_not_grow_with_history(
    sessions: list[sqlite3.Connection], name: str, work: Work
) -> None:
    small, large = (steps(connection, work) for connection in sessions)
    assert small > 5, name
    assert large <= small * 1.1 + 10, name

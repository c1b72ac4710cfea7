"""A store that is bound to a tenant neither reads nor changes what is another one's."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.storage.store import SessionStore
from agent_core.types import (
    Claim,
    Decision,
    EventType,
    NodeMove,
    PermissionGrant,
    SessionFork,
    SessionNote,
    SessionRecord,
    SnapshotNote,
    utc_now,
)
from judging import after_deaths
from pooler import UNAVAILABLE, find_pgbouncer, pooled
from postgres import Server
from rows import (
    a_batch,
    a_child,
    a_child_run,
    a_node,
    a_question,
    a_turn_hold,
    a_waiting_message,
    an_artifact,
    an_event,
    an_opening,
)


def a_grant(grant_id: str) -> PermissionGrant:
    return PermissionGrant(
        grant_id=grant_id,
        session_id="s1",
        tool_name="shell.run",
        covers="all",
        key=grant_id,
        created_at=utc_now(),
    )


def an_imported_session() -> SessionRecord:
    now = utc_now()
    return SessionRecord(session_id="s1", cwd="/project", created_at=now, updated_at=now)


async def fill(store: PostgresSessionStore) -> None:
    """Rows in every table."""
    await store.open_run(an_opening(title="title"))
    note = a_node("n1", node_type="message", role="user")
    await store.append(a_batch(note, an_event(), a_node("n2", "n1"), active_node_id="n1"))
    started = an_event(EventType.TOOL_STARTED, tool_call_id="call_2")
    await store.append(a_batch(started))
    await store.add_agent(a_child())
    await store.add_run(a_child_run())
    await store.ask(a_question())
    await store.add_artifact(an_artifact("art_1"))
    await store.add_grant(a_grant("grant_1"))
    await store.reserve_budget(a_turn_hold("hold_1"))
    await store.reserve_budget(a_turn_hold("hold_2"), at_once=True)
    snapshot: dict[str, Any] = {"session_id": "s1", "node_id": "n1", "folder": "/project"}
    await store.name_snapshot(SnapshotNote(snapshot_id="snap_1", run_id="run_1", **snapshot))
    await store.add_to_memory_backlog(["s1"])
    await store.send_message(a_waiting_message("msg_1"))
    await store.begin_request("key_1", "digest", holder="me", lease=timedelta(hours=1))


@dataclass
class Stores:
    url: str
    mine: PostgresSessionStore
    others: PostgresSessionStore
    everybodys: PostgresSessionStore

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything in every table."""
        tables = """SELECT table_name FROM information_schema.tables
            WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = {name for (name,) in connection.execute(tables).fetchall()}
            return {
                name: sorted(connection.execute(f"SELECT * FROM {name}".encode()), key=str)  # noqa: S608
                for name in found - {"last_commits"}  # of connections, not of tenants
            }


@pytest.fixture(params=["direct", "one connection of a pooler"])
async def stores(
    request: pytest.FixtureRequest, shared_postgres: Server, database_url: str
) -> AsyncGenerator[Stores]:
    async with AsyncExitStack() as stack:
        url = database_url
        if request.param != "direct":
            if find_pgbouncer() is None:
                pytest.skip(UNAVAILABLE)
            port = stack.enter_context(pooled(shared_postgres))
            url = shared_postgres.url(database_url.rpartition("/")[2], port=port)
        opened = [
            await stack.enter_async_context(PostgresSessionStore.open(url, tenant=tenant))
            for tenant in ("mine", "others", None)
        ]
        stores = Stores(url, *opened)
        await fill(stores.others)
        yield stores


MOVE = NodeMove(node_id="n1", folder="/project", runs=1)
READS: dict[str, Callable[[SessionStore], Awaitable[object]]] = {
    "session": lambda s: s.session("s1"),
    "sessions": lambda s: s.sessions(),
    "session_summaries": lambda s: s.session_summaries(limit=10),
    "costs": lambda s: s.costs("session"),
    "last_session": lambda s: s.last_session(),
    "sessions_nearby": lambda s: s.sessions_nearby("/", limit=10),
    "memory_backlog": lambda s: s.memory_backlog(10),
    "memory_terms": lambda s: s.memory_terms(["run_1"]),
    "untitled": lambda s: s.untitled(10),
    "nodes_with": lambda s: s.nodes_with(["i am"], limit=10),
    "ids_beginning": lambda s: s.ids_beginning("session", "s"),
    "agent": lambda s: s.agent("agent_s1"),
    "agents": lambda s: s.agents("s1"),
    "run": lambda s: s.run("run_1"),
    "runs": lambda s: s.runs("s1"),
    "active_run_ids": lambda s: s.active_run_ids("s1"),
    "node": lambda s: s.node("n1"),
    "path": lambda s: s.path("n1"),
    "page": lambda s: s.page("s1"),
    "run_history": lambda s: s.run_history("run_1"),
    "run_nodes": lambda s: s.run_nodes("run_1"),
    "events_after": lambda s: s.events_after("run_1", 0),
    "last_events": lambda s: s.last_events("s1", "agent_s1", EventType.MODEL_STARTED, limit=5),
    "run_tree": lambda s: s.run_tree("run_1"),
    "children": lambda s: s.children("run_1"),
    "open_calls": lambda s: s.open_calls("run_1", ["call_2"]),
    "artifact": lambda s: s.artifact("art_1"),
    "artifacts": lambda s: s.artifacts(),
    "find_artifacts": lambda s: s.find_artifacts("s1", ["art_1"]),
    "budget_uses": lambda s: s.budget_uses(["s1"]),
    "find_grant": lambda s: s.find_grant("s1", "grant_1"),
    "grants": lambda s: s.grants(),
    "workspace_state": lambda s: s.workspace_state("s1", "/project"),
    "follows_message": lambda s: s.follows_message("n1"),
    "snapshot_at": lambda s: s.snapshot_at("s1", "n1", "/project"),
    "changes_of": lambda s: s.changes_of("run_1", "/project"),
    "overlapping_changes": lambda s: s.overlapping_changes("run_1", "/project"),
    "pending_moves": lambda s: s.pending_moves("/project"),
    "snapshots_in_use": lambda s: s.snapshots_in_use(),
    "working_sessions": lambda s: s.working_sessions(),
    "approval": lambda s: s.approval("req_1"),
    "approval_of": lambda s: s.approval_of("run_1", "run_1", "call_1"),
    "approvals": lambda s: s.approvals(is_open=False),
    "is_answered": lambda s: s.is_answered("run_1"),
    "waiting_children": lambda s: s.waiting_children("run_1"),
    "waiting_messages": lambda s: s.waiting_messages("s1"),
    "unused_sessions": lambda s: s.unused_sessions(utc_now()),
    "last_use": lambda s: s.last_use(),
    "stored_sessions": lambda s: s.stored_sessions(),
    "session_bytes": lambda s: s.session_bytes(),
    "snapshots_of": lambda s: s.snapshots_of("s1"),
    "snapshots_by_session": lambda s: s.snapshots_by_session(),
    "file_bytes": lambda s: s.file_bytes(),
}
WRITES: dict[str, Callable[[SessionStore], Awaitable[object]]] = {
    "append": lambda s: s.append(a_batch(an_event())),
    "open_run": lambda s: after_deaths(s).open_run(an_opening(run_id="run_9", owner="you")),
    "queue_run": lambda s: after_deaths(s).queue_run(an_opening(run_id="run_9", owner="you")),
    "take_run": lambda s: after_deaths(s).take_run("run_1", Claim("you"), max_takeovers=3),
    "hand_over": lambda s: s.hand_over("run_1", "me"),
    "drop_queued": lambda s: s.drop_queued("run_1"),
    "cancel_idle": lambda s: after_deaths(s).cancel_idle("run_1"),
    "queue_again": lambda s: s.queue_again("run_1"),
    "add_session": lambda s: s.add_session(
        SessionRecord(
            session_id="s1", cwd="/p", tenant="mine", created_at=utc_now(), updated_at=utc_now()
        )
    ),
    "add_agent": lambda s: s.add_agent(a_child("agent_9")),
    "update_agent": lambda s: s.update_agent("agent_s1", metadata={"a": 1}),
    "add_run": lambda s: s.add_run(a_child_run("run_9"), events=[an_event()]),
    "close_lost_runs": lambda s: after_deaths(s).close_lost_runs(),
    "heartbeat": lambda s: s.heartbeat("me"),
    "request_cancel": lambda s: s.request_cancel("run_1"),
    "release": lambda s: s.release("s1", "me"),
    "release_all": lambda s: s.release_all("me"),
    "add_to_memory_backlog": lambda s: s.add_to_memory_backlog(["s1"]),
    "remove_from_memory_backlog": lambda s: s.remove_from_memory_backlog("s1"),
    "note": lambda s: s.note(SessionNote(session_id="s1", events=[an_event()])),
    "rename_session": lambda s: s.rename_session("s1", "mine"),
    "add_titles": lambda s: s.add_titles({"s1": "mine"}),
    "delete_session": lambda s: after_deaths(s).delete_session("s1"),
    "add_artifact": lambda s: s.add_artifact(an_artifact("art_9")),
    "delete_artifact_row": lambda s: s.delete_artifact_row("art_1"),
    "reserve_budget": lambda s: s.reserve_budget(a_turn_hold("hold_9")),
    "settle_budget": lambda s: s.settle_budget("hold_1", None),
    "add_grant": lambda s: s.add_grant(a_grant("grant_9")),
    "forget_grants": lambda s: s.forget_grants("s1"),
    "name_snapshot": lambda s: s.name_snapshot(
        SnapshotNote(session_id="s1", node_id="n1", folder="/project", snapshot_id="snap_9")
    ),
    "end_changes": lambda s: s.end_changes("s1", "run_1"),
    "begin_move": lambda s: after_deaths(s).begin_move("s1", MOVE),
    "drop_move": lambda s: s.drop_move("s1"),
    "move_node": lambda s: after_deaths(s).move_node("s1", MOVE),
    "fork_session": lambda s: s.fork_session(
        SessionFork(session_id="s1", node_id="n1", new_session_id="s9", folder="/copy")
    ),
    "import_session": lambda s: s.import_session(an_imported_session(), a_child("agent_9"), []),
    "drop_snapshots": lambda s: s.drop_snapshots(utc_now()),
    "ask": lambda s: s.ask(a_question("req_9")),
    "answer": lambda s: s.answer("req_1", Decision.ALLOW_ONCE, reason=None, by="sdk", decider="me"),
    "send_message": lambda s: s.send_message(a_waiting_message("msg_9")),
    "take_messages": lambda s: s.take_messages("run_1"),
    "take_back_message": lambda s: s.take_back_message("s1", "msg_1"),
    "begin_request": lambda s: s.begin_request(
        "key_1", "digest", holder="you", lease=timedelta(hours=1)
    ),
    "hold_requests": lambda s: s.hold_requests(["key_1"], holder="me", lease=timedelta(hours=2)),
    "keep_answer": lambda s: s.keep_answer("key_1", "{}", holder="me", lasts=timedelta(hours=2)),
    "drop_request": lambda s: s.drop_request("key_1", holder="me"),
    "withdraw": lambda s: s.withdraw("req_1"),
    "resume_run": lambda s: after_deaths(s).resume_run("run_1", Claim("you"), cwd="/project"),
    "close_waiting": lambda s: s.close_waiting("run_1"),
    "erase_deleted": lambda s: s.erase_deleted(),
    "give_back_space": lambda s: s.give_back_space(),
}


def test_every_operation_is_tried() -> None:
    operations = {name for name in dir(SessionStore) if not name.startswith("_")}
    operations -= {"judged_by", "of_tenant", "is_read_only", "require_writable"}
    operations -= {"respond", "hurry", "is_hurried"}  # they read and write no rows
    operations -= {"require_session"}  # `session`, or an error
    assert operations == READS.keys() | WRITES.keys()


NOTHING_FOUND = {"waiting_children", "memory_backlog", "unused_sessions", "file_bytes"}
"""Reads that find nothing in the rows of `fill`."""


async def outcome(work: Awaitable[object]) -> object:
    try:
        return await work
    except AgentCoreError as error:
        return error.code


@pytest.mark.long
async def test_a_read_of_another_tenants_ids_finds_what_an_empty_store_does(stores: Stores) -> None:
    empty = SqliteSessionStore.in_memory()
    async with PostgresSessionStore.open(stores.url, tenant="nobody") as nobodys:
        for name, read in READS.items():
            expected = await outcome(read(empty))
            assert await outcome(read(stores.mine)) == expected, name
            assert await outcome(read(nobodys)) == expected, name


async def test_no_write_with_another_tenants_ids_changes_anything(stores: Stores) -> None:
    before = stores.rows()
    for name, write in WRITES.items():
        await outcome(write(stores.mine))
        assert stores.rows() == before, name


async def test_each_tenant_has_its_own_and_the_unbound_store_all(stores: Stores) -> None:
    mine = an_opening("mine", "run_mine", agent_id="agent_mine")
    opened = await stores.mine.open_run(mine)
    assert opened.session.session_id == "mine"
    record = await stores.mine.session("mine")
    assert record is not None
    assert record.tenant == "mine"
    assert [each.session_id for each in await stores.mine.sessions()] == ["mine"]
    assert [each.session_id for each in await stores.others.sessions()] == ["s1"]
    everybodys = await stores.everybodys.sessions()
    assert {each.session_id: each.tenant for each in everybodys} == {"mine": "mine", "s1": "others"}
    for name in READS:
        if name not in {"overlapping_changes", "pending_moves", "is_answered", "untitled"}:
            found = await READS[name](stores.others)
            assert found or name in NOTHING_FOUND, name


async def test_an_id_that_another_tenant_has_is_refused(stores: Stores) -> None:
    with pytest.raises(StorageError, match="use another id") as refused:
        await after_deaths(stores.mine).open_run(an_opening(run_id="run_9"))
    assert refused.value.code is ErrorCode.VALIDATION_ERROR
    with pytest.raises(StorageError, match="use another id") as refused:
        await stores.mine.import_session(an_imported_session(), a_child("agent_9"), [])
    assert refused.value.code is ErrorCode.VALIDATION_ERROR

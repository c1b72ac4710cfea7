"""What every session store does, whatever it keeps its rows in."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import rows
from agent_core.storage.liveness import OwnerIsDead
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.postgres.blobs import PostgresBlobs
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.storage.store import SessionStore
from agent_core.storage.workspaces import MovedMeanwhileError
from agent_core.types import (
    AgentStatus,
    AgentType,
    Amounts,
    ApprovalState,
    BudgetHold,
    BudgetScope,
    Claim,
    ClaimedRun,
    Decision,
    Dispatch,
    EndReason,
    ErrorPayload,
    EventType,
    JsonBlock,
    NewRun,
    NodeMove,
    PermissionGrant,
    ReasoningBlock,
    Role,
    RunChange,
    RunMode,
    RunPrompt,
    RunStatus,
    SessionNote,
    StoredOptions,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Usage,
    utc_now,
)
from judging import judged, owners_are_dead, owners_live
from rows import (
    a_batch,
    a_child,
    a_child_run,
    a_node,
    a_question,
    a_turn_hold,
    an_artifact,
    an_event,
    an_opening,
)
from sweeps import kept, paired, sampled

COMPLETED = RunChange(status=RunStatus.COMPLETED, end_reason=EndReason.COMPLETED)


def a_move(node_id: str) -> NodeMove:
    return NodeMove(node_id=node_id, folder="/work")


class Clock:
    """The clock of the machine a store lives on; tests move it."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return utc_now() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=kept(["file", "memory", "postgres"], "file", "postgres"))
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncGenerator[SessionStore]:
    if request.param == "memory":
        yield judged(SqliteSessionStore.in_memory(clock=clock.now), owners_live)
    elif request.param == "postgres":
        url = request.getfixturevalue("database_url")
        async with PostgresSessionStore.open(url, clock=clock.now) as opened:
            yield judged(opened, owners_live)
    else:
        path = tmp_path / "sessions.sqlite"
        async with SqliteSessionStore.open(path, clock=clock.now) as opened:
            yield judged(opened, owners_live)


@pytest.fixture
async def session(store: SessionStore) -> SessionStore:
    """The store with a session `s1`, its run `run_1` open."""
    await store.open_run(an_opening())
    return store


# opening


async def test_opening_a_run_creates_the_session_its_root_agent_and_the_run(
    store: SessionStore,
) -> None:
    opening = an_opening(
        status=RunStatus.QUEUED,
        run_metadata={"a": 1},
        session_metadata={"b": 2},
        events=[an_event(EventType.RUN_QUEUED)],
    )
    opened = await store.open_run(opening)

    assert not opened.resumed
    assert (opened.position.seq, opened.position.run_seq, opened.position.node_seq) == (1, 1, 1)
    assert await store.session("s1") == opened.session
    assert opened.session.owner == "me"
    assert opened.session.cwd == "/project"
    assert opened.session.metadata == {"b": 2}
    assert opened.session.root_agent_id == opened.agent.agent_id == "agent_s1"
    assert opened.session.active_node_id is None
    assert await store.agents("s1") == [opened.agent]
    assert await store.agent("agent_s1") == opened.agent
    assert await store.run("run_1") == opened.run
    assert opened.run.status is RunStatus.QUEUED
    assert opened.run.metadata == {"a": 1}
    page = await store.page("s1")
    assert [event.event_type for event in page.events] == [EventType.RUN_QUEUED]


async def test_a_resumed_session_keeps_its_folder_its_agent_and_its_history(
    session: SessionStore,
) -> None:
    await session.append(a_batch(a_node("n1"), active_node_id="n1", run=COMPLETED, release="me"))
    again = await session.open_run(
        an_opening(run_id="run_2", agent_id="agent_unused", owner="you"),
    )
    assert again.resumed
    assert again.session.cwd == "/project"
    assert again.session.owner == "you"
    assert again.session.active_node_id == "n1"
    assert again.agent.agent_id == "agent_s1"
    assert again.position.seq == 2
    assert again.position.run_seq == 1
    assert again.position.node_seq == 2


async def left(session: SessionStore) -> ClaimedRun:
    """The claim of a run that has ended at the node `n1`."""
    claimed = await session.open_run(an_opening(run_id="run_2"))
    end = a_batch(a_node("n1"), run_id="run_2", active_node_id="n1", run=COMPLETED, release="me")
    await session.append(a_batch(run=COMPLETED))
    await session.append(end)
    record = await session.session("s1")
    assert record is not None
    return replace(claimed, session=record)


async def test_a_session_that_nobody_has_used_since_is_claimed_again_as_it_is_known(
    session: SessionStore,
) -> None:
    known = await left(session)
    fact = {"pause": {"failures": 1}}
    await session.note(SessionNote(session_id="s1", metadata=fact))  # which claims nothing
    opening = an_opening(run_id="run_3", events=[an_event(EventType.RUN_QUEUED)])
    again = await session.open_run(opening, known)
    assert again.is_unchanged
    assert again.resumed
    assert again.session.metadata == {"pause": {"failures": 1}}
    assert again.session.epoch == known.session.epoch + 1
    assert again.session == await session.session("s1")
    assert again.agent == known.agent
    assert again.run == await session.run("run_3")
    assert (await session.page("s1")).events[-1].run_id == "run_3"
    await session.append(a_batch(a_node("n2", "n1"), run_id="run_3", owner="me"))


@pytest.mark.long
@pytest.mark.parametrize(
    "use", ["claim", "claim and release", "undo", "note", "hold", "delete", "role", "folder"]
)
async def test_a_session_that_was_used_since_is_read_again(session: SessionStore, use: str) -> None:
    known = await left(session)
    opening = an_opening(run_id="run_3")
    match use:
        case "claim" | "claim and release":
            is_ours = use == "claim"
            other = an_opening(run_id="run_x", owner="me" if is_ours else "you")
            await session.open_run(other)
            if not is_ours:
                await session.append(a_batch(run_id="run_x", run=COMPLETED, release="you"))
        case "undo":
            await session.append(a_batch(a_node("n2", "n1"), active_node_id="n2"))
            await session.move_node("s1", a_move("n1"))
            known = replace(
                known, session=known.session.model_copy(update={"active_node_id": "n2"})
            )
        case "note":
            await session.note(SessionNote(session_id="s1", node=a_node("n2", "n1")))
        case "hold":
            await session.reserve_budget(replace(a_turn_hold("hold_1"), run_id="s1"))
        case "delete":
            await session.delete_session("s1")
        case "role":
            opening = an_opening(run_id="run_3", agent_type=AgentType.ORCHESTRATOR, agent_id="a_o")
        case _:
            known = replace(known, session=known.session.model_copy(update={"cwd": "/elsewhere"}))
    again = await session.open_run(opening, known)
    assert not again.is_unchanged
    assert again.session == await session.session("s1")
    assert again.resumed == (use != "delete")
    assert (await session.run("run_3")) == again.run


async def test_a_session_opened_from_another_folder_is_refused_and_nothing_is_stored(
    session: SessionStore, tmp_path: Path
) -> None:
    await session.append(a_batch(run=COMPLETED, release="me"))
    before = await session.page("s1")
    for owner in ("me", "you"):
        with pytest.raises(StorageError) as refused:
            await session.open_run(an_opening(run_id="run_2", cwd=str(tmp_path), owner=owner))
        assert refused.value.code is ErrorCode.SESSION_ELSEWHERE
        assert "/project" in refused.value.message
    assert await session.page("s1") == before
    assert await session.run("run_2") is None


async def test_a_session_whose_folder_has_another_name_now_is_opened_from_it(
    session: SessionStore, tmp_path: Path
) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (tmp_path / "old").symlink_to(folder)
    opening = an_opening(session_id="s2", run_id="run_2", cwd=str(tmp_path / "old"))
    await session.open_run(opening)
    again = an_opening(session_id="s2", run_id="run_3", cwd=str(folder))
    assert (await session.open_run(again)).resumed
    assert [
        event
        for event in (await session.page("s2")).events
        if event.event_type is EventType.SESSION_MOVED
    ] == []


async def test_a_session_moves_with_an_opening_that_moves_it_and_an_event_records_it(
    session: SessionStore, tmp_path: Path
) -> None:
    await session.append(a_batch(a_node("n1"), run=COMPLETED, release="me"))
    moved = await session.open_run(an_opening(run_id="run_2", cwd=str(tmp_path), move_session=True))
    assert moved.session.cwd == str(tmp_path)
    again = await session.open_run(an_opening(run_id="run_3", cwd=str(tmp_path), move_session=True))
    assert again.session.cwd == str(tmp_path)
    moves = [
        event
        for event in (await session.page("s1")).events
        if event.event_type is EventType.SESSION_MOVED
    ]
    assert [(event.run_id, event.payload) for event in moves] == [
        (None, {"from": "/project", "to": str(tmp_path)})
    ]


async def test_a_folder_reached_by_another_name_is_the_same_folder(
    store: SessionStore, tmp_path: Path
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    await store.open_run(an_opening(cwd=str(link)))
    again = an_opening(run_id="run_2", cwd=str(real))
    assert (await store.open_run(again)).resumed


async def test_each_mode_has_a_root_agent_of_its_own(session: SessionStore) -> None:
    opened = await session.open_run(
        an_opening(
            run_id="run_2",
            agent_type=AgentType.ORCHESTRATOR,
            agent_id="agent_o",
            mode=RunMode.ORCHESTRATOR,
        ),
    )
    assert opened.agent.agent_id == "agent_o"
    assert opened.run.mode is RunMode.ORCHESTRATOR
    assert opened.session.root_agent_id == "agent_s1"
    assert [agent.agent_id for agent in await session.agents("s1")] == ["agent_s1", "agent_o"]


async def test_a_session_with_a_living_owner_is_refused_to_others(session: SessionStore) -> None:
    with pytest.raises(StorageError) as refused:
        await session.open_run(an_opening(run_id="run_2", owner="you"))
    assert refused.value.code is ErrorCode.SESSION_ACTIVE
    assert "s1" in refused.value.message
    assert await session.run("run_2") is None
    assert await session.active_run_ids("s1") == ["run_1"]


async def test_its_owner_may_queue_more_runs(session: SessionStore) -> None:
    opening = an_opening(run_id="run_2", status=RunStatus.QUEUED)
    assert (await session.open_run(opening)).lost == []
    assert await session.active_run_ids("s1") == ["run_1", "run_2"]


async def test_taking_over_from_a_dead_owner_closes_what_it_left_open(
    session: SessionStore,
) -> None:
    asked: list[Any] = []

    def is_dead(owner: str, lease: object) -> bool:
        asked.append((owner, lease))
        return True

    opened = await judged(session, is_dead).open_run(an_opening(run_id="run_2", owner="you"))

    assert asked == [("me", False)]
    assert [run.run_id for run in opened.lost] == ["run_1"]
    assert opened.session.owner == "you"
    assert await session.active_run_ids("s1") == ["run_2"]


# appending


def queued(run_id: str, **values: Any) -> NewRun:
    prompt = RunPrompt(content=[TextBlock(text=f"said with {run_id}")], metadata={"k": "\ud800"})
    return an_opening(run_id=run_id, status=RunStatus.QUEUED, prompt=prompt, **values)


async def test_what_a_dead_owner_had_queued_is_handed_over_in_order(session: SessionStore) -> None:
    for run_id in ("run_9", "run_3", "run_5"):
        await session.open_run(queued(run_id))
    await session.append(a_batch(run_id="run_5", run=RunChange(status=RunStatus.CANCELLED)))
    await session.open_run(an_opening(run_id="run_bare", status=RunStatus.QUEUED))
    lost = await judged(session, owners_are_dead).close_lost_runs()
    assert [run.run_id for run in lost] == ["run_1", "run_bare"]
    waiting = await session.run("run_9")
    assert waiting is not None
    assert (waiting.status, waiting.error) == (RunStatus.QUEUED, None)
    taken = await session.open_run(an_opening(run_id="run_new", owner="you"))
    assert [run.run_id for run in taken.queued] == ["run_9", "run_3"]
    assert taken.queued[0].prompt == queued("run_9").prompt
    assert taken.lost == []
    later = await session.open_run(an_opening(run_id="run_later", owner="you"))
    assert later.queued == []  # they are this owner's own by now


async def test_an_opening_hands_over_and_closes_at_once(session: SessionStore) -> None:
    await session.open_run(queued("run_2"))
    taken = await judged(session, owners_are_dead).open_run(
        an_opening(run_id="run_new", owner="you")
    )
    assert [run.run_id for run in taken.lost] == ["run_1"]
    assert [run.run_id for run in taken.queued] == ["run_2"]


async def test_an_owner_that_was_believed_dead_cannot_begin_what_it_had_queued(
    session: SessionStore,
) -> None:
    await session.open_run(queued("run_2"))
    await judged(session, owners_are_dead).open_run(an_opening(run_id="run_new", owner="you"))
    begin = RunChange(status=RunStatus.RUNNING)
    with pytest.raises(StorageError) as refused:
        await session.append(a_batch(run_id="run_2", run=begin, owner="me"))
    assert refused.value.code is ErrorCode.SESSION_ACTIVE
    await session.append(a_batch(run_id="run_2", run=begin, owner="you"))


async def test_a_prompt_stays_in_its_row_until_it_stands_in_the_history(
    session: SessionStore,
) -> None:
    await session.open_run(queued("run_2"))
    await session.open_run(queued("run_3"))
    done = RunChange(status=RunStatus.FAILED)
    told = RunChange(status=RunStatus.COMPLETED, has_prompt_node=True)
    await session.append(a_batch(run_id="run_2", run=done))
    await session.append(a_batch(run_id="run_3", run=told))
    kept, gone = await session.run("run_2"), await session.run("run_3")
    assert kept is not None
    assert gone is not None
    assert (kept.prompt, gone.prompt) == (queued("run_2").prompt, None)


async def test_an_active_node_that_is_missing_is_replaced_by_the_last_one_that_is_there(
    session: SessionStore,
) -> None:
    await session.append(a_batch(a_node("n1"), active_node_id="gone", run=COMPLETED, release="me"))
    again = await session.open_run(an_opening(run_id="run_2", owner="you"))
    assert again.session.active_node_id == "n1"


async def test_sequence_numbers_follow_without_a_gap(session: SessionStore) -> None:
    first = await session.append(a_batch(a_node("n1"), an_event()))
    second = await session.append(a_batch(a_node("n2", "n1"), a_node("n3", "n2")))
    await session.open_run(an_opening(run_id="run_2"))
    third = await session.append(a_batch(an_event(), run_id="run_2"))

    assert (first.seq, first.run_seq, first.node_seq) == (1, 1, 1)
    assert (second.seq, second.run_seq, second.node_seq) == (3, 3, 2)
    assert (third.seq, third.run_seq, third.node_seq) == (5, 1, 4)
    page = await session.page("s1")
    assert [event.seq for event in page.events] == [1, 2, 3, 4, 5]
    assert [event.run_seq for event in page.events] == [1, 2, 3, 4, 1]
    assert [node.node_seq for node in page.nodes] == [1, 2, 3]


async def test_batches_are_stored_in_the_order_of_the_calls(session: SessionStore) -> None:
    waiting = [session.append(a_batch(an_event(payload={"i": i}))) for i in range(200)]
    positions = await asyncio.gather(*waiting)
    assert [position.seq for position in positions] == list(range(1, 201))
    page = await session.page("s1")
    assert [event.payload["i"] for event in page.events] == list(range(200))


async def test_a_node_reads_back_as_it_was_written(session: SessionStore) -> None:
    error = ErrorPayload(type="ToolError", code=ErrorCode.TIMEOUT, message="too slow")
    node = a_node(
        "n1",
        content=[
            TextBlock(text='tab\t, quote", nul\0, umlaut ä, emoji 🐢, separator \u2028'),
            JsonBlock(data={"deep": [1, None, {"x": 2**70}], "float": 0.1}),
            ReasoningBlock(text="hm", signature="sig"),
            ToolCallBlock(tool_call_id="c1", name="code.read_file", arguments={"path": "a"}),
            ToolResultBlock(
                tool_call_id="c1", is_error=True, content=[TextBlock(text="no")], error=error
            ),
        ],
        role=Role.USER,
        metadata={"usage": {"input": 3}, "list": [1, 2]},
        token_count=17,
    )
    await session.append(a_batch(node))
    assert await session.node("n1") == node.model_copy(update={"node_seq": 1})


async def test_text_that_is_no_valid_unicode_neither_breaks_a_write_nor_gets_lost(
    session: SessionStore,
) -> None:
    payload = {"lone": "a\ud800b", "nul": "a\0b", "big": 2**80, "keys": {"\udfff": 1}}
    node = a_node("n1", content=[JsonBlock(data={"lone": "\udc80"})], metadata={"m": "\ud800"})
    await session.append(a_batch(node, an_event(payload=payload)))
    page = await session.page("s1")
    assert page.events[1].payload == payload
    assert page.nodes[0].content == node.content
    assert page.nodes[0].metadata == {"m": "\ud800"}


async def test_numbers_that_json_does_not_have_are_stored_as_null(session: SessionStore) -> None:
    nan, inf = float("nan"), float("inf")
    odd: dict[str, Any] = {"a": nan, "b": [inf, {"c": (-inf, 1.5)}], "some": {nan}}
    read = {"a": None, "b": [None, {"c": [None, 1.5]}], "some": [None]}
    for number, beside in enumerate((1, 2**70, "lone \ud800", {"model": TextBlock(text="x")})):
        data = {name: value for name, value in odd.items() if name != "some"}
        blocks = [
            JsonBlock(data={**data, "beside": beside}),
            ToolCallBlock(tool_call_id="c1", name="x", arguments={**data, "n": 2**70}),
            ToolResultBlock(tool_call_id="c1", content=[], metadata={**data, "n": 2**70}),
        ]
        node = a_node(f"n{number}", content=blocks, metadata={**odd, "beside": beside})
        await session.append(a_batch(node, an_event(payload={**odd, "beside": beside})))
    page = await session.page("s1")
    for event in (event for event in page.events if "beside" in event.payload):
        assert {**event.payload, "beside": 0} == {**read, "beside": 0}
    for node in page.nodes:
        assert {**node.metadata, "beside": 0} == {**read, "beside": 0}
        data, call, result = node.content
        assert isinstance(data, JsonBlock)
        assert isinstance(call, ToolCallBlock)
        assert isinstance(result, ToolResultBlock)
        for stored in (data.data, call.arguments, result.metadata):
            assert (stored["a"], stored["b"]) == (read["a"], read["b"])
        assert call.arguments["n"] == 2**70


async def test_deeply_nested_values_are_stored(session: SessionStore) -> None:
    nested: Any = "core"
    for _ in range(400):
        nested = [nested]
    await session.append(a_batch(a_node("n1", content=[JsonBlock(data=nested)])))
    node = await session.node("n1")
    assert node is not None
    assert node.content == [JsonBlock(data=nested)]


async def test_a_batch_is_stored_whole_or_not_at_all(session: SessionStore) -> None:
    await session.append(a_batch(a_node("n1")))
    broken = a_batch(a_node("n2", "n1"), a_node("n1"), active_node_id="n2", run=COMPLETED)
    with pytest.raises(StorageError):
        await session.append(broken)
    assert await session.node("n2") is None
    assert len((await session.page("s1")).events) == 1
    assert await session.active_run_ids("s1") == ["run_1"]


async def test_one_bad_batch_does_not_take_its_neighbours_with_it(session: SessionStore) -> None:
    good = session.append(a_batch(a_node("n1")))
    bad = session.append(a_batch(a_node("n1")))  # stored already
    other = session.append(a_batch(a_node("n3", "n1")))
    outcomes = await asyncio.gather(good, bad, other, return_exceptions=True)
    assert isinstance(outcomes[1], StorageError)
    assert [node.node_id for node in await session.path("n3")] == ["n1", "n3"]
    assert [event.seq for event in (await session.page("s1")).events] == [1, 2]


async def test_what_could_not_be_read_back_is_refused(session: SessionStore) -> None:
    for unreadable in (
        an_event(tool_call_id="no safe id"),
        an_event(tool_call_id="c" * 129),
        an_event(node_id=""),
    ):
        with pytest.raises(StorageError):
            await session.append(a_batch(unreadable))
    assert (await session.page("s1")).events == []


async def test_an_unknown_run_takes_no_batch(session: SessionStore) -> None:
    with pytest.raises(StorageError) as refused:
        await session.append(a_batch(an_event(), run_id="run_9"))
    assert refused.value.code is ErrorCode.RUN_NOT_FOUND


async def test_an_agent_is_running_while_its_run_is(session: SessionStore) -> None:
    async def statuses() -> set[AgentStatus]:
        replays = [await session.page("s1"), await session.run_history("run_1")]
        return {agent.status for replay in replays for agent in replay.agents}

    assert await statuses() == {AgentStatus.IDLE}
    await session.append(a_batch(a_node("n1"), run=RunChange(status=RunStatus.RUNNING)))
    assert await statuses() == {AgentStatus.RUNNING}
    failed = RunChange(status=RunStatus.FAILED, end_reason=EndReason.FAILED)
    await session.append(a_batch(run=failed, agent_status=AgentStatus.FAILED, release="me"))
    assert await statuses() == {AgentStatus.FAILED}


async def test_a_batch_adds_facts_to_those_of_its_session(session: SessionStore) -> None:
    await session.note(SessionNote(session_id="s1", metadata={"a": 1, "b": 1}))
    await session.append(a_batch(a_node("n1"), session_metadata={"b": None, "c": 2}))
    await session.append(a_batch(a_node("n2", "n1"), run=COMPLETED, session_metadata={"d": 3}))
    found = await session.session("s1")
    assert found is not None
    assert found.metadata == {"a": 1, "c": 2, "d": 3}


async def test_the_end_of_a_run_makes_its_session_the_last_used(session: SessionStore) -> None:
    await session.open_run(an_opening("s2", "run_2"))
    assert [each.session_id for each in await session.sessions()] == ["s2", "s1"]
    await session.append(a_batch(run=COMPLETED, release="me"))
    assert [each.session_id for each in await session.sessions()] == ["s1", "s2"]


async def test_the_end_of_a_run_changes_run_agent_and_session_together(
    session: SessionStore,
) -> None:
    before = await session.session("s1")
    change = RunChange(
        status=RunStatus.COMPLETED,
        start_node_id="n1",
        end_node_id="n1",
        end_reason=EndReason.COMPLETED,
        turn_count=3,
        usage=Usage(input_tokens=5, raw_usage={"x": 1}),
        metadata={"k": "v"},
    )
    await session.append(
        a_batch(
            a_node("n1"),
            an_event(EventType.RUN_COMPLETED),
            run=change,
            agent_status=AgentStatus.COMPLETED,
            active_node_id="n1",
            release="me",
        )
    )
    run, agent = await session.run("run_1"), await session.agent("agent_s1")
    after = await session.session("s1")
    assert run is not None
    assert run.status is RunStatus.COMPLETED
    assert (run.start_node_id, run.end_node_id, run.turn_count) == ("n1", "n1", 3)
    assert run.end_reason is EndReason.COMPLETED
    assert run.usage == change.usage
    assert run.error is None
    assert run.metadata == {"k": "v"}
    assert agent is not None
    assert agent.status is AgentStatus.COMPLETED
    assert before is not None
    assert after is not None
    assert after.active_node_id == "n1"
    assert after.owner is None
    assert after.lease_expires_at is None
    assert after.updated_at > before.updated_at


async def test_run_metadata_is_merged_and_none_leaves_values_alone(session: SessionStore) -> None:
    await session.append(a_batch(run=RunChange(turn_count=2, metadata={"a": 1, "b": 1})))
    await session.append(a_batch(run=RunChange(metadata={"b": 2, "c": 3})))
    run = await session.run("run_1")
    assert run is not None
    assert run.metadata == {"a": 1, "b": 2, "c": 3}
    assert run.turn_count == 2
    assert run.status is RunStatus.PENDING


async def test_a_session_is_given_back_by_the_last_run_that_ends(session: SessionStore) -> None:
    await session.open_run(an_opening(run_id="run_2", status=RunStatus.QUEUED))
    await session.append(a_batch(run=COMPLETED, release="me"))
    held = await session.session("s1")
    assert held is not None
    assert held.owner == "me"
    await session.append(a_batch(run=COMPLETED, release="me", run_id="run_2"))
    free = await session.session("s1")
    assert free is not None
    assert free.owner is None


async def test_only_its_owner_gives_a_session_back(session: SessionStore) -> None:
    await session.append(a_batch(run=COMPLETED, release="you"))
    await session.release("s1", "you")
    await session.release_all("you")
    await session.heartbeat("you", timedelta(days=1))
    record = await session.session("s1")
    assert record is not None
    assert record.owner == "me"
    assert record.lease_expires_at is not None
    assert record.lease_expires_at < utc_now() + timedelta(minutes=1)


# owners


async def test_a_heartbeat_extends_every_lease_of_its_owner(session: SessionStore) -> None:
    await session.open_run(an_opening("s2", "run_2", owner="you"))
    until = utc_now() + timedelta(minutes=5)
    await session.heartbeat("me", timedelta(minutes=5))
    mine, yours = await session.session("s1"), await session.session("s2")
    assert mine is not None
    assert yours is not None
    assert mine.lease_expires_at is not None
    assert yours.lease_expires_at is not None
    assert until <= mine.lease_expires_at < until + timedelta(minutes=1)
    assert yours.lease_expires_at < until
    await session.release("s1", "me")
    await session.release_all("you")
    records = await session.sessions()
    assert [record.owner for record in records] == [None, None]


async def test_lost_runs_end_with_an_event_and_cannot_be_added_to(session: SessionStore) -> None:
    await session.append(
        a_batch(a_node("n1", role=Role.USER), a_node("n2", "n1"), active_node_id="n2")
    )
    await session.open_run(an_opening("s2", "run_2", owner="you"))

    lost = await judged(session, lambda owner, lease: owner == "me").close_lost_runs()

    assert [run.run_id for run in lost] == ["run_1"]
    assert lost == [await session.run("run_1")]
    run = lost[0]
    assert run.status is RunStatus.FAILED
    assert run.end_reason is EndReason.FAILED
    assert run.metadata["reason"] == "owner_lost"
    assert run.error is not None
    history = await session.run_history("run_1")
    assert [event.event_type for event in history.events][-1] is EventType.RUN_FAILED
    assert history.events[-1].payload["reason"] == "owner_lost"
    assert history.session.owner is None
    assert history.session.active_node_id == "n2"
    assert history.agents[0].status is AgentStatus.FAILED
    other = await session.run("run_2")
    assert other is not None
    assert other.status is RunStatus.PENDING

    with pytest.raises(StorageError) as refused:
        await session.append(a_batch(a_node("n3", "n2"), active_node_id="n3"))
    assert refused.value.code is ErrorCode.SESSION_ACTIVE
    assert await session.node("n3") is None


async def test_open_runs_of_a_session_without_an_owner_are_lost_too(session: SessionStore) -> None:
    await session.release("s1", "me")
    lost = await session.close_lost_runs()
    assert [run.run_id for run in lost] == ["run_1"]
    assert await session.close_lost_runs() == []


async def test_the_memory_backlog_has_sessions_that_no_runtime_holds(
    session: SessionStore,
) -> None:
    await session.add_to_memory_backlog(["s1", "s1", "gone"])
    assert await session.memory_backlog(9) == []
    await session.release_all("me")
    assert await session.memory_backlog(9) == ["s1"]
    await session.remove_from_memory_backlog("s1")
    record = await session.session("s1")
    assert record is not None
    await session.add_to_memory_backlog(since=record.updated_at + timedelta(seconds=1))
    assert await session.memory_backlog(9) == []
    await session.add_to_memory_backlog(since=record.updated_at)
    assert await session.memory_backlog(9) == ["s1"]
    await judged(session, owners_are_dead).close_lost_runs()
    await judged(session, owners_are_dead).delete_session("s1")
    assert await session.memory_backlog(9) == []


@pytest.mark.parametrize("active", ["partial", None])
async def test_a_session_that_stopped_at_a_partial_node_goes_on_before_it(
    session: SessionStore, active: str | None
) -> None:
    partial: dict[str, Any] = {"metadata": {"partial": True, "aborted": True}}
    await session.append(
        a_batch(
            a_node("n1"),
            a_node("n2", "n1"),
            a_node("half", "n2", **partial),
            a_node("partial", "half", **partial),
            active_node_id=active,
        )
    )
    await judged(session, owners_are_dead).close_lost_runs()
    record = await session.session("s1")
    assert record is not None
    assert record.active_node_id == "n2"


async def test_nothing_is_lost_while_owners_live(session: SessionStore) -> None:
    assert await session.close_lost_runs() == []
    assert await session.active_run_ids("s1") == ["run_1"]


async def test_a_dead_owner_without_open_runs_just_loses_its_claim(session: SessionStore) -> None:
    await session.append(a_batch(run=COMPLETED))
    assert await judged(session, owners_are_dead).close_lost_runs() == []
    record = await session.session("s1")
    assert record is not None
    assert record.owner is None


async def test_a_lease_is_over_when_the_clock_of_the_store_says_so(
    session: SessionStore, clock: Clock
) -> None:
    seen: list[tuple[str, bool]] = []

    def note(owner: str, is_lease_over: bool) -> bool:
        seen.append((owner, is_lease_over))
        return False

    await judged(session, note).close_lost_runs()
    clock.ahead = timedelta(minutes=1)
    await judged(session, note).close_lost_runs()
    await session.heartbeat("me")
    await judged(session, note).close_lost_runs()
    assert seen == [("me", False), ("me", True), ("me", False)]


# epochs


async def epoch_of(store: SessionStore) -> int:
    record = await store.session("s1")
    assert record is not None
    return record.epoch


async def test_each_new_owner_begins_an_epoch_and_a_renewed_claim_does_not(
    session: SessionStore,
) -> None:
    first = await epoch_of(session)
    await session.open_run(an_opening(run_id="run_2"))
    await session.heartbeat("me")
    assert await epoch_of(session) == first
    taken = await judged(session, owners_are_dead).open_run(an_opening(run_id="run_3", owner="you"))
    assert taken.session.epoch > first
    await session.release("s1", "you")
    again = await session.open_run(an_opening(run_id="run_4", owner="you"))
    assert again.session.epoch > taken.session.epoch


async def test_what_was_begun_in_an_earlier_epoch_cannot_be_added_to(
    session: SessionStore,
) -> None:
    stale = await epoch_of(session)
    await session.open_run(queued("run_2"))
    await judged(session, owners_are_dead).open_run(an_opening(run_id="run_3", owner="you"))
    await session.release("s1", "you")
    # The first owner is back, and has the session once more: its old run is another's to begin.
    await judged(session, owners_are_dead).open_run(an_opening(run_id="run_4"))
    batch = a_batch(a_node("late"), run_id="run_2", owner="me", epoch=stale)
    with pytest.raises(StorageError) as refused:
        await session.append(batch)
    assert refused.value.code is ErrorCode.SESSION_ACTIVE
    assert await session.node("late") is None
    current = await epoch_of(session)
    await session.append(a_batch(a_node("n1"), run_id="run_4", owner="me", epoch=current))


# cancelling from another process


async def test_a_request_to_cancel_reaches_the_owner_with_its_heartbeat(
    session: SessionStore,
) -> None:
    await session.open_run(an_opening("s2", "run_2", owner="you"))
    await session.add_agent(a_child())
    await session.add_run(a_child_run())
    assert (await session.heartbeat("me")).cancelled == []
    assert await session.request_cancel("run_1")
    assert await session.request_cancel("run_1")
    assert await session.request_cancel("run_child")
    run = await session.run("run_1")
    assert run is not None
    assert run.cancel_requested_at is not None
    assert sorted((await session.heartbeat("me")).cancelled) == ["run_1", "run_child"]
    assert (await session.heartbeat("you")).cancelled == []
    await session.append(a_batch(run=COMPLETED))
    assert (await session.heartbeat("me")).cancelled == ["run_child"]


async def test_a_request_to_cancel_after_a_turn_reaches_the_owner_apart(
    session: SessionStore,
) -> None:
    assert await session.request_cancel("run_1", after_turn=True)
    run = await session.run("run_1")
    assert run is not None
    assert (run.cancel_requested_at, run.metadata) == (None, {"cancel_after_turn": True})
    beat = await session.heartbeat("me")
    assert (beat.cancelled, beat.in_last_turn) == ([], ["run_1"])
    assert (await session.heartbeat("you")).in_last_turn == []
    await session.append(a_batch(run=COMPLETED))
    assert (await session.heartbeat("me")).in_last_turn == []


async def test_a_run_that_has_ended_or_never_was_is_not_cancelled(session: SessionStore) -> None:
    await session.append(a_batch(run=COMPLETED))
    assert not await session.request_cancel("run_1")
    run = await session.run("run_1")
    assert run is not None
    assert run.cancel_requested_at is None
    with pytest.raises(StorageError) as refused:
        await session.request_cancel("run_9")
    assert refused.value.code is ErrorCode.RUN_NOT_FOUND


async def test_a_run_that_waits_is_open_and_needs_no_owner(session: SessionStore) -> None:
    await session.append(a_batch(run=RunChange(status=RunStatus.WAITING), release="me"))
    run = await session.run("run_1")
    assert run is not None
    assert run.status is RunStatus.WAITING
    assert await session.active_run_ids("s1") == []
    record = await session.session("s1")
    assert record is not None
    assert record.owner is None
    assert await judged(session, owners_are_dead).close_lost_runs() == []
    assert await session.request_cancel("run_1")
    await session.delete_session("s1")


async def test_a_run_that_waits_is_claimed_by_one_owner(session: SessionStore) -> None:
    await session.append(a_batch(run=RunChange(status=RunStatus.WAITING), release="me"))
    cwd = (await session.sessions())[0].cwd
    claim = Claim("you")
    with pytest.raises(StorageError) as refused:
        await session.resume_run("run_1", claim, cwd="/elsewhere")
    assert refused.value.code is ErrorCode.SESSION_ELSEWHERE
    opened = await session.resume_run("run_1", claim, cwd=cwd)
    assert (opened.run.run_id, opened.session.owner) == ("run_1", "you")
    with pytest.raises(StorageError) as refused:
        await session.resume_run("run_1", Claim("third"), cwd=cwd)
    assert refused.value.code is ErrorCode.SESSION_ACTIVE


async def test_the_first_answer_to_a_question_counts(session: SessionStore) -> None:
    asked = a_question(keeps_run=True)
    assert await session.ask(asked) is asked
    same = await session.ask(a_question(request_id="req_2"))
    assert same.request_id == "req_1"
    assert [each.request_id for each in await session.approvals()] == ["req_1"]
    allow, deny = Decision.ALLOW_ONCE, Decision.DENY
    found, is_first = await session.answer("req_1", allow, reason="yes", by="cli", decider="me")
    assert found is not None
    assert is_first
    assert (found.state, found.decision, found.reason) == (ApprovalState.ANSWERED, allow, "yes")
    found, is_first = await session.answer("req_1", deny, reason=None, by="sdk", decider="you")
    assert found is not None
    assert not is_first
    assert (found.decision, found.decided_by) == (allow, "cli")
    await session.withdraw("req_1")
    assert (await session.approval("req_1")) == found
    assert await session.is_answered("run_1")
    assert await session.answer("req_9", deny, reason=None, by="sdk", decider="") == (None, False)


async def test_an_answer_keeps_the_arguments_that_it_changes(session: SessionStore) -> None:
    await session.ask(a_question(arguments={"path": "a", "odd": "\ud800 \0"}))
    changed = {"path": "b", "list": [1, {"deep": None}]}
    found, is_first = await session.answer(
        "req_1", Decision.ALLOW_ONCE, reason=None, by="sdk", decider="me", arguments=changed
    )
    assert is_first
    assert found is not None
    assert found.changed_arguments == changed
    assert found.arguments is not None
    assert found.arguments["path"] == "a"
    assert await session.approval("req_1") == found


async def test_a_question_about_something_else_supersedes_the_one_before(
    session: SessionStore,
) -> None:
    await session.ask(a_question())
    await session.answer("req_1", Decision.ALLOW_ONCE, reason=None, by="cli", decider="me")
    anew = a_question(request_id="req_2", access_hash="other")
    assert await session.ask(anew) is anew
    assert not await session.is_answered("run_1")
    states = [each.state for each in await session.approvals(is_open=False)]
    assert states == [ApprovalState.SUPERSEDED, ApprovalState.OPEN]
    assert [each.request_id for each in await session.approvals(prefix="req_2")] == ["req_2"]
    assert await session.approvals(prefix="req_3") == []


async def test_a_run_continues_once_the_question_at_which_it_stops_is_answered(
    session: SessionStore,
) -> None:
    async def allow(request_id: str) -> None:
        allowed = Decision.ALLOW_ONCE
        await session.answer(request_id, allowed, reason=None, by="cli", decider="me")

    await session.ask(a_question(keeps_run=True))
    await session.ask(a_question(request_id="req_2", tool_call_id="call_2", keeps_run=False))
    await allow("req_2")
    assert not await session.is_answered("run_1"), "it stops at the first one"
    await allow("req_1")
    assert await session.is_answered("run_1")
    ahead = a_question(request_id="req_3", tool_call_id="call_3", keeps_run=False)
    await session.ask(ahead)
    found = await session.ask(ahead.model_copy(update={"request_id": "x", "keeps_run": True}))
    assert found.request_id == "req_3"
    kept = await session.approval("req_3")
    assert kept is not None
    assert kept.keeps_run


async def test_questions_are_found_by_the_metadata_of_the_users_run(session: SessionStore) -> None:
    metadata = {"user": "ann", "deep": {"a": [1, None]}, "odd": "\ud800", "yes": True, "one": 1}
    await session.open_run(
        an_opening(run_id="run_2", options=StoredOptions(metadata=metadata), owner="me")
    )
    await session.ask(a_question())
    await session.ask(a_question(request_id="req_2", root_run_id="run_2", run_id="run_2"))

    async def found(**wanted: Any) -> list[str]:
        return [each.request_id for each in await session.approvals(metadata=wanted)]

    assert await found() == ["req_1", "req_2"]
    assert await found(user="ann") == ["req_2"]
    assert await found(user="ann", deep={"a": [1, None]}) == ["req_2"]
    assert await found(user="bob") == []
    assert await found(missing=None) == []
    assert await found(yes=True, one=1) == ["req_2"]
    assert await found(one=1.0) == ["req_2"], "JSON has one kind of number"
    assert await found(yes=1) == []
    assert await found(one=True) == []
    assert await found(deep={"a": [True, None]}) == []


@pytest.mark.long
@pytest.mark.parametrize("keeps_run", [True, False])
async def test_a_run_whose_question_lasts_waits_when_its_owner_dies(
    session: SessionStore, *, keeps_run: bool
) -> None:
    await session.append(a_batch(run=RunChange(status=RunStatus.RUNNING)))
    await session.ask(a_question(keeps_run=keeps_run))
    lost = await judged(session, owners_are_dead).close_lost_runs()
    assert [run.run_id for run in lost] == ([] if keeps_run else ["run_1"])
    run = await session.run("run_1")
    assert run is not None
    assert run.status is (RunStatus.WAITING if keeps_run else RunStatus.FAILED)
    (question,) = await session.approvals(is_open=False)
    assert question.state is (ApprovalState.OPEN if keeps_run else ApprovalState.WITHDRAWN)


async def test_a_run_whose_call_has_begun_is_lost_with_its_owner(session: SessionStore) -> None:
    await session.append(a_batch(run=RunChange(status=RunStatus.RUNNING)))
    await session.ask(a_question(keeps_run=True))
    await session.answer("req_1", Decision.ALLOW_ONCE, reason=None, by="cli", decider="me")
    await session.append(a_batch(an_event(EventType.TOOL_STARTED, tool_call_id="call_1")))
    lost = await judged(session, owners_are_dead).close_lost_runs()
    assert [run.run_id for run in lost] == ["run_1"]


# children


async def test_children_are_added_and_changed(session: SessionStore) -> None:
    await session.add_agent(a_child())
    start = await session.add_run(a_child_run(), events=[an_event(EventType.LOOP_STARTED)])
    assert (start.seq, start.run_seq) == (1, 1)
    await session.update_agent(
        "agent_child", status=AgentStatus.COMPLETED, result={"ok": True}, metadata={"a": 1}
    )
    await session.update_agent("agent_child", metadata={"b": 2})
    await session.update_agent("agent_nobody", metadata={"b": 2})
    child = await session.agent("agent_child")
    assert child is not None
    assert child.status is AgentStatus.COMPLETED
    assert child.result == {"ok": True}
    assert child.metadata == {"a": 1, "b": 2}
    assert child.updated_at >= child.created_at
    assert await session.active_run_ids("s1") == ["run_1", "run_child"]


async def test_a_run_that_may_outlive_its_parent_keeps_the_session_claimed(
    session: SessionStore,
) -> None:
    claim = Claim("me")
    await session.append(a_batch(run=COMPLETED, release="me"))
    await session.add_agent(a_child())
    await session.add_run(a_child_run(), claim=claim)
    opened = await judged(session, owners_are_dead).open_run(an_opening(run_id="run_2"))
    assert opened.lost == []
    await session.append(a_batch(run=COMPLETED, release="me", run_id="run_2"))
    found = await session.session("s1")
    assert found is not None
    assert found.owner == "me"
    with pytest.raises(StorageError) as refused:
        await session.add_run(a_child_run("run_3"), claim=Claim("you"))
    assert refused.value.code is ErrorCode.SESSION_ACTIVE


async def test_children_of_an_unknown_session_are_refused(store: SessionStore) -> None:
    for write in (
        store.add_agent(a_child()),
        store.add_run(a_child_run()),
        store.add_artifact(an_artifact("a1")),
        store.rename_session("s1", "t"),
    ):
        with pytest.raises(StorageError) as refused:
            await write
        assert refused.value.code is ErrorCode.SESSION_NOT_FOUND


# the tree


async def test_a_path_leads_from_the_root_past_every_sibling(session: SessionStore) -> None:
    await session.append(
        a_batch(
            a_node("root"), a_node("left", "root"), a_node("right", "root"), a_node("leaf", "right")
        )
    )
    assert [node.node_id for node in await session.path("leaf")] == ["root", "right", "leaf"]
    assert [node.node_id for node in await session.path("root")] == ["root"]
    for after in (None, "root"):
        with pytest.raises(StorageError) as unknown:
            await session.path("nowhere", after=after)
        assert unknown.value.code is ErrorCode.NODE_NOT_FOUND


@pytest.mark.long
@pytest.mark.parametrize(
    ("after", "rest"),
    [
        ("root", ["right", "leaf"]),
        ("right", ["leaf"]),
        ("leaf", []),
        ("left", ["root", "right", "leaf"]),
        ("nowhere", ["root", "right", "leaf"]),
    ],
)
async def test_the_end_of_a_path_can_be_read_alone(
    session: SessionStore, after: str, rest: list[str]
) -> None:
    nodes = [a_node("root"), a_node("left", "root"), a_node("right", "root")]
    await session.append(a_batch(*nodes, a_node("leaf", "right")))
    assert [node.node_id for node in await session.path("leaf", after=after)] == rest


@pytest.mark.long
async def test_a_path_may_be_thousands_of_nodes_deep(session: SessionStore) -> None:
    names = [f"n{i}" for i in range(3000)]
    nodes = [a_node(name, names[i - 1] if i else None) for i, name in enumerate(names)]
    await session.append(a_batch(*nodes))
    assert [node.node_id for node in await session.path("n2999")] == names


async def test_the_active_node_moves_to_any_node_of_the_session(session: SessionStore) -> None:
    await session.append(a_batch(a_node("n1"), a_node("n2", "n1"), active_node_id="n2"))
    with pytest.raises(StorageError) as busy:
        await session.move_node("s1", a_move("n1"))
    assert busy.value.code is ErrorCode.SESSION_ACTIVE
    await session.append(a_batch(run=COMPLETED, release="me"))
    moved = await session.move_node("s1", a_move("n1"))
    assert moved.active_node_id == "n1"
    assert moved == await session.session("s1")

    await session.open_run(an_opening("s2", "run_2"))
    await session.append(a_batch(run=COMPLETED, release="me", session_id="s2", run_id="run_2"))
    for session_id, node_id, code in (
        ("s1", "nowhere", ErrorCode.NODE_NOT_FOUND),
        ("s2", "n1", ErrorCode.NODE_NOT_FOUND),
        ("s9", "n1", ErrorCode.SESSION_NOT_FOUND),
    ):
        with pytest.raises(StorageError) as refused:
            await session.move_node(session_id, a_move(node_id))
        assert refused.value.code is code


async def test_a_move_is_refused_on_another_state_than_it_was_decided_on(
    session: SessionStore,
) -> None:
    nodes = a_node("n1"), a_node("n2", "n1")
    await session.append(a_batch(*nodes, active_node_id="n2", run=COMPLETED, release="me"))
    state = await session.workspace_state("s1", "/work")
    assert (state.active_node_id, state.runs) == ("n2", 1)
    decided = NodeMove(node_id="n1", folder="/work", revision=state.revision)
    await session.move_node("s1", decided)
    for late in (session.move_node, session.begin_move):
        with pytest.raises(MovedMeanwhileError) as refused:
            await late("s1", decided)
        assert refused.value.code is ErrorCode.SESSION_ACTIVE
    state = await session.workspace_state("s1", "/work")
    assert state.pending is None
    back = NodeMove(node_id="n2", folder="/work", revision=state.revision)
    await session.begin_move("s1", back)
    assert (await session.move_node("s1", back)).active_node_id == "n2"
    state = await session.workspace_state("s1", "/work")
    await session.open_run(an_opening("s1", "run_2"))
    await session.append(a_batch(run=COMPLETED, release="me", run_id="run_2"))
    decided = NodeMove(node_id="n1", folder="/work", revision=state.revision)
    with pytest.raises(MovedMeanwhileError):
        await session.move_node("s1", decided)


async def test_a_summary_in_the_making_does_not_keep_the_active_node_in_its_place(
    session: SessionStore,
) -> None:
    await session.append(a_batch(a_node("n1"), a_node("n2", "n1"), active_node_id="n2"))
    await session.add_agent(a_child())
    await session.add_run(a_child_run())
    await session.append(a_batch(run=COMPLETED, release="me"))
    moved = await session.move_node("s1", a_move("n1"))
    assert moved.active_node_id == "n1"
    assert moved.owner == "me"
    with pytest.raises(StorageError) as busy:
        await session.delete_session("s1")
    assert busy.value.code is ErrorCode.SESSION_ACTIVE


async def test_what_happens_outside_of_any_run_belongs_to_the_session_alone(
    session: SessionStore,
) -> None:
    await session.append(a_batch(a_node("n1"), active_node_id="n1"))
    told = an_event(EventType.COMPACT_COMPLETED, {"x": 1}, node_id="n2")
    note = SessionNote(
        session_id="s1", events=[told], node=a_node("n2", "n1"), metadata={"cursor": 7}
    )
    assert await session.note(note)
    page = await session.page("s1")
    assert page.session.active_node_id == "n2"
    assert page.session.metadata == {"cursor": 7}
    assert [node.node_seq for node in page.nodes] == [1, 2]
    last = page.events[-1]
    assert (last.seq, last.run_seq, last.run_id, last.agent_id) == (2, None, None, None)
    position = await session.append(a_batch(a_node("n3", "n2")))
    assert (position.seq, position.run_seq, position.node_seq) == (3, 2, 3)


async def test_a_note_whose_node_comes_too_late_is_not_stored(session: SessionStore) -> None:
    await session.append(a_batch(a_node("n1"), a_node("n2", "n1"), active_node_id="n2"))
    note = SessionNote(
        session_id="s1", events=[an_event()], node=a_node("n3", "n1"), metadata={"cursor": 7}
    )
    assert not await session.note(note)
    page = await session.page("s1")
    assert page.session.active_node_id == "n2"
    assert page.session.metadata == {}
    assert len(page.events) == 2
    with pytest.raises(StorageError) as unknown:
        await session.note(SessionNote(session_id="s9"))
    assert unknown.value.code is ErrorCode.SESSION_NOT_FOUND


# replay


async def test_e2_a_session_is_replayed_in_order_page_by_page(session: SessionStore) -> None:
    for i in range(10):
        parent = f"n{i - 1}" if i else None
        await session.append(a_batch(a_node(f"n{i}", parent), an_event()))
    seen: list[int | None] = []
    nodes: list[str] = []
    at: int | None = None
    pages = 0
    while True:
        page = await session.page("s1", from_seq=at, limit=7)
        assert len(page.events) <= 7
        assert [run.run_id for run in page.runs] == ["run_1"]
        assert [agent.agent_id for agent in page.agents] == ["agent_s1"]
        seen += [event.seq for event in page.events]
        nodes += [node.node_id for node in page.nodes]
        pages += 1
        at = page.next_seq
        if at is None:
            break
    assert pages == 3
    assert seen == list(range(1, 21))
    assert nodes == [f"n{i}" for i in range(10)]


async def test_a_page_can_be_cut_out_of_the_timeline(session: SessionStore) -> None:
    await session.append(a_batch(*[an_event() for _ in range(10)]))
    cut = await session.page("s1", from_seq=3, to_seq=5)
    assert [event.seq for event in cut.events] == [3, 4, 5]
    assert cut.next_seq is None
    assert (await session.page("s1", from_seq=99)).events == []
    assert (await session.page("s1", from_seq=-5, to_seq=0)).events == []
    last = await session.page("s1", from_seq=-2)
    assert [event.seq for event in last.events] == [9, 10]
    assert len((await session.page("s1", from_seq=-(2**100))).events) == 10
    assert len((await session.page("s1", to_seq=2**100)).events) == 10
    with pytest.raises(StorageError) as unknown:
        await session.page("s9")
    assert unknown.value.code is ErrorCode.SESSION_NOT_FOUND


async def test_a_replay_leaves_the_transcripts_of_children_out(session: SessionStore) -> None:
    await session.add_agent(a_child())
    await session.add_run(a_child_run())
    child: dict[str, Any] = {"agent_id": "agent_child", "run_id": "run_child"}
    await session.append(a_batch(a_node("c1", **child), **child))
    await session.append(a_batch(a_node("n1")))
    page = await session.page("s1")
    assert [node.node_id for node in page.nodes] == ["n1"]
    assert [event.seq for event in page.events] == [2]
    assert [run.run_id for run in page.runs] == ["run_1"]
    assert [event.seq for event in (await session.page("s1", from_seq=-1)).events] == [2]
    inside = await session.run_history("run_child")
    assert [node.node_id for node in inside.nodes] == ["c1"]
    assert [agent.agent_id for agent in inside.agents] == ["agent_child"]


async def test_e3_a_run_is_replayed_without_its_neighbours(session: SessionStore) -> None:
    await session.append(a_batch(a_node("n1"), run=COMPLETED))
    await session.open_run(an_opening(run_id="run_2"))
    await session.append(
        a_batch(a_node("n2", "n1", run_id="run_2"), an_event(node_id="n1"), run_id="run_2")
    )
    await session.add_artifact(an_artifact("a1", run_id="run_1"))
    await session.add_artifact(an_artifact("a2", run_id="run_2"))
    second = await session.run_history("run_2")
    assert [run.run_id for run in second.runs] == ["run_2"]
    assert [node.node_id for node in second.nodes] == ["n2"]
    assert [event.run_seq for event in second.events] == [1, 2]
    assert {event.run_id for event in second.events} == {"run_2"}
    assert [artifact.artifact_id for artifact in second.artifacts] == ["a2"]
    with pytest.raises(StorageError) as unknown:
        await session.run_history("run_9")
    assert unknown.value.code is ErrorCode.RUN_NOT_FOUND


async def test_a_part_of_a_run_has_what_its_events_name(session: SessionStore) -> None:
    for number in range(1, 6):
        above = f"n{number - 1}" if number > 1 else None
        await session.append(a_batch(a_node(f"n{number}", above)))
    await session.add_artifact(an_artifact("a2", run_id="run_1", node_id="n2"))
    await session.add_artifact(an_artifact("a5", run_id="run_1", node_id="n5"))
    whole = [1, 2, 3, 4, 5]
    for first, last, seqs in (
        (None, None, whole),
        (1, None, whole),
        (3, None, [3, 4, 5]),
        (2, 3, [2, 3]),
        (None, 2, [1, 2]),
        (-2, None, [4, 5]),
        (-2, 3, [2, 3]),
        (-(10**30), 10**30, whole),
        (6, None, []),
        (None, 0, []),
        (-2, -7, []),
    ):
        part = await session.run_history("run_1", from_seq=first, to_seq=last)
        assert [event.run_seq for event in part.events] == seqs, (first, last)
        assert [node.node_id for node in part.nodes] == [f"n{seq}" for seq in seqs], (first, last)
        artifacts = [each.artifact_id for each in part.artifacts]
        assert artifacts == [f"a{seq}" for seq in (2, 5) if seq in seqs], (first, last)


async def test_the_events_of_a_run_are_read_from_where_a_watcher_stopped(
    session: SessionStore,
) -> None:
    for i in range(5):
        await session.append(a_batch(an_event(payload={"i": i})))
    await session.open_run(an_opening(run_id="run_2"))
    await session.append(a_batch(an_event(), run_id="run_2"))
    assert await session.events_after("run_1", 0) == (await session.run_history("run_1")).events
    some = await session.events_after("run_1", 2, limit=2)
    assert [(event.run_seq, event.payload["i"]) for event in some] == [(3, 2), (4, 3)]
    assert await session.events_after("run_1", 5) == []
    assert await session.events_after("run_9", 0) == []


async def test_the_last_events_of_one_type_and_agent_come_last_first(session: SessionStore) -> None:
    kinds = [EventType.CONTEXT_BUILT, EventType.MODEL_COMPLETED, EventType.CONTEXT_BUILT]
    for i, kind in enumerate(kinds):
        await session.append(a_batch(an_event(kind, payload={"i": i})))
    agent_id = (await session.run_history("run_1")).events[-1].agent_id
    assert agent_id is not None
    asked = EventType.CONTEXT_BUILT
    found = await session.last_events("s1", agent_id, asked, limit=9)
    assert [event.payload["i"] for event in found] == [2, 0]
    assert await session.last_events("s1", agent_id, asked, limit=1) == found[:1]
    assert await session.last_events("s1", "agent_9", asked, limit=9) == []
    assert await session.last_events("s9", agent_id, asked, limit=9) == []


async def test_artifacts_come_with_the_page_of_what_they_belong_to(session: SessionStore) -> None:
    await session.append(a_batch(a_node("n1"), an_event(tool_call_id="c1"), a_node("n2", "n1")))
    await session.add_artifact(an_artifact("of_node", run_id="run_1", node_id="n2"))
    await session.add_artifact(an_artifact("of_call", run_id="run_1", tool_call_id="c1"))
    await session.add_artifact(an_artifact("of_run", run_id="run_1"))
    found = [
        [
            artifact.artifact_id
            for artifact in (await session.page("s1", from_seq=seq, to_seq=seq)).artifacts
        ]
        for seq in (1, 2, 3)
    ]
    assert found == [["of_run"], ["of_call"], ["of_node"]]


# the effect ledger


async def test_calls_that_began_and_never_ended_are_open(session: SessionStore) -> None:
    def step(event_type: EventType, call_id: str) -> Any:
        return an_event(event_type, tool_call_id=call_id)

    await session.append(
        a_batch(
            step(EventType.TOOL_STARTED, "done"),
            step(EventType.TOOL_COMPLETED, "done"),
            step(EventType.TOOL_STARTED, "failed"),
            step(EventType.TOOL_TIMEOUT, "failed"),
            step(EventType.TOOL_FAILED, "failed"),
            step(EventType.PERMISSION_REQUESTED, "denied"),
            step(EventType.TOOL_DENIED, "denied"),
            step(EventType.TOOL_STARTED, "open"),
            step(EventType.TOOL_PROGRESS, "open"),
            step(EventType.TOOL_STARTED, "twice"),
            step(EventType.TOOL_COMPLETED, "twice"),
            step(EventType.TOOL_STARTED, "twice"),
            step(EventType.TOOL_STARTED, "not_asked_for"),
        )
    )
    calls = ["done", "failed", "denied", "open", "twice", "never"]
    assert await session.open_calls("run_1", calls) == {"open", "twice"}
    assert await session.open_calls("run_2", calls) == set()
    assert await session.open_calls("run_1", []) == set()


async def test_calls_of_other_runs_with_the_same_id_do_not_count(session: SessionStore) -> None:
    await session.add_agent(a_child())
    await session.add_run(a_child_run())
    started = an_event(EventType.TOOL_STARTED, tool_call_id="c1")
    done = an_event(EventType.TOOL_COMPLETED, tool_call_id="c1")
    await session.append(a_batch(started))
    await session.append(a_batch(done, agent_id="agent_child", run_id="run_child"))
    assert await session.open_calls("run_1", ["c1"]) == {"c1"}
    assert await session.open_calls("run_child", ["c1"]) == set()


# lists


async def test_sessions_are_listed_with_the_last_used_first(store: SessionStore) -> None:
    for i in range(5):
        await store.open_run(an_opening(f"s{i}", f"run_{i}"))
    await store.append(a_batch(run=COMPLETED, session_id="s1", run_id="run_1", agent_id="agent_s1"))
    listed = [record.session_id for record in await store.sessions()]
    assert listed == ["s1", "s4", "s3", "s2", "s0"]
    second = [record.session_id for record in await store.sessions(limit=2, offset=1)]
    assert second == ["s4", "s3"]


async def used(store: SessionStore, session_id: str, run_id: str) -> None:
    opened = await store.open_run(an_opening(session_id, run_id))
    ids: dict[str, Any] = {
        "session_id": session_id,
        "run_id": run_id,
        "agent_id": opened.agent.agent_id,
    }
    answer = a_node(f"node_{run_id}", **ids)
    await store.append(a_batch(answer, run=COMPLETED, release="me", **ids))


async def test_the_order_of_sessions_is_that_of_their_use_whatever_the_clocks_say(
    store: SessionStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used(store, "s0", "run_0")
    with monkeypatch.context() as wrong:
        clock.ahead = timedelta(days=5000)
        wrong.setattr(rows, "utc_now", clock.now)
        await used(store, "s1", "run_1")
    clock.ahead = timedelta(days=-5000)
    await used(store, "s2", "run_2")
    clock.ahead = timedelta(0)

    ordered = ["s2", "s1", "s0"]
    assert [each.session_id for each in await store.sessions()] == ordered
    shown = await store.session_summaries(limit=5)
    assert [summary.session_id for summary, _ in shown] == ordered
    assert await store.last_session() == "s2"
    await used(store, "s0", "run_3")
    assert await store.last_session("/project") == "s0"


@pytest.mark.parametrize("days", [5000, -20_000])
async def test_a_time_that_cannot_be_right_counts_as_the_next_use(
    store: SessionStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    await used(store, "old", "run_old")
    with monkeypatch.context() as wrong:
        clock.ahead = timedelta(days=days)
        wrong.setattr(rows, "utc_now", clock.now)
        await used(store, "wrong", "run_1")
    clock.ahead = timedelta(0)
    now = utc_now()
    assert await store.unused_sessions(now) == ["old"]
    with pytest.raises(StorageError) as used_now:
        await store.delete_session("wrong", unused_since=now)
    assert used_now.value.code is ErrorCode.SESSION_ACTIVE

    await used(store, "new", "run_2")
    soon = utc_now() + timedelta(minutes=1)
    assert await store.unused_sessions(soon) == ["old", "wrong", "new"]
    assert await store.unused_sessions(soon, keep_last=1) == ["old", "wrong"]
    await store.delete_session("wrong", unused_since=soon)
    assert await store.session("wrong") is None
    assert await store.last_use() is not None


async def test_what_is_unknown_is_none_or_empty(store: SessionStore) -> None:
    assert await store.session("x") is None
    assert await store.agent("x") is None
    assert await store.run("x") is None
    assert await store.node("x") is None
    assert await store.artifact("x") is None
    assert await store.sessions() == []
    assert await store.agents("x") == []
    assert await store.active_run_ids("x") == []
    assert await store.artifacts(session_id="x") == []


async def test_artifacts_are_found_by_session_kind_and_age(session: SessionStore) -> None:
    await session.open_run(an_opening("s2", "run_2"))
    now = utc_now()
    old = now - timedelta(days=3)
    records = [
        an_artifact("a1", kind="debug", created_at=old, metadata={"x": [1]}, summary="s"),
        an_artifact("a2", kind="tool_output"),
        an_artifact("a3", kind="traceback", session_id="s2"),
    ]
    for record in records:
        await session.add_artifact(record)
    assert await session.artifact("a1") == records[0]
    assert await session.artifacts() == records
    assert await session.artifacts(session_id="s1") == records[:2]
    assert await session.artifacts(kinds={"debug", "traceback"}) == [records[0], records[2]]
    assert await session.artifacts(kinds=[]) == []
    assert await session.artifacts(older_than=now - timedelta(days=1)) == records[:1]
    await session.delete_artifact_row("a1")
    await session.delete_artifact_row("a1")
    assert await session.artifact("a1") is None


# deleting


async def test_e4_a_session_with_an_open_run_is_not_deleted(session: SessionStore) -> None:
    await session.add_artifact(an_artifact("a1"))
    with pytest.raises(StorageError) as refused:
        await session.delete_session("s1")
    assert refused.value.code is ErrorCode.SESSION_ACTIVE
    assert await session.session("s1") is not None
    assert await session.artifact("a1") is not None


async def test_a_deleted_session_leaves_nothing_and_harms_no_other(session: SessionStore) -> None:
    await session.open_run(an_opening("s2", "run_2"))
    await session.append(a_batch(a_node("n1"), a_node("n2", "n1"), run=COMPLETED))
    await session.append(
        a_batch(a_node("m1", session_id="s2", run_id="run_2"), session_id="s2", run_id="run_2")
    )
    await session.add_artifact(an_artifact("a1"))
    await session.delete_session("s1")

    assert await session.session("s1") is None
    assert await session.node("n1") is None
    assert await session.run("run_1") is None
    assert await session.agent("agent_s1") is None
    assert await session.artifact("a1") is None
    assert await session.node("m1") is not None
    assert len((await session.page("s2")).events) == 1
    with pytest.raises(StorageError) as gone:
        await session.delete_session("s1")
    assert gone.value.code is ErrorCode.SESSION_NOT_FOUND
    with pytest.raises(StorageError) as late:
        await session.append(a_batch(an_event()))
    assert late.value.code is ErrorCode.RUN_NOT_FOUND

    again = await session.open_run(an_opening())
    assert not again.resumed
    assert again.position.seq == 1


async def test_an_abandoned_session_can_be_deleted(session: SessionStore) -> None:
    await judged(session, owners_are_dead).delete_session("s1")
    assert await session.session("s1") is None


def test_a_store_in_memory_is_shared_by_the_event_loops_of_several_threads() -> None:
    store = SqliteSessionStore.in_memory()

    async def write(number: int) -> None:
        for round_ in range(40):
            opening = an_opening(session_id=f"s{number}_{round_}", run_id=f"run_{number}_{round_}")
            await store.open_run(opening)
            assert await store.session(opening.session_id) is not None

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(asyncio.run, write(number)) for number in range(4)]:
            done.result()
    assert len(asyncio.run(store.sessions(limit=500))) == 160


# budgets


def a_scope(kind: Any = "run", scope_id: str = "run_1", **limits: int) -> BudgetScope:
    return BudgetScope(kind=kind, scope_id=scope_id, limits=limits)


def a_hold(hold_id: str, *scopes: BudgetScope, fixed: Amounts, **values: Any) -> BudgetHold:
    ids: dict[str, Any] = {"session_id": "s1", "run_id": "run_1", "agent_id": "agent_s1"}
    return BudgetHold(hold_id=hold_id, scopes=scopes, fixed=fixed, **{**ids, **values})


async def test_a_hold_is_granted_as_much_output_as_every_scope_has_left(
    session: SessionStore,
) -> None:
    scopes = a_scope("session", "s1", total_tokens=1000), a_scope(output_tokens=700)
    per_token = {"output_tokens": 1, "total_tokens": 1}
    fixed = {"requests": 1, "total_tokens": 400}
    hold = a_hold("h1", *scopes, fixed=fixed, per_token=per_token, most=800, least=256)
    assert (await session.reserve_budget(hold)).output_tokens == 600
    whole, run = await session.budget_uses(["s1", "run_1", "unknown"])
    assert whole.reserved == {"requests": 1, "total_tokens": 1000, "output_tokens": 600}
    assert (run.kind, run.limits, run.spent) == ("run", {"output_tokens": 700}, {})

    refused = await session.reserve_budget(
        a_hold("h2", *scopes, fixed={"total_tokens": 1}, per_token=per_token, most=300, least=256)
    )
    assert (refused.unit, refused.needed, refused.may_wait) == ("total_tokens", 257, True)
    assert refused.refused_by is not None
    assert refused.refused_by.scope_id == "s1"

    await session.settle_budget("h1", {"requests": 1, "total_tokens": 990})
    refused = await session.reserve_budget(
        a_hold("h3", *scopes, fixed={"total_tokens": 11}, agent_id="agent_2")
    )
    assert refused.refused_by is not None
    assert not refused.may_wait
    assert refused.refused_by.by_agent == {"agent_s1": {"requests": 1, "total_tokens": 990}}


async def test_what_is_settled_twice_counts_once(session: SessionStore) -> None:
    await session.reserve_budget(a_hold("h1", a_scope(requests=5), fixed={"requests": 1}))
    for _ in range(2):
        await session.settle_budget("h1", {"requests": 1})
    await session.settle_budget("unknown", {"requests": 1})
    (use,) = await session.budget_uses(["run_1"])
    assert (use.spent, use.reserved) == ({"requests": 1}, {})


async def test_what_is_done_at_once_is_spent_with_one_write(session: SessionStore) -> None:
    for number, is_refused in enumerate((False, False, True)):
        hold = a_hold(f"h{number}", a_scope(tool_calls=2), fixed={"tool_calls": 1})
        grant = await session.reserve_budget(hold, at_once=True)
        assert (grant.refused_by is not None) is is_refused
    (use,) = await session.budget_uses(["run_1"])
    assert (use.spent, use.reserved) == ({"tool_calls": 2}, {})


async def test_the_holds_of_a_lost_run_are_settled_in_full(session: SessionStore) -> None:
    scopes = a_scope("session", "s1", total_tokens=1000), a_scope(total_tokens=1000)
    await session.reserve_budget(a_hold("h1", *scopes, fixed={"total_tokens": 300}))
    beside = a_hold("h2", scopes[0], fixed={"total_tokens": 20}, run_id="s1", agent_id="memory")
    await session.reserve_budget(beside)
    await judged(session, owners_are_dead).close_lost_runs()
    whole, run = await session.budget_uses(["s1", "run_1"])
    assert (whole.spent, whole.reserved) == ({"total_tokens": 320}, {})
    assert (run.spent, run.reserved) == ({"total_tokens": 300}, {})
    assert whole.by_agent["memory"] == {"total_tokens": 20}
    await session.settle_budget("h1", {"total_tokens": 1})  # of a process that was not dead
    assert (await session.budget_uses(["run_1"]))[0].spent == {"total_tokens": 300}


async def test_the_time_of_a_lost_run_counts_up_to_its_last_event(
    store: SessionStore, clock: Clock
) -> None:
    clock.ahead = timedelta(seconds=-90)
    await store.open_run(an_opening())
    clock.ahead = timedelta(0)
    await store.append(a_batch(an_event()))
    hold = a_hold("h1", a_scope("session", "s1", wall_ms=10**6), fixed={"requests": 1})
    await store.reserve_budget(hold)
    await judged(store, owners_are_dead).close_lost_runs()
    (use,) = await store.budget_uses(["s1"])
    assert use.spent["wall_s"] == pytest.approx(90, abs=10)


async def test_the_time_that_a_lost_run_waited_for_its_turn_is_not_counted(
    store: SessionStore, clock: Clock
) -> None:
    clock.ahead = timedelta(seconds=-900)
    await store.open_run(an_opening())
    clock.ahead = timedelta(0)
    since = utc_now() - timedelta(seconds=90)
    begun = replace(an_event(EventType.RUN_DEQUEUED), created_at=since)
    await store.append(a_batch(an_event(EventType.RUN_QUEUED), begun, an_event()))
    hold = a_hold("h1", a_scope("session", "s1", wall_ms=10**6), fixed={"requests": 1})
    await store.reserve_budget(hold)
    await judged(store, owners_are_dead).close_lost_runs()
    (use,) = await store.budget_uses(["s1"])
    assert use.spent["wall_s"] == pytest.approx(90, abs=10)


async def test_a_child_gets_its_part_of_what_is_free_and_the_parent_keeps_one(
    session: SessionStore,
) -> None:
    run = a_scope(total_tokens=1200, requests=100)
    await session.add_agent(a_child())
    limits: list[dict[str, Any]] = []
    for number in range(3):
        child = f"run_c{number}"
        await session.add_run(a_child_run(child))
        asked = a_scope("child", child, **({"total_tokens": 10} if number == 2 else {}))
        hold = a_hold(f"h{number}", run, asked, fixed={"requests": 1}, run_id=child)
        assert (await session.reserve_budget(hold)).refused_by is None
        limits.append((await session.budget_uses([child]))[0].limits)
    assert [one["total_tokens"] for one in limits] == [600, 200, 10]
    assert [one["requests"] for one in limits] == [50, 16, 8]
    left = a_hold("h9", run, a_scope("child", "run_c1"), fixed={"total_tokens": 201})
    grant = await session.reserve_budget(left)
    assert grant.refused_by is not None
    assert grant.refused_by.scope_id == "run_c1"  # its share, however much the run has left


async def test_a_deleted_session_takes_its_budgets_along(session: SessionStore) -> None:
    await session.reserve_budget(a_hold("h1", a_scope(requests=5), fixed={"requests": 1}))
    await session.reserve_budget(a_hold("h2", a_scope(requests=5), fixed={"requests": 1}))
    await session.settle_budget("h1", {"requests": 1})
    await session.append(a_batch(run=COMPLETED, release="me"))
    page = await session.page("s1")
    assert [use.scope_id for use in page.budgets] in ([], ["run_1"])
    assert [use.scope_id for use in (await session.run_history("run_1")).budgets] == ["run_1"]
    await session.delete_session("s1")
    assert await session.budget_uses(["run_1"]) == []


def a_permission(grant_id: str = "grant_1", key: str = "k1", **more: Any) -> PermissionGrant:
    values: dict[str, Any] = {"session_id": "s1", "tool_name": "code.write_file", **more}
    return PermissionGrant(
        grant_id=grant_id, key=key, covers=f"what {key} covers", created_at=utc_now(), **values
    )


async def test_what_was_allowed_is_found_by_its_key_and_goes_with_its_session(
    session: SessionStore,
) -> None:
    first, other = a_permission(), a_permission("grant_2", "k2")
    await session.add_grant(first)
    await session.add_grant(other)
    await session.add_grant(a_permission("grant_3"))  # the same key
    assert await session.find_grant("s1", "k1") == first
    assert await session.find_grant("s2", "k1") is None
    assert await session.grants() == await session.grants("s1") == [first, other]
    assert await session.grants("s2") == []
    assert [await session.forget_grants(name) for name in ("grant_1", "grant_1", "x")] == [1, 0, 0]
    assert await session.grants() == [other]
    await session.add_grant(first)
    assert await session.forget_grants("s1") == 2
    with pytest.raises(StorageError) as refused:
        await session.add_grant(a_permission(session_id="gone"))
    assert refused.value.code is ErrorCode.SESSION_NOT_FOUND
    await session.add_grant(first)
    await session.append(a_batch(run=COMPLETED, release="me"))
    await session.delete_session("s1")
    assert await session.grants() == []


# runs that any process may take


def a_queued_opening(run_id: str = "run_1", **values: Any) -> NewRun:
    dispatch = Dispatch(queue="default", home="host:here", **values.pop("dispatch", {}))
    prompt = RunPrompt(content=[TextBlock(text="go")])
    return an_opening(run_id=run_id, owner="", dispatch=dispatch, prompt=prompt, **values)


@pytest.fixture
async def in_queue(store: SessionStore) -> SessionStore:
    """The store with a session `s1` that has no owner, and its run `run_1` in_queue."""
    await store.queue_run(a_queued_opening())
    return store


async def take(
    store: SessionStore,
    owner: str = "me",
    run_id: str = "run_1",
    is_dead: OwnerIsDead = owners_live,
) -> ClaimedRun | None:
    return await judged(store, is_dead).take_run(run_id, Claim(owner), max_takeovers=3)


async def taken(
    store: SessionStore,
    owner: str = "me",
    run_id: str = "run_1",
    is_dead: OwnerIsDead = owners_live,
) -> ClaimedRun:
    found = await take(store, owner, run_id, is_dead)
    assert found is not None
    return found


async def test_a_queued_run_leaves_its_session_without_an_owner(in_queue: SessionStore) -> None:
    session, run = await in_queue.session("s1"), await in_queue.run("run_1")
    assert session is not None
    assert run is not None
    assert (session.owner, session.place, session.tenant) == (None, "host:here", None)
    assert (run.status, run.lane, run.takeovers) == (
        RunStatus.QUEUED,
        "default/host:here//1",
        0,
    )
    page = await in_queue.page("s1")
    assert [event.event_type for event in page.events] == [EventType.RUN_QUEUED]
    assert await judged(in_queue, owners_are_dead).close_lost_runs() == []
    assert await in_queue.active_run_ids("s1") == []


async def test_whoever_takes_a_queued_run_has_its_session(in_queue: SessionStore) -> None:
    found = await taken(in_queue)
    assert found.run.status is RunStatus.QUEUED
    session = await in_queue.session("s1")
    assert session is not None
    assert (session.owner, session.epoch) == ("me", 2)
    beat = await in_queue.heartbeat("me")
    assert (beat.epochs, beat.late) == ({"s1": 2}, set())
    with pytest.raises(StorageError) as refused:
        await take(in_queue, "you")
    assert refused.value.code is ErrorCode.SESSION_ACTIVE


async def test_a_session_is_given_back_though_another_run_of_it_is_queued(
    in_queue: SessionStore,
) -> None:
    found = await taken(in_queue)
    await in_queue.queue_run(a_queued_opening("run_2"))
    await in_queue.append(
        a_batch(a_node("n1"), run=COMPLETED, release="me", owner="me", epoch=found.session.epoch)
    )
    assert (await in_queue.heartbeat("me")).epochs == {}
    assert await take(in_queue, "you") is None, "it has ended"
    assert (await taken(in_queue, "you", "run_2")).session.owner == "you"


@pytest.mark.long
async def test_a_run_of_a_dead_owner_goes_on_and_the_dead_cannot_write(
    in_queue: SessionStore,
) -> None:
    first = await taken(in_queue)
    running = RunChange(status=RunStatus.RUNNING)
    await in_queue.append(a_batch(a_node("n1"), active_node_id="n1", run=running, owner="me"))
    await in_queue.add_agent(a_child())
    await in_queue.add_run(a_child_run())
    assert await judged(in_queue, owners_are_dead).close_lost_runs() == []
    with pytest.raises(StorageError):
        await take(in_queue, "you")
    again = await taken(in_queue, "you", is_dead=owners_are_dead)
    assert [run.run_id for run in again.lost] == ["run_child"]
    assert again.run.status is RunStatus.RUNNING
    run, child = await in_queue.run("run_1"), await in_queue.run("run_child")
    assert run is not None
    assert child is not None
    assert (run.status, run.takeovers) == (RunStatus.RUNNING, 1)
    assert child.metadata["reason"] == "owner_lost"
    events = [event.event_type for event in await in_queue.events_after("run_1", 0)]
    assert events.count(EventType.RUN_TAKEN_OVER) == 1
    for owner in ("me", None):
        with pytest.raises(StorageError) as refused:
            await in_queue.append(
                a_batch(an_event(), owner=owner, epoch=first.session.epoch, run=COMPLETED)
            )
        assert refused.value.code is ErrorCode.SESSION_ACTIVE


async def test_a_run_over_which_too_many_processes_die_has_failed(in_queue: SessionStore) -> None:
    owners = [f"own_{number}" for number in range(4)]
    for owner in owners:
        await taken(in_queue, owner, is_dead=owners_are_dead)
    assert await take(in_queue, "own_4", is_dead=owners_are_dead) is None
    run = await in_queue.run("run_1")
    assert run is not None
    assert (run.status, run.takeovers) == (RunStatus.FAILED, 3)
    assert run.metadata["reason"] == "too_many_takeovers"
    session = await in_queue.session("s1")
    assert session is not None
    assert session.owner is None
    events = [event.event_type for event in await in_queue.events_after("run_1", 0)]
    assert events[-1] is EventType.RUN_FAILED
    assert events.count(EventType.RUN_FAILED) == 1


async def test_a_run_that_is_handed_over_counts_no_takeover(in_queue: SessionStore) -> None:
    for owner in ("a", "b", "c", "d", "e"):
        await taken(in_queue, owner)
        assert not await in_queue.hand_over("run_1", "another")
        assert await in_queue.hand_over("run_1", owner)
    run = await in_queue.run("run_1")
    assert run is not None
    assert (run.status, run.takeovers) == (RunStatus.PENDING, 0)
    assert await judged(in_queue, owners_are_dead).close_lost_runs() == []


async def test_a_run_that_no_process_executes_is_cancelled_without_one(
    in_queue: SessionStore,
) -> None:
    await taken(in_queue, "me")
    running = RunChange(status=RunStatus.RUNNING)
    await in_queue.append(a_batch(a_node("n1"), active_node_id="n1", run=running, owner="me"))
    assert not await in_queue.cancel_idle("run_1"), "a living process has it"
    assert await in_queue.hand_over("run_1", "me")
    await in_queue.add_agent(a_child())
    await in_queue.add_run(a_child_run())
    assert await in_queue.cancel_idle("run_1")
    assert not await in_queue.cancel_idle("run_1"), "it has ended"
    run, child = await in_queue.run("run_1"), await in_queue.run("run_child")
    assert run is not None
    assert child is not None
    assert (run.status, run.end_reason) == (RunStatus.CANCELLED, EndReason.ABORTED_TOOLS)
    assert child.status.is_terminal
    events = [event.event_type for event in await in_queue.events_after("run_1", 0)]
    assert events.count(EventType.RUN_CANCELLED) == 1
    assert await take(in_queue, "you") is None
    assert (await in_queue.open_run(an_opening(run_id="run_2", owner="you"))).lost == []


@pytest.mark.long
@pytest.mark.parametrize("how", ["queued", "dead", "waiting"])
async def test_a_run_is_cancelled_wherever_it_rests(in_queue: SessionStore, how: str) -> None:
    is_dead = owners_are_dead if how == "dead" else owners_live
    if how != "queued":
        await taken(in_queue, "me")
    if how == "waiting":
        await in_queue.ask(a_question(keeps_run=True))
        waits = RunChange(status=RunStatus.WAITING)
        await in_queue.append(a_batch(run=waits, release="me", owner="me"))
    assert not await in_queue.cancel_idle("run_none")
    assert await judged(in_queue, is_dead).cancel_idle("run_1")
    run = await in_queue.run("run_1")
    assert run is not None
    assert run.status is RunStatus.CANCELLED
    assert await in_queue.approvals() == [], "its questions are withdrawn"


async def test_a_run_that_is_to_be_cancelled_ends_with_its_hand_over(
    in_queue: SessionStore,
) -> None:
    await taken(in_queue, "me")
    assert await in_queue.request_cancel("run_1")
    assert not await in_queue.hand_over("run_1", "me")
    run, session = await in_queue.run("run_1"), await in_queue.session("s1")
    assert run is not None
    assert session is not None
    assert (run.status, session.owner) == (RunStatus.CANCELLED, None)


@pytest.mark.long
async def test_of_a_cancellation_and_a_worker_that_takes_the_run_one_wins(
    store: SessionStore,
) -> None:
    for number in range(20):
        run_id, session_id = f"run_{number}", f"s{number}"
        await store.queue_run(a_queued_opening(run_id, session_id=session_id))
        await taken(store, "me", run_id)
        assert await store.hand_over(run_id, "me")
        works = [
            store.cancel_idle(run_id),
            take(store, "you", run_id),
            take(store, "we", run_id),
        ]
        works = works[number % 3 :] + works[: number % 3]
        found = await asyncio.gather(*works, return_exceptions=True)
        is_cancelled = True in found
        claims = [each for each in found if isinstance(each, ClaimedRun)]
        assert len(claims) + is_cancelled == 1, found
        run = await store.run(run_id)
        assert run is not None
        assert (run.status is RunStatus.CANCELLED) == is_cancelled
        if claims:  # whoever has it can write, and nobody else has written its end
            owner, epoch = claims[0].session.owner, claims[0].session.epoch
            end = a_batch(
                run=COMPLETED, run_id=run_id, session_id=session_id, owner=owner, epoch=epoch
            )
            await store.append(end)


CALL = Usage(input_tokens=1000, output_tokens=50, total_tokens=1050, cost=1.0)
LOSS = CALL.model_copy(update={"is_estimated": True})
KINDS: dict[str, tuple[EventType, dict[str, Any]]] = {
    "begins": (EventType.LOOP_STARTED, {}),
    "asks": (EventType.MODEL_STARTED, {"estimate": {"input_tokens": 700, "cost": 0.5}}),
    "replies": (EventType.MODEL_COMPLETED, {"usage": CALL.model_dump()}),
    "retries": (EventType.MODEL_RETRY, {"usage": LOSS.model_dump()}),
    "fails": (EventType.MODEL_FAILED, {"usage": LOSS.model_dump()}),
}
STORIES = pytest.mark.parametrize(
    ("story", "replies", "lost", "cut_off"),
    sampled(
        [
            ("", 0, 0, 0),
            ("begins asks replies", 1, 0, 0),
            ("begins asks", 0, 0, 1),
            ("begins asks replies asks", 1, 0, 1),
            ("begins asks retries replies", 1, 1, 0),
            ("begins asks retries", 0, 1, 1),
            ("begins asks fails", 0, 1, 0),
            ("begins asks fails asks replies", 1, 1, 0),
            ("begins asks replies asks begins asks replies", 2, 0, 1),
            ("begins asks begins asks", 0, 0, 2),
        ],
        keep=5,
    ),
)


async def tell(store: SessionStore, story: str, **values: Any) -> None:
    events = [an_event(*KINDS[each]) for each in story.split()]
    await store.append(a_batch(*events, run=RunChange(status=RunStatus.RUNNING), **values))


def assert_counted(usage: Usage, *, replies: int, lost: int, cut_off: int) -> None:
    calls = replies + lost
    assert usage.input_tokens == 1000 * calls + 700 * cut_off
    assert usage.output_tokens == 50 * calls
    assert usage.total_tokens == 1050 * calls + 700 * cut_off
    assert usage.is_estimated == (lost + cut_off > 0)
    assert usage.cost == (calls + 0.5 * cut_off or None)


@STORIES
async def test_a_lost_run_has_cost_what_its_events_say(
    session: SessionStore, story: str, replies: int, lost: int, cut_off: int
) -> None:
    await tell(session, story)
    (run,) = await judged(session, owners_are_dead).close_lost_runs()
    assert run == await session.run("run_1")
    assert_counted(run.usage, replies=replies, lost=lost, cut_off=cut_off)
    assert run.turn_count == replies + story.endswith(("asks", "retries", "fails"))
    (*_, end) = await session.events_after("run_1", 0)
    assert Usage.model_validate(end.payload["usage"]) == run.usage
    assert end.payload["turns"] == run.turn_count
    (total,) = await session.costs("all") if run.turn_count else (None,)
    assert total is None or total.usage == run.usage


@pytest.mark.long
@STORIES
@pytest.mark.parametrize("is_dead", [True, False], ids=["taken over", "handed over"])
async def test_a_run_that_goes_on_elsewhere_has_cost_what_its_events_say(
    in_queue: SessionStore, story: str, replies: int, lost: int, cut_off: int, is_dead: bool
) -> None:
    first = await taken(in_queue, "me")
    await tell(in_queue, story, owner="me", epoch=first.session.epoch)
    if not is_dead:
        assert await in_queue.hand_over("run_1", "me")
    await taken(in_queue, "you", is_dead=owners_are_dead)
    run = await in_queue.run("run_1")
    assert run is not None
    assert_counted(run.usage, replies=replies, lost=lost, cut_off=cut_off)
    assert run.turn_count == replies  # the turn that was cut off is taken again


async def test_a_run_that_asks_when_its_process_dies_has_cost_what_its_events_say(
    session: SessionStore,
) -> None:
    await tell(session, "begins asks replies")
    await session.ask(a_question(keeps_run=True))
    assert await judged(session, owners_are_dead).close_lost_runs() == []
    run = await session.run("run_1")
    assert run is not None
    assert (run.status, run.turn_count) == (RunStatus.WAITING, 1)
    assert_counted(run.usage, replies=1, lost=0, cut_off=0)


async def test_events_of_an_earlier_version_and_damaged_ones_close_a_lost_run_too(
    session: SessionStore,
) -> None:
    events = [
        an_event(EventType.MODEL_COMPLETED, {"usage": {"input_tokens": "many"}}),
        an_event(EventType.MODEL_COMPLETED, {"usage": {"input_tokens": 7, "total_tokens": 7}}),
        an_event(EventType.MODEL_STARTED, {"provider": "p", "model": "m"}),
    ]
    await session.append(a_batch(*events, run=RunChange(status=RunStatus.RUNNING)))
    (run,) = await judged(session, owners_are_dead).close_lost_runs()
    assert (run.usage.input_tokens, run.usage.is_estimated) == (7, False)


async def test_a_run_of_its_own_process_is_lost_with_it(in_queue: SessionStore) -> None:
    here = a_queued_opening("run_2", session_id="s2", dispatch={"process": 7})
    opened = await in_queue.queue_run(here)
    assert opened.run.lane == "here/run_2"
    await taken(in_queue, run_id="run_2")
    (lost,) = await judged(in_queue, owners_are_dead).close_lost_runs()
    assert (lost.run_id, lost.status) == ("run_2", RunStatus.FAILED)


async def test_a_queued_run_is_dropped_without_having_begun(in_queue: SessionStore) -> None:
    assert await in_queue.drop_queued("run_1")
    assert not await in_queue.drop_queued("run_1")
    run = await in_queue.run("run_1")
    assert run is not None
    assert run.status is RunStatus.CANCELLED
    events = [event.event_type for event in await in_queue.events_after("run_1", 0)]
    assert events == [EventType.RUN_QUEUED, EventType.RUN_DEQUEUED, EventType.RUN_CANCELLED]
    assert await take(in_queue) is None
    await in_queue.queue_run(a_queued_opening("run_2"))
    await taken(in_queue, run_id="run_2")
    assert not await in_queue.drop_queued("run_2")


async def test_a_run_that_was_taken_is_dropped_by_its_owner_alone(in_queue: SessionStore) -> None:
    await taken(in_queue, "a")
    assert not await in_queue.drop_queued("run_1", taken_by="b")
    assert await in_queue.drop_queued("run_1", taken_by="a")
    session, run = await in_queue.session("s1"), await in_queue.run("run_1")
    assert session is not None
    assert run is not None
    assert (session.owner, run.status) == (None, RunStatus.CANCELLED)
    events = [event.event_type for event in await in_queue.events_after("run_1", 0)]
    assert events[-2:] == [EventType.RUN_DEQUEUED, EventType.RUN_CANCELLED]
    await in_queue.queue_run(a_queued_opening("run_2"))
    await taken(in_queue, "b", run_id="run_2")
    await in_queue.append(a_batch(run_id="run_2", run=RunChange(status=RunStatus.RUNNING)))
    assert not await in_queue.drop_queued("run_2", taken_by="b")


async def test_a_session_is_not_changed_while_a_run_of_it_is_queued(
    in_queue: SessionStore, tmp_path: Path
) -> None:
    found = await taken(in_queue)
    await in_queue.append(
        a_batch(a_node("n1"), active_node_id="n1", run=COMPLETED, release="me", owner="me")
    )
    await in_queue.queue_run(a_queued_opening("run_2"))
    assert found.session.epoch == 2
    moving = a_queued_opening("run_3", cwd=str(tmp_path), move_session=True)
    for change in (
        in_queue.delete_session("s1"),
        in_queue.move_node("s1", a_move("n1")),
        in_queue.queue_run(moving),
    ):
        with pytest.raises(StorageError) as refused:
            await change
        assert refused.value.code is ErrorCode.SESSION_ACTIVE
    await in_queue.drop_queued("run_2")
    await in_queue.queue_run(moving)


async def test_a_session_keeps_its_tenant_and_its_place(
    store: SessionStore,
) -> None:
    await store.queue_run(a_queued_opening(dispatch={"tenant": "acme", "place": "snapshot"}))
    again = await store.queue_run(a_queued_opening("run_2"))
    assert again.run.lane == "default/snapshot/acme/1"
    moved = a_queued_opening("run_3", dispatch={"tenant": "acme", "place": "host:there"})
    with pytest.raises(StorageError) as refused:
        await store.queue_run(moved)
    assert refused.value.code is ErrorCode.SESSION_ELSEWHERE
    with pytest.raises(StorageError) as refused:
        await store.queue_run(a_queued_opening("run_4", dispatch={"tenant": "other"}))
    assert refused.value.code is ErrorCode.VALIDATION_ERROR
    assert await store.run("run_3") is None
    assert await store.run("run_4") is None


async def test_ids_are_in_the_order_of_the_codes_of_their_characters(store: SessionStore) -> None:
    ids = ["z", "B", "a", "_", "1", "Z", ":"]
    for number, each in enumerate(ids):
        await store.open_run(an_opening(each, f"run_{number}"))
    assert await store.ids_beginning("session", "") == sorted(ids)


async def test_grants_and_questions_are_listed_as_they_were_added(session: SessionStore) -> None:
    ids = ["z", "B", "a", "_", "1", "Z", ":"]
    for each in (*ids, "é", "ß", "😀"):
        values: dict[str, Any] = {"tool_name": "t", "covers": "c", "key": each}
        grant = PermissionGrant(grant_id=each, session_id="s1", created_at=utc_now(), **values)
        await session.add_grant(grant)
    for each in ids:
        await session.ask(a_question(each, tool_call_id=each))
    listed = [grant.grant_id for grant in await session.grants("s1")]
    assert listed == [*ids, "é", "ß", "😀"]
    asked = await session.approvals(session_id="s1", limit=3)
    assert [question.request_id for question in asked] == ids[-3:]
    assert [each.request_id for each in await session.approvals(prefix="B", limit=10)] == ["B"]


ODD_TEXTS = {"a NUL": "a\0b", "half a character": "a\ud800b", "an escape": "a\\u0000\\x00b"}


@pytest.mark.long
@pytest.mark.parametrize("name", ODD_TEXTS)
async def test_odd_text_in_json_reads_back_as_it_was(store: SessionStore, name: str) -> None:
    odd = ODD_TEXTS[name]
    tree = {"text": odd, f"key {odd}": [odd, {"deep": odd}]}
    opening = an_opening(
        prompt=RunPrompt(content=[TextBlock(text=odd)]),
        run_metadata=tree,
        session_metadata={**tree, "background_usage": {"title": {"total_tokens": 3, "cost": 0.5}}},
    )
    await store.open_run(opening)
    node = a_node("n1", content=[TextBlock(text=odd)], metadata=tree)
    await store.append(a_batch(node, an_event(payload=tree), active_node_id="n1"))
    change = RunChange(status=RunStatus.COMPLETED, turn_count=1, metadata={"m": tree})
    await store.append(a_batch(a_node("n2", "n1"), run=change))
    await store.add_agent(a_child())
    await store.update_agent("agent_child", result=tree, metadata=tree)

    session, run = await store.session("s1"), await store.run("run_1")
    assert session is not None
    assert run is not None
    assert session.metadata["text"] == odd
    assert run.metadata == {**tree, "m": tree}
    found = await store.node("n1")
    assert found is not None
    assert (found.content, found.metadata) == ([TextBlock(text=odd)], tree)
    events = await store.events_after("run_1", 0)
    assert [event.payload for event in events if event.payload] == [tree]
    child = await store.agent("agent_child")
    assert child is not None
    assert (child.result, child.metadata) == (tree, tree)
    # What the database itself reads of such a text goes on as well.
    assert [cost.known_cost for cost in await store.costs("all")] == [0.5]
    assert len(await store.costs("model")) == 2
    assert list(await store.memory_terms(["run_1", "run_9"])) == ["run_1"]
    assert (await store.session_summaries(limit=5))[0][1] == session.metadata


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_the_scope_of_each_runs_memory_is_known_also_as_older_versions_have_stored_it(
    store: SessionStore,
) -> None:
    older = StoredOptions(max_turns=3)
    stored = {
        "none": None,
        "named": StoredOptions(memory="user:anna"),
        "off": StoredOptions(memory="off"),
        "silent": StoredOptions(max_turns=3),
        "older_off": older.model_copy(update={"memory": False}),
        "older_on": older.model_copy(update={"memory": True}),
    }
    for name, options in stored.items():
        ids = {"session_id": name, "run_id": f"run_{name}", "agent_id": f"agent_{name}"}
        await store.open_run(an_opening(**ids, options=options))
    found = await store.memory_terms([*(f"run_{name}" for name in stored), "run_unknown"])
    assert {run_id: terms.scope for run_id, terms in found.items()} == {
        "run_none": "shared",
        "run_named": "user:anna",
        "run_off": "off",
        "run_silent": "shared",
        "run_older_off": "off",
        "run_older_on": "shared",
    }
    tables = {"table": {"provider": "openai", "name": "m"}, "name": "openai:m"}
    for name, model in tables.items():
        options = StoredOptions(model=model, needs_caller=["model"] if name == "table" else [])
        ids = {"session_id": name, "run_id": f"run_{name}", "agent_id": f"agent_{name}"}
        await store.open_run(an_opening(**ids, options=options))
    models = await store.memory_terms(["run_table", "run_name", "run_none"])
    assert json.loads(models["run_table"].model or "") == tables["table"]
    assert [models[f"run_{name}"].model for name in ("name", "none")] == ["openai:m", None]
    assert {name for name, terms in models.items() if terms.needs_object} == {"run_table"}
    for name, scope in (("named", "user:anna"), ("older_off", "off"), ("older_on", None)):
        run = await store.run(f"run_{name}")
        assert run is not None
        assert run.options is not None
        assert run.options.memory == scope


async def _text_of_artifact(store: SessionStore, odd: str) -> list[str | None]:
    artifact = an_artifact("art_1", kind=odd, path=odd, filename=odd, mime_type=odd, summary=odd)
    await store.add_artifact(artifact)
    found = await store.artifact("art_1")
    assert found is not None
    return [found.kind, found.path, found.filename, found.mime_type, found.summary]


async def _text_of_grant(store: SessionStore, odd: str) -> list[str | None]:
    values: dict[str, Any] = {"tool_name": odd, "covers": odd, "key": "key"}
    grant = PermissionGrant(grant_id="g1", session_id="s1", created_at=utc_now(), **values)
    await store.add_grant(grant)
    (found,) = await store.grants("s1")
    return [found.tool_name, found.covers]


async def test_sessions_of_folders_above_and_below_are_counted(store: SessionStore) -> None:
    folders = ["/", "/a", "/a/b/z", "/a/b", "/a/b/c/d", "/a/b-c", "/a/b0", "/é", "/a/b/c/d", "/ab"]
    for number, folder in enumerate(folders):
        await store.open_run(an_opening(f"s{number}", f"run_{number}", cwd=folder))
    near = await store.sessions_nearby("/a/b", limit=9)
    assert list(near.items()) == [("/a", 1), ("/", 1), ("/a/b/c/d", 2), ("/a/b/z", 1)]
    assert list(await store.sessions_nearby("/a/b", limit=3)) == ["/a", "/", "/a/b/c/d"]
    assert await store.sessions_nearby("/a/b", limit=0) == {}
    assert list(await store.sessions_nearby("/é/\udcff\0", limit=9)) == ["/é", "/"]
    everywhere = list(await store.sessions_nearby("/", limit=99))
    assert everywhere == ["/ab", "/a/b/c/d", "/é", "/a/b0", "/a/b-c", "/a/b", "/a/b/z", "/a"]
    assert list(await store.sessions_nearby("/", limit=2)) == ["/a/b", "/a"]


async def test_the_last_session_is_the_last_one_with_a_complete_reply(
    store: SessionStore,
) -> None:
    cut_off = [{"partial": True, "failed": True}, {"aborted": True}]
    for number, metadata in enumerate([{"stop_reason": "end_turn"}, *cut_off], 1):
        session_id, run_id = f"s{number}", f"run_{number}"
        opened = await store.open_run(an_opening(session_id, run_id))
        ids: dict[str, Any] = {
            "session_id": session_id,
            "run_id": run_id,
            "agent_id": opened.agent.agent_id,
        }
        said = a_node(f"node_{number}", None, role=Role.USER, **ids)
        reply = a_node(f"node_{number}a", f"node_{number}", metadata=metadata, **ids)
        await store.append(a_batch(said, reply, run=COMPLETED, **ids))
    assert await store.last_session() == "s1"
    assert await store.last_session("/no/such/folder") is None
    opening = an_opening("s3", "run_4", status=RunStatus.QUEUED)
    await store.open_run(opening)
    assert await store.last_session() == "s3", "its message is still to be sent"


async def _text_of_answer(store: SessionStore, odd: str) -> list[str | None]:
    await store.ask(a_question(tool_name=odd, access_hash=odd))
    answered, _ = await store.answer("req_1", Decision.ALLOW_ONCE, reason=odd, by=odd, decider=odd)
    assert answered is not None
    texts = [answered.tool_name, answered.access_hash, answered.reason]
    return [*texts, answered.decided_by, answered.decider]


async def _text_of_title(store: SessionStore, odd: str) -> list[str | None]:
    await store.rename_session("s1", odd)
    session = await store.session("s1")
    assert session is not None
    assert [each.title for each, _ in await store.session_summaries(limit=5, query="b")]
    return [session.title]


async def _text_of_folder(store: SessionStore, odd: str) -> list[str | None]:
    opening = an_opening("s2", "run_2", cwd=odd)
    await store.open_run(opening)
    (found,) = await store.session_summaries(limit=5, project=odd)
    assert found[0].session_id == "s2"
    again = an_opening("s2", "run_3", cwd=odd)
    opened = await store.open_run(again)
    return [opened.session.cwd]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "write"),
    paired(
        ODD_TEXTS,
        [_text_of_artifact, _text_of_grant, _text_of_answer, _text_of_title, _text_of_folder],
    ),
)
async def test_odd_text_in_a_column_is_kept_or_refused_and_breaks_nothing(
    session: SessionStore, name: str, write: Callable[..., Awaitable[list[str | None]]]
) -> None:
    odd = ODD_TEXTS[name]
    try:
        texts = await write(session, odd)
    except StorageError as error:
        assert "history does not take this" in error.message  # noqa: PT017 - one or the other
    else:
        escapes = {odd, "a\\x00b", "a\\ud800b"}
        assert set(texts) <= escapes, texts
    assert (await session.append(a_batch(an_event()))).seq > 0
    assert await session.session("s1") is not None


async def test_snapshots_that_every_machine_can_have_go_with_their_session(
    database_url: str,
) -> None:
    async with PostgresSessionStore.open(database_url) as opened:
        store = judged(opened, owners_are_dead)
        for name in ("s1", "s2"):
            await store.open_run(an_opening(name, f"run_{name}"))
        with closing(PostgresBlobs(database_url, None)) as blobs:
            for name in ("s1", "s2"):
                blobs.share_snapshot(name, "snap_1", about="{}", blobs=[])
            await store.delete_session("s1")
            assert blobs.last_shared("s1") is None
            assert blobs.last_shared("s2") == ("snap_1", "{}")


async def test_a_request_is_held_until_it_is_answered_or_its_process_is_gone(
    store: SessionStore, clock: Clock
) -> None:
    minute, day = timedelta(minutes=1), timedelta(hours=24)

    async def begin(holder: str, digest: str = "d") -> tuple[str, str | None] | None:
        found = await store.begin_request("k", digest, holder=holder, lease=minute)
        return None if found is None else (found.digest, found.answer)

    assert await begin("one") is None
    assert await begin("two", "other") == ("d", None)
    clock.ahead = timedelta(seconds=50)
    await store.hold_requests(["k"], holder="two", lease=day)  # it does not hold it
    await store.hold_requests(["k"], holder="one", lease=minute)
    clock.ahead = timedelta(seconds=100)
    assert await begin("two") == ("d", None)
    clock.ahead = timedelta(seconds=111)  # one has died
    assert await begin("two", "other") is None
    await store.keep_answer("k", "late", holder="one", lasts=day)
    await store.drop_request("k", holder="one")
    assert await begin("three") == ("other", None)
    await store.keep_answer("k", "first", holder="two", lasts=day)
    await store.drop_request("k", holder="two")
    clock.ahead += timedelta(hours=23)
    assert await begin("three", "other") == ("other", "first")
    clock.ahead += timedelta(hours=2)
    assert await begin("three") is None
    await store.drop_request("k", holder="three")
    assert await begin("four") is None

"""When a summary is tried again, and by whom one that is ready is written."""

import asyncio
from datetime import timedelta

import pytest

from agent_core.compact.compactor import Compaction
from agent_core.events import SessionJournal
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction.redactor import JournalRedactor, Redactor
from agent_core.runtime import background
from agent_core.runtime.background import (
    CompactionPauses,
    PendingCompaction,
    PendingCompactions,
)
from agent_core.types import EventType, NodeMove, NodeType, SessionRecord, user_text, utc_now
from judging import judged, owners_are_dead
from loop_parts import Session


def session_journal(session: Session) -> SessionJournal:
    return SessionJournal(session.store, JournalRedactor(Redactor({})), estimate_blocks)


async def covered(session: Session) -> PendingCompaction:
    path = await session.active_path()
    summary = user_text("in short", NodeType.COMPACTION)
    compaction = Compaction(draft=summary, tokens=2)
    return PendingCompaction(path, path[-1].agent_id, {"reason": "background"}, compaction)


async def test_a_summary_that_is_ready_between_runs_is_written_at_once() -> None:
    session = Session(["one"])
    await session.run()
    pending = PendingCompactions(session.store, session_journal(session))
    work = await covered(session)
    pending.begin("s1", work)
    await pending.deliver("s1", work)
    assert work.settled
    assert (await session.active_path())[-1].node_type is NodeType.COMPACTION


async def test_a_summary_that_is_ready_during_a_run_waits_for_its_next_request() -> None:
    session = Session(["one", "two"])
    await session.run()
    pending = PendingCompactions(session.store, session_journal(session))
    work = await covered(session)
    ctx = await session.start()
    await pending.join(ctx.journal)
    await ctx.history.resume(ctx.journal)
    pending.begin("s1", work)
    delivering = asyncio.create_task(pending.deliver("s1", work))
    await asyncio.sleep(0.01)
    assert not delivering.done()
    assert pending.take(ctx.journal)
    await delivering
    assert ctx.journal.path[-1].node_type is NodeType.COMPACTION


async def test_a_summary_of_a_path_that_was_left_is_stale() -> None:
    session = Session(["one", "two"])
    await session.run("first")
    first = (await session.active_path())[0]
    work = await covered(session)
    move = NodeMove(node_id=first.node_id, folder="")
    await judged(session.store, owners_are_dead).move_node("s1", move)
    pending = PendingCompactions(session.store, session_journal(session))
    pending.begin("s1", work)
    await pending.deliver("s1", work)
    ends = [e for e in await session.events() if e.event_type is EventType.COMPACT_COMPLETED]
    assert [event.payload["stale"] for event in ends] == [True]
    assert (await session.active_path())[-1].node_id == first.node_id


async def stored_session(session: Session) -> SessionRecord:
    stored = await session.store.session("s1")
    assert stored is not None
    return stored


async def test_pauses_grow_outlive_the_process_and_end_with_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session(["one"])
    await session.run()
    now = utc_now()
    monkeypatch.setattr(background, "utc_now", lambda: now)
    pauses = CompactionPauses(session_journal(session))
    pauses.load(await stored_session(session))
    assert pauses.is_over("s1")
    await pauses.failed("s1")
    await pauses.failed("s1")
    later = CompactionPauses(session_journal(session))
    later.load(await stored_session(session))
    assert not later.is_over("s1")
    now += timedelta(seconds=31)
    assert not later.is_over("s1")
    now += timedelta(seconds=30)
    assert later.is_over("s1")
    await later.succeeded("s1")
    assert "compact_pause" not in (await stored_session(session)).metadata

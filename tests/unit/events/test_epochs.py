"""A runtime that was believed dead and replaced cannot add to history any more."""

import pytest

from agent_core.errors import ErrorCode, StorageError
from agent_core.events import EventStream, HeldSession, Journal
from agent_core.redaction import Redactor
from agent_core.redaction.redactor import JournalRedactor
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import (
    ClaimedRun,
    EventType,
    RunIdentity,
    RunPrompt,
    RunStatus,
    TextBlock,
    user_text,
)
from judging import judged, owners_are_dead
from rows import an_opening


def journal_of(opened: ClaimedRun, store: SqliteSessionStore) -> Journal:
    return Journal(
        RunIdentity(
            session_id=opened.run.session_id,
            agent_id=opened.run.agent_id,
            run_id=opened.run.run_id,
        ),
        store=store,
        stream=EventStream(),
        redactor=JournalRedactor(Redactor({})),
        estimate=lambda blocks: 1,
        held=HeldSession("me", opened.session.epoch),
    )


async def test_a_run_of_an_earlier_epoch_fails_even_if_its_owner_has_the_session_again() -> None:
    store = SqliteSessionStore.in_memory()
    prompt = RunPrompt(content=[TextBlock(text="go on")])
    opening = an_opening(status=RunStatus.QUEUED, prompt=prompt)
    stale = journal_of(await store.open_run(opening), store)
    other = an_opening(run_id="run_2", owner="you")
    await judged(store, owners_are_dead).open_run(other)
    await store.release("s1", "you")
    again = await judged(store, owners_are_dead).open_run(an_opening(run_id="run_3"))
    current = journal_of(again, store)

    stale.begin()
    stale.add(user_text("go on"))
    with pytest.raises(StorageError) as refused:
        await stale.commit()
    assert refused.value.code is ErrorCode.SESSION_ACTIVE
    assert stale.failure is refused.value
    assert stale.path == []

    current.note(EventType.LOOP_STARTED)
    await current.commit()
    assert (await store.run_history("run_1")).nodes == []
    assert len((await store.run_history("run_3")).events) == 1

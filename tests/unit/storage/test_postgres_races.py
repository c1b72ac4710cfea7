"""Several processes on one database: each thing happens once, and numbers have no gaps."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import psycopg
import pytest

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.types import (
    ApprovalState,
    BudgetHold,
    BudgetScope,
    Claim,
    ClaimedRun,
    Decision,
    SessionNote,
)
from judging import judged, owners_are_dead
from rows import a_batch, a_node, a_question, an_event, an_opening

WRITERS = 8


def dead(owner: str, lease: object) -> bool:
    return True


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[list[PostgresSessionStore]]:
    """Stores as eight processes have them: no connection is shared."""
    async with AsyncExitStack() as stack:
        opening = [PostgresSessionStore.open(database_url) for _ in range(WRITERS)]
        yield [await stack.enter_async_context(one) for one in opening]


async def test_one_of_those_that_create_a_session_at_once_gets_it(
    stores: list[PostgresSessionStore],
) -> None:
    for turn in range(5):
        session = f"s{turn}"
        openings = [
            an_opening(session, f"run_{turn}_{n}", owner=f"own_{n}", agent_id=f"agent_{turn}_{n}")
            for n in range(WRITERS)
        ]
        outcomes = await asyncio.gather(
            *(store.open_run(opening) for store, opening in zip(stores, openings, strict=True)),
            return_exceptions=True,
        )
        opened = [each for each in outcomes if isinstance(each, ClaimedRun)]
        refused = [each for each in outcomes if isinstance(each, StorageError)]
        assert len(opened) == 1
        assert {each.code for each in refused} == {ErrorCode.SESSION_ACTIVE}
        assert len(refused) == WRITERS - 1
        assert [run.run_id for run in await stores[0].runs(session)] == [opened[0].run.run_id]
        assert len(await stores[0].agents(session)) == 1


@pytest.mark.long
async def test_eight_writers_of_one_session_leave_no_gap(
    stores: list[PostgresSessionStore],
) -> None:
    await stores[0].open_run(an_opening())

    async def write(store: PostgresSessionStore, writer: int) -> None:
        for i in range(15):
            if i % 5 == 4:
                await store.note(SessionNote(session_id="s1", events=[an_event()]))
            else:
                await store.append(a_batch(an_event(), a_node(f"n_{writer}_{i}")))

    await asyncio.gather(*(write(store, n) for n, store in enumerate(stores)))

    page = await stores[0].page("s1", limit=10_000)
    assert [event.seq for event in page.events] == list(range(1, len(page.events) + 1))
    of_run = await stores[0].events_after("run_1", 0, limit=10_000)
    assert [event.run_seq for event in of_run] == list(range(1, WRITERS * 24 + 1))
    assert sorted(node.node_seq for node in page.nodes) == list(range(1, WRITERS * 12 + 1))


async def test_writes_of_one_session_keep_the_order_of_the_calls(
    stores: list[PostgresSessionStore],
) -> None:
    for number in range(5):
        opening = an_opening(f"s{number}", f"run_{number}")
        await stores[0].open_run(opening)
    appending = [
        stores[0].append(a_batch(an_event(), session_id=f"s{n}", run_id=f"run_{n}"))
        for _ in range(30)
        for n in range(5)
    ]
    seqs = [(await each).seq for each in appending]
    for number in range(5):
        assert seqs[number::5] == list(range(1, 31))


async def test_no_more_is_reserved_than_there_is(stores: list[PostgresSessionStore]) -> None:
    await stores[0].open_run(an_opening())
    scope = BudgetScope(kind="session", scope_id="s1", limits={"turns": 20})

    async def reserve(store: PostgresSessionStore, writer: int) -> int:
        granted = 0
        for i in range(5):
            hold = BudgetHold(
                hold_id=f"hold_{writer}_{i}",
                session_id="s1",
                run_id="run_1",
                agent_id="agent_s1",
                scopes=[scope],
                fixed={"turns": 1},
            )
            grant = await store.reserve_budget(hold)
            if grant.refused_by is None:
                granted += 1
                await store.settle_budget(hold.hold_id, {"turns": 1})
        return granted

    granted = await asyncio.gather(*(reserve(store, n) for n, store in enumerate(stores)))

    assert sum(granted) == 20
    (use,) = await stores[0].budget_uses(["s1"])
    assert (use.spent["turns"], use.reserved.get("turns", 0)) == (20, 0)


@pytest.mark.long
async def test_the_first_answer_counts_and_is_the_only_one(
    stores: list[PostgresSessionStore],
) -> None:
    await stores[0].open_run(an_opening())
    for turn in range(5):
        question = a_question(f"req_{turn}", tool_call_id=f"call_{turn}")
        asked = await asyncio.gather(*(store.ask(question) for store in stores))
        assert {each.request_id for each in asked} == {question.request_id}
        answers = await asyncio.gather(
            *(
                store.answer(
                    question.request_id,
                    Decision.ALLOW_ONCE,
                    reason=None,
                    by="sdk",
                    decider=f"user {n}",
                )
                for n, store in enumerate(stores)
            )
        )
        (won,) = [answered for answered, is_answer in answers if is_answer]
        assert won is not None
        stored = await stores[0].approval(question.request_id)
        assert stored is not None
        assert (stored.state, stored.decider) == (ApprovalState.ANSWERED, won.decider)


async def test_one_of_those_that_take_a_dead_owners_session_gets_it(
    stores: list[PostgresSessionStore],
) -> None:
    await stores[0].open_run(an_opening(owner="dead"))
    epoch = 1

    def only_that_one_is_dead(owner: str, lease: object) -> bool:
        return owner == "dead"

    closing = [judged(store, only_that_one_is_dead).close_lost_runs() for store in stores]
    lost = await asyncio.gather(*closing)
    assert sum(map(len, lost)) == 1
    taking = [
        judged(store, only_that_one_is_dead).open_run(
            an_opening(run_id=f"run_new_{n}", owner=f"own_{n}")
        )
        for n, store in enumerate(stores)
    ]
    outcomes = await asyncio.gather(*taking, return_exceptions=True)
    (opened,) = [each for each in outcomes if isinstance(each, ClaimedRun)]
    assert opened.session.epoch > epoch
    with pytest.raises(StorageError) as caught:
        await stores[0].append(a_batch(an_event(), epoch=epoch))
    assert caught.value.code is ErrorCode.SESSION_ACTIVE
    assert len(await stores[0].events_after("run_1", 0)) == 1  # its end, as lost


async def test_an_owner_whose_epoch_is_over_writes_nothing_whatever_it_writes(
    stores: list[PostgresSessionStore],
) -> None:
    old, new = stores[:2]
    first = await old.open_run(an_opening(owner="old"))
    await judged(new, owners_are_dead).open_run(an_opening(run_id="run_2", owner="new"))
    epoch = first.session.epoch
    before = await new.page("s1")
    for batch in (
        a_batch(an_event()),
        a_batch(a_node("n1"), active_node_id="n1"),
        a_batch(an_event(), epoch=epoch),
        a_batch(an_event(), owner="old"),
        a_batch(a_node("n2"), owner="old", release="old"),
    ):
        with pytest.raises(StorageError) as caught:
            await old.append(batch)
        assert caught.value.code is ErrorCode.SESSION_ACTIVE
    with pytest.raises(StorageError):
        await old.add_run(
            (await new.runs("s1"))[0].model_copy(update={"run_id": "run_3"}), claim=Claim("old")
        )
    assert await new.page("s1") == before


async def test_those_that_open_an_empty_database_at_once_make_its_tables_once(
    empty_database_url: str,
) -> None:
    async def use(number: int) -> None:
        async with PostgresSessionStore.open(empty_database_url) as store:
            opening = an_opening(f"s{number}", f"run_{number}")
            await store.open_run(opening)

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, use(number)) for number in range(4)))

    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (4,)
        versions = "SELECT count(*), count(DISTINCT version) FROM schema_migrations"
        applied = connection.execute(versions).fetchone()
        assert applied is not None
        assert applied[0] == applied[1] > 0

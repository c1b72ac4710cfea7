"""What a step of a run waits for is counted in round trips, not in time."""

from collections.abc import Awaitable, Callable

import pytest

from agent_core.storage.postgres import PostgresSessionStore
from agent_core.types import Batch, Claim, Dispatch, NewRun, RunChange, RunStatus
from postgres import Server
from rows import a_batch, a_node, an_event, an_opening
from tcp_proxy import Proxy

Step = Callable[[PostgresSessionStore, int], Awaitable[object]]

STEPS: dict[str, Step] = {
    "a batch": lambda s, n: s.append(a_batch(a_node(f"n{n}"), an_event(), an_event())),
    "a batch of the session's path": lambda s, n: s.append(
        a_batch(a_node(f"p{n}"), an_event(), active_node_id=f"p{n}")
    ),
    "a run read": lambda s, n: s.run("run_1"),
    "a session read": lambda s, n: s.session("s1"),
    "events read": lambda s, n: s.events_after("run_1", 1),
    "the answer read": lambda s, n: s.run_nodes("run_1"),
}


def queued(number: int, session_id: str | None = None) -> NewRun:
    dispatch = Dispatch(queue="default", home="host:here")
    return an_opening(session_id or f"q{number}", f"run_q{number}", dispatch=dispatch)


def ended(number: int) -> Batch:
    """The last batch of a run, with which its job goes."""
    return Batch(
        session_id=f"q{number}",
        agent_id=f"agent_q{number}",
        run_id=f"run_q{number}",
        events=[an_event()],
        run=RunChange(status=RunStatus.COMPLETED),
        owner="me",
        release="me",
    )


async def queue(store: PostgresSessionStore, number: int) -> None:
    await store.queue_run(queued(number))


async def take(store: PostgresSessionStore, number: int) -> None:
    run_id = f"run_q{number}"
    assert await store.take_run(run_id, Claim("me"), max_takeovers=3)


async def queue_and_take(store: PostgresSessionStore, number: int) -> None:
    await queue(store, number)
    await take(store, number)


async def nothing(store: PostgresSessionStore, number: int) -> None:
    pass


WORKERS_STEPS: dict[str, tuple[int, int, Step, Step]] = {
    "a first message queued": (11, 2, nothing, queue),
    "a message queued in a session": (
        11,
        3,
        nothing,
        lambda s, n: s.queue_run(queued(n, "s1")),
    ),
    "a run claimed": (8, 2, queue, take),
    "its end stored": (3, 1, queue_and_take, lambda s, n: s.append(ended(n))),
    "the lease of its session extended": (6, 3, queue_and_take, lambda s, _: s.heartbeat("me")),
}
"""How many statements and round trips they may take, what goes before them, and what they are."""


async def least(proxy: Proxy, url: str, before: Step, step: Step) -> tuple[int, int]:
    """The fewest statements and round trips of some repetitions."""
    taken: list[tuple[int, int]] = []
    async with PostgresSessionStore.open(url) as store:
        await store.open_run(an_opening())
        for number in range(20):  # the first one of a connection also opens and prepares
            await before(store, number)
            executed, asked = proxy.executed, proxy.asked
            await step(store, number)
            taken.append((proxy.executed - executed, proxy.asked - asked))
    return min(taken)


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
async def test_a_step_takes_one_statement_and_one_round_trip(
    shared_postgres: Server, database_url: str, step: str
) -> None:
    with Proxy.in_thread(shared_postgres.port) as proxy:
        url = shared_postgres.url(database_url.rpartition("/")[2], port=proxy.port)
        assert await least(proxy, url, nothing, STEPS[step]) == (1, 1)


@pytest.mark.long
@pytest.mark.parametrize("name", WORKERS_STEPS)
async def test_what_a_run_through_a_worker_adds_is_sent_together(
    shared_postgres: Server, database_url: str, name: str
) -> None:
    statements, trips, before, step = WORKERS_STEPS[name]
    with Proxy.in_thread(shared_postgres.port) as proxy:
        url = shared_postgres.url(database_url.rpartition("/")[2], port=proxy.port)
        executed, asked = await least(proxy, url, before, step)
        assert executed == statements
        assert asked <= trips  # fewer where an answer overtakes what is still being sent


async def test_a_run_is_taken_from_the_queue_in_one_statement_of_a_transaction(
    shared_postgres: Server, database_url: str
) -> None:
    with Proxy.in_thread(shared_postgres.port) as proxy:
        url = shared_postgres.url(database_url.rpartition("/")[2], port=proxy.port)
        async with PostgresSessionStore.open(url) as worker:
            turns = worker.queue(30)

            async def fetch(store: PostgresSessionStore, number: int) -> None:
                assert await turns.fetch_next(lambda lane: True)

            executed, asked = await least(proxy, url, queue, fetch)
            assert executed == 3
            assert asked <= 2

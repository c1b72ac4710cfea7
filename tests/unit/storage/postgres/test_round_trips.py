"""What a step of a run waits for is counted in round trips, not in time."""

from collections.abc import Awaitable, Callable

import pytest

from agent_core.storage.postgres import PostgresSessionStore
from postgres import Server
from rows import a_batch, a_node, an_event, an_opening
from tcp_proxy import Proxy

STEPS: dict[str, Callable[[PostgresSessionStore, int], Awaitable[object]]] = {
    "a batch": lambda s, n: s.append(a_batch(a_node(f"n{n}"), an_event(), an_event())),
    "a batch of the session's path": lambda s, n: s.append(
        a_batch(a_node(f"p{n}"), an_event(), active_node_id=f"p{n}")
    ),
    "a run read": lambda s, n: s.run("run_1"),
    "a session read": lambda s, n: s.session("s1"),
    "events read": lambda s, n: s.events_after("run_1", 1),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_step_takes_one_round_trip(
    shared_postgres: Server, database_url: str, step: str
) -> None:
    with Proxy.in_thread(shared_postgres.port) as proxy:
        url = shared_postgres.url(database_url.rpartition("/")[2], port=proxy.port)
        async with PostgresSessionStore.open(url) as store:
            await store.open_run(an_opening(), is_dead=lambda owner, is_over: False)
            taken: list[int] = []
            for number in range(20):  # the first one of a connection also opens and prepares
                before = proxy.asked
                await STEPS[step](store, number)
                taken.append(proxy.asked - before)

    assert min(taken) == 1, taken

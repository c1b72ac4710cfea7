"""Work whose connection fails is done on another one, for about a minute of being awake."""

import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.postgres.connections import attempts
from rows import a_batch, a_node, an_event, an_opening

Step = Callable[[PostgresSessionStore, int], Awaitable[object]]

STEPS: dict[str, Step] = {
    "a run opened": lambda s, n: s.open_run(an_opening(f"o{n}", f"run_o{n}")),
    "a batch": lambda s, n: s.append(a_batch(a_node(f"n{n}"), an_event())),
    "a batch of the session's path": lambda s, n: s.append(
        a_batch(a_node(f"p{n}"), an_event(), active_node_id=f"p{n}")
    ),
    "a run read": lambda s, n: s.run("run_1"),
    "a path read": lambda s, n: s.path("first"),
    "a lease extended": lambda s, n: s.heartbeat("me"),
}
HOW = {"nothing goes out": socket.SHUT_WR, "nothing comes in": socket.SHUT_RD, "both": 2}


def break_sockets(store: PostgresSessionStore, how: int) -> None:
    """What the kernel does to a connection: its owner learns of it when it is used."""
    for link in store._threads._links:
        with socket.socket(fileno=os.dup(link.connection.fileno())) as there, suppress(OSError):
            there.shutdown(how)  # one that nothing has used since is shut down already


@pytest.mark.long
@pytest.mark.parametrize("how", HOW)
async def test_a_step_whose_socket_fails_is_done_on_another_connection(
    how: str, database_url: str
) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        await store.open_run(an_opening())
        await store.append(a_batch(a_node("first")))
        for number, step in enumerate([*STEPS.values(), *STEPS.values()]):
            break_sockets(store, HOW[how])
            await step(store, number)


class Clock:
    """Time that passes only where it is said to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_server_that_is_away_is_tried_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    tries = list(attempts(wait=clock.wait))
    assert tries == [False] * (len(tries) - 1) + [True]
    assert 58 < clock.now < 60
    assert 60 < len(tries) < 70


@pytest.mark.parametrize(("attempt_s", "most"), [(45, 2), (100, 4)], ids=["silent", "suspended"])
def test_attempts_that_take_long_have_an_end(
    attempt_s: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    tries = 0
    for is_last in attempts(wait=clock.wait):
        clock.now += attempt_s
        tries += not is_last
    assert tries == most


def test_a_process_that_was_suspended_tries_on_when_it_wakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    woke_at, after = 0.0, 0
    for number, _ in enumerate(attempts(wait=clock.wait)):
        if number == 10:
            woke_at = clock.now = clock.now + 3_600
        after += woke_at > 0
    assert after > 10
    assert clock.now - woke_at > 30

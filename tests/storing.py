"""Programs that use a session database the hard way; tests start, kill and starve them.

Run as `python tests/storing.py <program> <database> [argument]`. What a program has been promised
it says on stdout, one line each, at once.
"""

import asyncio
import os
import resource
import signal
import sqlite3
import sys
import time
from pathlib import Path

from agent_core.errors import StorageError
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import Batch, EventType, PendingEvent
from judging import judged, owners_are_dead
from rows import a_batch, a_node, an_event, an_opening


def say(line: object) -> None:
    os.write(1, f"{line}\n".encode())


def step(session_id: str, i: int) -> Batch:
    """A turn of a session: two events and a node under the one before it."""
    run_id = f"run_{session_id}"
    rows: list[PendingEvent] = [an_event(payload={"i": i}), an_event(EventType.MODEL_COMPLETED)]
    node = a_node(
        f"{session_id}_{i}",
        f"{session_id}_{i - 1}" if i else None,
        session_id=session_id,
        run_id=run_id,
    )
    return a_batch(*rows, node, session_id=session_id, run_id=run_id, active_node_id=node.node_id)


async def append(path: Path, session_id: str) -> None:
    """Store steps until killed, several on their way at a time; say each that is stored."""
    async with SqliteSessionStore.open(path) as store:
        opening = an_opening(session_id, f"run_{session_id}")
        await judged(store, owners_are_dead).open_run(opening)
        say("open")
        for i in range(0, 1_000_000, 4):
            waiting = [store.append(step(session_id, i + offset)) for offset in range(4)]
            for offset, written in enumerate(waiting):
                await written
                say(i + offset)


async def make(path: Path, session_id: str) -> None:
    """Wait for a line, then make the database and store steps until killed."""
    say("ready")
    sys.stdin.readline()
    await append(path, session_id)


async def append_some(path: Path, session_id: str) -> None:
    """Store a hundred steps, one after the other."""
    async with SqliteSessionStore.open(path) as store:
        opening = an_opening(session_id, f"run_{session_id}")
        await judged(store, owners_are_dead).open_run(opening)
        for i in range(100):
            await store.append(step(session_id, i))
    say("done")


def hold(path: Path, seconds: str) -> None:
    """Keep every other writer out for a while."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("held")
    time.sleep(float(seconds))
    connection.execute("ROLLBACK")
    connection.close()


def open_at_once(path: Path, count: str) -> None:
    """Open a database that does not exist yet from many processes in the same moment."""
    ready, start = os.pipe()
    children: list[int] = []
    for number in range(int(count)):
        child = os.fork()
        if child == 0:
            os.close(start)
            os.read(ready, 1)  # returns when the parent closes its end
            os._exit(asyncio.run(_open_one(path, f"s{number}")))
        children.append(child)
    os.close(start)
    say([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])


async def _open_one(path: Path, session_id: str) -> int:
    try:
        async with SqliteSessionStore.open(path) as store:
            opening = an_opening(session_id, f"run_{session_id}")
            await store.open_run(opening)
            await store.append(step(session_id, 0))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        say(repr(error))
        return 1
    return 0


async def outgrow(path: Path, _argument: str) -> None:
    """Meet a limit on file size, say what fails and what is kept, then have room again."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with SqliteSessionStore.open(path) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        stored = 0
        try:
            while True:
                await store.append(step("s1", stored))
                stored += 1
        except StorageError as error:
            say(f"{error.code} {error.retryable} {error}")
        say(stored)
        say([node.node_id for node in await store.path(f"s1_{stored - 1}")] == names(stored))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await store.append(step("s1", stored))
        say([node.node_id for node in await store.path(f"s1_{stored}")] == names(stored + 1))


def names(count: int) -> list[str]:
    return [f"s1_{i}" for i in range(count)]


async def starve(path: Path, _argument: str) -> None:
    """Run out of file descriptors: say what fails, then go on when there are some again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with SqliteSessionStore.open(path) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await store.session("s1")
        except StorageError as error:
            say(f"{error.code} {error}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        say((await store.session("s1")) is not None)


PROGRAMS = {
    "append": append,
    "make": make,
    "append_some": append_some,
    "outgrow": outgrow,
    "starve": starve,
}


if __name__ == "__main__":
    program, database, argument = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    match program:
        case "hold":
            hold(database, argument)
        case "open_at_once":
            open_at_once(database, argument)
        case _:
            asyncio.run(PROGRAMS[program](database, argument))

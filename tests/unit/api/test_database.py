"""Whether a database responds, and what the log says while it does not."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from agent_core.api.database import Database
from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.erasing import erase_deleted
from agent_core.storage.sqlite import SqliteSessionStore


class Store:
    """A store that fails with each of these reasons in turn, and then responds."""

    def __init__(self, *reasons: str) -> None:
        self._reasons = list(reasons)

    async def respond(self, *, to_writes: bool) -> None:
        if self._reasons and not to_writes:
            raise StorageError(ErrorCode.STORAGE_ERROR, self._reasons.pop(0))


async def test_the_log_says_once_why_it_does_not_respond(caplog: pytest.LogCaptureFixture) -> None:
    store = cast("Any", Store("the disk is broken", "the disk is broken", "no more"))

    async def opened() -> Any:
        return store

    database = Database(opened, lambda: store)
    with caplog.at_level(logging.INFO):
        answers = [await database.responds() for _ in range(2)]
        assert await database.responds(to_writes=True)  # does not end the outage of what reads
        answers += [await database.responds() for _ in range(3)]
    assert answers == [False, False, False, True, True]
    levels = [
        (each.levelname, "the disk is broken" in each.getMessage()) for each in caplog.records
    ]
    assert levels == [("WARNING", True), ("INFO", False)]


SOON_S = 10.0
"""Less than what holds the database in these tests takes, and enough for a busy machine."""


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[tuple[Database, SqliteSessionStore]]:
    """Open a file of sessions, and ask it once."""
    async with SqliteSessionStore.open(path, patience=5) as store:

        async def the_store() -> SqliteSessionStore:
            return store

        database = Database(the_store, lambda: store)
        assert await database.responds(to_writes=True)
        yield database, store


@contextmanager
def holding() -> Generator[tuple[threading.Event, threading.Event, Any]]:
    """Yield an event for a job that has begun, one that ends it, and the job."""
    has_begun, may_end = threading.Event(), threading.Event()

    def work(connection: Any) -> None:
        connection.execute("SELECT count(*) FROM sessions").fetchone()
        has_begun.set()
        assert may_end.wait(30)

    try:
        yield has_begun, may_end, work
    finally:
        may_end.set()


@pytest.mark.parametrize("by", ["the same runtime", "another runtime"])
async def test_a_database_in_which_this_process_writes_for_long_responds(
    tmp_path: Path, by: str
) -> None:
    path = tmp_path / "sessions.sqlite"
    async with opened(path) as (database, store), opened(path) as (_, another):
        with holding() as (has_begun, may_end, work):
            writing = (store if by == "the same runtime" else another).writer.submit(work)
            await asyncio.to_thread(has_begun.wait)
            for _ in range(2):
                assert await database.responds(to_writes=True, within_s=SOON_S)
            assert not writing.done()
            may_end.set()
            await writing


async def test_a_database_that_a_stranger_has_locked_does_not_take_writes(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    async with opened(path) as (database, store):
        with closing(sqlite3.connect(path, isolation_level=None)) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            writing = store.writer.submit(lambda _: None)  # waits, and is no sign of life
            assert not await database.responds(to_writes=True, within_s=0.3)
            assert await database.responds(within_s=SOON_S)
            stranger.execute("ROLLBACK")
            await writing
        assert await database.responds(to_writes=True)


async def test_a_database_that_this_process_rewrites_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_core.storage.erasing._STEPS", 1)
    path = tmp_path / "sessions.sqlite"
    has_begun, may_end = threading.Event(), threading.Event()

    def is_awaited() -> bool:
        has_begun.set()
        assert may_end.wait(30)
        return False

    async with opened(path) as (database, _):
        rewriting = asyncio.create_task(
            asyncio.to_thread(
                erase_deleted, path, patience=5, stop=threading.Event(), is_awaited=is_awaited
            )
        )
        await asyncio.to_thread(has_begun.wait)
        try:
            assert await database.responds(to_writes=True, within_s=SOON_S)
            assert not rewriting.done()
        finally:
            may_end.set()
        await rewriting


async def test_a_database_in_which_this_process_reads_for_long_responds(tmp_path: Path) -> None:
    async with opened(tmp_path / "sessions.sqlite") as (database, store):
        with holding() as (has_begun, may_end, work):
            reading = [asyncio.create_task(store.reader.read(work)) for _ in range(9)]
            await asyncio.to_thread(has_begun.wait)
            assert await database.responds(within_s=SOON_S)
            may_end.set()
            await asyncio.gather(*reading)

import asyncio
import errno
import gc
import os
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agcore.memory.store import SqliteStore
from agent_core.storage import connections
from agent_core.storage.connections import create_database_file, open_in_memory, open_writer
from posix_locks import locks_of, needs_locks


@needs_locks
def test_a_second_opening_in_one_process_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    first = open_writer(path)
    first.execute("SELECT count(*) FROM sqlite_master").fetchone()
    before = locks_of(path)
    assert before

    second = open_writer(path)
    during = locks_of(path)
    second.close()

    assert before <= during
    assert locks_of(path) == before
    first.close()


@needs_locks
async def test_a_second_opening_of_a_memory_store_keeps_the_locks_of_the_first(
    tmp_path: Path,
) -> None:
    path = tmp_path / "memory.db"
    async with await SqliteStore.open(path) as first:
        await first.list()
        before = locks_of(path)
        assert before

        async with await SqliteStore.open(path) as second:
            await second.list()

        assert before <= locks_of(path)


@pytest.mark.parametrize("create", [open_writer, create_database_file])
def test_a_new_database_is_readable_for_its_user_alone(
    create: Callable[[Path], object], tmp_path: Path
) -> None:
    made = create(tmp_path / "new.db")

    assert stat.S_IMODE((tmp_path / "new.db").stat().st_mode) == 0o600
    if isinstance(made, sqlite3.Connection):
        made.close()


def test_a_link_to_a_missing_file_creates_the_file_for_its_user_alone(tmp_path: Path) -> None:
    (tmp_path / "linked.db").symlink_to(tmp_path / "target.db")

    open_writer(tmp_path / "linked.db").close()

    assert stat.S_IMODE((tmp_path / "target.db").stat().st_mode) == 0o600


def test_a_folder_in_the_place_of_the_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "sessions.db").mkdir()

    with pytest.raises(IsADirectoryError) as caught:
        create_database_file(tmp_path / "sessions.db")
    assert caught.value.errno == errno.EISDIR


def test_an_existing_file_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    before = path.read_bytes()

    create_database_file(path)

    assert path.read_bytes() == before


def in_a_forked_process(work: Callable[[], object]) -> str:
    """Do something in a forked process, and return what it has returned or raised."""
    gc.collect()  # a connection that another test has left behind would count as in use
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(work())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            said = repr(error)
        os.write(writable, said.encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@needs_locks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_process_locks_a_memory_store_itself(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"

    async def open_again() -> int:
        async with await SqliteStore.open(path) as store:
            await store.list()
            return len(locks_of(path, pid=os.getpid()))

    async with await SqliteStore.open(path) as store:
        await store.list()
        before = locks_of(path)
        assert in_a_forked_process(lambda: asyncio.run(open_again())) == "2"
        assert locks_of(path) == before


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_process_is_refused_the_store_of_its_parent(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "memory.db") as store:
        await store.list()

        async def use(work: Callable[[], Awaitable[object]]) -> None:
            await asyncio.wait_for(work(), timeout=20)

        for work in (store.list, lambda: store.delete("any")):
            said = in_a_forked_process(lambda work=work: asyncio.run(use(work)))
            assert "opened before this process was forked" in said
        assert in_a_forked_process(lambda: asyncio.run(use(store.close))) == "None"
        assert await store.list() == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_was_forked_in_the_middle_of_a_query_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_FORK_WAIT_S", 0.01)
    path = tmp_path / "sessions.db"
    with closing(open_writer(path)):  # nothing says that it rests
        said = in_a_forked_process(lambda: open_writer(path))
        assert "forked while" in said
        assert "spawn" in said
        open_writer(path).close()
    assert in_a_forked_process(lambda: open_writer(path).close()) == "None"


class WithoutCopies(sqlite3.Connection):
    """A connection of a Python that was built without these methods."""

    def __getattribute__(self, name: str) -> Any:
        if name in {"serialize", "deserialize"}:
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("kind", [sqlite3.Connection, WithoutCopies])
def test_a_second_database_in_memory_is_like_the_first_and_apart_from_it(
    kind: type[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_empty", {})
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=kind))
    tables = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    with closing(open_in_memory()) as first, closing(open_in_memory()) as second:
        assert [*map(tuple, first.execute(tables))] == [*map(tuple, second.execute(tables))]
        first.execute("CREATE TABLE of_the_first (a)")
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            second.execute("SELECT a FROM of_the_first")

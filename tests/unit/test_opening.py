"""Files of a database that is open here are opened by nothing else in this process."""

import asyncio
import gc
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from agcore.memory.store import SqliteStore
from agent_core.opening import (
    DatabaseInUseError,
    open_binary,
    open_descriptor,
    read_bytes,
    read_text,
    refuse_database,
    refuse_open_database,
    write_text,
)
from agent_core.storage.connections import connect, open_reader, open_writer
from agent_core.storage.health import examine
from posix_locks import locks_of, needs_locks
from tables import together

pytestmark = needs_locks

FILES = pytest.mark.parametrize("end", ["", "-wal", "-shm"])


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """A database that is open in this process, with a log."""
    path = tmp_path / "home" / "sessions.sqlite"
    with closing(open_writer(path)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        before = locks_of(path, pid=os.getpid())
        assert before
        yield path
        assert locks_of(path, pid=os.getpid()) == before


def open_files() -> int:
    gc.collect()
    return len([*Path("/proc/self/fd").iterdir()])


def file_beside(database: Path, end: str) -> Path:
    return database.with_name(f"{database.name}{end}")


def as_named(file: Path, _: Path) -> Path:
    return file


def through_a_link(file: Path, folder: Path) -> Path:
    (folder / "link").symlink_to(file)
    return folder / "link"


def through_a_folder(file: Path, folder: Path) -> Path:
    (folder / "other").symlink_to(file.parent)
    return folder / "other" / ".." / file.parent.name / file.name


def by_another_name(file: Path, folder: Path) -> Path:
    (folder / "name").hardlink_to(file)
    return folder / "name"


@together("end", ["", "-wal", "-shm"])
@together("name", [as_named, through_a_link, through_a_folder, by_another_name])
@together(
    "use",
    [
        open_binary,
        read_bytes,
        read_text,
        refuse_open_database,
        refuse_database,
        partial(write_text, text="new"),
        partial(open_descriptor, flags=os.O_RDWR | os.O_CREAT, mode=0o600),
        partial(open_descriptor, flags=os.O_WRONLY | os.O_TRUNC),
    ],
    ids=["open", "bytes", "text", "check", "output", "write", "create", "truncate"],
)
def test_a_file_of_an_open_database_is_refused_before_it_is_opened(
    use: Callable[[Path], object],
    name: Callable[[Path, Path], Path],
    end: str,
    database: Path,
    tmp_path: Path,
) -> None:
    file = file_beside(database, end)
    size = file.stat().st_size

    with pytest.raises(DatabaseInUseError, match=r"(sqlite3|name another file)"):
        use(name(file, tmp_path))

    assert file.stat().st_size == size


def test_a_name_in_an_open_folder_is_refused(database: Path) -> None:
    folder = os.open(database.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(DatabaseInUseError):
            open_descriptor(database.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


class Swapped:
    """A path that becomes another name of a file between the look at it and its opening."""

    def __init__(self, path: Path, target: Path) -> None:
        self._path = path
        self._target = target
        self._looks = 0
        path.touch()

    def __fspath__(self) -> str:
        self._looks += 1
        if self._looks == 2:
            self._path.unlink()
            self._path.hardlink_to(self._target)
        return str(self._path)


@pytest.mark.long
@FILES
def test_a_file_that_is_swapped_in_stays_open_as_long_as_the_database(
    end: str, database: Path, tmp_path: Path
) -> None:
    file = file_beside(database, end)
    before = open_files()

    with pytest.raises(DatabaseInUseError):
        read_bytes(Swapped(tmp_path / "swapped", file))

    assert open_files() == before + 1


def test_what_was_kept_is_closed_with_the_last_connection(tmp_path: Path) -> None:
    path, before = tmp_path / "sessions.sqlite", open_files()

    with closing(open_writer(path)), pytest.raises(DatabaseInUseError):
        read_bytes(Swapped(tmp_path / "swapped", path))

    assert open_files() == before


def test_a_closed_database_is_a_file_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    first, second = open_writer(path), open_reader(path)
    first.close()
    with pytest.raises(DatabaseInUseError):
        read_bytes(path)
    second.close()
    second.close()

    assert read_bytes(path).startswith(b"SQLite format 3")


def test_a_connection_that_nobody_closes_is_released_when_it_is_collected(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    open_writer(path)
    gc.collect()

    assert read_bytes(path)


def test_files_beside_the_database_are_found_before_the_first_query(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    with closing(open_writer(path)) as writer, closing(connect(path)):
        writer.close()
        with closing(sqlite3.connect(path)) as other:
            other.execute("SELECT count(*) FROM sqlite_master").fetchone()
            with pytest.raises(DatabaseInUseError):
                read_bytes(file_beside(path, "-shm"))


async def test_a_memory_store_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with await SqliteStore.open(path) as store:
        await store.list()
        for end in ("", "-wal", "-shm"):
            with pytest.raises(DatabaseInUseError):
                await asyncio.to_thread(read_bytes, file_beside(path, end))


def test_an_examination_leaves_the_locks_of_others_alone(database: Path) -> None:
    assert examine(database).version


def test_other_files_are_opened_as_before(database: Path, tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "one\n")
    write_text(tmp_path / "a.txt", "2\n")
    os.close(open_descriptor(tmp_path / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.close(open_descriptor(database.parent, os.O_RDONLY | os.O_DIRECTORY))

    assert read_text(tmp_path / "a.txt") == "2\n"
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "missing")


@FILES
def test_output_replaces_no_database_even_of_another_program(end: str, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE notes (text TEXT)")
        file_beside(path, end).touch()

        with pytest.raises(DatabaseInUseError, match="name another file"):
            write_text(file_beside(path, end), "new")
    assert b"SQLite format 3" in path.read_bytes()


def test_output_may_be_no_file(tmp_path: Path) -> None:
    write_text("/dev/null", "new")
    refuse_database(tmp_path / "missing")
    refuse_database(tmp_path)

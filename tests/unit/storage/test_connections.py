import errno
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agcore.memory.stores import SqliteStore
from agent_core.storage.connections import create_database_file, open_writer


def locks_of(database: Path) -> list[str]:
    """Return this machine's POSIX locks on the files of a database, as `/proc/locks` has them."""
    inodes = {
        str(file.stat().st_ino)
        for file in database.parent.glob(f"{database.name}*")
        if file.exists()
    }
    rows = (line.split() for line in Path("/proc/locks").read_text("utf-8").splitlines())
    return sorted(
        " ".join(row[1:])
        for row in rows
        if "->" not in row and row[1] == "POSIX" and row[5].rpartition(":")[2] in inodes
    )


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel does not list its locks")
def test_a_second_opening_in_one_process_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    first = open_writer(path)
    first.execute("SELECT count(*) FROM sqlite_master").fetchone()
    before = locks_of(path)
    assert before

    second = open_writer(path)
    during = locks_of(path)
    second.close()

    assert set(before) <= set(during)
    assert locks_of(path) == before
    first.close()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel does not list its locks")
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

        assert set(before) <= set(locks_of(path))


@pytest.mark.parametrize("create", [open_writer, create_database_file])
def test_a_new_database_is_readable_for_its_user_alone(
    create: Callable[[Path], object], tmp_path: Path
) -> None:
    create(tmp_path / "new.db")

    assert stat.S_IMODE((tmp_path / "new.db").stat().st_mode) == 0o600


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

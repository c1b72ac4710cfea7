"""What the database survives: kills, other processes, full disks, other people's files."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import storing
from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import RunStatus
from judging import after_deaths
from rows import an_opening, faults_of
from sweeps import sampled


def start(program: str, database: Path, argument: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, storing.__file__, program, str(database), argument]
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def output_of(program: str, database: Path, argument: str = "") -> list[str]:
    with start(program, database, argument) as process:
        out, _ = process.communicate()
    assert process.returncode == 0, out
    return out.splitlines()


@contextmanager
def held(database: Path, seconds: float) -> Generator[None]:
    with start("hold", database, str(seconds)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield


def is_sound(database: Path) -> bool:
    connection = sqlite3.connect(database)
    try:
        return not faults_of(connection)
    finally:
        connection.close()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "sessions.sqlite"


@pytest.mark.long
async def test_whatever_moment_a_process_is_killed_in_what_it_was_promised_is_there(
    database: Path,
) -> None:
    promised: dict[str, int] = {}
    for number, acknowledged in enumerate(sampled([0, 1, 2, 3, 4, 6, 9, 17, 40, 150], 5)):
        session_id = f"s{number}"
        with start("append", database, session_id) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "open\n"
            for _ in range(acknowledged):
                victim.stdout.readline()
            await asyncio.sleep(0.0003 * number)  # not always at the same point of a write
            victim.kill()
            rest = victim.stdout.read().splitlines()
            promised[session_id] = acknowledged + len(rest)
        assert is_sound(database)

    async with SqliteSessionStore.open(database) as store:
        lost = await after_deaths(store).close_lost_runs()
        assert {run.session_id for run in lost} == set(promised)
        for session_id, count in promised.items():
            record = await store.session(session_id)
            history = await store.run_history(f"run_{session_id}")
            assert record is not None
            assert len(history.nodes) >= count
            assert [event.seq for event in history.events] == list(
                range(1, len(history.events) + 1)
            )
            assert len(history.events) == 3 * len(history.nodes) + 1  # and run_failed
            if history.nodes:
                assert record.active_node_id == history.nodes[-1].node_id
                path = await store.path(history.nodes[-1].node_id)
                assert [node.node_id for node in path] == [n.node_id for n in history.nodes]
            opened = await store.open_run(an_opening(session_id, f"next_{session_id}"))
            assert opened.resumed
            assert opened.position.seq == len(history.events) + 1


@pytest.mark.long
async def test_a_process_killed_while_it_makes_the_database_leaves_nothing_half_made(
    tmp_path: Path,
) -> None:
    for moment in range(8):
        database = tmp_path / f"{moment}.sqlite"
        with start("make", database, "s1") as victim:
            assert victim.stdin is not None
            assert victim.stdout is not None
            assert victim.stdout.readline() == "ready\n"
            victim.stdin.write("go\n")
            victim.stdin.flush()
            await asyncio.sleep(0.001 * moment)
            victim.kill()
        async with SqliteSessionStore.open(database) as store:
            opened = await after_deaths(store).open_run(an_opening("s1", "run_2", owner="you"))
            assert len(opened.lost) == opened.resumed
        assert is_sound(database)


@pytest.mark.long
async def test_several_processes_write_to_one_file(database: Path) -> None:
    writers = [start("append_some", database, f"s{i}") for i in range(3)]
    for writer in writers:
        out, _ = writer.communicate()
        assert out == "done\n"
    async with SqliteSessionStore.open(database) as store:
        for i in range(3):
            assert len(await store.path(f"s{i}_99")) == 100
            page = await store.page(f"s{i}")
            assert [event.seq for event in page.events] == list(range(1, 301))
    assert is_sound(database)


@pytest.mark.long
def test_twenty_processes_open_a_fresh_database_at_once(database: Path) -> None:
    assert output_of("open_at_once", database, "20") == [str([0] * 20)]
    assert is_sound(database)


async def test_two_event_loops_of_one_process_share_a_file(database: Path) -> None:
    failures: list[BaseException] = []

    async def work(session_id: str) -> None:
        async with SqliteSessionStore.open(database) as store:
            await store.open_run(an_opening(session_id, f"run_{session_id}"))
            for i in range(50):
                await store.append(storing.step(session_id, i))

    def loop_of_its_own(session_id: str) -> None:
        try:
            asyncio.run(work(session_id))
        except BaseException as error:  # noqa: BLE001 - a thread has nobody else to tell
            failures.append(error)

    other = threading.Thread(target=loop_of_its_own, args=("s2",))
    other.start()
    await work("s1")
    await asyncio.to_thread(other.join)
    assert failures == []
    async with SqliteSessionStore.open(database) as store:
        assert len(await store.path("s1_49")) == len(await store.path("s2_49")) == 50


@pytest.mark.long
async def test_a_write_waits_for_another_process_without_holding_up_the_event_loop(
    database: Path,
) -> None:
    async with SqliteSessionStore.open(database) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        with held(database, 3):
            writing = store.append(storing.step("s1", 0))
            longest, before = 0.0, time.monotonic()
            while not writing.done():
                assert await store.session("s1") is not None  # readers do not wait
                await asyncio.sleep(0.01)
                now = time.monotonic()
                longest, before = max(longest, now - before), now
            await writing
        assert longest < 2
        assert await store.node("s1_0") is not None


async def test_a_small_write_is_stored_when_the_call_returns(database: Path) -> None:
    async with SqliteSessionStore.open(database) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        writing = store.append(storing.step("s1", 0))
        assert writing.done()
        with closing(sqlite3.connect(database)) as other:
            assert other.execute("SELECT count(*) FROM nodes").fetchone() == (1,)


async def test_what_comes_behind_a_write_that_waits_keeps_its_place(database: Path) -> None:
    async with SqliteSessionStore.open(database) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        with held(database, 0.3):
            waiting = [store.append(storing.step("s1", i)) for i in range(3)]
        waiting += [store.append(storing.step("s1", i)) for i in range(3, 6)]
        positions = await asyncio.gather(*waiting)
        assert [position.node_seq for position in positions] == [1, 2, 3, 4, 5, 6]
        assert store.append(storing.step("s1", 6)).done()


@pytest.mark.long
async def test_the_log_is_begun_anew_while_thousands_of_small_writes_go_on(database: Path) -> None:
    log = database.with_name(database.name + "-wal")
    longest = 0
    async with SqliteSessionStore.open(database) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        for i in range(1500):
            await store.append(storing.step("s1", i))
            longest = max(longest, log.stat().st_size)
    assert longest < 8_000_000
    assert is_sound(database)


async def test_when_patience_ends_the_error_says_who_is_in_the_way_and_not_what_sqlite_says(
    database: Path,
) -> None:
    async with SqliteSessionStore.open(database, patience=0.2) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        with held(database, 1.0):
            waiting = [store.append(storing.step("s1", i)) for i in range(2)]
            for written in waiting:
                with pytest.raises(StorageError) as refused:
                    await written
                assert refused.value.code is ErrorCode.STORAGE_ERROR
                assert refused.value.retryable
                assert "another process" in refused.value.message
                assert str(database) in refused.value.message
                assert "locked" not in refused.value.message
        await store.append(storing.step("s1", 0))
        assert len(await store.path("s1_0")) == 1


async def test_opening_waits_for_another_process_too(database: Path) -> None:
    async with SqliteSessionStore.open(database):
        pass
    with held(database, 0.4):
        async with SqliteSessionStore.open(database) as store:
            await store.open_run(an_opening("s1", "run_s1"))


def test_a_full_disk_refuses_what_it_cannot_keep_and_keeps_what_it_promised(
    database: Path,
) -> None:
    refusal, stored, all_there, goes_on = output_of("outgrow", database)
    code, retryable, message = refusal.split(" ", 2)
    assert code == "storage_error"
    assert retryable == "True"
    assert str(database) in message
    assert "resume" in message
    assert int(stored) > 3
    assert all_there == goes_on == "True"
    assert is_sound(database)


def test_without_file_descriptors_the_error_is_clear_and_passes(database: Path) -> None:
    refusal, goes_on = output_of("starve", database)
    assert refusal.startswith(f"storage_error the session database {database} cannot be opened")
    assert goes_on == "True"


@pytest.mark.long
async def test_a_long_reader_holds_nobody_up(database: Path) -> None:
    async with SqliteSessionStore.open(database) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        reader = sqlite3.connect(database, isolation_level=None)
        try:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            for i in range(500):
                await store.append(storing.step("s1", i))
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (0,)
        finally:
            reader.close()
        assert len(await store.path("s1_499")) == 500


async def test_a_session_whose_owner_was_killed_can_be_resumed_at_once(database: Path) -> None:
    with start("append", database, "s1") as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        async with SqliteSessionStore.open(database) as store:
            with pytest.raises(StorageError) as refused:
                await store.open_run(an_opening("s1", "run_2", owner="you"))
            assert refused.value.code is ErrorCode.SESSION_ACTIVE
            victim.kill()
            victim.wait()
            opened = await after_deaths(store).open_run(an_opening("s1", "run_2", owner="you"))
            assert [run.status for run in opened.lost] == [RunStatus.FAILED]


# files that are not ours


async def open_and_close(database: Path) -> None:
    async with SqliteSessionStore.open(database):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_home_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="cannot be opened for writing"):
        asyncio.run(open_and_close(tmp_path / "sessions.sqlite"))


@pytest.mark.parametrize("content", [b"not a database, just some text\n" * 100, b"\0" * 8192])
def test_a_file_that_is_no_database_is_refused_and_kept(database: Path, content: bytes) -> None:
    database.write_bytes(content)
    with pytest.raises(StorageError) as refused:
        asyncio.run(open_and_close(database))
    assert str(database) in refused.value.message
    assert database.read_bytes() == content


def test_a_folder_in_the_place_of_the_file_is_refused(database: Path) -> None:
    database.mkdir()
    with pytest.raises(StorageError, match="cannot be opened for writing"):
        asyncio.run(open_and_close(database))


async def test_a_status_that_is_only_understood_when_read_is_understood(database: Path) -> None:
    async with SqliteSessionStore.open(database) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        connection = sqlite3.connect(database, isolation_level=None)
        connection.execute("UPDATE runs SET status = 'aborted'")
        connection.close()
        run = await store.run("run_s1")
        assert run is not None
        assert run.status is RunStatus.ABORTED
        assert await store.active_run_ids("s1") == []
        assert await after_deaths(store).close_lost_runs() == []


async def test_ids_that_no_database_can_hold_are_unknown_or_refused(database: Path) -> None:
    async with SqliteSessionStore.open(database) as store:
        assert await store.session("a\0b") is None
        with pytest.raises(StorageError):
            await store.session("\ud800")
        with pytest.raises(StorageError):
            await store.release("\ud800", "me")
        assert await store.sessions(limit=2**80, offset=2**80) == []


async def test_a_closed_store_refuses_and_says_so(database: Path) -> None:
    async with SqliteSessionStore.open(database) as store:
        await store.open_run(an_opening("s1", "run_s1"))
    for late in (store.session("s1"), store.append(storing.step("s1", 0))):
        with pytest.raises(StorageError, match="closed"):
            await late


async def test_what_is_queued_when_the_store_closes_is_stored(database: Path) -> None:
    async with SqliteSessionStore.open(database) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        waiting = [store.append(storing.step("s1", i)) for i in range(300)]
    assert [position.node_seq for position in await asyncio.gather(*waiting)][-1] == 300
    async with SqliteSessionStore.open(database) as store:
        assert len(await store.path("s1_299")) == 300


async def test_a_damaged_row_names_itself_and_spoils_nothing_else(database: Path) -> None:
    async with SqliteSessionStore.open(database) as store:
        await store.open_run(an_opening("s1", "run_s1"))
        for i in range(3):
            await store.append(storing.step("s1", i))
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("UPDATE nodes SET content_json = '[{\"type\":' WHERE node_id = 's1_1'")
    connection.execute("UPDATE nodes SET role = 'robot' WHERE node_id = 's1_2'")
    connection.close()
    async with SqliteSessionStore.open(database) as store:
        for node_id in ("s1_1", "s1_2"):
            with pytest.raises(StorageError, match=node_id):
                await store.node(node_id)
        assert await store.node("s1_0") is not None


async def test_a_change_that_a_dead_process_left_half_done_is_taken_back(tmp_path: Path) -> None:
    database, found = tmp_path / "s.sqlite", tmp_path / "found.sqlite"
    async with SqliteSessionStore.open(database):
        pass
    with closing(sqlite3.connect(database, isolation_level=None)) as victim:
        victim.execute("PRAGMA journal_mode = DELETE")
        victim.execute("PRAGMA cache_size = 1")  # so that the change reaches the file early
        victim.execute("BEGIN")
        victim.execute("CREATE TABLE half (made BLOB)")
        for _ in range(50):
            victim.execute("INSERT INTO half VALUES (randomblob(4000))")
        shutil.copy(database, found)
        shutil.copy(f"{database}-journal", f"{found}-journal")
        victim.execute("ROLLBACK")
    async with SqliteSessionStore.open(found) as store:
        assert await store.sessions() == []
    with closing(sqlite3.connect(found)) as connection:
        assert (
            connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'half'").fetchall() == []
        )

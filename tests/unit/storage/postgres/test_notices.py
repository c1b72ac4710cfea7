"""Notices between processes, through a real server."""

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from agent_core.storage.postgres.notices import NoticeQueue, Notices
from postgres import Server


@pytest.fixture
def url(empty_database_url: str) -> str:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE sessions (session_id TEXT, watched_until TIMESTAMPTZ)")
        connection.execute("INSERT INTO sessions VALUES ('s1'), ('s2')")
    return empty_database_url


async def is_listening(inbox: NoticeQueue) -> None:
    """Return when the server sends what comes from now on."""
    has_missed = False
    while not has_missed:
        await inbox.wait()
        _, has_missed = inbox.take()


async def received(inbox: NoticeQueue, number: int) -> list[str]:
    found: list[str] = []
    while len(found) < number:
        await inbox.wait()
        payloads, has_missed = inbox.take()
        assert not has_missed
        found += payloads
    return found


async def test_notices_come_whole_and_in_order_on_their_channel_only(url: str) -> None:
    async with Notices.open(url) as one, Notices.open(url) as other:
        with one.subscribe("a") as first, one.subscribe("a") as second, one.subscribe("b") as b:
            for inbox in (first, second, b):
                await is_listening(inbox)
            sent = [*map(str, range(500)), "ü\u0001'\"\\", "x" * 7_999]
            other.send("a", *sent)
            other.send("b", "last")
            assert await received(first, len(sent)) == sent
            assert await received(second, len(sent)) == sent
            assert await received(b, 1) == ["last"]


async def test_a_channel_can_be_left_and_taken_again(url: str) -> None:
    async with Notices.open(url) as notices:
        with notices.subscribe("a") as left:
            await is_listening(left)
        with notices.subscribe("a") as inbox, notices.subscribe('odd "name"; --') as odd:
            await is_listening(inbox)
            await is_listening(odd)
            notices.send("a", "1")
            notices.send('odd "name"; --', "2")
            assert await received(inbox, 1) == ["1"]
            assert await received(odd, 1) == ["2"]
        left.take()
        assert left.take() == ([], False)


async def test_what_waits_is_bounded_and_what_was_dropped_is_said(url: str) -> None:
    inbox = NoticeQueue()
    for number in range(5_000):
        inbox.add(str(number))
    payloads, has_missed = inbox.take()
    assert has_missed
    assert payloads[-1] == "4999"
    assert len(payloads) < 1_000
    assert inbox.take() == ([], False)


async def test_what_is_sent_last_goes_out_before_the_end(url: str) -> None:
    async with Notices.open(url) as notices:
        with notices.subscribe("a") as inbox:
            await is_listening(inbox)
            async with Notices.open(url) as short:
                short.send("a", "1")
            assert await received(inbox, 1) == ["1"]


async def test_a_notice_that_is_too_long_harms_no_other(url: str) -> None:
    async with Notices.open(url) as notices:
        with notices.subscribe("a") as inbox, notices.subscribe("b" * 64) as never:
            await is_listening(inbox)
            notices.send("a", "x" * 8_000, "a\0b", "fine")
            notices.send("c" * 64, "no such channel")
            notices.send("a", "as well")
            assert await received(inbox, 2) == ["fine", "as well"]
        assert never.take() == ([], False)


async def test_a_connection_that_was_cut_is_opened_again(url: str) -> None:
    async with Notices.open(url) as notices, Notices.open(url) as other:
        with notices.subscribe("a") as inbox:
            await is_listening(inbox)
            cut(url)
            has_missed, payloads = False, list[str]()
            while not (has_missed and payloads):
                other.send("a", "again")
                await inbox.wait(0.1)
                payloads, misses = inbox.take()
                has_missed |= misses


@pytest.mark.long
async def test_a_server_that_stops_and_comes_back_is_found_again(postgres_server: Server) -> None:
    postgres_server.stop()
    async with Notices.open(postgres_server.url()) as notices:
        with notices.subscribe("a") as inbox:
            await asyncio.sleep(0.3)
            assert not notices.is_connected
            postgres_server.start()
            await is_listening(inbox)
            notices.send("a", "1")
            assert await received(inbox, 1) == ["1"]
            postgres_server.kill()
            await is_listening(inbox)
            assert not notices.is_connected
            postgres_server.start()
            await is_listening(inbox)
            notices.send("a", "2")
            assert await received(inbox, 1) == ["2"]


async def test_a_session_is_watched_as_long_as_it_has_a_watcher(url: str) -> None:
    async with Notices.open(url) as notices:
        inbox = NoticeQueue()
        with notices.watch("s1", inbox), notices.watch("s1", NoticeQueue()):
            with notices.watch("none", NoticeQueue()):
                await until(lambda: bool(watched(url)))
            assert watched(url) == ["s1"]
            await until(lambda: notices.is_connected)
            await is_listening(inbox)
            assert inbox.take() == ([], False)


async def test_who_watches_a_session_looks_once_its_writers_send_notices(url: str) -> None:
    async with Notices.open(url) as notices:
        with psycopg.connect(url) as connection, notices.subscribe("a") as inbox:
            await is_listening(inbox)
            connection.execute("SELECT * FROM sessions FOR UPDATE")
            with notices.watch("s1", inbox):
                await is_listening(inbox)  # the first attempt has failed
                connection.rollback()
                await is_listening(inbox)
                assert watched(url) == ["s1"]
                with notices.watch("s1", inbox):
                    await asyncio.sleep(0.1)
                assert inbox.take() == ([], False)


async def test_a_session_that_is_locked_stops_no_notice(url: str) -> None:
    async with Notices.open(url) as notices:
        with psycopg.connect(url) as connection, notices.subscribe("a") as inbox:
            await is_listening(inbox)
            connection.execute("SELECT * FROM sessions FOR UPDATE")
            with notices.watch("s1", NoticeQueue()):
                notices.send("a", "1")
                assert await received(inbox, 1) == ["1"]
                assert notices.is_connected
                connection.rollback()
                await until(lambda: bool(watched(url)))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the server makes it true
        await asyncio.sleep(0.01)


def cut(url: str) -> None:
    """End every connection to a database but this one."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )


def watched(url: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute("SELECT session_id FROM sessions WHERE watched_until > now()")
        return [session_id for (session_id,) in rows]

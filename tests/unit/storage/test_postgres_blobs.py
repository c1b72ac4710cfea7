"""The blobs of a database: kept as long as something uses them, and not longer."""

import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from obstore.store import MemoryStore

from agent_core.blobs.base import BlobId
from agent_core.blobs.objects import ObjectBlobs
from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.postgres.blobs import PostgresBlobs
from blobs import with_blob_tables
from postgres import Server
from tcp_proxy import Proxy


@pytest.fixture
def url(empty_database_url: str) -> str:
    return with_blob_tables(empty_database_url)


@pytest.fixture(params=["in the database", "elsewhere"])
def blobs(request: pytest.FixtureRequest, url: str) -> Iterator[PostgresBlobs]:
    contents = ObjectBlobs(MemoryStore(), name="memory") if request.param == "elsewhere" else None
    opened = PostgresBlobs(url, contents)
    yield opened
    opened.close()


def blob(content: bytes) -> BlobId:
    return BlobId(hashlib.sha256(content).hexdigest(), len(content))


def keep(blobs: PostgresBlobs, content: bytes, *, by: str, session: str = "s1") -> str:
    blobs.keep(blob(content), io.BytesIO(content), session_id=session, used_by=by)
    return blob(content).digest


def content_of(blobs: PostgresBlobs, digest: str) -> bytes:
    return b"".join(blobs.pieces(digest))


def is_gone(blobs: PostgresBlobs, digest: str) -> bool:
    try:
        content_of(blobs, digest)
    except StorageError as error:
        return error.code is ErrorCode.FILE_NOT_FOUND
    return False


def made_long_ago(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE blob_uses SET made_at = now() - interval '2 days'")
        connection.execute("UPDATE shared_snapshots SET made_at = now() - interval '2 days'")


def test_a_blob_goes_with_its_last_use(blobs: PostgresBlobs) -> None:
    digest = keep(blobs, b"shared", by="art_1")
    assert keep(blobs, b"shared", by="art_2", session="s2") == digest
    blobs.release("s1", "art_1")
    assert content_of(blobs, digest) == b"shared"
    blobs.release("s2", "art_2")
    assert is_gone(blobs, digest)
    assert content_of(blobs, keep(blobs, b"shared", by="art_3")) == b"shared"


def test_a_session_takes_all_its_blobs_along(blobs: PostgresBlobs) -> None:
    own, both = keep(blobs, b"own", by="art_1"), keep(blobs, b"both", by="art_2")
    keep(blobs, b"both", by="art_3", session="s2")
    blobs.release("s1")
    assert is_gone(blobs, own)
    assert content_of(blobs, both) == b"both"


def test_what_a_killed_writer_has_left_is_swept(blobs: PostgresBlobs, url: str) -> None:
    digest = keep(blobs, b"never named", by="art_1")
    blobs.sweep()
    assert content_of(blobs, digest) == b"never named"  # it may be named in a moment
    made_long_ago(url)
    blobs.sweep()
    assert is_gone(blobs, digest)


@pytest.mark.parametrize("later", ["- interval '2 days'", "+ interval '2 years'"])
def test_one_process_a_day_sweeps_and_a_wrong_clock_does_not_end_that(
    database_url: str, later: str
) -> None:
    one, other = PostgresBlobs(database_url), PostgresBlobs(database_url)
    digest = keep(one, b"never named", by="art_1")
    made_long_ago(database_url)
    one.sweep_daily()
    assert is_gone(one, digest)
    keep(one, b"never named", by="art_1")
    made_long_ago(database_url)
    other.sweep_daily()
    assert content_of(one, digest) == b"never named"
    with psycopg.connect(database_url) as connection:
        connection.execute(f"UPDATE sweeps SET at = now() {later}".encode())  # noqa: S608
    other.sweep_daily()
    assert is_gone(one, digest)
    one.close()
    other.close()


def test_what_is_named_stays_however_old_it_is(blobs: PostgresBlobs, url: str) -> None:
    digest = keep(blobs, b"of a snapshot", by="snap_1", session="s9")
    blobs.share_snapshot("s9", "snap_1", about="{}", blobs=[digest])
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO sessions (session_id) VALUES ('s9')")
    made_long_ago(url)
    blobs.sweep()
    assert content_of(blobs, digest) == b"of a snapshot"
    assert blobs.shared_snapshot("s9", "snap_1") == "{}"


def test_the_snapshots_of_a_session_that_is_gone_are_swept(blobs: PostgresBlobs, url: str) -> None:
    digest = keep(blobs, b"of a snapshot", by="snap_1", session="gone")
    blobs.share_snapshot("gone", "snap_1", about="{}", blobs=[digest])
    made_long_ago(url)
    blobs.sweep()
    assert blobs.shared_snapshot("gone", "snap_1") is None
    assert is_gone(blobs, digest)


def test_a_snapshot_needs_the_blobs_it_names(blobs: PostgresBlobs) -> None:
    with pytest.raises(StorageError):
        blobs.share_snapshot("s1", "snap_1", about="{}", blobs=["ab" * 32])
    assert blobs.shared_snapshot("s1", "snap_1") is None


def test_a_fork_has_the_snapshots_and_outlives_the_original(blobs: PostgresBlobs) -> None:
    digest = keep(blobs, b"files", by="snap_1")
    blobs.share_snapshot("s1", "snap_1", about='{"a":1}', blobs=[digest])
    blobs.share_with_fork("s1", "s2")
    blobs.release("s1")
    assert blobs.last_shared("s2") == ("snap_1", '{"a":1}')
    assert content_of(blobs, digest) == b"files"


def test_a_removal_that_was_killed_loses_nothing_of_the_next_writer(url: str) -> None:
    contents = ObjectBlobs(MemoryStore(), name="memory")
    blobs = PostgresBlobs(url, contents)
    digest = keep(blobs, b"again", by="art_1")
    with psycopg.connect(url) as connection:  # as a process leaves it that dies in the middle
        connection.execute("DELETE FROM blob_uses")
        connection.execute("UPDATE blobs SET is_whole = FALSE")
    contents.delete(digest)
    assert content_of(blobs, keep(blobs, b"again", by="art_2")) == b"again"
    blobs.close()


def test_writers_and_removals_at_once_leave_what_is_used(blobs: PostgresBlobs) -> None:
    content = os.urandom(70_000)

    def use_and_release(name: str) -> None:
        for number in range(15):
            digest = keep(blobs, content, by=f"{name}{number}")
            assert content_of(blobs, digest) == content
            blobs.release("s1", f"{name}{number}")

    with ThreadPoolExecutor(4) as users:
        list(users.map(use_and_release, "abcd"))
    assert is_gone(blobs, blob(content).digest)


def test_a_damaged_blob_is_not_read_to_its_end(url: str) -> None:
    blobs = PostgresBlobs(url)
    digest = keep(blobs, b"as it was", by="art_1")
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE blob_pieces SET content = 'changed'")
    with pytest.raises(StorageError, match="damaged"):
        content_of(blobs, digest)
    blobs.close()


def test_a_large_blob_is_refused_with_the_cure(url: str) -> None:
    blobs = PostgresBlobs(url)
    with pytest.raises(StorageError, match=r"\[store\] blobs"):
        blobs.keep(BlobId("ab" * 32, 1 << 40), io.BytesIO(), session_id="s1", used_by="art_1")
    blobs.close()


@pytest.mark.long
def test_a_restart_of_the_database_is_outlived(postgres_server: Server) -> None:
    blobs = PostgresBlobs(with_blob_tables(postgres_server.url()))
    digest = keep(blobs, b"before", by="art_1")
    restarting = threading.Thread(target=postgres_server.restart)
    restarting.start()
    for number in range(20):
        keep(blobs, b"meanwhile", by=f"art_{number}")
    restarting.join()
    assert content_of(blobs, digest) == b"before"
    blobs.close()


@pytest.mark.parametrize("end", [PostgresBlobs.close, PostgresBlobs.hurry])
def test_who_ends_waits_no_more_for_a_server_that_is_away(
    postgres_server: Server, end: Callable[[PostgresBlobs], None]
) -> None:
    blobs = PostgresBlobs(with_blob_tables(postgres_server.url()))
    keep(blobs, b"before", by="art_1")
    postgres_server.stop()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(keep, blobs, b"meanwhile", by="art_2")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        end(blobs)
        with pytest.raises(StorageError):
            waiting.result(timeout=50)
    blobs.close()


def test_who_ends_waits_no_more_for_a_server_that_says_nothing(postgres_server: Server) -> None:
    with Proxy.in_thread(postgres_server.port) as proxy, ThreadPoolExecutor(1) as threads:
        blobs = PostgresBlobs(with_blob_tables(postgres_server.url(port=proxy.port)))
        digest = keep(blobs, b"before", by="art_1")
        proxy.stall()
        waiting = threads.submit(content_of, blobs, digest)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        blobs.close()
        with pytest.raises(StorageError):
            waiting.result(timeout=50)
        proxy.flow()


def test_what_is_under_way_at_the_end_is_done(url: str) -> None:
    blobs = PostgresBlobs(url)
    pieces = blobs.pieces(keep(blobs, b"a" * (2 << 20), by="art_1"))
    begun = next(pieces)
    blobs.close()
    assert begun + b"".join(pieces) == b"a" * (2 << 20)

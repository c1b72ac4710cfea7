"""What every store of artifacts does, wherever it keeps their content."""

import hashlib
import io
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from agent_core.artifacts.blobs import BlobArtifactStore
from agent_core.artifacts.store import ArtifactStore, InMemoryArtifactStore
from agent_core.disk.unfinished import Notes
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.redaction import Redactor
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.postgres.blobs import PostgresBlobs
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import ArtifactRecord, ArtifactSource, utc_now
from rows import an_opening

SECRET = "correct-horse-battery-staple"  # noqa: S105
OpenArtifacts = Callable[[], ArtifactStore]


@pytest.fixture(params=["files", "memory", "blobs"])
async def open_artifacts(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[OpenArtifacts]:
    """Opens the store again, of blobs on another machine each time."""
    redactor = Redactor({"MODEL_KEY": SECRET})
    async with AsyncExitStack() as stack:
        rows, blobs = SqliteSessionStore.in_memory(), None
        if request.param == "blobs":
            url: str = request.getfixturevalue("database_url")
            rows = await stack.enter_async_context(PostgresSessionStore.open(url))
            blobs = stack.enter_context(closing(PostgresBlobs(url)))
        await rows.open_run(an_opening())
        content: dict[str, bytes] = {}
        machines = iter(range(9))

        def opened() -> ArtifactStore:
            root = tmp_path / "sessions"
            notes = Notes(tmp_path / "unfinished")
            if request.param == "files":
                return ArtifactStore(root, rows, redactor, notes=notes)
            if blobs is None:
                return InMemoryArtifactStore(content, rows, redactor)
            root = tmp_path / f"machine {next(machines)}" / "sessions"
            return BlobArtifactStore(root, rows, redactor, notes=notes, blobs=blobs)

        yield opened


@pytest.fixture
def artifacts(open_artifacts: OpenArtifacts) -> ArtifactStore:
    return open_artifacts()


async def put(
    artifacts: ArtifactStore, data: ArtifactSource = b"abc", *, kind: str = "debug"
) -> ArtifactRecord:
    return await artifacts.put(data, session_id="s1", kind=kind, filename="out.txt")


async def test_any_process_reads_what_was_put(
    open_artifacts: OpenArtifacts, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.write_bytes(b"of a file")
    artifacts = open_artifacts()
    records = [await put(artifacts, each) for each in (b"abc", spool, io.BytesIO(b"open"), b"")]
    assert not spool.exists()
    others = open_artifacts()
    found = [await others.read(record.artifact_id) for record in records]
    assert found == [b"abc", b"of a file", b"open", b""]
    assert [record.size_bytes for record in records] == [3, 9, 4, 0]


@pytest.mark.long
async def test_secrets_are_kept_nowhere(artifacts: ArtifactStore) -> None:
    filler = b"x" * ((1 << 20) - 10) + b" "
    record = await put(artifacts, filler + SECRET.encode() + b" " + filler)
    stored = await artifacts.read(record.artifact_id)
    assert stored == filler + b"[redacted:MODEL_KEY] " + filler
    assert record.size_bytes == len(stored)
    assert SECRET not in record.model_dump_json()


async def test_equal_contents_are_deleted_one_by_one(artifacts: ArtifactStore) -> None:
    one, other = await put(artifacts), await put(artifacts)
    await artifacts.delete(one.artifact_id)
    with pytest.raises(StorageError) as raised:
        await artifacts.read(one.artifact_id)
    assert raised.value.code is ErrorCode.ARTIFACT_NOT_FOUND
    assert await artifacts.read(other.artifact_id) == b"abc"


async def test_a_source_that_fails_leaves_nothing(artifacts: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        await put(artifacts, tmp_path / "missing")
    assert (await artifacts.cleanup(include_all=True)).candidates == []


async def test_an_artifact_of_no_session_leaves_nothing(artifacts: ArtifactStore) -> None:
    with pytest.raises(StorageError):
        await artifacts.put(b"abc", session_id="gone", kind="debug", filename="out.txt")
    assert (await artifacts.cleanup(include_all=True)).candidates == []


async def test_a_clean_up_removes_what_it_says(artifacts: ArtifactStore) -> None:
    debug, output = await put(artifacts), await put(artifacts, b"12345", kind="tool_output")
    looked = await artifacts.cleanup()
    assert (looked.dry_run, looked.candidates, looked.deleted) == (True, [debug.artifact_id], [])
    assert looked.freed_bytes == 3
    none = await artifacts.cleanup(older_than=datetime(2020, 1, 1, tzinfo=UTC), dry_run=False)
    assert none.candidates == []
    done = await artifacts.cleanup(older_than=utc_now() + timedelta(hours=1), dry_run=False)
    assert done.deleted == [debug.artifact_id]
    assert await artifacts.read(output.artifact_id) == b"12345"
    done = await artifacts.cleanup(include_all=True, max_bytes=5, dry_run=False)
    assert done.deleted == []
    done = await artifacts.cleanup(include_all=True, max_bytes=4, dry_run=False)
    assert done.deleted == [output.artifact_id]
    with pytest.raises(AgentCoreError):
        await artifacts.cleanup(max_bytes=-1)


async def test_the_contents_of_a_session_go_with_it(artifacts: ArtifactStore) -> None:
    record = await put(artifacts)
    assert await artifacts.delete_session_files("s1") == []
    with pytest.raises(StorageError) as raised:
        await artifacts.read(record.artifact_id)
    assert raised.value.code is ErrorCode.FILE_NOT_FOUND


@pytest.mark.parametrize("open_artifacts", ["blobs"], indirect=True)
async def test_a_row_names_the_blob_and_a_deleted_one_leaves_none(
    artifacts: ArtifactStore, database_url: str
) -> None:
    record = await put(artifacts)
    assert record.path == f"blob:{hashlib.sha256(b'abc').hexdigest()}"
    await artifacts.delete(record.artifact_id)
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT count(*) FROM blobs CROSS JOIN blob_pieces").fetchone()
    assert found == (0,)


@pytest.mark.long
@pytest.mark.parametrize("open_artifacts", ["blobs"], indirect=True)
async def test_a_large_artifact_is_never_in_memory_while_it_is_put(
    artifacts: ArtifactStore, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    with spool.open("wb") as file:
        for _ in range(64):
            file.write(b"0123456789abcde\n" * 65_536)
    tracemalloc.start()
    record = await put(artifacts, spool)
    _, peak_put = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    content = await artifacts.read(record.artifact_id)
    _, peak_read = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(content) == record.size_bytes == 64 << 20
    assert peak_put < 24 << 20
    assert peak_read < 1.5 * len(content)


@pytest.mark.parametrize("open_artifacts", ["blobs"], indirect=True)
async def test_a_row_that_names_no_blob_reads_no_other_file(
    artifacts: ArtifactStore, database_url: str
) -> None:
    record = await put(artifacts)
    for path in ("blob:../../etc/passwd", "blob:", f"blob:{'ab' * 32}", "/etc/passwd"):
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE artifacts SET path = %s", (path,))
        with pytest.raises(StorageError):
            await artifacts.read(record.artifact_id)

"""What every keeper of content-addressed blobs does."""

import hashlib
import io
import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from agent_core.artifacts.blobs import Blobs, FileBlobs, InMemoryBlobs
from agent_core.errors import ErrorCode, StorageError
from agent_core.types import utc_now

CONTENT = bytes(range(256)) * 10_000


@pytest.fixture(params=["file", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return InMemoryBlobs() if request.param == "memory" else FileBlobs(tmp_path / "blobs")


async def content_of(blobs: Blobs, digest: str) -> bytes:
    with await blobs.open(digest) as file:
        return file.read()


async def test_content_is_found_by_its_hash_whatever_it_was_put_from(
    blobs: Blobs, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(CONTENT)
    stream = io.BytesIO(CONTENT)
    stream.seek(77)
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert not await blobs.has(digest)
    for data in (CONTENT, source, stream):
        assert await blobs.put(data) == digest
    assert await blobs.has(digest)
    assert await content_of(blobs, digest) == CONTENT
    assert source.read_bytes() == CONTENT
    assert await content_of(blobs, await blobs.put(b"")) == b""


@pytest.mark.parametrize("digest", ["0" * 64, "../../etc/passwd", "", "0" * 63 + "\n"])
async def test_what_was_never_put_is_not_found(blobs: Blobs, digest: str) -> None:
    with pytest.raises(StorageError) as missing:
        await blobs.open(digest)
    assert missing.value.code is ErrorCode.FILE_NOT_FOUND
    assert not await blobs.has(digest)


async def test_a_source_that_cannot_be_read_leaves_nothing(blobs: Blobs, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(__file__)
    for name in ("missing", "pipe", "link", "."):
        with pytest.raises(StorageError):
            await blobs.put(tmp_path / name)
    assert await blobs.sweep((), put_before=utc_now() + timedelta(days=1)) == 0


async def test_a_sweep_takes_what_is_old_and_not_needed(blobs: Blobs) -> None:
    kept, gone = await blobs.put(b"needed"), await blobs.put(b"not needed")
    assert await blobs.sweep({kept}, put_before=utc_now() - timedelta(hours=1)) == 0
    assert await blobs.sweep({kept}, put_before=utc_now() + timedelta(hours=1)) == len(
        b"not needed"
    )
    assert await blobs.has(kept)
    assert not await blobs.has(gone)


async def test_putting_again_keeps_content_from_a_sweep(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    digest = await blobs.put(b"x")
    place = tmp_path / digest[:2] / digest[2:]
    os.utime(place, (0, 0))
    await blobs.put(b"x")
    assert await blobs.sweep((), put_before=utc_now() - timedelta(hours=1)) == 0
    assert await blobs.has(digest)


async def test_files_are_for_their_user_only_and_parts_of_killed_writers_are_swept(
    tmp_path: Path,
) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    digest = await blobs.put(b"x")
    place = tmp_path / "blobs" / digest[:2] / digest[2:]
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    part = tmp_path / "blobs" / ".0123.part"
    part.write_bytes(b"half")
    assert await blobs.sweep({digest}, put_before=utc_now() + timedelta(hours=1)) == 4
    assert not part.exists()

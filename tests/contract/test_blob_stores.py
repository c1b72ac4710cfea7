"""What every store of blobs keeps to: whole contents, whoever writes, however often."""

import hashlib
import io
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from obstore.store import MemoryStore

from agent_core.blobs.base import PIECE_BYTES, BlobId, BlobStore
from agent_core.blobs.objects import ObjectBlobs
from agent_core.errors import ConfigError, ErrorCode, StorageError
from agent_core.storage.postgres.blobs import Connections, TableBlobs
from blobs import with_blob_tables

OpenBlobs = Callable[[], BlobStore]


def in_memory(request: pytest.FixtureRequest) -> OpenBlobs:
    objects = MemoryStore()
    return lambda: ObjectBlobs(objects, name="memory")


def in_folder(request: pytest.FixtureRequest) -> OpenBlobs:
    folder: Path = request.getfixturevalue("tmp_path")
    return lambda: ObjectBlobs.at((folder / "blöbs of all").as_uri())


def in_database(request: pytest.FixtureRequest) -> OpenBlobs:
    url = with_blob_tables(request.getfixturevalue("database_url"))

    def opened() -> BlobStore:
        connections = Connections(url)
        request.addfinalizer(connections.close)
        return TableBlobs(connections)

    return opened


@pytest.fixture(params=[in_memory, in_folder, in_database], ids=lambda each: each.__name__)
def open_blobs(request: pytest.FixtureRequest) -> OpenBlobs:
    return request.param(request)


@pytest.fixture
def blobs(open_blobs: OpenBlobs) -> BlobStore:
    return open_blobs()


def blob(content: bytes) -> BlobId:
    return BlobId(hashlib.sha256(content).hexdigest(), len(content))


def put(blobs: BlobStore, content: bytes) -> str:
    blobs.put(blob(content), io.BytesIO(content))
    return blob(content).digest


def content_of(blobs: BlobStore, digest: str) -> bytes:
    return b"".join(blobs.pieces(digest))


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 9 << 20])
def test_a_content_comes_back_as_it_was(blobs: BlobStore, size: int) -> None:
    content = os.urandom(size)
    assert content_of(blobs, put(blobs, content)) == content


def test_a_content_is_there_for_others(open_blobs: OpenBlobs) -> None:
    digest = put(open_blobs(), b"for all")
    assert content_of(open_blobs(), digest) == b"for all"


def test_a_content_is_read_from_the_start_of_its_file(blobs: BlobStore) -> None:
    file = io.BytesIO(b"all of it")
    file.seek(4)
    blobs.put(blob(b"all of it"), file)
    assert content_of(blobs, blob(b"all of it").digest) == b"all of it"


def test_putting_a_content_again_is_fine(blobs: BlobStore) -> None:
    assert put(blobs, b"twice") == put(blobs, b"twice")
    assert content_of(blobs, blob(b"twice").digest) == b"twice"


def test_a_missing_content_is_said_to_be_missing(blobs: BlobStore) -> None:
    with pytest.raises(StorageError) as raised:
        content_of(blobs, "ab" * 32)
    assert raised.value.code is ErrorCode.FILE_NOT_FOUND


def test_a_deleted_content_is_gone_and_can_come_back(blobs: BlobStore) -> None:
    digest = put(blobs, b"here and gone")
    blobs.delete(digest)
    blobs.delete(digest)
    with pytest.raises(StorageError):
        content_of(blobs, digest)
    assert content_of(blobs, put(blobs, b"here and gone")) == b"here and gone"


def test_several_writers_of_one_content_leave_one_whole(open_blobs: OpenBlobs) -> None:
    content = os.urandom(3 * PIECE_BYTES + 5)
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(put, [open_blobs() for _ in range(4)], [content] * 4))
    assert content_of(open_blobs(), blob(content).digest) == content


def test_a_writer_that_fails_leaves_nothing(blobs: BlobStore) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() >= 9 << 20:
                raise OSError("the disk is broken")
            return super().read(size)

    content = os.urandom(20 << 20)
    with pytest.raises((OSError, StorageError)):
        blobs.put(blob(content), Broken(content))
    with pytest.raises(StorageError) as raised:
        content_of(blobs, blob(content).digest)
    assert raised.value.code is ErrorCode.FILE_NOT_FOUND


class _Bucket(BaseHTTPRequestHandler):
    """As much of S3 as one blob needs, in the bucket `agents`."""

    objects: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/agents/"):
            self.objects[self.path] = content
        self._answer(200 if self.path.startswith("/agents/") else 404)

    def do_GET(self) -> None:
        self._answer(200, self.objects[self.path])

    def _answer(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL"])
def test_an_endpoint_without_encryption_is_used_if_that_is_said(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Bucket) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(variable, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key-of-a-test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-a-test")
        try:
            with pytest.raises(ConfigError, match=f"{variable}.*AWS_ALLOW_HTTP=true"):
                ObjectBlobs.at("s3://agents/blobs")
            monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
            blobs, blob = ObjectBlobs.at("s3://agents/blobs"), BlobId("ab" * 32, 4)
            blobs.put(blob, io.BytesIO(b"blob"))
            assert b"".join(blobs.pieces(blob.digest)) == b"blob"
            with pytest.raises(StorageError, match="make the bucket") as refused:
                ObjectBlobs.at("s3://nothing/blobs").put(blob, io.BytesIO(b"blob"))
            assert refused.value.code is ErrorCode.STORAGE_ERROR
        finally:
            server.shutdown()
            thread.join()

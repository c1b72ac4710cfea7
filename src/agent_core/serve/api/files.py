"""Downloads: artifacts, and files as snapshots have recorded them."""

import asyncio
import io
import re
from collections.abc import AsyncGenerator
from typing import BinaryIO
from urllib.parse import quote

from starlette.responses import StreamingResponse

from agent_core.artifacts.images import PICTURES, media_type
from agent_core.serve.operations import FILE, ApiCall, Operation, Query

_PIECE = 2**17
_NOT_PLAIN = re.compile(r"[^ -!#-\[\]-~]")
"""Characters that a quoted file name cannot have: controls, quotes, backslashes, not ASCII."""
_LONGEST_NAME = 200


async def _artifact(call: ApiCall[Query, None]) -> StreamingResponse:
    visit, artifact_id = call.visit, call.path("artifact_id")
    record = await visit.runtime.artifact(artifact_id, tenant=visit.tenant)
    await visit.session(record.session_id)
    content = await visit.runtime.open_artifact(artifact_id, tenant=visit.tenant)
    return await _download(content, record.filename)


async def _file(call: ApiCall[Query, None]) -> StreamingResponse:
    visit, path = call.visit, call.path("path")
    content = await visit.runtime.file_at(call.path("state_id"), path, tenant=visit.tenant)
    return await _download(io.BytesIO(content), path)


async def _download(content: BinaryIO, name: str) -> StreamingResponse:
    """Return a file to save, with the type of a picture or a type that says nothing."""

    def look() -> tuple[int, bytes]:
        size = content.seek(0, io.SEEK_END)
        content.seek(0)
        return size, content.read(_PIECE)

    size, first = await asyncio.to_thread(look)
    kind = media_type(first)
    return StreamingResponse(
        _pieces(content, first),
        media_type=kind if kind in PICTURES else FILE,
        headers={"Content-Length": str(size), "Content-Disposition": disposition(name)},
    )


async def _pieces(content: BinaryIO, first: bytes) -> AsyncGenerator[bytes]:
    try:
        piece = first
        while piece:
            yield piece
            piece = await asyncio.to_thread(content.read, _PIECE)
    finally:
        content.close()


def disposition(path: str) -> str:
    """Return the header that has a browser save a file under its name, without folders (RFC 6266).

    A name that is not plain ASCII is given a second time, in UTF-8.
    """
    name = re.split(r"[/\\]", path)[-1]
    name = "".join(sign for sign in name if sign.isprintable())[:_LONGEST_NAME].strip()
    name = name.encode(errors="replace").decode().rstrip(".") or "file"
    plain = _NOT_PLAIN.sub("_", name)
    header = f'attachment; filename="{plain}"'
    return header if plain == name else f"{header}; filename*=UTF-8''{quote(name, safe='')}"


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/artifacts/{artifact_id}",
        summary="Download an artifact",
        handler=_artifact,
        media=FILE,
        refusals=[404],
    ),
    Operation(
        method="GET",
        path="/api/snapshots/{state_id}/files/{path}",
        summary="Download a file as it was recorded at a node or in a snapshot",
        handler=_file,
        media=FILE,
        refusals=[404],
    ),
]

"""The pictures of a result: which of them a model is shown, and what becomes of the others."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from agent_core.tools.bounds import shortened_name
from agent_core.tools.images import MAX_IMAGE_BYTES, decoded, encoded, filename_for, image_type
from agent_core.tools.result_files import ResultFiles
from agent_core.types import ArtifactRefBlock, ContentBlock, ImageBlock, TextBlock

MAX_IMAGES = 20
"""Pictures of one result that a model is shown."""

MAX_SHOWN_BYTES = 10_000_000
"""Bytes of all pictures of one result that a model is shown: they stand in its message."""


@dataclass(slots=True)
class _Room:
    """How much more may be shown, and the pictures that there was no room for."""

    images: int = MAX_IMAGES
    size: int = MAX_SHOWN_BYTES
    surplus: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def takes(self, content: bytes) -> bool:
        """Whether there is room for a picture; it is taken."""
        if self.images < 1 or self.size < len(content):
            return False
        self.images -= 1
        self.size -= len(content)
        return True


async def with_shown_pictures(
    content: Sequence[ContentBlock], files: ResultFiles, *, kept_above: int
) -> list[ContentBlock]:
    """The content with pictures that a model can take, and words in place of all others.

    Args:
        content: of the result.
        files: where pictures are kept that cannot be shown, and those named by artifact come from.
        kept_above: bytes of base64 from which on a picture that is shown is kept as a file too.
    """
    room, shown = _Room(), list[ContentBlock]()
    for block in content:
        match block:
            case ImageBlock(artifact_id=str(artifact_id), mime_type=declared):
                shown += await _named(artifact_id, declared, room, files)
            case ImageBlock(data=str(data), mime_type=declared):
                shown += await _given(data, declared, room, files, kept_above=kept_above)
            case _:
                shown.append(block)
    if room.surplus:
        summary = f"{len(room.surplus)} more pictures; at most {MAX_IMAGES} are shown, and of"
        summary += f" {MAX_SHOWN_BYTES} bytes in all"
        raw = orjson.dumps(room.surplus)
        shown.append(await files.add(raw, "images.json", "application/json", summary=summary))
    return shown


async def _named(
    artifact_id: str, declared: str, room: _Room, files: ResultFiles
) -> list[ContentBlock]:
    """A picture that the tool has kept itself."""
    mime_type = shortened_name(declared)
    reference = ArtifactRefBlock(artifact_id=artifact_id, mime_type=mime_type)
    if room.images < 1:
        return [reference]
    content = await files.read(artifact_id)
    if isinstance(content, str):
        return [TextBlock(text=f"[{mime_type} of artifact {artifact_id} is left out: {content}]")]
    known = image_type(content)
    if known is None or len(content) > MAX_IMAGE_BYTES or not room.takes(content):
        return [reference]
    return [ImageBlock(mime_type=known, data=encoded(content)), reference]


async def _given(
    data: str, declared: str, room: _Room, files: ResultFiles, *, kept_above: int
) -> list[ContentBlock]:
    """A picture that stands in the result."""
    content = await asyncio.to_thread(decoded, data)
    mime_type = shortened_name(declared)
    if content is None:
        return [TextBlock(text=f"[{mime_type} data that is not base64 is left out]")]
    known = image_type(content)
    if known is None and room.images > 0:
        room.images -= 1
        is_false = declared in {"image/png", "image/jpeg", "image/gif", "image/webp"}
        kept_as = "application/octet-stream" if is_false else mime_type
        reason = f"{mime_type}, {len(content)} bytes, is no picture that a model can be shown"
        summary = f"{reason} (PNG, JPEG, GIF or WebP)"
        name = filename_for("image", kept_as)
        return [await files.add(content, name, kept_as, summary=summary)]
    if known is not None and len(content) > MAX_IMAGE_BYTES and room.images > 0:
        room.images -= 1
        summary = f"{known}, {len(content)} bytes: too large to be shown to a model"
        summary += f" (at most {MAX_IMAGE_BYTES} bytes)"
        return [await files.add(content, filename_for("image", known), known, summary=summary)]
    if known is None or not room.takes(content):
        room.surplus.append({"mime_type": known or mime_type, "data": encoded(content)})
        return []
    image = ImageBlock(mime_type=known, data=encoded(content))
    if len(data) <= kept_above:
        return [image]
    summary = f"the picture above, {len(content)} bytes"
    copy = await files.copy(content, filename_for("image", known), known, summary=summary)
    return [image, *copy]

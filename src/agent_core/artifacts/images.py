"""Images and documents for a model: find their type, check that they are whole, shrink images.

Shrinking needs Pillow, which the extra `images` installs. Everything here works on the bytes of one
file and may take a moment: call it in a thread.
"""

import asyncio
import base64
import binascii
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from agent_core.artifacts.store import ArtifactStore
from agent_core.errors import ArgumentError
from agent_core.text import shorten_name
from agent_core.types import ImageBlock

PDF = "application/pdf"
PICTURES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
MAX_DOCUMENT_BYTES = 20_000_000
MAX_SIDE = 8000
"""Largest width or height in pixels; services refuse more."""
MAX_PIXELS = 64_000_000
"""Most pixels of an image that is shrunk: four bytes for each are in memory then."""
_NONE_OF_THEM = "neither an image that models accept (PNG, JPEG, GIF, WebP) nor a PDF"
_SMALLEST_SIDE = 64
_QUALITY = 85
_SHRINK = 0.75


class UnusableImageError(Exception):
    """An image or document that no model can be shown; the message gives reason and cure."""


def media_type(content: bytes) -> str | None:
    """Return the type of a file by its first bytes; None for types that models are not shown."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return PDF if content.startswith(b"%PDF-") else None


def require_whole(content: bytes) -> str:
    """Return the type of an image or document, after checking that it is not cut off.

    Raises:
        UnusableImageError: it has no type that models take, is cut off, or has no size.
    """
    kind = media_type(content)
    if kind is None:
        raise UnusableImageError(
            f"it is {_NONE_OF_THEM}; convert it first"
            + (": an SVG to a PNG, say" if b"<svg" in content[:4096] else "")
        )
    if kind != PDF and min(_size(content, kind)) < 1:
        raise UnusableImageError(f"it is damaged: it begins as {kind} and has no size")
    if not _is_whole(content, kind):
        raise UnusableImageError(f"it is cut off: it begins as {kind} and has no end")
    return kind


def fitted(content: bytes, kind: str, *, max_bytes: int) -> tuple[str, bytes]:
    """Return the type and the bytes to show to a model; an image that is too large is shrunk.

    Raises:
        UnusableImageError: it is too large, and cannot be shrunk.
    """
    if kind == PDF:
        if len(content) > MAX_DOCUMENT_BYTES:
            raise UnusableImageError(
                f"it has {len(content)} bytes; a document has at most {MAX_DOCUMENT_BYTES}"
            )
        return kind, content
    width, height = _size(content, kind)
    if len(content) <= max_bytes and max(width, height) <= MAX_SIDE:
        return kind, content
    found = f"it has {len(content)} bytes and {width}x{height} pixels"
    most = f"at most {max_bytes} bytes ([model] max_image_bytes) and {MAX_SIDE} pixels a side"
    if width * height > MAX_PIXELS:
        raise UnusableImageError(f"{found}, too many to make it smaller; send {most}")
    if find_spec("PIL") is None:
        from agent_core.installation import extra_command  # noqa: PLC0415 - rarely missing

        cure = f"or install the extra images: {extra_command('images')}"
        raise UnusableImageError(f"{found}; send {most}, {cure}")
    return _shrunk(content, max_bytes)


async def sendable(block: ImageBlock, artifacts: ArtifactStore, *, max_bytes: int) -> ImageBlock:
    """Return the image with the data to send to a model, shrunk if it is too large.

    Its type is found from its bytes. If they are unknown, the service has to judge.

    Raises:
        AgentCoreError: `validation_error`: no model can be shown it; the message says why.
        StorageError: its artifact cannot be read.
    """
    if block.artifact_id:
        raw = await artifacts.read(block.artifact_id)
    else:
        raw = await asyncio.to_thread(decode_base64, block.data or "")
    try:
        if not raw:
            raise UnusableImageError("its data is not base64" if raw is None else "it is empty")
        kind = media_type(raw)
        if kind is not None:
            kind, raw = await asyncio.to_thread(fitted, raw, kind, max_bytes=max_bytes)
        elif block.mime_type not in {*PICTURES, PDF}:
            raise UnusableImageError(f"{shorten_name(block.mime_type)} is {_NONE_OF_THEM}")
        elif len(raw) > max_bytes:
            raise UnusableImageError(f"it has {len(raw)} bytes and is {_NONE_OF_THEM}")
    except UnusableImageError as error:
        message = f"an image of the message cannot be sent: {error}"
        raise ArgumentError(message, "message") from error
    return ImageBlock(mime_type=kind or block.mime_type, data=encode_base64(raw))


def decode_base64(data: str) -> bytes | None:
    """Decode base64 text, ignoring white space; None if it is not base64."""
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def encode_base64(content: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(content).decode()


def _size(content: bytes, kind: str) -> tuple[int, int]:
    """Return width and height in pixels from the head of a file; zeros if it has none."""
    try:
        match kind:
            case "image/png":
                return _number(content, 16, 4, "big"), _number(content, 20, 4, "big")
            case "image/gif":
                return _number(content, 6, 2), _number(content, 8, 2)
            case "image/webp":
                return _webp_size(content)
            case _:
                return next(_jpeg_sizes(content), (0, 0))
    except IndexError:
        return 0, 0


def _webp_size(content: bytes) -> tuple[int, int]:
    match content[12:16]:
        case b"VP8X":
            return 1 + _number(content, 24, 3), 1 + _number(content, 27, 3)
        case b"VP8L":
            bits = _number(content, 21, 4)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case _:
            return _number(content, 26, 2) & 0x3FFF, _number(content, 28, 2) & 0x3FFF


def _jpeg_sizes(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the size in the first frame header, skipping segments by their lengths."""
    at = 2
    while at + 9 <= len(content):
        marker = content[at + 1]
        if content[at] != 0xFF:
            return
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            yield _number(content, at + 7, 2, "big"), _number(content, at + 5, 2, "big")
            return
        else:
            at += 2 + max(2, _number(content, at + 2, 2, "big"))


def _number(content: bytes, at: int, size: int, order: str = "little") -> int:
    if at + size > len(content):
        raise IndexError
    return int.from_bytes(content[at : at + size], "big" if order == "big" else "little")


def _is_whole(content: bytes, kind: str) -> bool:
    """Return whether a file has its end mark; bytes after it do no harm."""
    match kind:
        case "image/png":
            return b"IEND\xaeB`\x82" in content
        case "application/pdf":
            return b"%%EOF" in content[-2048:]
        case "image/gif":
            return content.rstrip(b"\0\r\n").endswith(b";")
        case "image/webp":
            return _number(content, 4, 4) + 8 <= len(content) + 1
        case _:
            return b"\xff\xd9" in content[-4096:]


def _shrunk(content: bytes, max_bytes: int) -> tuple[str, bytes]:
    """Write an image smaller until it fits; an animation is reduced to its first frame."""
    pil: Any = import_module("PIL.Image")
    ops: Any = import_module("PIL.ImageOps")
    try:
        with pil.open(BytesIO(content), formats=("GIF", "JPEG", "PNG", "WEBP")) as opened:
            upright = opened
            with suppress(Exception):  # damaged camera metadata do not damage the image
                upright = ops.exif_transpose(opened)
            has_alpha = "A" in upright.getbands() or "transparency" in upright.info
            picture = upright.convert("RGBA" if has_alpha else "RGB")
    except Exception as error:
        raise UnusableImageError(f"it cannot be decoded: {error}") from error
    side = min(max(picture.size), MAX_SIDE)
    while side >= _SMALLEST_SIDE:
        picture.thumbnail((side, side))
        raw = BytesIO()
        if has_alpha:
            picture.save(raw, "PNG", optimize=True)
        else:
            picture.save(raw, "JPEG", quality=_QUALITY)
        if len(smaller := raw.getvalue()) <= max_bytes:
            return ("image/png" if has_alpha else "image/jpeg"), smaller
        side = int(side * _SHRINK)
    raise UnusableImageError(
        f"it does not fit into {max_bytes} bytes ([model] max_image_bytes), however small"
    )

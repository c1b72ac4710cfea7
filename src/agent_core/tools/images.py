"""Pictures in results: what their bytes say they are, and which of them a model can be shown."""

import base64
import binascii
import mimetypes

MAX_IMAGE_BYTES = 3_750_000
"""A larger picture is kept as a file and not shown: services refuse more than 5 MB of base64."""

_MAX_SUFFIX = 8


def image_type(content: bytes) -> str | None:
    """The media type of a picture that models take, by its first bytes; None for all else."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return None


def decoded(data: str) -> bytes | None:
    """The bytes that base64 text stands for; None if it is none. Line ends are passed over."""
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def encoded(content: bytes) -> str:
    """Bytes as base64 text."""
    return base64.b64encode(content).decode()


def filename_for(stem: str, mime_type: str) -> str:
    """A file name with the usual ending of a media type."""
    suffix = mimetypes.guess_extension(mime_type.partition(";")[0].strip().lower()) or ".bin"
    return stem + (suffix if len(suffix) <= _MAX_SUFFIX else ".bin")

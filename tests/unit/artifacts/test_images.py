"""Pictures and documents as they come from disks and tools, whole and hostile."""

import base64
import random
import struct
import zlib
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from agent_core.artifacts import images
from agent_core.artifacts.images import PDF, UnusableImageError, fitted, media_type, require_whole
from sweeps import examples
from tables import together

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP"}


def picture(kind: str, size: tuple[int, int] = (40, 30), mode: str = "RGB", **more: Any) -> bytes:
    raw = BytesIO()
    noise = random.Random(7).randbytes(size[0] * size[1] * len(mode))  # noqa: S311 - a drawing
    Image.frombytes(mode, size, noise).save(raw, FORMATS[kind], **more)
    return raw.getvalue()


def size_of(content: bytes) -> tuple[int, int]:
    with Image.open(BytesIO(content)) as opened:
        return opened.size


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is as large as this."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@together("kind", FORMATS)
def test_a_whole_picture_is_taken_as_it_is(kind: str) -> None:
    content = picture(kind)

    assert require_whole(content) == kind
    assert fitted(content, kind, max_bytes=10**6) == (kind, content)


@together("kind", FORMATS)
@together("more", [{}, {"lossless": True}, {"progressive": True}, {"exif": b"E"}])
def test_a_picture_beyond_the_limit_is_made_smaller(kind: str, more: dict[str, Any]) -> None:
    content = picture(kind, (200, 150), **more)

    shown, smaller = fitted(content, kind, max_bytes=4000)

    assert media_type(smaller) == shown
    assert len(smaller) <= 4000
    width, height = size_of(smaller)
    assert abs(width / height - 4 / 3) < 0.1


def test_what_is_seen_through_stays_so() -> None:
    content = picture("image/png", (300, 300), "RGBA")

    shown, smaller = fitted(content, "image/png", max_bytes=20_000)

    assert shown == "image/png"
    with Image.open(BytesIO(smaller)) as opened:
        assert opened.mode == "RGBA"


def test_a_side_that_services_refuse_is_made_shorter() -> None:
    content = picture("image/png", (9000, 4))

    _, smaller = fitted(content, "image/png", max_bytes=10**6)

    assert size_of(smaller)[0] <= images.MAX_SIDE


@together("kind", FORMATS)
def test_a_picture_cut_anywhere_is_refused(kind: str) -> None:
    content = picture(kind)

    for at in range(len(content) - 2):
        if kind == "image/gif" and content[at - 1 : at] == b";":  # as a whole one ends
            continue
        with pytest.raises(UnusableImageError):
            require_whole(content[:at])


@together(
    ("content", "why"),
    [
        (b"", "neither an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG to a PNG"),
        (b"<?xml version='1.0'?><!DOCTYPE svg><svg/>", "an SVG to a PNG"),
        (b"BM" + bytes(100), "neither an image"),
        (b"II*\0" + bytes(100), "neither an image"),
        (b"#!/bin/sh\necho hi\n", "neither an image"),
        (b"%PDF-1.7\nhalf of it", "cut off"),
        (b"\x89PNG\r\n\x1a\n", "no size"),
        (claiming(0, 10), "no size"),
    ],
)
def test_a_file_that_is_no_whole_picture_says_why(content: bytes, why: str) -> None:
    with pytest.raises(UnusableImageError, match=why):
        require_whole(content)


def test_a_document_is_taken_up_to_a_size() -> None:
    content = b"%PDF-1.7\n" + bytes(100) + b"\n%%EOF\n"

    assert require_whole(content) == PDF
    assert fitted(content, PDF, max_bytes=10) == (PDF, content)
    with pytest.raises(UnusableImageError, match="document"):
        fitted(content + bytes(images.MAX_DOCUMENT_BYTES), PDF, max_bytes=10)


@together("side", [20_000, 100_000, 2**31 - 1])
def test_a_picture_that_would_fill_the_memory_is_not_decoded(side: int) -> None:
    with pytest.raises(UnusableImageError, match="too many"):
        fitted(claiming(side, side), "image/png", max_bytes=10**6)


@pytest.mark.long
@together("kind", FORMATS)
def test_damage_inside_is_an_error_when_it_is_to_be_made_smaller(kind: str) -> None:
    content = bytearray(picture(kind, (300, 200)))
    content[40 : len(content) - 40] = bytes(len(content) - 80)

    try:
        fitted(bytes(content), kind, max_bytes=500)
    except UnusableImageError:
        return
    assert kind in {"image/jpeg", "image/gif"}, "decoders of these two show what they can"


@given(st.sampled_from(sorted(FORMATS)), st.data())
@settings(max_examples=examples(150))
def test_changed_bytes_are_an_error_or_a_picture(kind: str, data: st.DataObject) -> None:
    content = bytearray(picture(kind, (64, 64)))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    found = media_type(bytes(content))
    if found not in FORMATS:
        return
    try:
        shown, smaller = fitted(bytes(content), found, max_bytes=len(content) // 2)
    except UnusableImageError:
        return
    assert media_type(smaller) == shown


def test_without_pillow_a_picture_that_is_too_large_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(images, "find_spec", lambda _: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    with pytest.raises(UnusableImageError, match=r"the extra images: .*\[images\]"):
        fitted(picture("image/png", (400, 300)), "image/png", max_bytes=1000)


def test_base64_of_every_form_is_read() -> None:
    wrapped = base64.encodebytes(bytes(200)).decode()

    assert images.decode_base64(wrapped) == bytes(200)
    assert images.decode_base64("%%%") is None

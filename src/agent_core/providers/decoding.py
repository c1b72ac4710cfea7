"""Decodes network blocks into whole payloads: events, JSON lines, binary frames.

The decoders give the same payloads however the bytes are split: inside a character, between CR and
LF, in the middle of the byte order mark. They work in linear time and hold at most one payload.
"""

import struct
import zlib
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from typing import ClassVar

import orjson

from agent_core.errors import ErrorCode
from agent_core.providers.failures import CallError

MAX_PAYLOAD_BYTES = 32 * 1024 * 1024


class Decoder(ABC):
    """Decodes bytes into payloads."""

    beginnings: ClassVar[tuple[bytes, ...]] = ()
    """How such a stream begins, after blanks."""

    def may_begin(self, first: bytes) -> bool:
        """Return whether a stream can begin with these bytes."""
        return first.lstrip().startswith(self.beginnings)

    @abstractmethod
    def feed(self, block: bytes) -> list[bytes]:
        """Return the payloads that `block` completes.

        Raises:
            CallError: a payload is larger than `MAX_PAYLOAD_BYTES`, or its frame is damaged.
        """

    @abstractmethod
    def end(self) -> list[bytes]:
        """Return the remaining payloads when the stream ends.

        Raises:
            CallError: the stream ended inside a frame.
        """


class _LineDecoder(Decoder):
    """Splits lines at LF, CRLF and CR; a byte order mark is dropped."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._after_cr = False
        self._at_start = True

    def end(self) -> list[bytes]:
        """Return the rest when the stream ends without its last line end."""
        return self.feed(b"\n")

    def _split(self, block: bytes) -> list[bytes]:
        """Return the lines that `block` completes, without their ends."""
        if self._after_cr and block:
            block = block.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in block:
            self._after_cr = block.endswith(b"\r")
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = block.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._rest:
                lines[0] = b"".join([*self._rest, lines[0]])
                self._rest.clear()
                self._rest_size = 0
            if self._at_start:
                lines[0] = lines[0].removeprefix(BOM_UTF8)
                self._at_start = False
        if rest:
            self._rest.append(rest)
            self._rest_size += len(rest)
            _check_size(self._rest_size)
        return lines


class EventDecoder(_LineDecoder):
    """Decodes server-sent events to their data; names, ids and comments are dropped.

    Every service here repeats the event's name inside its data, so the name is not needed.
    """

    beginnings = (b"data:", b"event:", b"id:", b"retry:", b":", BOM_UTF8)

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, block: bytes) -> list[bytes]:
        """Return the data of every event that `block` completes."""
        parts = self._parts
        lines = self._split(block)
        if not parts and not any(lines[1::2]):  # one line of data per event, as services send it
            payloads = [line[6:] for line in lines[::2] if line[:6] == b"data: "]
            if len(payloads) * 2 == len(lines) and all(payloads):
                return payloads
        payloads = list[bytes]()
        for line in lines:
            if line[:5] == b"data:":
                parts.append(line[6:] if line[5:6] == b" " else line[5:])
                self._size += len(line)
            elif not line and parts:
                if payload := parts[0] if len(parts) == 1 else b"\n".join(parts):
                    payloads.append(payload)
                parts.clear()
                self._size = 0
        _check_size(self._size)
        return payloads

    def end(self) -> list[bytes]:
        """Return the last event, if the blank line after it is missing."""
        return self.feed(b"\n\n")


class JsonLineDecoder(_LineDecoder):
    """Decodes one JSON value per line; blank lines are skipped."""

    beginnings = (b"{", b"[", BOM_UTF8)

    def feed(self, block: bytes) -> list[bytes]:
        """Return the lines that `block` completes."""
        return [line for line in self._split(block) if line and not line.isspace()]


_PRELUDE = struct.Struct(">III")
_CRC = struct.Struct(">I")
_STRING = 7
_VALUE_SIZES = (0, 0, 1, 2, 4, 8, None, None, 8, 16)
"""Size in bytes of a header's value by its type; None if it is given by two bytes."""


class FrameDecoder(Decoder):
    """Decodes frames of `application/vnd.amazon.eventstream`, and checks both checksums of each.

    A payload is a JSON object with one key, the frame's `:event-type` or `:exception-type`.
    """

    def __init__(self) -> None:
        self._rest = bytearray()

    def may_begin(self, first: bytes) -> bool:
        """Return whether the first frame has a size that fits its checksum."""
        if len(first) < _PRELUDE.size:
            return False
        return zlib.crc32(first[:8]) == _PRELUDE.unpack_from(first)[2]

    def feed(self, block: bytes) -> list[bytes]:
        """Return the frames that `block` completes; damage is reported after whole frames."""
        self._rest += block
        payloads: list[bytes] = []
        try:
            while (payload := self._next()) is not None:
                payloads.append(payload)
        except CallError:
            if not payloads:
                raise
        return payloads

    def end(self) -> list[bytes]:
        """Return nothing: every whole frame has been returned already."""
        self._next()
        if self._rest:
            raise CallError(ErrorCode.PROVIDER_ERROR, "it ended inside a frame", retryable=True)
        return []

    def _next(self) -> bytes | None:
        """Take the next frame, if all of it has arrived."""
        rest = self._rest
        if len(rest) < _PRELUDE.size:
            return None
        size, headers_size, crc = _PRELUDE.unpack_from(rest)
        body_at = _PRELUDE.size + headers_size
        if zlib.crc32(rest[:8]) != crc or size < body_at + _CRC.size:
            raise _damaged("does not begin as a frame does")
        _check_size(size)
        if len(rest) < size:
            return None
        frame = bytes(rest[:size])
        if zlib.crc32(frame[:-4]) != _CRC.unpack(frame[-4:])[0]:
            raise _damaged("does not match its checksum")
        payload = _named(_string_headers(frame[_PRELUDE.size : body_at]), frame[body_at:-4])
        del rest[:size]
        return payload


def _named(headers: dict[str, str], body: bytes) -> bytes:
    """Return the body of a frame as the value of the kind that its headers name."""
    match headers.get(":message-type"):
        case "event" if not headers.get(":content-type", "application/json").endswith("json"):
            raise _damaged("is not JSON")
        case "error":
            kind = headers.get(":error-code", "error")
            body = orjson.dumps({"message": headers.get(":error-message", "")})
            kind = f"{kind}Exception"
        case "exception":
            kind = headers.get(":exception-type", "Exception")
        case _:
            kind = headers.get(":event-type", "")
    return b"{%b:%b}" % (orjson.dumps(kind), body or b"{}")


def _string_headers(raw: bytes) -> dict[str, str]:
    """Return the headers of a frame that are text."""
    found: dict[str, str] = {}
    try:
        at = 0
        while at < len(raw):
            name_end = at + 1 + raw[at]
            name, kind = raw[at + 1 : name_end].decode(), raw[name_end]
            at, size = name_end + 1, _VALUE_SIZES[kind]
            if size is None:
                size = int.from_bytes(raw[at : at + 2])
                at += 2
            if at + size > len(raw):
                raise IndexError
            if kind == _STRING:
                found[name] = raw[at : at + size].decode()
            at += size
    except (IndexError, UnicodeDecodeError) as error:
        raise _damaged("has headers that cannot be read") from error
    return found


def _damaged(how: str) -> CallError:
    return CallError(ErrorCode.PROVIDER_ERROR, f"an event {how}: it was damaged on its way")


def _check_size(size: int) -> None:
    if size > MAX_PAYLOAD_BYTES:
        raise CallError(
            ErrorCode.PROVIDER_ERROR,
            f"one event is larger than {MAX_PAYLOAD_BYTES} bytes",
        )

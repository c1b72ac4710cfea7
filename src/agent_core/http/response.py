"""A response: its head, and its body as it arrives."""

import asyncio
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpResponseParser,
)

from agent_core.http.errors import ConnectionLostError, DamagedError, ProtocolError
from agent_core.text import quoted

MAX_HEAD = 64 * 1024
"""Most bytes of the head of a response, and of the fields after its body."""
MAX_HELD = 256 * 1024
"""Bytes of a body that may wait for a reader before the connection is paused."""
MAX_UNPACKED = 1024 * 1024
"""Most bytes that are unpacked at a time from a compressed body."""
_INFORMATIONAL = 200
_WITHOUT_BODY = frozenset({204, 304})
_VERSIONS = frozenset({"1.0", "1.1"})
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([\w.:+-]+)""", re.IGNORECASE)
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_GZIP = 0x1F
"""First byte of what `gzip` has written."""
_BEGINNING = b"HTTP/1."
_SHOWN = 60
_KEPT = 1024
"""Most bytes that an error shows of an answer that is not HTTP."""


class Carrier(Protocol):
    """The connection of a response, as the response sees it."""

    def pause(self) -> None:
        """Stop receiving."""

    def resume(self) -> None:
        """Receive again."""

    def unsent(self) -> int:
        """Return how many bytes of the request have not been sent yet."""
        ...

    def abort(self) -> None:
        """Close the connection."""

    def release(self, *, keeps: bool) -> None:
        """Take the connection back after a request, to keep it for another one or to close it."""


class Headers(Mapping[str, str]):
    """Headers, by names in any case; the first one, if several have the same name."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def add(self, name: str, value: str) -> bool:
        """Add a header, and return True, unless there is one with this name."""
        key = name.lower()
        if key in self._values:
            return False
        self._values[key] = value
        return True

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Response:
    """The response to one request. It has to be closed.

    Args:
        carrier: its connection.
        limit_s: seconds that the server may be silent; None means for ever.

    Attributes:
        status: status code; 0 until the head has arrived.
        reason: explanation of the status; may be empty.
        headers: the headers.
        is_begun: something has been received.
    """

    def __init__(self, carrier: Carrier, *, limit_s: float | None) -> None:
        self.status = 0
        self.reason = ""
        self.headers = Headers()
        self.is_begun = False
        self._loop = asyncio.get_running_loop()
        self._carrier: Carrier | None = carrier
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # servers that are written by hand do both
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._unused = 0
        self._head_size = 0
        self._ends_with_connection = False
        self._is_complete = False
        self._keeps = False
        self._error: Exception | None = None
        self._first = b""
        self._blocks: list[bytes] = []
        self._held = 0
        self._unpacker: _Unpacker | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._silent_since = self._loop.time()
        self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._limit_s: float | None = None
        self.limit_silence(limit_s)

    @property
    def media_type(self) -> str:
        """Return the media type in lower case, without parameters; empty if there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        """Return the encoding that the media type names, in lower case; empty if it names none."""
        named = _CHARSET.search(self.headers.get("content-type", ""))
        return named[1].lower() if named else ""

    @property
    def has_unread(self) -> bool:
        """Return whether a part of the body waits to be read."""
        return bool(self._blocks) or (self._unpacker is not None and self._unpacker.has_rest)

    @property
    def is_read(self) -> bool:
        """Return whether the whole body has been read."""
        return self._is_complete and not self.has_unread

    async def wait_for_head(self) -> None:
        """Wait for the head.

        Raises:
            TimeoutError: nothing has come for too long.
            ConnectionLostError: the connection has ended before it.
            ProtocolError: this is not HTTP.
            DamagedError: it is, but the head is damaged.
        """
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    def unpack(self) -> None:
        """Unpack what is read from now on, if the body is compressed."""
        coding = self.headers.get("content-encoding", "").lower()
        if coding in _PACKED:
            self._unpacker = _Unpacker(may_be_bare=coding == "deflate")

    async def read(self) -> bytes:
        """Return what has arrived of the body, waiting for some; empty at its end.

        Raises:
            TimeoutError: nothing has come for too long.
            ConnectionLostError: the connection, or the body, has ended too early.
            ProtocolError: this is not HTTP.
            DamagedError: it is, but damaged, or not compressed as announced.
        """
        while True:
            if self._blocks:
                block = self._blocks[0] if len(self._blocks) == 1 else b"".join(self._blocks)
                self._blocks.clear()
                is_held_back, self._held = self._held > MAX_HELD, 0
                if is_held_back and self._carrier is not None:
                    self._carrier.resume()
            elif self._unpacker is not None and self._unpacker.has_rest:
                block = b""
            elif self._error is not None:
                raise self._error
            elif self._is_complete:
                if self._unpacker is None or self._unpacker.is_whole:
                    return b""
                said = "the response ended inside of its compressed data"
                self._error = ConnectionLostError(said)
                continue
            else:
                await self._wait()
                continue
            if self._unpacker is not None:
                try:
                    block = self._unpacker.unpack(block)
                except DamagedError as error:
                    self._error = error
                    raise
            if block:
                return block

    def limit_silence(self, seconds: float | None) -> None:
        """Set how long the server may be silent, from now on; None means for ever."""
        self._limit_s = seconds
        self._stop_timer()
        if seconds is not None and not self._is_complete and self._error is None:
            self._timer = self._loop.call_later(seconds, self._check_silence)

    def close(self) -> None:
        """Leave the connection to the next request if the body has arrived, or else close it."""
        carrier, self._carrier = self._carrier, None
        self._stop_timer()
        self._parser = None
        if carrier is not None:
            if self._error is None and not self._is_complete:
                self._error = ConnectionLostError("the response was closed")
                self._wake()
            carrier.release(keeps=self._keeps and self._error is None and not carrier.unsent())

    # For the connection

    def feed(self, data: bytes) -> None:
        """Take what has been received."""
        parser = self._parser
        if parser is None:
            self._keeps = False  # more than the response
            return
        self.is_begun = True
        if not self.status and len(self._first) < _KEPT:
            self._first += data[: _KEPT - len(self._first)]
        held = self._held
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._keeps = False
            if not self._is_complete:  # what follows a response does not matter
                self._fail(self._misread(error))
                return
        self._unused = 0 if self._held > held else self._unused + len(data)
        if self._unused > MAX_HEAD and not self._is_complete:
            self._fail(self._misread(_too_long()))
            return
        if self._held > MAX_HELD and self._carrier is not None:
            self._carrier.pause()
        waiter = self._waiter
        if waiter is not None and not waiter.done() and self.status:
            waiter.set_result(None)  # it waits again, with a new limit, if nothing is to be read

    def _misread(self, error: Exception) -> ProtocolError:
        """Return what is wrong with what has been received: it is damaged, or not HTTP at all."""
        own = error.__context__ if isinstance(error, HttpParserCallbackError) else error
        if isinstance(error, HttpParserUpgrade):
            own = "it switches to another protocol"
        if self.status or self._first.startswith(_BEGINNING):
            return DamagedError(f"its {'body' if self.status else 'head'} is damaged: {own}")
        from agent_core.redaction import Redactor  # noqa: PLC0415 - for strange answers only

        # Before the cut: half of a token would no longer be recognised.
        words = Redactor({}).text(self._first.decode("utf-8", "replace"))
        shown = words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"
        return ProtocolError(f"it begins with {shown!r}")

    def end(self, error: Exception | None) -> None:
        """Take the end of the connection, which may also be the end of the body.

        Args:
            error: the reason, unless the server has closed it.
        """
        if self._error is not None or self._is_complete:
            return
        if error is None and self._ends_with_connection:
            self.on_message_complete()
        else:
            where = "within" if self.status else "before"
            said = f"the connection was closed {where} the response"
            self._fail(ConnectionLostError(f"{said}: {error}" if error else said))
        self._wake()

    # For the parser

    def on_message_begin(self) -> None:
        """Refuse what follows the response."""
        if self._is_complete:
            raise ProtocolError("more than one response")

    def on_status(self, reason: bytes) -> None:
        """Take the explanation of the status, or a part of it.

        Raises:
            ProtocolError: it is too long.
        """
        self._count(len(reason))
        self.reason += reason.decode("utf-8", "replace")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a field after the body, which is not used.

        Raises:
            ProtocolError: there are too many, or two that say how the body ends.
        """
        self._count(len(name) + len(value) + 4)
        if self.status:
            return
        text = value.decode("utf-8", "replace").strip(" \t")
        is_first = self.headers.add(name.decode("latin-1"), text)
        if not is_first and name.lower() == b"transfer-encoding":
            raise ProtocolError("two transfer encodings")

    def on_headers_complete(self) -> None:
        """Take the end of the head.

        Raises:
            ProtocolError: the form of the body is not known.
        """
        parser = self._parser
        if parser is None:
            return
        status = parser.get_status_code()
        if parser.get_http_version() not in _VERSIONS or status < 100:
            raise ProtocolError("neither HTTP/1.1 nor HTTP/1.0")
        if status < _INFORMATIONAL:
            self.reason, self.headers = "", Headers()
            self._silent_since = self._loop.time()
            return
        coding = self.headers.get("transfer-encoding")
        if coding is not None and coding.lower() == "identity":  # of older servers: no coding
            coding = None
        if coding is not None and coding.lower() != "chunked":
            raise ProtocolError(f"the transfer encoding {quoted(coding, 40)} is not known")
        is_sized = coding is not None or "content-length" in self.headers
        self._ends_with_connection = not is_sized and status not in _WITHOUT_BODY
        self.status = status
        self._head_size = 0

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._blocks.append(data)
        self._held += len(data)

    def on_message_complete(self) -> None:
        """Take the end of the body."""
        if self.status:  # else it is the end of an informational response
            self._is_complete = True
            self._keeps = self._parser is not None and self._parser.should_keep_alive()
            self._parser = None
            self._stop_timer()

    def _count(self, size: int) -> None:
        """Count the bytes of a field.

        Raises:
            ProtocolError: the fields are too long.
        """
        self._head_size += size
        if self._head_size > MAX_HEAD:
            raise _too_long()

    # Waiting

    async def _wait(self) -> None:
        """Wait until something has come that `read` or `wait_for_head` may return."""
        self._silent_since = self._loop.time()
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        """Keep the error for the reader, and close the connection."""
        self._error = error
        self._parser = None
        self._stop_timer()
        if self._carrier is not None:
            self._carrier.abort()
        self._wake()

    def _check_silence(self) -> None:
        """End a silence that has lasted too long, if a reader waits."""
        limit_s = self._limit_s or 0.0
        now = self._loop.time()
        unsent = self._carrier.unsent() if self._carrier is not None else 0
        if self._waiter is None or (unsent and unsent != self._unsent):
            until = now + limit_s
        else:
            until = self._silent_since + limit_s
        self._unsent = unsent
        if until > now:
            self._timer = self._loop.call_at(until, self._check_silence)
        else:
            self._fail(TimeoutError("silent for too long"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _too_long() -> ProtocolError:
    return ProtocolError(f"more than {MAX_HEAD} bytes of headers")


class _Unpacker:
    """Unpacks a body in pieces of bounded size.

    Args:
        may_be_bare: the data may lack the head of zlib, as some servers send `deflate`.
    """

    def __init__(self, *, may_be_bare: bool) -> None:
        self._may_be_bare = may_be_bare
        self._rest = b""
        self._is_full = False
        self._stream: Any = None

    @property
    def has_rest(self) -> bool:
        """Return whether some of the data may not have been unpacked yet."""
        return bool(self._rest) or self._is_full

    @property
    def is_whole(self) -> bool:
        """Return whether what has been unpacked may be all: nothing, or data with its end."""
        return self._stream is None or self._stream.eof

    def unpack(self, data: bytes) -> bytes:
        """Return a piece of the body; the rest of the data comes with the next call.

        Args:
            data: more of the data; may be empty.

        Raises:
            DamagedError: the data is damaged.
        """
        data, self._rest = self._rest + data, b""
        self._is_full = False
        if not data and self.is_whole:
            return b""
        if self._stream is None:
            is_bare = self._may_be_bare and data[0] & 0x0F != zlib.DEFLATED
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else _GZIP_OR_ZLIB)
        elif self._stream.eof:
            if data[0] != _GZIP:
                return b""  # padding
            self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            piece: bytes = self._stream.decompress(data, MAX_UNPACKED)
        except zlib.error as error:
            raise DamagedError(f"its body is not compressed as announced: {error}") from error
        self._rest = self._stream.unconsumed_tail or self._stream.unused_data
        # all of the data may be inside of zlib, with more to come out of it
        self._is_full = len(piece) == MAX_UNPACKED and not self._stream.eof
        return piece

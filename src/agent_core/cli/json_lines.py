"""Messages of JSON-RPC, one a line, over two descriptors of this process."""

import asyncio
import json
import os
import select
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import cast

import orjson

from agent_core.opening import open_descriptor
from agent_core.text.json_text import JsonObject, table

MAX_LINE = 50 * 2**20
"""Bytes of one message of an editor; a longer one is answered with an error and not kept."""

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS = -32700, -32600, -32602
_PIECE = 4096
"""Bytes that a ready pipe takes at once, so that a write never blocks (`PIPE_BUF`)."""


@contextmanager
def private_streams() -> Generator[tuple[int, int]]:
    """Return the descriptors of the protocol, which no child inherits.

    Everything printed to standard output then goes to standard error; readers of standard
    input find its end.
    """
    source, sink = os.dup(0), os.dup(1)
    sys.stdout.flush()
    null = open_descriptor(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    try:
        yield source, sink
    finally:
        os.close(source)
        os.close(sink)


class Lines:
    """The transport of a connection: passes on well-formed messages, and answers malformed ones.

    The descriptors keep their mode, which others may share. One task writes, so that a message is
    written whole or not at all, whatever becomes of its sender.

    Args:
        source: stream of incoming messages.
        sink: stream of outgoing messages.
        peer: name of the other side in errors.
        longest: bytes of the longest message that is read.

    Attributes:
        is_writing: a message is not written whole, or more of them wait.
        failure: reason why no more can be written; None while writing works.
    """

    def __init__(
        self, source: int, sink: int, *, peer: str = "the editor", longest: int = MAX_LINE
    ) -> None:
        self._source = source
        self._sink = sink
        self._lost = f"{peer} is gone"
        self._longest = longest
        self._buffer = bytearray()
        self._searched = 0
        self._is_skipping = False
        self._has_ended = False
        self._outbox: asyncio.Queue[tuple[bytes, asyncio.Future[None]]] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write_all())
        self._gone = asyncio.Event()
        self.is_writing = False
        self.failure: OSError | None = None

    async def send(self, message: JsonObject) -> None:
        """Return when the message is written.

        Raises:
            ConnectionError: the other side is gone.
        """
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._gone.is_set():
            raise ConnectionError(self._lost)
        self._outbox.put_nowait((text.encode(errors="replace") + b"\n", written))
        await written

    async def receive(self) -> JsonObject | None:
        """Return the next message; None at the end of the input."""
        while True:
            line = await self._next_line()
            if line is None:
                return None
            message, refusal = _parsed(line, self._longest)
            if message is not None:
                return message
            if refusal is not None:
                with suppress(ConnectionError):
                    await self.send(refusal)

    async def close(self) -> None:
        """Stop writing; drop messages that were not written."""
        self._writing.cancel()
        await asyncio.wait([self._writing])
        self._drop()

    async def _next_line(self) -> bytes | None:
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0 or (self._has_ended and self._buffer):
                end = len(self._buffer) if end < 0 else end
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                if self._is_skipping:
                    self._is_skipping = False
                    return b"\n"  # replaces a line that was too long
                if line.strip():
                    return line
                continue
            if self._has_ended:
                return None
            self._searched = len(self._buffer)
            if self._searched > self._longest:
                self._is_skipping = True
            if self._is_skipping:
                self._buffer.clear()
                self._searched = 0
            await self._read()

    async def _read(self) -> None:
        ready = asyncio.create_task(_wait_for(self._source, select.POLLIN))
        gone = asyncio.create_task(self._gone.wait())
        try:
            await asyncio.wait([ready, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            gone.cancel()
        piece = b""
        if not self._gone.is_set():
            with suppress(OSError):  # it cannot be read any more
                piece = os.read(self._source, 2**16)
        self._has_ended = not piece
        self._buffer += piece

    async def _write_all(self) -> None:
        while True:
            self.is_writing = not self._outbox.empty()
            line, written = await self._outbox.get()
            self.is_writing = True
            rest = memoryview(line)
            try:
                while rest:
                    await _wait_for(self._sink, select.POLLOUT)
                    rest = rest[os.write(self._sink, rest[:_PIECE]) :]
            except (OSError, asyncio.CancelledError) as error:
                self.failure = error if isinstance(error, OSError) else None
                self._outbox.put_nowait((line, written))
                self._drop()
                return
            if not written.done():
                written.set_result(None)

    def _drop(self) -> None:
        self._gone.set()
        while not self._outbox.empty():
            _, written = self._outbox.get_nowait()
            if not written.done():
                written.set_exception(ConnectionError(self._lost))


async def _wait_for(descriptor: int, event: int) -> None:
    """Return when the descriptor is ready; a plain file always is."""
    look = select.poll()
    look.register(descriptor, event)
    await asyncio.sleep(0)  # a descriptor that is always ready leaves room for others
    if look.poll(0):
        return
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    add: Callable[..., object] = loop.add_reader if event == select.POLLIN else loop.add_writer
    remove = loop.remove_reader if event == select.POLLIN else loop.remove_writer
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


def _parsed(line: bytes, longest: int) -> tuple[JsonObject | None, JsonObject | None]:
    """Return the message of a line, or the answer to a faulty one; neither for a lost response."""
    if line == b"\n":
        return None, _refusal(INVALID_REQUEST, f"a message has at most {longest} bytes")
    try:
        message = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return None, _refusal(PARSE_ERROR, f"this is not JSON: {error}")
    if not isinstance(message, dict):
        return None, _refusal(INVALID_REQUEST, "a message is one object on one line, not a batch")
    message = cast("JsonObject", message)
    number = message.get("id")
    if isinstance(number, bool) or not isinstance(number, str | int | None):
        return None, _refusal(INVALID_REQUEST, "an id is a string or a whole number")
    if "method" not in message:
        return _response(message), None
    if message.get("jsonrpc") != "2.0" or not isinstance(message["method"], str):
        return None, _refusal(
            INVALID_REQUEST, 'a request has "jsonrpc": "2.0" and a method', number
        )
    if not isinstance(message.get("params", {}), dict | None):
        if "id" not in message:
            return None, None
        return None, _refusal(INVALID_PARAMS, "params are an object", number)
    return message, None


def _response(message: JsonObject) -> JsonObject | None:
    """Return a response as the connection takes it: an error hides any result."""
    if "id" not in message:
        return None
    fault = message.get("error")
    if fault is not None:
        facts = table(fault)
        code, text = facts.get("code"), facts.get("message")
        error = {
            "code": code if isinstance(code, int) else INVALID_REQUEST,
            "message": text if isinstance(text, str) else "an error without a message",
        }
        return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return message


def _refusal(code: int, text: str, number: str | int | None = None) -> JsonObject:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}

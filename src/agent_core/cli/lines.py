"""Reads lines from standard input without a thread, and without holding up anything else."""

import asyncio
import contextlib
import os
import termios

_LONGEST_LINE = 65_536


class Lines:
    """The lines of a descriptor: a terminal, a pipe, or a file.

    The descriptor keeps its mode: a terminal is shared with the output, and making it
    non-blocking for one makes it so for both.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._ended = False

    def forget_typed_ahead(self) -> None:
        """Drop what was typed at a terminal before the question was on the screen.

        Lines that come through a pipe or from a file were meant as answers and are kept.
        """
        with contextlib.suppress(OSError, termios.error):
            if os.isatty(self._descriptor):
                termios.tcflush(self._descriptor, termios.TCIFLUSH)
                self._buffer.clear()

    async def next(self) -> str | None:
        """The next line without its end, or None if there is none any more."""
        while b"\n" not in self._buffer and not self._ended:
            if not (piece := await self._read()):
                self._ended = True
            self._buffer += piece
            if len(self._buffer) > _LONGEST_LINE:  # nobody's answer; keep memory bounded
                del self._buffer[_LONGEST_LINE:]
                self._ended = True
        if not self._buffer:
            return None
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line.decode(errors="replace")

    async def _read(self) -> bytes:
        try:
            await self._readable()
            return os.read(self._descriptor, 4096)
        except OSError:  # closed, or a terminal that is gone
            return b""

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        try:
            loop.add_reader(self._descriptor, _settle, ready)
        except (OSError, ValueError):
            return  # a plain file or `/dev/null`: always readable, reading never waits
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

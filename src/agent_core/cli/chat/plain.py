"""The line where nothing is drawn: for terminals that cannot, and for screen readers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TextIO

from agent_core.cli.prompt import InputLines


class PlainLine:
    """Lines as the terminal itself edits them. A line that ends with a backslash goes on.

    Args:
        out: the terminal.
        lines: what is typed.
    """

    def __init__(self, out: TextIO, lines: InputLines) -> None:
        self.stream = out
        self._lines = lines
        self._free = asyncio.Event()
        self._free.set()
        self._closed = asyncio.Event()
        self._reading: asyncio.Task[str | None] | None = None

    async def run(self) -> None:
        """Wait until `close`."""
        await self._closed.wait()

    def close(self) -> None:
        """Read nothing more."""
        self._closed.set()

    @property
    def text(self) -> str:
        """Nothing: what is typed is not known before its end."""
        return ""

    async def next(self) -> str | None:
        """What is entered next; None where the input has ended."""
        entered: list[str] = []
        while True:
            line = await self._read_line()
            if line is None:
                return "\n".join(entered) or None
            if line.endswith("\\"):
                entered.append(line[:-1])
                continue
            text = "\n".join([*entered, line])
            entered.clear()
            if text.strip():
                return text

    async def _read_line(self) -> str | None:
        while True:
            await self._free.wait()
            self._reading = asyncio.create_task(self._lines.next())
            try:
                await asyncio.wait([self._reading])
            finally:
                self._reading.cancel()
                reading, self._reading = self._reading, None
            if not reading.cancelled():
                return reading.result()

    def unfold(self, text: str) -> str:
        """The text as it is."""
        return text

    def put(self, text: str) -> None:
        """Show the text, to be typed again."""
        self.stream.write(f"not sent: {text}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Do nothing: the terminal edits."""

    def refresh(self) -> None:
        """Do nothing: nothing is drawn."""

    @asynccontextmanager
    async def suspended(self) -> AsyncGenerator[None]:
        """Leave what is typed to others."""
        self._free.clear()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        try:
            yield
        finally:
            self._free.set()

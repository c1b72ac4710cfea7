"""Reads lines from a terminal or a pipe, and notices whether a person is typing."""

import asyncio
import codecs
import contextlib
import os
import re
import select
import signal
import termios
from codecs import BOM_UTF8
from collections.abc import Callable, Generator

_LONGEST_LINE = 65_536
AT_ONCE_S = 0.05
"""Input that follows within this time was not typed by a person."""
ESCAPE = "\x1b"
"""Escape alone, where a line or a key is awaited."""
_SEQUENCE = r"(?s)\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)"
"""A key such as an arrow, which types nothing."""
REST_S = 1.0
"""Seconds without a key after which typing has come to rest."""


class InputLines:
    """The lines of a descriptor, read without a thread: a terminal, a pipe, or a file.

    The descriptor keeps its mode: a terminal is shared with the output, and making it
    non-blocking for one makes it so for both.

    Attributes:
        descriptor: of the input.
        settle_s: how long after a key no other may follow, for the key to be an answer. Longer
            over an unfinished text: its author may only have paused.
        last_line_at: the time of the event loop when a line was read last.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.settle_s = AT_ONCE_S
        self.last_line_at = float("-inf")
        self._buffer = bytearray()
        self._ended = False

    def end(self) -> None:
        """Stop reading: further input was not meant for this reader."""
        self._buffer.clear()
        self._ended = True

    def forget_typed_ahead(self) -> None:
        """Drop the text typed at a terminal before the question was on the screen.

        Lines from a pipe or a file were meant as answers and are kept.
        """
        with contextlib.suppress(OSError, termios.error):
            if os.isatty(self.descriptor):
                termios.tcflush(self.descriptor, termios.TCIFLUSH)
                self._buffer.clear()

    async def has_more(self) -> bool:
        """Return whether more came together with the last line, as in a paste."""
        return bool(self._buffer) or (not self._ended and await self._goes_on(AT_ONCE_S))

    def take_typed(self) -> str:
        """Return the typed text that was not read yet, an unfinished line included."""
        if not self.is_terminal:
            return ""
        with self.unbuffered():
            self._read_available()
        typed = bytes(self._buffer).decode(errors="replace")
        self._buffer.clear()
        return typed

    def take_unfinished(self) -> str:
        """Return what was typed of a line that has not ended; its rest is still to be read."""
        if not self.is_terminal or select.select([self.descriptor], [], [], 0)[0]:
            return ""
        typed = self.take_typed()
        if "\n" not in typed:
            return typed
        self.put_back(typed)
        return ""

    def put_back(self, text: str) -> None:
        """Have the next line begin with this text."""
        self._buffer[:0] = text.encode()

    async def rest(self, show: Callable[[str], object]) -> str:
        """Wait until the user stops typing, and return the unfinished text.

        Typing has stopped when no key was pressed for a second, or at Enter. If no key was
        pressed at all, it returns at once.

        Args:
            show: shows that a question waits, and the text so far; it is called for each change.
        """
        self.settle_s = AT_ONCE_S
        if not self.is_terminal:
            return ""
        loop = asyncio.get_running_loop()
        typed = self.take_typed()
        ends_at = loop.time() + REST_S if typed else self.last_line_at + REST_S
        if ends_at <= loop.time():
            return ""
        draft = _edited("", _on_one_line(typed))
        with self.unbuffered():
            while not typed.endswith("\n") and not self._ended:
                show(draft)
                try:
                    async with asyncio.timeout_at(ends_at):
                        await self._read()
                except TimeoutError:
                    self.settle_s = REST_S if draft else AT_ONCE_S
                    break
                typed = bytes(self._buffer).decode(errors="replace").replace("\r", "\n")
                self._buffer.clear()
                draft = _edited(draft, _on_one_line(typed))
                ends_at = loop.time() + REST_S
        return draft

    def _read_available(self) -> None:
        """Read the available input, without waiting."""
        try:
            while len(self._buffer) < _LONGEST_LINE:
                if not select.select([self.descriptor], [], [], 0)[0]:
                    return
                piece = os.read(self.descriptor, 4096)
                self._ended = not piece
                self._buffer += piece
                if not piece:
                    return
        except (OSError, ValueError):
            return

    @property
    def is_terminal(self) -> bool:
        """True if a person types them."""
        if self._ended:
            return False
        try:
            return os.isatty(self.descriptor)
        except OSError:
            return False

    async def answer(self, ask: Callable[[], object], *, is_key: bool = False) -> str | None:
        """Return the line entered after `ask` was called; None at the end of the input.

        At a terminal, text that arrives at once is one answer: neither a pasted text nor text typed
        ahead holds an answer among other words.

        Args:
            ask: writes the question; again after the process was suspended while a key is awaited.
            is_key: a single key is enough at a terminal, and is not shown.
        """
        if not self.is_terminal:
            ask()
            return await self.next()

        def begin() -> None:
            self.forget_typed_ahead()
            ask()

        with self.unbuffered(begin) if is_key else contextlib.nullcontext():
            begin()
            await self._read()
            within_s = self.settle_s if is_key else AT_ONCE_S
            while not self._ended and await self._goes_on(within_s):
                await self._read()
        typed = bytes(self._buffer).decode(errors="replace")
        self._buffer.clear()
        return typed.removesuffix("\n") if typed not in {"", "\x04"} else None

    async def edit(
        self,
        ask: Callable[[], object],
        show: Callable[[str, str], object],
        *,
        is_one: bool = True,
        begun: str = "",
    ) -> str | None:
        """Return the line that a person types after `ask`; `ESCAPE` if they press Escape.

        None is the end of the input. The terminal shows nothing by itself: `show` is called with
        the text before and after each change.

        Args:
            ask: writes the question; again after the process was suspended.
            show: shows what was typed.
            is_one: text that arrives together is one line; otherwise the rest is the next one.
            begun: the text with which the line begins.
        """
        text: str | None = begun
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

        def begin() -> None:
            ask()
            show("", text or "")

        with self.unbuffered(begin):
            if is_one:
                self.forget_typed_ahead()
            begin()
            while text is not None and not self._ended:
                typed = decode(await self._read_keys(is_one=is_one)).replace("\r", "\n")
                if typed.endswith(ESCAPE):
                    return ESCAPE
                line, end, rest = re.sub(_SEQUENCE, "", typed).partition("\n")
                if is_one and end:
                    line = " ".join([line, *rest.split("\n")]).rstrip()
                elif end:
                    self.put_back(rest)
                before, text = text, _edited(text, line)
                show(before, text)
                if end:
                    return text
                text = None if "\x04" in line and not text else text
        return None

    async def _read_keys(self, *, is_one: bool) -> bytes:
        """Return the next keys: with Escape, and with a line end, whatever comes at once behind."""
        if not self._buffer:
            await self._read()
        ends = (b"\x1b", b"\n", b"\r") if is_one else (b"\x1b",)
        while self._buffer.endswith(ends) and not self._ended and await self._goes_on(AT_ONCE_S):
            await self._read()
        typed = bytes(self._buffer)
        self._buffer.clear()
        return typed

    async def _goes_on(self, within_s: float) -> bool:
        """Return whether more follows; Enter behind a key confirms it."""
        within_s = AT_ONCE_S if self._buffer.endswith(b"\n") else within_s
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wait_readable(), within_s)
            return True
        return False

    @contextlib.contextmanager
    def unbuffered(self, again: Callable[[], object] = lambda: None) -> Generator[None]:
        """Make the terminal pass on each key at once, without showing it; signals stay.

        A shell sets modes of its own before a suspended process continues: then these are set
        again, and `again` is called.
        """
        try:
            before = termios.tcgetattr(self.descriptor)
        except (OSError, termios.error):
            yield
            return
        mode = [*before[:3], before[3] & ~(termios.ICANON | termios.ECHO), *before[4:]]

        def set_mode() -> None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self.descriptor, termios.TCSANOW, mode)

        def resume() -> None:
            set_mode()
            again()

        loop = asyncio.get_running_loop()
        with contextlib.suppress(RuntimeError, ValueError):  # signals are for the main thread
            loop.add_signal_handler(signal.SIGCONT, resume)
        set_mode()
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError, ValueError):
                loop.remove_signal_handler(signal.SIGCONT)
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self.descriptor, termios.TCSANOW, before)

    async def next(self) -> str | None:
        """Return the next line without its end, or None at the end of the input."""
        while b"\n" not in self._buffer and not self._ended:
            await self._read()
        if not self._buffer:
            return None
        self.last_line_at = asyncio.get_running_loop().time()
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line.removeprefix(BOM_UTF8).decode(errors="replace")  # of a file or a pipe

    async def _read(self) -> None:
        try:
            await self._wait_readable()
            piece = os.read(self.descriptor, 4096)
        except OSError:  # closed, or a terminal that is gone
            piece = b""
        self._ended = not piece
        self._buffer += piece
        if len(self._buffer) > _LONGEST_LINE:  # no answer is so long; keep memory bounded
            self._ended = self._ended or not self.is_terminal
            del self._buffer[_LONGEST_LINE:]

    async def _wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self.descriptor, ready.set)
        except (OSError, ValueError):
            return  # a plain file or `/dev/null`: always readable, reading never waits
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self.descriptor)


def _on_one_line(keys: str) -> str:
    """Return the keys of several lines as those of one, without the end of the last."""
    return " ".join(keys.removesuffix("\n").split("\n"))


def _edited(text: str, keys: str) -> str:
    """Return the text after more keys: letters are added, erasing keys erase; others do nothing."""
    for key in keys:
        if key in "\x7f\b":
            text = text[:-1]
        elif key == "\x15":
            text = ""
        elif key == "\x17":
            text = text.rstrip().rpartition(" ")[0]
        elif key.isprintable():
            text += key
    return text

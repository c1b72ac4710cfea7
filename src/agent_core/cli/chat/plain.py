"""The line where nothing is drawn: for terminals that cannot, and for screen readers.

The terminal edits the line, except for one that was begun before its prompt, while a run worked or
a question was open. The terminal cannot erase that part, so such a line is edited here.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import takewhile
from operator import eq
from typing import TextIO, cast

from agent_core.cli.chat.base_line import PROMPT, Entered, LineStream, ShownConversation
from agent_core.cli.chat.other_program import OtherProgram
from agent_core.cli.chat.picker import Picker, PickerEntry, numbered_lines
from agent_core.cli.layout import ASCII_SIGNS, cells, window_size
from agent_core.cli.lines import ESCAPE, InputLines
from agent_core.types import ImageBlock

_LONGEST_LINE = 4095
"""Bytes of a line after which the kernel's line editing drops what is typed."""
_LISTED = 15
_CHOOSE = "number, id or words to find; Enter leaves> "
_CUT = (
    f"not sent: the terminal cuts a line at {_LONGEST_LINE:,} bytes. End shorter lines with a"
    " backslash, or write the text into a file and name it with @\n"
)


class PlainLine:
    """Lines that the terminal edits. A backslash at the end of a line continues it.

    Args:
        out: the terminal.
        conversation: a message is asked for while it is idle.
        lines: the typed lines.
    """

    def __init__(self, out: TextIO, conversation: ShownConversation, lines: InputLines) -> None:
        self._out = out
        self._conversation = conversation
        self._lines = lines
        self._free = asyncio.Event()
        self._free.set()
        self._closed = asyncio.Event()
        self._reading: asyncio.Task[str | None] | None = None
        self._draft = ""
        self._begun: str | None = None
        self._is_editing = False
        self._given: list[str] = []
        self._other = OtherProgram()
        self._is_followed = False
        self._is_asking = False
        self._prompt = PROMPT
        self._picking: asyncio.Task[str | None] | None = None
        self.stream = cast("TextIO", LineStream(out, self.write))

    async def run(self) -> None:
        """Wait until `close`."""
        await self._closed.wait()

    def close(self) -> None:
        """Read nothing more."""
        self._closed.set()

    @property
    def text(self) -> str:
        """Return what was typed of a line that is edited here; that of others is not known."""
        return self._begun or ""

    async def next(self) -> Entered | None:
        """Return the next entry; None if the input has ended."""
        if self._given:
            text = self._given.pop(0)
            self.write(f"{PROMPT}{text}\n")
            return Entered(text)
        entered: list[str] = []
        acts = is_pasted = False
        while (line := await self._read_line()) is not None:
            is_first, was_followed = not entered, self._is_followed
            self._is_followed = await self._lines.has_more()
            is_pasted = is_pasted or was_followed or self._is_followed
            if is_first:
                acts = not is_pasted and line.startswith(("!", "/"))
                if acts and line.startswith("!"):
                    return Entered(line, acts=True)
            if len(line.encode()) >= _LONGEST_LINE:
                self.write(_CUT)
                entered.clear()
                is_pasted = False
                continue
            goes_on = line.endswith("\\")
            entered.append(line.removesuffix("\\"))
            if not goes_on:
                text = "\n".join(entered)
                entered.clear()
                if text.strip():
                    return Entered(text, acts, [text] if is_pasted else [])
                is_pasted = False
                self.refresh()
        return Entered("\n".join(entered)) if entered else None

    async def _read_line(self) -> str | None:
        while True:
            await self._free.wait()
            self.refresh()
            line = self._lines.next() if self._begun is None else self._edit()
            self._reading = asyncio.create_task(line)
            try:
                await asyncio.wait([self._reading])
            finally:
                self._reading.cancel()
                reading, self._reading = self._reading, None
            if not reading.cancelled():
                self._is_asking = False
                return reading.result()

    async def _edit(self) -> str | None:
        """Read a line that was begun; its prompt is on the screen."""
        asked = False

        def ask() -> None:
            nonlocal asked
            if asked:  # the process was suspended
                self.write(f"\n{self._prompt}")
            asked = True

        def show(before: str, after: str) -> None:
            self._begun = after
            self._out.write(_retyped(before, after))
            self._out.flush()

        self._is_editing = True
        try:
            while (
                line := await self._lines.edit(ask, show, is_one=False, begun=self._begun or "")
            ) == ESCAPE:
                asked = False
                self._out.write("\n")
        finally:
            self._is_editing = False
        self._begun = None
        self._out.write("\n")
        return line

    def enter(self, text: str) -> None:
        """Enter a message before the next line; it never names a command."""
        self._given.append(text)

    async def pick(self, picker: Picker) -> str | None:
        """Print a list with numbers, and return the choice; None: the user left it."""
        self._prompt = _CHOOSE
        try:
            while True:
                await picker.have(_LISTED + 1)
                listed = picker.matches[:_LISTED]
                self.write(_list_of(picker, listed, window_size(self._out).columns - 1))
                typed = await self._typed_choice()
                if not typed:
                    return None
                if typed.isdecimal() and 0 < int(typed) <= len(listed):
                    return listed[int(typed) - 1].value
                picker.narrow(typed)
                await picker.have(2)
                if (named := picker.named(typed)) is not None:
                    return named
        finally:
            self._prompt = PROMPT

    async def _typed_choice(self) -> str:
        self._picking = asyncio.create_task(self._read_line())
        try:
            await asyncio.wait([self._picking])
        finally:
            self._picking.cancel()
            picking, self._picking = self._picking, None
        self._is_asking = False
        typed = "" if picking.cancelled() else picking.result() or ""
        return "".join(filter(str.isprintable, typed)).strip()

    def stop_picking(self) -> bool:
        """Leave a list; return whether the user was choosing from one."""
        return self._picking is not None and self._picking.cancel()

    def unfold(self, text: str) -> str:
        """The text as it is."""
        return text

    def folded_in(self, text: str) -> Sequence[str]:
        """Return nothing: all text is shown."""
        del text
        return ()

    def images_in(self, text: str) -> Sequence[ImageBlock]:
        """Return nothing: here an image is attached with `@`."""
        del text
        return ()

    def attach(self, name: str, size: str, image: ImageBlock) -> None:
        """Do nothing: there is no line that shows it."""

    def is_paste(self, text: str) -> bool:
        """Return False: pasted text looks like typed text."""
        del text
        return False

    def put(self, text: str, *, acts: bool = False) -> None:
        """Show the text, to be typed again."""
        del acts
        self.write(f"not sent: {text}\n")

    def keep(self, text: str, *, acts: bool = False) -> None:
        """Do nothing: there is no history."""

    @property
    def has_aside(self) -> bool:
        """Return False: no text is on the line."""
        return False

    def bring_back(self) -> None:
        """Do nothing, likewise."""

    def forget_aside(self) -> None:
        """Do nothing, likewise."""

    def add(self, text: str) -> None:
        """Enter a text: there is no line that it could be put on."""
        if text.strip():
            self.enter(text)

    def replace(self, text: str) -> None:
        """Enter a text, likewise."""
        self.add(text)

    def clear(self) -> None:
        """Begin the line anew, if it is edited here; otherwise the terminal has done so."""
        if self._begun is not None and self._reading is not None:
            self._begun = None
            self._reading.cancel()
            self._out.write("^C\n")
            self._is_asking = False

    def refresh(self) -> None:
        """Ask for a message, if it is time for one, and show what was typed of it."""
        is_due = self._picking is not None or not self._conversation.is_working
        if not self._free.is_set() or self._is_asking or not is_due:
            return
        if self._begun is None and (begun := self._lines.take_unfinished()):
            self._begun = begun
            if self._reading is not None:
                self._reading.cancel()  # it is read in another way, which asks
                return
        self.write(f"{self._prompt}{(self._begun or '') if self._is_editing else ''}")
        self._is_asking = True

    def draw(self, slot: str, lines: Sequence[str]) -> None:
        """Do nothing: nothing is drawn."""

    def write(self, text: str) -> None:
        """Write a text on lines of its own, if a message is being asked for."""
        if self._other.keep(text):
            return
        if self._is_asking:
            self._is_asking = False
            text = f"\n{text}"
        self._out.write(text)
        self._out.flush()

    async def rest(self, waiting: str) -> float:
        """Wait until typing stops; return how long a key must stay alone to be an answer."""
        await self._other.end()
        shown: str | None = None

        def show(draft: str) -> None:
            nonlocal shown
            if shown is None:
                self.write(f"\n{waiting}\n{draft}")
            else:
                self.write(_retyped(shown, draft))
            shown = draft

        try:
            await self._stop_reading()
            self._draft += await self._lines.rest(show)
        except asyncio.CancelledError:
            self._read_on()
            raise
        if shown is not None:
            self.write("\n")
        return self._lines.settle_s

    def type(self, text: str) -> None:
        """Begin the next line with a text, after the text typed before."""
        self._draft += text.rstrip("\n")

    @asynccontextmanager
    async def suspended(self) -> AsyncGenerator[None]:
        """Leave the input to others."""
        try:
            await self._stop_reading()
            yield
        finally:
            self._read_on()

    def left_to_program(self) -> AbstractAsyncContextManager[None]:
        """Leave screen and keys to another program; what is written meanwhile is shown later."""
        return self._other.at_work(self.suspended(), self.write)

    async def _stop_reading(self) -> None:
        self._free.clear()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._lines.put_back(begun)

    def _read_on(self) -> None:
        """Read lines again; the next one begins with the text typed before."""
        draft, self._draft = self._draft, ""
        if draft:
            self._begun = draft
            self.write(self._prompt)
            self._is_asking = True
        self._free.set()


def _retyped(before: str, after: str) -> str:
    """Return what turns a text at the end of a line into another one, without control sequences."""
    kept = sum(1 for _ in takewhile(bool, map(eq, before, after)))
    return "\b \b" * cells(before[kept:]) + after[kept:]


def _list_of(picker: Picker, listed: Sequence[PickerEntry], width: int) -> str:
    """Return the numbered entries, the newest at the end."""
    lines = [picker.title]
    if len(picker.matches) > len(listed):
        lines.append(f"the newest {len(listed)}; words find older ones")
    if not listed:
        lines.append("nothing matches")
    return "\n".join([*lines, *numbered_lines(listed, width, ASCII_SIGNS), ""])

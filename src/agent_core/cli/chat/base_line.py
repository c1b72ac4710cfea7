"""Shared by both kinds of line: the conversation they serve, an entry, and their stream."""

import io
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from msgspec import Struct

from agent_core.cli.chat.sent import Waiting

PROMPT = "> "


class ShownConversation(Protocol):
    """The part of a conversation that a line shows and uses.

    Attributes:
        prepared: the command that Tab puts on the empty line; empty if nothing is offered.
        has_sent: the session has messages.
    """

    prepared: str
    has_sent: bool

    @property
    def is_working(self) -> bool:
        """Return whether a run is at work, or waits."""
        ...

    def state(self, width: int) -> str:
        """One line of at most `width` columns."""
        ...

    def waiting(self) -> Sequence[Waiting]:
        """Return the messages that wait."""
        ...

    def take_back(self) -> bool:
        """Take the last waiting message back for editing; whether there was one."""
        ...

    def cancel(self) -> bool:
        """Cancel the run or command at work; whether there was one."""
        ...

    def interrupt(self) -> None:
        """Cancel the running run, or leave."""
        ...

    def next_mode(self) -> None:
        """Switch to the next permission mode."""
        ...

    def note_key(self) -> None:
        """Notice that a key was pressed."""
        ...

    def edit(self) -> None:
        """Have the draft edited in the user's editor."""
        ...


class Entered(Struct, frozen=True):
    """A line that was entered.

    Attributes:
        text: the line, `!` or `/` included.
        acts: its `!` or `/` was typed as the first key of an empty line, so that it names a
            command; in any other line, such as a pasted one, it is a letter of the message.
        pasted: the parts of the text that were pasted: an `@` in them names no file.
    """

    text: str
    acts: bool = False
    pasted: Sequence[str] = ()

    @property
    def typed(self) -> str:
        """Return the text without the pasted parts."""
        text = self.text
        for part in self.pasted:
            text = text.replace(part, " ")
        return text


class LineStream(io.TextIOBase):
    """A terminal as a stream whose text goes through the line.

    Args:
        out: the terminal.
        write: takes the text.
    """

    def __init__(self, out: TextIO, write: Callable[[str], None]) -> None:
        self._out = out
        self._write = write

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - a fact here
        return self._out.encoding

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._out.fileno()

    def write(self, text: str, /) -> int:
        self._write(text)
        return len(text)

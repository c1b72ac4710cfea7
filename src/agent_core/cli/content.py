"""Reads the standard input of a run, and makes the message from it."""

import fcntl
import os
import stat
import sys
import termios

from msgspec import Struct

from agent_core.cli.options import Options
from agent_core.cli.terminal import Style, Terminal
from agent_core.errors import AgentCoreError, validation_error
from agent_core.text.content import mark_content

MOST_CONTENT = 10_000_000
"""Bytes of standard input that a message may have."""


class CommandMessage(Struct, frozen=True):
    """The user's message.

    Attributes:
        words: of the command line.
        content: of standard input, as a marked block; None if it is not used.
        text: both, in their order.
    """

    words: str
    content: str | None
    text: str


def read_message(options: Options, terminal: Terminal) -> CommandMessage:
    """The message of a run. Standard input is the message itself if `-` is all there is.

    Raises:
        AgentCoreError: `validation_error`: the content is too large, empty, or no text.
    """
    words = " ".join(options.message)
    if options.content_at is None:
        return CommandMessage(words, None, words)
    content = _read_content(terminal)
    if not words.strip():
        return CommandMessage(content, None, content)
    block = mark_content(content, "standard input")
    before = " ".join(options.message[: options.content_at])
    after = " ".join(options.message[options.content_at :])
    return CommandMessage(words, block, "\n\n".join(filter(None, (before, block, after))))


def holds_unread_text() -> bool:
    """Return whether standard input is a pipe or a file with bytes that were not read."""
    try:
        descriptor = sys.stdin.fileno()
        facts = os.fstat(descriptor)
        if stat.S_ISREG(facts.st_mode):
            return os.lseek(descriptor, 0, os.SEEK_CUR) < facts.st_size
        if not (stat.S_ISFIFO(facts.st_mode) or stat.S_ISSOCK(facts.st_mode)):
            return False
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) > 0
    except (AttributeError, OSError, ValueError):  # there is no standard input
        return False


def _read_content(terminal: Terminal) -> str:
    descriptor = sys.stdin.fileno()
    if os.isatty(descriptor):
        terminal.line("type the content; Ctrl-D on a separate line ends it", Style.DIM)
    raw = bytearray()
    try:
        while piece := os.read(descriptor, 65_536):
            raw += piece
            if len(raw) > MOST_CONTENT:
                raise _unusable(
                    f"has more than {MOST_CONTENT // 1_000_000} MB; name a file instead"
                )
    except OSError as error:
        raise _unusable(f"cannot be read: {error.strerror or error}") from None
    if b"\0" in raw:
        raise _unusable("is not text; attach an image or a PDF with --image")
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        content = raw.decode("utf-8-sig", errors="replace")
        place = f"from byte {error.start} on"
        terminal.line(f"standard input is not all UTF-8, {place}: see � in it", Style.WARN)
    if not content.strip():
        raise _unusable("is empty, and - in the message is replaced by it")
    return content


def _unusable(why: str) -> AgentCoreError:
    return validation_error(f"standard input {why}")

"""Calls a person back to a window that they have left: by a bell or a notification, and its title.

Only sequences are written that the terminal is known to take, and that take no room on the screen.
"""

import asyncio
import os
import select
import signal
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import TextIO

from agent_core.config.terminal import TerminalConfig
from agent_core.text import short_line, visible

_BELL = "\x07"
_END = "\x1b\\"
_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"
_PROGRAMS = {"iTerm.app": 9, "WezTerm": 9, "ghostty": 9}
"""Values of `$TERM_PROGRAM`, with the operating system command that shows a notification there."""
_KINDS = {"xterm-kitty": 9, "xterm-ghostty": 9, "foot": 777, "foot-extra": 777}
"""The same for values of `$TERM`."""
_TITLED = ("xterm", "foot", "alacritty", "wezterm", "ghostty")
"""Beginnings of `$TERM` where a title can be saved and restored."""
_MULTIPLEXERS = ("TMUX", "STY", "ZELLIJ")
"""Variables of programs between this one and the terminal, which the other variables describe."""
_MOST_CHARS = 100


class Notifier:
    """Notifies the user of questions and of finished work, unless the user is at the terminal.

    Args:
        out: the terminal.
        environ: describes it.
        settings: whether to notify, and after how many seconds without a key.
        project: the name of the folder, to tell windows apart.
    """

    def __init__(
        self, out: TextIO, environ: Mapping[str, str], settings: TerminalConfig, project: str
    ) -> None:
        self._out = out
        self._settings = settings
        self._project = project
        self._number = notification_of(environ)
        kind = environ.get("TERM", "")
        self._has_title = kind.startswith(_TITLED) and not _is_within(environ)
        self._touched_at = monotonic()
        self._pending: asyncio.TimerHandle | None = None
        self._is_titled = False

    def touched(self) -> None:
        """Notice that the user is there."""
        self._touched_at = monotonic()
        self.settle()

    def asks(self, name: str) -> None:
        """Notify of a question as soon as no key has been pressed for long enough."""
        if self._settings.notify and self._pending is None:
            loop = asyncio.get_running_loop()
            wait_s = self._touched_at + self._settings.notify_after_s - monotonic()
            self._pending = loop.call_later(max(wait_s, 0), self._call, f"{name} has a question")

    def done(self) -> None:
        """Notify that the work is done, if no key has been pressed for long enough."""
        is_left = monotonic() - self._touched_at >= self._settings.notify_after_s
        if self._settings.notify and is_left:
            self._call("finished")

    def settle(self) -> None:
        """Restore the title, for nothing waits for the user any more."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        if self._is_titled:
            self._write(self.restoring)
            self._is_titled = False
            with suppress(RuntimeError, ValueError):  # signals are for the main thread
                asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)

    @property
    def restoring(self) -> str:
        """Return what restores the title, for a process that ends at once."""
        return _RESTORE_TITLE if self._is_titled else ""

    def _call(self, what: str) -> None:
        self._pending = None
        text = self._printable(f"soong-agent: {what}, in {self._project}")
        called = _BELL
        if self._number == 9:
            called = f"\x1b]9;{text}{_END}"
        elif self._number == 777:
            called = f"\x1b]777;notify;soong-agent;{text.replace(';', ',')}{_END}"
        if self._has_title:
            called += ("" if self._is_titled else _SAVE_TITLE) + f"\x1b]2;{text}{_END}"
            self._is_titled = True
            with suppress(RuntimeError, ValueError):
                if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
                    asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._suspend)
        self._write(called)

    def _suspend(self) -> None:
        """Restore the title before the shell gets the terminal."""
        self.settle()
        os.kill(os.getpid(), signal.SIGTSTP)

    def _printable(self, text: str) -> str:
        """Return a text that ends no sequence: neither as letters nor as bytes."""
        shown = short_line(visible(text, one_line=True), _MOST_CHARS)
        if not (self._out.encoding or "").lower().startswith("utf"):
            shown = shown.encode("ascii", "replace").decode()
        return "".join(filter(str.isprintable, shown))

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError, RuntimeError):  # it is gone, or being written to
            if select.select([], [self._out], [], 0)[1]:  # a stopped terminal holds nothing up
                self._out.write(text)
                self._out.flush()


def notification_of(environ: Mapping[str, str]) -> int | None:
    """Return the number of the command that shows a notification; None: the bell rings."""
    if _is_within(environ):
        return None
    kind = environ.get("TERM", "")
    return _KINDS.get(kind) or _PROGRAMS.get(environ.get("TERM_PROGRAM", ""))


def _is_within(environ: Mapping[str, str]) -> bool:
    """Return whether another program draws the screen, and would not pass everything on."""
    return any(environ.get(name) for name in _MULTIPLEXERS)

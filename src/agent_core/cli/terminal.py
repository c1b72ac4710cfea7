"""What is shown: nothing of it can act on a terminal, crash the program, or give a secret away."""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TextIO

from agent_core.agents.definitions import AgentDefinitions
from agent_core.cli.options import COMPLETED, FAILED, MISUSED
from agent_core.config.load import CONFIG_NAME, MODEL_VARIABLE, model_secrets, read_setup
from agent_core.config.paths import Setup, resolve_home
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.redaction import Redactor
from agent_core.redaction.shapes import kind_of_name
from agent_core.text import visible

Clean = Callable[[str], str]
"""Takes out of a text whatever is, or looks like, a secret."""


class Style(StrEnum):
    """How a line on standard error looks, where colours are welcome."""

    PLAIN = ""
    DIM = "\x1b[2m"
    BOLD = "\x1b[1m"
    GOOD = "\x1b[32m"
    BAD = "\x1b[31m"
    WARN = "\x1b[33m"


_RESET = "\x1b[0m"
_NO_MODEL = "ollama:none"
_GONE = {errno.EPIPE, errno.EIO, errno.EBADF}  # no reader, no terminal, no file


class OutputClosedError(Exception):
    """Standard output takes no more text.

    Attributes:
        is_gone: the reader went away, which is no error; otherwise, say, the disk is full.
    """

    def __init__(self, reason: str, *, is_gone: bool) -> None:
        super().__init__(reason)
        self.is_gone = is_gone


class Terminal:
    """Writes the answer to `out` and everything else, line by line, to `err`.

    Attributes:
        is_watched: whether `err` is a terminal.
        can_draw: whether that terminal can do more than show lines.
        streams_answer: whether text is written before it is known to be the answer.
    """

    def __init__(self, out: TextIO, err: TextIO, *, environ: Mapping[str, str]) -> None:
        self._out = out
        self._err: TextIO | None = err
        self._is_mid_line = False
        self._held_return = False
        self._is_asking = False
        self._below = 0
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        self._colours = _is_tty(err) and not plain
        self._shares_screen = _is_tty(out) and _is_tty(err)
        self.streams_answer = self._shares_screen
        self.is_watched = _is_tty(err)
        self.can_draw = self.is_watched and environ.get("TERM") != "dumb"
        self._width = shutil.get_terminal_size().columns if _is_tty(err) else 200

    @property
    def width(self) -> int:
        """Columns a line may take; never so few that nothing fits."""
        return max(self._width, 20)

    def text(self, text: str) -> None:
        r"""Write a piece of the answer. A `\r` waits for the next piece, which may begin with `\n`.

        Raises:
            OutputClosedError: it cannot be written.
        """
        if self._held_return:
            text = "\r" + text
        self._held_return = text.endswith("\r")
        shown = visible(text.removesuffix("\r"), zero_width=False)
        if shown:
            self._is_mid_line = not shown.endswith("\n")
            self._write(shown)

    def end_text(self) -> None:
        """End the line, if the answer has not done so.

        Raises:
            OutputClosedError: it cannot be written.
        """
        self._held_return = False
        if self._is_mid_line:
            self._is_mid_line = False
            self._write("\n")

    def show_below(self, picture: str) -> None:
        """Show lines below all that was written; the next thing written takes their place.

        `picture` must be fit for a terminal and no wider than one. Nothing is shown in the
        middle of a line or of a question.
        """
        if self._is_asking or (self._shares_screen and self._is_mid_line):
            return
        self._clear_below()
        lines = picture.splitlines()[: max(shutil.get_terminal_size().lines - 2, 0)]
        if lines and self.can_draw:
            self._note("".join(f"{line}\n" for line in lines))
            self._below = len(lines)

    def _clear_below(self) -> None:
        if self._below:
            up, self._below = self._below, 0
            self._note(f"\x1b[{up}A\r\x1b[J")

    def line(self, text: str, style: Style = Style.PLAIN) -> None:
        """Write lines to standard error; they are dropped where it takes none."""
        self._is_asking = False
        text = visible(text)
        if self._colours and style is not Style.PLAIN:
            text = f"{style.value}{text}{_RESET}"
        self._note(f"{text}\n")

    def leave_line(self) -> None:
        """Make what comes next begin on a new line: the cursor may stand behind a question, a
        piece of the answer, or the `^C` that a terminal shows.
        """
        if self._shares_screen and self._is_mid_line:
            return  # the next line does that by itself
        if self._is_asking or self._is_mid_line or self.is_watched:
            self._is_asking = False
            self._note("\n")

    def ask(self, text: str) -> None:
        """Write the end of a question: the cursor stays behind it."""
        self._note(visible(text))
        self._is_asking = True

    def _note(self, text: str) -> None:
        if self._err is None:
            return
        self._clear_below()
        try:
            if self._shares_screen and self._is_mid_line:
                self._is_mid_line = False
                text = "\n" + text
            self._err.write(text)
            self._err.flush()
        except (OSError, ValueError):
            self._err = None

    def _write(self, text: str) -> None:
        if self._shares_screen:
            self._clear_below()
        try:
            self._out.write(text)
            self._out.flush()
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputClosedError(reason, is_gone=error.errno in _GONE) from None
        except ValueError as error:  # the file object was closed
            raise OutputClosedError(str(error), is_gone=True) from None


def _is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def exit_code_of(error: Exception) -> int:
    """The exit code of a command that ended with this error."""
    is_misuse = isinstance(error, AgentCoreError) and error.code is ErrorCode.VALIDATION_ERROR
    return MISUSED if is_misuse or isinstance(error, ConfigError) else FAILED


def run_on_terminal(
    path: str | None, work: Callable[[Setup, Terminal, Clean], int], *, asks_model: bool = True
) -> int:
    """Do a command that looks at the disk, and return its exit code; every error is shown.

    Args:
        path: the project, as the user has named it.
        work: gets the settings, where to write, and what takes secrets out of a text.
        asks_model: whether it may ask a model; otherwise none has to be configured.
    """
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    clean = build_terminal_redactor(os.environ).text
    try:
        home = resolve_home()
        is_configured = os.environ.get(MODEL_VARIABLE) or os.path.lexists(home / CONFIG_NAME)
        if asks_model or is_configured:
            setup = read_setup(path)
        else:  # the model of `run --model` is not known here
            setup = read_setup(path, home_dir=home, model=_NO_MODEL)
        clean = build_terminal_redactor(os.environ, setup).text
        return work(setup, terminal, clean)
    except OutputClosedError:
        return COMPLETED
    except (AgentCoreError, OSError, ValueError) as error:
        terminal.line(f"error: {clean(str(error))}", Style.BAD)
        return exit_code_of(error)


def build_terminal_redactor(environ: Mapping[str, str], setup: Setup | None = None) -> Redactor:
    """A redactor that knows the variables whose names promise a secret, and all that is configured.

    The runtime's own redactor cleans events. This one is for errors before there is a runtime,
    for log lines that come past it, and for what lies on the disk: it may have been written by
    hand, or before a secret was known. A file of settings that cannot be read adds nothing.

    Args:
        environ: the environment.
        setup: whose secrets are known too: keys of models, and what MCP servers are given.
    """
    redactor = Redactor({name: value for name, value in environ.items() if kind_of_name(name)})
    if setup is not None:
        redactor.learn(model_secrets(setup.config, environ=environ))
        with suppress(AgentCoreError):
            profiles = AgentDefinitions(setup.home).profiles()
            redactor.learn(model_secrets(setup.config, *profiles, environ=environ))
        if (setup.home / "mcp.json").exists():
            # Only loaded for users who have servers.
            from agent_core.mcp import (  # noqa: PLC0415
                read_servers,
                secret_values,
                stored_secrets,
            )

            with suppress(AgentCoreError):
                servers = read_servers(setup.home, setup.project)
                redactor.learn(secret_values(servers) | stored_secrets(setup.home))
    return redactor

"""Shows text that cannot act on a terminal, crash the program, or reveal a secret."""

import asyncio
import select
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

from agent_core.cli.exit_codes import FAILED, MISUSED, OUTPUT_CLOSED
from agent_core.cli.layout import cells, reflows, rows_of, window_size, wrapped
from agent_core.cli.streams import is_gone
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, PortableError
from agent_core.text import short_line, visible

if TYPE_CHECKING:
    from agent_core.cli.lines import InputLines
    from agent_core.cli.notify import Notifier


class Style(StrEnum):
    """Style of a piece of text where colours are welcome, with colours every terminal has."""

    PLAIN = ""
    DIM = "\x1b[2m"
    BOLD = "\x1b[1m"
    GOOD = "\x1b[32m"
    BAD = "\x1b[31m"
    WARN = "\x1b[33m"


_WAITS = "waits"
"""The slot of the line that says that a question waits."""
_RESET = "\x1b[0m"
_SIGNS = "●⠋…│✓"

Part = tuple[str, Style]
"""A piece of a line, and its look."""


class OutputClosedError(PortableError):
    """Standard output takes no more text.

    Attributes:
        is_gone: the reader went away, which is no error; otherwise, say, the disk is full.
    """

    def __init__(self, reason: str, *, is_gone: bool) -> None:
        super().__init__(reason)
        self.is_gone = is_gone


class Terminal:
    """Writes the answer to `out` and everything else, line by line, to `err`.

    If both are one screen that can be drawn on, there is a region below the output, which is
    redrawn whenever text is written above it. It has slots, one for each user.

    Args:
        out: takes the answer.
        err: takes everything else.
        environ: has `NO_COLOR` and `TERM`.
        plain: draw nothing and use no colours: whole lines alone, for screen readers.

    Attributes:
        is_watched: `err` is a terminal.
        can_draw: a region can be drawn on it.
        has_colours: styles are shown.
        shares_screen: the answer and all other text are on one screen.
        streams_answer: text is written before it is known to be the answer.
        has_signs: signs beyond ASCII can be written.
        has_status: a line of its own always shows the tokens and the cost so far.
        notifier: notifies a user who may have left the window.
    """

    notifier: "Notifier | None" = None

    def __init__(
        self, out: TextIO, err: TextIO, *, environ: Mapping[str, str], plain: bool = False
    ) -> None:
        self._out = out
        self._err: TextIO | None = err
        self._is_mid_line = False
        self._held_return = False
        self._is_asking = False
        self._questions = 0
        self._asked: list[tuple[str, bool]] | None = None
        self._asked_width = 0
        self._asker: asyncio.Task[object] | None = None
        self._on_answer: list[Callable[[], object]] = []
        self._slots: dict[str, list[str]] = {}
        self._drawn: list[str] = []
        self._drawn_width = 0
        self._reflows = reflows(environ)
        is_dumb = plain or environ.get("TERM") == "dumb"
        self.has_colours = _is_tty(err) and not is_dumb and not environ.get("NO_COLOR")
        self.shares_screen = _is_tty(out) and _is_tty(err)
        self.streams_answer = self.shares_screen
        self.is_watched = _is_tty(err)
        self.can_draw = self.is_watched and not is_dumb
        self.has_signs = _can_write(err, _SIGNS)
        self.has_status = False

    @property
    def stream(self) -> TextIO | None:
        """Standard error; None once it takes nothing any more."""
        return self._err

    @property
    def width(self) -> int:
        """Columns a line may take; never so few that nothing fits."""
        return max(self._size()[0], 20)

    @property
    def rows(self) -> int:
        """Lines of the screen."""
        return self._size()[1]

    def _size(self) -> tuple[int, int]:
        """The screen as it is now: windows change their size."""
        if not self.is_watched or self._err is None:
            return 200, 50
        return window_size(self._err)

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

    def entry(self, line: str) -> None:
        """Write a line of a list, broken between words where it goes to the screen.

        Raises:
            OutputClosedError: it cannot be written.
        """
        for part in self.wrap(line) if self.shares_screen else [line]:
            self.text(f"{part}\n")

    def record(self, line: str) -> None:
        """Write a line that names a new object.

        Raises:
            OutputClosedError: it cannot be written; standard error has it instead.
        """
        try:
            self.text(f"{line}\n")
        except OutputClosedError as closed:
            self.line(f"standard output cannot be written ({closed}): {line}", Style.WARN)
            raise

    def end_text(self) -> None:
        """End the line, if the answer has not done so.

        Raises:
            OutputClosedError: it cannot be written.
        """
        self._held_return = False
        if self._is_mid_line:
            self._is_mid_line = False
            self._write("\n")

    def block(self, rendered: str) -> None:
        """Write whole lines of the answer that are fit for a terminal as they are.

        Raises:
            OutputClosedError: they cannot be written.
        """
        self._is_mid_line = False
        self._write(rendered)

    def require_reader(self) -> None:
        """Notice that the answer has lost its reader before it is written.

        Raises:
            OutputClosedError: it has.
        """
        poll = select.poll()
        try:
            poll.register(self._out.fileno(), 0)
            if any(state & select.POLLERR for _, state in poll.poll(0)):
                raise OutputClosedError("the reader is gone", is_gone=True)
        except (OSError, ValueError):  # no descriptor: its writes will say
            return

    def draw(self, slot: str, lines: Sequence[str]) -> None:
        """Show lines in the region below the output; without lines the slot is empty.

        They must be fit for a terminal and no wider than one. Nothing is shown in the middle of a
        line or of a question.
        """
        if not self.can_draw or self._slots.get(slot, []) == list(lines):
            return
        self._slots[slot] = list(lines)
        self._note("")

    def show_below(self, picture: str) -> None:
        """Show a picture in the region, its slot `picture`."""
        self.draw("picture", picture.splitlines())

    def _region(self) -> str:
        """Return the text that draws the region again."""
        is_mid_line = self.shares_screen and self._is_mid_line
        if self._is_asking or self._questions or is_mid_line or not self.can_draw:
            return ""
        width, room = self._size()
        room, lines = max(room - 2, 0), list[str]()
        for line in [each for slot in sorted(self._slots) for each in self._slots[slot]][::-1]:
            room -= rows_of(line, width)
            if room < 0:
                break
            lines.insert(0, line)
        self._drawn, self._drawn_width = lines, width
        return "".join(f"{line}\n" for line in lines)

    def _clear_region(self) -> str:
        """Return the text that takes the region off the screen.

        When a window becomes narrower, most terminals wrap the lines: they take more rows then.
        """
        if not self._drawn:
            return ""
        width = self._size()[0] if self._reflows else self._drawn_width
        up, self._drawn = sum(rows_of(line, width) for line in self._drawn), []
        return f"\x1b[{up}A\r\x1b[J"

    def line(self, text: str, style: Style = Style.PLAIN) -> None:
        """Write lines to standard error; they are dropped if it is closed.

        Where a person reads them, lines that are too long break between words.
        """
        self.parts((self._broken(text), style))

    def message(self, text: str) -> None:
        """Write a message of the user to standard error, with the joiners that its script needs."""
        first, *rest = visible(text, zero_width=False).split("\n")
        shown = self._broken("\n".join([f"> {first}", *(f"  {line}" for line in rest)]))
        bold = self.has_colours
        self._is_asking = False
        self._note(f"{Style.BOLD.value}{shown}{_RESET}\n" if bold else f"{shown}\n")

    def _broken(self, text: str) -> str:
        if not self.is_watched or len(text) <= self.width // 2:
            return text
        return "\n".join(
            part
            for line in text.split("\n")
            for part in ([line] if cells(line) <= self.width else self.wrap(line))
        )

    def command(self, said: str, command: str, style: Style = Style.PLAIN) -> None:
        """Write a line that ends with a command; the command stays on a line, to be copied."""
        lines = [f"{said} {command}"]
        if self.is_watched and cells(lines[0]) > self.width:
            lines = [*self.wrap(said), command]
        for line in lines:
            self.parts((line, style))

    def wrap(self, text: str) -> list[str]:
        """Break the text into lines between words, if a person reads them."""
        if not self.is_watched:
            return [text]
        room = self.width - 1
        return [part for line in text.split("\n") for part in wrapped(line, room, breaks=False)]

    def parts(self, *parts: Part) -> None:
        """Write a line of several looks to standard error."""
        self._is_asking = False
        self._note("".join(self.styled(text, style) for text, style in parts) + "\n")

    def styled(self, text: str, style: Style) -> str:
        """The text as it can be written: no part of it acts on the terminal."""
        text = visible(text)
        return f"{style.value}{text}{_RESET}" if self.has_colours and style and text else text

    def leave_line(self) -> None:
        """Make the next output begin on a new line.

        The cursor may be behind a question, a piece of the answer, or the `^C` of a terminal.
        """
        if self.shares_screen and self._is_mid_line:
            return  # the next line does that by itself
        if self._is_asking or self._is_mid_line or self.is_watched:
            self._is_asking = False
            self._note("\n")

    def ask(self, text: str) -> None:
        """Write the end of a question: the cursor stays behind it."""
        self._is_asking = True
        self._note(visible(text))

    def begin_question(self) -> None:
        """Remember from here on what this task shows, until `end_question` takes it away.

        Callbacks of the event loop, as after a suspension, show for the task.
        """
        if not self.can_draw:
            return
        if self.shares_screen and self._is_mid_line:
            self._is_mid_line = False
            self._put("\n")
        self._asked, self._asked_width = [], self._size()[0]
        self._asker = asyncio.current_task() or self._asker

    def keep_question(self) -> None:
        """Leave the open question on the screen."""
        self._asked = None

    def question_rows(self) -> int:
        """Return how many rows of the screen the open question takes."""
        width = self._size()[0] if self._reflows else self._asked_width
        return sum(rows_of(line, width) for line in self._asked_text().split("\n"))

    def _asked_text(self) -> str:
        return "".join(text for text, _ in self._asked or ())

    def end_question(self) -> bool:
        """Take the open question off the screen; return whether it could be taken off.

        What others have written since it began is written again.
        """
        if self._asked is None:
            return False
        up = min(self.question_rows(), self.rows) - 1
        others = "".join(text for text, is_own in self._asked if not is_own)
        self._asked, self._is_asking = None, False
        above = f"\x1b[{up}A" if up > 0 else ""
        self._put(f"{above}\r\x1b[J{others}")
        return True

    def retype(self, before: str, after: str) -> None:
        """Show what was typed behind the open question as it is now."""
        if not self._asked:
            return
        *above, (text, is_own) = self._asked
        shown = self._asked_text().rpartition("\n")[2]
        self._asked = [*above, (f"{text.removesuffix(before)}{after}", is_own)]
        if after.startswith(before):
            self._put(after[len(before) :])
            return
        up = rows_of(shown, self._size()[0]) - 1
        start = f"\x1b[{up}A" if up else ""
        now = self._asked_text().rpartition("\n")[2]
        self._put(f"{start}\r\x1b[J{now}")

    @asynccontextmanager
    async def question(self) -> AsyncGenerator[None]:
        """Keep the screen for a question until it is answered: the region is not drawn."""
        self._questions += 1
        try:
            yield
        finally:
            self._questions -= 1
            self._is_asking, self._asked = False, None
            if not self._questions:
                waiting, self._on_answer = self._on_answer, []
                for resume in waiting:
                    resume()

    @asynccontextmanager
    async def question_at_rest(self, lines: "InputLines", about: str) -> AsyncGenerator[None]:
        """Keep the screen for a question, once the user has stopped typing.

        Args:
            lines: source of the answer.
            about: names the question while it waits.
        """
        await self.rest(lines, about)
        async with self.question():
            if self.notifier is None:
                yield
                return
            self.notifier.asks(about)
            try:
                yield
            except asyncio.CancelledError:  # the question is withdrawn
                self.notifier.settle()
                raise
            except BaseException:
                self.notifier.touched()
                raise
            self.notifier.touched()

    async def enter(
        self, lines: "InputLines", question: str, about: str, before: Sequence[str] = ()
    ) -> str | None:
        """Ask for a line, and return it; None at the end of the input.

        At a terminal only keys count that were pressed after the question began to show.

        Args:
            lines: where the answer comes from.
            question: the line that the answer is typed behind.
            about: names the question while it waits.
            before: the lines above it.
        """

        def ask() -> None:
            for line in before:
                self.line(line)
            self.ask(question)

        async with self.question_at_rest(lines, about):
            return await lines.answer(ask)

    async def confirm(
        self, lines: "InputLines", question: str, about: str, before: Sequence[str] = ()
    ) -> bool:
        """Ask as `enter` does whether to go ahead, and return whether the answer is yes."""
        answer = await self.enter(lines, question, about, before)
        return (answer or "").strip().casefold() in {"y", "yes"}

    async def rest(self, lines: "InputLines", about: str) -> None:
        """Wait until the user stops typing, and show that a question waits."""
        is_shown = False
        text = waiting_question(about)

        def show(_: str) -> None:
            nonlocal is_shown
            if not is_shown:
                self.leave_line()
                if self.can_draw:
                    self.draw(_WAITS, [self.styled(short_line(text, self.width - 1), Style.WARN)])
                else:
                    self.line(text, Style.WARN)
            is_shown = True

        try:
            await lines.rest(show)
        finally:
            self.draw(_WAITS, [])

    @property
    def keeps_text(self) -> bool:
        """True if `give_back` has a line to put a text on."""
        return False

    def give_back(self, text: str) -> bool:
        """Put a text that was typed at a question on the line of input; return if there is one."""
        del text
        return False

    def wait_for_answer(self, resume: Callable[[], object]) -> bool:
        """Call `resume` after the open question; return False if no question is open."""
        if self._questions:
            self._on_answer.append(resume)
        return bool(self._questions)

    def _note(self, text: str) -> None:
        if self._err is None:
            return
        begin = self._clear_region()
        if text and self.shares_screen and self._is_mid_line:
            self._is_mid_line = False
            begin += "\n"
        if self._asked is not None and text:
            self._asked.append((text, asyncio.current_task() in {self._asker, None}))
        self._put(begin + text + self._region())

    def _put(self, text: str) -> None:
        """Write to standard error as it is; a stream that takes nothing is given up."""
        if self._err is None or not text:
            return
        try:
            self._err.write(text)
            self._err.flush()
        except (OSError, ValueError):
            self._err = None

    def _write(self, text: str) -> None:
        if self.shares_screen:
            self._put(self._clear_region())
        try:
            self._out.write(text)
            self._out.flush()
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputClosedError(reason, is_gone=is_gone(error)) from None
        except ValueError as error:  # the file object was closed
            raise OutputClosedError(str(error), is_gone=True) from None
        if self.shares_screen:
            self._put(self._region())


def waiting_question(about: str) -> str:
    """Return the line which shows that a question waits for the user to stop typing."""
    name = visible(about, one_line=True)
    return f"{name} asks; Enter, or no key for a second, opens the question"


def _can_write(stream: TextIO, signs: str) -> bool:
    try:
        signs.encode(getattr(stream, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


_MISUSES = {
    ErrorCode.VALIDATION_ERROR,
    ErrorCode.ALREADY_ANSWERED,
    ErrorCode.APPROVAL_NOT_FOUND,
    ErrorCode.SESSION_NOT_FOUND,
}


def exit_code_of(error: Exception) -> int:
    """The exit code of a command that ended with this error."""
    is_misuse = isinstance(error, AgentCoreError) and error.code in _MISUSES
    return MISUSED if is_misuse or isinstance(error, ConfigError) else FAILED


def report_closed_output(closed: OutputClosedError, terminal: Terminal) -> int:
    """Return the exit code after a closed output; a reader that left is no error."""
    if closed.is_gone:
        return OUTPUT_CLOSED
    terminal.line(f"error: standard output cannot be written: {closed}", Style.BAD)
    return FAILED

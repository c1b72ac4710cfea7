"""Puts the questions of MCP servers to the person at the terminal: forms, addresses, logins.

Texts of a server are marked as its words. Values that promise to be secret are not shown while
they are typed.
"""

import asyncio
import os
import sys
import termios
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, cast

from agent_core.cli.layout import ASCII_SIGNS, SIGNS, cells, fitted
from agent_core.cli.lines import ESCAPE, InputLines
from agent_core.cli.question import MARK, rows_of
from agent_core.cli.terminal import Style, Terminal
from agent_core.errors import ToolError
from agent_core.text import listed, shortened, visible
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import ElicitationAnswer, ElicitationRequest

_DECLINE = "/decline"
_NO_BROWSER = "no browser could be opened: visit the address yourself"
_MOST_TRIES = 5
_MOST_CHOICES = 40
"""So many choices are listed; others are found by a part of their names."""
_LONGEST_LINE = 400
_NO_LONGER = "the question is no longer open"
_SAID = {"accept": "answered", "decline": "declined", "cancel": "not answered"}
_YES = {"y", "yes", "true", "1"}
_NO = {"n", "no", "false", "0"}

_ACCEPTED = ElicitationAnswer(action="accept")
_DECLINED = ElicitationAnswer(action="decline")
_CANCELLED = ElicitationAnswer(action="cancel")
_BACK = ElicitationAnswer(action="cancel")
"""Escape at a field: the field before it is asked again; at the first one, nothing is answered."""


class TerminalElicitation:
    """The elicitation callback of the command line; one question at a time.

    Args:
        terminal: where to ask.
        lines: where to read from.
        turn: lock shared with other questions there.
        descriptor: the input's, to hide what is typed.
        waits_for_login: the command exists for the login, and asks for it even without a
            terminal.
    """

    def __init__(
        self,
        terminal: Terminal,
        lines: InputLines,
        *,
        turn: asyncio.Lock,
        descriptor: int,
        waits_for_login: bool = False,
    ) -> None:
        self._terminal = terminal
        self._lines = lines
        self._turn = turn
        self._descriptor = descriptor
        self._waits_for_login = waits_for_login
        self._is_interactive = os.isatty(descriptor) and terminal.is_watched

    async def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        """Show the question and read the answer."""
        about = f"MCP server {request.server_id}"
        async with self._turn, self._terminal.question_at_rest(self._lines, about):
            if self._edits:
                self._terminal.begin_question()
            try:
                with self._unechoed():
                    ask = self._fill_in if request.mode == "form" else self._visit
                    answer = await ask(request)
            except asyncio.CancelledError:
                self._end(request, _NO_LONGER)
                raise
            self._end(request, _SAID[answer.action])
            return answer

    def _end(self, request: ElicitationRequest, said: str) -> None:
        """Take the question off the screen, and leave a line with its subject and the answer."""
        terminal = self._terminal
        if terminal.end_question():
            asked = f"MCP server {request.server_id}: {_line(request.message)}"
            signs = SIGNS if terminal.has_signs else ASCII_SIGNS
            room = max(terminal.width - cells(said) - 4, terminal.width // 2)
            terminal.parts((fitted(asked, room, signs), Style.BOLD), (f"  {said}", Style.DIM))
        elif said == _NO_LONGER:
            terminal.leave_line()
            terminal.line(said, Style.DIM)

    async def _visit(self, request: ElicitationRequest) -> ElicitationAnswer:
        is_login = request.purpose == "login"
        if is_login and not self._is_interactive and not self._waits_for_login:
            return _DECLINED
        show: Callable[[], object] = partial(self._show_visit, request, is_login=is_login)
        for _ in range(_MOST_TRIES):
            line = await self._consent("> ", show)
            show = _show_nothing
            answer = (line or "").strip()
            if line is None:
                return _CANCELLED
            if is_login and answer.startswith(("http://", "https://")):
                return ElicitationAnswer(action="accept", content={"redirect_url": answer})
            if answer.casefold() in _YES:
                if not self._is_interactive or await _open(request.url or ""):
                    return _ACCEPTED
                show = partial(self._terminal.line, _NO_BROWSER, Style.WARN)
                if not is_login:
                    self._terminal.keep_question()
                    show()
                    return _ACCEPTED
            elif not self._is_interactive or answer.casefold() in {*_NO, _DECLINE}:
                return _DECLINED
        return _CANCELLED

    def _show_visit(self, request: ElicitationRequest, *, is_login: bool) -> None:
        self._show(request, "wants you to log in" if is_login else "wants you to open an address")
        self._terminal.line(f"  host: {_line(request.host)}", Style.BOLD)
        self._terminal.line(f"  {visible(request.url or '', one_line=True)}")  # to copy it whole
        choices = "y open it in the browser  n do not"
        if not self._is_interactive:
            choices = "y agree, and visit it yourself  n do not"
        if is_login:
            choices += "  or paste the address at which the browser finally arrives"
        for part in self._terminal.wrap(choices):
            self._terminal.line(part)

    async def _fill_in(self, request: ElicitationRequest) -> ElicitationAnswer:
        # The server side is imported for users who have servers.
        from agent_core.mcp.elicitation import is_secret_field  # noqa: PLC0415

        schema = request.requested_schema or {}
        fields = cast("dict[str, JsonObject]", schema.get("properties", {}))
        required = cast("list[str]", schema.get("required", []))
        if not fields:
            show = partial(self._show, request, "asks you")
            line = await self._consent("y agree  n do not > ", show)
            if line is None:
                return _CANCELLED
            return _ACCEPTED if line.strip().casefold() in _YES else _DECLINED
        self._lines.forget_typed_ahead()
        self._show(request, "asks you")
        self._terminal.line(
            f"  An empty line takes the default or leaves a field out; {_DECLINE} answers nothing.",
            Style.DIM,
        )
        answers: list[JsonObject] = []
        names = [*fields]
        while len(answers) < len(names):
            name = names[len(answers)]
            field, is_required = fields[name], name in required
            is_secret = is_secret_field(name, field)
            with _hidden(self._descriptor) if is_secret else nullcontext():
                answer = await self._ask_field(
                    name, field, is_required=is_required, is_secret=is_secret
                )
            if answer is _BACK and answers:
                answers.pop()
            elif isinstance(answer, ElicitationAnswer):
                return answer
            else:
                answers.append(answer)
        content = {name: value for answer in answers for name, value in answer.items()}
        return ElicitationAnswer(action="accept", content=content)

    async def _ask_field(
        self, name: str, field: Mapping[str, JsonValue], *, is_required: bool, is_secret: bool
    ) -> JsonObject | ElicitationAnswer:
        """The field with its value, without one if it was left out, or how the form has ended."""
        from agent_core.tools.schema_check import SchemaCheck  # noqa: PLC0415 - as the server side

        choices = _choices(field)
        check = SchemaCheck(
            "form", {"type": "object", "properties": {name: dict(field)}, "required": [name]}
        )
        self._describe(name, field, choices, is_required=is_required)
        for _ in range(_MOST_TRIES):
            line = await self._read("  > ", is_secret=is_secret)
            if line is None:
                return _CANCELLED
            if line == ESCAPE:
                return _BACK
            if line.strip() == _DECLINE:
                return _DECLINED
            if not line.strip():
                if "default" in field:
                    return {name: field["default"]}
                if not is_required:
                    return {}
                problem = "this field is required"
            else:
                try:
                    typed = line if is_secret else line.strip()
                    return check({name: _parse(typed, field, choices)})
                except ToolError as error:
                    problem = "; ".join(each["message"] for each in error.details["errors"])
                    problem = "this is not valid" if is_secret else problem
                except ValueError as error:
                    problem = str(error)
            self._terminal.line(f"  {_line(problem)}", Style.WARN)
            if not self._is_interactive:
                break  # the next line was not meant for this
        return _CANCELLED

    def _show(self, request: ElicitationRequest, wish: str) -> None:
        self._terminal.leave_line()
        self._terminal.line(f"MCP server {request.server_id} {wish}:", Style.BOLD)
        self._quote(request.message)

    def _quote(self, text: str, style: Style = Style.PLAIN) -> None:
        """Show words of a server: none of their rows begins where the keys are."""
        width = self._terminal.width if self._terminal.is_watched else None
        for line in visible(text).splitlines():
            for row in rows_of(f"{MARK}{line}", width):
                self._terminal.line(row, style)

    def _describe(
        self,
        name: str,
        field: Mapping[str, JsonValue],
        choices: Mapping[str, JsonValue],
        *,
        is_required: bool,
    ) -> None:
        facts = [str(field.get("format") or field.get("type") or "text")]
        facts += ["required"] if is_required else []
        facts += [f"default {_shown(field['default'], choices)}"] if "default" in field else []
        title = str(field.get("title") or name)
        self._quote(f"{_line(title)} ({_line(', '.join(facts))})")
        if description := field.get("description"):
            self._quote(f"  {_line(str(description))}", Style.DIM)
        for number, choice in enumerate([*choices][:_MOST_CHOICES], 1):
            self._quote(f"  {number} {_line(choice)}")
        if (more := len(choices) - _MOST_CHOICES) > 0:
            self._terminal.line(f"    … {more:,} more: write a part of a name", Style.DIM)
        if field.get("type") == "boolean":
            self._terminal.line("    y or n", Style.DIM)
        if field.get("type") == "array":
            self._terminal.line("    several, with commas", Style.DIM)

    async def _consent(self, question: str, show: Callable[[], object]) -> str | None:
        """Return the line that was typed after `show` began to show what it consents to."""

        def ask() -> None:
            show()
            self._terminal.ask(question)

        if not self._edits:
            line = await self._lines.answer(ask)
        elif (line := await self._lines.edit(ask, self._terminal.retype)) == ESCAPE:
            line = None
        if self._edits or not self._is_interactive:
            self._terminal.leave_line()
        return line

    async def _read(self, question: str, *, is_secret: bool) -> str | None:
        """Return the next line, or `ESCAPE`; the fields of a form can be pasted together."""
        ask, show = partial(self._terminal.ask, question), self._terminal.retype
        if self._edits:
            line = await self._lines.edit(ask, _show_nothing if is_secret else show, is_one=False)
        else:
            ask()
            line = await self._lines.next()
        if self._edits or is_secret or not self._is_interactive:
            self._terminal.leave_line()
        return line

    def _unechoed(self) -> AbstractContextManager[None]:
        """Keep the terminal from showing by itself what is typed between two fields."""
        return self._lines.unbuffered() if self._edits else nullcontext()

    @property
    def _edits(self) -> bool:
        """True where keys are read one by one, so that Escape is one."""
        return self._is_interactive and self._terminal.can_draw and self._lines.is_terminal


def _show_nothing(*_: str) -> None:
    """Show nothing: the question is on the screen, or the text is secret."""


async def _open(url: str) -> bool:
    """Open an address in a graphical browser, and return whether that was possible."""
    has_window = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    import webbrowser  # noqa: PLC0415 - few runs open one

    return has_window and await asyncio.to_thread(webbrowser.open, url)


def _line(text: str | None) -> str:
    return shortened(visible(text or "", one_line=True), _LONGEST_LINE)


def _choices(field: Mapping[str, Any]) -> JsonObject:
    """Return the choices, by title: `enum` with `enumNames`, or constants with titles."""
    source = field.get("items", field) if field.get("type") == "array" else field
    if titled := source.get("oneOf") or source.get("anyOf"):
        pairs = ((each.get("title", each.get("const")), each.get("const")) for each in titled)
    else:
        values = source.get("enum") or ()
        pairs = zip(source.get("enumNames") or values, values, strict=False)
    return {str(title): value for title, value in pairs}


def _shown(value: Any, choices: Mapping[str, JsonValue]) -> str:
    """A default in the words that could be typed instead."""
    if isinstance(value, list):
        return ", ".join(_shown(each, choices) for each in cast("list[object]", value)) or "none"
    if isinstance(value, bool):
        return "y" if value else "n"
    return next((title for title, each in choices.items() if each == value), str(value))


def _parse(text: str, field: Mapping[str, JsonValue], choices: Mapping[str, JsonValue]) -> Any:
    """Return a typed text as a value of the field's type.

    Raises:
        ValueError: it is not of that type; the message describes the type.
    """
    kind = field.get("type")
    if kind == "array":
        return [_choose(part.strip(), choices) for part in text.split(",") if part.strip()]
    if choices:
        return _choose(text, choices)
    if kind == "boolean":
        if text.casefold() in _YES | _NO:
            return text.casefold() in _YES
        raise ValueError("write y or n")
    if kind in {"integer", "number"}:
        number: Callable[[str], float] = int if kind == "integer" else float
        try:
            return number(text)
        except ValueError:
            wanted = "a whole number" if kind == "integer" else "a number"
            raise ValueError(f"write {wanted}") from None
    return text


def _choose(text: str, choices: Mapping[str, JsonValue]) -> Any:
    """Return a choice by its number, its title or its value, or of many by a part of its title.

    Where there are no choices, anything is one.

    Raises:
        ValueError: it names none, or several, which the message names.
    """
    if not choices:
        return text
    if text.isdecimal() and 0 < int(text) <= len(choices):
        return [*choices.values()][int(text) - 1]
    if text in choices:
        return choices[text]
    if text in choices.values():
        return text
    if len(choices) <= _MOST_CHOICES:
        raise ValueError("choose one by its number")
    found = [title for title in choices if text.casefold() in title.casefold()]
    if len(found) == 1:
        return choices[found[0]]
    if not found:
        raise ValueError("none has that; choose one by its number, or by a part of its name")
    raise ValueError(f"{len(found):,} have that: {listed(found)}; write more of it")


@contextmanager
def _hidden(descriptor: int) -> Generator[None]:
    """Hide the typed text; a pipe shows nothing anyway."""
    try:
        before = termios.tcgetattr(descriptor)
    except (termios.error, OSError):
        yield
        return
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        with suppress(termios.error, OSError):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

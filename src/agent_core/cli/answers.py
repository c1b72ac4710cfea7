"""The source of answers to questions, and the report about unanswered ones."""

import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TextIO

from agent_core.cli.lines import InputLines
from agent_core.cli.options import Options
from agent_core.cli.question import subject_of
from agent_core.cli.terminal import Terminal
from agent_core.errors import validation_error
from agent_core.opening import open_descriptor
from agent_core.permissions.request import shown_rule
from agent_core.text import shortened, visible
from agent_core.text.json_text import JsonObject
from agent_core.types import ToolPermission

if TYPE_CHECKING:
    from agent_core.types import PermissionRequest

_LONGEST_CALL = 120
_LONGEST_TARGET = 1_000
_PLAIN = r"[\w./=:@%+, -]+"
"""A command without any sign that is special to a shell, or a rule."""
_RUN_COMMAND = "code.run_command"
_STANDARD = {None, "-"}
_CONTROLLING = "/dev/tty"


@contextmanager
def open_answers(options: Options) -> Generator[InputLines]:
    """Return the lines of `--answers`, else of standard input; none if that is the message.

    Raises:
        AgentCoreError: `validation_error`: the file cannot be read, or is the content.
    """
    takes_content = options.content_at is not None
    if options.answers in _STANDARD:
        lines = InputLines(sys.stdin.fileno())
        if takes_content:
            lines.end()
        yield lines
        return
    path = options.answers or ""
    shown = visible(path)
    try:
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise validation_error(f"--answers {shown} cannot be read: {why}") from None
    try:
        try:
            os.read(descriptor, 0)
        except OSError as error:
            raise validation_error(f"--answers {shown} cannot be read: {error.strerror}") from None
        found, standard = os.fstat(descriptor), os.fstat(sys.stdin.fileno())
        is_same = (found.st_dev, found.st_ino) == (standard.st_dev, standard.st_ino)
        if takes_content and is_same and not os.isatty(descriptor) and path != os.devnull:
            raise validation_error(
                f"--answers {shown} is standard input, which - uses for the content"
            )
        yield InputLines(descriptor)
    finally:
        os.close(descriptor)


class _Screen(Terminal):
    """The controlling terminal, for questions alone; the output is held back meanwhile."""

    def __init__(self, stream: TextIO, output: Terminal) -> None:
        super().__init__(stream, stream, environ=os.environ)
        self._output = output

    @asynccontextmanager
    async def question(self) -> AsyncGenerator[None]:
        async with self._output.question(), super().question():
            yield


@contextmanager
def open_screen(terminal: Terminal, lines: InputLines) -> Generator[tuple[Terminal, InputLines]]:
    """Yield the terminal that shows questions, and the lines that answer them.

    A person who does not see standard error is asked on the controlling terminal. Without one,
    no question is asked: a question that is not seen must not wait for a key.
    """
    if terminal.is_watched or not lines.is_terminal:
        yield terminal, lines
        return
    try:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY
        descriptor = open_descriptor(_CONTROLLING, flags)
    except OSError:
        lines.end()
        yield terminal, lines
        return
    encoding = sys.stderr.encoding
    with os.fdopen(descriptor, "w", encoding=encoding, errors="backslashreplace") as stream:
        yield _Screen(stream, terminal), InputLines(descriptor)


def how_to_allow(denied: "Sequence[PermissionRequest]") -> str:
    """Return one line about calls denied without a question, and how the next run may do them.

    `--answers` and the mode allow all of them; the rule is for the first that one can allow.
    """
    calls = {_call(request): request for request in reversed(denied)}
    first = _call(denied[0])
    more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    count = "1 call was" if len(denied) == 1 else f"{len(denied)} calls were"
    cures = ["give --answers FILE"]
    if all(_is_edit(request) for request in denied):
        cures.append("use --mode accept-edits")
    rules = {call: rule for call, request in calls.items() if (rule := _rule(request))}
    ruled = first if first in rules else next(reversed(rules), None)
    if ruled is not None:
        is_for_all = len(rules) == len(calls) and len({*rules.values()}) == 1
        what = "add a rule to config.toml"
        if not is_for_all:
            each = "each" if len(rules) == len(calls) else "each that a rule can allow"
            what += f" for {each}; for {ruled}"
        cures.append(f"{what} ([[permissions.rules]] {rules[ruled]})")
    elif reason := denied[0].metadata.get("no_rule"):
        cures[0] += f" (no rule allows it: {reason})"
    what = f"{count} denied, because nobody answered: {first}{more}"
    them = "it" if len(calls) == 1 else "them"
    return visible(f"{what}; to allow {them}, {' or '.join(cures)}", one_line=True)


def _call(request: "PermissionRequest") -> str:
    return shortened(f"{request.tool_name} {subject_of(request)}", _LONGEST_CALL)


def _rule(request: "PermissionRequest") -> str | None:
    """Return a rule that would allow the call; None if no such rule is known."""
    if saved := request.metadata.get("rule"):
        return shown_rule(str(saved))
    target = str(request.metadata.get("target") or "")
    if {"reason", "no_rule"} & {*request.metadata} or len(target) > _LONGEST_TARGET:
        return None
    about: JsonObject = {"decision": "allow", "tool": request.tool_name}
    if request.tool_name == _RUN_COMMAND:
        if not re.fullmatch(_PLAIN, target):
            return None
        about["command"] = target.split()
    elif target.startswith("/"):
        about["path"] = target
    return "; ".join(f"{key} = {json.dumps(value)}" for key, value in about.items())


def _is_edit(request: "PermissionRequest") -> bool:
    """Return whether the mode that accepts edits may let a call pass."""
    is_write = request.permission is ToolPermission.WRITE and not request.dangerous
    return (
        is_write and "reason" not in request.metadata and request.metadata.get("diff") is not None
    )

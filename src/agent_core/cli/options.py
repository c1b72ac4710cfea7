"""The arguments of the commands, and how they are parsed."""

import argparse
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from agent_core.cli.exit_codes import MISUSED
from agent_core.cli.layout import window_size, wrapped
from agent_core.text import visible

if TYPE_CHECKING:
    from datetime import datetime

    from agent_core.types import PermissionMode

AFTER_DASHES = 'a message that begins with a dash goes after --: soong-agent run -- "-…"'
MOVE_SESSION = "move a session of another folder to this folder"
_CURES = {
    "there is no command": 'write "run" first: soong-agent run … "message"',
    "arguments are required: message": AFTER_DASHES,
}
"""Cures by the message of argparse."""
_INCOMPLETE = "the following arguments are required"
_MOST_NAMED = 12
_EXAMPLE = r"(?m)^  .*soong-agent .*$"


RunLoop: TypeAlias = Callable[[Coroutine[Any, Any, int]], int]
"""Runs a coroutine to its end, as `asyncio.run` does."""


class HelpLayout(argparse.RawDescriptionHelpFormatter):
    """Layout of a help: as wide as the window, whatever `COLUMNS` says."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{"width": window_size(sys.stdout).columns - 2, **settings})


class Options(argparse.Namespace):
    """The arguments of every command; each command reads its own.

    `work` names the function of the command, as `module:function`; `execute` carries out another
    command line in a project, for the one command that takes them; `build_parser` makes the parser
    of all commands; `run_loop`, if it is set, runs a coroutine in place of `asyncio.run`.
    """

    work: str
    execute: Callable[..., int]
    run_loop: RunLoop | None = None
    build_parser: "Callable[[], Parser]"
    version: bool = False
    command: str | None = None
    action: str = ""
    id: str = ""
    message: Sequence[str] = ()
    content_at: int | None = None
    answers: str | None = None
    always: bool = False
    events: str | None = None
    output_schema: str | None = None
    images: list[str] | None = None
    continues_last: bool = False
    no_memory: bool = False
    detach: bool = False
    place: str | None = None
    queue: str | None = None
    instructions: str | None = None
    max_usd: float | None = None
    max_turns: int | None = None
    path: str | None = None
    session_id: str | None = None
    orchestrator: bool = False
    model: str | None = None
    mode: "PermissionMode | None" = None
    focus: str | None = None
    move_session: bool = False
    svg: str | None = None
    limit: int = 20
    by: "Literal['session', 'project', 'model', 'day'] | None" = None
    since: "datetime | None" = None
    older_than: "datetime | None" = None
    keep_last: int | None = None
    dry_run: bool = False
    yes: bool = False
    json: bool = False
    force: bool = False
    before: str = ""
    after: str = ""
    after_seq: int = 0
    at: str | None = None
    into: str = ""
    all: bool = False
    decision: str = ""
    reason: str | None = None
    tool: str | None = None
    args: str | None = None
    agent: str = "main"
    words: Sequence[str] = ()
    value: str = ""
    only: str | None = None
    env: list[str] | None = None
    headers: list[str] | None = None
    url: str | None = None
    cwd: str | None = None
    timeout: int | None = None
    client_id: str | None = None
    callback_port: int | None = None
    token_variable: str | None = None
    replace: bool = False
    unused: list[str] | None = None
    rule_tools: list[str] | None = None
    rule_paths: list[str] | None = None
    rule_hosts: list[str] | None = None
    rule_agents: list[str] | None = None
    ids: Sequence[str] = ()
    here: bool = False
    run: str | None = None
    last: int | None = None
    full: bool = False
    file: str | None = None
    html: str | None = None
    markdown: str | None = None
    jsonl: str | None = None
    fixture: str | None = None
    plain: bool = False
    concurrency: int | None = None
    places: list[str] | None = None
    queues: list[str] | None = None
    tenant: str | None = None
    scope: str = "shared"
    drain_seconds: float | None = None
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    address: str = ""
    source: str = ""
    target: str = ""
    source_home: str | None = None
    incomplete: bool = False
    target_home: str | None = None
    projects: list[str] | None = None
    transport: str | None = None
    host: str | None = None
    port: int | None = None
    token_env: str | None = None
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    read_only: bool = False
    approvals: "Literal['ask', 'tool', 'deny']" = "ask"


class PlainParser(argparse.ArgumentParser):
    """A parser that also refuses empty values, suggests the nearest choice, and fails if its help
    cannot be written.

    Attributes:
        texts: the arguments that may be empty; all others are ids, names, paths and numbers.
    """

    texts: frozenset[str] = frozenset()

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse an empty value: a shell variable that is not set must not mean a default."""
        is_text = action.nargs == argparse.PARSER or action.dest in self.texts
        if not is_text and not all(map(str.strip, arg_strings)):
            raise argparse.ArgumentError(action, "the value is empty; is a shell variable not set?")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a word that is not a choice; suggest a near one, or name them if they are few."""
        if action.choices is not None and value not in action.choices:
            names = list(map(str, action.choices))
            hint = did_you_mean(value, names)
            if not hint and len(names) <= _MOST_NAMED:
                hint = f"; choose from {', '.join(names)}"
            if action.dest in {"command", "action"}:
                raise argparse.ArgumentError(None, f"there is no {action.dest} {value!r}{hint}")
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")

    def print_help(self, file: Any = None) -> None:
        """Print the help; an error of the output is raised, which `argparse` itself ignores."""
        (file or sys.stdout).write(self.format_help())


class Parser(PlainParser):
    """Shows arguments in errors as text, never as terminal commands, and knows no abbreviations.

    Attributes:
        what: purpose of its command, in a few words.
        commands: its subparsers, by name: the commands of the program, the actions of a command.
        default: the action of a command that names none; empty if one has to be named.
        options: its options and arguments, in the order of the help.
    """

    texts = frozenset({"args", "instructions", "message", "reason", "words"})

    def __init__(self, **settings: Any) -> None:
        self.what = ""
        self.default = ""
        self.commands: dict[str, Parser] = {}
        self.options: list[argparse.Action] = []
        super().__init__(allow_abbrev=False, formatter_class=HelpLayout, **settings)

    def _add_action(self, action: argparse.Action) -> argparse.Action:
        """Add an option or an argument, also one of a group."""
        self.options.append(action)
        return super()._add_action(action)

    def refuse(self, unknown: Sequence[str], cure: str = "") -> NoReturn:
        """End the process: there are no such arguments."""
        known = [name for option in self.options for name in option.option_strings]
        words = [word.partition("=")[0] for word in unknown]
        near = (did_you_mean(word, known) for word in words)
        ids = {word[2:].removesuffix("-id") for word in words if word.startswith("--")}
        if any(word.endswith("-id") for word in words) and any(
            not each.option_strings and (each.metavar or each.dest) in {"id", *ids}
            for each in self.options
        ):
            cure = f"write the id without an option: {self.prog} <id>"
        hint = next(filter(None, near), cure and f"; {cure}")
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")

    def format_help(self) -> str:
        """Return the help; for a command with actions, with the first example of each action."""
        text = super().format_help()
        if not self.what or not self.commands:
            return text
        examples = "".join(f"\n  {example}" for example in self._examples())
        alone = f"Without an action: {self.default}. " if self.default else ""
        details = f"{self.prog} <action> --help shows details."
        return f"{text}\nexamples:{examples}\n\n{alone}{details}\n"

    def _examples(self) -> list[str]:
        """Return the first example of each action."""
        found = (re.search(_EXAMPLE, action.epilog or "") for action in self.commands.values())
        return [match[0].strip() for match in found if match]

    def error(self, message: str) -> NoReturn:
        """End the process with what is wrong with the usage; a hint follows on a line of its own.

        The hint is what follows the first semicolon of the message.
        """
        fault, _, hint = visible(message).partition("; ")
        cures = (cure for known, cure in _CURES.items() if known in fault)
        more = f"{self.prog} --help shows what there is"
        if self.commands and not self.default and fault == f"{_INCOMPLETE}: action":
            *most, last = self.commands
            named = f"{', '.join(most)} or {last}" if most else last
            fault = f"an action is missing: {named}"
            hint = f"for example: {next(iter(self._examples()), self.prog)}"
        elif fault.startswith(_INCOMPLETE):
            usage, *_ = self.format_usage().removeprefix("usage: ").split("\n       soong-agent")
            more = " ".join(usage.replace("[-h] ", "").split())
        hint = hint or next(cures, more)
        lines = [f"error: {fault}", hint]
        if sys.stderr.isatty():
            room = window_size(sys.stderr).columns - 1
            lines = [part for line in lines for part in wrapped(line, room, breaks=False)]
        self.exit(MISUSED, "\n".join([*lines, ""]))


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""Return type of `add_subparsers`; `argparse` has no public name for it."""


def add_actions(parser: Parser, default: str = "") -> Commands:
    """Give a command actions; one has to be named, except where there is a default."""
    parser.default = default
    actions = parser.add_subparsers(
        dest="action", metavar="action", required=True, parser_class=Parser
    )
    parser.commands = actions.choices
    return actions


def add_command(commands: Commands, name: str, what: str, **settings: Any) -> Parser:
    """Add a command, or an action of one; its help begins with its purpose."""
    settings = {"description": f"{what[0].upper()}{what[1:]}."} | settings
    command = commands.add_parser(name, help=what, **settings)
    command.what = what
    return command


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the nearest known word, as the end of a message; empty if no word is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - for wrong usage only

    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def moment(text: str) -> "datetime":
    """A moment of the local time, or one so long ago.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    from datetime import datetime, timedelta  # noqa: PLC0415 - few commands take a time

    units = {"h": "hours", "d": "days", "w": "weeks"}
    try:
        if ago := re.fullmatch(r"([0-9]{1,6})([hdw])", text):
            return datetime.now().astimezone() - timedelta(**{units[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        form = f"a date such as 2026-11-01, or 12h, 7d, 4w is needed, not {text!r}"
        raise argparse.ArgumentTypeError(form) from None


def positive(text: str) -> int:
    """A number of things, at least one.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10**9):
        raise argparse.ArgumentTypeError(f"a whole number from 1 is needed, not {text!r}")
    return int(text)


def port(text: str) -> int:
    """Parse the number of a port; 0 is a free one.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < 65_536):
        raise argparse.ArgumentTypeError(f"a port is needed, 0 to 65535, not {text!r}")
    return int(text)


def add_mode(parser: Parser) -> None:
    """Add the option that says how much a run may do unasked."""
    parser.add_argument(
        "--mode",
        choices=("plan", "ask", "accept-edits"),
        help="plan: change nothing, answer with a plan; ask: as the settings say (default);"
        " accept-edits: write project files without asking",
    )


def amount(text: str) -> float:
    """Parse a positive number.

    Raises:
        argparse.ArgumentTypeError: it is not a positive number.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise argparse.ArgumentTypeError(f"a number above 0 is needed, such as 0.50, not {text!r}")
    return number


def add_path(parser: Parser) -> None:
    """Add the option that names the project."""
    parser.add_argument(
        "--path", metavar="<dir-or-file>", help="the project (default: the current folder)"
    )


def add_token(parser: Parser) -> None:
    """Add the options that name a token."""
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token-env", metavar="<name>", help="the environment variable that holds the token"
    )
    token.add_argument(
        "--token-file", metavar="<file>", help="the file whose first line is the token"
    )

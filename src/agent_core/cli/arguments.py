"""Reads the arguments of every command.

Only the standard library is imported here: help and usage errors answer at once.
"""

import sys
from argparse import SUPPRESS
from collections.abc import Iterable, Sequence
from importlib import import_module

from agent_core.cli.commands import GROUPS, PURPOSES, add_commands
from agent_core.cli.commands.run import (
    DESCRIPTION,
    SYNOPSIS,
    find_misuse,
    split_words,
    take_words,
)
from agent_core.cli.options import AFTER_DASHES, Options, Parser
from agent_core.loading import installed_version

_HELP = ("-h", "--help")


def parse(argv: Sequence[str]) -> Options:
    """Read the arguments.

    Raises:
        SystemExit: help or the version was shown, or they are wrong, which has been said.
    """
    opens_chat = _opens_chat(argv)
    if opens_chat:
        argv = ["chat", *argv]
    first = argv[0] if argv else ""
    if first in PURPOSES:
        parser = _parser_of([first])
    else:  # for the help, the arguments of all commands need not be known
        parser = _with_help(_parser_of(["run"])) if first in _HELP else build_parser()
    options = Options(build_parser=build_parser)
    argv = _with_default_action(argv, parser)
    before, after = split_words(argv)
    if first == "mcp":
        from agent_core.cli.commands import mcp  # noqa: PLC0415 - few commands need it

        before, after = mcp.split_words(argv, parser)
    options, unknown = parser.parse_known_args(before, options)
    if options.command == "run":
        unknown = take_words(options, unknown, after)
    options.words = after or options.words
    if unknown:
        chosen = parser
        for name in filter(None, (options.command, options.action)):
            chosen = chosen.commands.get(name, chosen)
        chosen.refuse(unknown, AFTER_DASHES if options.command == "run" else "")
    if options.version:
        print(f"soong-agent {installed_version() or '(not installed)'}")
        parser.exit()
    if options.command is None:
        parser.error('a command is missing; for example: soong-agent run "…"')
    if opens_chat and (word := next(iter(options.message), "")) in PURPOSES:
        parser.error(f"the command comes first: soong-agent {word} …")
    problem = find_misuse(options) if options.command == "run" else None
    if options.command in {"chat", "mcp"}:
        own = import_module(f"agent_core.cli.commands.{options.command}")
        problem = own.find_misuse(options)
    if problem is not None:
        parser.error(problem)
    return options


def _opens_chat(argv: Sequence[str]) -> bool:
    """Return whether a terminal's arguments name no command, and so belong to `chat`."""
    first = argv[0] if argv else ""
    is_open = not first or first.startswith("-") or len(first.split()) > 1
    if not is_open or first in {*_HELP, "--version"}:
        return False
    return sys.stdin.isatty() and sys.stdout.isatty()


def _with_default_action(argv: Sequence[str], parser: Parser) -> Sequence[str]:
    """Add the default action of a command of which only options are given."""
    first, *rest = argv or [""]
    command = parser.commands.get(first)
    if command is None or not command.default or rest[:1] in (["-h"], ["--help"]):
        return argv
    if any(word in command.commands for word in rest) or (rest and rest[0][:1] != "-"):
        return argv
    return [first, command.default, *rest]


def build_parser() -> Parser:
    """Build the parser of all commands."""
    return _with_help(_parser_of(PURPOSES))


def _with_help(parser: Parser) -> Parser:
    """Describe all commands in the help of a parser that knows at least `run`."""
    lines = [DESCRIPTION]
    for group, purposes in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += (f"  {name:<12} {purpose}" for name, purpose in purposes.items())
    lines += ["", "soong-agent <command> --help shows details. On a terminal, chat is the default."]
    parser.description = "\n".join(lines)
    # The most used command should not need a second look: its help is part of this one.
    parser.epilog = parser.commands["run"].format_help()
    return parser


def _parser_of(names: Iterable[str]) -> Parser:
    """Build a parser for the named commands; building all takes as long as loading argparse."""
    parser = Parser(prog="soong-agent")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(
        dest="command", metavar="command", parser_class=Parser, help=SUPPRESS
    )
    parser.commands = commands.choices
    add_commands(commands, names)
    parser.usage = f"soong-agent [-h] [--version] {SYNOPSIS}"
    return parser

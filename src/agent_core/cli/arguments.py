"""Reads the arguments of every command.

Only the standard library is imported here: help and usage errors answer at once.
"""

import sys
from argparse import SUPPRESS
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import takewhile

from agent_core.cli.commands import GROUPS, PURPOSES, add_commands
from agent_core.cli.commands.run import (
    DESCRIPTION,
    SYNOPSIS,
    find_misuse,
    split_words,
    take_words,
)
from agent_core.cli.options import AFTER_DASHES, Options, Parser, did_you_mean
from agent_core.loading import installed_version
from agent_core.text import quoted

_HELP = ("-h", "--help")
_EXAMPLES = """\
examples:
  soong-agent config set model ollama:qwen3
  soong-agent run "fix the failing test"
  soong-agent run --continue "and now the documentation"

On a terminal, soong-agent alone opens a chat. soong-agent run --help explains
the options above; soong-agent <command> --help each of the other commands.
"""
_MOST_REPEATED = 60
"""Characters of an unquoted message that an error repeats."""


def parse(argv: Sequence[str]) -> Options:
    """Read the arguments.

    Raises:
        SystemExit: help or the version was shown, or they are wrong, which has been said.
    """
    opens_chat = _opens_chat(argv)
    if opens_chat:
        argv = ["chat", *argv]
    first = argv[0] if argv else ""
    parser = _parser_for(argv)
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


def _parser_for(argv: Sequence[str]) -> Parser:
    """Return a parser that knows what these arguments need; building all commands takes time."""
    first = argv[0] if argv else ""
    if first in PURPOSES:
        return _parser_of([first])
    if first in _HELP:  # which does not show the arguments of commands
        return _with_help(_parser_of(()))
    parser = build_parser()
    _refuse_unquoted(argv, parser)
    return parser


def _refuse_unquoted(argv: Sequence[str], parser: Parser) -> None:
    """End the process if the arguments are the words of a message that lacks its quotes.

    An action, or a single word that follows, may belong to a command whose name is misspelt.
    """
    words = list(takewhile(lambda word: word[:1] != "-", argv))
    if len(words) < 2 or any(words[1] in each.commands for each in parser.commands.values()):
        return
    if len(words) == 2 and did_you_mean(words[0], PURPOSES):
        return
    line = " ".join(words)
    if len(line) > _MOST_REPEATED or any(sign in line for sign in '"$`\\!'):
        line = "…"
    fault = f"there is no command {quoted(words[0])}"
    parser.error(f'{fault}; put a message in quotes, behind run: soong-agent run "{line}"')


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
    """Describe all commands in the help of a parser: what fits on one screen."""
    lines = [DESCRIPTION]
    for group, purposes in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += (f"  {name:<12} {purpose}" for name, purpose in purposes.items())
    parser.description = "\n".join(lines)
    parser.epilog = _EXAMPLES
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

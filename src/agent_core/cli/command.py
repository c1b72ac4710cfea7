"""Reads the arguments, prepares the process, and turns every outcome into an exit code.

Only the standard library is imported here: help and usage errors answer at once.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from agent_core.cli.options import INTERRUPTED, MISUSED, Options
from agent_core.cli.streams import flush_output, open_missing_streams, report_output_error
from agent_core.loading import without_collection
from agent_core.text import visible

_SYNOPSIS = (
    "run [--path <dir-or-file>] [--orchestrator] [--model <provider:name>] [--session-id <id>]"
    ' [--move-session] [--image <file>]... "message"'
)
_MOVE = "let a session that was begun in another folder work in this one from now on"
_DESCRIPTION = "Give an agent a task in a project, and watch it work."
_STREAMS = """\
The answer goes to standard output; tools, questions and the session go to standard error.
Questions are answered on standard input, one line each: 1 or "allow once", 2 or "allow for
session", 3 or "deny". Anything else denies.

Settings are read from ~/.soong-agent/config.toml, or from $SOONG_AGENT_HOME/config.toml. A model
is named by --model, else by $SOONG_AGENT_MODEL, else there: openai:gpt-5, ollama:qwen3,
local:/path/model.gguf, or with a server's address openai:my-model@http://127.0.0.1:8000/v1.
Exit codes: 0 completed, 1 the run failed, 2 wrong usage or configuration, 130 interrupted.
"""

_AFTER_DASHES = '; a message that begins with a dash goes after --: soong-agent run -- "-…"'
_CURES = {
    "argument command: invalid choice": '; write "run" first: soong-agent run … "message"',
    "arguments are required: message": _AFTER_DASHES,
}
"""What helps, by the message of argparse."""


def execute(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments say and return the exit code; nothing is raised."""
    open_missing_streams()
    try:
        code = _execute(argv)
    except KeyboardInterrupt:  # before the run had begun to listen for it
        code = INTERRUPTED
    except OSError as error:  # standard output cannot be written
        code = report_output_error("soong-agent", error)
    return flush_output(code)


def _execute(argv: Sequence[str] | None) -> int:
    parser = _build_parser()
    try:
        options, unknown = parser.parse_known_args(argv, Options())
        if unknown:
            cure = _AFTER_DASHES if options.command == "run" else ""
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{cure}")
        if options.version:
            _print_version()
            parser.exit()
        if options.command is None:
            parser.print_usage(sys.stderr)
            parser.exit(MISUSED, 'what should be done? For example: soong-agent run "…"\n')
        # The shell may have passed on bytes that are no UTF-8.
        options.message = options.message.encode(errors="surrogateescape").decode(errors="replace")
        if options.command == "run" and not options.message.strip():
            parser.error("the message is empty")
    except SystemExit as leaving:  # how argparse ends: help, version, wrong usage
        return leaving.code if isinstance(leaving.code, int) else MISUSED
    # What the others need is not imported: help must not wait for it.
    with without_collection():
        match options.command:
            case "tasks":
                from agent_core.cli.tasks import show_task as do  # noqa: PLC0415
            case "memory":
                from agent_core.cli.memories import manage_memories as do  # noqa: PLC0415
            case "mcp":
                from agent_core.cli.servers import manage_servers as do  # noqa: PLC0415
            case "sessions":
                from agent_core.cli.sessions import manage_sessions as do  # noqa: PLC0415
            case _:
                from agent_core.cli.run import run_message as do  # noqa: PLC0415
    return do(options)


class _Parser(argparse.ArgumentParser):
    """Shows arguments in errors as text, never as terminal commands, and knows no abbreviations."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
        )

    def print_help(self, file: Any = None) -> None:
        """Print the help; unlike the original, fail where it cannot be written."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        cure = next((cure for fault, cure in _CURES.items() if fault in message), "")
        super().error(visible(message) + cure)


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="soong-agent", description=_DESCRIPTION)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=_Parser)
    run = commands.add_parser(
        "run",
        help="run an agent until it has answered",
        usage=f"soong-agent {_SYNOPSIS}",
        description=_DESCRIPTION,
        epilog=_STREAMS,
    )
    _add_path(run)
    run.add_argument("--orchestrator", action="store_true", help="let an orchestrator lead workers")
    run.add_argument(
        "--model", metavar="<provider:name>", help="the model to ask, such as openai:gpt-5"
    )
    run.add_argument(
        "--session-id", metavar="<id>", help="continue this session, or begin it under this id"
    )
    run.add_argument("--move-session", action="store_true", help=_MOVE)
    run.add_argument(
        "--image",
        action="append",
        metavar="<file>",
        dest="images",
        help="show the model a picture (PNG, JPEG, GIF, WebP) or a PDF; may be repeated",
    )
    run.add_argument("message", help="what to do; after -- it may begin with a dash")

    tasks = commands.add_parser("tasks", help="look at the Tasks of a project")
    actions = tasks.add_subparsers(metavar="action", required=True, parser_class=_Parser)
    show = actions.add_parser("show", help="show a Task and its steps as a tree")
    _add_path(show)
    show.add_argument("--session-id", metavar="<id>", help="the session the Task belongs to")
    show.add_argument("--svg", metavar="<file>", help="write a picture instead")
    show.add_argument("id", metavar="task", help="the Task's id")

    sessions = commands.add_parser("sessions", help="look at sessions, and shorten their histories")
    actions = sessions.add_subparsers(
        dest="action", metavar="action", required=True, parser_class=_Parser
    )
    listing = actions.add_parser("list", help="list sessions, the last used first")
    listing.add_argument("--limit", type=int, default=20, metavar="<n>", help="default: 20")
    show = actions.add_parser("show", help="show a session: its messages and what it has cost")
    compact = actions.add_parser("compact", help="summarise a session's history now")
    compact.add_argument("--move-session", action="store_true", help=_MOVE)
    for action in (show, compact):
        action.add_argument("id", help="the session's id")
    for action in (listing, show, compact):
        _add_path(action)

    memory = commands.add_parser("memory", help="look at what is remembered, and forget it")
    actions = memory.add_subparsers(
        dest="action", metavar="action", required=True, parser_class=_Parser
    )
    actions.add_parser("list", help="list what is remembered, the newest first")
    show = actions.add_parser("show", help="show one memory")
    forget = actions.add_parser("forget", help="delete one memory, after a question")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    for action in (show, forget):
        action.add_argument("id", help="the memory's id, or the beginning of it")

    mcp = commands.add_parser("mcp", help="look at MCP servers, and log in to them")
    actions = mcp.add_subparsers(
        dest="action", metavar="action", required=True, parser_class=_Parser
    )
    actions.add_parser("list", help="list the servers of mcp.json")
    for action, what in (
        ("login", "log in to a server in the browser, here or on another machine"),
        ("logout", "forget the log-in of a server"),
        ("test", "connect to a server, and list its tools"),
    ):
        actions.add_parser(action, help=what).add_argument("id", help="the server's id")

    # The most used command should not need a second look: its help is part of this one.
    parser.usage = f"soong-agent [-h] [--version] {_SYNOPSIS}"
    parser.epilog = run.format_help()
    return parser


def _add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--path", metavar="<dir-or-file>", help="the project (default: the current folder)"
    )


def _print_version() -> None:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - rarely wanted

    try:
        print(f"soong-agent {version('soong-agent')}")
    except PackageNotFoundError:
        print("soong-agent (not installed)")

"""Reads the arguments, prepares the process, and turns every outcome into an exit code.

Only the standard library is imported here: help and usage errors answer at once.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from agent_core.cli.options import (
    INTERRUPTED,
    MISUSED,
    MemoryOptions,
    RunOptions,
    SessionOptions,
    TaskOptions,
)
from agent_core.cli.streams import flush_output, open_missing_streams, report_output_error
from agent_core.redaction.visible import visible

Options = RunOptions | TaskOptions | MemoryOptions | SessionOptions

_SYNOPSIS = (
    'run [--path <dir-or-file>] [--orchestrator] [--session-id <id>] [--move-session] "message"'
)
_MOVE = "let a session that was begun in another folder work in this one from now on"
_DESCRIPTION = "Give an agent a task in a project, and watch it work."
_STREAMS = """\
The answer goes to standard output; tools, questions and the session go to standard error.
Questions are answered on standard input, one line each: 1 or "allow once", 2 or "allow for
session", 3 or "deny". Anything else denies.

Settings are read from ~/.soong-agent/config.toml, or from $SOONG_AGENT_HOME/config.toml.
Exit codes: 0 completed, 1 the run failed, 2 wrong usage or configuration, 130 interrupted.
"""

_AFTER_DASHES = '; a message that begins with a dash goes after --: soong-agent run -- "-…"'
_CURES = {
    "argument command: invalid choice": '; write "run" first: soong-agent run … "message"',
    "unrecognized arguments: -": _AFTER_DASHES,
    "arguments are required: message": _AFTER_DASHES,
}
"""What helps, by what argparse says."""


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
    try:
        options = _parsed(argv)
    except SystemExit as leaving:  # how argparse ends: help, version, wrong usage
        return leaving.code if isinstance(leaving.code, int) else MISUSED
    return _do(options)


def _do(options: Options) -> int:
    # What the others need is not imported: help must not wait for it.
    match options:
        case TaskOptions():
            from agent_core.cli.tasks import show  # noqa: PLC0415

            return show(options)
        case MemoryOptions():
            from agent_core.cli.memories import manage  # noqa: PLC0415

            return manage(options)
        case SessionOptions():
            from agent_core.cli.sessions import attend  # noqa: PLC0415

            return attend(options)
        case RunOptions():
            from agent_core.cli.conversation import hold  # noqa: PLC0415

            return hold(options)


def _parsed(argv: Sequence[str] | None) -> Options:
    parser = _parser()
    found = parser.parse_args(argv)
    if found.command is None:
        parser.print_usage(sys.stderr)
        parser.exit(MISUSED, 'what should be done? For example: soong-agent run "…"\n')
    if found.command == "tasks":
        return TaskOptions(
            task_id=found.task, path=found.path, session_id=found.session_id, svg=found.svg
        )
    if found.command == "memory":
        return MemoryOptions(
            action=found.action,
            memory_id=getattr(found, "id", ""),
            is_sure=getattr(found, "yes", False),
        )
    if found.command == "sessions":
        return SessionOptions(
            action=found.action,
            session_id=getattr(found, "id", ""),
            path=found.path,
            limit=getattr(found, "limit", 0),
            moves_session=getattr(found, "move_session", False),
        )
    message = _decoded(found.message)
    if not message.strip():
        parser.error("the message is empty")
    return RunOptions(
        message=message,
        path=found.path,
        session_id=found.session_id,
        is_orchestrated=found.orchestrator,
        moves_session=found.move_session,
    )


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


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="soong-agent", description=_DESCRIPTION)
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=_Parser)
    run = commands.add_parser(
        "run",
        help="run an agent until it has answered",
        usage=f"soong-agent {_SYNOPSIS}",
        description=_DESCRIPTION,
        epilog=_STREAMS,
    )
    run.add_argument(
        "--path", metavar="<dir-or-file>", help="the project (default: the current folder)"
    )
    run.add_argument("--orchestrator", action="store_true", help="let an orchestrator lead workers")
    run.add_argument(
        "--session-id", metavar="<id>", help="continue this session, or begin it under this id"
    )
    run.add_argument("--move-session", action="store_true", help=_MOVE)
    run.add_argument("message", help="what to do; after -- it may begin with a dash")
    _add_tasks(commands)
    _add_sessions(commands)
    _add_memory(commands)
    # The one command there is should not need a second look: its help is part of this one.
    parser.usage = f"soong-agent [-h] [--version] {_SYNOPSIS}"
    parser.epilog = run.format_help()
    return parser


def _add_tasks(commands: Any) -> None:
    tasks = commands.add_parser("tasks", help="look at the Tasks of a project")
    actions = tasks.add_subparsers(metavar="action", required=True, parser_class=_Parser)
    show = actions.add_parser("show", help="show a Task and its steps as a tree")
    show.add_argument(
        "--path", metavar="<dir-or-file>", help="the project (default: the current folder)"
    )
    show.add_argument("--session-id", metavar="<id>", help="the session the Task belongs to")
    show.add_argument("--svg", metavar="<file>", help="write a picture instead")
    show.add_argument("task", help="the Task's id")


def _add_sessions(commands: Any) -> None:
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
        action.add_argument(
            "--path", metavar="<dir-or-file>", help="the project (default: the current folder)"
        )


def _add_memory(commands: Any) -> None:
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


class _Version(argparse.Action):
    """Looks the version up only if somebody asks."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            found = version("soong-agent")
        except PackageNotFoundError:
            found = "(not installed)"
        print(f"soong-agent {found}")
        parser.exit()


def _decoded(message: str) -> str:
    """The message as UTF-8 text, whatever bytes the shell has passed on."""
    return message.encode(errors="surrogateescape").decode(errors="replace")

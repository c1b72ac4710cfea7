"""The arguments of `soong-agent sessions`."""

from collections.abc import Callable

from agent_core.cli.options import (
    MOVE_SESSION,
    Commands,
    Options,
    add_actions,
    add_command,
    add_path,
    positive,
)

_FORK = """\
examples:
  soong-agent sessions fork tidy --into ../another-try
  soong-agent sessions fork tidy --at node_18ea7dc4 --into ../another-try

The copy is that of the project as it was then, with its .git. Messages and
their ids are listed by `soong-agent sessions show`. The new session and its
folder go to standard output.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    sessions = add_command(commands, "sessions", "look at sessions, and shorten their histories")
    sessions.set_defaults(load=_load)
    actions = add_actions(sessions)
    listing = add_command(actions, "list", "list sessions, the last used first")
    listing.add_argument("--limit", type=positive, default=20, metavar="<n>", help="default: 20")
    show = add_command(actions, "show", "show a session: its messages and what it has cost")
    compact = add_command(actions, "compact", "summarise a session's history now")
    compact.add_argument("--move-session", action="store_true", help=MOVE_SESSION)
    fork = add_command(
        actions, "fork", "begin another session from a message, with its files", epilog=_FORK
    )
    fork.add_argument("--at", metavar="<node>", help="the message; default: the last one")
    fork.add_argument(
        "--into", required=True, metavar="<dir>", help="for the copy of the project; new or empty"
    )
    for action in (show, compact, fork):
        action.add_argument("id", help="the session's id")
    for action in (listing, show, compact, fork):
        add_path(action)


def _load() -> Callable[[Options], int]:
    from agent_core.cli.sessions import manage_sessions  # noqa: PLC0415 - help must not wait for it

    return manage_sessions

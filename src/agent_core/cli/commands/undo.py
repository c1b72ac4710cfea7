"""The arguments of `soong-agent undo`, `redo` and `workspace`."""

from collections.abc import Callable

from agent_core.cli.options import Commands, Options, add_actions, add_path

_FORCE = "replace what others have changed since; it is in the snapshot that is taken before"
_EXAMPLES = """\
Without a session it is the one of this project that was used last. Nothing is deleted for good:
redo returns to the state just before, until the next message.
"""


def add_parser(commands: Commands) -> None:
    """Add the arguments of the three commands."""
    for name, what in (
        ("undo", "take back the last message, with everything that was done about it"),
        ("redo", "return to the state just before the last undo"),
    ):
        command = commands.add_parser(name, help=what, description=what, epilog=_EXAMPLES)
        command.set_defaults(load=_load, session_id=None)
        add_path(command)
        command.add_argument("--force", action="store_true", help=_FORCE)
        command.add_argument("session_id", nargs="?", metavar="session", help="the session's id")
    workspace = commands.add_parser("workspace", help="look at the recorded files of a project")
    workspace.set_defaults(load=_load)
    diff = add_actions(workspace).add_parser("diff", help="show how two recorded states differ")
    add_path(diff)
    diff.add_argument("before", help="a node's id, or a snapshot's")
    diff.add_argument("after", help="the same of the other state")


def _load() -> Callable[[Options], int]:
    from agent_core.cli.undo import move_session  # noqa: PLC0415 - help must not wait for it

    return move_session

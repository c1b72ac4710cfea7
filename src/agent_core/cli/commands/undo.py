"""The arguments of `soong-agent undo`, `redo` and `workspace`."""

from argparse import SUPPRESS

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_actions, add_command, add_path

_FORCE = "overwrite changes by others; a snapshot taken first keeps them"
_UNDO = """\
examples:
  soong-agent undo
  soong-agent undo tidy --force

The default is the last session of this project that has an answer. Only files
that the run of the message changed are restored. redo returns to the state
before the undo, until the next message. Exit codes: 0 undone; 1 nothing was
done, because others changed such a file, a run is active, or there is no such
session; 2 there is nothing to undo, or wrong usage or configuration.
"""
_REDO = """\
examples:
  soong-agent redo
  soong-agent redo tidy

The default is the last session of this project that has an answer. Several
undos are reverted one by one, until the next message. Exit codes: as for undo.
"""
_DIFF = """\
examples:
  soong-agent workspace diff node_18ea7dc4 snap_c97905d9

`soong-agent sessions tree` shows the ids of nodes, and undo and redo show those
of snapshots. A unique beginning of a node's id is enough. The diff goes to
standard output, without secrets. Exit codes: 0 shown; 1 no such state; 2 wrong
usage or configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the arguments of the three commands."""
    for name, examples in (("undo", _UNDO), ("redo", _REDO)):
        command = add_command(commands, name, PURPOSES[name], epilog=examples)
        command.set_defaults(work="agent_core.cli.undo:move_session", session_id=None)
        add_path(command)
        command.add_argument("--force", action="store_true", help=_FORCE)
        # The one that is missing must not replace the one that is given.
        which = "the id of the session, or its beginning"
        named = command.add_mutually_exclusive_group()
        named.add_argument("session_id", nargs="?", metavar="session", default=SUPPRESS, help=which)
        named.add_argument("--session-id", metavar="<id>", default=SUPPRESS, help=which)
    workspace = add_command(commands, "workspace", PURPOSES["workspace"])
    workspace.set_defaults(work="agent_core.cli.undo:move_session")
    diff = add_command(
        add_actions(workspace),
        "diff",
        "show the difference between two recorded states",
        epilog=_DIFF,
    )
    add_path(diff)
    diff.add_argument("before", help="the id of a node or a snapshot")
    diff.add_argument("after", help="the same for the other state")

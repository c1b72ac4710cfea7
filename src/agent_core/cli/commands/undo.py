"""The arguments of `soong-agent undo`, `redo` and `workspace`."""

from agent_core.cli.options import Commands, add_actions, add_command, add_path

_FORCE = "replace what others have changed since; it is in the snapshot that is taken before"
_UNDO = """\
examples:
  soong-agent undo
  soong-agent undo tidy --force

Without a session it is the one of this project that was used last. Only what
the run of the message has changed is restored. Nothing is deleted for good:
redo returns to the state just before, until the next message. Exit codes:
0 undone; 1 nothing was done, because others have changed such a file, a run is
at work, or there is no such session; 2 there is nothing to undo, or wrong usage
or configuration.
"""
_REDO = """\
examples:
  soong-agent redo
  soong-agent redo tidy

Without a session it is the one of this project that was used last. Several
undos are taken back one by one; a new message ends that. Exit codes are those
of undo.
"""
_DIFF = """\
examples:
  soong-agent workspace diff node_18ea7dc4 snap_c97905d9

Nodes are named by `soong-agent sessions tree`, snapshots by undo and redo. Of a
node's id the beginning is enough, if no other has it. The diff goes to standard
output, without secrets. Exit codes: 0 shown; 1 there is no such state; 2 wrong
usage or configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the arguments of the three commands."""
    for name, what, examples in (
        ("undo", "take back the last message and all that was done about it", _UNDO),
        ("redo", "return to the state just before the last undo", _REDO),
    ):
        command = add_command(commands, name, what, epilog=examples)
        command.set_defaults(work="agent_core.cli.undo:move_session", session_id=None)
        add_path(command)
        command.add_argument("--force", action="store_true", help=_FORCE)
        command.add_argument(
            "session_id", nargs="?", metavar="session", help="its id, or the beginning"
        )
    workspace = add_command(commands, "workspace", "look at the recorded files of a project")
    workspace.set_defaults(work="agent_core.cli.undo:move_session")
    diff = add_command(
        add_actions(workspace), "diff", "show how two recorded states differ", epilog=_DIFF
    )
    add_path(diff)
    diff.add_argument("before", help="a node's id, or a snapshot's")
    diff.add_argument("after", help="the same of the other state")

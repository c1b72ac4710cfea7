"""The arguments of `soong-agent tasks`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_actions, add_command, add_path

_LIST = """\
examples:
  soong-agent tasks list
  soong-agent tasks list --session-id 18ea7dc4 --json

The Tasks of the project, the last changed first. Each line has the id, the
status, the steps that are completed of all, the session and the title.
Exit codes: 0 listed; 1 a log cannot be read; 2 wrong usage or configuration.
"""
_SHOW = """\
examples:
  soong-agent tasks show task_18ea7dc4
  soong-agent tasks show task_18ea7dc4 --svg task.svg

Runs with --orchestrator create Tasks, which belong to a project. Exit codes:
0 shown; 1 no such Task, or its log cannot be read; 2 wrong usage or
configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    tasks = add_command(commands, "tasks", PURPOSES["tasks"])
    tasks.set_defaults(work="agent_core.cli.tasks:show_tasks")
    actions = add_actions(tasks, "list")
    listing = add_command(actions, "list", "list the Tasks of the project", epilog=_LIST)
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    show = add_command(actions, "show", "show a Task and its steps as a tree", epilog=_SHOW)
    output = show.add_mutually_exclusive_group()
    output.add_argument("--svg", metavar="<file>", help="write an image instead")
    output.add_argument("--json", action="store_true", help="one JSON object instead")
    show.add_argument("id", metavar="task", help="the Task's id")
    for action, which in ((listing, "only Tasks of this session"), (show, "the Task's session")):
        add_path(action)
        action.add_argument("--session-id", metavar="<id>", help=which)

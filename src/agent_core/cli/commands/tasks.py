"""The arguments of `soong-agent tasks`."""

from agent_core.cli.options import Commands, add_actions, add_command, add_path

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
    tasks = add_command(commands, "tasks", "show the Tasks of a project")
    tasks.set_defaults(work="agent_core.cli.tasks:show_task")
    show = add_command(
        add_actions(tasks), "show", "show a Task and its steps as a tree", epilog=_SHOW
    )
    add_path(show)
    show.add_argument("--session-id", metavar="<id>", help="the session the Task belongs to")
    output = show.add_mutually_exclusive_group()
    output.add_argument("--svg", metavar="<file>", help="write an image instead")
    output.add_argument("--json", action="store_true", help="one JSON object instead")
    show.add_argument("id", metavar="task", help="the Task's id")

"""The arguments of `soong-agent cost`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_command, moment, positive

_WHAT = """\
Show the cost of runs by day, model, project and session. Children are counted
with the run that started them. An unknown price is shown as unknown, never as
0; set your own prices in [model] price. Deleted sessions are not counted. Calls
no model and writes nothing.
"""
_EXAMPLES = """\
examples:
  soong-agent cost
  soong-agent cost --by day --since 30d
  soong-agent cost --by model --since 2026-11-01 --json
  soong-agent cost --by session --path ~/work/shop --limit 50

Exit codes: 0 shown, 1 the database cannot be read, 2 wrong usage or
configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    cost = add_command(commands, "cost", PURPOSES["cost"], description=_WHAT, epilog=_EXAMPLES)
    cost.set_defaults(work="agent_core.cli.cost:show_costs")
    cost.add_argument(
        "--by",
        choices=("day", "model", "project", "session"),
        help="only this table (default: all four, their first lines)",
    )
    cost.add_argument(
        "--since",
        type=moment,
        metavar="<when>",
        help="only runs started then or later: a date such as 2026-11-01, or 7d, 12h",
    )
    cost.add_argument(
        "--path", metavar="<dir-or-file>", help="only sessions of this project (default: all)"
    )
    cost.add_argument(
        "--limit",
        type=positive,
        default=0,
        metavar="<n>",
        help="rows of a table (default: 100 with --by, otherwise 10)",
    )
    cost.add_argument("--json", action="store_true", help="print one JSON object")

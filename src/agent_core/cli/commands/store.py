"""The arguments of `soong-agent store`."""

from agent_core.cli.options import Commands, Parser, add_actions, add_command

_ADDRESSES = """\
An address is sqlite:PATH, postgresql://user@host/database, or env:NAME of a
variable that holds one of these. What stands on a command line, others can
read: a password belongs into the variable.
"""
_MIGRATE = """\
examples:
  soong-agent store migrate
  soong-agent store migrate env:AGENT_DATABASE
  soong-agent store migrate sqlite:backup/sessions.sqlite --json

Makes the tables that are missing and brings those that are there up to date;
what is up to date is left as it is. Without an address it is the database of
the settings. Exit codes: 0 up to date; 1 it cannot be used, or is of a newer
version; 2 wrong usage or configuration.
"""
_CHECK = """\
examples:
  soong-agent store check
  soong-agent store check env:AGENT_DATABASE --json

Whether it can be reached, used and written, and is up to date. Nothing is
changed. Without an address it is the database of the settings. Exit codes:
0 all is well, 1 something is broken; 2 wrong usage or configuration.
"""
_COPY = """\
examples:
  soong-agent store copy --from sqlite:sessions.sqlite --to env:AGENT_DATABASE
  soong-agent store copy --from env:AGENT_DATABASE --to sqlite:copy.db 18ea7dc4
  soong-agent store copy --from env:HERE --to env:THERE --tenant acme --json

Copies whole sessions: messages, events, runs, questions and answers, budgets,
artifacts with their contents, snapshots of files. The source stays as it is.
A session that the target has already, or in which a run is under way, is left
out, and so is one of which contents are missing or damaged at the source; the
others are copied, and a copy that was ended at any moment is gone on with by
the same command. --incomplete copies such a session without those contents,
and names them. --json writes a line for each session.

The contents of a file's sessions are in its home: the folder of a file that is
called sessions.sqlite, else the home of the settings, unless --from-home or
--to-home names one.

With --tenant only sessions of that tenant, or of none, are copied, and are that
tenant's at the target.
Exit codes: 0 all were copied; 1 some were not; 2 wrong usage or configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    store = add_command(
        commands, "store", "migrate, check and copy session databases", epilog=_ADDRESSES
    )
    store.set_defaults(work="agent_core.cli.store:manage_store")
    actions = add_actions(store)
    migrate = add_command(actions, "migrate", "bring a database up to date", epilog=_MIGRATE)
    check = add_command(actions, "check", "check whether a database can be used", epilog=_CHECK)
    for action in (migrate, check):
        action.add_argument("address", nargs="?", default="", help="which; default: as configured")
    copy = add_command(actions, "copy", "copy sessions to another database", epilog=_COPY)
    _add_side(copy, "from", "source")
    _add_side(copy, "to", "target")
    copy.add_argument(
        "--incomplete", action="store_true", help="leave out contents that are missing or damaged"
    )
    copy.add_argument("--tenant", metavar="<name>", help="whose sessions are copied")
    copy.add_argument(
        "ids", nargs="*", metavar="session", help="its id, or the beginning; default: all"
    )
    for action in (migrate, check, copy):
        action.add_argument("--json", action="store_true", help="print JSON")


def _add_side(copy: Parser, name: str, side: str) -> None:
    copy.add_argument(
        f"--{name}", required=True, dest=side, metavar="<address>", help=f"the {side}"
    )
    copy.add_argument(
        f"--{name}-home", dest=f"{side}_home", metavar="<dir>", help=f"the home of the {side}"
    )

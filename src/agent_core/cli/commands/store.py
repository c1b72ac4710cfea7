"""The arguments of `soong-agent store`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, Parser, add_actions, add_command

_ADDRESSES = """\
An address is sqlite:PATH, postgresql://user@host/database, or env:NAME of a
variable that holds one of these. Other users can read command lines: put a
password into the variable.
"""
_MIGRATE = """\
examples:
  soong-agent store migrate
  soong-agent store migrate env:AGENT_DATABASE
  soong-agent store migrate sqlite:backup/sessions.sqlite --json

Creates missing tables and upgrades old ones. The default is the database of the
settings. Exit codes: 0 up to date; 1 it cannot be used, or has a newer version;
2 wrong usage or configuration.
"""
_CHECK = """\
examples:
  soong-agent store check
  soong-agent store check env:AGENT_DATABASE --json

Checks that the database is reachable, usable, writable and up to date, and
changes nothing. The default is the database of the settings. Exit codes: 0 all
checks passed, 1 one failed; 2 wrong usage or configuration.
"""
_COPY = """\
examples:
  soong-agent store copy --from sqlite:sessions.sqlite --to env:AGENT_DATABASE
  soong-agent store copy --from env:AGENT_DATABASE --to sqlite:copy.db 18ea7dc4
  soong-agent store copy --from env:HERE --to env:THERE --tenant acme --json

Copies whole sessions: messages, events, runs, questions and answers, budgets,
artifacts and snapshots of files. The source is not changed. Skips a session
that the target already has, that has an active run, or whose contents are
missing or damaged at the source; the others are copied. Run the same command
again to continue an interrupted copy. --incomplete copies a session without
missing contents, and names them. --json writes one line per session.

Artifacts and snapshots of sessions in a file are in a home directory: the
folder of a file named sessions.sqlite, otherwise the configured home;
--from-home and --to-home override this.

With --tenant, only sessions of that tenant and sessions without a tenant are
copied; at the target they all belong to it. Exit codes: 0 all copied; 1 some
not copied; 2 wrong usage or configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    store = add_command(commands, "store", PURPOSES["store"], epilog=_ADDRESSES)
    store.set_defaults(work="agent_core.cli.store:manage_store")
    actions = add_actions(store)
    migrate = add_command(
        actions, "migrate", "create or upgrade the tables of a database", epilog=_MIGRATE
    )
    check = add_command(actions, "check", "check whether a database can be used", epilog=_CHECK)
    for action in (migrate, check):
        action.add_argument(
            "address", nargs="?", default="", help="the database; default: the configured one"
        )
    copy = add_command(actions, "copy", "copy sessions to another database", epilog=_COPY)
    _add_side(copy, "from", "source")
    _add_side(copy, "to", "target")
    copy.add_argument(
        "--incomplete", action="store_true", help="copy without missing or damaged contents"
    )
    copy.add_argument(
        "--tenant", metavar="<name>", help="only sessions of this tenant, and sessions without one"
    )
    copy.add_argument(
        "ids",
        nargs="*",
        metavar="session",
        help="the id of a session, or its beginning; default: all",
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

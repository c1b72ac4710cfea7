"""The arguments of `soong-agent schema`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_actions, add_command

_EVENTS = """\
examples:
  soong-agent schema events
  soong-agent schema events > events.schema.json

Exit codes: 0 printed; 2 wrong usage.
"""
_SESSION = """\
example:
  soong-agent schema session > session.schema.json

Exit codes: 0 printed; 2 wrong usage.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    schema = add_command(commands, "schema", PURPOSES["schema"])
    actions = add_actions(schema)
    add_command(
        actions, "events", "print the schema of a line of run --events", epilog=_EVENTS
    ).set_defaults(work="agent_core.cli.schema:print_schema")
    add_command(
        actions, "session", "print the schema of a line of sessions export --jsonl", epilog=_SESSION
    ).set_defaults(work="agent_core.cli.schema:print_schema")

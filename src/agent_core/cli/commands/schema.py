"""The arguments of `soong-agent schema`."""

from collections.abc import Callable

from agent_core.cli.options import Commands, Options, add_actions, add_command


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    schema = add_command(commands, "schema", "print the JSON Schema of what commands write")
    actions = add_actions(schema)
    add_command(actions, "events", "of one line of run --events").set_defaults(load=_load)


def _load() -> Callable[[Options], int]:
    from agent_core.cli.schema import print_schema  # noqa: PLC0415 - help must not wait for it

    return print_schema

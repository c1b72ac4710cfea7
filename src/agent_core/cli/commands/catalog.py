"""The arguments of `soong-agent agents` and `skills`."""

from agent_core.cli.options import Commands, add_actions, add_command, add_path

_AGENTS = """\
examples:
  soong-agent agents list
  soong-agent agents list --json

Definitions of your own are files in the home, agents/<name>.md; those of the
program are built in. The workers of the pools in config.toml are named behind.
Exit codes: 0 listed; 2 wrong usage, or a definition that cannot be used.
"""
_SKILLS = """\
examples:
  soong-agent skills list
  soong-agent skills list --json

Skills are files in the home: skills/<name>.md, or skills/<name>/SKILL.md with
other files beside it. One that cannot be used is passed over, and named.
Exit codes: 0 listed; 2 wrong usage or configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the arguments of the two commands."""
    for name, what, listing, examples in (
        ("agents", "look at the kinds of agents", "list the kinds of agents", _AGENTS),
        ("skills", "look at the skills", "list the skills", _SKILLS),
    ):
        command = add_command(commands, name, what)
        command.set_defaults(work="agent_core.cli.catalog:list_catalog")
        action = add_command(
            add_actions(command), "list", f"{listing} that runs have", epilog=examples
        )
        add_path(action)
        action.add_argument("--json", action="store_true", help="print one JSON object a line")

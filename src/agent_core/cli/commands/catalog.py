"""The arguments of `soong-agent agents` and `skills`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_actions, add_command, add_path

_AGENTS = """\
examples:
  soong-agent agents list
  soong-agent agents list --json

Your own definitions are files in the home directory, agents/<name>.md; others
are built in. The workers of the pools in config.toml are listed after them.
Exit codes: 0 listed; 2 wrong usage, or an invalid definition.
"""
_SKILLS = """\
examples:
  soong-agent skills list
  soong-agent skills list --json

Skills are files in the home directory: skills/<name>.md, or
skills/<name>/SKILL.md with further files. Invalid ones are skipped and named.
Exit codes: 0 listed; 2 wrong usage or configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the arguments of the two commands."""
    for name, listing, examples in (
        ("agents", "list the kinds of agents", _AGENTS),
        ("skills", "list the skills", _SKILLS),
    ):
        command = add_command(commands, name, PURPOSES[name])
        command.set_defaults(work="agent_core.cli.catalog:list_catalog")
        action = add_command(
            add_actions(command, "list"), "list", f"{listing} that runs have", epilog=examples
        )
        add_path(action)
        action.add_argument("--json", action="store_true", help="one JSON object per line")

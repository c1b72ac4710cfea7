"""The arguments of `soong-agent config`."""

from agent_core.cli.options import Commands, add_actions, add_command, add_path

_WHAT = """\
Show the effective configuration: each key with its value and its origin: a line
of config.toml, --model, $SOONG_AGENT_MODEL, or the default. Paths are resolved.
For API keys only the name of the variable is shown, and whether it is set.
"""
_EXAMPLES = """\
examples:
  soong-agent config show
  soong-agent config show model
  soong-agent config show tools.max_timeout_ms
  soong-agent config show --model openai:gpt-5 --json

Exit codes: 0 shown; 2 an invalid configuration, no such key, or wrong usage.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    config = add_command(commands, "config", "show the settings")
    config.set_defaults(work="agent_core.cli.settings:show_settings")
    show = add_command(
        add_actions(config, "show"),
        "show",
        "show every setting and its origin",
        description=_WHAT,
        epilog=_EXAMPLES,
    )
    add_path(show)
    show.add_argument(
        "--model", metavar="<provider:name>", help="show the settings with this model"
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.add_argument("id", nargs="?", metavar="key", help="only this key, or those below it")

"""The arguments of `soong-agent config`."""

from agent_core.cli.options import Commands, add_actions, add_command, add_path

_WHAT = """\
Show what the configuration comes to: each key with its value and where that
comes from: a line of config.toml, --model, $SOONG_AGENT_MODEL, or the default.
Paths are resolved. Of keys of services only the names of the variables are
shown, and whether these are set.
"""
_EXAMPLES = """\
examples:
  soong-agent config show
  soong-agent config show model
  soong-agent config show tools.max_timeout_ms
  soong-agent config show --model openai:gpt-5 --json

Exit codes: 0 shown; 2 the configuration cannot be used, there is no such key,
or wrong usage.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    config = add_command(commands, "config", "look at the settings")
    config.set_defaults(work="agent_core.cli.settings:show_settings")
    show = add_command(
        add_actions(config),
        "show",
        "show every setting, and where it comes from",
        description=_WHAT,
        epilog=_EXAMPLES,
    )
    add_path(show)
    show.add_argument(
        "--model", metavar="<provider:name>", help="show what comes of naming this model"
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.add_argument("id", nargs="?", metavar="key", help="only this key, or those below it")

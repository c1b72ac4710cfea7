"""The arguments of `soong-agent config`."""

from agent_core.cli.commands import PURPOSES
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
_GET = """\
examples:
  soong-agent config get model.name
  soong-agent config get tools.disabled

Prints the value alone: a string as it is, everything else as JSON.
Exit codes: 0 printed; 1 not set; 2 an invalid configuration, no such key, or
wrong usage.
"""
_SET = """\
examples:
  soong-agent config set model openai:gpt-5
  soong-agent config set memory.enabled false
  soong-agent config set tools.disabled '["code.run_command"]'
  soong-agent config set 'tools.overrides."web.get".permission' write

The value is TOML, or the plain text for a key that takes a string; '""' is the
empty string. Comments and layout of config.toml stay. The new file is checked
as a whole before it replaces the old one. Secrets are refused: export them, and
name the variable in model.api_key_env. Edit items of arrays in the file.
Exit codes: 0 written; 1 the file cannot be written; 2 an invalid configuration,
key or value (nothing was written), or wrong usage.
"""
_UNSET = """\
examples:
  soong-agent config unset model.temperature
  soong-agent config unset model_overrides.fast

Exit codes: 0 removed, or not set; 1 the file cannot be written; 2 an invalid
configuration or key (nothing was written), or wrong usage.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    config = add_command(commands, "config", PURPOSES["config"])
    config.set_defaults(work="agent_core.cli.settings:manage_settings")
    actions = add_actions(config, "show")
    show = add_command(
        actions,
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
    get = add_command(actions, "get", "print the value of one setting", epilog=_GET)
    add_path(get)
    change = add_command(actions, "set", "change one setting in config.toml", epilog=_SET)
    unset = add_command(actions, "unset", "remove one setting from config.toml", epilog=_UNSET)
    for action in (get, change, unset):
        action.add_argument("id", metavar="key", help="with dots, such as model.name")
    change.add_argument("value", help="TOML, or a string without quotes")

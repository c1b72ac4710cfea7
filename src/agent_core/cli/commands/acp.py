"""The arguments of `soong-agent acp`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_command

_EPILOG = """\
The editor starts this command and uses the Agent Client Protocol on standard
input and output, one JSON message per line. All other output goes to standard
error. It ends when its input ends. The editor names the project of each
session; several sessions can be open at once.

Needs the extra acp; if it is missing, the error says how to install it.
Exit codes: 0 the editor has closed the connection; 2 wrong usage, or the extra
is missing; 130 and 143 a signal.

examples:
  soong-agent acp
  soong-agent acp --model ollama:qwen3

In the settings of an editor: {"command": "soong-agent", "args": ["acp"]}
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    acp = add_command(commands, "acp", PURPOSES["acp"], epilog=_EPILOG)
    acp.set_defaults(work="agent_core.cli.acp.serve:serve_editor")
    acp.add_argument("--model", metavar="<provider:name>", help="the default model of sessions")

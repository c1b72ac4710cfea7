"""The arguments of `soong-agent mcp`."""

from agent_core.cli.options import Commands, add_actions, add_command, add_path

_LIST = """\
examples:
  soong-agent mcp list
  soong-agent mcp list --json

Each line shows whether the server is enabled, its transport, its log-in and its
address. Does not connect: `mcp test` connects and lists the tools. Exit codes:
0 listed; 2 wrong usage, or an invalid mcp.json.
"""
_TEST = """\
examples:
  soong-agent mcp test files
  soong-agent mcp test files --json

Connects as a run would, and lists tools, resources and prompts without calling
any. Exit codes: 0 the server answers; 1 it does not, or no such server; 2 wrong
usage, or an invalid mcp.json; 130 interrupted.
"""
_LOGIN = """\
examples:
  soong-agent mcp login tracker

Opens the browser if there is one; otherwise open the address that is shown and
paste the resulting address here. Exit codes: 0 logged in, or no log-in needed;
1 failed; 2 wrong usage, or an invalid mcp.json; 130 interrupted.
"""
_LOGOUT = """\
examples:
  soong-agent mcp logout tracker

Exit codes: 0 logged out; 1 no such server; 2 wrong usage, or an invalid
mcp.json.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    mcp = add_command(commands, "mcp", "list and test MCP servers, and log in to them")
    mcp.set_defaults(work="agent_core.cli.servers:manage_servers")
    actions = add_actions(mcp, "list")
    listing = add_command(actions, "list", "list the servers of mcp.json", epilog=_LIST)
    made = [listing]
    for action, what, epilog in (
        ("login", "log in to a server in the browser, here or on another machine", _LOGIN),
        ("logout", "delete the log-in of a server", _LOGOUT),
        ("test", "connect to a server, and list what it offers", _TEST),
    ):
        made.append(add_command(actions, action, what, epilog=epilog))
        made[-1].add_argument("id", help="the server's id")
    for command in (listing, made[-1]):
        command.add_argument("--json", action="store_true", help="print JSON")
    for command in made:
        add_path(command)

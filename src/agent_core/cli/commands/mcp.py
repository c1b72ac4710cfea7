"""The arguments of `soong-agent mcp`."""

from agent_core.cli.options import Commands, add_actions, add_command, add_path

_LIST = """\
examples:
  soong-agent mcp list
  soong-agent mcp list --json

Each line says whether the server is on, how it is reached, whether there is a
log-in, and where it is. None is connected to: `mcp test` does that, and lists
its tools. Exit codes: 0 listed; 2 wrong usage, or mcp.json cannot be used.
"""
_TEST = """\
examples:
  soong-agent mcp test files
  soong-agent mcp test files --json

Connects as a run would, and lists tools, resources and prompts. Nothing of them
is called. Exit codes: 0 it answers; 1 it does not, or there is no such server;
2 wrong usage, or mcp.json cannot be used; 130 interrupted.
"""
_LOGIN = """\
examples:
  soong-agent mcp login tracker

The browser opens where there is one; else the address is shown, and what it
leads to is pasted here. Exit codes: 0 logged in, or no log-in is wanted; 1 it
failed; 2 wrong usage, or mcp.json cannot be used; 130 interrupted.
"""
_LOGOUT = """\
examples:
  soong-agent mcp logout tracker

Exit codes: 0 there is no log-in any more; 1 there is no such server; 2 wrong
usage, or mcp.json cannot be used.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    mcp = add_command(commands, "mcp", "look at MCP servers, and log in to them")
    mcp.set_defaults(work="agent_core.cli.servers:manage_servers")
    actions = add_actions(mcp)
    listing = add_command(actions, "list", "list the servers of mcp.json", epilog=_LIST)
    made = [listing]
    for action, what, epilog in (
        ("login", "log in to a server in the browser, here or on another machine", _LOGIN),
        ("logout", "forget the log-in of a server", _LOGOUT),
        ("test", "connect to a server, and list what it offers", _TEST),
    ):
        made.append(add_command(actions, action, what, epilog=epilog))
        made[-1].add_argument("id", help="the server's id")
    for command in (listing, made[-1]):
        command.add_argument("--json", action="store_true", help="print JSON")
    for command in made:
        add_path(command)

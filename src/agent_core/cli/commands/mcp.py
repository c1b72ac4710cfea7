"""The arguments of `soong-agent mcp`."""

from agent_core.cli.options import Commands, add_actions, add_command, add_mode, add_path, port

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
_SERVE = """\
Clients get the tools run, sessions_list, session_show and cancel. They work in
these folders only, with the settings of this user; a run asks for permission
in the client, where that can ask its user.

Over HTTP a client sends a token: the one that is named, or one that is made for
this process. The line on standard output is an entry for the mcp.json of a
client. Everything else goes to standard error.

examples:
  soong-agent mcp serve
  soong-agent mcp serve --mode plan --path ~/src/shop
  soong-agent mcp serve --transport http --port 8643 --token-env AGENT_TOKEN

In the settings of a client: {"command": "soong-agent", "args": ["mcp", "serve"]}

Exit codes: 0 the client has closed the connection, or a signal over HTTP; 2
wrong usage or configuration; 130 and 143 a signal.
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
    _add_serve(actions)


def _add_serve(actions: Commands) -> None:
    serve = add_command(actions, "serve", "serve the agent to MCP clients", epilog=_SERVE)
    serve.set_defaults(work="agent_core.cli.mcp_server.serve:serve_clients")
    serve.add_argument(
        "--path",
        "--project",
        dest="projects",
        action="append",
        metavar="<dir-or-file>",
        help="a folder that clients may work in, the first by default; may be repeated"
        " (default: the current folder)",
    )
    serve.add_argument(
        "--model", metavar="<provider:name>", help="the model of runs that choose none"
    )
    add_mode(serve)
    serve.add_argument(
        "--approvals",
        choices=("ask", "tool", "deny"),
        default="ask",
        help="ask: the client asks its user, else the settings decide (default); tool: also offer"
        " tools with which the calling model itself can answer; deny: nobody is asked",
    )
    serve.add_argument(
        "--transport",
        choices=("stdio", "http"),
        default="stdio",
        help="standard streams (default), or streamable HTTP",
    )
    serve.add_argument(
        "--host", metavar="<address>", help="for http; default: 127.0.0.1, only this machine"
    )
    serve.add_argument(
        "--port",
        type=port,
        metavar="<n>",
        help="for http; default: 8643; 0 is a free one",
    )
    token = serve.add_mutually_exclusive_group()
    token.add_argument(
        "--token-env", metavar="<name>", help="the environment variable that holds the token"
    )
    token.add_argument(
        "--token-file", metavar="<file>", help="the file whose first line is the token"
    )

"""The arguments of `soong-agent mcp`."""

from collections.abc import Callable

from agent_core.cli.options import Commands, Options, add_actions, add_command


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    mcp = add_command(commands, "mcp", "look at MCP servers, and log in to them")
    mcp.set_defaults(load=_load)
    actions = add_actions(mcp)
    add_command(actions, "list", "list the servers of mcp.json")
    for action, what in (
        ("login", "log in to a server in the browser, here or on another machine"),
        ("logout", "forget the log-in of a server"),
        ("test", "connect to a server, and list its tools"),
    ):
        add_command(actions, action, what).add_argument("id", help="the server's id")


def _load() -> Callable[[Options], int]:
    from agent_core.cli.servers import manage_servers  # noqa: PLC0415 - help must not wait for it

    return manage_servers

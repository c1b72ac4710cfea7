"""The arguments of `soong-agent mcp`."""

import re
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Sequence

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import (
    Commands,
    Options,
    Parser,
    add_actions,
    add_command,
    add_mode,
    add_path,
    add_token,
    port,
    positive,
)

_LIST = """\
examples:
  soong-agent mcp list
  soong-agent mcp list --json

Each line shows whether the server is enabled, its transport, its login and its
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
paste the resulting address here. Exit codes: 0 logged in, or no login needed;
1 failed; 2 wrong usage, or an invalid mcp.json; 130 interrupted.
"""
_LOGOUT = """\
examples:
  soong-agent mcp logout tracker

Exit codes: 0 logged out; 1 no such server; 2 wrong usage, or an invalid
mcp.json.
"""
_SERVE = """\
Clients get the tools run, sessions_list, session_show and cancel. They work
only in these folders, with the settings of this user. A run asks for permission
in the client, if the client can ask its user.

Over HTTP a client sends a token: yours, or one made for this process. The line
on standard output is an entry for a client's mcp.json. Everything else goes to
standard error.

examples:
  soong-agent mcp serve
  soong-agent mcp serve --mode plan --path ~/src/shop
  soong-agent mcp serve --transport http --port 8643 --token-env AGENT_TOKEN

In a client: {"command": "soong-agent", "args": ["mcp", "serve"]}

Exit codes: 0 the client has closed the connection, or a signal over HTTP; 2
wrong usage or configuration; 130 and 143 a signal.
"""
_ADD = """\
examples:
  soong-agent mcp add git -- uvx mcp-server-git --repository /src/shop
  soong-agent mcp add search --env BRAVE_API_KEY -- npx -y brave-search-mcp
  soong-agent mcp add notion https://mcp.notion.com/mcp
  soong-agent mcp add docs https://docs.example/mcp --bearer-token-env-var TOKEN
  soong-agent mcp add - < snippet.json

Writes a server to mcp.json; the other servers there stay as they are. Options
may come before or after the name; everything after the command's first word
belongs to the command. - reads a README's snippet from standard input: JSON for
another client, or a command line such as claude mcp add. An existing server is
replaced only with --replace. --env NAME uses the variable's current value.
Values are kept in mcp.json, which only you can read. Exit codes: 0 added; 1 the
name is taken, or the file cannot be written; 2 wrong usage, a server that
cannot be used, a placeholder left in it, or an invalid mcp.json (nothing was
written).
"""
_ADD_JSON = """\
examples:
  soong-agent mcp add-json files '{"command": "npx", "args": ["-y", "x-mcp"]}'
  soong-agent mcp add-json '{"mcpServers": {"docs": {"url": "https://…/mcp"}}}'
  soong-agent mcp add-json github - --env TOKEN < snippet.json

Takes a server, or what holds servers by name: mcpServers, servers (VS Code),
mcp.servers; also with comments and trailing commas. Keys without a meaning here
are left out, and named. --env and --header fill placeholders. Exit codes: as
for mcp add.
"""
_REMOVE = """\
examples:
  soong-agent mcp remove files

Removes the server from mcp.json, and its stored login. Exit codes: 0 removed;
1 no such server, or the file cannot be written; 2 wrong usage, or an invalid
mcp.json.
"""
_PAIR = re.compile(r"[A-Za-z_][\w.-]*=", re.ASCII)
_HEADER = re.compile(r"[^\s:=]+\s*[:=]", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]+")
_ADDITIONS = ("add", "add-json")


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    mcp = add_command(commands, "mcp", PURPOSES["mcp"])
    mcp.set_defaults(work="agent_core.cli.servers:manage_servers")
    actions = add_actions(mcp, "list")
    listing = add_command(actions, "list", "list the servers of mcp.json", epilog=_LIST)
    for action, what, usage, epilog in (
        ("add", "add a server to mcp.json", "<name> [options] (<url> | -- command…)", _ADD),
        ("add-json", "add the servers of a README's JSON", "[<name>] [options] <json>", _ADD_JSON),
    ):
        adding = add_command(
            actions, action, what, usage=f"soong-agent mcp {action} {usage}", epilog=epilog
        )
        adding.set_defaults(work="agent_core.cli.new_servers:add_servers")
        _add_options(adding)
        add_path(adding)
    removal = add_command(actions, "remove", "remove a server from mcp.json", epilog=_REMOVE)
    removal.set_defaults(work="agent_core.cli.new_servers:remove_server")
    removal.add_argument("id", help="the server's id")
    add_path(removal)
    made = [listing]
    for action, what, epilog in (
        ("login", "log in to a server in the browser, here or on another machine", _LOGIN),
        ("logout", "delete the login of a server", _LOGOUT),
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
    serve.add_argument("--model", metavar="<provider:name>", help="the default model of runs")
    add_mode(serve)
    serve.add_argument(
        "--approvals",
        choices=("ask", "tool", "deny"),
        default="ask",
        help="ask: the client asks its user, otherwise the settings decide (default); tool: also"
        " offer tools with which the calling model itself can answer; deny: every call that"
        " would ask is denied",
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
        help="for http; default: 8643; 0 picks a free one",
    )
    add_token(serve)


def _add_options(adding: Parser) -> None:
    adding.add_argument(
        "words", nargs="*", metavar="word", help="the name, then the command or URL"
    )
    adding.add_argument(
        "-e",
        "--env",
        action="append",
        type=_variable,
        metavar="<name=value>",
        help="a variable for the server; without =value, from your environment",
    )
    adding.add_argument(
        "-H",
        "--header",
        dest="headers",
        action="append",
        type=_header,
        metavar="<name: value>",
        help="a header for a server over HTTP",
    )
    adding.add_argument(
        "-t",
        "--transport",
        choices=("stdio", "http", "sse", "streamable-http"),
        metavar="<transport>",
        help="stdio, http or sse (default: stdio for a command, http for an address, sse if"
        " that ends with /sse)",
    )
    adding.add_argument("--url", metavar="<url>", help="the address, if not after the name")
    adding.add_argument("--cwd", metavar="<dir>", help="working folder (default: your home)")
    adding.add_argument(
        "--timeout", type=positive, metavar="<ms>", help="for start, handshake and listing"
    )
    adding.add_argument("--client-id", metavar="<id>", help="an OAuth client that you registered")
    adding.add_argument(
        "--callback-port", type=positive, metavar="<port>", help="the port of that client"
    )
    adding.add_argument(
        "--bearer-token-env-var",
        dest="token_variable",
        metavar="<name>",
        help="send the current value of this variable as bearer token",
    )
    adding.add_argument(
        "-s",
        "--scope",
        choices=("user", "local", "project"),
        metavar="<scope>",
        help="accepted for compatibility; servers always belong to the user",
    )
    adding.add_argument("--replace", action="store_true", help="replace a server of this name")
    # Options of other clients without a meaning here, which are left out by name.
    adding.add_argument(
        "--trust", dest="unused", action="append_const", const="--trust", help=SUPPRESS
    )
    for name in ("--description", "--tools", "--include-tools", "--exclude-tools"):
        adding.add_argument(name, dest="unused", action="append", type=_named(name), help=SUPPRESS)


def split_words(argv: Sequence[str], parser: Parser) -> tuple[Sequence[str], Sequence[str]]:
    """Return the options of `mcp add` and `mcp add-json`, and their words.

    Options stand on either side of the name and of an address; the words of a command are its own.
    """
    if argv[1:2] not in [[action] for action in _ADDITIONS]:
        return argv, ()
    valued = {
        name: option.option_strings[-1]
        for option in parser.commands["mcp"].commands[argv[1]].options
        for name in option.option_strings
        if option.nargs != 0
    }
    options, words, rest = list(argv[:2]), list[str](), list(argv[2:])
    while rest:
        word = rest.pop(0)
        if word == "--":
            if words:
                return options, words + rest
        elif word == "-" or word[:1] != "-":
            words.append(word)
            is_command = len(words) > 1 and "://" not in word and word[:1] not in {"-", "{"}
            if is_command and argv[1] == "add":
                return options, words + (rest[1:] if rest[:1] == ["--"] else rest)
        elif word in valued and rest:
            options.append(f"{valued[word]}={rest.pop(0)}")
            while valued[word] == "--env" and rest and _PAIR.match(rest[0]):
                options.append(f"--env={rest.pop(0)}")
        else:
            options.append(word)
    return options, words


def usable_name(name: str) -> str:
    """Return a name without the signs that a server's id cannot have; empty if nothing is left."""
    return _NOT_IN_ID.sub("-", name).strip("-")[:64]


def _variable(text: str) -> str:
    """Check the form of a variable."""
    if not _PAIR.match(f"{text}="):
        form = "NAME=VALUE is needed, or the NAME of a variable that is set"
        raise ArgumentTypeError(form)
    return text


def _named(option: str) -> Callable[[str], str]:
    """Return a reader of an option's value that keeps the option's name only."""
    return lambda _: option


def _header(text: str) -> str:
    """Check the form of a header."""
    if not _HEADER.match(text):
        raise ArgumentTypeError("a name and a value are needed, such as 'X-Key: …'")
    return text


def find_misuse(options: Options) -> str | None:
    """Return the fault in the words of an addition; None if they fit together."""
    if options.action not in _ADDITIONS:
        return None
    name, *rest = options.words or [""]
    example = "; for example: soong-agent mcp add files -- npx -y some-server /data"
    if not name:
        return f"a name is missing{example}"
    if not "".join(rest).strip() and rest:
        return "the command is empty; is a shell variable not set?"
    is_snippet = name == "-" or name[:1] in set('{["') or "\n" in name
    if not (is_snippet or _ID.fullmatch(name)):
        hint = f"; {usable_name(name)} would do" if usable_name(name) else ""
        return f"a server's name has 1 to 64 letters, digits, '_' or '-'{hint}"
    if options.action == "add-json":
        if len(rest) > 1:
            return "there is more than one snippet; put it between single quotes"
        return None if is_snippet or rest else "the JSON is missing; - reads it from the input"
    if is_snippet or options.url:
        return f"{rest[0]!r} is too much" if rest else None
    if not rest:
        return f"a command or an address is missing{example}"
    if "://" in rest[0] and len(rest) > 1:
        return f"{rest[1]!r} is unexpected: only options may follow an address"
    return None

"""`soong-agent mcp add`, `add-json` and `remove`: change the servers of `mcp.json`."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from agent_core.cli.commands.mcp import usable_name
from agent_core.cli.exit_codes import COMPLETED, FAILED, MISUSED
from agent_core.cli.options import Options
from agent_core.cli.server_file import ServerFile
from agent_core.cli.servers import server_line
from agent_core.cli.setup import build_terminal_redactor, run_on_terminal
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.paths import Setup
from agent_core.config.problems import MAX_FILE_BYTES
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.mcp import ServerConfig, StoredLogin, read_servers, secret_values
from agent_core.mcp.config import HttpServer, StdioServer, read_server
from agent_core.mcp.snippets import Fields, Snippet, divide_command, find_gaps, read_snippet
from agent_core.process.child import find_program
from agent_core.text import Clean, visible

_MOST_NAMED = 4
_PIECE = re.compile(
    r"""(?P<quoted>'[^']*'|"(?:\\.|[^"\\])*"|\\.)"""
    r"|(?P<comment>(?<!\S)(?:\#|//|```)[^\n]*)|(?P<end>\n|(?<!\S)(?:&&|\|\||;)(?!\S))|.",
    re.DOTALL,
)
"""A part of a text of command lines; a quoted one may have several lines."""

_INPUT = re.compile(r"\$\{input:([^{}]*)\}")


def add_servers(options: Options) -> int:
    """Add the server of a command line, or all servers of a snippet, and return the exit code."""
    words = options.words
    if "-" in words:
        try:
            text = _read_input()
            line = _command_line(text)
        except (OSError, ValueError) as error:
            print(f"error: standard input cannot be used: {error}", file=sys.stderr)
            print("soong-agent mcp add --help shows what it can be", file=sys.stderr)
            return MISUSED
        if line:
            again = [*line, *_options_again(options)]
            return options.execute(again, None, run_loop=options.run_loop)
        options.words = [text if word == "-" else word for word in words]
    return run_on_terminal(options, options.path, partial(_add, options), asks_model=False)


def remove_server(options: Options) -> int:
    """Remove a server and its login, and return the exit code."""
    return run_on_terminal(options, options.path, partial(_remove, options), asks_model=False)


def _add(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    try:
        snippet = _snippet_of(options)
        servers = _filled(snippet, options)
    except ValueError as error:
        raise _error(f"nothing was added: {error}") from None
    gaps = {name: find_gaps(fields) for name, fields in servers.items()}
    if any(gaps.values()):
        for line in _cures(gaps, snippet):
            terminal.line(clean(line), Style.BAD if line.startswith("error") else Style.PLAIN)
        return MISUSED
    checked = {name: _checked(name, fields, setup) for name, fields in servers.items()}
    redactor = build_terminal_redactor(os.environ, setup)
    redactor.learn(secret_values(checked))
    clean = redactor.text
    file = ServerFile(setup.home, setup.project)
    try:
        added = file.put(servers, replaces=options.replace)
    except KeyError as error:
        message = f"error: mcp.json has a server {error.args[0]} already; nothing was added"
        terminal.line(message, Style.BAD)
        terminal.line("add --replace to replace it, or choose another name", Style.DIM)
        return FAILED
    for name, server in added.items():
        line = server_line(name, server, setup)
        terminal.text(f"{visible(clean(line), one_line=True)}\n")
    _remark(added, snippet, options, terminal, file.path)
    return COMPLETED


def _remark(
    added: Mapping[str, ServerConfig],
    snippet: Snippet,
    options: Options,
    terminal: Terminal,
    path: Path,
) -> None:
    """Say what was left out, what is stored, and what comes next."""
    if left_out := [*snippet.left_out, *(options.unused or ())]:
        names = visible(", ".join(left_out), one_line=True)
        terminal.line(f"left out, because it has no meaning here: {names}", Style.WARN)
    if options.scope in {"local", "project"}:
        terminal.line("mcp.json is yours: the server is there in every project", Style.WARN)
    for name, server in added.items():
        secrets = [each.removeprefix(f"{name}_") for each in secret_values({name: server})]
        if secrets:
            named = _some(dict.fromkeys(re.sub(r"_\d+$", "", each) for each in secrets))
            place = path.resolve()
            terminal.line(f"{place} holds {named} as given; only you can read it", Style.WARN)
        if isinstance(server, StdioServer):
            try:
                find_program(server.command, cwd=Path(server.cwd or Path.home()), env=os.environ)
            except ToolError as error:
                message = f"{name} cannot be started yet: {error.message}"
                terminal.line(visible(message, one_line=True), Style.WARN)
    first = next(iter(added))
    terminal.line(f"added to mcp.json; to try it: soong-agent mcp test {first}", Style.GOOD)


def _snippet_of(options: Options) -> Snippet:
    """Return the servers of the words, with their names.

    Raises:
        ValueError: there is none, or its name cannot be used.
    """
    name, *rest = options.words
    text = next((word for word in options.words[:2] if word[:1] in '{["' or "\n" in word), None)
    if text is None and (options.action == "add-json" or not (rest or options.url)):
        text = options.words[-1]
    if text is None:
        return Snippet({name: _fields_of(rest, options)}, [], {})
    snippet = read_snippet(text)
    given = name if text is not name else ""
    if given:
        if given in snippet.servers:
            only = {given: snippet.servers[given]}
        elif len(snippet.servers) == 1:
            only = {given: next(iter(snippet.servers.values()))}
        else:
            names = _some(snippet.servers)
            raise ValueError(f"it has no server {given}; it has {names}")
        return Snippet(only, snippet.left_out, snippet.inputs)
    if "" in snippet.servers:
        raise ValueError("it does not name its server: put a name in front of it")
    servers = {usable_name(key): each for key, each in snippet.servers.items()}
    if "" in servers:
        raise ValueError("it has a name that no server id can be made of: give a name")
    if len(servers) < len(snippet.servers):
        raise ValueError("it has two servers whose names differ only in spaces and signs")
    return Snippet(servers, snippet.left_out, snippet.inputs)


def _fields_of(words: Sequence[str], options: Options) -> Fields:
    """Return the fields of a server that is named by words, without its options."""
    address = options.url or (words[0] if "://" in words[0] else None)
    if address is None:
        program, *args = words if len(words) > 1 else divide_command(words[0])
        return {"command": program} | ({"args": args} if args else {})
    return {"url": address}


def _filled(snippet: Snippet, options: Options) -> dict[str, Fields]:
    """Return the servers with the values of the options, which win.

    Raises:
        ValueError: an option fits no server.
    """
    env = dict(map(_variable, options.env or []))
    headers = dict(map(_header, options.headers or []))
    if name := options.token_variable:
        headers["Authorization"] = f"Bearer {_variable(name)[1]}"
    plain: Fields = {"cwd": options.cwd, "timeout_ms": options.timeout}
    oauth = {"client_id": options.client_id, "redirect_port": options.callback_port}
    if oauth := {key: value for key, value in oauth.items() if value is not None}:
        plain["oauth"] = oauth
    filled: dict[str, Fields] = {}
    for name, fields in snippet.servers.items():
        is_address = "url" in fields
        transport = options.transport or fields.get("transport")
        if is_address and transport is None and urlsplit(str(fields["url"])).path.endswith("/sse"):
            transport = "sse"
        given = {key: value for key, value in plain.items() if value is not None}
        fields = {key: value for key, value in fields.items() if key != "transport"} | given
        if transport is not None and (transport == "stdio") == is_address:
            kind = "an address" if is_address else "a command"
            raise ValueError(f"--transport {transport} does not fit {name}, which is {kind}")
        if len(snippet.servers) == 1 and (env if is_address else headers):
            option, kind = ("--env", "a command") if is_address else ("--header", "an address")
            raise ValueError(f"{option} is for {kind}, and {name} has none")
        if transport == "sse":
            fields["type"] = "sse"
        for key, values in (("env", env), ("headers", headers)):
            known = cast("Fields", fields.get(key) or {})
            wanted = (
                values
                if len(snippet.servers) == 1
                else {k: values[k] for k in values if k in known}
            )
            if wanted:
                fields[key] = {**known, **wanted}
        filled[name] = fields
    return filled


def _variable(pair: str) -> tuple[str, str]:
    """Return the name and the value of a variable.

    Raises:
        ValueError: the environment does not have it.
    """
    name, is_pair, value = pair.partition("=")
    if not is_pair:
        if (found := os.environ.get(name)) is None:
            raise ValueError(f"the variable {name} is not set: export it, or give --env {name}=…")
        value = found
    return name, value


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.strip().partition(":")
    if "=" in name:
        name, _, value = text.strip().partition("=")
    return name.strip(), value.strip()


def _checked(name: str, fields: Fields, setup: Setup) -> ServerConfig:
    try:
        return read_server(name, fields, home=setup.home, project=setup.project)
    except ValueError as error:
        raise _error(f"nothing was added: {name}{error}") from None


def _cures(gaps: Mapping[str, Mapping[str, str]], snippet: Snippet) -> Iterable[str]:
    """Yield the placeholders that are left, and how to fill them."""
    for name, found in gaps.items():
        if not found:
            continue
        shown: list[str] = []
        for place, gap in found.items():
            asked = _INPUT.fullmatch(gap)
            about = snippet.inputs.get(asked[1], "") if asked else ""
            shown.append(f"{place} ({about or gap or 'empty'})")
        yield f"error: {name} has a placeholder to fill in: {visible(_some(shown), one_line=True)}"
    places = {place for found in gaps.values() for place in found}
    cures = [f"--env {place[4:]}=…" for place in places if place.startswith("env.")]
    cures += [f"--header '{place[8:]}: …'" for place in places if place.startswith("headers.")]
    if cures:
        yield f"nothing was added; add it again with {' '.join(sorted(cures))}"
    else:
        yield "nothing was added; put your own values there, and add it again"


def _remove(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    servers = read_servers(setup.home, setup.project)
    try:
        server = ServerFile(setup.home, setup.project).remove(options.id)
    except KeyError:
        known = ", ".join(servers) or "none"
        message = f"error: mcp.json has no server {clean(options.id)}; it has {known}"
        terminal.line(message, Style.BAD)
        return FAILED
    said = f"removed {options.id} from mcp.json"
    others = [each for name, each in servers.items() if name != options.id]
    if isinstance(server, HttpServer):
        is_shared = any(isinstance(each, HttpServer) and each.url == server.url for each in others)
        if not is_shared and StoredLogin(setup.home, server.url).forget():
            said += ", and deleted its login"
    terminal.line(said, Style.GOOD)
    rules = setup.config.tools.mcp
    prefix = f"mcp.{options.id}"
    named = [*rules.disabled_tools, *rules.tool_overrides]
    left = [each for each in named if f"{each}.".startswith(f"{prefix}.")]
    left += [each for each in rules.disabled_servers if each == options.id]
    if left:
        names = _some(dict.fromkeys(left))
        terminal.line(f"[tools.mcp] in config.toml still names {names}", Style.WARN)
    return COMPLETED


def _read_input() -> str:
    raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
    return raw.decode("utf-8-sig")


def _command_line(text: str) -> list[str] | None:
    """Return the arguments for a command line of another client; None if the text is none.

    Raises:
        ValueError: it has several such lines.
    """
    if text.lstrip("\ufeff").lstrip()[:1] in {"{", "[", '"'}:
        return None
    text = text.strip().strip("`")  # a line of code in a paragraph, or a block
    found = [line for each in _commands(text) if (line := _addition(each)) is not None]
    if len(found) > 1:
        raise ValueError(f"it has {len(found)} command lines that add servers: give one at a time")
    return found[0] if found else None


def _commands(text: str) -> Iterable[list[str]]:
    """Yield the words of each command of a text, as a shell divides it."""
    text = re.sub(r"\\\r?\n", " ", text)
    parts: list[str] = []
    for piece in _PIECE.finditer(text + "\n"):
        if piece.lastgroup == "end":
            with suppress(ValueError):
                yield shlex.split("".join(parts))
            parts.clear()
        elif piece.lastgroup != "comment":
            parts.append(piece[0])


def _addition(words: Sequence[str]) -> list[str] | None:
    """Return the arguments of this program for a command that adds a server; None for another."""
    for at in range(1, len(words) - 1):
        if words[at] == "mcp" and words[at + 1] in {"add", "add-json"}:
            return list(words[at:])
        if words[at] == "--add-mcp":
            return ["mcp", "add-json", words[at + 1]]
    return None


def _options_again(options: Options) -> list[str]:
    given = [f"--env={pair}" for pair in options.env or []]
    given += [f"--header={pair}" for pair in options.headers or []]
    return given + (["--replace"] if options.replace else [])


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = [f"{len(listed) - _MOST_NAMED} more"] if len(listed) > _MOST_NAMED else []
    return ", ".join([*listed[:_MOST_NAMED], *more])


def _error(message: str) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_ERROR, message)

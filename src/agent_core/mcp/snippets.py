"""Read servers as READMEs show them, for whatever client they were written.

A snippet is data from outside. It becomes entries of `mcp.json`: keys that mean the same here are
taken over under the names used here, everything else is left out by name, and a place where the
reader has to put something of his own is found before anything is written.
"""

import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from msgspec import Struct

from agent_core.config.problems import parse_json
from agent_core.mcp.config import HttpServer, StdioServer
from agent_core.secret_shapes import kind_of_name

Fields = dict[str, Any]

_AROUND_SERVERS = ("mcpServers", "servers", "mcp_servers", "context_servers", "mcp")
"""The keys that hold servers by name, in the files of one client or another."""

_NAMES = {
    "serverUrl": "url",
    "httpUrl": "url",
    "environment": "env",
    "http_headers": "headers",
    "transportType": "transport",
    "type": "transport",
}
_OAUTH_NAMES = {
    "clientId": "client_id",
    "clientSecret": "client_secret",
    "callbackPort": "redirect_port",
}
_USUAL = ("stdio", "local", "http", "remote", "streamable-http", "streamable_http")
"""Transports that an entry has without naming one, as clients call them."""

_UNSAID = frozenset({"name", "description", "source"})
"""Keys that change nothing about a server: they are left out silently."""

_MOST_SHOWN = 60
_BLOCK = re.compile(r"^[ \t]*```[\w-]*[ \t]*\r?\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_TOML = re.compile(r"^[ \t]*\[mcp_servers\.", re.MULTILINE)
_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'"(?:\\.|[^"\\\n])*"|,(?=\s*(?:[}\]]|$))', re.DOTALL)

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)\}")
_GAP = re.compile(
    r"\$\{[^{}]*\}|\{(?:env|file|input):[^{}]*\}|<[A-Za-z][^<>\n]*>"
    r"|(?i:\bpath[/\\]+to[/\\]+[^\s,]*)|(?i:\byour[-_][\w-]*)"
)
"""A place to be filled, wherever it is."""

_GAP_IN_VALUE = re.compile(
    r"\{\{[^{}]*\}\}|\$[A-Za-z_]\w*$|(?i:\byour\w*)|\.\.\.|…|(?i:x{3,})$|\*{3,}|(?i:[-_ ]here$)"
    r"|(?i:\breplace[-_ ]?(?:me|this|with)\b)|(?i:^change[-_ ]?me$)"
)
"""A place to be filled, where a value is expected that only the user has."""

_GAP_IN_ADDRESS = re.compile(r"\{[^{}]*\}")
_NAME_AS_VALUE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_PATH = re.compile(r"\s*(?:~?/|\.{1,2}[/\\]|[A-Za-z]:[/\\]|\\\\)")
_ARGUMENTS = re.compile(r"\s+(?=[-/~@\"'])")
"""The space between a program and what can only be an argument."""

_SCHEME = re.compile(r"(?i:bearer|basic|token)\b\s*")


class Snippet(Struct, frozen=True):
    """The servers of a snippet.

    Attributes:
        servers: their fields, as `mcp.json` has them, by name; empty for a server without one.
        left_out: the keys without a meaning here, as `<server>.<key>`.
        inputs: what each `${input:…}` asks for, by its id.
    """

    servers: dict[str, Fields]
    left_out: list[str]
    inputs: dict[str, str]


def read_snippet(text: str) -> Snippet:
    """Read a snippet: JSON, also with comments or without its outer braces, or Codex' TOML.

    Raises:
        ValueError: it names no server, or cannot be read. The message holds no value of it.
    """
    text = text.lstrip("\ufeff").replace("\xa0", " ")
    blocks = _BLOCK.findall(text)
    text = (blocks[0] if len(blocks) == 1 else _FENCE.sub("", text)).strip()
    if not text:
        raise ValueError("it is empty")
    if text[0] not in '{["/' and not _TOML.search(text):
        raise ValueError("it is neither JSON nor a command line such as claude mcp add …")
    try:
        document: object = tomllib.loads(text) if _TOML.search(text) else _read_json(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    servers: dict[str, Fields] = {}
    left_out: list[str] = []
    for name, entry in _entries(document):
        if name in servers:
            raise ValueError(f"it names the server {name or 'without a name'} twice")
        servers[name], unused = _translate(entry)
        left_out += [f"{name}.{key}" if name else key for key in unused]
    if not servers:
        raise ValueError('it has no server: an object with "command" or "url"')
    return Snippet(servers, left_out, dict(_inputs(document)))


def find_gaps(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the placeholders that an entry still has, by their place, such as `env.TOKEN`."""
    found: dict[str, str] = {}
    env = cast("Fields", fields.get("env") or {})
    for kind, values in (("env", env), ("headers", cast("Fields", fields.get("headers") or {}))):
        for name, value in values.items():
            if (gap := _gap_in_value(name, str(value))) is not None:
                found[f"{kind}.{name}"] = gap
    for number, argument in enumerate(cast("list[Any]", fields.get("args") or [])):
        # Some programs fill in variables themselves: those that they are given may stay.
        shown = _VARIABLE.sub(lambda match: "" if match[1] in env else match[0], str(argument))
        if gap := _GAP.search(shown):
            found[f"args[{number}]"] = gap[0]
    for key in ("command", "cwd", "url"):
        value = str(fields.get(key) or "")
        if gap := _GAP.search(value) or (key == "url" and _GAP_IN_ADDRESS.search(value)) or None:
            found[key] = gap[0]
    return {place: gap[:_MOST_SHOWN] for place, gap in found.items()}


def _gap_in_value(name: str, value: str) -> str | None:
    """Return the placeholder in a variable or a header; empty if a secret is missing."""
    bare = _SCHEME.sub("", value, count=1).strip()
    if not bare:
        return "" if kind_of_name(name) is not None else None
    if gap := _GAP.search(value) or _GAP_IN_VALUE.search(value):
        return gap[0]
    is_name = _NAME_AS_VALUE.fullmatch(bare) and kind_of_name(bare) is not None
    return bare if is_name else None


def _read_json(text: str) -> object:
    text = _TOKEN.sub(lambda token: token[0] if token[0][0] == '"' else " ", text)
    text = _LAST_COMMA.sub(lambda token: token[0] if token[0][0] == '"' else "", text)
    if text.startswith('"'):  # a part of a file, such as `"docs": {…}`
        text = f"{{{text}}}"
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: not JSON: {error.msg}") from None


def _is_server(entry: object) -> bool:
    keys = ("command", "url", "serverUrl", "httpUrl")
    return isinstance(entry, dict) and any(
        isinstance(entry.get(key), str | list | dict)  # pyright: ignore[reportUnknownMemberType]
        for key in keys
    )


def _entries(document: object) -> Iterator[tuple[str, Fields]]:
    """Yield the servers with their names; empty for a server without one."""
    if isinstance(document, list):
        for each in cast("list[object]", document):
            yield from _entries(each)
        return
    if not isinstance(document, dict):
        return
    table = cast("Fields", document)
    if _is_server(table):
        yield str(table.get("name") or ""), table
        return
    for key, inner in table.items():
        if key.rpartition(".")[2] in _AROUND_SERVERS and not _is_server(inner):
            yield from _entries(inner)
            return
    yield from ((name, entry) for name, entry in table.items() if _is_server(entry))


def _inputs(document: object) -> Iterator[tuple[str, str]]:
    """Yield what a snippet for VS Code asks its reader for."""
    tables = [cast("Fields", document)] if isinstance(document, dict) else []
    tables += [inner for inner in (tables[0].values() if tables else ()) if isinstance(inner, dict)]
    for table in tables:
        inputs = table.get("inputs")
        for each in cast("list[Any]", inputs if isinstance(inputs, list) else []):
            if isinstance(each, dict):
                asked = cast("Fields", each)
                yield str(asked.get("id")), str(asked.get("description") or "")


def _translate(entry: Fields) -> tuple[Fields, list[str]]:
    """Return an entry with the keys of `mcp.json`, and the keys that have no meaning there.

    Raises:
        ValueError: it has a value of the wrong form.
    """
    entry = {_NAMES.get(key, key): value for key, value in entry.items() if value is not None}
    _check_forms(entry)
    _divide_command(entry)
    for key in ("enabled", "isActive"):
        if key in entry:
            entry["disabled"] = entry.pop(key) is False
    if entry.get("disabled") is False:
        del entry["disabled"]
    if str(entry.get("transport", "stdio")) in (*_USUAL, "streamableHttp"):
        entry.pop("transport", None)
    _take_variables(entry)
    if isinstance(entry.get("oauth"), dict):
        oauth = cast("Fields", entry["oauth"])
        entry["oauth"] = {_OAUTH_NAMES.get(key, key): value for key, value in oauth.items()}
    if "args" in entry and isinstance(entry["args"], list):
        entry["args"] = [*map(_as_text, cast("list[Any]", entry["args"]))]
    for key in ("env", "headers"):
        if isinstance(values := entry.get(key), dict):
            named = cast("Fields", values).items()
            entry[key] = {name: _as_text(value) for name, value in named if value is not None}
    model = HttpServer if entry.get("url") else StdioServer
    if model is HttpServer and not entry.get("command"):
        entry.pop("command", None)
    kept = {key: value for key, value in entry.items() if key in model.model_fields}
    kept = {key: value for key, value in kept.items() if value not in (None, {}, [])}
    return kept, [key for key in entry if key not in {*model.model_fields, *_UNSAID}]


_FORMS = {
    "args": (list, "an array"),
    "env_vars": (list, "an array"),
    "env": (dict, "an object"),
    "headers": (dict, "an object"),
    "env_http_headers": (dict, "an object"),
    "oauth": (dict, "an object"),
    "url": (str, "a string"),
    "bearer_token_env_var": (str, "a string"),
}


def _check_forms(entry: Fields) -> None:
    """Check the forms that the translation relies on, and names that a cure may repeat.

    Raises:
        ValueError: one is another.
    """
    for key, (form, words) in _FORMS.items():
        value: object = entry.get(key)
        if value is None:
            continue
        if not isinstance(value, form):
            raise ValueError(f"{key} must be {words}")
        named = key in {"env", "headers", "env_http_headers", "env_vars"}
        for name in cast("Iterable[object]", value) if named else ():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ValueError(
                    f"{key} has a name with other signs than letters, digits, _ . and -"
                )


def divide_command(command: str) -> list[str]:
    """Return the words of a command, whose program may be a path with spaces.

    Raises:
        ValueError: a quotation in it has no end.
    """
    if _PATH.match(command):
        bare = command.strip()
        words = bare.split(maxsplit=1)
        if shutil.which(bare) or (not shutil.which(words[0]) and not _ARGUMENTS.search(bare)):
            return [bare]
        if "\\" in bare:  # it was written for another system, where a backslash is no quote
            program, *args = _ARGUMENTS.split(bare, maxsplit=1)
            return [program, *" ".join(args).split()]
    try:
        return shlex.split(command) or [command]
    except ValueError:
        raise ValueError("command has a quotation without an end") from None


def _divide_command(entry: Fields) -> None:
    """Make a command that has its arguments in it, or is a list or a table, a program and them."""
    command = entry.get("command")
    if isinstance(command, dict):  # an older form of Zed's
        table = cast("Fields", command)
        entry |= {"command": table.get("path"), **{k: table[k] for k in table if k != "path"}}
    elif isinstance(command, list):
        words = cast("list[Any]", command)
        entry |= {
            "command": words[0] if words else "",
            "args": [*words[1:], *entry.get("args", [])],
        }
    elif isinstance(command, str) and not entry.get("args") and " " in command.strip():
        program, *args = divide_command(command)
        entry |= {"command": program} | ({"args": args} if args else {})


def _take_variables(entry: Fields) -> None:
    """Write what names a variable of the environment as the placeholder that it is."""
    if name := entry.pop("bearer_token_env_var", None):
        entry["headers"] = {**entry.get("headers", {}), "Authorization": f"Bearer ${{{name}}}"}
    headers: object = entry.pop("env_http_headers", None)
    if isinstance(headers, dict):
        named = {key: f"${{{value}}}" for key, value in cast("Fields", headers).items()}
        entry["headers"] = {**named, **entry.get("headers", {})}
    variables: object = entry.pop("env_vars", None)
    if isinstance(variables, list):
        named = {str(each): f"${{{each}}}" for each in cast("list[Any]", variables)}
        entry["env"] = {**named, **entry.get("env", {})}


def _as_text(value: Any) -> Any:
    """Return a number or a truth value as the text that a program is given."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value

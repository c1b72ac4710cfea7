"""Reads `<home>/mcp.json`: which MCP servers there are and how each one is reached.

The format is the one other clients use, so that a file can be copied. It is the user's file: a
project never brings servers of its own. Nothing in it is expanded (a `$NAME` in `env` or
`headers` is sent as it stands), except the placeholders and the tilde of `cwd`.
"""

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, ValidationError

from agent_core.config.models import Milliseconds, Section
from agent_core.config.paths import expand_path
from agent_core.config.problems import problems_of
from agent_core.errors import ConfigError, ErrorCode

MCP_FILE_NAME = "mcp.json"
MAX_FILE_BYTES = 1_000_000

_SERVER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_TRANSPORT_NAMES = {"http": "streamable_http", "streamable-http": "streamable_http"}


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    return value


def _variable_names(value: dict[str, str]) -> dict[str, str]:
    if any(not name or "=" in name or "\0" in name for name in value):
        raise ValueError("must have names without '=' and NUL")
    return value


def _header_fields(value: dict[str, str]) -> dict[str, str]:
    for name, content in value.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("must have names of letters, digits and hyphens")
        if not content.isascii() or not content.isprintable():
            raise ValueError("must have values of printable ASCII on one line")
    return value


def _endpoint(value: str) -> str:
    parts = urlsplit(value)  # a bracket without its pair is a ValueError of its own
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be an http or https address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain credentials; put them into headers")
    return value


def _usual_name(value: Any) -> Any:
    return _TRANSPORT_NAMES.get(value, value) if isinstance(value, str) else value


Plain = Annotated[str, AfterValidator(_without_nul)]
_TRANSPORT = AliasChoices("transport", "type")  # other clients write `type`


class StdioServer(Section):
    """A server that is started as a child process and spoken to through its pipes.

    `timeout_ms` bounds start, handshake and listing, not the calls.
    """

    command: Annotated[Plain, Field(min_length=1)]
    args: list[Plain] = Field(default_factory=list[Plain])
    env: Annotated[dict[str, Plain], AfterValidator(_variable_names)] = Field(
        default_factory=dict[str, Plain]
    )
    cwd: Plain | None = None
    transport: Literal["stdio"] = Field(default="stdio", validation_alias=_TRANSPORT)
    timeout_ms: Milliseconds = 30_000
    disabled: bool = False


class HttpServer(Section):
    """A server that is reached over HTTP; `headers` go to its origin and nowhere else."""

    url: Annotated[str, AfterValidator(_endpoint)]
    headers: Annotated[dict[str, str], AfterValidator(_header_fields)] = Field(
        default_factory=dict[str, str]
    )
    transport: Annotated[
        Literal["streamable_http", "sse"],
        BeforeValidator(_usual_name),
        Field(validation_alias=_TRANSPORT),
    ] = "streamable_http"
    timeout_ms: Milliseconds = 30_000
    disabled: bool = False


ServerConfig = StdioServer | HttpServer
_KNOWN_KEYS = {*StdioServer.model_fields, *HttpServer.model_fields, "type"}


def read_servers(home: Path, project: Path) -> dict[str, ServerConfig]:
    """Every server that `<home>/mcp.json` names, disabled ones too; none without the file.

    A server's `cwd` starts at the home and is the home by default, never the project: an
    interpreter that is started in a folder may import what lies there.

    Raises:
        ConfigError: the file is not what it should be. Names the file and the place in it, never
            a value: `env` and `headers` are where people keep their tokens.
    """
    path = home / MCP_FILE_NAME
    raw = _read(path)
    if raw is None:
        return {}
    return {
        server_id: _server(path, server_id, entry, home=home, project=project)
        for server_id, entry in _entries(path, _parse(path, raw)).items()
    }


def load_servers(home: Path, project: Path) -> dict[str, ServerConfig]:
    """The servers of `<home>/mcp.json` that are not disabled.

    Raises:
        ConfigError: as `read_servers`.
    """
    return enabled(read_servers(home, project))


def enabled(servers: Mapping[str, ServerConfig]) -> dict[str, ServerConfig]:
    """Those of the servers that may be used."""
    return {server_id: server for server_id, server in servers.items() if not server.disabled}


def config_hash(server: ServerConfig) -> str:
    """The same for the same server only: what a cached discovery belongs to."""
    return hashlib.sha256(server.model_dump_json().encode()).hexdigest()


def _read(path: Path) -> bytes | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _unusable(path, "it is not a regular file")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, f"it cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise _unusable(path, f"it is larger than {MAX_FILE_BYTES:,} bytes")
    if raw.startswith(_BYTE_ORDER_MARKS):
        raise _unusable(path, "it begins with a byte order mark; save it as plain UTF-8")
    return raw


def _parse(path: Path, raw: bytes) -> Any:
    try:
        return json.loads(raw.decode(), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _unusable(path, f"line {line} is not UTF-8; save it as plain UTF-8") from None
    except RecursionError:
        raise _unusable(path, "it is nested too deeply") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _unusable(path, f"{place}: not JSON: {error.msg}") from None
    except ValueError as error:  # a name given twice, or a number with thousands of digits
        raise _unusable(path, str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"{json.dumps(key[:80])} is given twice in one object")
        table[key] = value
    return table


def _entries(path: Path, document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise _unusable(path, 'it must be an object with the key "mcpServers"')
    table = cast("dict[str, Any]", document)
    if unknown := sorted(set(table) - {"mcpServers"}):
        raise _unusable(path, f'{_quoted(unknown[0])} is not a known key; use "mcpServers"')
    servers = table.get("mcpServers", {})
    if not isinstance(servers, dict):
        raise _unusable(path, "mcpServers must be an object of servers by id")
    return cast("dict[str, Any]", servers)


def _server(path: Path, server_id: str, entry: Any, *, home: Path, project: Path) -> ServerConfig:
    place = f"mcpServers.{_quoted(server_id)}"
    if not _SERVER_ID.fullmatch(server_id):
        rule = "1 to 64 letters, digits, '_' or '-' (it becomes part of the tools' names)"
        raise _unusable(path, f"{place}: a server id has {rule}")
    if not isinstance(entry, dict):
        raise _unusable(path, f'{place} must be an object with "command" or "url"')
    fields = cast("dict[str, Any]", entry)
    if ("command" in fields) == ("url" in fields):
        fault = f'{place} must have exactly one of "command" and "url"'
        if unknown := sorted(set(fields) - _KNOWN_KEYS):
            fault += f"; {_quoted(unknown[0])} is not a known key"
        raise _unusable(path, fault)
    model = StdioServer if "command" in fields else HttpServer
    try:
        server = model.model_validate(fields)
    except ValidationError as error:
        raise _unusable(path, f"{place}: {problems_of(error, model)[0]}") from None
    if isinstance(server, HttpServer):
        return server
    try:
        cwd = expand_path(server.cwd, home, home=home, project=project) if server.cwd else home
    except ConfigError as error:
        raise _unusable(path, f"{place}.cwd: {error.message}") from None
    return server.model_copy(update={"cwd": str(cwd)})


def _quoted(name: str) -> str:
    return json.dumps(name[:80])


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        ErrorCode.CONFIG_ERROR,
        f"the MCP servers in {path} cannot be used: {reason}",
        details={"path": str(path)},
    )

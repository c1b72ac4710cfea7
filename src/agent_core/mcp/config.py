"""Reads `<home>/mcp.json`: which MCP servers there are and how each one is reached.

The format is the one other clients use, so that a file can be copied. It is the user's file: a
project never brings servers of its own. Nothing in it is expanded (a `$NAME` in `env` or
`headers` is sent unchanged), except the placeholders and the tilde of `cwd`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, ValidationError

from agent_core.config.models import Milliseconds
from agent_core.config.paths import expand_path
from agent_core.config.problems import problems_of, read_json_file, unusable
from agent_core.config.section import Section
from agent_core.errors import ConfigError
from agent_core.text.json_text import JsonObject

MCP_FILE_NAME = "mcp.json"

SERVER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_WHAT = "MCP servers"
_HTTP = "streamable_http"


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
    parts = urlsplit(value)  # an unmatched bracket raises a ValueError by itself
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be an http or https address")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain credentials; put them into headers")
    return value


Plain = Annotated[str, AfterValidator(_without_nul)]
Protocol = Literal["auto", "2025-11-25"]
"""The newest version that both sides know, or the one whose servers may ask during a call."""

_TRANSPORT = AliasChoices("transport", "type")  # other clients write `type`


class StdioServer(Section):
    """A server that is started as a child process and reached through its pipes.

    `timeout_ms` bounds start, handshake and listing, not the calls.
    """

    command: Annotated[Plain, Field(min_length=1)]
    args: list[Plain] = Field(default_factory=list[Plain])
    env: Annotated[dict[str, Plain], AfterValidator(_variable_names)] = Field(
        default_factory=dict[str, Plain]
    )
    cwd: Plain | None = None
    transport: Literal["stdio"] = Field(default="stdio", validation_alias=_TRANSPORT)
    protocol: Protocol = "auto"
    timeout_ms: Milliseconds = 30_000
    disabled: bool = False


def _document_address(value: str | None) -> str | None:
    if value is not None:
        parts = urlsplit(value)
        if parts.scheme != "https" or not parts.hostname or parts.path in {"", "/"}:
            raise ValueError("must be an https address with a path")
    return value


class OAuth(Section):
    """Settings of a login that the server does not announce.

    Attributes:
        client_id: id of a client that you have registered; by default a new one is registered.
        client_secret: of that client, if it has one.
        client_metadata_url: address of a document that describes the client, if servers take one.
        scope: the scope to ask for first.
        redirect_port: local port the browser returns to, if the client is registered with one.
    """

    client_id: str | None = None
    client_secret: str | None = None
    client_metadata_url: Annotated[str | None, AfterValidator(_document_address)] = None
    scope: str | None = None
    redirect_port: Annotated[int, Field(gt=0, le=65535)] | None = None


class HttpServer(Section):
    """A server that is reached over HTTP; `headers` go to its origin and nowhere else."""

    url: Annotated[str, AfterValidator(_endpoint)]
    headers: Annotated[dict[str, str], AfterValidator(_header_fields)] = Field(
        default_factory=dict[str, str]
    )
    transport: Annotated[
        Literal["streamable_http", "sse"],
        BeforeValidator(lambda name: _HTTP if name in ("http", "streamable-http") else name),
        Field(validation_alias=_TRANSPORT),
    ] = "streamable_http"
    oauth: OAuth = Field(default_factory=OAuth)
    protocol: Protocol = "auto"
    timeout_ms: Milliseconds = 30_000
    disabled: bool = False


ServerConfig = StdioServer | HttpServer
_KNOWN_KEYS = {*StdioServer.model_fields, *HttpServer.model_fields, "type"}


def read_servers(home: Path, project: Path) -> dict[str, ServerConfig]:
    """Read every server that `<home>/mcp.json` names, disabled ones too; none without the file.

    A server's `cwd` starts at the home and is the home by default, never the project: an
    interpreter that is started in a folder may import the files in it.

    Raises:
        ConfigError: the file is invalid. The message names the file and the place in it, never
            a value: `env` and `headers` are where people keep their tokens.
    """
    path = home / MCP_FILE_NAME
    document = read_json_file(path, _WHAT)
    if document is None and not path.exists():
        return {}
    return servers_of(document, path, home=home, project=project)


def servers_of(
    document: object, path: Path, *, home: Path, project: Path
) -> dict[str, ServerConfig]:
    """Return the servers of a document from `mcp.json`.

    Raises:
        ConfigError: as `read_servers`.
    """
    if not isinstance(document, dict):
        raise unusable(path, _WHAT, 'it must be an object with the key "mcpServers"')
    table = cast("dict[str, Any]", document)
    if unknown := sorted(set(table) - {"mcpServers"}):
        reason = f'{_quote(unknown[0])} is not a known key; use "mcpServers"'
        raise unusable(path, _WHAT, reason)
    servers = table.get("mcpServers", {})
    if not isinstance(servers, dict):
        raise unusable(path, _WHAT, "mcpServers must be an object of servers by id")
    found: dict[str, ServerConfig] = {}
    for server_id, entry in cast("dict[str, Any]", servers).items():
        try:
            found[server_id] = read_server(server_id, entry, home=home, project=project)
        except ValueError as error:
            reason = f"mcpServers.{_quote(server_id)}{error}"
            raise unusable(path, _WHAT, reason) from None
    return found


def load_servers(home: Path, project: Path) -> dict[str, ServerConfig]:
    """Load the servers of `<home>/mcp.json` that are not disabled.

    Raises:
        ConfigError: as `read_servers`.
    """
    return enabled(read_servers(home, project))


def enabled(servers: Mapping[str, ServerConfig]) -> dict[str, ServerConfig]:
    """Return the servers that are not disabled."""
    return {server_id: server for server_id, server in servers.items() if not server.disabled}


def config_hash(server: ServerConfig) -> str:
    """Hash a server's configuration, as a part of the key of its cached discovery."""
    return hashlib.sha256(server.model_dump_json().encode()).hexdigest()


def read_server(server_id: str, entry: Any, *, home: Path, project: Path) -> ServerConfig:
    """Read one entry.

    Raises:
        ValueError: it cannot be used; the text belongs after the place of the mistake.
    """
    if not SERVER_ID.fullmatch(server_id):
        rule = "1 to 64 letters, digits, '_' or '-' (it becomes part of the tools' names)"
        raise ValueError(f": a server id has {rule}")
    if not isinstance(entry, dict):
        raise ValueError(' must be an object with "command" or "url"')
    fields = cast("JsonObject", entry)
    if ("command" in fields) == ("url" in fields):
        unknown = sorted(set(fields) - _KNOWN_KEYS)
        hint = f"; {_quote(unknown[0])} is not a known key" if unknown else ""
        raise ValueError(f' must have exactly one of "command" and "url"{hint}')
    model = StdioServer if "command" in fields else HttpServer
    try:
        server = model.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f": {problems_of(error, model)[0]}") from None
    if isinstance(server, HttpServer):
        return server
    try:
        cwd = expand_path(server.cwd, home, home=home, project=project) if server.cwd else home
    except ConfigError as error:
        raise ValueError(f".cwd: {error.message}") from None
    return server.model_copy(update={"cwd": str(cwd)})


def _quote(name: str) -> str:
    return json.dumps(name[:80])

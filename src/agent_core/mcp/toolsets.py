"""MCP servers that a program names, instead of the user's file or in addition to it."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from agent_core.config.problems import problems_of
from agent_core.errors import ArgumentError
from agent_core.mcp.config import SERVER_ID, HttpServer, Protocol, ServerConfig, StdioServer
from agent_core.text import quoted
from agent_core.tools.toolsets import ToolFilter, Toolset


class McpToolset(Toolset):
    """The tools of one MCP server, as `mcp.<name>.<tool>`; the runtime connects it.

    Attributes:
        server: its configuration.
    """

    def __init__(
        self, name: str, model: type[ServerConfig], fields: object, chosen: ToolFilter | None
    ) -> None:
        super().__init__(name, filter=chosen)
        try:
            if not SERVER_ID.fullmatch(name):
                raise ValueError("name: has 1 to 64 letters, digits, '_' or '-'")
            self.server: ServerConfig = model.model_validate(fields)
        except ValidationError as error:
            first = problems_of(error, model)[0]
            raise _unusable(name, str(first), re.split(r"[.\[]", first.key)[0]) from None
        except ValueError as error:
            raise _unusable(name, str(error), "name") from None


class McpStdio(McpToolset):
    """An MCP server that runs as a process, started without a shell.

    Args:
        name: part of the names of its tools, `mcp.<name>.<tool>`.
        command: the program.
        args: its arguments; a relative path among them starts at `cwd`.
        env: variables in addition to `[tools] env_allowlist`; their values are secret.
        cwd: its working folder; default: the user's home folder, or the root folder for an agent of
            `agcore`; never the current folder.
        protocol: a version; `auto` is the newest that both sides know.
        timeout_ms: for start, handshake and listing.
        filter: selects its tools, by their own names or by their definitions.

    Raises:
        ArgumentError: names the argument.
    """

    def __init__(
        self,
        name: str,
        command: str,
        args: Iterable[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        protocol: Protocol = "auto",
        timeout_ms: int = 30_000,
        filter: ToolFilter | None = None,  # noqa: A002 - what it is called everywhere
    ) -> None:
        fields = {
            "command": command,
            "args": list(args),
            "env": dict(env or {}),
            "cwd": None if cwd is None else str(cwd),
            "protocol": protocol,
            "timeout_ms": timeout_ms,
        }
        super().__init__(name, StdioServer, fields, filter)


class McpHttp(McpToolset):
    """An MCP server over HTTP.

    Args:
        name: part of the names of its tools, `mcp.<name>.<tool>`.
        url: its address.
        headers: sent only to its origin; their values are secret.
        transport: the kind of HTTP transport.
        protocol: a version; `auto` is the newest that both sides know.
        timeout_ms: for connecting, handshake and listing.
        filter: selects its tools, by their own names or by their definitions.

    Raises:
        ArgumentError: names the argument.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        transport: Literal["streamable_http", "sse"] = "streamable_http",
        protocol: Protocol = "auto",
        timeout_ms: int = 30_000,
        filter: ToolFilter | None = None,  # noqa: A002 - what it is called everywhere
    ) -> None:
        fields = {
            "url": url,
            "headers": dict(headers or {}),
            "transport": transport,
            "protocol": protocol,
            "timeout_ms": timeout_ms,
        }
        super().__init__(name, HttpServer, fields, filter)


def _unusable(name: str, reason: str, argument: str) -> ArgumentError:
    message = f"the MCP server {quoted(name)} cannot be used: {reason}"
    return ArgumentError(message, argument)

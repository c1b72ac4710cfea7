"""A client for one MCP server, on the engine's connection; the first start imports the SDK."""

import math
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from agcore.tools.error import McpToolError, tool_error_from
from agcore.tools.registry import ToolRegistry
from agent_core.config.models import ToolsConfig
from agent_core.errors import ConfigError, ToolError
from agent_core.mcp import (
    McpHttp,
    McpStdio,
    McpTools,
    McpToolset,
    ServerFailure,
    secret_values,
)
from agent_core.mcp.config import StdioServer
from agent_core.mcp.discovery import DiscoveryCache
from agent_core.mcp.tools import PREFIX
from agent_core.redaction import Redactor
from agent_core.tools import Action, Tool, ToolAnswer, ToolContext, wrap
from agent_core.tools.toolsets import Toolset, opened
from agent_core.types import ToolDefinition, ToolResult

TIMEOUT_S = 30.0
"""Seconds for the start, and for each call."""


class McpClient:
    """An MCP server, started as a child process or reached over HTTP.

    Data from the server is not trusted: descriptions, schemas and results are limited in size, and
    a changed definition is refused until `start` is called again. A child process inherits only
    PATH, HOME and TMPDIR. The values of `env` and `headers`, and keys among the arguments and in
    the address, are redacted from everything the server sends.

    Args:
        command: the program, found through PATH.
        args: its arguments.
        url: the address of a server over HTTP, instead of a command.
        headers: go with every request to that address, and to no other host.
        env: further environment variables of the program.
        cwd: its working folder; the root folder by default, so that no project file is picked up.
        timeout_s: for the start, and for each call, in seconds above 0.
        server_id: becomes part of the tools' names, `mcp.<server_id>.<tool>`: letters, digits,
            `_` and `-`.

    Raises:
        ToolError: `Mcp`; there is not exactly one of `command` and `url`, or a value cannot
            be used.
    """

    def __init__(
        self,
        command: str | None = None,
        args: Sequence[str] = (),
        *,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        server_id: str = "server",
    ) -> None:
        if not 0 < timeout_s < math.inf:
            message = f"timeout_s is {timeout_s:g}; give seconds above 0, or leave it out"
            raise McpToolError(server_id, message)
        if (command is None) == (url is None):
            raise McpToolError(server_id, "give exactly one of command and url")
        limit = max(1, round(timeout_s * 1000))
        try:
            if command is None:
                server = McpHttp(server_id, url or "", headers=headers, timeout_ms=limit)
            else:
                server = McpStdio(server_id, command, args, env=env, cwd=cwd, timeout_ms=limit)
        except ConfigError as error:
            raise McpToolError(server_id, error.message) from None
        self._set_up(server)

    @classmethod
    def of(cls, toolset: McpToolset) -> Self:
        """Create a client for a server given as a toolset (`McpStdio`, `McpHttp`)."""
        client = cls.__new__(cls)
        client._set_up(toolset)  # noqa: SLF001 - its own class
        return client

    def _set_up(self, toolset: McpToolset) -> None:
        server_id, server = toolset.name, toolset.server
        if isinstance(server, StdioServer) and server.cwd is None:
            server = server.model_copy(update={"cwd": os.sep})
        milliseconds = server.timeout_ms
        limits = ToolsConfig(default_timeout_ms=milliseconds, max_timeout_ms=milliseconds)
        self._prefix = f"{PREFIX}{server_id}."
        self._server_id = server_id
        self._timeout_s = milliseconds / 1000
        filters = {} if toolset.filter is None else {server_id: toolset.filter}
        self._servers = McpTools(
            {server_id: server}, limits, cache=DiscoveryCache(), filters=filters
        )
        self._tools: list[Tool] = []
        self._redactor = Redactor(secret_values({server_id: server}))

    async def start(self) -> None:
        """Start or reach the server and list its tools; call it again to see changes.

        Raises:
            ToolError: `Mcp`; it cannot be started or reached, or did not answer in time.
        """
        failures: list[ServerFailure] = []

        async def note(failure: ServerFailure) -> None:
            failures.append(failure)

        found = await self._servers.tools(on_failure=note)
        self._tools = [_redact_tool(tool, self._redactor) for tool in found]
        if failures:
            raise McpToolError(self._server_id, self._redactor.secrets_only(failures[0].message))

    async def list_tools(self) -> list[ToolDefinition]:
        """Return the definitions of the server's tools."""
        return [tool.definition for tool in self._tools]

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool by the server's name for it, or by its full one.

        Raises:
            ToolError: of the kind that fits.
        """
        full = name if name.startswith(self._prefix) else self._prefix + name
        # The connection has the same limit and a better message, so this one has to come later.
        registry = ToolRegistry(self._tools, timeout_s=self._timeout_s + 5)
        return await registry.invoke(full, arguments or {})

    def tools(self) -> list[Tool]:
        """Return the server's tools, for registration."""
        return list(self._tools)

    async def close(self) -> None:
        """End the connection and the server's process. Harmless when called again."""
        await self._servers.aclose()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@asynccontextmanager
async def open_toolset(toolset: Toolset) -> AsyncGenerator[Sequence[Tool]]:
    """Open a toolset, which may be an MCP server, and yield its tools.

    Raises:
        ToolError: it cannot be opened; the message names it.
    """
    if isinstance(toolset, McpToolset):
        async with McpClient.of(toolset) as client:
            yield client.tools()
        return
    async with AsyncExitStack() as stack:
        try:
            tools = await stack.enter_async_context(opened(toolset))
        except ToolError as error:
            raise tool_error_from(toolset.name, error) from error
        yield tools


def _redact_tool(tool: Tool, redactor: Redactor) -> Tool:
    """Redact secrets in the tool's definition, its answers and its errors."""
    shown = tool.definition.model_dump(include={"description", "input_schema"})
    clean = redactor.payload_secrets_only(shown)

    async def prepare(arguments: Any, context: ToolContext) -> Action:
        action = await tool.prepare(arguments, context)

        async def run() -> ToolResult:
            try:
                returned = await action.run()
            except ToolError as error:
                message = redactor.secrets_only(error.message)
                details = redactor.payload_secrets_only(error.details)
                raise ToolError(error.code, message, error.retryable, details) from None
            answer = wrap(returned.answer if isinstance(returned, ToolAnswer) else returned)
            return ToolResult.model_validate(redactor.payload_secrets_only(answer.model_dump()))

        return replace(action, run=run)

    return replace(tool, definition=tool.definition.model_copy(update=clean), prepare=prepare)

"""One server: connected when it is needed, again after a crash, and closed once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from agent_core.errors import ErrorCode, ToolError
from agent_core.mcp.config import ServerConfig, StdioServer, config_hash
from agent_core.mcp.discovery import (
    DiscoveryCache,
    Host,
    Offer,
    SessionForgottenError,
    ToolSpec,
    server_failed,
)

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from agent_core.mcp.connection import ServerConnection

T = TypeVar("T")

MAX_QUIET_SECONDS = 60.0
"""Longest time in seconds for which a server that failed is not tried again."""


class McpServer:
    """A server: connected when it is needed, again after a crash, and closed once.

    Attributes:
        revision: grows when its tools have changed.
    """

    def __init__(
        self, server_id: str, config: ServerConfig, host: Host, *, cache: DiscoveryCache
    ) -> None:
        self.server_id = server_id
        self._config = config
        self._host = host
        self._cache = cache
        self._key = (server_id, config_hash(config))
        self.revision = 0
        self._connections: list[ServerConnection] = []
        self._failure: tuple[float, ToolError | None] = (0.0, None)
        self._is_closed = False

    @property
    def place(self) -> str:
        """Target of calls, for a person: the command's name, or the address's host."""
        if isinstance(self._config, StdioServer):
            return self._config.command
        return urlsplit(self._config.url).netloc

    async def find_confinement(self) -> str | None:
        """Describe how the sandbox confines the server; None if it is not confined.

        Raises:
            ToolError: `tool_not_available`; the sandbox is required, and cannot be set up.
        """
        sandbox = self._host.sandbox
        if sandbox is None or not isinstance(self._config, StdioServer):
            return None
        return (await asyncio.to_thread(sandbox.plan, "own")).words

    async def offer(self, ttl_seconds: float) -> Offer:
        """Return the server's offer, at most `ttl_seconds` old.

        Raises:
            ToolError: `mcp_server_failed`.
        """
        if (known := self._cache.get(self._key, ttl_seconds)) is not None:
            return known
        was_ready = bool(self._connections) and self._connections[-1].is_ready
        offer = await self.ask(lambda connection: connection.offer(refresh=was_ready))
        self._cache.put(self._key, offer)
        return offer

    async def call(
        self, spec: ToolSpec, call: "Callable[[ServerConnection], Awaitable[CallToolResult]]"
    ) -> "CallToolResult":
        """Call a tool, if it is still the one that was offered.

        Raises:
            ToolError: `tool_not_available` if the tool has changed since, because consent to the
              old one does not cover it; otherwise as `ServerConnection.call`.
        """

        async def call_if_unchanged(connection: "ServerConnection") -> "CallToolResult":
            current = (await connection.specs()).get(spec.name)
            if current is None or current.fingerprint != spec.fingerprint:
                self._note_change()
                change = "no longer has" if current is None else "has changed"
                raise ToolError(
                    ErrorCode.TOOL_NOT_AVAILABLE,
                    f"MCP server {self.server_id!r} {change} its tool {spec.name} since it was"
                    " offered; nothing was done",
                    details={"server_id": self.server_id},
                )
            return await call(connection)

        return await self.ask(call_if_unchanged)

    async def close(self) -> None:
        """Close the connections; later requests fail. Safe to repeat."""
        self._is_closed = True
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def ask(self, ask: "Callable[[ServerConnection], Awaitable[T]]") -> T:
        """Ask the server, and ask again if it has forgotten the session, as after a restart.

        Raises:
            ToolError: `mcp_server_failed`, or what `ask` raises.
        """
        for _ in range(2):
            started = time.monotonic()
            connection = self._connection()
            try:
                await connection.opened()
            except ToolError as error:
                now = time.monotonic()
                # A server that takes long to fail is not tried at every turn; one that fails at
                # once is.
                self._failure = (now + min(now - started, MAX_QUIET_SECONDS), error)
                # What was silent may be unable to stand the newest protocol: the next attempt
                # begins with the other one.
                if connection.was_late:
                    self._cache.older ^= {self._key}
                self._cache.drop(self._key)
                raise
            if connection.is_older:
                self._cache.older.add(self._key)
            try:
                return await ask(connection)
            except SessionForgottenError:
                continue
        raise server_failed(self.server_id, "forgets its sessions as soon as they are made")

    def _note_change(self) -> None:
        self._cache.drop(self._key)
        self.revision += 1

    def _connection(self) -> "ServerConnection":
        """Return the open connection, or a new one. Does not wait: two callers get the same."""
        if self._connections and not self._connections[-1].is_over:
            return self._connections[-1]
        if self._is_closed:
            raise server_failed(self.server_id, "is closed with its runtime", retryable=False)
        quiet_until, failure = self._failure
        if failure is not None and time.monotonic() < quiet_until:
            raise failure.with_traceback(None)  # otherwise every raise would lengthen it
        from agent_core.mcp.connection import ServerConnection  # noqa: PLC0415 - brings the SDK

        still_ending = [connection for connection in self._connections if not connection.is_gone]
        connection = ServerConnection(
            self.server_id,
            self._config,
            self._host,
            on_change=self._note_change,
            starts_older=self._key in self._cache.older,
        )
        self._connections = [*still_ending, connection]
        return connection

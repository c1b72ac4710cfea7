"""The tools of all configured servers, as tools like any other."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from agent_core.config.models import ToolOverrideConfig, ToolsConfig
from agent_core.errors import ErrorCode, ToolError
from agent_core.mcp.config import ServerConfig, StdioServer, config_hash
from agent_core.mcp.discovery import (
    MAX_REASON_CHARS,
    PROCESS_CACHE,
    DiscoveryCache,
    Host,
    SessionForgottenError,
    ToolSpec,
    server_failed,
)
from agent_core.text import shortened
from agent_core.tools.base import Action, Tool, ToolContext, concurrency_of
from agent_core.tools.json_schema import whole_schema
from agent_core.tools.registry import plain_access
from agent_core.tools.schema import SchemaCheck
from agent_core.types import ToolDefinition, ToolPermission, ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from agent_core.mcp.connection import Connection

T = TypeVar("T")

PREFIX = "mcp."

PROGRESS_SECONDS = 0.1
"""Progress that comes faster than this is left out."""

_MOST_REPORTED = 20
"""Tools of one server whose absence is reported at once."""

MAX_QUIET_SECONDS = 60.0
"""How long a server that failed is not tried again, at most."""

_NO_OVERRIDE = ToolOverrideConfig()


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
        self._connections: list[Connection] = []
        self._failure: tuple[float, ToolError | None] = (0.0, None)
        self._is_closed = False

    @property
    def place(self) -> str:
        """Where calls go, for a person: the command's name, or the address's host."""
        if isinstance(self._config, StdioServer):
            return self._config.command
        return urlsplit(self._config.url).netloc

    async def specs(self, ttl_seconds: float) -> tuple[ToolSpec, ...]:
        """What the server offers, at most `ttl_seconds` old.

        Raises:
            ToolError: `mcp_server_failed`.
        """
        if (known := self._cache.get(self._key, ttl_seconds)) is not None:
            return known
        was_ready = bool(self._connections) and self._connections[-1].is_ready
        specs = await self._ask(lambda connection: connection.specs(refresh=was_ready))
        offered = tuple(specs.values())
        self._cache.put(self._key, offered)
        return offered

    async def call(
        self, spec: ToolSpec, call: "Callable[[Connection], Awaitable[CallToolResult]]"
    ) -> "CallToolResult":
        """Make a call of a tool, if it is still what was offered.

        Raises:
            ToolError: `tool_not_available` if it is not what was offered any more: an agreement
                to the one is none to the other; else as `Connection.call`.
        """

        async def call_if_unchanged(connection: "Connection") -> "CallToolResult":
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

        return await self._ask(call_if_unchanged)

    async def close(self) -> None:
        """End what is connected; nothing can be asked afterwards. Safe to repeat."""
        self._is_closed = True
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def _ask(self, ask: "Callable[[Connection], Awaitable[T]]") -> T:
        """Ask, and once more if the server does not know the session: one that was restarted."""
        for _ in range(2):
            started = time.monotonic()
            connection = self._connection()
            try:
                await connection.opened()
            except ToolError as error:
                now = time.monotonic()
                # What takes long to fail is not tried at every turn; what fails at once, may be.
                self._failure = (now + min(now - started, MAX_QUIET_SECONDS), error)
                self._cache.drop(self._key)
                raise
            try:
                return await ask(connection)
            except SessionForgottenError:
                continue
        raise server_failed(self.server_id, "forgets its sessions as soon as they are made")

    def _note_change(self) -> None:
        self._cache.drop(self._key)
        self.revision += 1

    def _connection(self) -> "Connection":
        """The connection there is, or a new one. Does not wait: two callers get the same."""
        if self._connections and not self._connections[-1].is_over:
            return self._connections[-1]
        if self._is_closed:
            raise server_failed(self.server_id, "is closed with its runtime", retryable=False)
        quiet_until, failure = self._failure
        if failure is not None and time.monotonic() < quiet_until:
            raise failure.with_traceback(None)  # or every raise would make it longer
        from agent_core.mcp.connection import Connection  # noqa: PLC0415 - brings the SDK

        still_ending = [connection for connection in self._connections if not connection.is_gone]
        connection = Connection(
            self.server_id,
            self._config,
            self._host,
            on_change=self._note_change,
        )
        self._connections = [*still_ending, connection]
        return connection


@dataclass(frozen=True, slots=True)
class ServerFailure:
    """A server of which tools are missing: the payload of the event `mcp_server_failed`."""

    server_id: str
    message: str


_Offer = tuple[Sequence[ToolSpec], list[Tool], list[ServerFailure]]
"""What a server offers, and what was made of it: the next run gets the same."""


class McpTools:
    """Every configured server, none of them started before its tools are asked for.

    Args:
        servers: from `load_servers`.
        config: `[tools]`: what is disabled or overridden, the limits, the environment.
        host: what the program does for the servers.
        cache: where discoveries are kept; by default the whole process shares one.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerConfig],
        config: ToolsConfig,
        *,
        host: Host | None = None,
        cache: DiscoveryCache = PROCESS_CACHE,
    ) -> None:
        self._config = config
        self._offered: dict[str, _Offer] = {}
        surroundings = replace(host or Host(), env_allowlist=tuple(config.env_allowlist))
        self._servers = {
            server_id: McpServer(server_id, server, surroundings, cache=cache)
            for server_id, server in servers.items()
            if server_id not in config.mcp.disabled_servers
            and not config.mcp.tool_overrides.get(PREFIX + server_id, _NO_OVERRIDE).disabled
        }

    async def tools(
        self,
        wanted: Collection[str] | None = None,
        *,
        on_failure: Callable[[ServerFailure], Awaitable[None]] | None = None,
    ) -> list[Tool]:
        """The tools of every server that can be reached, sorted by name.

        Servers that are not connected yet are connected, all at once, each within its own time;
        what was discovered a short while ago is not asked for again.

        Args:
            wanted: canonical names; a server without one of them is left alone, and so are its
                tools. All servers by default.
            on_failure: awaited for each server whose tools are missing because it failed, and for
                each tool that is left out because its name or schema cannot be used.
        """

        def is_wanted(server: McpServer) -> bool:
            prefix = f"{PREFIX}{server.server_id}."
            return wanted is None or any(name.startswith(prefix) for name in wanted)

        used = filter(is_wanted, self._servers.values())
        found: list[Tool] = []
        for tools, failures in await asyncio.gather(*map(self._offer, used)):
            found += (tool for tool in tools if wanted is None or tool.name in wanted)
            for failure in failures:
                if on_failure is not None:
                    await on_failure(failure)
        return sorted(found, key=lambda tool: tool.name)

    @property
    def revision(self) -> int:
        """Grows when a server announces, or is found to have, other tools than before."""
        return sum(server.revision for server in self._servers.values())

    async def aclose(self) -> None:
        """End every connection and every server process. Safe to repeat."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def _offer(self, server: McpServer) -> tuple[list[Tool], list[ServerFailure]]:
        """The tools of a server, and what is missing of them."""
        try:
            specs = await server.specs(self._config.mcp.discovery_cache_ttl_ms / 1e3)
        except ToolError as error:
            return [], [ServerFailure(server.server_id, error.message)]
        known = self._offered.get(server.server_id)
        if known is None or known[0] is not specs:
            tools = (self._tool(server, spec) for spec in specs if not spec.fault)
            failures = [ServerFailure(server.server_id, spec.fault) for spec in specs if spec.fault]
            made = [tool for tool in tools if tool is not None]
            known = self._offered[server.server_id] = specs, made, failures[:_MOST_REPORTED]
        return known[1], known[2]

    def _tool(self, server: McpServer, spec: ToolSpec) -> Tool | None:
        """The tool as it is configured; None if it is disabled."""
        name = f"{PREFIX}{server.server_id}.{spec.name}"
        overrides = self._config.mcp.tool_overrides
        of_server = overrides.get(PREFIX + server.server_id, _NO_OVERRIDE)
        of_tool = overrides.get(name, _NO_OVERRIDE)
        override = of_server.model_copy(update=of_tool.model_dump(exclude_unset=True))
        if override.disabled or name in self._config.mcp.disabled_tools:
            return None
        permission = override.permission or ("readonly" if spec.is_readonly else "write")
        definition = ToolDefinition(
            name=name,
            description=spec.description,
            input_schema=whole_schema(spec.input_schema),
            permission=ToolPermission(permission),
            tags={"mcp", permission, *(override.tags or ())},
            metadata={"mcp_server": server.server_id, "version": spec.fingerprint},
        )

        async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
            access = replace(
                plain_access(definition, arguments),
                target=f"MCP server {server.server_id} ({server.place})",
            )
            return Action(access, partial(self._run, server, spec, arguments, context))

        return Tool(
            definition=definition,
            parse=SchemaCheck(name, spec.input_schema),
            prepare=prepare,
            concurrency=concurrency_of(definition),
        )

    async def _run(
        self, server: McpServer, spec: ToolSpec, arguments: dict[str, Any], context: ToolContext
    ) -> ToolResult:
        from agent_core.mcp.results import tool_result  # noqa: PLC0415 - brings the SDK

        shown_at = float("-inf")

        def show(done: float, total: float | None, message: str | None) -> None:
            nonlocal shown_at
            now = time.monotonic()
            if now - shown_at < PROGRESS_SECONDS:
                return
            shown_at = now
            count = f"{done:g}" if total is None else f"{done:g}/{total:g}"
            line = f"{message} ({count})" if message else count
            context.progress(shortened(line, MAX_REASON_CHARS))

        def call(connection: "Connection") -> "Awaitable[CallToolResult]":
            return connection.call(
                spec.name,
                arguments,
                silence_s=self._config.default_timeout_ms / 1e3,
                total_s=self._config.max_timeout_ms / 1e3,
                show=show,
            )

        return await tool_result(await server.call(spec, call), context.artifact)

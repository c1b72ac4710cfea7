"""The tools of all configured servers, as tools like any other."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agent_core.config.models import ToolOverrideConfig, ToolsConfig
from agent_core.errors import ToolError
from agent_core.mcp.config import ServerConfig
from agent_core.mcp.discovery import PROCESS_CACHE, DiscoveryCache, ToolSpec
from agent_core.mcp.failures import shortened
from agent_core.mcp.host import CallLimits, Host
from agent_core.mcp.servers import McpServer
from agent_core.tools.base import Action, Tool, ToolContext, concurrency_of
from agent_core.tools.handler import plain_access
from agent_core.tools.json_schema import whole_schema
from agent_core.tools.schema import SchemaCheck
from agent_core.types import ToolDefinition, ToolPermission, ToolResult

PREFIX = "mcp."

PROGRESS_SECONDS = 0.1
"""Progress that comes faster than this is left out."""

_MOST_REPORTED = 20
"""Tools of one server whose absence is reported at once."""

_NO_OVERRIDE = ToolOverrideConfig()


@dataclass(frozen=True, slots=True)
class ServerFailure:
    """A server of which tools are missing: the payload of the event `mcp_server_failed`."""

    server_id: str
    message: str


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
        used = [each for each in self._servers.values() if _is_wanted(each.server_id, wanted)]
        offers = await asyncio.gather(*(self._offer(server) for server in used))
        for failure in (failure for _, failures in offers for failure in failures):
            if on_failure is not None:
                await on_failure(failure)
        found = [tool for tools, _ in offers for tool in tools]
        kept = [tool for tool in found if wanted is None or tool.name in wanted]
        return sorted(kept, key=lambda tool: tool.name)

    async def aclose(self) -> None:
        """End every connection and every server process. Safe to repeat."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def _offer(self, server: McpServer) -> tuple[list[Tool], list[ServerFailure]]:
        """The tools of a server, and what is missing of them."""
        try:
            specs = await server.specs(self._config.mcp.discovery_cache_ttl_ms / 1e3)
        except ToolError as error:
            return [], [ServerFailure(server.server_id, error.message)]
        made = (self._tool(server, spec) for spec in specs if not spec.fault)
        failures = [ServerFailure(server.server_id, spec.fault) for spec in specs if spec.fault]
        return [tool for tool in made if tool is not None], failures[:_MOST_REPORTED]

    def _tool(self, server: McpServer, spec: ToolSpec) -> Tool | None:
        name = f"{PREFIX}{server.server_id}.{spec.name}"
        override = self._override(server.server_id, name)
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
            lane=concurrency_of(definition),
        )

    def _override(self, server_id: str, name: str) -> ToolOverrideConfig:
        """What is configured for the tool, on top of what is configured for all of its server."""
        overrides = self._config.mcp.tool_overrides
        of_server = overrides.get(PREFIX + server_id, _NO_OVERRIDE)
        of_tool = overrides.get(name, _NO_OVERRIDE)
        return of_server.model_copy(update=of_tool.model_dump(exclude_unset=True))

    async def _run(
        self, server: McpServer, spec: ToolSpec, arguments: dict[str, Any], context: ToolContext
    ) -> ToolResult:
        from agent_core.mcp.results import tool_result  # noqa: PLC0415 - brings the SDK

        limits = CallLimits(
            silence=self._config.default_timeout_ms / 1e3, total=self._config.max_timeout_ms / 1e3
        )
        answer = await server.call(spec, arguments, limits=limits, show=_Progress(context.progress))
        return await tool_result(answer, context.artifact)


def _is_wanted(server_id: str, wanted: Collection[str] | None) -> bool:
    prefix = f"{PREFIX}{server_id}."
    return wanted is None or any(name.startswith(prefix) for name in wanted)


class _Progress:
    """Shows a server's progress, in bounded lines and not faster than anybody can read."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._next = 0.0

    def __call__(self, done: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PROGRESS_SECONDS
        count = f"{done:g}" if total is None else f"{done:g}/{total:g}"
        self._show(shortened(f"{message} ({count})" if message else count))

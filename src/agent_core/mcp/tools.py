"""The tools of all configured servers, as tools like any other."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from agent_core.config.models import ToolOverrideConfig, ToolsConfig
from agent_core.errors import ToolError, validation_error
from agent_core.mcp.config import ServerConfig
from agent_core.mcp.discovery import (
    MAX_REASON_CHARS,
    PROCESS_CACHE,
    DiscoveryCache,
    Host,
    Offer,
    ToolSpec,
)
from agent_core.mcp.resources import (
    list_prompts,
    list_resources,
    parse_arguments,
    read_prompt,
    read_resource,
    resource_tool,
)
from agent_core.mcp.server import McpServer
from agent_core.text import shortened, shown_id
from agent_core.text.json_text import JsonObject
from agent_core.tools.base import Action, ArtifactWriter, Tool, ToolContext, concurrency_of
from agent_core.tools.json_schema import whole_schema
from agent_core.tools.registry import plain_access
from agent_core.tools.schema_check import SchemaCheck
from agent_core.tools.toolsets import ToolFilter, keeps
from agent_core.types import ToolDefinition, ToolPermission, ToolResult, UserMessage

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from agent_core.mcp.connection import ServerConnection

PREFIX = "mcp."

PROGRESS_SECONDS = 0.1
"""Progress that comes faster than this is left out."""

_MOST_REPORTED = 20
"""Tools of one server whose absence is reported at once."""

_NO_OVERRIDE = ToolOverrideConfig()


class ServerFailure(Struct, frozen=True):
    """A server with missing tools: the payload of the event `mcp_server_failed`."""

    server_id: str
    message: str


_Offer = tuple[Sequence[ToolSpec], list[Tool], list[ServerFailure]]
"""A server's specifications with their tools and failures, which the next run reuses."""


class McpTools:
    """Every configured server; each is started when its tools are first requested.

    Args:
        servers: from `load_servers`.
        config: `[tools]`: what is disabled or overridden, the limits, the environment.
        host: the program's settings and callbacks for the servers.
        filters: select the tools of a server, by server id; all tools by default.
        cache: where discoveries are kept; by default the whole process shares one.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerConfig],
        config: ToolsConfig,
        *,
        host: Host | None = None,
        filters: Mapping[str, ToolFilter] | None = None,
        cache: DiscoveryCache = PROCESS_CACHE,
    ) -> None:
        self._config = config
        self._filters = filters or {}
        self._offered: dict[str, _Offer] = {}
        surroundings = structs.replace(host or Host(), env_allowlist=tuple(config.env_allowlist))
        self._servers = {
            server_id: McpServer(server_id, server, surroundings, cache=cache)
            for server_id, server in servers.items()
            if server_id not in config.mcp.disabled_servers
            and not config.mcp.tool_overrides.get(PREFIX + server_id, _NO_OVERRIDE).disabled
        }
        self._offers: dict[str, Offer] = {}

    async def tools(
        self,
        wanted: Collection[str] | None = None,
        *,
        on_failure: Callable[[ServerFailure], Awaitable[None]] | None = None,
    ) -> list[Tool]:
        """Return the tools of every server that can be reached, sorted by name.

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
    def server_ids(self) -> Collection[str]:
        """The servers that may be used."""
        return self._servers.keys()

    @property
    def seconds(self) -> float:
        """Seconds that a server may take for a request that is not a tool call."""
        return self._config.default_timeout_ms / 1e3

    @property
    def offers(self) -> Mapping[str, Offer]:
        """The offer of each server when its tools were last listed, by server id."""
        return self._offers

    def server(self, server_id: str) -> McpServer:
        """Return the server with this id.

        Raises:
            AgentCoreError: `validation_error`: there is none, or it is disabled.
        """
        if found := self._servers.get(server_id):
            return found
        known = ", ".join(self._servers) or "none"
        message = f"there is no MCP server {shown_id(shortened(server_id, 80))}; there are: {known}"
        raise validation_error(message)

    async def read_resource(self, server_id: str, uri: str, artifact: ArtifactWriter) -> ToolResult:
        """Read a resource as a tool result.

        Raises:
            AgentCoreError: `validation_error`: there is no such server.
            ToolError: it cannot be read.
        """
        return await read_resource(self.server(server_id), uri, artifact, self.seconds)

    def resource_tool(self, server_ids: Collection[str]) -> Tool:
        """Build `internal.read_resource` for these servers."""
        return resource_tool({name: self.server(name) for name in server_ids}, self.seconds)

    async def resources(self, server_id: str) -> dict[str, Any]:
        """Return the first resources of a server, and the templates of more.

        Raises:
            AgentCoreError: `validation_error`: there is no such server.
            ToolError: they cannot be listed.
        """
        return await list_resources(self.server(server_id), self.seconds)

    async def prompts(self, server_id: str) -> list[dict[str, Any]]:
        """Return the prompts of a server: `name`, `description`, `arguments`.

        Raises:
            AgentCoreError: `validation_error`: there is no such server.
            ToolError: they cannot be listed.
        """
        return await list_prompts(self.server(server_id), self.seconds)

    async def prompt(
        self, server_id: str, name: str, arguments: Mapping[str, str] | str
    ) -> UserMessage:
        """Read a prompt as a message; arguments given as text are split like words of a shell.

        Raises:
            AgentCoreError: `validation_error`: there is no such server or prompt, or the
                arguments do not fit.
            ToolError: it cannot be read.
        """
        server = self.server(server_id)
        if isinstance(arguments, str):
            arguments = await parse_arguments(server, name, arguments, self.seconds)
        return await read_prompt(server, name, arguments, self.seconds)

    @property
    def revision(self) -> int:
        """Grows when a server announces, or is found to have, other tools than before."""
        return sum(server.revision for server in self._servers.values())

    async def aclose(self) -> None:
        """End every connection and every server process. Safe to repeat."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def _offer(self, server: McpServer) -> tuple[list[Tool], list[ServerFailure]]:
        """Return the tools of a server, and the failures that leave tools out."""
        try:
            offer = await server.offer(self._config.mcp.discovery_cache_ttl_ms / 1e3)
        except ToolError as error:
            self._offers.pop(server.server_id, None)
            return [], [ServerFailure(server.server_id, error.message)]
        self._offers[server.server_id] = offer
        specs = offer.tools
        known = self._offered.get(server.server_id)
        if known is None or known[0] is not specs:
            tools = (self._tool(server, spec) for spec in specs if not spec.fault)
            faults = [*(spec.fault for spec in specs if spec.fault), *offer.losses]
            failures = [ServerFailure(server.server_id, fault) for fault in faults]
            made = [tool for tool in tools if tool is not None]
            known = self._offered[server.server_id] = specs, made, failures[:_MOST_REPORTED]
        return known[1], known[2]

    def _tool(self, server: McpServer, spec: ToolSpec) -> Tool | None:
        """Build the tool as it is configured; None if it is disabled or filtered out."""
        name = f"{PREFIX}{server.server_id}.{spec.name}"
        overrides = self._config.mcp.tool_overrides
        of_server = overrides.get(PREFIX + server.server_id, _NO_OVERRIDE)
        of_tool = overrides.get(name, _NO_OVERRIDE)
        override = of_server.model_copy(update=of_tool.model_dump(exclude_unset=True))
        if override.disabled or name in self._config.mcp.disabled_tools:
            return None
        permission = override.permission or ("readonly" if spec.is_readonly else "write")
        reach = ["network"] if spec.is_open else []
        definition = ToolDefinition(
            name=name,
            description=spec.description,
            input_schema=whole_schema(spec.input_schema),
            permission=ToolPermission(permission),
            tags={"mcp", permission, *reach, *(override.tags or ())},
            metadata={"mcp_server": server.server_id, "version": spec.fingerprint},
        )

        if not keeps(self._filters.get(server.server_id), definition, spec.name):
            return None

        async def prepare(arguments: JsonObject, context: ToolContext) -> Action:
            access = replace(
                plain_access(definition, arguments),
                target=f"MCP server {server.server_id} ({server.place})",
                confined=await server.find_confinement(),
            )
            return Action(access, partial(self._run, server, spec, arguments, context))

        return Tool(
            definition=definition,
            parse=SchemaCheck(name, spec.input_schema),
            prepare=prepare,
            concurrency=concurrency_of(definition),
        )

    async def _run(
        self, server: McpServer, spec: ToolSpec, arguments: JsonObject, context: ToolContext
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

        def call(connection: "ServerConnection") -> "Awaitable[CallToolResult]":
            return connection.call(
                spec.name,
                arguments,
                silence_s=self._config.default_timeout_ms / 1e3,
                total_s=self._config.max_timeout_ms / 1e3,
                show=show,
            )

        return await tool_result(await server.call(spec, call), context.artifact)

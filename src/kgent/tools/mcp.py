"""The tools of a profile's MCP servers, which are connected for one run."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

from pydantic import ValidationError

from agent_core.aio import end_uncancelled
from agent_core.config.models import ToolsConfig
from agent_core.config.problems import problems_of
from agent_core.errors import ErrorCode
from agent_core.mcp import Host, McpTools, ServerFailure
from agent_core.mcp.config import HttpServer, ServerConfig, StdioServer
from agent_core.mcp.discovery import DiscoveryCache
from agent_core.process import Launcher
from agent_core.text.json_text import JsonObject
from agent_core.tools.base import Tool, ToolAnswer
from agent_core.tools.results import wrap
from agent_core.types import JsonBlock, TextBlock
from kgent.config.models import KgentConfig, McpServerSpec
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, config_error
from kgent.runtime.context import RunContext
from kgent.sandbox.paths import SandboxPaths
from kgent.tools.calls import RecordedCalls, ToolCallScope
from kgent.tools.permissions import build_effective_policy
from kgent.tools.registry import ToolDefinition, recorded_tool
from kgent.tools.results import ToolResult

MAX_TOOL_NAME = 64
_CLOSING_S = 10.0
_PREFIX = "mcp."


def mcp_secrets(config: KgentConfig) -> dict[str, str]:
    """Return the secrets of the servers, by the names of their variables.

    Raises:
        KgentError: category `config`; a variable is not set.
    """
    found: dict[str, str] = {}
    for spec in config.tools.mcp:
        for name in spec.secret_names:
            value = os.environ.get(name)
            if not value:
                reason = f"the environment variable {name}, which it names, is not set"
                raise config_error(f"tools.mcp: {spec.name}: {reason}")
            found[name] = value
    return found


def build_servers(config: KgentConfig, secrets: Mapping[str, str]) -> dict[str, ServerConfig]:
    """Return the configurations of a profile's servers, without starting any.

    Raises:
        KgentError: category `config`; an address or a command cannot be used, or the name of a tool
          is too long, or used by another tool.
    """
    servers: dict[str, ServerConfig] = {}
    for spec in config.tools.mcp:
        timeout_ms = round(spec.timeout_seconds * 1000)
        model: type[StdioServer | HttpServer] = HttpServer if spec.url else StdioServer
        fields: JsonObject = {"timeout_ms": timeout_ms}
        if spec.url:
            headers = {key: secrets.get(name, "") for key, name in spec.headers.items()}
            if spec.api_key_env:
                headers["Authorization"] = f"Bearer {secrets.get(spec.api_key_env, '')}"
            fields |= {"url": spec.url, "headers": headers}
        else:
            variables = {key: secrets.get(name, "") for key, name in spec.env.items()}
            cwd = str(config.place(spec.cwd or "."))
            fields |= {"command": spec.command, "args": spec.args, "env": variables, "cwd": cwd}
        try:
            servers[spec.name] = model.model_validate(fields)
        except ValidationError as error:
            problem = problems_of(error, model)[0]
            raise config_error(f"tools.mcp: {spec.name}: {problem}") from None
    names: set[str] = set()
    for spec in config.tools.mcp:
        for wanted in spec.tools:
            name = spec.tool_name(wanted)
            if len(name) > MAX_TOOL_NAME or name in names:
                reason = "is too long" if name not in names else "is taken by another tool"
                raise config_error(f"tools.mcp: {spec.name}: the name {name} {reason}")
            names.add(name)
    return servers


@asynccontextmanager
async def open_servers(context: RunContext) -> AsyncGenerator[list[ToolDefinition]]:
    """Connect the servers of a profile, and yield the tools that it lists, by name.

    Leaving the context ends every connection and process.

    Raises:
        KgentError: category `tool`: a server cannot be reached; `config`: a server lacks a listed
          tool.
    """
    config = context.config
    if not config.tools.mcp:
        yield []
        return
    servers = build_servers(config, mcp_secrets(config))
    launcher, failures = Launcher(), list[ServerFailure]()
    mcp = McpTools(servers, ToolsConfig(), host=Host(launcher=launcher), cache=DiscoveryCache())

    async def note(failure: ServerFailure) -> None:
        failures.append(failure)

    try:
        with context.cancellation.stopping_task():
            offered = {tool.name: tool for tool in await mcp.tools(on_failure=note)}
        paths, policy = SandboxPaths(context.sandbox_root), build_effective_policy(config, ())
        found: dict[str, ToolDefinition] = {}
        for spec in config.tools.mcp:
            for wanted in spec.tools:
                tool = offered.get(f"{_PREFIX}{spec.name}.{wanted}")
                if tool is None:
                    raise _missing(spec, wanted, offered, failures)
                name = spec.tool_name(wanted)
                calls = RecordedCalls(
                    name, "execute", tool.parse, partial(_call, tool), paths, policy
                )
                found[name] = recorded_tool(tool.definition, calls)
        yield [found[name] for name in sorted(found)]
    finally:
        with suppress(Exception):  # the launcher ends the processes
            await end_uncancelled(asyncio.wait_for(mcp.aclose(), _CLOSING_S))
        launcher.close()


def _missing(
    spec: McpServerSpec,
    wanted: str,
    offered: Mapping[str, Tool],
    failures: list[ServerFailure],
) -> KgentError:
    prefix = f"{_PREFIX}{spec.name}."
    reasons = [one.message for one in failures if one.server_id == spec.name]
    names = [name.removeprefix(prefix) for name in offered if name.startswith(prefix)]
    if reasons and not names:
        message = f"tools.mcp: {reasons[0]}"
        return KgentError(ErrorCode.MCP_SERVER_FAILED, message, category=ErrorCategory.TOOL)
    known = ", ".join(names) or "none"
    why = f" ({reasons[0]})" if reasons else ""
    return config_error(
        f"tools.mcp: {spec.name}: the server has no tool {wanted!r}{why}; there are: {known}"
    )


async def _call(tool: Tool, arguments: JsonObject, call: ToolCallScope) -> ToolResult:
    """Make a call of a server."""
    action = await tool.prepare(arguments, call.tool_context())
    returned = await action.run()
    result = wrap(returned.answer if isinstance(returned, ToolAnswer) else returned)
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    data: JsonObject = {"text": "\n".join(texts)} if texts else {}
    others = [
        block.data if isinstance(block, JsonBlock) else block.model_dump(mode="json")
        for block in result.content
        if not isinstance(block, TextBlock)
    ]
    if others:
        data["content"] = others
    if not result.is_error:
        return ToolResult(ok=True, summary=f"{call.name} answered", data=data)
    message = "\n".join(texts) or "the server says that the call has failed"
    code = result.error.code if result.error else ErrorCode.TOOL_ERROR
    error = ErrorInfo(code=code, message=message[:1000], category=ErrorCategory.TOOL)
    return ToolResult(ok=False, summary=error.message, data=data, error=error)

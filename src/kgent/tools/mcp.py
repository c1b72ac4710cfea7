"""The tools of a profile's MCP servers, which are connected for one run."""

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from agent_core.config.models import ToolsConfig
from agent_core.config.problems import problems_of
from agent_core.errors import ErrorCode
from agent_core.mcp import Host, McpTools, ServerFailure
from agent_core.mcp.config import HttpServer, ServerConfig, StdioServer
from agent_core.mcp.discovery import DiscoveryCache
from agent_core.process import Launcher
from agent_core.tools.base import Tool, ToolOutput
from agent_core.tools.results import wrap
from agent_core.types import JsonBlock, TextBlock, ToolResult as CoreResult
from kgent.config.models import KgentConfig, McpServerSpec
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, config_error
from kgent.runtime.cancellation import BackgroundLoop, Cancellation
from kgent.runtime.context import RunContext
from kgent.tools.calls import ToolCallScope, record_calls
from kgent.tools.results import ToolResult

MAX_TOOL_NAME = 64


_CLOSING_S = 10.0


_PREFIX = "mcp."


_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


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
        fields: dict[str, Any] = {"timeout_ms": timeout_ms}
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
            name = _tool_name(spec, wanted)
            if len(name) > MAX_TOOL_NAME or name in names:
                reason = "is too long" if name not in names else "is taken by another tool"
                raise config_error(f"tools.mcp: {spec.name}: the name {name} {reason}")
            names.add(name)
    return servers


def _tool_name(spec: McpServerSpec, wanted: str) -> str:
    """Return the name under which the model sees a tool of a server."""
    return _NOT_PLAIN.sub("_", f"mcp_{spec.name}_{wanted}")


class McpServers:
    """The servers of one run. Leaving the context ends every connection and process."""

    def __init__(self, env: RunContext, cancellation: Cancellation) -> None:
        self._env = env
        self._cancellation = cancellation
        self._loop: BackgroundLoop | None = None
        self._launcher = Launcher()
        self._mcp: McpTools | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop is not None:
            if self._mcp is not None:
                with suppress(Exception):  # their launcher ends the processes
                    self._loop.run(asyncio.wait_for(self._mcp.aclose(), _CLOSING_S))
            self._loop.close()
        self._launcher.close()

    def open_tools(self, *, open_scope: Callable[..., ToolCallScope]) -> list[Tool]:
        """Connect the servers, and return the tools that the profile lists, by name.

        Raises:
            KgentError: category `tool`: a server cannot be reached; `config`: a server lacks a
              listed tool.
        """
        config = self._env.config
        if not config.tools.mcp:
            return []
        servers = build_servers(config, mcp_secrets(config))
        loop = self._loop = BackgroundLoop()
        mcp = self._mcp = McpTools(
            servers, ToolsConfig(), host=Host(launcher=self._launcher), cache=DiscoveryCache()
        )
        failures: list[ServerFailure] = []

        async def note(failure: ServerFailure) -> None:
            failures.append(failure)

        async def discover() -> list[Tool]:
            task, here = asyncio.current_task(), asyncio.get_running_loop()

            def stop() -> None:
                if task is not None:
                    here.call_soon_threadsafe(task.cancel)

            with self._cancellation.calling(stop):
                return await mcp.tools(on_failure=note)

        try:
            offered = {tool.name: tool for tool in loop.run(discover())}
        except (asyncio.CancelledError, CancelledError):
            message = "the run was cancelled while its MCP servers were connected"
            raise KgentError(ErrorCode.CANCELLED, message, category=ErrorCategory.ENGINE) from None
        found: dict[str, Tool] = {}
        for spec in config.tools.mcp:
            for wanted in spec.tools:
                tool = offered.get(f"{_PREFIX}{spec.name}.{wanted}")
                if tool is None:
                    raise _missing(spec, wanted, offered, failures)
                name = _tool_name(spec, wanted)
                perform = partial(_call, tool, loop)
                found[name] = record_calls(_renamed(tool, name), perform, open_scope=open_scope)
        return [found[name] for name in sorted(found)]


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


def _renamed(tool: Tool, name: str) -> Tool:
    return replace(tool, definition=tool.definition.model_copy(update={"name": name}))


async def _call(
    tool: Tool, loop: BackgroundLoop, arguments: dict[str, Any], call: ToolCallScope
) -> ToolResult:
    """Make the call in the event loop of the connections."""

    async def perform() -> CoreResult:
        action = await tool.prepare(arguments, call.tool_context())
        returned = await action.run()
        return wrap(returned.answer if isinstance(returned, ToolOutput) else returned)

    result = await loop.run_beside(perform())
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    data: dict[str, Any] = {"text": "\n".join(texts)} if texts else {}
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

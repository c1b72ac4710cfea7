"""Toolsets: named groups of tools that are opened before they are used, and closed after."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from agent_core.aio import finish_uncancelled
from agent_core.aio.loops import HomeLoop
from agent_core.callbacks import check_callback
from agent_core.errors import AgentCoreError, ArgumentError, ErrorCode, ToolError
from agent_core.redaction import log_failure
from agent_core.text import kind_of, not_a_list
from agent_core.tools.base import Tool
from agent_core.tools.registry import Handler, check_own_name
from agent_core.types import ToolDefinition

logger = logging.getLogger(__name__)

_LONGEST_CLOSE_S = 5.0
_BREAKS = (Exception, SystemExit, KeyboardInterrupt)
"""Errors that user code may raise without ending the program."""


TOOLS_ARE = "a tool is a function, a tool made with @tool, a toolset or the name of a known tool"

ToolFilter = Collection[str] | Callable[[ToolDefinition], bool]
"""The names of the tools to keep, or a function that decides for each one."""


class Toolset:
    """A named group of tools.

    If tools need an open resource, such as a connection, subclass this and override `open` and
    `close`. A toolset is opened once for its run, or for the runtime, and always closed;
    simultaneous runs share what was opened for the first one.

    Args:
        name: for people; errors name it.
        tools: tools made with `@tool`, or functions.
        prefix: put before the name of each tool.
        filter: selects tools, by name or with a function of the definition.
    """

    def __init__(
        self,
        name: str,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        prefix: str = "",
        filter: ToolFilter | None = None,  # noqa: A002 - the usual name
    ) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a program's
            raise ArgumentError(f"name of a toolset must be a text, not {kind_of(name)}", "name")
        if isinstance(tools, str) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - likewise
            raise ArgumentError(not_a_list("tools", tools), "tools")
        if not isinstance(filter, Collection) or isinstance(filter, str):
            check_callback("filter", filter, "definition")
        self.name = name
        self.tools = list(tools)
        self.prefix = prefix
        self.filter: ToolFilter | None = filter
        self._users = 0
        self._is_open = False
        self._turn = asyncio.Lock()
        self._home: HomeLoop | None = None
        self._changing = threading.Lock()
        self._given: list[Tool | Callable[..., Any]] = []

    @property
    def is_plain(self) -> bool:
        """Return whether there is nothing to open, so that any event loop may use it."""
        functions = (getattr(method, "__func__", None) for method in (self.open, self.close))
        return tuple(functions) == (Toolset.open, Toolset.close)

    async def open(self) -> Iterable[Tool | Callable[..., Any]]:
        """Open the resources that the tools need, and return the tools."""
        return self.tools

    async def close(self) -> None:
        """Close everything that `open` has opened; also called if `open` fails halfway."""

    def claim(self) -> None:
        """Begin to use the toolset; `give_back` has to follow.

        Raises:
            AgentCoreError: `validation_error`: it is open in another event loop.
        """
        with self._changing:
            if self._home is not None and not self._home.loop.is_closed():
                self._home.require()
            else:
                self._home = HomeLoop(f"the toolset {self.name!r}", kind="another one")
                self._turn, self._users, self._is_open = asyncio.Lock(), 0, False
            self._users += 1

    async def take(self) -> list[Tool | Callable[..., Any]]:
        """Return the tools of the claimed toolset, opened unless another run has them open."""
        async with self._turn:
            if not self._is_open:
                try:
                    self._given = list(await self.open())
                except BaseException:
                    await finish_uncancelled(self._close_in_time())
                    raise
                self._is_open = True
            return self._given

    async def give_back(self) -> None:
        """Close the tools, unless another run uses them."""
        self._users -= 1
        async with self._turn:
            if self._is_open and not self._users:
                self._is_open = False
                await self._close_in_time()
        with self._changing:
            if not self._users:
                self._home = None

    async def _close_in_time(self) -> None:
        """Close the toolset; give up if it takes too long, because runs wait for it."""
        closing = asyncio.create_task(self._close_or_log())
        done, _ = await asyncio.wait([closing], timeout=_LONGEST_CLOSE_S)
        if not done:
            closing.cancel()
            logger.error("the toolset %r does not close; it is left as it is", self.name)

    async def _close_or_log(self) -> None:
        try:
            await self.close()
        except _BREAKS as error:
            log_failure(logger, f"the toolset {self.name!r} cannot be closed", error=error)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def keeps(chosen: ToolFilter | None, definition: ToolDefinition, name: str) -> bool:
    """Return whether a filter keeps the tool of this definition, which its group calls `name`."""
    if chosen is None:
        return True
    return chosen(definition) if callable(chosen) else name in chosen


@asynccontextmanager
async def opened(toolset: Toolset) -> AsyncGenerator[list[Tool]]:
    """The tools of a toolset while it is open.

    Raises:
        ToolError: `tool_not_available`: it cannot be opened; its name is said.
        ArgumentError: a function cannot be a tool, or a name is reserved.
        AgentCoreError: `validation_error`: it is open in another event loop.
    """
    if toolset.is_plain:
        yield _tools_of(toolset, toolset.tools)
        return
    toolset.claim()
    try:
        try:
            given = await toolset.take()
        except AgentCoreError:
            raise
        except _BREAKS as error:
            raise _unusable(toolset, "cannot be opened", error) from error
        yield _tools_of(toolset, given)
    finally:
        await finish_uncancelled(toolset.give_back())


def _tools_of(toolset: Toolset, given: Iterable[Tool | Callable[..., Any]]) -> list[Tool]:
    try:
        return [made for each in given if (made := _made(toolset, each)) is not None]
    except AgentCoreError:
        raise
    except _BREAKS as error:
        raise _unusable(toolset, "has a useless filter or prefix", error) from error


def _unusable(toolset: Toolset, what: str, error: BaseException) -> ToolError:
    message = f"the toolset {toolset.name!r} {what}: {type(error).__name__}: {error}"
    details = {"toolset": toolset.name}
    return ToolError(ErrorCode.TOOL_NOT_AVAILABLE, message, details=details)


def _made(toolset: Toolset, given: Tool | Callable[..., Any]) -> Tool | None:
    """Return the tool under the toolset's name for it; None if it is filtered out."""
    from agent_core.tools.decorator import tool  # noqa: PLC0415 - needed for functions only

    made = given if isinstance(given, Tool) else tool(given)
    if not keeps(toolset.filter, made.definition, made.name):
        return None
    name = toolset.prefix + made.name
    check_own_name(name)
    definition = ToolDefinition.model_validate({**made.definition.model_dump(), "name": name})
    return replace(made, definition=definition)


AnyTool = (
    str | Tool | ToolDefinition | tuple[ToolDefinition, Handler] | Toolset | Callable[..., Any]
)
"""The name or definition of a known tool, a tool made with `@tool`, a definition with its handler,
a function that becomes a tool, or a group of tools.
"""

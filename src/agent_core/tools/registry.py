"""Which tools there are, and which of them a run may use."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

from agent_core.config.models import ToolOverrideConfig
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.text import shorten_name
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, concurrency_of
from agent_core.tools.handler import Handler, tool_from
from agent_core.types import ToolCall, ToolCallBlock, ToolDefinition, ToolPermission

_MAX_NAMED = 40

RESERVED = ("mcp.", "code.", "agent.", "internal.")
"""Prefixes of the program's own tools and of servers' tools."""


def check_own_name(name: str) -> None:
    """Refuse a name for a tool of the caller or of the user that the program would use itself.

    A name counts in every spelling that becomes the same for a provider, where `.` is `__`.

    Raises:
        ConfigError: `validation_error`, naming the tool.
    """
    spelt = name.casefold().replace(".", "__").replace("__", ".")
    if spelt.startswith(RESERVED):
        raise ConfigError(
            ErrorCode.VALIDATION_ERROR,
            f"{name} cannot be the name of a tool: names that begin with {', '.join(RESERVED)} are"
            " the program's; choose another one",
            details={"tool_name": name},
        )


class ToolRegistry:
    """The caller's own tools, by canonical name."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            self.register(each)

    @overload
    def register(self, tool: Tool, /) -> None: ...

    @overload
    def register(self, definition: ToolDefinition, handler: Handler, /) -> None: ...

    def register(self, tool: Tool | ToolDefinition, handler: Handler | None = None, /) -> None:
        """Add a tool: one made with `@tool`, or a definition and its handler.

        The handler gets `(arguments, context)`: the checked arguments as a dict and a
        `ToolContext`; it may be async or plain.

        Raises:
            ConfigError: `validation_error`; the name is taken or is one of the program's, or the
                handler is missing.
        """
        if not isinstance(tool, Tool):
            if handler is None:
                message = f"the tool {tool.name} has a definition but no handler"
                raise ConfigError(ErrorCode.VALIDATION_ERROR, message)
            tool = tool_from(tool, handler)
        check_own_name(tool.name)
        if tool.name in self._tools:
            raise ConfigError(
                ErrorCode.VALIDATION_ERROR,
                f"there is already a tool named {tool.name}; give one of them another name",
                details={"tool_name": tool.name},
            )
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool | None:
        """The tool of that canonical name."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools


class Toolbox:
    """The effective tools of one run: the hard boundary of what it can see and do."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools = {each.name: each for each in tools}

    @cached_property
    def names(self) -> frozenset[str]:
        """The canonical names."""
        return frozenset(self._tools)

    @cached_property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What the model is shown, by name: the same bytes in every turn."""
        return tuple(self._tools[name].definition for name in sorted(self._tools))

    def get(self, name: str) -> Tool | None:
        """The tool of that canonical name, if this run may use it."""
        return self._tools.get(name)

    def resolve(self, call: ToolCall) -> tuple[Tool, Any]:
        """The tool a call means, and its arguments, checked and parsed.

        Raises:
            ToolError: `tool_not_available`, or `validation_error` with the JSON path in
                `details.path`.
        """
        found = self._tools.get(call.name)
        if found is None:
            near = difflib.get_close_matches(call.name[:200], self._tools, n=3)
            names = sorted(self._tools)[:_MAX_NAMED]
            hint = f"there are: {', '.join(names)}" if names else "this run has no tools"
            hint = f"did you mean {' or '.join(near)}?" if near else hint
            shown = shorten_name(call.name)
            raise ToolError(
                ErrorCode.TOOL_NOT_AVAILABLE,
                f"there is no tool {shown} here; {hint}",
                details={"tool_name": shown},
            )
        if "invalid_arguments" in call.metadata:
            sent = str(call.metadata["invalid_arguments"])
            shown = sent if len(sent) <= 500 else sent[:500] + "…"
            raise ToolError(
                ErrorCode.VALIDATION_ERROR,
                f"the arguments of {call.name} are not a JSON object; send one. They were: {shown}",
                details={"path": "$"},
            )
        return found, found.parse(call.arguments)

    def concurrency(self, call: ToolCall | ToolCallBlock) -> Concurrency:
        """How a call is ordered. One for an unknown tool has no effect: it only reads."""
        found = self._tools.get(call.name)
        return found.concurrency if found else Concurrency.READ

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)


def apply_override(tool: Tool, override: ToolOverrideConfig) -> Tool:
    """The tool with another permission or other tags, as the user's configuration wants it.

    A permission of `readonly` lets calls through unasked unless they ask for a reason of their
    own (a sensitive path, a place outside the roots); `write` asks every time.
    """
    if override.permission is None and override.tags is None:
        return tool
    tags = tool.definition.tags if override.tags is None else set(override.tags)
    keeps_permission = override.permission is None
    permission = ToolPermission(override.permission or tool.definition.permission)
    definition = tool.definition.model_copy(update={"permission": permission, "tags": tags})
    is_dangerous = "dangerous" in (override.tags or ())
    writes = permission is ToolPermission.WRITE

    async def prepare(arguments: Any, context: ToolContext) -> Action:
        action = await tool.prepare(arguments, context)
        access = action.access
        asks = access.asks if keeps_permission else writes or access.reason is not None
        access = replace(
            access, asks=asks or is_dangerous, dangerous=access.dangerous or is_dangerous
        )
        return replace(action, access=access)

    concurrency = tool.concurrency if keeps_permission else concurrency_of(definition)
    return replace(tool, definition=definition, prepare=prepare, concurrency=concurrency)

"""Selects the tools that a model is offered in a turn, where tools decide that themselves."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.text import kind_of
from agent_core.text.json_text import JsonValue
from agent_core.tools.base import OfferContext, Tool
from agent_core.tools.schema_check import SchemaCheck
from agent_core.types import RunIdentity, ToolDefinition


async def select_offered(
    tools: Mapping[str, Tool], before: Mapping[str, Tool], run: RunIdentity | None, deps: object
) -> dict[str, Tool]:
    """Return the tools to offer in the next turn, by name.

    A tool that is offered as before is the same object, so that its definition is not read again.

    Args:
        tools: all tools of the run.
        before: those offered in the last turn.
        run: the run.
        deps: its dependencies.

    Raises:
        AgentCoreError: the function of a tool has failed, or returned something else.
    """
    offered: dict[str, Tool] = {}
    for name, tool in tools.items():
        form = await _offered_form(tool, before.get(name), cast("RunIdentity", run), deps)
        if form is not None:
            offered[name] = form
    return offered


async def _offered_form(
    tool: Tool, before: Tool | None, run: RunIdentity, deps: object
) -> Tool | None:
    context = OfferContext(run=run, definition=tool.definition, deps=deps)
    if tool.is_enabled is not None and not await _called(tool, "is_enabled", context):
        return None
    if tool.prepare_offer is None:
        return tool
    said = await _called(tool, "prepare", context)
    if said is None:
        return None
    if not isinstance(said, ToolDefinition):
        kind = kind_of(said)
        raise _broken(tool, "prepare", f"it returned {kind}, neither a ToolDefinition nor None")
    changes = {"description": said.description, "input_schema": said.input_schema}
    definition = tool.definition.model_copy(update=changes)
    if definition == tool.definition:
        return tool
    if before is not None and definition == before.definition:
        return before
    if said.input_schema == tool.definition.input_schema:
        return replace(tool, definition=definition)
    check = SchemaCheck(tool.name, said.input_schema)

    def parse(arguments: Mapping[str, JsonValue]) -> Any:
        check(arguments)
        return tool.parse(arguments)

    return replace(tool, definition=definition, parse=parse)


async def _called(tool: Tool, name: str, context: OfferContext) -> Any:
    function = tool.is_enabled if name == "is_enabled" else tool.prepare_offer
    try:
        value: Any = cast("Callable[..., Any]", function)(context)
        return await value if inspect.isawaitable(value) else value
    except AgentCoreError:
        raise
    except Exception as error:
        raise _broken(tool, name, f"{type(error).__name__}: {error}") from error


def _broken(tool: Tool, name: str, reason: str) -> AgentCoreError:
    message = f"{name} of the tool {tool.name} failed: {reason}"
    details = {"tool_name": tool.name}
    return AgentCoreError(ErrorCode.INTERNAL_ERROR, message, details=details)

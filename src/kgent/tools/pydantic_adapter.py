"""kgent's tools as Pydantic AI knows tools. Nothing else in `tools` knows that framework."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pydantic_ai import RunContext as AgentContext, Tool

from agent_core.types import new_id
from kgent.runtime.context import RunContext
from kgent.tools.registry import ToolDefinition
from kgent.tools.results import ToolResult

Caller = Callable[..., Awaitable[ToolResult]]
"""Runs a call in a thread: `(definition, args, context, *, call_id)`."""


def pydantic_tools(
    definitions: Iterable[ToolDefinition], context: RunContext, *, call: Caller
) -> list[Tool[None]]:
    """The tools of a run. What only reads may share a turn, everything else is alone in it."""
    return [_tool(definition, context, call) for definition in definitions]


def _tool(definition: ToolDefinition, context: RunContext, call: Caller) -> Tool[None]:
    async def answer(facts: AgentContext[None], **args: Any) -> Mapping[str, Any]:
        call_id = facts.tool_call_id or new_id("call")
        result = await call(definition, args, context, call_id=call_id)
        return json.loads(json.dumps(result.for_model()))

    return Tool[None].from_schema(
        answer,
        name=definition.name,
        description=definition.description,
        json_schema=dict(definition.input_schema),
        takes_ctx=True,
        sequential=not definition.reads_only,
    )

"""kgent's tools as tools of Pydantic AI. Importing this module needs the extra `pydantic-ai`."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai import RunContext as AgentContext, Tool as AgentTool
from pydantic_core import SchemaValidator, core_schema

from agent_core.types import new_id
from kgent.tools.registry import ToolDefinition

_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))

MakeCall = Callable[[str, str, dict[str, Any]], Awaitable[object]]
"""Makes a call, by its id, its tool's name and its arguments, and returns what the model reads."""


def adapt_tool(tool: ToolDefinition, make_call: MakeCall) -> AgentTool[None]:
    """Convert a tool for Pydantic AI. Only tools that read may run at the same time."""

    async def answer(facts: AgentContext[None], **args: Any) -> Any:
        return await make_call(facts.tool_call_id or new_id("call"), tool.name, args)

    adapted = AgentTool[None].from_schema(
        answer,
        name=tool.name,
        description=tool.description,
        json_schema=tool.input_schema,
        takes_ctx=True,
        sequential=tool.action != "read",
    )
    adapted.function_schema.validator = _ANY_OBJECT  # the default accepts any JSON
    return adapted

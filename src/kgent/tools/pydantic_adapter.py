"""kgent's tools as tools of Pydantic AI. Importing this module needs the extra `pydantic-ai`."""

from typing import Any

from pydantic_ai import RunContext as AgentContext, Tool as AgentTool
from pydantic_core import SchemaValidator, core_schema

from agent_core.types import new_id
from kgent.runtime.context import RunContext
from kgent.tools.registry import ToolDefinition

_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))


def adapt_tool(tool: ToolDefinition, context: RunContext) -> AgentTool[None]:
    """Convert a tool for Pydantic AI. Only tools that read may run at the same time."""

    async def answer(facts: AgentContext[None], **args: Any) -> Any:
        call_id = facts.tool_call_id or new_id("call")
        result = await tool.invoke(args, context, call_id=call_id)
        return result.model_dump(mode="json", exclude_none=True)

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

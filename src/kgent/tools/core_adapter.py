"""kgent's tools as tools of agent_core."""

from collections.abc import Iterable, Mapping
from typing import cast

from agent_core.errors import ErrorCode, ToolError
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    Access,
    JsonBlock,
    ToolCall,
    ToolDefinition as CoreDefinition,
    ToolPermission,
    ToolResult as CoreResult,
)
from kgent.runtime.context import RunContext
from kgent.tools.registry import ToolDefinition


def adapt_tool(tool: ToolDefinition, context: RunContext) -> Tool:
    """Convert a tool for agent_core. Only tools that read may run at the same time."""

    async def prepare(arguments: JsonObject, call: ToolContext) -> Action:
        async def run() -> CoreResult:
            answer = await tool.invoke(arguments, context, call_id=call.tool_call_id)
            data = answer.model_dump(mode="json", exclude_none=True)
            return CoreResult(content=[JsonBlock(data=data)], is_error=not answer.ok)

        return Action(Access(summary=tool.name), run)

    return Tool(
        definition=describe_tool(tool),
        parse=dict,  # the call itself checks its arguments, so that invalid ones are recorded too
        prepare=prepare,
        concurrency=Concurrency.READ if tool.action == "read" else Concurrency.TASK,
        keeps_own_limits=True,
    )


def describe_tool(tool: ToolDefinition) -> CoreDefinition:
    """Return the definition of a tool in the form of agent_core."""
    reads = tool.action == "read"
    return CoreDefinition(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        permission=ToolPermission.READONLY if reads else ToolPermission.WRITE,
    )


def explain_rejection(
    tools: Iterable[ToolDefinition], context: RunContext, *, name: str, args: object
) -> tuple[str, str]:
    """Return the code and message for a call that reaches no tool, as agent_core's loop does.

    `args` is as the model sent it: a mapping, or text that is not a JSON object.
    """
    is_readable = isinstance(args, Mapping)
    metadata = {} if is_readable else {"invalid_arguments": args}
    arguments = dict(cast("Mapping[str, JsonValue]", args)) if is_readable else {}
    call = ToolCall(tool_call_id="call", name=name, arguments=arguments, metadata=metadata)
    try:
        Toolbox(adapt_tool(tool, context) for tool in tools).resolve(call)
    except ToolError as error:
        return error.code.value, error.message
    return ErrorCode.TOOL_NOT_AVAILABLE.value, "the engine did not make the call"

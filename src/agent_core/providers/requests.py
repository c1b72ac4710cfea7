"""Parts of a request that more than one format writes alike."""

from collections.abc import Sequence

from agent_core.providers import jsontext
from agent_core.providers.failures import Called
from agent_core.providers.names import wire_name
from agent_core.types import ModelRequest, SystemBlock, ToolDefinition


def system_message(blocks: Sequence[SystemBlock]) -> bytes:
    """One message: many chat templates take only one, and only at the beginning."""
    content = "\n\n".join(block.content for block in blocks if block.content)
    return jsontext.dump({"role": "system", "content": content}) if content else b""


def function_tool(tool: ToolDefinition) -> bytes:
    """A tool in the form that OpenAI made common."""
    function = {
        "name": wire_name(tool.name),
        "description": tool.description,
        "parameters": tool.input_schema,
    }
    return jsontext.dump({"type": "function", "function": function})


def chosen_tool(request: ModelRequest, called: Called) -> str:
    """The wire name of the one tool that `tool_choice` names.

    Raises:
        ProviderError: it is not among the tools of the request.
    """
    choice = request.tool_choice or ""
    if all(tool.name != choice for tool in request.tools):
        raise called.unsupported("tool_choice", f"tool_choice {choice!r} is no tool of the request")
    return wire_name(choice)

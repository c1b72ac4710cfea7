"""A tool as a class; the engine's `@tool` makes one of a function."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from agent_core.tools import Tool, ToolContext, ToolReturn, tool_from
from agent_core.types import ToolDefinition, ToolPermission


class BaseTool(ABC):
    """Something a model may do.

        class Weather(BaseTool):
            name = "get_weather"
            description = "The weather in a city."

            def parameters(self) -> dict[str, Any]:
                return {"type": "object", "properties": {"city": {"type": "string"}}}

            async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
                return {"city": arguments["city"], "temperature": 22}

    Attributes:
        name: letters, digits, `_`, `-` and dots.
        description: tells the model what it is good for.
        permission: `readonly` if it changes nothing; asking rules go by it.
    """

    name: str
    description: str = ""
    permission: ToolPermission = ToolPermission.WRITE

    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, an object; by default it takes none."""
        return {"type": "object", "properties": {}}

    @abstractmethod
    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
        """Do it. `arguments` fit the schema. What is returned must have a form in JSON.

        Raises:
            ToolError: it failed; any other exception becomes `ToolError.ExecutionFailed`.
        """

    def definition(self) -> ToolDefinition:
        """What the model is shown."""
        return ToolDefinition(
            name=self.name,
            description=self.description,
            input_schema=self.parameters(),
            permission=self.permission,
        )

    @cached_property
    def engine_tool(self) -> Tool:
        """The same as the engine's kind; its schema is compiled once, when it is first called."""
        return tool_from(self.definition(), self.execute)

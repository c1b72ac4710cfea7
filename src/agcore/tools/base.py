"""A tool as a class, for those who like a class; the engine's `@tool` makes one of a function."""

import asyncio
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from agcore.tools.errors import ToolExecutionError
from agent_core.aio import is_cancelled
from agent_core.tools import Tool, ToolContext, ToolReturn, tool_from
from agent_core.tools.threads import OpenCall
from agent_core.types import RunIdentity, ToolDefinition, ToolPermission, new_id


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


def as_tool(tool: BaseTool | Tool) -> Tool:
    """The tool as the engine's kind."""
    return tool.engine_tool if isinstance(tool, BaseTool) else tool


def open_call() -> OpenCall:
    """What a call may use while it runs, in the current task. There are no artifacts here."""
    task = asyncio.current_task()
    return OpenCall(_unseen, _no_artifacts, lambda: is_cancelled(task))


def run_of(session_id: str) -> RunIdentity:
    """What a call is made in: nothing here has runs, so each call has one of its own."""
    return RunIdentity(session_id=session_id, agent_id="agcore", run_id=new_id("run"))


def call_context(run: RunIdentity, tool_call_id: str, opened: OpenCall) -> ToolContext:
    """What a call is told about where it happens. There is no project here."""
    return ToolContext(
        run=run,
        tool_call_id=tool_call_id,
        project_dir=Path.cwd(),
        progress=opened.progress,
        artifact=opened.artifact,
        is_cancelled=opened.is_cancelled,
    )


def _unseen(_line: str) -> None:
    """Nobody watches a single call here."""


async def _no_artifacts(*_args: object, filename: str, **_more: object) -> NoReturn:
    message = f"the toolkit keeps no artifacts; return {filename} in the answer instead"
    raise ToolExecutionError("artifact", message)

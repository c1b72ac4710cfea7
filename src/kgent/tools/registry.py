"""The tools of a run, as every engine gets them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from agent_core.text.json_text import JsonSchema
from agent_core.tools.registry import model_definition
from agent_core.tools.schema import read_arguments
from agent_core.types import ToolDefinition as CoreDefinition
from kgent.memory.contract import MemoryClient
from kgent.runtime.blocking import finish_in_thread
from kgent.runtime.context import RunContext
from kgent.sandbox.paths import SandboxPaths
from kgent.skills.registry import SkillRegistry
from kgent.tools.calls import OwnTool, RecordedCalls
from kgent.tools.commands import COMMAND_TOOLS
from kgent.tools.filesystem import FILE_TOOLS
from kgent.tools.memory import memory_tools
from kgent.tools.permissions import build_effective_policy, check_permission
from kgent.tools.results import ToolAction, ToolResult
from kgent.tools.skills import skill_tools


class ToolHandler(Protocol):
    """Makes a call of a tool, and blocks until it has ended."""

    def __call__(self, args: dict[str, Any], context: RunContext) -> ToolResult:
        """Make a call; a failure is a result, too."""
        ...


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as engines get it, whatever library they use.

    Attributes:
        name: the name that the model sees.
        description: the description for the model.
        input_schema: the JSON Schema of the arguments.
        handler: makes a call; the handlers of a run's own tools also check and record it.
        action: the kind of its calls. Calls that only read may be made at the same time.
    """

    name: str
    description: str
    input_schema: JsonSchema
    handler: ToolHandler
    action: ToolAction = "execute"

    async def invoke(
        self, args: Mapping[str, Any], context: RunContext, *, call_id: str | None = None
    ) -> ToolResult:
        """Make a call without blocking the event loop.

        Raises:
            asyncio.CancelledError: the run was cancelled; the call is recorded.
        """
        if isinstance(self.handler, RecordedCalls):
            return await self.handler.invoke(args, context, call_id=call_id)
        return await finish_in_thread(partial(self.handler, dict(args), context))


def recorded_tool(shown: CoreDefinition, calls: RecordedCalls) -> ToolDefinition:
    """Return a tool with this description, whose calls are checked and recorded."""
    return ToolDefinition(
        calls.name, shown.description, dict(shown.input_schema), calls, action=calls.action
    )


def build_toolsets(
    context: RunContext,
    skills: SkillRegistry,
    memory: MemoryClient,
    *,
    denied: Iterable[str] = (),
) -> list[ToolDefinition]:
    """Return the tools of a run by name: enabled by the profile and not denied by the runtime.

    `denied` has names or patterns of tools that the run must not have, even if enabled.
    """
    policy = build_effective_policy(context.config, (), denied=denied)
    paths = SandboxPaths(context.sandbox_root, read_roots=skills.folders)

    def build(own: OwnTool) -> ToolDefinition:
        parse = partial(read_arguments, own.name, own.arguments)
        calls = RecordedCalls(own.name, own.action, parse, own.perform, paths, policy)
        return recorded_tool(model_definition(own.name, own.arguments), calls)

    every = [*FILE_TOOLS, *COMMAND_TOOLS, *skill_tools(skills, policy), *memory_tools(memory)]
    return [
        build(own)
        for own in sorted(every, key=lambda own: own.name)
        if check_permission(policy, own.name, own.action).is_allowed
    ]

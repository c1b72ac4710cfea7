"""The tools of a run, as every engine gets them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from agent_core.tools.registry import model_definition
from agent_core.tools.schema import Arguments, read_arguments
from kgent.memory.contract import MemoryClient
from kgent.runtime.blocking import finish_in_thread
from kgent.runtime.context import RunContext
from kgent.sandbox.paths import SandboxPaths
from kgent.skills.registry import SkillRegistry
from kgent.tools.calls import Perform, RecordedCalls
from kgent.tools.commands import RunCommand, perform_command
from kgent.tools.filesystem import (
    DeleteFile,
    GrepFiles,
    ListFiles,
    ReadFile,
    WriteFile,
    perform_delete,
    perform_grep,
    perform_list,
    perform_read,
    perform_write,
)
from kgent.tools.memory import RecallMemory, WriteMemory, perform_recall, perform_remember
from kgent.tools.permissions import build_effective_policy, check_permission
from kgent.tools.results import ToolAction, ToolResult
from kgent.tools.skills import ListSkills, LoadSkill, perform_list_skills, perform_load_skill


class ToolHandler(Protocol):
    """Makes a call of a tool, and blocks until it has ended."""

    def __call__(self, args: dict[str, Any], context: RunContext) -> ToolResult:
        """Make a call; a failure is a result, too."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
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
    input_schema: dict[str, Any]
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
    own: list[tuple[str, type[Arguments], ToolAction, Perform]] = [
        ("delete_file", DeleteFile, "delete", perform_delete),
        ("grep_files", GrepFiles, "read", perform_grep),
        ("list_files", ListFiles, "read", perform_list),
        ("list_skills", ListSkills, "read", partial(perform_list_skills, skills)),
        ("load_skill", LoadSkill, "read", partial(perform_load_skill, skills, policy)),
        ("read_file", ReadFile, "read", perform_read),
        ("recall_memory", RecallMemory, "read", partial(perform_recall, memory)),
        ("run_command", RunCommand, "execute", perform_command),
        ("write_file", WriteFile, "write", perform_write),
        ("write_memory", WriteMemory, "write", partial(perform_remember, memory)),
    ]

    def build(
        name: str, arguments: type[Arguments], action: ToolAction, perform: Perform
    ) -> ToolDefinition:
        shown = model_definition(name, arguments)
        return ToolDefinition(
            name=name,
            description=shown.description,
            input_schema=shown.input_schema,
            handler=RecordedCalls(
                name=name,
                action=action,
                parse=partial(read_arguments, name, arguments),
                perform=perform,
                paths=paths,
                policy=policy,
            ),
            action=action,
        )

    return [
        build(name, arguments, action, perform)
        for name, arguments, action, perform in own
        if check_permission(policy, name, action).is_allowed
    ]

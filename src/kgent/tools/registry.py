"""Tools as every engine gets them: a name, a schema, and a handler that can be called directly."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from agent_core.tools.schema import Arguments
from kgent.errors import ErrorCategory, ErrorInfo, error_info
from kgent.memory.contract import MemoryClient
from kgent.records.events import EventType
from kgent.records.logs import ToolCallRecord
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.runtime.state import now
from kgent.skills.registry import SkillRegistry
from kgent.tools import filesystem as files
from kgent.tools.guarded import Call, GuardedTool, summarised
from kgent.tools.memory import RecallMemory, WriteMemory, recall_memory, write_memory
from kgent.tools.permissions import Action, build_effective_policy
from kgent.tools.results import ToolResult, failed
from kgent.tools.shell import RunCommand, run_command
from kgent.tools.skills import ListSkills, LoadSkill, list_skills, load_skill

A = TypeVar("A", bound=Arguments)

_SHOWN_NAME = 80


class ToolHandler(Protocol):
    """Does one call, whatever the engine. Never raises for what a model did wrong."""

    def __call__(self, args: dict[str, Any], context: RunContext, /) -> ToolResult:
        """Check the arguments, ask the policy, do it, write it down."""
        ...


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool. `input_schema` is a JSON Schema of an object; `reads_only` ones may share a turn."""

    name: str
    description: str
    input_schema: dict[str, Any]
    handler: ToolHandler
    reads_only: bool = True


def definition_of(tool: GuardedTool[Any]) -> ToolDefinition:
    """A built-in tool, as an engine gets it."""
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        handler=tool,
        reads_only=tool.reads_only,
    )


def call_tool(
    definition: ToolDefinition, args: Mapping[str, Any], context: RunContext, *, call_id: str
) -> ToolResult:
    """Call a tool on behalf of a model; the id ties records to the model's own call.

    A handler that breaks gives a failed result: one bad tool does not end a run.
    """
    handler = definition.handler
    try:
        if isinstance(handler, GuardedTool):
            return handler(dict(args), context, call_id=call_id)
        return handler(dict(args), context)
    except Exception as error:  # noqa: BLE001 - it becomes the model's answer
        info = error_info(error, ErrorCategory.TOOL)
        context.records.errors.record(info, correlation_id=call_id)
        return failed(info)


def record_unheard_call(
    context: RunContext, *, call_id: str, name: str, args: object, code: str, message: str
) -> None:
    """Record a call that no handler saw, like any other: no such tool, or unreadable arguments.

    Args:
        context: the run.
        call_id: the model's id of the call.
        name: the tool that was called.
        args: what the model sent: a mapping, or text that is no JSON object.
        code: why the call could not be made.
        message: the same in words.
    """
    error = ErrorInfo(code=code, message=message, category=ErrorCategory.TOOL)
    shown = name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…"
    given = cast("Mapping[str, Any]", args) if isinstance(args, Mapping) else {"arguments": args}
    summary = summarised(dict(given))
    emit, when = context.records.events.emit, now()
    began = emit(
        EventType.TOOL_STARTED,
        f"{shown} begins",
        {"args": summary},
        actor="engine",
        correlation_id=call_id,
    )
    context.records.tools.record(
        ToolCallRecord(
            call_id=call_id,
            tool_name=shown,
            action=Action.UNKNOWN.value,
            started_at=when,
            completed_at=now(),
            duration_ms=0,
            status="failed",
            args_summary=summary,
            result_summary=message,
            error=error,
        )
    )
    context.records.errors.record(error, correlation_id=call_id)
    emit(
        EventType.TOOL_FAILED,
        f"{shown}: {message}",
        {"tool": shown, "error": error.model_dump(mode="json", exclude_none=True)},
        actor="engine",
        severity="warning",
        correlation_id=call_id,
        parent_event_id=began.event_id,
    )


def build_toolsets(
    context: RunContext,
    skills: SkillRegistry,
    memory: MemoryClient,
    *,
    cancellation: Cancellation | None = None,
    denied: Iterable[str] = (),
) -> list[ToolDefinition]:
    """The tools of a run, by name: those the profile enables and the runtime does not deny.

    Args:
        context: the run.
        skills: its skills; their folders may be read.
        memory: what recalls and, in external mode, remembers.
        cancellation: stops what is running when the run is to stop.
        denied: tools this run must not have, whatever the profile says.
    """
    policy = build_effective_policy(context.config, denied=denied)
    roots = tuple(skills.folders)
    stop = cancellation or Cancellation()

    def tool(
        name: str, arguments: type[A], action: Action, perform: Callable[[A, Call], ToolResult]
    ) -> GuardedTool[A]:
        return GuardedTool(
            name,
            arguments,
            action,
            perform,
            policy=policy,
            cancellation=stop,
            read_roots=roots,
        )

    made: list[GuardedTool[Any]] = [
        tool("delete_file", files.DeleteFile, Action.DELETE, files.delete_file),
        tool("grep_files", files.GrepFiles, Action.READ, files.grep_files),
        tool("list_files", files.ListFiles, Action.READ, files.list_files),
        tool("list_skills", ListSkills, Action.READ, list_skills(skills)),
        tool("load_skill", LoadSkill, Action.READ, load_skill(skills)),
        tool("read_file", files.ReadFile, Action.READ, files.read_file),
        tool("recall_memory", RecallMemory, Action.READ, recall_memory(memory)),
        tool("run_command", RunCommand, Action.EXECUTE, run_command),
        tool("write_file", files.WriteFile, Action.WRITE, files.write_file),
        tool("write_memory", WriteMemory, Action.WRITE, write_memory(memory)),
    ]
    allowed = policy.enabled - policy.denied
    return [definition_of(one) for one in made if one.name in allowed]

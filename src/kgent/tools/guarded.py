"""The one way a tool is called: arguments checked, policy asked, done, and written down."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import cleandoc
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, Literal, TypeVar, cast

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.redaction.visible import shortened
from agent_core.tools.results import storable
from agent_core.tools.schema import Arguments, model_check, model_schema
from agent_core.types import new_id
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, error_info
from kgent.records.context import TOOL_OUTPUT
from kgent.records.events import Event, EventType
from kgent.records.logs import ToolCallRecord
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.runtime.state import now
from kgent.sandbox.paths import resolve_sandbox_path, shown
from kgent.tools.permissions import CHANGES, Action, EffectivePermissionPolicy, check_permission
from kgent.tools.results import ToolResult, failed

A = TypeVar("A", bound=Arguments)

MAX_DATA_BYTES = 32_768
"""Data beyond this is kept as a file of the archive; the model gets its beginning."""
_PREVIEW = 4000
_SHOWN_ARGUMENT = 200
_REFUSALS = {ErrorCode.PERMISSION_DENIED.value, ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a tool knows about the call it answers.

    Attributes:
        context: the run.
        call_id: the model's id of the call; correlates everything written about it.
        tool_name: the tool.
        action: what it is about to do.
        policy: the rules of the run.
        cancellation: whether the run is to stop.
        read_roots: folders outside the run folder that may be read.
        parent_event_id: the event that began the call; the others hang below it.
    """

    context: RunContext
    call_id: str
    tool_name: str
    action: Action
    policy: EffectivePermissionPolicy
    cancellation: Cancellation
    read_roots: tuple[Path, ...] = ()
    parent_event_id: str | None = None

    @property
    def root(self) -> Path:
        """The run folder."""
        return self.context.sandbox_root

    def resolve(self, user_path: str) -> Path:
        """Where a path leads, if this call may go there; a refusal is written down.

        Raises:
            KgentError: it may not.
        """
        is_change = self.action in CHANGES
        try:
            path = resolve_sandbox_path(
                self.root, user_path, for_write=is_change, read_roots=self.read_roots
            )
            inside = shown(self.root, path) if path.is_relative_to(self.root) else None
            self.require(inside)
        except KgentError as error:
            self.note(
                EventType.FILE_REJECTED,
                error.message,
                {
                    "path": shortened(user_path, 200),
                    "action": self.action.value,
                    "code": error.code.value,
                },
                severity="warning",
            )
            raise
        return path

    def require(self, path: str | None = None) -> None:
        """Ask the policy.

        Raises:
            KgentError: it says no.
        """
        verdict = check_permission(self.policy, self.tool_name, self.action, path)
        if verdict.error is not None:
            raise KgentError(
                verdict.error.code,
                verdict.error.message,
                category=verdict.error.category,
                details=verdict.error.details,
            )

    def note(
        self, event: EventType, summary: str, data: dict[str, Any], *, severity: str = "info"
    ) -> Event:
        """Write an event that belongs to this call."""
        return self.context.records.events.emit(
            event,
            summary,
            data,
            actor=f"tool:{self.tool_name}",
            severity=severity,
            correlation_id=self.call_id,
            parent_event_id=self.parent_event_id,
        )


class GuardedTool(Generic[A]):
    """A tool of kgent as a handler: `tool(args, context) -> ToolResult`.

    Args:
        name: what the model calls it.
        arguments: the type of its arguments; the docstring is the tool's description.
        action: what it does, for the policy.
        perform: does it, with checked arguments.
        policy: the rules of the run.
        cancellation: whether the run is to stop.
        read_roots: folders outside the run folder that may be read.
    """

    def __init__(
        self,
        name: str,
        arguments: type[A],
        action: Action,
        perform: Callable[[A, Call], ToolResult],
        *,
        policy: EffectivePermissionPolicy,
        cancellation: Cancellation,
        read_roots: tuple[Path, ...] = (),
    ) -> None:
        self.name = name
        self.description = cleandoc(arguments.__doc__ or "")
        self.input_schema = {
            key: value for key, value in model_schema(arguments).items() if key != "description"
        }
        self.reads_only = action is Action.READ
        self._check = model_check(name, arguments)
        self._action = action
        self._perform = perform
        self._policy = policy
        self._cancellation = cancellation
        self._read_roots = read_roots

    def __call__(
        self, args: dict[str, Any], context: RunContext, /, *, call_id: str | None = None
    ) -> ToolResult:
        """Answer one call, and write down what became of it."""
        call = Call(
            context=context,
            call_id=call_id or new_id("call"),
            tool_name=self.name,
            action=self._action,
            policy=self._policy,
            cancellation=self._cancellation,
            read_roots=self._read_roots,
        )
        began, started_at = perf_counter(), now()
        summary = summarised(args)
        begins = call.note(EventType.TOOL_STARTED, f"{self.name} begins", {"args": summary})
        call = replace(call, parent_event_id=begins.event_id)
        result = _within_limit(self._answer(args, call), call)
        duration_ms = round((perf_counter() - began) * 1000)
        status = _status(result)
        context.records.tools.record(
            ToolCallRecord(
                call_id=call.call_id,
                tool_name=self.name,
                action=self._action.value,
                started_at=started_at,
                completed_at=now(),
                duration_ms=duration_ms,
                status=status,
                args_summary=summary,
                result_summary=result.summary,
                artifacts=result.artifacts,
                error=result.error,
            )
        )
        _announce(call, result, status, duration_ms)
        return result

    def _answer(self, args: dict[str, Any], call: Call) -> ToolResult:
        try:
            if reason := call.cancellation.reason:
                raise KgentError(reason.code, reason.message, category=ErrorCategory.TOOL)
            checked = cast("A", self._check(args))
            call.require()
            return self._perform(checked, call)
        except AgentCoreError as error:
            return failed(error_info(error, ErrorCategory.TOOL))
        except Exception as error:  # noqa: BLE001 - it becomes the model's answer, without a trace
            return failed(error_info(error, ErrorCategory.TOOL))


def summarised(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments for the records: long values cut, and how long they were."""
    clean = storable(args)
    return {str(key)[:80]: _short(value) for key, value in list(clean.items())[:30]}


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= _SHOWN_ARGUMENT:
        return value
    return f"{text[:_SHOWN_ARGUMENT]}… ({len(text)} characters)"


def _status(result: ToolResult) -> Literal["completed", "failed", "blocked"]:
    if result.ok:
        return "completed"
    return "blocked" if result.error and result.error.code in _REFUSALS else "failed"


def _announce(call: Call, result: ToolResult, status: str, duration_ms: int) -> None:
    data: dict[str, Any] = {
        "tool": call.tool_name,
        "duration_ms": duration_ms,
        "artifacts": result.artifacts,
    }
    if status == "completed":
        call.note(EventType.TOOL_COMPLETED, f"{call.tool_name}: {result.summary}", data)
        return
    error = result.error or ErrorInfo(code=ErrorCode.INTERNAL_ERROR.value, message=result.summary)
    call.context.records.errors.record(error, correlation_id=call.call_id)
    data["error"] = error.model_dump(mode="json", exclude_none=True)
    event = EventType.TOOL_BLOCKED if status == "blocked" else EventType.TOOL_FAILED
    call.note(event, f"{call.tool_name}: {error.message}", data, severity="warning")


def _within_limit(result: ToolResult, call: Call) -> ToolResult:
    """Move data that is too large for a message into the archive."""
    if result.data is None:
        return result
    data = storable(result.data)
    text = json.dumps(data, ensure_ascii=False, indent=1)
    size = len(text.encode("utf-8", "replace"))
    if size <= MAX_DATA_BYTES:
        return result.model_copy(update={"data": data})
    path = call.context.records.archive.keep_json(TOOL_OUTPUT, call.call_id, data)
    beginning = f"{text[:_PREVIEW]}…"
    preview = {"truncated": True, "bytes": size, "beginning": beginning, "all_of_it": path}
    return result.model_copy(update={"data": preview, "artifacts": [*result.artifacts, path]})

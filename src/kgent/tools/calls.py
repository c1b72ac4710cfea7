"""One tool call, checked, made and recorded in the same way for every engine."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, cast

from agent_core.artifacts.files import pieces_of
from agent_core.config.models import ToolsConfig
from agent_core.errors import ErrorCode, ParkedError
from agent_core.text import shortened
from agent_core.tools.base import Action, CutCallError, Tool, ToolContext
from agent_core.tools.schema import Arguments
from agent_core.tools.values import storable
from agent_core.tools.workspace import PathPolicy, Workspace
from agent_core.types import ArtifactSource, RunIdentity, ToolResult as CoreResult, new_id
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, denial, error_info
from kgent.records.archive import TOOL_OUTPUT
from kgent.records.events import Event, RunEventType
from kgent.records.logs import ToolCallRecord
from kgent.runtime.blocking import run_blocking
from kgent.runtime.context import RunContext
from kgent.runtime.questions import waiting_error
from kgent.sandbox.paths import SandboxPaths
from kgent.tools.permissions import EffectivePermissionPolicy, check_permission
from kgent.tools.results import ToolAction, ToolResult

MAX_DATA_BYTES = 32_768
"""Larger data is stored as a file of the archive; the model gets its beginning."""

_RESULT_BYTES = 16_384  # one page of a file, or one stream of a command
_PREVIEW = 4000
_SHOWN_ARGUMENT = 200
_SHOWN_NAME = 80


@dataclass(slots=True)
class ToolCallScope:
    """One tool call: the means for the tool, and the records of the call.

    Its id comes from the model; the action is `unknown` if the call reached no tool.
    """

    context: RunContext
    call_id: str
    name: str
    action: ToolAction
    paths: SandboxPaths
    began: float = field(default_factory=perf_counter)
    started_at: str = ""
    start_event: str | None = None

    def note(
        self, event: RunEventType, summary: str, data: dict[str, Any], *, severity: str = "info"
    ) -> Event:
        """Record an event that belongs to this call."""
        return self.context.records.events.emit(
            event,
            summary,
            data,
            actor="engine" if self.action == "unknown" else f"tool:{self.name}",
            severity=severity,
            correlation_id=self.call_id,
            parent_event_id=self.start_event,
        )

    async def prepare(
        self,
        make: Callable[[Workspace], Tool],
        arguments: Mapping[str, Any],
        *,
        paths: PathPolicy | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Action:
        """Prepare a call of a code tool of agent_core in the run folder.

        A command gets its own path rules, and only the environment `variables`.
        """
        size = _RESULT_BYTES
        workspace = Workspace(
            boundaries=paths or self.paths,
            limits=ToolsConfig(
                result_limit_bytes=size, stdout_limit_bytes=size, stderr_limit_bytes=size
            ),
            env=variables or {},
            launcher=self.context.launcher,
            unfinished=self.context.records.files.unfinished,
        )
        tool = make(workspace)
        return await tool.prepare(tool.parse(arguments), self.tool_context())

    def tool_context(self) -> ToolContext:
        """Return the context of this call for a tool of agent_core."""
        context = self.context
        identity = RunIdentity(
            session_id=context.session_id, agent_id="kgent", run_id=context.run_id
        )
        return ToolContext(
            run=identity,
            tool_call_id=self.call_id,
            project_dir=context.sandbox_root,
            progress=lambda _: None,
            artifact=self._keep_artifact,
            is_cancelled=lambda: context.cancellation.is_cancelled,
        )

    async def _keep_artifact(self, data: ArtifactSource, *, filename: str, **_: str | None) -> str:
        def keep() -> str:
            label, ending = f"{self.call_id}-{Path(filename).stem}", Path(filename).suffix
            raw = b"".join(pieces_of(data))
            return self.context.records.archive.keep_raw(TOOL_OUTPUT, label, raw, ending=ending)

        return await asyncio.to_thread(keep)

    async def record(self, arguments: Mapping[str, Any], perform: "Perform") -> ToolResult:
        """Make the call and record its result; every failure becomes an answer.

        Raises:
            asyncio.CancelledError: the run was cancelled; the call is recorded.
            ParkedError: a person has to allow the call; it is recorded as blocked.
        """
        summary, token = summarise_arguments(arguments), self.context.cancellation
        self.started_at = self.context.records.now()
        begins = self.note("tool.started", f"{self.name} begins", {"args": summary})
        self.start_event = begins.event_id
        try:
            answer = await self._kept(await perform(arguments, self))
        except asyncio.CancelledError as cancelled:
            reason = token.reason
            message = f"stopped: {reason.message}" if reason else "stopped"
            answer = _fail(ErrorCode.CANCELLED.value, message)
            if not isinstance(cancelled, CutCallError):
                self._write(answer, arguments, summary)
                raise
            self._write(self._with_output(answer, cancelled.result), arguments, summary)
            raise asyncio.CancelledError from cancelled
        except ParkedError as parked:
            error = waiting_error(parked.request_ids)
            self._write(
                ToolResult(ok=False, summary=error.message, error=error), arguments, summary
            )
            asked: dict[str, Any] = {"requests": list(parked.request_ids), "args": summary}
            self.note("user.asked", f"{self.name}: {error.message}", asked, severity="warning")
            raise
        except Exception as error:  # noqa: BLE001 - becomes an answer without a traceback
            info = error_info(error, ErrorCategory.TOOL)
            answer = ToolResult(ok=False, summary=info.message or info.code, error=info)
        self._write(answer, arguments, summary)
        return answer

    def _with_output(self, answer: ToolResult, cut: CoreResult) -> ToolResult:
        """Return the answer to a cancelled call, with what it had put out kept in the archive."""
        content = {"content": [storable(block.model_dump(mode="json")) for block in cut.content]}
        try:
            path = self.context.records.archive.keep_json(TOOL_OUTPUT, self.call_id, content)
        except Exception:  # noqa: BLE001 - the call is recorded all the same
            return answer
        return answer.model_copy(update={"artifacts": [path]})

    async def _kept(self, answer: ToolResult) -> ToolResult:
        """Return the answer with data of limited size; never fails, because the call was made."""
        if answer.data is None:
            return answer
        try:
            return await asyncio.to_thread(self._limit_data, answer, answer.data)
        except Exception as error:  # noqa: BLE001 - the answer itself is kept
            info = error_info(error, ErrorCategory.TOOL)
            not_kept = f"the call was made; its data could not be kept: {info.message or info.code}"
            return answer.model_copy(update={"data": {"not_kept": not_kept}})

    def _limit_data(self, answer: ToolResult, data: dict[str, Any]) -> ToolResult:
        """Move data that is too large for a message into the archive."""
        data = storable(data)
        text = json.dumps(data, ensure_ascii=False, indent=1)
        size = len(text.encode("utf-8", "replace"))
        if size <= MAX_DATA_BYTES:
            return answer.model_copy(update={"data": data})
        path = self.context.records.archive.keep_json(TOOL_OUTPUT, self.call_id, data)
        preview = {"truncated": True, "bytes": size, "beginning": f"{text[:_PREVIEW]}…"}
        changes = {"data": {**preview, "all_of_it": path}, "artifacts": [*answer.artifacts, path]}
        return answer.model_copy(update=changes)

    def _write(
        self, answer: ToolResult, arguments: Mapping[str, Any], summary: dict[str, Any]
    ) -> None:
        error, records, name = answer.error, self.context.records, self.name
        if error is not None and error.category is ErrorCategory.SANDBOX:
            path = shortened(str(arguments.get("path", "")), 200)
            rejected = {"path": path, "action": self.action, "code": error.code}
            self.note("file.rejected", error.message, rejected, severity="warning")
        duration_ms = round((perf_counter() - self.began) * 1000)
        record = ToolCallRecord(
            call_id=self.call_id,
            tool_name=name,
            action=self.action,
            started_at=self.started_at,
            completed_at=records.now(),
            duration_ms=duration_ms,
            status=answer.status,
            args_summary=summary,
            result_summary=answer.summary,
            artifacts=answer.artifacts,
            error=error,
        )
        records.tools.record(record)
        data: dict[str, Any] = {"tool": name, "duration_ms": duration_ms}
        data["artifacts"] = answer.artifacts
        if error is None:
            self.note("tool.completed", f"{name}: {answer.summary}", data)
            return
        records.errors.record(error, correlation_id=self.call_id)
        data["error"] = error.model_dump(mode="json", exclude_none=True)
        event = "tool.blocked" if answer.status == "blocked" else "tool.failed"
        self.note(event, f"{name}: {error.message}", data, severity="warning")


Perform = Callable[[Any, ToolCallScope], Awaitable[ToolResult]]
"""Makes a call with arguments that have been checked."""


class OwnTool(NamedTuple):
    """A tool of kgent: its name, arguments and action, and the function that makes a call.

    The docstring of `arguments` is its description.
    """

    name: str
    arguments: type[Arguments]
    action: ToolAction
    perform: Perform


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """The handler of a tool: checks, makes and records its calls.

    Attributes:
        name: the tool.
        action: the kind of its calls.
        parse: checks the arguments.
        perform: makes a call with arguments that have been checked.
        paths: the path rules of the run.
        policy: the permissions of the run.
    """

    name: str
    action: ToolAction
    parse: Callable[[Mapping[str, Any]], Any]
    perform: Perform
    paths: SandboxPaths
    policy: EffectivePermissionPolicy

    def __call__(self, args: dict[str, Any], context: RunContext) -> ToolResult:
        """Make a call, and block until it has ended."""

        async def invoke() -> ToolResult:
            with context.cancellation.stopping_task():
                return await self.invoke(args, context)

        return run_blocking(invoke, context.loop)

    async def invoke(
        self, args: Mapping[str, Any], context: RunContext, *, call_id: str | None = None
    ) -> ToolResult:
        """Make a call; without `call_id` it gets a new id.

        Raises:
            asyncio.CancelledError: the run was cancelled; the call is recorded.
        """
        call_id = call_id or new_id("call")
        scope = ToolCallScope(context, call_id, self.name, self.action, self.paths)
        return await scope.record(args, self._check_and_perform)

    async def _check_and_perform(self, arguments: Any, scope: ToolCallScope) -> ToolResult:
        if reason := scope.context.cancellation.reason:
            raise KgentError(reason.code, reason.message, category=ErrorCategory.TOOL)
        permission = check_permission(self.policy, self.name, self.action)
        if not permission.is_allowed:
            raise denial(permission.reason or "the call is not allowed")
        return await self.perform(self.parse(arguments), scope)


def _fail(code: str, message: str) -> ToolResult:
    error = ErrorInfo(code=code, message=message, category=ErrorCategory.TOOL)
    return ToolResult(ok=False, summary=message or code, error=error)


def summarise_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for the records: long values are cut, with a note of their length."""
    summary: dict[str, Any] = {}
    for key, value in list(storable(dict(arguments)).items())[:30]:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        is_short = len(text) <= _SHOWN_ARGUMENT or isinstance(value, bool | int | float)
        cut = f"{text[:_SHOWN_ARGUMENT]}… ({len(text)} characters)"
        summary[str(key)[:80]] = value if is_short else cut
    return summary


async def record_rejected_call(
    context: RunContext, *, call_id: str, name: str, args: object, code: str, message: str
) -> None:
    """Record a call that reached no tool: the tool does not exist, or the arguments are invalid.

    `args` is as the model sent it: a mapping, or text that is not a JSON object.
    """
    shown = name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…"
    given = cast("Mapping[str, Any]", args) if isinstance(args, Mapping) else {"arguments": args}
    scope = ToolCallScope(context, call_id, shown, "unknown", SandboxPaths(context.sandbox_root))

    async def reject(_: Any, __: ToolCallScope) -> ToolResult:
        return _fail(code, message)

    await scope.record(given, reject)

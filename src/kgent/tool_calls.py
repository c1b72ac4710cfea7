"""One tool call, checked, made and recorded in the same way for every engine."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, cast

from pydantic import Field, field_validator

from agent_core.artifacts.files import pieces_of
from agent_core.config.models import ToolsConfig
from agent_core.errors import REFUSALS, ErrorCode, ToolError
from agent_core.text import shortened
from agent_core.tools.base import Action, Concurrency, CutCallError, Tool, ToolContext, ToolOutput
from agent_core.tools.registry import Toolbox, model_tool
from agent_core.tools.results import wrap
from agent_core.tools.schema import Arguments
from agent_core.tools.values import storable
from agent_core.tools.workspace import PathPolicy, ResolvedPath, Workspace
from agent_core.types import (
    Access,
    ArtifactSource,
    JsonBlock,
    RunIdentity,
    ToolCall,
    ToolPermission,
    ToolResult,
)
from kgent.cancellation import Cancellation
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, Record, error_info
from kgent.records import (
    TOOL_OUTPUT,
    Event,
    RunEnvironment,
    RunEventType,
    ToolCallRecord,
    summary_line,
)
from kgent.run_folder import WRITABLE

MAX_DATA_BYTES = 32_768
"""Larger data is stored as a file of the archive; the model gets its beginning."""

_RESULT_BYTES = 16_384  # one page of a file, or one stream of a command
_PREVIEW = 4000
_SHOWN_ARGUMENT = 200
_SHOWN_NAME = 80


ToolAction = Literal["read", "write", "delete", "execute", "unknown"]
"""The kind of a call, for its record."""


class ToolAnswer(Record):
    """The result of one call, as the model reads it.

    Attributes:
        ok: whether the call succeeded.
        summary: one line for logs and events; longer ones are cut.
        data: data for the model. Large output is an artifact instead.
        artifacts: paths inside the run folder that the call has written.
        error: the reason for a failure; only if `ok` is false.
    """

    ok: bool
    summary: str = Field(min_length=1)
    data: dict[str, Any] | None = None
    artifacts: list[str] = []
    error: ErrorInfo | None = None

    @field_validator("summary")
    @classmethod
    def _one_line(cls, value: str) -> str:
        return summary_line(value)

    @property
    def status(self) -> Literal["completed", "failed", "blocked"]:
        """Return the status for the record of the call."""
        if self.ok:
            return "completed"
        return "blocked" if self.error and self.error.code in REFUSALS else "failed"


class SandboxPaths(PathPolicy):
    """The path rules of a run, for every tool that takes a path.

    The run folder and the folders of skills may be read; only files below `workspace/` and
    `deliverables/` may be written. Links are followed before the rules are applied.

    Args:
        root: the run folder.
        read_roots: resolved outside folders that may be read as well.
    """

    def __init__(self, root: Path, *, read_roots: Iterable[Path] = ()) -> None:
        super().__init__(root.resolve())
        self._read_roots = (self.project, *read_roots)

    def resolve(self, given: str, *, base: Path | None = None) -> ResolvedPath:
        """Resolve a path and its links.

        Raises:
            KgentError: category `sandbox`; it leads to a place that must not be read, contains
              `..`, or is not a path.
        """
        if ".." in Path(given).parts:
            raise _path_refused(given, "'..' is not allowed in paths; name the place itself")
        try:
            place = super().resolve(given, base=base)
        except ToolError as error:
            raise KgentError(error.code, error.message, category=ErrorCategory.SANDBOX) from None
        if not any(place.path.is_relative_to(root) for root in self._read_roots):
            raise _path_refused(given, "it leads out of the run folder")
        return place

    def refuse_protected(self, place: ResolvedPath) -> None:
        """Refuse to write anything outside `workspace/` and `deliverables/`.

        Raises:
            KgentError: category `sandbox`, code `write_outside_allowed_roots`.
        """
        inside = place.path.is_relative_to(self.project)
        parts = place.path.relative_to(self.project).parts if inside else ()
        if len(parts) < 2 or parts[0] not in WRITABLE:
            reason = "only files below workspace/ and deliverables/ may be written"
            raise _path_refused(place.shown, reason, ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS)


def _path_refused(
    path: str, reason: str, code: ErrorCode = ErrorCode.PERMISSION_DENIED
) -> KgentError:
    shown = shortened(path, 200)
    return KgentError(
        code,
        f"{shown!r} is refused: {reason}",
        category=ErrorCategory.SANDBOX,
        details={"path": shown},
    )


@dataclass(slots=True)
class ToolCallScope:
    """One tool call: the means for the tool, and the records of the call.

    Its id comes from the model; the action is `unknown` if the call reached no tool.
    """

    env: RunEnvironment
    call_id: str
    name: str
    action: ToolAction
    paths: SandboxPaths
    cancellation: Cancellation
    began: float = field(default_factory=perf_counter)
    started_at: str = ""
    start_event: str | None = None

    def note(
        self, event: RunEventType, summary: str, data: dict[str, Any], *, severity: str = "info"
    ) -> Event:
        """Record an event that belongs to this call."""
        return self.env.records.emit(
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
            launcher=self.env.launcher,
            unfinished=self.env.records.files.unfinished,
        )
        tool = make(workspace)
        return await tool.prepare(tool.parse(arguments), self.tool_context())

    def tool_context(self) -> ToolContext:
        """Return the context of this call for a tool of agent_core."""
        return _build_context(self.env, self.call_id, self.cancellation)

    async def record(self, arguments: Mapping[str, Any], perform: "Perform") -> ToolAnswer:
        """Make the call and record its result; every failure becomes an answer.

        Raises:
            asyncio.CancelledError: the run was cancelled; the call is recorded.
        """
        summary = summarise_arguments(arguments)
        self.started_at = self.env.records.now()
        begins = self.note("tool.started", f"{self.name} begins", {"args": summary})
        self.start_event = begins.event_id
        try:
            if reason := self.cancellation.reason:
                raise KgentError(reason.code, reason.message, category=ErrorCategory.TOOL)
            answer = await perform(arguments, self)
            answer = await self._kept(answer)
        except asyncio.CancelledError as cancelled:
            reason = self.cancellation.reason
            message = f"stopped: {reason.message}" if reason else "stopped"
            answer = _fail(ErrorCode.CANCELLED.value, message)
            if not isinstance(cancelled, CutCallError):
                self._write(answer, arguments, summary)
                raise
            self._write(self._with_output(answer, cancelled.result), arguments, summary)
            raise asyncio.CancelledError from cancelled
        except Exception as error:  # noqa: BLE001 - becomes an answer without a traceback
            info = error_info(error, ErrorCategory.TOOL)
            answer = ToolAnswer(ok=False, summary=info.message or info.code, error=info)
        self._write(answer, arguments, summary)
        return answer

    def _with_output(self, answer: ToolAnswer, cut: ToolResult) -> ToolAnswer:
        """Return the answer to a cancelled call, with what it had put out kept in the archive."""
        blocks = [storable(block.model_dump(mode="json")) for block in cut.content]
        try:
            path = self.env.records.keep_json(TOOL_OUTPUT, self.call_id, {"content": blocks})
        except Exception:  # noqa: BLE001 - the call is recorded all the same
            return answer
        return answer.model_copy(update={"artifacts": [path]})

    async def _kept(self, answer: ToolAnswer) -> ToolAnswer:
        """Return the answer with data of limited size; never fails, because the call was made."""
        if answer.data is None:
            return answer
        try:
            return await asyncio.to_thread(self._limit_data, answer, answer.data)
        except Exception as error:  # noqa: BLE001 - the answer itself is kept
            info = error_info(error, ErrorCategory.TOOL)
            not_kept = f"the call was made; its data could not be kept: {info.message or info.code}"
            return answer.model_copy(update={"data": {"not_kept": not_kept}})

    def _limit_data(self, answer: ToolAnswer, data: dict[str, Any]) -> ToolAnswer:
        """Move data that is too large for a message into the archive."""
        data = storable(data)
        text = json.dumps(data, ensure_ascii=False, indent=1)
        size = len(text.encode("utf-8", "replace"))
        if size <= MAX_DATA_BYTES:
            return answer.model_copy(update={"data": data})
        path = self.env.records.keep_json(TOOL_OUTPUT, self.call_id, data)
        preview = {"truncated": True, "bytes": size, "beginning": f"{text[:_PREVIEW]}…"}
        changes = {"data": {**preview, "all_of_it": path}, "artifacts": [*answer.artifacts, path]}
        return answer.model_copy(update=changes)

    def _write(
        self, answer: ToolAnswer, arguments: Mapping[str, Any], summary: dict[str, Any]
    ) -> None:
        error, records, name = answer.error, self.env.records, self.name
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
        records.record_call(record)
        data: dict[str, Any] = {"tool": name, "duration_ms": duration_ms}
        data["artifacts"] = answer.artifacts
        if error is None:
            self.note("tool.completed", f"{name}: {answer.summary}", data)
            return
        records.record_error(error, correlation_id=self.call_id)
        data["error"] = error.model_dump(mode="json", exclude_none=True)
        event = "tool.blocked" if answer.status == "blocked" else "tool.failed"
        self.note(event, f"{name}: {error.message}", data, severity="warning")


Perform = Callable[[Any, ToolCallScope], Awaitable[ToolAnswer]]
"""Makes a call with arguments that have been checked."""


def _fail(code: str, message: str) -> ToolAnswer:
    error = ErrorInfo(code=code, message=message, category=ErrorCategory.TOOL)
    return ToolAnswer(ok=False, summary=message or code, error=error)


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
    env: RunEnvironment, *, call_id: str, name: str, args: object, code: str, message: str
) -> None:
    """Record a call that reached no tool: the tool does not exist, or the arguments are invalid.

    `args` is as the model sent it: a mapping, or text that is not a JSON object.
    """
    shown = name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…"
    given = cast("Mapping[str, Any]", args) if isinstance(args, Mapping) else {"arguments": args}
    paths, never = SandboxPaths(env.sandbox_root), Cancellation()
    scope = ToolCallScope(
        env, call_id, name=shown, action="unknown", paths=paths, cancellation=never
    )

    async def reject(_: Any, __: ToolCallScope) -> ToolAnswer:
        return _fail(code, message)

    await scope.record(given, reject)


def explain_rejection(tools: Iterable[Tool], *, name: str, args: object) -> tuple[str, str]:
    """Return the code and message for a call that reaches no tool, as agent_core's loop does.

    `args` is as the model sent it: a mapping, or text that is not a JSON object.
    """
    is_readable = isinstance(args, Mapping)
    metadata = {} if is_readable else {"invalid_arguments": args}
    arguments = dict(cast("Mapping[str, Any]", args)) if is_readable else {}
    call = ToolCall(tool_call_id="call", name=name, arguments=arguments, metadata=metadata)
    try:
        Toolbox(tools).resolve(call)
    except ToolError as error:
        return error.code.value, error.message
    return ErrorCode.TOOL_NOT_AVAILABLE.value, "the engine did not make the call"


def _build_context(env: RunEnvironment, call_id: str, cancellation: Cancellation) -> ToolContext:
    async def keep(data: ArtifactSource, *, filename: str, **_: str | None) -> str:
        raw = await asyncio.to_thread(lambda: b"".join(pieces_of(data)))
        label, ending = f"{call_id}-{Path(filename).stem}", Path(filename).suffix
        return await asyncio.to_thread(env.records.keep_raw, TOOL_OUTPUT, label, raw, ending=ending)

    return ToolContext(
        run=RunIdentity(session_id=env.ids.session_id, agent_id="kgent", run_id=env.ids.run_id),
        tool_call_id=call_id,
        project_dir=env.sandbox_root,
        progress=lambda _: None,
        artifact=keep,
        is_cancelled=lambda: cancellation.is_cancelled,
    )


async def call_tool(
    tool: Tool, arguments: Mapping[str, Any], env: RunEnvironment, *, call_id: str
) -> ToolResult:
    """Call a tool for an engine that does not use agent_core's loop.

    Raises:
        asyncio.CancelledError: the run was cancelled.
    """
    context = _build_context(env, call_id, Cancellation())
    action = await tool.prepare(tool.parse(arguments), context)
    returned = await action.run()
    return wrap(returned.answer if isinstance(returned, ToolOutput) else returned)


def build_tool(
    name: str,
    model: type[Arguments],
    action: ToolAction,
    perform: Perform,
    *,
    open_scope: Callable[..., ToolCallScope],
) -> Tool:
    """Build a tool whose calls check their arguments and record themselves.

    Its description is the docstring of `model`.
    """
    reads = action == "read"

    async def never(_: Any, __: ToolContext) -> Action:
        raise AssertionError("the call is made by the tool that records it")

    made = model_tool(
        name,
        model,
        never,
        permission=ToolPermission.READONLY if reads else ToolPermission.WRITE,
        tags=(),
        concurrency=Concurrency.READ if reads else Concurrency.TASK,
        keeps_own_limits=True,
    )
    return record_calls(made, perform, action=action, open_scope=open_scope)


def record_calls(
    tool: Tool,
    perform: Perform,
    *,
    action: ToolAction = "execute",
    open_scope: Callable[..., ToolCallScope],
) -> Tool:
    """Return the tool with calls that record themselves; `perform` makes a checked call."""

    async def check_and_perform(arguments: Any, scope: ToolCallScope) -> ToolAnswer:
        return await perform(tool.parse(arguments), scope)

    async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
        async def run() -> ToolResult:
            scope = open_scope(context.tool_call_id, name=tool.name, action=action)
            answer = await scope.record(arguments, check_and_perform)
            data = answer.model_dump(mode="json", exclude_none=True)
            return ToolResult(content=[JsonBlock(data=data)], is_error=not answer.ok)

        return Action(Access(summary=tool.name), run)

    # The call itself checks its arguments, so that calls with invalid ones are recorded too.
    return replace(tool, parse=dict, prepare=prepare)

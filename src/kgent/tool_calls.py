"""One call of a tool: checked, made and recorded in one place, for every engine."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agent_core.config.models import ToolsConfig
from agent_core.errors import ErrorCode, ToolError
from agent_core.redaction.visible import shortened
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, ToolOutput
from agent_core.tools.paths import PathPolicy, ResolvedPath
from agent_core.tools.results import storable, wrap
from agent_core.tools.schema import Arguments, model_check, model_schema
from agent_core.tools.workspace import Workspace
from agent_core.types import (
    Access,
    ArtifactSource,
    JsonBlock,
    RunIdentity,
    ToolDefinition,
    ToolPermission,
    ToolResult,
)
from kgent.cancellation import Cancellation
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, error_info
from kgent.records import (
    TOOL_OUTPUT,
    Event,
    RunEnvironment,
    RunEventType,
    ToolCallRecord,
    summary_line,
)
from kgent.run_folder import WRITABLE
from kgent.state import now

MAX_DATA_BYTES = 32_768
"""Data beyond this is kept as a file of the archive; the model gets its beginning."""

_RESULT_BYTES = 16_384  # one page of a file, or one stream of a command
_PREVIEW = 4000
_SHOWN_ARGUMENT = 200
_SHOWN_NAME = 80
_REFUSALS = {ErrorCode.PERMISSION_DENIED.value, ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS.value}


class ToolAction(StrEnum):
    """What a call does, for its record."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    EXECUTE = "execute"
    UNKNOWN = "unknown"


class ToolAnswer(BaseModel):
    """The outcome of one call, as the model reads it.

    Attributes:
        ok: whether the tool did what it was asked.
        summary: one line, what logs and events show; longer ones are cut.
        data: what the model needs to see. Large output is an artifact instead.
        artifacts: paths inside the run folder that the call has written.
        error: why it did not work; only where `ok` is false.
    """

    model_config = ConfigDict(frozen=True)

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
        """What the record of the call says."""
        if self.ok:
            return "completed"
        return "blocked" if self.error and self.error.code in _REFUSALS else "failed"


class SandboxPaths(PathPolicy):
    """The path rule of a run, for every tool that takes a path.

    Reading is for the run folder and the folders of skills, writing for what lies below
    `workspace/` and `deliverables/`. Links are followed before anything is decided.

    Args:
        root: the run folder.
        read_roots: resolved folders outside that may be read as well.
    """

    def __init__(self, root: Path, *, read_roots: Iterable[Path] = ()) -> None:
        super().__init__(root.resolve())
        self._read_roots = (self.project, *read_roots)

    def resolve(self, given: str, *, base: Path | None = None) -> ResolvedPath:
        """Follow a path to where it leads.

        Raises:
            KgentError: category `sandbox`; it leads to where nothing may be read, has a `..` in
                it, or is no path at all.
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
        """Keep everything but what lies below `workspace/` and `deliverables/` from being written.

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


# --- one call -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallScope:
    """What a tool knows about the call it answers.

    Attributes:
        env: the run.
        call_id: the model's id of the call; correlates everything written about it.
        tool_name: the tool.
        action: what it does.
        actor: the source of the call's events.
        cancellation: whether the run is to stop.
        paths: where the call may read and write.
        parent_event_id: the event that began the call; the others hang below it.
    """

    env: RunEnvironment
    call_id: str
    tool_name: str
    action: ToolAction
    actor: str
    cancellation: Cancellation
    paths: SandboxPaths
    parent_event_id: str | None = None

    def note(
        self, event: RunEventType, summary: str, data: dict[str, Any], *, severity: str = "info"
    ) -> Event:
        """Write an event that belongs to this call."""
        return self.env.records.emit(
            event,
            summary,
            data,
            actor=self.actor,
            severity=severity,
            correlation_id=self.call_id,
            parent_event_id=self.parent_event_id,
        )

    async def prepare(
        self,
        make: Callable[[Workspace], Tool],
        arguments: Mapping[str, Any],
        *,
        paths: PathPolicy | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Action:
        """Prepare a call of a code tool of agent_core in the run folder.

        Args:
            make: the tool, such as `agent_core.tools.code.read.read_file`.
            arguments: for that tool.
            paths: another path rule than the call's.
            env: what a command sees.
        """
        workspace = Workspace(
            boundaries=paths or self.paths,
            limits=ToolsConfig(
                result_limit_bytes=_RESULT_BYTES,
                stdout_limit_bytes=_RESULT_BYTES,
                stderr_limit_bytes=_RESULT_BYTES,
            ),
            env=env or {},
            launcher=self.env.launcher,
            unfinished=self.env.records.files.unfinished,
        )
        tool = make(workspace)
        context = replace(build_tool_context(self.env, self.call_id), artifact=self._keep)
        context = replace(context, is_cancelled=lambda: self.cancellation.is_cancelled)
        return await tool.prepare(tool.parse(arguments), context)

    async def _keep(self, data: ArtifactSource, *, filename: str, **_: str | None) -> str:
        match data:
            case bytes():
                raw = data
            case Path():
                raw = data.read_bytes()
            case _:
                data.seek(0)
                raw = data.read()
        label, ending = f"{self.call_id}-{Path(filename).stem}", Path(filename).suffix
        return self.env.records.keep_raw(TOOL_OUTPUT, label, raw, ending=ending)


Perform = Callable[[Any, ToolCallScope], Awaitable[ToolAnswer]]
"""Makes a call whose arguments have been checked."""


async def _record(
    scope: ToolCallScope, arguments: Mapping[str, Any], perform: Perform
) -> ToolAnswer:
    """Make one call, and write down what became of it; every failure is an answer.

    Raises:
        asyncio.CancelledError: the run is to stop; the call is on record.
    """
    began, started_at, args = perf_counter(), now(), summarise_arguments(arguments)
    begins = scope.note(RunEventType.TOOL_STARTED, f"{scope.tool_name} begins", {"args": args})
    scope = replace(scope, parent_event_id=begins.event_id)

    def write(answer: ToolAnswer) -> ToolAnswer:
        error, event = answer.error, RunEventType(f"tool.{answer.status}")
        if error is not None and error.category is ErrorCategory.SANDBOX:
            path = shortened(str(arguments.get("path", "")), 200)
            rejected = {"path": path, "action": scope.action.value, "code": error.code}
            scope.note(RunEventType.FILE_REJECTED, error.message, rejected, severity="warning")
        duration_ms = round((perf_counter() - began) * 1000)
        record = ToolCallRecord(
            call_id=scope.call_id,
            tool_name=scope.tool_name,
            action=scope.action.value,
            started_at=started_at,
            completed_at=now(),
            duration_ms=duration_ms,
            status=answer.status,
            args_summary=args,
            result_summary=answer.summary,
            artifacts=answer.artifacts,
            error=error,
        )
        scope.env.records.record_call(record)
        data: dict[str, Any] = {"tool": scope.tool_name, "duration_ms": duration_ms}
        data["artifacts"] = answer.artifacts
        if error is None:
            scope.note(event, f"{scope.tool_name}: {answer.summary}", data)
            return answer
        scope.env.records.record_error(error, correlation_id=scope.call_id)
        data["error"] = error.model_dump(mode="json", exclude_none=True)
        scope.note(event, f"{scope.tool_name}: {error.message}", data, severity="warning")
        return answer

    try:
        if reason := scope.cancellation.reason:
            raise KgentError(reason.code, reason.message, category=ErrorCategory.TOOL)
        answer = await asyncio.to_thread(_limit_data, await perform(arguments, scope), scope)
    except asyncio.CancelledError:
        reason = scope.cancellation.reason
        message = f"stopped: {reason.message}" if reason else "stopped"
        write(_failed(ErrorCode.CANCELLED.value, message))
        raise
    except Exception as error:  # noqa: BLE001 - it becomes the model's answer, without a traceback
        info = error_info(error, ErrorCategory.TOOL)
        answer = ToolAnswer(ok=False, summary=info.message or info.code, error=info)
    return write(answer)


def _failed(code: str, message: str) -> ToolAnswer:
    error = ErrorInfo(code=code, message=message, category=ErrorCategory.TOOL)
    return ToolAnswer(ok=False, summary=message or code, error=error)


def _limit_data(answer: ToolAnswer, scope: ToolCallScope) -> ToolAnswer:
    """Move data that is too large for a message into the archive."""
    if answer.data is None:
        return answer
    data = storable(answer.data)
    text = json.dumps(data, ensure_ascii=False, indent=1)
    size = len(text.encode("utf-8", "replace"))
    if size <= MAX_DATA_BYTES:
        return answer.model_copy(update={"data": data})
    path = scope.env.records.keep_json(TOOL_OUTPUT, scope.call_id, data)
    beginning = f"{text[:_PREVIEW]}…"
    preview = {"truncated": True, "bytes": size, "beginning": beginning, "all_of_it": path}
    return answer.model_copy(update={"data": preview, "artifacts": [*answer.artifacts, path]})


def summarise_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the records: long values cut, and how long they were."""
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
    """Record a call that reached no tool, like any other: no such tool, or unreadable arguments.

    Args:
        env: the run.
        call_id: the model's id of the call.
        name: the tool that was called.
        args: what the model sent: a mapping, or text that is no JSON object.
        code: why the call could not be made.
        message: the same in words.
    """
    shown = name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…"
    given = cast("Mapping[str, Any]", args) if isinstance(args, Mapping) else {"arguments": args}
    scope = ToolCallScope(
        env=env,
        call_id=call_id,
        tool_name=shown,
        action=ToolAction.UNKNOWN,
        actor="engine",
        cancellation=Cancellation(),
        paths=SandboxPaths(env.sandbox_root),
    )

    async def reject(_: Any, __: ToolCallScope) -> ToolAnswer:
        return _failed(code, message)

    await _record(scope, given, reject)


def build_tool_context(env: RunEnvironment, call_id: str) -> ToolContext:
    """The facts of one call, for a tool that no loop of agent_core calls."""

    async def refuse(*_: object, **__: object) -> str:
        raise ToolError(ErrorCode.STORAGE_ERROR, "there are no artifacts here")

    return ToolContext(
        run=RunIdentity(session_id=env.ids.session_id, agent_id="kgent", run_id=env.ids.run_id),
        tool_call_id=call_id,
        project_dir=env.sandbox_root,
        progress=lambda _: None,
        artifact=refuse,
        is_cancelled=lambda: False,
    )


async def call_tool(
    tool: Tool, arguments: Mapping[str, Any], env: RunEnvironment, *, call_id: str
) -> ToolResult:
    """Call a tool for an engine that has no loop of agent_core.

    Raises:
        asyncio.CancelledError: the run is to stop.
    """
    action = await tool.prepare(tool.parse(arguments), build_tool_context(env, call_id))
    returned = await action.run()
    return wrap(returned.answer if isinstance(returned, ToolOutput) else returned)


def build_tool(
    name: str,
    model: type[Arguments],
    action: ToolAction,
    perform: Perform,
    *,
    env: RunEnvironment,
    cancellation: Cancellation,
    paths: SandboxPaths,
) -> Tool:
    """A tool whose calls check their arguments, and record themselves."""
    reads = action is ToolAction.READ
    check = model_check(name, model)
    schema = {key: value for key, value in model_schema(model).items() if key != "description"}

    async def check_and_perform(arguments: Any, scope: ToolCallScope) -> ToolAnswer:
        return await perform(check(arguments), scope)

    async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
        scope = ToolCallScope(
            env=env,
            call_id=context.tool_call_id,
            tool_name=name,
            action=action,
            actor=f"tool:{name}",
            cancellation=cancellation,
            paths=paths,
        )

        async def run() -> ToolResult:
            answer = await _record(scope, arguments, check_and_perform)
            data = answer.model_dump(mode="json", exclude_none=True)
            return ToolResult(content=[JsonBlock(data=data)], is_error=not answer.ok)

        return Action(Access(summary=name), run)

    return Tool(
        definition=ToolDefinition(
            name=name,
            description=cleandoc(model.__doc__ or ""),
            input_schema=schema,
            permission=ToolPermission.READONLY if reads else ToolPermission.WRITE,
        ),
        parse=dict,  # the call itself checks its arguments, so that it is on record
        prepare=prepare,
        concurrency=Concurrency.READ if reads else Concurrency.TASK,
        keeps_own_limits=True,
    )

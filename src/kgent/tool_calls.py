"""One call of a tool: checked, made and recorded in one place, for every engine."""

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
from agent_core.errors import ErrorCode, ToolError
from agent_core.text import shortened
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, ToolOutput
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
"""Data beyond this is kept as a file of the archive; the model gets its beginning."""

_RESULT_BYTES = 16_384  # one page of a file, or one stream of a command
_PREVIEW = 4000
_SHOWN_ARGUMENT = 200
_SHOWN_NAME = 80
_REFUSALS = {ErrorCode.PERMISSION_DENIED.value, ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS.value}


ToolAction = Literal["read", "write", "delete", "execute", "unknown"]
"""What a call does, for its record."""


class ToolAnswer(Record):
    """The outcome of one call, as the model reads it.

    Attributes:
        ok: whether the tool did what it was asked.
        summary: one line, what logs and events show; longer ones are cut.
        data: what the model needs to see. Large output is an artifact instead.
        artifacts: paths inside the run folder that the call has written.
        error: why it did not work; only where `ok` is false.
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
        """The status in the record of the call."""
        if self.ok:
            return "completed"
        return "blocked" if self.error and self.error.code in _REFUSALS else "failed"


class SandboxPaths(PathPolicy):
    """The path rule of a run, for every tool that takes a path.

    The run folder and the folders of skills may be read, only files below
    `workspace/` and `deliverables/` written. Links are followed before anything is decided.

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
        """Refuse to write anything outside of `workspace/` and `deliverables/`.

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
    """One call of a tool: what the tool may use, and what is written about the call.

    Its id is the model's; the action is `unknown` where the call reached no tool.
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
        """Write an event that belongs to this call."""
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

        A command gets a path rule of its own, and sees `variables` of the environment only.
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
        """What a tool of agent_core gets of this call."""
        return _build_context(self.env, self.call_id, self.cancellation)

    async def record(self, arguments: Mapping[str, Any], perform: "Perform") -> ToolAnswer:
        """Make the call, and write down what became of it; every failure is an answer.

        Raises:
            asyncio.CancelledError: the run is to stop; the call is on record.
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
        except asyncio.CancelledError:
            reason = self.cancellation.reason
            message = f"stopped: {reason.message}" if reason else "stopped"
            self._write(_fail(ErrorCode.CANCELLED.value, message), arguments, summary)
            raise
        except Exception as error:  # noqa: BLE001 - becomes the model's answer, without a traceback
            info = error_info(error, ErrorCategory.TOOL)
            answer = ToolAnswer(ok=False, summary=info.message or info.code, error=info)
        self._write(answer, arguments, summary)
        return answer

    async def _kept(self, answer: ToolAnswer) -> ToolAnswer:
        """Return the answer with data of bounded size; the call was made in any case."""
        if answer.data is None:
            return answer
        try:
            return await asyncio.to_thread(self._limit_data, answer, answer.data)
        except Exception as error:  # noqa: BLE001 - the answer itself stays as it is
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
"""Makes a call; its arguments are checked by then."""


def _fail(code: str, message: str) -> ToolAnswer:
    error = ErrorInfo(code=code, message=message, category=ErrorCategory.TOOL)
    return ToolAnswer(ok=False, summary=message or code, error=error)


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

    `args` is what the model sent: a mapping, or text that is no JSON object.
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
    """Code and message for a call that reaches no tool, as the loop of agent_core answers it.

    `args` is what the model sent: a mapping, or text that is no JSON object.
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
    """Call a tool for an engine that has no loop of agent_core.

    Raises:
        asyncio.CancelledError: the run is to stop.
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
    """A tool whose calls check their arguments and record themselves.

    Its description is the docstring of the model of its arguments.
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
    """The tool with calls that record themselves; `perform` makes one, with checked arguments."""

    async def check_and_perform(arguments: Any, scope: ToolCallScope) -> ToolAnswer:
        return await perform(tool.parse(arguments), scope)

    async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
        async def run() -> ToolResult:
            scope = open_scope(context.tool_call_id, name=tool.name, action=action)
            answer = await scope.record(arguments, check_and_perform)
            data = answer.model_dump(mode="json", exclude_none=True)
            return ToolResult(content=[JsonBlock(data=data)], is_error=not answer.ok)

        return Action(Access(summary=tool.name), run)

    # The call itself checks its arguments, so that a call that does not fit is on record.
    return replace(tool, parse=dict, prepare=prepare)

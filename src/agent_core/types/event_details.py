"""The payloads of events as typed records: what readers may rely on in an event.

`event.details` decodes a payload here and nowhere else. Decoding never fails: a field that is
missing, or that another version has written in another form, has its default.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import fields

from agent_core.errors import describe_error
from agent_core.types.content import Usage

__all__ = [
    "AskedModel",
    "CallEstimate",
    "CallName",
    "ChildCreated",
    "ChildEnded",
    "ChildEvent",
    "CompactEnded",
    "ContextBuilt",
    "Delta",
    "ErrorDetails",
    "EventDetails",
    "ModelAsked",
    "ModelGaveUp",
    "ModelReplied",
    "ModelRetried",
    "NamedPlace",
    "PermissionDecided",
    "PermissionRequested",
    "ProviderToolUse",
    "ReasoningDelta",
    "RunEnded",
    "RunQueued",
    "Source",
    "SystemPart",
    "TextDelta",
    "ToolCompleted",
    "ToolDenied",
    "ToolEnded",
    "ToolEvent",
    "ToolFailed",
    "ToolOutput",
    "ToolProgress",
    "ToolStarted",
    "UserMessageEvent",
    "WindowBudget",
    "WindowUse",
    "WorkerDispatched",
    "read_details",
]


class ErrorDetails(Struct, frozen=True):
    """An error in an event, as far as readers need it."""

    code: str = ""
    message: str = ""
    retryable: bool = False
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


class EventDetails(Struct, frozen=True):
    """An event's payload; of most kinds readers need no more than a name and a reason.

    Attributes:
        code: the error code of what failed.
        message: its error message.
        reason: why it happened.
        error: the error, as data or as text.
        name: the subject of the event, like the three fields after it.
    """

    code: str | None = None
    message: str | None = None
    reason: str | None = None
    error: ErrorDetails | str | None = None
    name: str | None = None
    server_id: str | None = None
    step_id: str | None = None
    to: str | None = None

    @property
    def subject(self) -> str:
        """The name of who or what the event is about; empty if it has none."""
        return self.name or self.server_id or self.step_id or self.to or ""

    @property
    def cause(self) -> str:
        """The message of the error; empty without an error."""
        if isinstance(self.error, ErrorDetails):
            return self.error.message
        return self.message or self.error or ""

    @property
    def why(self) -> str:
        """The reason of a failure, with a code that names it; empty if none is known."""
        of_error = isinstance(self.error, ErrorDetails)
        code = self.error.code if isinstance(self.error, ErrorDetails) else self.code
        reason = self.cause or (None if of_error else self.reason)
        return describe_error(reason or "", code or "")


class Delta(EventDetails, frozen=True):
    """A piece of a reply; with `from_start` it replaces everything that came before it."""

    text: str = ""
    from_start: bool = False


class TextDelta(Delta, frozen=True):
    """A piece of the model's text."""


class ReasoningDelta(Delta, frozen=True):
    """A piece of the model's reasoning."""


class WindowUse(Struct, frozen=True):
    """The tokens of a request, by part, and the factor between estimated and reported tokens."""

    total: int = 0
    tools: int = 0
    messages: int = 0
    scale: float = 1.0


class WindowBudget(Struct, frozen=True):
    """The room of a model, in tokens."""

    window: int = 0
    output_reserve: int = 0
    reattached: int = 0


class AskedModel(Struct, frozen=True):
    """The settings of a request."""

    model: str = ""


class SystemPart(Struct, frozen=True):
    """A block of the system prompt."""

    block_id: str = ""
    token_count: int = 0


class UserMessageEvent(EventDetails, frozen=True):
    """An event about a message; `message_id` names a message sent to an active run.

    Attributes:
        text: the words of a waiting message, or their beginning.
    """

    message_id: str = ""
    text: str = ""


class ContextBuilt(EventDetails, frozen=True):
    """A request that was built; `system` and `tools` only if they differ from the last one's."""

    turn: int = 0
    use: WindowUse = WindowUse()
    budget: WindowBudget = WindowBudget()
    settings: AskedModel = AskedModel()
    system: tuple[SystemPart, ...] | None = None
    tools: tuple[str, ...] | None = None
    task_board: str | None = None
    path_end_node_id: str | None = None
    settled_node_ids: tuple[str, ...] = ()
    changed_segment: str | None = None
    memory: str | None = None


class CallEstimate(Struct, frozen=True):
    """The expected use of a model call."""

    input_tokens: int = 0
    cost: float | None = None


class ModelAsked(EventDetails, frozen=True):
    """`model_started`: the model is called; starts of earlier versions have no estimate.

    `left_out` has the tools that the service is not told of, each with the reason.
    """

    provider: str = ""
    model: str = ""
    estimate: CallEstimate | None = None
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])


class CallName(Struct, frozen=True):
    """A call in a reply."""

    tool_call_id: str = ""
    name: str = ""


class ProviderToolUse(Struct, frozen=True):
    """A use of a tool that the service runs itself, or its result."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    result: str | None = None


class Source(Struct, frozen=True):
    """A source of a reply."""

    url: str = ""
    title: str = ""
    text_range: tuple[int, int] | None = None


class ModelReplied(EventDetails, frozen=True):
    """`model_completed`: the model has answered, with text, calls or both.

    `provider_tools` are tools that the service has used, `citations` its sources.
    """

    usage: Usage | None = None
    stop_reason: str = ""
    tool_calls: tuple[CallName, ...] = ()
    duration_ms: int | None = None
    provider_tools: tuple[ProviderToolUse, ...] = ()
    citations: tuple[Source, ...] = ()


class ModelRetried(EventDetails, frozen=True):
    """`model_retry`: an attempt has failed, and another one follows."""

    attempt: int = 0
    delay_ms: int = 0
    usage: Usage | None = None

    @property
    def next_model(self) -> str:
        """The model that is called instead, with its provider; empty for the same one."""
        fallback = self._fallback
        if not fallback:
            return ""
        return f"{fallback.get('model', '')} of {fallback.get('provider', '')}"

    @property
    def lost_tools(self) -> tuple[str, ...]:
        """The provider tools that the next model does without."""
        given = self._fallback.get("without")
        return tuple(map(str, cast("list[object]", given))) if isinstance(given, list) else ()

    @property
    def _fallback(self) -> Mapping[str, object]:
        given: object = None
        if isinstance(self.error, ErrorDetails):
            given = self.error.details.get("fallback")
        return cast("Mapping[str, object]", given) if isinstance(given, Mapping) else {}


class ModelGaveUp(EventDetails, frozen=True):
    """`model_failed`: the model has not answered, and is not called again."""

    usage: Usage | None = None


class NamedPlace(Struct, frozen=True):
    """A file that a call names, and possibly a line of it."""

    path: str
    line: int | None = None


class ToolEvent(EventDetails, frozen=True):
    """An event of a tool call; `event.tool_call_id` says which."""

    tool_name: str = ""
    summary: str = ""


class ToolStarted(ToolEvent, frozen=True):
    """A call is about to run.

    Attributes:
        kind: kind of tool.
        confined: its confinement in words; empty without a sandbox.
        paths: the files it names.
    """

    kind: str = "other"
    confined: str = ""
    paths: tuple[NamedPlace, ...] = ()


class ToolProgress(ToolEvent, frozen=True):
    """A running call reports its progress."""

    text: str = ""


class ToolOutput(ToolEvent, frozen=True):
    """The last output of a running command; it replaces what such an event has shown before.

    Attributes:
        text: the last lines, and the beginning of the next one.
        lines: how many lines the command has finished so far; `text` has the last of them.
    """

    text: str = ""
    lines: int = 0


class ToolEnded(ToolEvent, frozen=True):
    """A call has its answer: the common part of how it can end.

    Attributes:
        summary: only of a call that did not begin.
        duration_ms: of the action; None if the call was never attempted.
        waited_ms: spent waiting for a person's answer.
        exit_code: of a command.
        output: its last lines, before which there are `output_hidden_lines`.
        output_truncated: the result of the call is incomplete, too.
        found: how much a search or a read has found, in words.
        diff: the change of a file, followed by `diff_hidden_lines`.
        diff_is_whole: nothing of the diff was cut or replaced.
        blocked_by_sandbox: what the sandbox has refused.
        remarks: what else happened around a command, in sentences: processes that were stopped with
            it, a network it did not have, repositories that were disabled, output that was not
            kept.
    """

    is_error: bool = False
    duration_ms: int | None = None
    waited_ms: int | None = None
    exit_code: int | None = None
    output: str = ""
    output_hidden_lines: int = 0
    output_truncated: bool = False
    found: str = ""
    diff: str | None = None
    diff_hidden_lines: int = 0
    diff_is_whole: bool = False
    blocked_by_sandbox: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class ToolCompleted(ToolEnded, frozen=True):
    """A call has returned; a command possibly with an exit code other than 0."""


class ToolFailed(ToolEnded, frozen=True):
    """A call has failed, was stopped, or was not run."""


class ToolDenied(ToolEnded, frozen=True):
    """A call was refused.

    Attributes:
        denied_by: who or what refused it: `the user`; `nobody` if the question could not be asked;
            else a rule by its place, a mode or a setting. Empty if only the message says it.
    """

    denied_by: str = ""


class PermissionRequested(ToolEvent, frozen=True):
    """A question about a call."""

    request_id: str = ""
    args_summary: str = ""
    target_scope: str | None = None
    dangerous: bool = False


class PermissionDecided(ToolEvent, frozen=True):
    """The answer to a question about a call.

    Attributes:
        decided_by: where it was answered; None for a callback.
        decider: who has answered.
    """

    request_id: str = ""
    decision: str = ""
    decided_by: str | None = None
    decider: str | None = None


class ChildEvent(EventDetails, frozen=True):
    """An event of the parent's run about a child."""

    child_run_id: str | None = None
    child_agent_id: str | None = None
    worker_id: str | None = None
    agent_definition_id: str | None = None
    role: str | None = None
    task_id: str | None = None
    tool_call_id: str | None = None

    @property
    def subject(self) -> str:
        """The name of the child."""
        known = self.name or self.worker_id or self.agent_definition_id
        return known or self.child_run_id or ""


class AgentChanged(EventDetails, frozen=True):
    """The conversation was handed over: the agent `to` continues it.

    Attributes:
        from_agent: the agent that had it (`from` in the payload); `main` for the run's own.
    """

    from_agent: str = field(name="from", default="")


class ChildCreated(ChildEvent, frozen=True):
    """A child was started; for a worker, `worker_dispatched` follows."""


class WorkerDispatched(ChildEvent, frozen=True):
    """A child that works on a Task was started."""


class ChildEnded(ChildEvent, frozen=True):
    """A child has ended: completed, failed or cancelled."""

    status: str = ""
    turns: int = 0
    usage: Usage | None = None


class CompactEnded(EventDetails, frozen=True):
    """A summary of the conversation was written, or could not be.

    Attributes:
        reason: `request` if a run did nothing else, and ends like the summary.
    """

    reason: str = ""
    usage: Usage | None = None
    tokens_after: int | None = None


class RunQueued(EventDetails, frozen=True):
    """A run waits.

    Attributes:
        runs_in_front: runs of its session that come before it.
        taken_over: the ones among them that a process had queued when it died.
        queue: the queue whose workers may take it; None: its own process will.
    """

    runs_in_front: int = 1
    taken_over: tuple[str, ...] = ()
    queue: str | None = None


class RunEnded(EventDetails, frozen=True):
    """The closing event of a run.

    Attributes:
        end_reason: why it ended.
        turns: how many turns it took.
        usage: tokens of all its model calls.
        stop_objection: the objection that it completed against.
    """

    end_reason: str | None = None
    turns: int = 0
    usage: Usage | None = None
    stop_objection: str = ""


_RECORDS: Mapping[str, type[EventDetails]] = {
    "model_text_delta": TextDelta,
    "model_reasoning_delta": ReasoningDelta,
    "message_created": UserMessageEvent,
    "message_waiting": UserMessageEvent,
    "message_refused": UserMessageEvent,
    "message_taken_back": UserMessageEvent,
    "context_built": ContextBuilt,
    "model_started": ModelAsked,
    "model_completed": ModelReplied,
    "model_retry": ModelRetried,
    "model_failed": ModelGaveUp,
    "tool_started": ToolStarted,
    "tool_progress": ToolProgress,
    "tool_output": ToolOutput,
    "tool_completed": ToolCompleted,
    "tool_failed": ToolFailed,
    "tool_denied": ToolDenied,
    "tool_timeout": ToolEvent,
    "permission_requested": PermissionRequested,
    "permission_decided": PermissionDecided,
    "permission_failed": ToolEvent,
    "agent_changed": AgentChanged,
    "child_agent_created": ChildCreated,
    "child_agent_completed": ChildEnded,
    "child_agent_failed": ChildEnded,
    "child_agent_cancelled": ChildEnded,
    "child_agent_cancel_requested": ChildEvent,
    "child_agent_cancel_timeout": ChildEvent,
    "child_result_schema_validation_failed": ChildEvent,
    "worker_dispatched": WorkerDispatched,
    "worker_dispatch_failed": ChildEvent,
    "compact_completed": CompactEnded,
    "compact_failed": CompactEnded,
    "run_queued": RunQueued,
    "run_completed": RunEnded,
    "run_failed": RunEnded,
    "run_cancelled": RunEnded,
}


_UNREADABLE = (ValidationError, UnicodeEncodeError)
"""Raised by what a field cannot hold, the second one by half of a surrogate pair."""


def read_details(event_type: str, payload: Mapping[str, Any]) -> EventDetails:
    """Decode a payload; fields that are missing, or that cannot be read, have their defaults."""
    record = _RECORDS.get(event_type, EventDetails)
    try:
        return convert(payload, record, dec_hook=_read_usage)
    except _UNREADABLE:
        found: dict[str, Any] = {}
        for known in fields(record):
            with suppress(KeyError, *_UNREADABLE):
                found[known.name] = read_field(payload[known.name], known.type)
        return record(**found)


def read_field(value: Any, kind: Any) -> Any:
    """Decode one field of a payload.

    Raises:
        msgspec.ValidationError: it is not of this kind.
    """
    return convert(value, kind, dec_hook=_read_usage)


def _read_usage(_: type, given: Any) -> Usage:
    """Read what is known of a usage; counts that a later version has added are left out."""
    if not isinstance(given, Mapping):
        raise TypeError("a usage is an object")
    known = cast("Mapping[str, Any]", given)
    return Usage.model_validate({name: known[name] for name in Usage.model_fields if name in known})

"""Parts, counters and end of one run."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self

from msgspec import Struct, field
from msgspec.structs import replace

from agent_core.aio import start_uncancelled
from agent_core.context.composer import BuiltRequest
from agent_core.context.messages import plain_text
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.events import Journal, JournalEnd, RunChange
from agent_core.extensions import Extensions
from agent_core.loop.inbox import Inbox
from agent_core.providers.base import ProviderAdapter
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    FINAL_ANSWER,
    NO_USAGE,
    AgentStatus,
    EndReason,
    ErrorPayload,
    EventDraft,
    EventLevel,
    EventType,
    Node,
    NodeType,
    Role,
    RunIdentity,
    RunRecord,
    RunStatus,
    StopReason,
    ToolCall,
    ToolCallBlock,
    ToolDefinition,
    ToolResult,
    ToolResultBlock,
    Usage,
)


class ContextSource(Protocol):
    """Builds the requests that the model sees."""

    def build(
        self, path: Sequence[Node], tools: Sequence[ToolDefinition], *, may_drop: bool = False
    ) -> BuiltRequest:
        """Turn the path into the next request.

        `may_drop` allows leaving out the oldest whole exchanges; without it a path that does not
        fit comes back `over_budget`, so that the caller can compact it first.
        """
        ...

    def observe(self, usage: Usage) -> None:
        """Learn from the tokens the last built request really used."""
        ...

    @property
    def may_be_too_long(self) -> bool:
        """Return whether its length may be why a service refused the last request."""
        ...

    async def correct_window(self, window: int | None, *, is_stated: bool = True) -> object:
        """Learn that the service found the last request too long, and its window if it named one.

        Building the same path again is then over budget, or asks for a shorter answer. If the
        service has not stated its reason, this is a guess for this run.
        """
        ...

    async def confirm_window(self) -> object:
        """Learn that a request built for a corrected window was answered."""
        ...


class ResumePoint(Struct, frozen=True):
    """Progress of a run that continues: its counters, and its calls that have not begun.

    `nodes` are its own nodes on the path. `waiting` has what is known so far of the calls whose
    children wait, by call id: their answers if the run is cancelled instead.
    """

    turns: int
    usage: Usage
    calls: Sequence[ToolCall]
    nodes: Sequence[Node] = ()
    waiting: Mapping[str, ToolResult] = field(default_factory=dict[str, ToolResult])


class HistorySource(Protocol):
    """Provides the path that a run continues."""

    async def resume(self, journal: Journal) -> ResumePoint | None:
        """Add the path to continue to the journal, with every tool call on it answered.

        Returns:
            The progress of this run, if it was begun before: the calls it names are the only ones
            on the path without an answer. None for a run that begins.

        Raises:
            StorageError: the path cannot be read.
        """
        ...


class PathCompactor(Protocol):
    """Makes a path that does not fit short enough, by adding a summary to it."""

    async def recover(self, journal: Journal) -> bool:
        """Compact now; return whether the path fits afterwards."""
        ...


class NoHistory:
    """The history of a run that begins with an empty path, and the compactor of one without any."""

    async def resume(self, journal: Journal) -> None:
        """Leave the path as it is."""

    async def recover(self, journal: Journal) -> bool:  # noqa: ARG002 - the protocol's
        """Compact nothing; exchanges that do not fit are left out of requests."""
        return False


class RunLimits(Struct, frozen=True):
    """Limits of a run."""

    max_turns: int = 100
    max_continuations: int = 3
    max_stop_denials: int = 8
    max_invalid_calls: int = 3


class RunContext(Struct, frozen=True, kw_only=True):
    """Parts of a run. Only the journal and the inbox change while it runs."""

    run: RunIdentity
    journal: Journal
    provider: ProviderAdapter
    composer: ContextSource
    history: HistorySource
    compactor: PathCompactor
    toolbox: Toolbox
    extensions: Extensions
    results: ResultLimiter
    project_dir: Path
    limits: RunLimits = RunLimits()
    inbox: Inbox = field(default_factory=Inbox)


_REASONS = {
    ErrorCode.MAX_TURNS: EndReason.MAX_TURNS,
    ErrorCode.PROMPT_TOO_LONG: EndReason.PROMPT_TOO_LONG,
    ErrorCode.MAX_OUTPUT_TOKENS: EndReason.MAX_OUTPUT_TOKENS_RECOVERY,
}
_CLOSING = {
    RunStatus.COMPLETED: (EventType.LOOP_COMPLETED, EventType.RUN_COMPLETED),
    RunStatus.CANCELLED: (EventType.LOOP_ABORTED, EventType.RUN_CANCELLED),
    RunStatus.FAILED: (EventType.LOOP_FAILED, EventType.RUN_FAILED),
}
_AGENT_STATUS = {
    RunStatus.COMPLETED: AgentStatus.IDLE,
    RunStatus.CANCELLED: AgentStatus.CANCELLED,
    RunStatus.FAILED: AgentStatus.FAILED,
}


PAUSED = "paused"
"""Metadata key of a reply that the service continues when it gets it back."""
STOP_OBJECTION = "stop_objection"
"""Key of the objection that a run completed against, in its metadata and its closing event."""


class Outcome(Struct, frozen=True):
    """End of a run; `output` is the value of its answer, in the requested type.

    A run without an `end_reason` has not ended: it waits for the answers to `requests`. One with a
    `stop_objection` has completed against it, after as many objections as are allowed. One that
    `is_handed_over` was answered by another agent than its first, in the form of that agent.
    """

    end_reason: EndReason | None
    text: str = ""
    usage: Usage = NO_USAGE
    turns: int = 0
    error: ErrorPayload | None = None
    output: Any = None
    requests: Sequence[str] = ()
    stop_objection: str | None = None
    is_handed_over: bool = False

    @property
    def status(self) -> RunStatus:
        """The run status that belongs to the end reason."""
        return RunStatus.WAITING if self.end_reason is None else self.end_reason.status

    @property
    def metadata(self) -> dict[str, Any]:
        """Further facts about the end, for results and reports."""
        objection = self.stop_objection
        return {} if objection is None else {STOP_OBJECTION: objection}


class Reply(Struct, frozen=True):
    """A finished model message that is in the journal.

    `deferred_answer` is a final answer that came with calls: it counts once they have succeeded.
    One that `is_empty` has neither text nor a call, and is not in the journal. One that `is_paused`
    is continued by the service as soon as it gets it back.
    """

    calls: list[ToolCall]
    stop_reason: StopReason
    deferred_answer: str | None = None
    is_empty: bool = False
    is_paused: bool = False


class RunStats(Struct):
    """Counters and results of a run while it runs.

    `answer` collects the pieces of an answer that was cut off and continued; `broken_off` is the
    beginning of a reply that was interrupted, unless another one followed; `call_ids` are the
    tool call ids used in this history, since some servers restart their numbers in every reply.
    `output` is the value of an answer that `is_typed`; `outcome` is valid once the run is settled.
    `replayed_reply` is the last reply of a continued run, if that reply may be its end. After a
    reply that the service has paused, `is_paused` is true: the next one continues its answer.
    """

    call_ids: set[str] = field(default_factory=set[str])
    usage: Usage = NO_USAGE
    turns: int = 0
    answer: list[str] = field(default_factory=list[str])
    broken_off: str = ""
    continuations: int = 0
    empty_replies: int = 0
    invalid_calls: int = 0
    stop_denials: int = 0
    stop_objection: str | None = None
    output_retries: int = 0
    output: Any = None
    is_typed: bool = False
    outcome: Outcome = Outcome(EndReason.FAILED)
    replayed_reply: Reply | None = None
    is_paused: bool = False

    def restore(self, left_off: ResumePoint) -> None:
        """Restore the counters of a run that began in another process."""
        self.turns, self.usage = left_off.turns, left_off.usage
        for node in left_off.nodes:
            self.follow(node)

    @classmethod
    def of_stored(cls, run: RunRecord, nodes: Sequence[Node]) -> Self:
        """Return the counters and the answer of a run that is read from the store."""
        stats = cls()
        stats.restore(ResumePoint(run.turn_count, run.usage, (), nodes))
        return stats

    def follow(self, node: Node) -> None:
        """Update the answer and its counters with the next node of the run.

        A reply begins a new answer, unless it continues one that was cut off. All that shows an
        answer, live or later, gets it from here.
        """
        reason = node.metadata.get("reason")
        self.empty_replies = self.empty_replies + 1 if reason == "empty_reply" else 0
        if node.role is Role.ASSISTANT and node.is_partial:
            self.broken_off = node.text
        elif node.role is Role.ASSISTANT:
            self.broken_off = ""
            has_final = FINAL_ANSWER in node.metadata
            if (self.continuations == 0 and not self.is_paused) or has_final:
                self.answer.clear()
            self.is_paused = PAUSED in node.metadata
            is_alone = has_final and not node.calls  # other text may stand before it
            self.answer.append(plain_text(node.content[-1:]) if is_alone else node.text)
            if node.metadata.get("stop_reason") != StopReason.MAX_TOKENS or node.calls:
                self.continuations = 0
        elif reason == "max_output_tokens":
            self.continuations += 1
        elif reason in {"stop_hook", "output_invalid"}:
            self.continuations = 0
            self.answer.clear()
            self.stop_denials += reason == "stop_hook"
            self.output_retries += reason == "output_invalid"

    @property
    def text(self) -> str:
        """Return what arrived of the last reply, with the pieces that it continues."""
        is_continued = self.continuations or self.is_paused or not self.broken_off
        return "".join((*self.answer, self.broken_off)) if is_continued else self.broken_off

    def spend(self, usage: Usage | None) -> dict[str, Any]:
        """Add the usage of calls without a reply, and return it for an event."""
        if usage is None:
            return {}
        self.usage = self.usage.plus(usage)
        return {"usage": usage.model_dump(exclude={"raw_usage"})}

    def completed(self) -> Outcome:
        text = "".join(self.answer)
        output = self.output if self.is_typed else text
        return Outcome(
            EndReason.COMPLETED,
            text,
            self.usage,
            self.turns,
            output=output,
            stop_objection=self.stop_objection,
        )

    def parked(self, requests: Sequence[str]) -> Outcome:
        return Outcome(None, "", self.usage, self.turns, requests=requests)

    def failed(self, error: AgentCoreError) -> Outcome:
        reason = _REASONS.get(error.code, EndReason.FAILED)
        return Outcome(reason, self.text, self.usage, self.turns, ErrorPayload.of(error))

    def cancelled(self, path: Sequence[Node]) -> Outcome:
        in_tools = bool(path) and (path[-1].role is Role.TOOL or bool(path[-1].calls))
        reason = EndReason.ABORTED_TOOLS if in_tools else EndReason.ABORTED_STREAMING
        return Outcome(reason, self.text, self.usage, self.turns)


def resting_node(path: Sequence[Node], complete: int = 0) -> Node | None:
    """Return the node to continue at: the last one with nothing unfinished before it.

    The first `complete` nodes are known to have nothing unfinished.

    A turn with a call that was cut short while it ran is left out as a whole, unless a call hands
    over what it had; calls that never began cut nothing short. An unanswered note to the model is
    left out, too.
    """
    open_calls: set[str] = set()
    cut_calls: set[str] = set()
    hands_over = False
    resting = path[complete - 1] if complete else None
    for node in islice(path, complete, None):  # perhaps a whole session: as little as possible
        if node.metadata and node.is_partial:
            if not (results := node.results):
                continue
            cut_calls.update(result.tool_call_id for result in results)
        elif "abort_reason" in node.metadata:
            hands_over = True
        for block in node.content:
            if isinstance(block, ToolCallBlock):
                open_calls.add(block.tool_call_id)
            elif isinstance(block, ToolResultBlock):
                open_calls.discard(block.tool_call_id)
        if open_calls or node.node_type is NodeType.SYSTEM_NOTE:
            continue
        if hands_over or not cut_calls:
            resting, hands_over = node, False
            cut_calls.clear()
    return resting


OnEnd = Callable[[Outcome], None]
"""Gets the outcome of a run before its closing event can be read."""


def ignore(outcome: Outcome) -> None:
    """Do nothing, for callers that await the outcome itself."""


def settle(
    journal: Journal, outcome: Outcome, on_end: OnEnd = ignore, *, began: bool = True
) -> Coroutine[Any, Any, Outcome]:
    """Write the end: loop event, closing event, the run's row and the node to continue from.

    A run that was cancelled before it `began` had no loop, and does not move the session. If a part
    of the run could not be stored, the run fails with the storage error and ends at the last stored
    node. An end that cannot be stored either is shown now and stored later.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the run is settled all the same.
    """
    journal.is_closing = True  # the rest of the journal is written together with the end
    return start_uncancelled(_settle(journal, outcome, on_end, began=began))


async def _settle(journal: Journal, outcome: Outcome, on_end: OnEnd, *, began: bool) -> Outcome:
    if outcome.error is not None:
        outcome = replace(outcome, error=_clean(journal, outcome.error))
    if outcome.stop_objection is not None:
        outcome = replace(outcome, stop_objection=journal.clean(outcome.stop_objection))
    try:
        end = _end(journal, outcome, began=began)
        await journal.close(end, on_stored=partial(on_end, outcome))
    except Exception as error:  # noqa: BLE001 - whatever it is, the run must have an end
        failed = _clean(journal, ErrorPayload.of(_as_core_error(error)))
        outcome = replace(outcome, end_reason=EndReason.FAILED, error=failed)
    else:
        return outcome
    end = _end(journal, outcome, began=began)
    try:
        await journal.close(end, on_stored=partial(on_end, outcome))
    except Exception:  # noqa: BLE001 - the first failure is the one that counts
        on_end(outcome)
        journal.close_later(end)
    return outcome


def _end(journal: Journal, outcome: Outcome, *, began: bool) -> JournalEnd:
    path, run_id = journal.path, journal.run.run_id
    mine = [node for node in islice(path, journal.complete, None) if node.run_id == run_id]
    if outcome.end_reason is None:
        return _pause(path, mine, outcome)
    resting = resting_node(path, journal.complete)
    payload = {
        "end_reason": outcome.end_reason,
        "turns": outcome.turns,
        "usage": outcome.usage.model_dump(exclude={"raw_usage"}),
    }
    if outcome.error is not None:
        payload["error"] = outcome.error.model_dump(mode="json")
    metadata, status = outcome.metadata, outcome.status
    payload |= metadata
    loop_event, run_event = _CLOSING[status]
    level = EventLevel.ERROR if status is RunStatus.FAILED else EventLevel.INFO
    events = [EventDraft(run_event, payload, level)]
    if began:
        events.insert(0, EventDraft(loop_event, {"end_reason": outcome.end_reason}, level))
    resting_id = resting.node_id if resting else None
    change = RunChange(
        status=status,
        start_node_id=mine[0].node_id if mine else None,
        end_node_id=resting_id,
        end_reason=outcome.end_reason,
        turn_count=outcome.turns,
        usage=outcome.usage,
        error=outcome.error,
        metadata=metadata or None,
        has_prompt_node=any(node.is_prompt for node in mine),
    )
    return JournalEnd(events, change, _AGENT_STATUS[status], resting_id)


def _pause(path: Sequence[Node], mine: Sequence[Node], outcome: Outcome) -> JournalEnd:
    """Return the pause of a waiting run, which has no closing event and continues where it is."""
    last_id = path[-1].node_id if path else None
    change = RunChange(
        status=outcome.status,
        start_node_id=mine[0].node_id if mine else None,
        end_node_id=last_id,
        turn_count=outcome.turns,
        usage=outcome.usage,
        has_prompt_node=True,
    )
    return JournalEnd((), change, AgentStatus.IDLE, last_id)


def _as_core_error(error: Exception) -> AgentCoreError:
    if isinstance(error, AgentCoreError):
        return error
    message = f"the end of the run could not be stored ({type(error).__name__})"
    return AgentCoreError(ErrorCode.INTERNAL_ERROR, message)


def _clean(journal: Journal, error: ErrorPayload | None) -> ErrorPayload | None:
    """Remove secrets from an error: it goes into the run's row and to its handle."""
    if error is None:
        return None
    facts = {"message": error.message, "details": error.details}
    clean = journal.clean(facts)
    return error if clean is facts else error.model_copy(update={**clean, "redacted": True})

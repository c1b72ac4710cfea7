"""Handles of runs: watch, wait, cancel, and get the result."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, Unpack, overload

from agent_core.aio import TaskStream, finish_uncancelled
from agent_core.api.arguments import checks_arguments, not_a_flag
from agent_core.errors import AgentCoreError, ArgumentError, ErrorCode
from agent_core.text import kind_of
from agent_core.types import (
    CLOSING_EVENTS,
    Budget,
    CancelResult,
    Decision,
    Draft,
    ErrorPayload,
    Node,
    OutputT,
    PermissionMode,
    ReasoningBlock,
    Role,
    RunMode,
    RunStatus,
    RuntimeEvent,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Usage,
    UserMessage,
)
from agent_core.types.values import Value

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from agent_core.extensions import Extension
    from agent_core.loop.guards import RunGuard
    from agent_core.loop.options import (
        AnswerFields,
        AnyAgent,
        AnyModel,
        AnyOutput,
        JsonSchema,
        Outputs,
        OutputType,
        RunOptions,
    )
    from agent_core.loop.validators import OutputValidator
    from agent_core.runtime.run import RunProgress
    from agent_core.runtime.runs import Runs
    from agent_core.runtime.sessions import Sessions
    from agent_core.tools.toolsets import AnyTool
    from agent_core.types import InspectResult, PermissionDecision
    from agent_core.types.budget import SharedBudget

_OtherT = TypeVar("_OtherT")

AnyDecision = (
    Decision | Literal["allow_once", "allow_for_session", "allow_reads", "allow_edits", "deny"]
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunResult(Value, Generic[OutputT]):
    """The result of a run.

    Attributes:
        output: the answer, in the requested type; the text if none was requested. While the run
            waits (`status`), and in the result of a `RunError`, there is none: it is None.
        text: the final answer as the model wrote it. For a run that failed or was cancelled,
            the part of the last reply that arrived, or "".
        status: `completed`; `waiting` for the answers to `pending_requests`; `failed` or
            `cancelled` in the result of a `RunError`.
        usage: tokens of all model calls of the run.
        cost: in US dollars; None if it is unknown.
        total_usage: tokens of the run with its children and theirs, the summaries of its history,
            and the choice of its memories. What a session does after its runs is in `costs`.
        total_cost: the same in US dollars; None if a part of it is unknown.
        session_id: id of the session, for the next message.
        run_id: id of the run, for `replay_run`.
        events: the events of the run, if requested with `events=True`.
        pending_requests: ids of the questions that the run waits for; it has no `output` yet.
        metadata: `stop_objection` is the last reason of a Stop hook or an extension, if the run
            completed despite it.
    """

    output: OutputT
    text: str
    status: RunStatus
    usage: Usage
    cost: float | None = None
    session_id: str
    run_id: str
    events: list[RuntimeEvent] | None = None
    pending_requests: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    total_usage: Usage = field(default_factory=Usage)

    @property
    def total_cost(self) -> float | None:
        """The cost of `total_usage`."""
        return self.total_usage.cost


class RunError(AgentCoreError):
    """A run did not complete: it failed, or was cancelled (`cancelled`).

    Args:
        code: the code of the run's error.
        message: the message of the run's error.
        result: the partial result of the run; its `output` is not an answer.
        retryable: another run may succeed without any change.
        details: the details of the run's error.
    """

    def __init__(
        self,
        code: ErrorCode | str,
        message: str,
        result: RunResult[Any],
        *,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code, message, retryable, details)
        self.result = result

    @classmethod
    def of(cls, error: ErrorPayload | None, result: RunResult[Any]) -> Self:
        """Build the error of a run that has ended with this result."""
        if error is None:
            message = f"the run {result.run_id} is {result.status}, not completed"
            return cls(ErrorCode.CANCELLED, message, result)
        retryable, details = error.retryable, error.details
        return cls(error.code, error.message, result, retryable=retryable, details=details)


@checks_arguments(but=("events", "result"))
class RunHandle(Generic[OutputT]):
    """One run. It continues whether or not it is watched."""

    def __init__(
        self,
        run: "RunProgress",
        runs: "Runs",
        sessions: "Sessions",
        *,
        after: int | None = None,
        options: "RunOptions[Any] | None" = None,
    ) -> None:
        self._run = run
        self._runs = runs
        self._sessions = sessions
        self._after = after
        self._options = options
        self._warnings = run.warnings

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._run.identity.run_id

    @property
    def session_id(self) -> str:
        """Id of the session the run belongs to."""
        return self._run.identity.session_id

    @property
    def agent_id(self) -> str:
        """Id of the agent that executes the run."""
        return self._run.identity.agent_id

    @property
    def mode(self) -> RunMode:
        """The mode the run was started in."""
        return self._run.identity.mode

    @property
    def permission_mode(self) -> PermissionMode:
        """The permission mode the run was started in."""
        return self._run.identity.permission_mode

    @property
    def status(self) -> RunStatus:
        """The current status of the run.

        For a run of another process it is the status that `events`, `wait` or `cancel` last found.
        """
        return self._run.status

    @property
    def is_for_workers(self) -> bool:
        """True if a worker executes the run, rather than the process that started it."""
        return self._run.is_for_workers

    @property
    def warnings(self) -> list[str]:
        """Warnings for the caller, for example that no worker is available to take the run."""
        return list(self._warnings)

    @property
    def error(self) -> ErrorPayload | None:
        """The error of a failed run; None while it runs and if it did not fail."""
        return self._run.outcome.error if self._run.outcome else None

    @property
    def result_text(self) -> str | None:
        """The final answer; None until the run has ended, and while it waits.

        For a run that failed or was cancelled it is the part of the last reply that arrived, or "".
        """
        outcome = self._run.outcome
        return None if outcome is None or outcome.end_reason is None else outcome.text

    @property
    def pending_requests(self) -> list[str]:
        """Ids of the questions that a run with the status `waiting` waits for."""
        return list(self._run.outcome.requests) if self._run.outcome else []

    @property
    def usage(self) -> Usage:
        """Tokens of all model calls of the run; zeros until it has ended."""
        return self._run.outcome.usage if self._run.outcome else Usage()

    def events(
        self, debug: bool = False, *, holds_run: bool = True
    ) -> AsyncGenerator[RuntimeEvent]:
        """Yield the events from this call on, up to the run's closing event; one reader at a time.

        Subscribing right after `start` misses nothing. A slow reader slows the run down. A reader
        that stops has no effect on the run, and another one may follow.

        A handle from `attach` yields the stored events after the requested number, followed by
        live events, for any number of readers, which do not slow the run down.

        Args:
            debug: also events of level `debug`.
            holds_run: False does not slow the run down: the events that a slow reader has not read
                are kept in memory.

        Raises:
            AgentCoreError: `validation_error`: this run's events already have a reader, or this is
                not the event loop of the runtime.
        """
        from agent_core.events.stream import Subscription  # noqa: PLC0415 - loaded by now

        self._runs.home.require()
        for name, given in (("debug", debug), ("holds_run", holds_run)):
            if not isinstance(given, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
                raise not_a_flag(name, given)
        events = self._runs.watch(self.run_id, after=self._after, debug=debug, holds_run=holds_run)
        is_here = self._runs.table.get(self.run_id) is not None
        if isinstance(events, Subscription):
            return events
        return TaskStream(events if is_here else self._followed(events))

    async def _followed(self, events: AsyncGenerator[RuntimeEvent]) -> AsyncGenerator[RuntimeEvent]:
        """Yield the events of a run of another process, and update the handle when it ends."""
        async with aclosing(events):
            async for event in events:
                if event.event_type in CLOSING_EVENTS:
                    self._run = await self._sessions.progress(self.run_id)
                yield event

    def partial_output(self) -> AsyncGenerator[OutputT]:
        """Yield the answer so far, whenever more of it is valid, and the complete answer last.

        Lists, dicts and TypedDicts grow as they arrive; a model or a dataclass appears once it has
        all its required fields; without an `output_type` the text is yielded. An incomplete answer
        is read like a complete one, but validators are only called for complete parts. A reply that
        calls tools, or that goes back to the model, is followed by the next one. If the run fails,
        the iteration ends; `result` says why. Leaving it has no effect on the run. It reads
        `events()`.

        Raises:
            AgentCoreError: `validation_error`: this run's events already have a reader.
        """
        return TaskStream(self._partial_output())

    async def _partial_output(self) -> AsyncGenerator[OutputT]:
        from agent_core.tools.prefixes import AnswerReader, PartialValues  # noqa: PLC0415
        from agent_core.types.event_details import (  # noqa: PLC0415 - for readers only
            AgentChanged,
            ModelAsked,
            ModelReplied,
            TextDelta,
        )

        expected = self._runs.expected_output(self.run_id)
        if expected is None and self._options is not None and not self._runs.table.get(self.run_id):
            expected = self._options.expected()
        values = PartialValues(AnswerReader(expected))
        is_cut_off = is_handed_over = False
        async with aclosing(self.events()) as events:
            async for event in events:
                match event.details:
                    case AgentChanged():
                        is_handed_over = True
                    case ModelAsked():
                        if is_handed_over:
                            expected, is_handed_over = (
                                self._runs.expected_output(self.run_id),
                                False,
                            )
                            values = PartialValues(AnswerReader(expected))
                        values.begin(continues=is_cut_off)
                    case ModelReplied(stop_reason=stop_reason):
                        is_cut_off = stop_reason == StopReason.MAX_TOKENS
                    case TextDelta(text=text, from_start=from_start):
                        for value in values.add(text, from_start=from_start):
                            yield value
                    case _:
                        pass
        if await self.wait() is RunStatus.COMPLETED:
            for value in values.end(self._output()):
                yield value

    async def wait(self) -> RunStatus:
        """Return the final status, once the run has ended and its end is stored.

        `waiting` means that the run has stopped at a question. After an answer, the call waits for
        the end of a run that a worker executes, or for its next question.

        Raises:
            AgentCoreError: `validation_error`: this is not the event loop of the runtime.
        """
        self._runs.home.require()
        status = await self._runs.wait(self._run.identity.run_id)
        await self._look(status)
        return status

    async def _look(self, status: RunStatus) -> None:
        """Read the run's outcome again, if the known one does not fit its status."""
        outcome = self._run.outcome
        # The run belongs, or belonged, to another process, or has waited for an answer.
        if outcome is None or outcome.status is not status or outcome.end_reason is None:
            self._run = await self._sessions.progress(self.run_id)

    def _output(self) -> Any:
        """Return the answer; if only its text is stored, parsed as the type given to `start`."""
        outcome = self._run.outcome
        output = None if outcome is None else outcome.output
        if outcome is None or output is None or self._options is None or outcome.is_handed_over:
            return output
        from agent_core.runtime.run import Run  # noqa: PLC0415 - loaded by now

        if isinstance(self._run, Run):
            return output
        expected = self._options.expected()
        if expected is None or expected.functions:  # what a function returned is not stored
            return output
        from agent_core.tools.base import OutputMisfitError  # noqa: PLC0415 - loaded by now

        try:
            return expected.read([outcome.text])
        except OutputMisfitError:  # perhaps a secret in it was removed
            return None

    async def result(self, *, events: bool = False) -> RunResult[OutputT]:
        """Return the result of the run, once it has ended or waits for an answer.

        Args:
            events: also collect the events from this call on, as `events()` yields them.

        Raises:
            RunError: the run failed or was cancelled.
            AgentCoreError: `validation_error`: `events` is set, and the events have a reader.
        """
        if not isinstance(events, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
            raise not_a_flag("events", events)
        seen = [event async for event in self.events()] if events else None
        status = await self.wait()
        result: RunResult[Any] = RunResult(
            output=self._output(),
            text=self.result_text or "",
            status=status,
            usage=self.usage,
            cost=self.usage.cost,
            session_id=self.session_id,
            run_id=self.run_id,
            events=seen,
            pending_requests=self.pending_requests,
            metadata=self._run.outcome.metadata if self._run.outcome else {},
            total_usage=await self._total_usage(),
        )
        if status not in {RunStatus.COMPLETED, RunStatus.WAITING}:
            raise RunError.of(self.error, result)
        return result

    async def _total_usage(self) -> Usage:
        """Return the usage with everything below the run; without a read if it is all its own."""
        run = self._run
        from agent_core.runtime.run import Run  # noqa: PLC0415 - loaded by now

        if isinstance(run, Run) and not (run.scope.spends_beside or run.is_continued):
            return self.usage
        return await self._sessions.total_usage(self.run_id)

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: None = None,
        **fields: "Unpack[AnswerFields]",
    ) -> "RunHandle[Any]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: "TypeForm[_OtherT]",
        **fields: "Unpack[AnswerFields]",
    ) -> "RunHandle[_OtherT]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: "Outputs[_OtherT]",
        **fields: "Unpack[AnswerFields]",
    ) -> "RunHandle[_OtherT]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: "AnyOutput",
        **fields: "Unpack[AnswerFields]",
    ) -> "RunHandle[Any]": ...

    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        always: bool = False,
        tools: "Sequence[AnyTool] | None" = None,
        deps: Any = None,
        guards: "Sequence[RunGuard]" = (),
        extensions: "Sequence[Extension]" = (),
        agents: "Sequence[AnyAgent[Any]]" = (),
        handoffs: "Sequence[AnyAgent[Any]]" = (),
        output_validators: "Sequence[OutputValidator]" = (),
        model: "AnyModel | None" = None,
        budget: "SharedBudget | None" = None,
        output_type: "OutputType[Any] | JsonSchema | None" = None,
    ) -> "RunHandle[Any]":
        """Answer a question of this run, like `AgentRuntime.answer`.

        Raises:
            StorageError: `approval_not_found`: the run has asked no such question.
            AgentCoreError, ConfigError: as for `AgentRuntime.answer`.
        """
        self._runs.home.require()
        return await answer_question(
            self._runs,
            self._sessions,
            request_id,
            decision,
            arguments=arguments,
            always=always,
            reason=reason,
            decided_by="sdk",
            run_id=self.run_id,
            tools=tools,
            deps=deps,
            guards=guards,
            extensions=extensions,
            agents=agents,
            handoffs=handoffs,
            output_validators=output_validators,
            model=model,
            budget=budget,
            output_type=output_type,
        )

    async def send(self, message: str | UserMessage) -> str:
        """Send a message to the run while it works.

        The message is stored when this returns. The model reads it after the results of the turn's
        tool calls, or, if the model has finished, in one more turn. The run's limits do not change:
        if it has no turn left, fails or is cancelled, the message is not delivered, and
        `AgentRuntime.waiting_messages` returns it. The events are `message_waiting`, and
        `message_created` with the same `message_id` when it is delivered.

        The message guards of the run check it first; hooks and extensions see it when it is
        delivered.

        Returns:
            The id of the message, for `take_back`.

        Raises:
            AgentCoreError: `run_ended`: start another run with it; `validation_error`: the message
                is empty, the run only summarises, or this is not the event loop of the runtime;
                `guard_stopped`.
            StorageError: it could not be stored.
        """
        self._runs.home.require()
        return await self._runs.send(self.run_id, user_draft(message))

    async def take_back(self, message_id: str) -> bool:
        """Take back a message that was sent to the run and not delivered.

        Returns:
            Whether it was taken back; False if it is delivered, or is being delivered.

        Raises:
            AgentCoreError: `validation_error`: the id is empty, or this is not the event loop of
                the runtime.
            StorageError: `run_not_found`.
        """
        self._runs.home.require()
        if not message_id.strip():
            raise ArgumentError("message_id is empty; is a variable not set?", "message_id")
        return await self._runs.take_back(self.run_id, message_id)

    async def cancel(self, *, after_turn: bool = False) -> CancelResult:
        """Cancel the run, and wait up to `runtime.cancel_timeout_ms` for its end.

        Everything that happened until then is stored when this returns. Calling it again, or after
        the end, has no effect.

        Args:
            after_turn: let the current turn finish: the model's reply and the calls in it. Their
                results are stored, and the run ends as cancelled; if the reply is the answer, the
                run completes. A run that waits for its turn or for an answer is cancelled at once.
                Cancelling without this still stops the run immediately.

        Raises:
            AgentCoreError: `validation_error`: this is not the event loop of the runtime.
        """
        self._runs.home.require()
        result = await self._runs.cancel(self.run_id, after_turn=after_turn)
        await self._look(result.status)
        return result

    async def node(self, node_id: str) -> Node:
        """Return a node that an event names, without strings that look like secrets.

        Raises:
            StorageError: `node_not_found`.
            AgentCoreError: `validation_error`: this is not the event loop of the runtime.
        """
        self._runs.home.require()
        return await self._sessions.node(node_id, self.session_id)

    def child_events(self, child_run_id: str, debug: bool = False) -> AsyncGenerator[RuntimeEvent]:
        """Yield a child run's stored events, then its live ones, up to its closing event.

        `child_agent_created` and `worker_dispatched` on this run's own stream name its children,
        and on a child's stream the children of that one, which can be watched here, too. Any number
        of readers may watch a child; slow readers, and readers that stop, do not affect it. Text
        streamed earlier arrives as one delta with `from_start`.

        Raises:
            StorageError: `run_not_found`: no such run, or it is not below this one.
            AgentCoreError: `validation_error`: this is not the event loop of the runtime.
        """
        self._runs.home.require()
        events = self._runs.watch_child(child_run_id, below=self.run_id, debug=debug)
        return TaskStream(events)

    async def inspect_child(
        self, child_run_id: str, include_sensitive: bool = False
    ) -> "InspectResult":
        """Return everything about a child run: its nodes, events, artifacts and model requests.

        Raises:
            StorageError: `run_not_found`: no such run, or it is not below this one.
            AgentCoreError: `validation_error`: this is not the event loop of the runtime.
        """
        self._runs.home.require()
        return await self._sessions.inspect_child(
            child_run_id, below=self.run_id, include_sensitive=include_sensitive
        )


async def answer_question(
    runs: "Runs",
    sessions: "Sessions",
    request_id: str,
    decision: "AnyDecision | PermissionDecision | bool",
    *,
    arguments: Mapping[str, Any] | None,
    always: bool = False,
    reason: str | None,
    decided_by: str,
    decider: str | None = None,
    run_id: str | None = None,
    session_id: str | None = None,
    **handed: Any,
) -> RunHandle[Any]:
    """Answer a question and return the user's run; see `AgentRuntime.answer`."""
    from agent_core.loop.option_checks import malformed_option  # noqa: PLC0415 - loaded by now
    from agent_core.loop.options import NO_OPTIONS, asked_options  # noqa: PLC0415 - loaded by now
    from agent_core.types import PermissionDecision  # noqa: PLC0415 - likewise

    runs.home.require()
    if isinstance(decision, PermissionDecision):
        reason = decision.reason if reason is None else reason
        always = always or decision.metadata.get("always") is True
        decision = decision.decision
    elif isinstance(decision, bool):
        decision = Decision.ALLOW_ONCE if decision else Decision.DENY
    try:
        chosen = Decision(decision)
    except ValueError:
        message = f"there is no decision {decision!r}; there are: {', '.join(Decision)}"
        raise ArgumentError(message, "decision") from None
    if not isinstance(reason, str | None):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
        raise malformed_option("reason", f"must be a text, not {kind_of(reason)}")
    fields = {name: value for name, value in handed.items() if value is not None and value != ()}
    given = asked_options(None, fields) if fields else NO_OPTIONS
    if isinstance(given.budget, Budget):
        raise malformed_option("budget", "must be a BudgetPool: a Budget is stored with its run")
    answered = await runs.answers.answer(
        request_id,
        chosen,
        arguments=arguments,
        always=always,
        reason=reason,
        by=decided_by,
        decider=decider,
        given=given,
        run_id=run_id,
        session_id=session_id,
    )
    options = given if given.output_type is not None else None
    return RunHandle(await sessions.progress(answered), runs, sessions, options=options)


def user_draft(message: object) -> Draft:
    """Return the draft of a message from a caller.

    Raises:
        ArgumentError: it is empty, or has content that no user sends.
    """
    match message:
        case str():
            content, metadata = message, dict[str, Any]()
        case UserMessage():
            content, metadata = message.content, message.metadata
        case _:
            reason = f"message must be a text or a UserMessage, not {kind_of(message)}"
            if isinstance(message, list):
                reason += "; earlier messages are given as history=[…]"
            raise ArgumentError(reason, "message")
    blocks = [TextBlock(text=content)] if isinstance(content, str) else content
    says_something = False
    for block in blocks:
        if isinstance(block, _NOT_A_USERS):
            reason = (
                f"a user's message cannot have a {block.type}; only models and tools write these"
            )
            raise ArgumentError(reason, "message")
        says_something |= not isinstance(block, TextBlock) or bool(block.text.strip())
    if not says_something:
        raise ArgumentError("the message is empty; say what to do", "message")
    return Draft(Role.USER, blocks, metadata=metadata)


_NOT_A_USERS = (ToolCallBlock, ToolResultBlock, ReasoningBlock)


async def await_result(handle: RunHandle[OutputT], *, events: bool) -> RunResult[OutputT]:
    """Return the result of a run, which is cancelled if the caller is."""
    try:
        return await handle.result(events=events)
    except asyncio.CancelledError:
        await finish_uncancelled(handle.cancel())
        raise

"""AG-UI: reads its requests, and writes the events of a run in its protocol.

The extra `ag-ui` installs the package of the protocol, `ag-ui-protocol`.
"""

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from agent_core.aio import TaskStream
from agent_core.api.handles import AnyDecision, RunHandle
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, validation_error
from agent_core.frontends import parts
from agent_core.frontends.json_patch import json_patch
from agent_core.frontends.parts import Answered, Asked, Part
from agent_core.installation import extra_command
from agent_core.providers import jsontext
from agent_core.tasks import TaskStatus
from agent_core.text.json_text import JsonSchema, table
from agent_core.types import (
    ContentBlock,
    Decision,
    ImageBlock,
    RunStatus,
    TextBlock,
    Usage,
    UserMessage,
    new_id,
)
from agent_core.types.fields import fault_in_words

try:
    from ag_ui.core import (
        PROTOCOL_VERSION,
        AssistantMessage,
        BaseEvent,
        CustomEvent,
        Interrupt,
        ReasoningEndEvent,
        ReasoningMessageContentEvent,
        ReasoningMessageEndEvent,
        ReasoningMessageStartEvent,
        ReasoningStartEvent,
        ResumeEntry,
        RunAgentInput,
        RunErrorEvent,
        RunFinishedCancelledOutcome,
        RunFinishedEvent,
        RunFinishedInterruptOutcome,
        RunFinishedSuccessOutcome,
        RunStartedEvent,
        StateDeltaEvent,
        StateSnapshotEvent,
        StepFinishedEvent,
        StepStartedEvent,
        TextMessageContentEvent,
        TextMessageEndEvent,
        TextMessageStartEvent,
        TokenUsage,
        ToolCallArgsEvent,
        ToolCallEndEvent,
        ToolCallResultEvent,
        ToolCallStartEvent,
        ToolMessage,
        UserMessage as AgUiUserMessage,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "ag_ui":
        raise
    what = f"AG-UI needs the extra ag-ui; to install it:\n{extra_command('ag-ui')}"
    raise ConfigError(ErrorCode.CONFIG_ERROR, what) from None

__all__ = ["APPROVAL", "HEADERS", "FindTasks", "events", "read_input", "stream"]

HEADERS: Mapping[str, str] = {"content-type": "text/event-stream", "cache-control": "no-cache"}
"""Headers of the response."""

APPROVAL = "tool_approval"
"""The reason of an interrupt that asks whether a call is allowed."""

_APPROVAL_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "decision": {"enum": [each.value for each in Decision]},
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "anyOf": [{"required": ["decision"]}, {"required": ["approved"]}],
    "additionalProperties": False,
}


def read_input(body: object) -> Asked:
    """Read the input that a client of AG-UI posts.

    Messages of the user, of the assistant and of tools are read, and the answers to interrupts;
    system and developer messages, state, context and tools of the front end are not.

    Raises:
        AgentCoreError: `validation_error`: it is not such an input, or has no message of the user.
    """
    try:
        asked = RunAgentInput.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = fault_in_words(".".join(map(str, first["loc"])), first)
        raise validation_error(f"the body is not an AG-UI input: {reason}") from None
    answers = [_read_answer(entry) for entry in asked.resume or ()]
    messages = list(asked.messages)
    last = messages[-1] if messages else None
    message = None
    if isinstance(last, AgUiUserMessage) and not answers:
        message = UserMessage(content=[*_content_of(last)])
        messages.pop()
    elif not answers:
        raise validation_error("the last message is not the user's, and no interrupt is answered")
    history = [read for each in messages for read in _read_message(each)]
    return Asked(
        thread_id=asked.thread_id,
        run_id=asked.run_id,
        message=message,
        history=history,
        answers=answers,
    )


FindTasks = Callable[[], Awaitable[Sequence[BaseModel]]]
"""Returns the Tasks of the session, those that have ended too."""


def events(
    handle: RunHandle[Any],
    *,
    thread_id: str | None = None,
    run_id: str | None = None,
    tasks: FindTasks | None = None,
    questions: parts.FindQuestions | None = None,
    has_results: Collection[str] = (),
    holds_run: bool = True,
) -> AsyncGenerator[BaseEvent]:
    """Yield the events of a run from this call on; it may be left at any point.

    A run that waits for an answer finishes with interrupts; the next input resumes them.

    Args:
        handle: the run.
        thread_id: the client's id of the conversation; the id of the session by default.
        run_id: the client's id of the run; the id of the run by default.
        tasks: shows the Tasks of the session as the state `{"tasks": […]}`, oldest first: those
            that are active now, and those that begin later.
        questions: finishes with interrupts also where the run waits for an answer and does not
            stop for it, with `[permissions] unattended = "wait"`.
        has_results: ids of calls whose results the client has already.
        holds_run: as for `RunHandle.events`.
    """
    writer = _Writer(thread_id or handle.session_id, run_id or handle.run_id, has_results)
    source = parts.read_parts(handle, questions=questions, holds_run=holds_run)
    state = _TaskState(tasks, handle.run_id) if tasks else None
    return TaskStream(_events(source, writer, state))


def stream(
    handle: RunHandle[Any], *, thread_id: str | None = None, run_id: str | None = None
) -> AsyncGenerator[str]:
    """Yield the events as server-sent events, for a response with `HEADERS`."""
    return TaskStream(_sent(events(handle, thread_id=thread_id, run_id=run_id)))


async def _sent(source: AsyncGenerator[BaseEvent]) -> AsyncGenerator[str]:
    async with aclosing(source) as found:
        async for event in found:
            yield f"data: {event.model_dump_json(by_alias=True)}\n\n"


async def _events(
    source: AsyncGenerator[Part], writer: "_Writer", state: "_TaskState | None"
) -> AsyncGenerator[BaseEvent]:
    yield writer.begin()
    if state is not None and (event := await state.begin()) is not None:
        yield event
    async with aclosing(source) as found:
        async for part in found:
            if not isinstance(part, parts.TasksChanged):
                for event in writer.write(part):
                    yield event
            elif state is not None and (event := await state.update()) is not None:
                yield event


_NOT_SHOWN = {"wal_path"}


class _TaskState:
    """The Tasks of a session as the state that front ends and agents share."""

    def __init__(self, find: FindTasks, run_id: str) -> None:
        self._find = find
        self._run_id = run_id
        self._past = set[str]()
        self._known: dict[str, Any] | None = None

    async def begin(self) -> BaseEvent | None:
        """Return the event with the active Tasks, if there are any."""
        every = await self._read()
        self._past = {
            each["task_id"]
            for each in every
            if TaskStatus(each["status"]).is_terminal and each["created_by_run_id"] != self._run_id
        }
        return self._show(every)

    async def update(self) -> BaseEvent | None:
        """Return the event with what has changed, if anything has."""
        return self._show(await self._read())

    async def _read(self) -> list[dict[str, Any]]:
        found = [each.model_dump(mode="json", exclude=_NOT_SHOWN) for each in await self._find()]
        return sorted(found, key=lambda each: (each["created_at"], each["task_id"]))

    def _show(self, every: list[dict[str, Any]]) -> BaseEvent | None:
        shown = [each for each in every if each["task_id"] not in self._past]
        before, state = self._known, {"tasks": shown}
        if before is None and not shown:
            return None
        self._known = state
        if before is None:
            return StateSnapshotEvent(snapshot=state)
        delta = [*json_patch(before, state)]
        return StateDeltaEvent.model_validate({"delta": delta}) if delta else None


class _Writer:
    """Writes the parts of one run as events."""

    def __init__(self, thread_id: str, run_id: str, has_results: Collection[str]) -> None:
        self._thread_id, self._run_id = thread_id, run_id
        self._has_results = has_results
        self._message_id: str | None = None
        self._step = 0
        self._questions: list[parts.Question] = []

    def begin(self) -> BaseEvent:
        """Return the first event."""
        return RunStartedEvent(
            thread_id=self._thread_id, run_id=self._run_id, protocol_version=PROTOCOL_VERSION
        )

    def write(self, part: Part) -> Iterator[BaseEvent]:
        """Yield the events of a part."""
        match part:
            case parts.StepBegins():
                self._step += 1
                self._message_id = None
                yield StepStartedEvent(step_name=f"turn {self._step}")
            case parts.StepEnds():
                yield StepFinishedEvent(step_name=f"turn {self._step}")
            case parts.TextBegins() | parts.TextGrows() | parts.TextEnds():
                yield from self._write_text(part)
            case parts.SourceFound(url, title):
                yield CustomEvent(name="source", value={"url": url, "title": title})
            case parts.CallMade(call_id, name, arguments):
                yield ToolCallStartEvent(
                    tool_call_id=call_id, tool_call_name=name, parent_message_id=self._message_id
                )
                written = jsontext.dump_text(dict(arguments))
                yield ToolCallArgsEvent(tool_call_id=call_id, delta=written)
                yield ToolCallEndEvent(tool_call_id=call_id)
            case parts.CallEnded(call_id, text=text) if call_id not in self._has_results:
                message_id = new_id("msg")
                yield ToolCallResultEvent(
                    message_id=message_id, tool_call_id=call_id, content=text, role="tool"
                )
            case parts.Question():
                self._questions.append(part)
            case parts.Ended():
                yield self._end(part)
            case _:
                pass

    def _write_text(
        self, part: parts.TextBegins | parts.TextGrows | parts.TextEnds
    ) -> Iterator[BaseEvent]:
        part_id = part.part_id
        match part:
            case parts.TextBegins(is_reasoning=True):
                yield ReasoningStartEvent(message_id=part_id)
                yield ReasoningMessageStartEvent(message_id=part_id, role="reasoning")
            case parts.TextBegins():
                self._message_id = part_id
                yield TextMessageStartEvent(message_id=part_id, role="assistant")
            case parts.TextGrows(is_reasoning=True, text=text):
                yield ReasoningMessageContentEvent(message_id=part_id, delta=text)
            case parts.TextGrows(text=text):
                yield TextMessageContentEvent(message_id=part_id, delta=text)
            case parts.TextEnds(is_reasoning=True):
                yield ReasoningMessageEndEvent(message_id=part_id)
                yield ReasoningEndEvent(message_id=part_id)
            case parts.TextEnds():
                yield TextMessageEndEvent(message_id=part_id)

    def _end(self, ended: parts.Ended) -> BaseEvent:
        usage = [_usage(ended.usage)]
        match ended.status:
            case RunStatus.FAILED:
                return RunErrorEvent(message=ended.error, code=ended.code, usage=usage)
            case RunStatus.CANCELLED:
                outcome: Any = RunFinishedCancelledOutcome(type="cancelled")
            case RunStatus.WAITING:
                asked = [*map(_interrupt, self._questions)]
                outcome = RunFinishedInterruptOutcome(type="interrupt", interrupts=asked)
            case _:
                outcome = RunFinishedSuccessOutcome(type="success")
        return RunFinishedEvent(
            thread_id=self._thread_id, run_id=self._run_id, outcome=outcome, usage=usage
        )


def _interrupt(question: parts.Question) -> Interrupt:
    return Interrupt(
        id=question.request_id,
        reason=APPROVAL,
        message=f"{question.tool_name}: {question.summary}",
        tool_call_id=question.call_id or None,
        response_schema=_APPROVAL_SCHEMA,
    )


def _usage(usage: Usage) -> TokenUsage:
    return TokenUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cached_input_tokens=usage.cache_read_tokens,
        cache_write_input_tokens=usage.cache_write_tokens,
    )


def _read_answer(entry: ResumeEntry) -> Answered:
    """Read the answer to an interrupt: a decision, or whether the call is allowed.

    Raises:
        AgentCoreError: `validation_error`: it is neither, or has other fields.
    """
    request_id, payload = entry.interrupt_id, cast("object", entry.payload)
    fields = table(payload)
    reason, arguments = fields.get("reason"), fields.get("arguments")
    if entry.status == "cancelled":
        reason = reason if isinstance(reason, str) else None
        return Answered.of(request_id, reason, is_allowed=False)
    match fields.get("decision"), fields.get("approved", payload):
        case str(decision), _:
            pass
        case None, bool(is_allowed):
            decision = Answered.of(request_id, None, is_allowed=is_allowed).decision
        case _:
            raise _no_answer(request_id)
    if unknown := [*fields.keys() - _APPROVAL_SCHEMA["properties"].keys()]:
        raise validation_error(f"the payload for {request_id} has an unknown field: {min(unknown)}")
    if not isinstance(reason, str | None):
        raise _no_answer(request_id)
    if not isinstance(arguments, Mapping | None):
        raise validation_error(f"the arguments in the payload for {request_id} are not an object")
    return Answered(
        request_id=request_id,
        decision=cast("AnyDecision", decision),  # which `answer` checks
        reason=reason,
        arguments=cast("Mapping[str, Any] | None", arguments),
    )


def _no_answer(request_id: str) -> AgentCoreError:
    what = "is not an answer; give decision, and optionally reason and arguments"
    return validation_error(f"the payload for {request_id} {what}")


def _read_message(message: object) -> Iterator[Mapping[str, Any]]:
    """Yield a message of the client as one for the option `history`."""
    match message:
        case AgUiUserMessage():
            yield {"role": "user", "content": [*_content_of(message)]}
        case AssistantMessage(content=content, tool_calls=calls):
            made = [call.model_dump(include={"id", "type", "function"}) for call in calls or ()]
            if content or made:
                yield {"role": "assistant", "content": content, "tool_calls": made}
        case ToolMessage(tool_call_id=call_id):
            yield {"role": "tool", "tool_call_id": call_id, "content": [*_content_of(message)]}
        case _:
            pass


def _content_of(message: AgUiUserMessage | ToolMessage) -> Iterator[ContentBlock]:
    if isinstance(message.content, str):
        yield TextBlock(text=message.content)
        return
    for part in message.content:
        if part.type == "text":
            yield TextBlock(text=part.text)
        elif part.type in {"image", "document"} and part.source.type == "data":
            yield ImageBlock(mime_type=part.source.mime_type, data=part.source.value)
        else:
            raise validation_error(
                f"a part of the type {part.type} is not given as text or as data"
            )

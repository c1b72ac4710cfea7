"""The parts of a run that a front end shows, in order; each adapter writes them in its protocol."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct, field

from agent_core.aio import TaskStream
from agent_core.api.handles import AnyDecision, RunHandle
from agent_core.context.messages import plain_text
from agent_core.types import (
    Decision,
    EventType,
    JsonBlock,
    Node,
    ReasoningBlock,
    Role,
    RunStatus,
    RuntimeEvent,
    Usage,
    UserMessage,
    new_id,
)
from agent_core.types.event_details import (
    Delta,
    ModelReplied,
    PermissionRequested,
    ReasoningDelta,
    TextDelta,
    ToolDenied,
    ToolEnded,
)

__all__ = [
    "Answered",
    "Asked",
    "CallEnded",
    "CallMade",
    "Ended",
    "FindQuestions",
    "Part",
    "Question",
    "SourceFound",
    "StepBegins",
    "StepEnds",
    "TasksChanged",
    "TextBegins",
    "TextEnds",
    "TextGrows",
    "Waits",
    "read_parts",
]


class Asked(Struct, frozen=True, kw_only=True):
    """The request of a front end.

    Attributes:
        thread_id: the id that the front end has given to the conversation.
        run_id: the id that the front end has given to the run; None if its protocol has none.
        message: the user's last message; None if the request only answers questions.
        history: the messages before it, for the option `history`; without system messages, which
            are the program's to give.
        answers: answers to the questions that the last run waits for.
        message_id: the id of the message that the answers are in, which the run continues.
    """

    thread_id: str
    message: UserMessage | None = None
    history: Sequence[Mapping[str, Any]] = ()
    answers: Sequence["Answered"] = ()
    message_id: str | None = None
    run_id: str | None = None


class Answered(Struct, frozen=True, kw_only=True):
    """The user's answer to a question.

    Attributes:
        request_id: the question.
        decision: as for `AgentRuntime.answer`.
        reason: for the model, if the call is denied.
        arguments: replace the arguments of the call.
    """

    request_id: str
    decision: AnyDecision
    reason: str | None = None
    arguments: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, request_id: str, reason: str | None, *, is_allowed: bool) -> "Answered":
        """Return the answer of a front end that only knows yes and no."""
        decision = Decision.ALLOW_ONCE if is_allowed else Decision.DENY
        return cls(request_id=request_id, decision=decision, reason=reason)

    @property
    def is_allowed(self) -> bool:
        """Return whether the call is allowed."""
        return self.decision != Decision.DENY


class TextBegins(Struct, frozen=True):
    """A text, or with `is_reasoning` a thought, of the message begins."""

    part_id: str
    is_reasoning: bool


class TextGrows(Struct, frozen=True):
    """More of a text or a thought."""

    part_id: str
    is_reasoning: bool
    text: str


class TextEnds(Struct, frozen=True):
    """A text or a thought is complete."""

    part_id: str
    is_reasoning: bool


class StepBegins(Struct, frozen=True):
    """The model is asked."""


class StepEnds(Struct, frozen=True):
    """The model has replied, and its calls have ended."""


class SourceFound(Struct, frozen=True):
    """A source that the service of the model has cited."""

    url: str
    title: str


class CallMade(Struct, frozen=True):
    """A complete tool call, by its canonical name."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]


class CallEnded(Struct, frozen=True):
    """The result of a call: `output` is JSON data, `text` the same as a text."""

    call_id: str
    output: Any
    text: str
    is_error: bool
    is_denied: bool


class Question(Struct, frozen=True):
    """A question about a call that the run waits for; the next request answers it."""

    request_id: str
    call_id: str
    tool_name: str
    summary: str


class Waits(Struct, frozen=True):
    """The run has asked a question; it may continue within this stream."""

    question: Question


class TasksChanged(Struct, frozen=True):
    """A Task of the session may have changed."""


class Ended(Struct, frozen=True):
    """The end of the stream; `error` is the reason of a failed run."""

    status: RunStatus
    text: str = ""
    error: str = ""
    code: str = ""
    usage: Usage = field(default_factory=Usage)


Part = (
    TextBegins
    | TextGrows
    | TextEnds
    | StepBegins
    | StepEnds
    | SourceFound
    | CallMade
    | CallEnded
    | Question
    | Waits
    | TasksChanged
    | Ended
)
"""A part of a run."""

FindQuestions = Callable[[], Awaitable[Sequence[Question]]]
"""Returns the open questions of a run."""


def read_parts(
    handle: RunHandle[Any],
    *,
    questions: FindQuestions | None = None,
    holds_run: bool = True,
) -> AsyncGenerator[Part]:
    """Yield the parts of a run from this call on; the last one is its end, or its wait.

    It reads `handle.events()`, and may be left at any point.

    Args:
        handle: the run.
        questions: ends the parts also where the run waits for an answer and does not stop for it.
        holds_run: as for `RunHandle.events`.
    """
    events = handle.events(debug=True, holds_run=holds_run)
    return TaskStream(_parts(handle, events, questions))


async def _parts(
    handle: RunHandle[Any],
    source: AsyncGenerator[RuntimeEvent],
    questions: FindQuestions | None,
) -> AsyncGenerator[Part]:
    reader = _Reader()
    asked: Sequence[Question] = ()
    async with aclosing(_with_questions(source, questions) if questions else source) as events:
        async for event in events:
            if not isinstance(event, RuntimeEvent):
                asked = event
                break
            node = None
            if event.node_id is not None and event.event_type in _WITH_NODES:
                node = await handle.node(event.node_id)
            for part in reader.read(event, node):
                yield part
    for part in reader.end_step():
        yield part
    if asked:
        for question in asked:
            yield question
        yield Ended(RunStatus.WAITING)
        return
    status = await handle.wait()
    if status is RunStatus.WAITING and questions:
        reader.questions |= {each.request_id: each for each in await questions()}
    for request_id in handle.pending_requests:
        if (question := reader.questions.get(request_id)) is not None:
            yield question
        else:  # asked before this reader came
            yield Question(request_id, "", "", "")
    error = handle.error
    yield Ended(
        status,
        handle.result_text or "",
        error.message if error else "",
        str(error.code) if error else "",
        handle.usage,
    )


async def _with_questions(
    source: AsyncGenerator[RuntimeEvent], questions: FindQuestions
) -> AsyncGenerator[RuntimeEvent | Sequence[Question]]:
    """Yield events, and as the last item the questions that a quiet run waits for, if it does."""
    upcoming = asyncio.create_task(_next(source))
    pause = _QUIET_S
    try:
        while True:
            await asyncio.wait([upcoming], timeout=pause)
            if upcoming.done():
                if (event := upcoming.result()) is None:
                    return
                yield event
                upcoming, pause = asyncio.create_task(_next(source)), _QUIET_S
            elif found := await questions():
                yield found
                return
            else:
                pause = min(pause * 2, _MAX_PAUSE_S)
    finally:
        upcoming.cancel()
        await asyncio.wait([upcoming])
        if not upcoming.cancelled():
            upcoming.exception()  # retrieved, as the reader has stopped
        await source.aclose()


async def _next(source: AsyncGenerator[RuntimeEvent]) -> RuntimeEvent | None:
    return await anext(source, None)


_OF_TASKS = frozenset(
    each for each in EventType if each.startswith(("task_", "worker_", "child_agent_"))
)

_QUIET_S, _MAX_PAUSE_S = 0.3, 2.0
"""Seconds between looks at the questions of a run that does nothing visible."""

_WITH_NODES = frozenset(
    {
        EventType.MESSAGE_COMPLETED,
        EventType.TOOL_COMPLETED,
        EventType.TOOL_FAILED,
        EventType.TOOL_DENIED,
    }
)


class _Reader:
    """Makes parts of events.

    Attributes:
        questions: the questions seen so far, by their ids.
    """

    def __init__(self) -> None:
        self.questions: dict[str, Question] = {}
        self._open: tuple[str, bool] | None = None
        self._seen = _nothing_seen()
        self._in_step = False
        self._has_replied = False

    def read(self, event: RuntimeEvent, node: Node | None) -> Iterator[Part]:
        """Yield the parts of an event; `node` is the one that it announces."""
        call_id = event.tool_call_id or ""
        match event.details:
            case TextDelta() | ReasoningDelta() as delta:
                if not self._has_replied:  # otherwise the node brings what was not seen
                    yield from self._grow(delta)
            case ModelReplied(citations=citations):
                yield from self._end_text()
                self._has_replied = True
                for source in citations:
                    yield SourceFound(source.url, source.title)
            case PermissionRequested(request_id=request_id) as asked:
                summary = asked.args_summary or asked.summary
                question = Question(request_id, call_id, asked.tool_name, summary)
                self.questions[request_id] = question
                yield Waits(question)
            case ToolEnded() as ended if node is not None:
                yield _ended(call_id, node, ended)
            case _ if event.event_type is EventType.MODEL_STARTED:
                yield from self.end_step()
                yield StepBegins()
                self._in_step, self._has_replied = True, False
                self._seen = _nothing_seen()
            case _ if node is not None and node.role is Role.ASSISTANT:
                yield from self._take_reply(node)
            case _ if event.event_type in _OF_TASKS:
                yield TasksChanged()
            case _:
                pass

    def end_step(self) -> Iterator[Part]:
        """Yield the end of the step under way, if there is one."""
        yield from self._end_text()
        if self._in_step:
            yield StepEnds()
        self._in_step = False

    def _grow(self, delta: Delta) -> Iterator[Part]:
        is_reasoning, text = isinstance(delta, ReasoningDelta), delta.text
        if delta.from_start:  # the whole text of its kind so far
            if text.startswith(self._seen[is_reasoning]):
                text = text.removeprefix(self._seen[is_reasoning])
            else:
                yield from self._end_text()
                self._seen[is_reasoning] = ""
        if not text:
            return
        if self._open is not None and self._open[1] is not is_reasoning:
            yield from self._end_text()
        if self._open is None:
            self._open = new_id("part"), is_reasoning
            yield TextBegins(*self._open)
        self._seen[is_reasoning] += text
        yield TextGrows(*self._open, text)

    def _end_text(self) -> Iterator[Part]:
        if self._open is not None:
            yield TextEnds(*self._open)
        self._open = None

    def _take_reply(self, node: Node) -> Iterator[Part]:
        """Yield the calls of a reply, and what was not seen of it as it came."""
        yield from self._end_text()
        thought = "\n\n".join(
            block.text for block in node.content if isinstance(block, ReasoningBlock) and block.text
        )
        if thought and not any(self._seen.values()):
            yield from _whole(thought, is_reasoning=True)
        seen = self._seen[False]
        if node.text != seen and node.text.startswith(seen):
            yield from _whole(node.text.removeprefix(seen), is_reasoning=False)
        self._seen = _nothing_seen()
        for call in node.calls:
            yield CallMade(call.tool_call_id, call.name, call.arguments)


def _nothing_seen() -> dict[bool, str]:
    """Return the text of a message seen so far, by whether it is reasoning."""
    return {True: "", False: ""}


def _whole(text: str, *, is_reasoning: bool) -> Iterator[Part]:
    part_id = new_id("part")
    yield TextBegins(part_id, is_reasoning)
    yield TextGrows(part_id, is_reasoning, text)
    yield TextEnds(part_id, is_reasoning)


def _ended(call_id: str, node: Node, ended: ToolEnded) -> CallEnded:
    result = next((each for each in node.results if each.tool_call_id == call_id), None)
    if result is None:
        return CallEnded(call_id, "", "", ended.is_error, isinstance(ended, ToolDenied))
    text = plain_text(result.content)
    if result.error is not None and result.error.message not in text:
        text = f"{result.error.message}\n{text}".strip()
    data = result.content[0] if len(result.content) == 1 else None
    output = data.data if isinstance(data, JsonBlock) and not result.is_error else text
    return CallEnded(call_id, output, text, result.is_error, isinstance(ended, ToolDenied))

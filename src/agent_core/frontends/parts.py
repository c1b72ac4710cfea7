"""The parts of a run that a front end shows, in order; each adapter writes them in its protocol."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct, field

from agent_core.aio import TaskStream
from agent_core.api.handles import RunHandle
from agent_core.context.messages import plain_text
from agent_core.providers.requests import wire_name
from agent_core.types import (
    EventType,
    JsonBlock,
    Node,
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


class Asked(Struct, frozen=True, kw_only=True):
    """The request of a front end.

    Attributes:
        thread_id: the id that the front end has given to the conversation.
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


class Answered(Struct, frozen=True, kw_only=True):
    """The user's answer to a question: whether the call is allowed, and the reason."""

    request_id: str
    is_allowed: bool
    reason: str | None = None


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
    """A text or a thought is whole."""

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
    """A whole call of a tool."""

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
    | Ended
)


def read_parts(handle: RunHandle[Any]) -> AsyncGenerator[Part]:
    """Yield the parts of a run from this call on; the last one is its end, or its wait.

    It reads `handle.events()`, and may be left at any point.
    """
    return TaskStream(_parts(handle, handle.events()))


async def _parts(
    handle: RunHandle[Any], source: AsyncGenerator[RuntimeEvent]
) -> AsyncGenerator[Part]:
    reader = _Reader()
    async with aclosing(source) as events:
        async for event in events:
            node = None
            if event.node_id is not None and event.event_type in _WITH_NODES:
                node = await handle.node(event.node_id)
            for part in reader.read(event, node):
                yield part
    for part in reader.end_step():
        yield part
    status = await handle.wait()
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
        self._shown = ""
        self._has_text = False
        self._in_step = False

    def read(self, event: RuntimeEvent, node: Node | None) -> Iterator[Part]:
        """Yield the parts of an event; `node` is the one that it announces."""
        call_id = event.tool_call_id or ""
        match event.details:
            case TextDelta() | ReasoningDelta() as delta:
                yield from self._grow(delta)
            case ModelReplied(citations=citations):
                yield from self._end_text()
                for source in citations:
                    yield SourceFound(source.url, source.title)
            case PermissionRequested(request_id=request_id) as asked:
                summary = asked.args_summary or asked.summary
                self.questions[request_id] = Question(
                    request_id, call_id, wire_name(asked.tool_name), summary
                )
            case ToolEnded() as ended if node is not None:
                yield _ended(call_id, node, ended)
            case _ if event.event_type is EventType.MODEL_STARTED:
                yield from self.end_step()
                yield StepBegins()
                self._in_step, self._has_text = True, False
            case _ if node is not None and node.role is Role.ASSISTANT:
                yield from self._take_reply(node)
            case _:
                pass

    def end_step(self) -> Iterator[Part]:
        """Yield the end of the step under way, if there is one."""
        yield from self._end_text()
        if self._in_step:
            yield StepEnds()
        self._in_step = False

    def _grow(self, delta: Delta) -> Iterator[Part]:
        is_reasoning = isinstance(delta, ReasoningDelta)
        text = delta.text
        if self._open is not None and self._open[1] is not is_reasoning:
            yield from self._end_text()
        if delta.from_start and self._open is not None:  # replaces what was shown
            if text.startswith(self._shown):
                text = text.removeprefix(self._shown)
            else:
                yield from self._end_text()
        if self._open is None:
            self._open = new_id("part"), is_reasoning
            yield TextBegins(*self._open)
        self._has_text |= not is_reasoning
        self._shown += text
        if text:
            yield TextGrows(*self._open, text)

    def _end_text(self) -> Iterator[Part]:
        if self._open is not None:
            yield TextEnds(*self._open)
        self._open, self._shown = None, ""

    def _take_reply(self, node: Node) -> Iterator[Part]:
        """Yield the calls of a reply, and its text if none of it was seen as it came."""
        yield from self._end_text()
        if not self._has_text and node.text:
            part_id = new_id("part")
            yield TextBegins(part_id, False)
            yield TextGrows(part_id, False, node.text)
            yield TextEnds(part_id, False)
        self._has_text = False
        for call in node.calls:
            yield CallMade(call.tool_call_id, wire_name(call.name), call.arguments)


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

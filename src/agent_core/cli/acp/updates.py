"""The events of a session as an editor shows them. Live and stored events use the same code."""

import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from acp.schema import (
    AgentMessageChunk,
    AgentThoughtChunk,
    ContentToolCallContent,
    Cost,
    FileEditToolCallContent,
    ImageContentBlock,
    TerminalToolCallContent,
    TextContentBlock,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolKind,
    UsageUpdate,
    UserMessageChunk,
)
from msgspec import Struct, field

from agent_core.events.projection import Call, PlacedEvent, Projection
from agent_core.history.words import (
    left_out_line,
    meaning_of,
    objection_line,
    remark_line,
)
from agent_core.text import lines_of_diff, plural, shortened
from agent_core.text.json_text import shown_json
from agent_core.tools.patch import changes_of
from agent_core.types import (
    ContentBlock,
    EventType,
    ImageBlock,
    JsonBlock,
    Node,
    NodeType,
    ReasoningBlock,
    Role,
    RuntimeEvent,
    TextBlock,
    new_id,
)
from agent_core.types.event_details import (
    ContextBuilt,
    Delta,
    ModelAsked,
    ReasoningDelta,
    RunEnded,
    TextDelta,
    ToolCompleted,
    ToolEnded,
    ToolProgress,
    ToolStarted,
)

Update: TypeAlias = (
    AgentMessageChunk
    | AgentThoughtChunk
    | ToolCallProgress
    | ToolCallStart
    | UsageUpdate
    | UserMessageChunk
)
ToolContent: TypeAlias = list[
    ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent
]

MAX_CONTENT = 16_000
"""Characters of one result that are shown; the model has read the whole of it."""

_BEGIN_MESSAGES = {EventType.MODEL_STARTED, EventType.MODEL_RETRY}
_NOT_EXACT = "An exact diff cannot be shown. Its text"
_TICKS = re.compile("`+")
_KINDS = frozenset(cast("tuple[str, ...]", get_args(ToolKind)))
_SPEAK_FOR_THEMSELVES = {"delete", "edit", "execute", "move"}
"""Kinds of calls whose summary alone describes them."""


class Screen:
    """The parts of a session that an editor has been shown, whatever run they came from.

    Attributes:
        calls: the open calls.
        window: tokens of the last request, and of the window.
        cost: of the session.
    """

    def __init__(self) -> None:
        self.calls = Projection()
        self.window: tuple[int, int] | None = None
        self.cost: Cost | None = None

    def usage(self) -> Iterator[UsageUpdate]:
        """Yield how full the window is, and the cost of the session, as far as they are known."""
        if self.window is not None:
            used, size = self.window
            yield UsageUpdate(session_update="usage_update", used=used, size=size, cost=self.cost)

    def id_of(self, agent_id: str, tool_call_id: str) -> str | None:
        """Return the editor's id for a call; None if it does not know the call."""
        known = self.calls.call(agent_id, tool_call_id)
        return known.call_id if known else None

    def close_calls(self, asked: Collection[tuple[str, str]]) -> Iterator[Update]:
        """End the calls that a dead process has left open; calls with a question stay open."""
        for key, call in self.calls.open_calls:
            if key not in asked:
                yield _progress(call.call_id, status="failed")


class _Streamed(Struct):
    """The text of a message so far, which arrives in pieces."""

    pieces: list[str] = field(default_factory=list[str])
    characters: int = 0

    def add(self, delta: Delta) -> str:
        """Add a piece, which may repeat the text from its start; return the new part of it."""
        text = delta.text[self.characters :] if delta.from_start else delta.text
        self.pieces.append(text)
        self.characters += len(text)
        return text

    def rest(self, text: str) -> str:
        """Return the part of the complete text that did not arrive: a slow reader misses pieces."""
        return text[self.characters :] if text.startswith("".join(self.pieces)) else ""


class Translation:
    """Makes updates of the events of one run, in their order.

    A message has the id of the event that has begun it, live and stored; a message without such an
    event, as in a fork, has the id of its node.

    Args:
        project: folder at which relative paths start.
        screen: what the editor has been shown; all runs of a session share it.
        is_child: show the calls only.
        shows_prompt: show the user's message, too, because it was not sent in this editor.
    """

    def __init__(
        self,
        project: Path,
        screen: Screen | None = None,
        *,
        is_child: bool = False,
        shows_prompt: bool = False,
    ) -> None:
        self._project = project
        self._screen = screen or Screen()
        self._is_child = is_child
        self._shows_prompt = shows_prompt
        self._begun = ""
        self._said, self._thought = _Streamed(), _Streamed()

    def needs_node(self, event: RuntimeEvent) -> bool:
        """Return whether a live event has to be shown with its node."""
        if self._is_child or event.node_id is None:
            return False
        is_prompt = self._shows_prompt and event.event_type is EventType.MESSAGE_CREATED
        is_reply = event.event_type is EventType.MESSAGE_COMPLETED
        return is_prompt or is_reply or isinstance(event.details, ToolEnded)

    def note(self, event: RuntimeEvent) -> None:
        """Remember an event that was shown before."""
        if event.event_type in _BEGIN_MESSAGES:
            self._begun = event.event_id
            self._said, self._thought = _Streamed(), _Streamed()

    def updates(self, event: RuntimeEvent, node: Node | None = None) -> Iterator[Update]:
        """Yield the updates that show a live event."""
        return self._of_placed(self._screen.calls.take(event, node))

    def stored(self, event: RuntimeEvent, node: Node | None) -> Iterator[Update]:
        """Yield the updates that show a stored event, before anything else is on the screen.

        A call is only shown if the reply that makes it was.
        """
        call_id = event.tool_call_id
        if call_id is not None and self._screen.calls.call(event.agent_id, call_id) is None:
            return
        self.note(event)
        if meaning_of(event.event_type).is_remark:
            return
        placed = self._screen.calls.take(event, node)
        if event.event_type is EventType.CONTEXT_BUILT:
            deque(self._of_placed(placed), maxlen=0)  # only the last one is shown, in the end
        elif node is None or event.event_type is not EventType.MESSAGE_CREATED:
            yield from self._of_placed(placed)
        elif _is_prompt(node):
            yield from _of_prompt(node)
        elif node.node_type is NodeType.MESSAGE and node.role is Role.ASSISTANT:
            yield from self._of_reply(node)
        for call in placed.answered:  # of a session that was forked, without events of its calls
            is_error = call.result is not None and call.result.is_error
            content = self._result(ToolEnded(message=call.end.message), node)
            yield _progress(
                call.call_id, status="failed" if is_error else "completed", content=content
            )

    def _of_placed(self, placed: PlacedEvent) -> Iterator[Update]:
        event = placed.event
        if event.tool_call_id is not None:
            if placed.call is not None:
                yield from self._of_call(placed, placed.call)
            return
        if self._is_child:
            return
        self.note(event)
        if meaning_of(placed.kind).is_remark:
            yield _thought(f"{remark_line(placed)}\n", event.event_id)
            return
        match placed.details:
            case ModelAsked() as asked if asked.left_out:
                yield _thought(f"{left_out_line(asked)}\n", event.event_id)
            case TextDelta() as delta if text := self._said.add(delta):
                yield _said(text, self._message_id())
            case ReasoningDelta() as delta if text := self._thought.add(delta):
                yield _thought(text, f"{self._message_id()}-thought")
            case ContextBuilt(use=use, budget=budget):
                self._screen.window = use.total, budget.window
                yield from self._screen.usage()
            case RunEnded(stop_objection=objection) if objection:
                yield _said(f"\n\n{objection_line(objection)}", event.event_id)
            case _ if placed.kind is EventType.MESSAGE_COMPLETED and placed.node is not None:
                yield from self._of_reply(placed.node)
            case _ if self._shows_prompt and placed.node is not None and _is_prompt(placed.node):
                yield from _of_prompt(placed.node)
            case _:
                pass

    def _message_id(self, node_id: str = "") -> str:
        self._begun = self._begun or node_id or new_id("msg")
        return self._begun

    def _of_reply(self, node: Node) -> Iterator[Update]:
        """The parts of a reply that were not streamed, and its calls."""
        message_id = self._message_id(node.node_id)
        thoughts = (block.text for block in node.content if isinstance(block, ReasoningBlock))
        if text := self._thought.rest("".join(thoughts)):
            yield _thought(text, f"{message_id}-thought")
        if text := self._said.rest(node.text):
            yield _said(text, message_id)
        for block in node.calls:
            if call := self._screen.calls.call(node.agent_id, block.tool_call_id):
                yield self._begin(call)
        self._begun, self._said, self._thought = "", _Streamed(), _Streamed()

    def _begin(self, call: Call) -> ToolCallStart:
        return ToolCallStart(
            session_update="tool_call",
            tool_call_id=call.call_id,
            title=_title(call),
            kind="other",
            status="pending",
            raw_input=call.block.arguments if call.block else None,
        )

    def _of_call(self, placed: PlacedEvent, call: Call) -> Iterator[Update]:
        if placed.is_first:
            yield self._begin(call)
        match placed.details:
            case ToolStarted(summary=summary) as started:
                kind = cast("ToolKind", started.kind if started.kind in _KINDS else "other")
                yield _progress(
                    call.call_id,
                    status="in_progress",
                    title=_title(call, summary, kind),
                    kind=kind,
                    locations=self._locations(started),
                )
            case ToolProgress(text=text):
                yield _progress(call.call_id, content=[text_content(text)])
            case ToolEnded() as ended:
                failed = not isinstance(ended, ToolCompleted) or bool(ended.exit_code)
                yield _progress(
                    call.call_id,
                    status="failed" if failed else "completed",
                    content=self._result(ended, placed.node),
                )
            case _:
                pass

    def _locations(self, started: ToolStarted) -> list[ToolCallLocation] | None:
        return [
            ToolCallLocation(path=str(self._project / each.path), line=each.line)
            for each in started.paths
        ] or None

    def _result(self, ended: ToolEnded, node: Node | None) -> ToolContent:
        content: ToolContent = []
        content += diff_content(
            ended.diff or "",
            self._project,
            is_whole=ended.diff_is_whole,
            hidden=ended.diff_hidden_lines,
        )
        if ended.message:
            content.append(text_content(ended.message))
        if hidden := ended.output_hidden_lines:
            content.append(text_content(f"… {plural(hidden, 'more line')} above"))
        if ended.output:
            content.append(text_content(fenced(ended.output)))
        if ended.exit_code:
            content.append(text_content(f"exit code {ended.exit_code}"))
        if not content and node is not None:
            texts = [_plain(block) for result in node.results for block in result.content]
            if text := "\n".join(filter(None, texts)):
                content.append(text_content(fenced(shortened(text, MAX_CONTENT))))
        return content


def diff_content(diff: str, project: Path, *, is_whole: bool, hidden: int = 0) -> ToolContent:
    """Return a diff hunk by hunk, as texts before and after; as it is, if it is not exact.

    Args:
        diff: a unified diff.
        project: folder at which relative paths start.
        is_whole: nothing of it was cut or replaced.
        hidden: how many lines follow.
    """
    if not diff:
        return []
    changes = changes_of(diff) if is_whole else None
    if changes is not None:
        return [
            FileEditToolCallContent(
                type="diff",
                path=str(project / each.path),
                old_text=each.before,
                new_text=each.after,
            )
            for each in changes
        ]
    lines = "\n".join(lines_of_diff(diff))
    shown = fenced(shortened(lines, MAX_CONTENT))
    more = f"\n… {plural(hidden, 'more line')} of the diff" if hidden else ""
    return [text_content(f"{_NOT_EXACT}:\n{shown}{more}")]


def fenced(text: str) -> str:
    """Text that is shown as it is, whatever Markdown it holds."""
    fence = "`" * max([3, *(len(run) + 1 for run in _TICKS.findall(text))])
    return f"{fence}\n{text.rstrip()}\n{fence}"


def text_content(text: str) -> ContentToolCallContent:
    return ContentToolCallContent(type="content", content=TextContentBlock(type="text", text=text))


def _title(call: Call, summary: str = "", kind: ToolKind = "other") -> str:
    label = f"[{call.caller}] " if call.caller else ""
    if kind in _SPEAK_FOR_THEMSELVES and summary:
        return label + summary
    return label + (call.name if summary in {"", call.name} else f"{call.name} {summary}")


def _progress(call_id: str, **changes: Any) -> ToolCallProgress:
    return ToolCallProgress(session_update="tool_call_update", tool_call_id=call_id, **changes)


def _said(text: str, message_id: str) -> AgentMessageChunk:
    block = TextContentBlock(type="text", text=text)
    return AgentMessageChunk(
        session_update="agent_message_chunk", content=block, message_id=message_id
    )


def _thought(text: str, message_id: str) -> AgentThoughtChunk:
    block = TextContentBlock(type="text", text=text)
    return AgentThoughtChunk(
        session_update="agent_thought_chunk", content=block, message_id=message_id
    )


def _is_prompt(node: Node) -> bool:
    return node.node_type is NodeType.MESSAGE and node.role is Role.USER


def _of_prompt(node: Node) -> Iterator[UserMessageChunk]:
    for block in _shown(node.content):
        yield UserMessageChunk(
            session_update="user_message_chunk", content=block, message_id=node.node_id
        )


def _shown(content: Sequence[ContentBlock]) -> Iterator[TextContentBlock | ImageContentBlock]:
    for block in content:
        if isinstance(block, ImageBlock) and block.data is not None:
            yield ImageContentBlock(type="image", data=block.data, mime_type=block.mime_type)
        elif text := _plain(block):
            yield TextContentBlock(type="text", text=text)


def _plain(block: ContentBlock) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case JsonBlock(data=str(text)):
            return text
        case JsonBlock(data={"content": str(text)}):  # of a file
            return text
        case JsonBlock(data=data):
            return shown_json(data, indent=2)
        case _:
            return f"[{block.type}]"

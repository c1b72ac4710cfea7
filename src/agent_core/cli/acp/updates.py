"""The events of a session as an editor shows them. Live and stored events use the same code."""

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
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

from agent_core.text import plural, shortened, shown_json
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
    ToolCallBlock,
    new_id,
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

Calls: TypeAlias = dict[tuple[str | None, str], tuple[str, str]]

MAX_CONTENT = 16_000
"""Characters of one result that are shown; the model has read the whole of it."""

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_TICKS = re.compile("`+")
_KINDS = frozenset(cast("tuple[str, ...]", get_args(ToolKind)))
_ENDS = {EventType.TOOL_COMPLETED, EventType.TOOL_FAILED, EventType.TOOL_DENIED}
_SPEAK_FOR_THEMSELVES = {"delete", "edit", "execute", "move"}
"""Kinds of calls whose summary alone describes them."""
_REMARKS = {
    EventType.COMPACT_FAILED,
    EventType.HOOK_FAILED,
    EventType.MCP_SERVER_FAILED,
    EventType.MODEL_RETRY,
}
"""Events that the user should know of, and that are no words of a model."""
_OF_CALLS = {
    *_ENDS,
    EventType.PERMISSION_REQUESTED,
    EventType.TOOL_PROGRESS,
    EventType.TOOL_STARTED,
}
_WITH_NODE = {*_ENDS, EventType.MESSAGE_COMPLETED}


class Translation:
    """Makes updates of the events of one session, in their order.

    Args:
        project: folder at which relative paths start.
        label: of a child, whose calls alone are shown.
        calls: the editor's id for each open call, and its name; by agent and id.
    """

    def __init__(self, project: Path, label: str = "", *, calls: Calls | None = None) -> None:
        self._project = project
        self._label = label
        self._calls: Calls = {} if calls is None else calls
        self._message_id = new_id("msg")
        self._shown = 0
        self._has_thought = False
        self.cost: Cost | None = None
        self._use: tuple[int, int] | None = None

    def needs_node(self, event: RuntimeEvent) -> bool:
        """Return whether a live event has to be shown with its node."""
        return not self._label and event.node_id is not None and event.event_type in _WITH_NODE

    def updates(self, event: RuntimeEvent, node: Node | None = None) -> Iterator[Update]:
        """Yield the updates that show a live event."""
        kind, payload = event.event_type, event.payload
        if event.tool_call_id is not None:
            yield from self._of_call(event, event.tool_call_id, node)
        elif self._label:
            return
        elif kind is EventType.MODEL_TEXT_DELTA and (text := self._unseen(payload)):
            yield _said(text, self._message_id)
        elif kind is EventType.MODEL_REASONING_DELTA and (text := str(payload.get("text", ""))):
            self._has_thought = True
            yield _thought(text, f"{self._message_id}-thought")
        elif kind in {EventType.MODEL_STARTED, *_REMARKS}:
            self._message_id = new_id("msg")
            self._shown = 0
            self._has_thought = False
            if kind in _REMARKS:
                yield _thought(_remark(kind, payload), new_id("msg"))
        elif kind is EventType.MESSAGE_COMPLETED and node is not None:
            yield from self._of_reply(node)
        elif kind is EventType.CONTEXT_BUILT:
            self._use = int(payload["use"]["total"]), int(payload["budget"]["window"])
            yield from self.usage()

    def stored(self, event: RuntimeEvent, node: Node | None) -> Iterator[Update]:
        """Yield the updates that show a stored event, before anything else is on the screen."""
        self._shown = 0
        self._has_thought = False
        if event.event_type in _REMARKS:
            return
        if event.event_type is EventType.CONTEXT_BUILT:
            deque(self.updates(event), maxlen=0)  # only the last one is shown, in the end
        elif node is None or event.event_type is not EventType.MESSAGE_CREATED:
            yield from self.updates(event, node)
        elif node.node_type is not NodeType.MESSAGE:
            return
        elif node.role is Role.USER:
            for block in _shown(node.content):
                yield UserMessageChunk(
                    session_update="user_message_chunk", content=block, message_id=node.node_id
                )
        elif node.role is Role.ASSISTANT:
            yield from self._of_reply(node)
        else:  # of a session that was forked, which has no events of its calls
            for result in node.results:
                call_id, _ = self._calls.pop((node.agent_id, result.tool_call_id), (None, ""))
                if call_id is not None:
                    status = "failed" if result.is_error else "completed"
                    error = {"message": result.error.message} if result.error else {}
                    yield _progress(call_id, status=status, content=self._result(error, node))

    def usage(self) -> Iterator[UsageUpdate]:
        """Yield how full the window is, and the cost of the session, as far as they are known."""
        if self._use is not None:
            used, size = self._use
            yield UsageUpdate(session_update="usage_update", used=used, size=size, cost=self.cost)

    def close_calls(self, asked: Collection[tuple[str, str]]) -> Iterator[Update]:
        """End the calls that a dead process has left open; calls with a question stay open."""
        for key, (call_id, _) in self._calls.items():
            if key not in asked:
                yield _progress(call_id, status="failed")

    def of_child(self, label: str) -> "Translation":
        """The translation of a child's events."""
        return Translation(self._project, label, calls=self._calls)

    def id_of(self, agent_id: str, tool_call_id: str) -> str | None:
        """Return the editor's id for a call; None if it does not know the call."""
        known = self._calls.get((agent_id, tool_call_id))
        return known[0] if known else None

    def _unseen(self, payload: Mapping[str, Any]) -> str:
        """The part of a piece of text that is not on the screen; a piece may begin at the start."""
        text = str(payload.get("text", ""))
        if payload.get("from_start"):
            text = text[self._shown :]
        self._shown += len(text)
        return text

    def _of_reply(self, node: Node) -> Iterator[Update]:
        """The parts of a reply that were not streamed, and its calls."""
        for block in node.content:
            match block:
                case TextBlock(text=text) if text and not self._shown:
                    yield _said(text, node.node_id)
                case ReasoningBlock(text=text) if text and not self._has_thought:
                    yield _thought(text, f"{node.node_id}-thought")
                case ToolCallBlock():
                    yield self._begin(node.agent_id, block.tool_call_id, block.name, block)
                case _:
                    pass

    def _begin(
        self, agent_id: str | None, tool_call_id: str, name: str, block: ToolCallBlock | None = None
    ) -> ToolCallStart:
        call_id = new_id("call")
        self._calls[agent_id, tool_call_id] = call_id, name
        return ToolCallStart(
            session_update="tool_call",
            tool_call_id=call_id,
            title=self._title(name),
            kind="other",
            status="pending",
            raw_input=block.arguments if block else None,
        )

    def _of_call(
        self, event: RuntimeEvent, tool_call_id: str, node: Node | None
    ) -> Iterator[Update]:
        kind, payload = event.event_type, event.payload
        if kind not in _OF_CALLS:
            return
        key = event.agent_id, tool_call_id
        if key not in self._calls:
            yield self._begin(event.agent_id, tool_call_id, str(payload.get("tool_name", "")))
        if kind is EventType.PERMISSION_REQUESTED:
            return
        call_id, name = self._calls[key]
        if kind is EventType.TOOL_STARTED:
            yield _progress(
                call_id,
                status="in_progress",
                title=self._title(name, str(payload.get("summary") or ""), tool_kind(payload)),
                kind=tool_kind(payload),
                locations=self._locations(payload),
            )
        elif kind is EventType.TOOL_PROGRESS:
            yield _progress(call_id, content=[text_content(str(payload.get("text", "")))])
        else:
            del self._calls[key]
            failed = kind is not EventType.TOOL_COMPLETED or bool(payload.get("exit_code"))
            yield _progress(
                call_id,
                status="failed" if failed else "completed",
                content=self._result(payload, node),
            )

    def _title(self, name: str, summary: str = "", kind: ToolKind = "other") -> str:
        label = f"[{self._label}] " if self._label else ""
        if kind in _SPEAK_FOR_THEMSELVES and summary:
            return label + summary
        return label + (name if summary in {"", name} else f"{name} {summary}")

    def _locations(self, payload: Mapping[str, Any]) -> list[ToolCallLocation] | None:
        paths = cast("Sequence[Mapping[str, Any]]", payload.get("paths") or ())
        return [
            ToolCallLocation(path=str(self._project / str(each["path"])), line=each.get("line"))
            for each in paths
        ] or None

    def _result(self, payload: Mapping[str, Any], node: Node | None) -> ToolContent:
        content: ToolContent = []
        if diff := payload.get("diff"):
            content += diff_content(str(diff), self._project)
        if hidden := payload.get("diff_hidden_lines"):
            content.append(text_content(f"… {plural(hidden, 'more line')} of the diff"))
        if payload.get("message"):
            content.append(text_content(str(payload["message"])))
        output, code = payload.get("output"), payload.get("exit_code")
        if hidden := payload.get("output_hidden_lines"):
            content.append(text_content(f"… {plural(hidden, 'more line')} above"))
        if output:
            content.append(text_content(fenced(str(output))))
        if code:
            content.append(text_content(f"exit code {code}"))
        if not content and node is not None:
            texts = [_plain(block) for result in node.results for block in result.content]
            if text := "\n".join(filter(None, texts)):
                content.append(text_content(fenced(shortened(text, MAX_CONTENT))))
        return content


def _remark(kind: EventType, payload: Mapping[str, Any]) -> str:
    error: object = payload.get("error") or payload.get("message") or ""
    if isinstance(error, Mapping):
        error = cast("Mapping[str, object]", error).get("message")
    why = str(error or "")
    parts = (kind.replace("_", " "), str(payload.get("server_id") or ""), why)
    return ": ".join(filter(None, parts)) + "\n"


def tool_kind(facts: Mapping[str, Any]) -> ToolKind:
    """Return the kind of tool of a call, as far as its facts name it."""
    kind = facts.get("kind")
    return cast("ToolKind", kind if kind in _KINDS else "other")


def diff_content(diff: str, project: Path) -> ToolContent:
    """A unified diff, each of its hunks as the text before and the text after."""
    content: ToolContent = []
    path, hidden = "", list[str]()
    before, after = list[str](), list[str]()
    lines_before = lines_after = 0

    def end_hunk() -> None:
        if before or after:
            edit = FileEditToolCallContent(
                type="diff",
                path=str(project / path),
                old_text="".join(before) if before else None,
                new_text="".join(after),
            )
            content.append(edit)
        before.clear()
        after.clear()

    for line in (f"{each}\n" for each in diff.removesuffix("\n").split("\n")):
        mark, text = line[:1], line[1:]
        if (lines_before or lines_after) and mark in {" ", "-", "+"}:
            if mark != "+":
                before.append(text)
                lines_before -= 1
            if mark != "-":
                after.append(text)
                lines_after -= 1
        elif head := _HUNK.match(line):
            end_hunk()
            lines_before, lines_after = (int(count or 1) for count in head.groups())
        elif line.startswith(("--- ", "+++ ")):
            end_hunk()
            path = line[4:].rstrip("\n")
        elif line.strip():
            hidden.append(line.strip())
    end_hunk()
    return [*content, *(text_content(line) for line in hidden)]


def fenced(text: str) -> str:
    """Text that is shown as it is, whatever Markdown it holds."""
    fence = "`" * max([3, *(len(run) + 1 for run in _TICKS.findall(text))])
    return f"{fence}\n{text.rstrip()}\n{fence}"


def text_content(text: str) -> ContentToolCallContent:
    return ContentToolCallContent(type="content", content=TextContentBlock(type="text", text=text))


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

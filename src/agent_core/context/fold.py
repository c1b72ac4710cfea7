"""Nodes become messages, one after another; what has been made of a node is never made again.

A turn costs what is new in it: messages, token sums and the rolling hash only ever grow. Whatever
changes the past (a compaction, a result that comes late, a cut) makes a new fold.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from agent_core.context.shorten import in_part
from agent_core.context.tokens import estimate_blocks
from agent_core.context.wrappers import synthetic_message
from agent_core.errors import ErrorCode
from agent_core.text import json_bytes
from agent_core.types import (
    ContentBlock,
    ErrorPayload,
    ImageBlock,
    ModelMessage,
    Node,
    NodeType,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)


class EntryKind(Enum):
    """What a message is, for the rules of what may be left out."""

    USER = auto()
    SYNTHETIC = auto()
    ASSISTANT = auto()
    TOOL = auto()


@dataclass(slots=True)
class Entry:
    """One message of the request and where it comes from.

    Entries with the same `group` belong together: a call, its results and the answer.
    `picture_bytes` is the size of its pictures in base64.
    """

    kind: EntryKind
    message: ModelMessage
    nodes: tuple[Node, ...]
    group: int
    tokens: int
    digest: bytes
    picture_bytes: int = 0

    @property
    def node_ids(self) -> list[str]:
        return [node.node_id for node in self.nodes]


@dataclass(slots=True)
class _Exchange:
    """An assistant's calls that wait for their results; what comes in between waits too."""

    calls: list[ToolCallBlock]
    open: set[str]
    results: dict[str, ToolResultBlock] = field(default_factory=dict[str, ToolResultBlock])
    nodes: list[Node] = field(default_factory=list[Node])
    after: list[Node] = field(default_factory=list[Node])


class MessageBuilder:
    """The messages of a path, or of its tail.

    Args:
        cut: tool nodes whose results do not stand whole in the request: the tokens that are
            shown of each exchange, 0 for summaries only.
        dropped: ids of nodes that are left out.
        late: results, by call id, that were written down after the conversation had gone on.
    """

    def __init__(
        self,
        cut: Mapping[str, int] | None = None,
        dropped: Collection[str] = (),
        late: Mapping[str, ToolResultBlock] | None = None,
    ) -> None:
        self.entries: list[Entry] = []
        self.messages: list[ModelMessage] = []
        self.tokens = 0
        self.picture_bytes = 0
        self.excluded: list[str] = []
        self.answered_late: dict[str, ToolResultBlock] = {}
        self._cut: Mapping[str, int] = {} if cut is None else cut
        self._dropped = dropped
        self._late = late or {}
        self._unanswered: set[str] = set()
        self._exchange: _Exchange | None = None
        self._group = 0
        self._group_has_reply = False
        self._rolling = hashlib.sha256()

    @property
    def hash(self) -> str:
        """A hash of all messages so far; equal histories have equal hashes, in any session."""
        return self._rolling.hexdigest()[:16]

    def hash_at(self, count: int) -> str | None:
        """What `hash` was after the first `count` messages; None if there are fewer."""
        if count > len(self.entries):
            return None
        rolling = hashlib.sha256()
        for entry in self.entries[:count]:
            rolling.update(entry.digest)
        return rolling.hexdigest()[:16]

    def add(self, node: Node) -> None:
        """Take the next node of the path."""
        exchange = self._exchange
        if node.node_id in self._dropped or node.is_partial or not _says_something(node):
            self.excluded.append(node.node_id)
        elif node.role is Role.TOOL:
            self._add_results(node)
        elif exchange is not None and node.node_type is not NodeType.MESSAGE:
            exchange.after.append(node)
        else:
            self.seal()
            self._add_message(node)

    def note(self, message: ModelMessage) -> None:
        """Add a message of core's own that is no node."""
        self.seal()
        self._emit(EntryKind.SYNTHETIC, message, [])

    def seal(self) -> None:
        """End an exchange: calls that have no result yet are answered as cancelled."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        results: list[ContentBlock] = []
        for call in exchange.calls:
            result = exchange.results.get(call.tool_call_id) or self._late.get(call.tool_call_id)
            if result is None:
                self._unanswered.add(call.tool_call_id)
                result = _cancelled(call)
            results.append(result)
        shown = [self._cut[n.node_id] for n in exchange.nodes if n.node_id in self._cut]
        if shown:
            results = in_part(results, max(shown))
        message = ModelMessage(role=Role.TOOL, content=results)
        self._emit(EntryKind.TOOL, message, exchange.nodes)
        for node in exchange.after:
            self._emit(EntryKind.SYNTHETIC, synthetic_message(node), [node])

    def _add_results(self, node: Node) -> None:
        exchange = self._exchange
        for result in node.results:
            if exchange is not None and result.tool_call_id in exchange.open:
                exchange.open.remove(result.tool_call_id)
                exchange.results[result.tool_call_id] = result
                if node not in exchange.nodes[-1:]:
                    exchange.nodes.append(node)
            elif result.tool_call_id in self._unanswered:
                self.answered_late[result.tool_call_id] = result
            elif result.tool_call_id not in self._late:
                self.excluded.append(node.node_id)
        if exchange is not None and not exchange.open:
            self.seal()

    def _add_message(self, node: Node) -> None:
        if node.node_type is not NodeType.MESSAGE:
            self._emit(EntryKind.SYNTHETIC, synthetic_message(node), [node])
            return
        kind = EntryKind.ASSISTANT if node.role is Role.ASSISTANT else EntryKind.USER
        message = ModelMessage(
            role=node.role, content=node.content, metadata={"node_id": node.node_id}
        )
        calls = node.calls
        self._emit(kind, message, [node], calls=bool(calls))
        if calls:
            asked = {call.tool_call_id for call in calls}
            self._unanswered -= asked
            self._exchange = _Exchange(calls, asked)

    def _emit(
        self, kind: EntryKind, message: ModelMessage, nodes: Sequence[Node], *, calls: bool = False
    ) -> None:
        if kind is EntryKind.USER or (calls and self._group_has_reply):
            self._group += 1
            self._group_has_reply = False
        self._group_has_reply = self._group_has_reply or kind is EntryKind.ASSISTANT
        is_plain = kind in {EntryKind.USER, EntryKind.ASSISTANT}  # the content is the node's own
        known = nodes[0].token_count if is_plain else 0
        tokens, digest = known or estimate_blocks(message.content), _digest(message)
        size = sum(map(_picture_bytes, message.content))
        self.entries.append(Entry(kind, message, tuple(nodes), self._group, tokens, digest, size))
        self.messages.append(message)
        self.picture_bytes += size
        self.tokens += tokens
        self._rolling.update(digest)


def _says_something(node: Node) -> bool:
    """Providers refuse messages without content; such a node says nothing anyway."""
    return any(not isinstance(block, TextBlock) or block.text.strip() for block in node.content)


def _picture_bytes(block: ContentBlock) -> int:
    match block:
        case ImageBlock(data=str(data)):
            return len(data)
        case ToolResultBlock(content=content):
            return sum(map(_picture_bytes, content))
        case _:
            return 0


def _digest(message: ModelMessage) -> bytes:
    said = json_bytes([message.role, message.content])
    return hashlib.sha256(said).digest()


def _cancelled(call: ToolCallBlock) -> ToolResultBlock:
    message = "this call has no result: the run ended before it was answered"
    return ToolResultBlock(
        tool_call_id=call.tool_call_id,
        is_error=True,
        content=[TextBlock(text=message)],
        error=ErrorPayload(
            type="ToolError",
            code=ErrorCode.CANCELLED,
            message=message,
            details={"reason": "no_result"},
        ),
        metadata={"synthetic": True, "tool_name": call.name},
    )

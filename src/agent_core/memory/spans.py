"""Parts of a conversation that were not scanned yet, and reasons to scan them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from agent_core.config.models import MemoryConfig
from agent_core.text import estimate_text
from agent_core.text.json_text import array
from agent_core.types import Node, NodeType, Role
from agent_core.types.memory_scopes import MEMORY_OFF, MemoryTerms

_AROUND = 4
_AROUND_CHARS = 400
_MESSAGE_CHARS = 4000
_MOST_ENDS = 16
"""Number of spans that may wait for another attempt."""

_CLOSING = "</conversation"


class ScanRecord(Struct, frozen=True):
    """The progress of the scans of a session.

    A span that failed keeps its end, so that the next attempt does not grow with the conversation.

    Attributes:
        position: the sequence number of the last node before which everything is scanned.
        ends: the last nodes of later spans that were tried, in order, each with whether it is
            scanned.
    """

    position: int = 0
    ends: Sequence[tuple[int, bool]] = ()

    @classmethod
    def parse(cls, position: object, ends: object) -> "ScanRecord":
        """Read a stored record; anything else is a session that was never scanned."""
        known: list[tuple[int, bool]] = []
        for one in array(ends):
            match one:
                case [int(end), bool(is_scanned)]:
                    known.append((end, is_scanned))
                case _:
                    pass
        return cls(position if isinstance(position, int) else 0, tuple(known))

    def segment(self, seq: int) -> int:
        """Return the number of ends before a node; for a new node, the number of all."""
        return sum(end < seq for end, _ in self.ends)

    def is_scanned(self, segment: int) -> bool:
        """Return whether a segment between two ends is scanned."""
        return segment < len(self.ends) and self.ends[segment][1]

    def with_end(self, end: int, *, is_scanned: bool) -> "ScanRecord":
        """Return the record after an attempt on the span up to `end`."""
        position, ends = self.position, dict(self.ends)
        is_first = all(is_done for one, is_done in self.ends if one < end)
        if is_scanned and is_first:
            position = max(position, end)
        else:
            ends[end] = is_scanned
        rest = sorted((one, is_done) for one, is_done in ends.items() if one > position)
        if len(rest) > _MOST_ENDS:  # what fails that often is given up
            position, rest = rest[0][0], rest[1:]
        while rest and rest[0][1]:
            position, rest = rest[0][0], rest[1:]
        merged: list[tuple[int, bool]] = []
        for one in rest:
            if one[1] and merged and merged[-1][1]:
                merged.pop()
            merged.append(one)
        return ScanRecord(position, tuple(merged))


class MessageSpan(Struct, frozen=True):
    """Unscanned messages under the same terms, and a few messages before them.

    Attributes:
        nodes: the unscanned messages, in order.
        before: the last messages before them under the same terms, for context.
        roots: the session's root agents; the user speaks only to them.
        terms: the memory scope they are for, and the model that may read them.
        has_failed: an attempt to scan them has failed.
    """

    nodes: Sequence[Node]
    before: Sequence[Node]
    roots: Collection[str]
    terms: MemoryTerms = MemoryTerms()
    has_failed: bool = False

    @property
    def messages(self) -> list[Node]:
        """The messages of the span, which an answer may name as sources."""
        return [node for node in self.nodes if _is_message(node)]

    @property
    def user_messages(self) -> list[Node]:
        """The messages that the user wrote to a root agent."""
        return [node for node in self.messages if self.is_users(node)]

    def is_users(self, message: Node) -> bool:
        """Return whether a message of the span has words of the user to a root agent."""
        return bool(_users_words(message, self.roots))

    @property
    def end(self) -> int:
        """The sequence number of the last node of the span."""
        return self.nodes[-1].node_seq

    def shown(self) -> str:
        """Return the text for the model. Only messages of the span show their node ids."""
        around = [f"[{node.role}]\n{_words(node, _AROUND_CHARS)}" for node in self.before]
        asked = [f"[{node.role} {node.node_id}]\n{_words(node)}" for node in self.messages]
        return "\n\n".join([*around, *asked]).replace(_CLOSING, "&lt;/conversation")


def unprocessed_spans(
    path: Sequence[Node],
    record: ScanRecord | int,
    *,
    roots: Collection[str],
    room: int,
    terms_of: Callable[[Node], MemoryTerms],
) -> list[MessageSpan]:
    """Split the unscanned part of a path into spans of about `room` tokens.

    The messages of a span are under the same terms.

    Args:
        path: root first.
        record: how far the session has been scanned; a number is the last scanned node.
        roots: the session's root agents.
        room: tokens that a model takes at once.
        terms_of: returns the terms of a node; nodes with the scope `off` are skipped.
    """
    if isinstance(record, int):
        record = ScanRecord(record)
    spans: list[MessageSpan] = []
    before: dict[MemoryTerms, list[Node]] = {}
    current: list[Node] = []
    left, terms, segment = room, MemoryTerms(), 0

    def close_span() -> None:
        around, has_failed = before.get(terms, ())[-_AROUND:], segment < len(record.ends)
        spans.append(MessageSpan(current, around, roots, terms, has_failed))
        before[terms] = current

    for node in path:
        if node.is_partial or not _is_message(node):
            continue
        its_terms = terms_of(node)
        if its_terms.scope == MEMORY_OFF:
            continue
        its_segment = record.segment(node.node_seq)
        if node.node_seq <= record.position or record.is_scanned(its_segment):
            before[its_terms] = [*before.get(its_terms, ())[1 - _AROUND :], node]
            continue
        cost = estimate_text(_words(node))
        if current and (cost > left or its_terms != terms or its_segment != segment):
            close_span()
            current, left = [], room
        terms, segment = its_terms, its_segment
        current.append(node)
        left -= cost
    if current:
        close_span()
    return spans


def _is_message(node: Node) -> bool:
    """Return whether a node is a message of a person or a model, with text in it."""
    is_said = node.node_type is NodeType.MESSAGE and node.role is not Role.TOOL
    return is_said and bool(node.text.strip())


def _users_words(message: Node, roots: Collection[str]) -> str:
    """Return what the user wrote to a root agent in a message; empty if that is nothing."""
    is_to_root = message.role is Role.USER and message.agent_id in roots
    return message.words.strip() if is_to_root and not message.flags.synthetic else ""


def _words(node: Node, limit: int = _MESSAGE_CHARS) -> str:
    """Return the text of a message without marked content, cut in the middle to `limit`."""
    text = node.words.strip()
    if len(text) <= limit:
        return text
    return f"{text[: limit * 2 // 3]}\n[…]\n{text[-(limit // 3) :]}"


class ExtractionReason(StrEnum):
    """Reason for an extraction."""

    EXPLICIT = "explicit"
    MESSAGE_BACKLOG = "message_backlog"
    TOKEN_BACKLOG = "token_backlog"  # noqa: S105 - a name
    IDLE = "idle"


class Backlog(Struct, frozen=True):
    """The size of the unscanned part of a session, to tell cheaply if a scan is worthwhile."""

    messages: int = 0
    tokens: int = 0
    has_request: bool = False

    @classmethod
    def of(cls, spans: Sequence[MessageSpan]) -> "Backlog":
        """Return the backlog of these spans."""
        backlog = cls()
        for span in spans:
            backlog = backlog.plus(span.nodes, span.roots)
        return backlog

    def plus(self, nodes: Iterable[Node], roots: Collection[str]) -> "Backlog":
        """Return the backlog with these nodes, too; `roots` are the session's root agents."""
        # The words of ten languages: for runs with a memory.
        from agent_core.memory.wishes import is_explicit_request  # noqa: PLC0415

        messages, tokens, has_request = self.messages, self.tokens, self.has_request
        for node in filter(_is_message, nodes):
            tokens += node.token_count
            if words := _users_words(node, roots):
                messages += 1
                has_request = has_request or is_explicit_request(words)
        return Backlog(messages, tokens, has_request)

    def reason(self, config: MemoryConfig) -> ExtractionReason | None:
        """Return the reason to scan the session now, or None."""
        if self.has_request:
            return ExtractionReason.EXPLICIT
        if self.messages >= config.extract_every_messages:
            return ExtractionReason.MESSAGE_BACKLOG
        if self.messages and self.tokens >= config.extract_every_tokens:
            return ExtractionReason.TOKEN_BACKLOG
        return None

"""The parts of a conversation that were not scanned yet, and when they are worth an extraction."""

import re
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum

from msgspec import Struct

from agent_core.config.models import MemoryConfig
from agent_core.text import estimate_text, without_content
from agent_core.types import Node, NodeType, Role
from agent_core.types.memory_scopes import MEMORY_OFF, MemoryTerms

_AROUND = 4
_AROUND_CHARS = 400
_MESSAGE_CHARS = 4000
_CLOSING = "</conversation"
_MOST_SEARCHED = 16_384
"""Characters at either end of a message."""

_REQUEST = (
    r"(?i)\b(?:remember|don['\u2019]?t\s+forget|do\s+not\s+forget|keep\s+in\s+mind|memori[sz]e|always|"
    r"never|from\s+now\s+on|in\s+(?:the\s+)?future|i(?:['\u2019]d|\s+would)?\s+(?:always\s+)?prefer|"
    r"my\s+preference|i\s+(?:really\s+)?(?:like|hate|dislike)\s+(?:it\s+when|when)|going\s+forward|"
    r"for\s+future\s+reference|make\s+a\s+note|note\s+that\s+i)\b"
    r"|记住|记下|记得|別忘|别忘|不要忘|以后|今后|从现在起|总是|始终|永远|从不|绝不|我喜欢|我更喜欢|"
    r"我偏好|我习惯|我的偏好|每次都|記住"
)


class MessageSpan(Struct, frozen=True):
    """Some new messages under the same terms, and the last ones of these before them.

    Attributes:
        nodes: what was not scanned yet, in order.
        before: what stands before it, for context.
        roots: the session's root agents; the user speaks only to them.
        terms: whose memory they are for, and which model may read them.
    """

    nodes: Sequence[Node]
    before: Sequence[Node]
    roots: Collection[str]
    terms: MemoryTerms = MemoryTerms()

    @property
    def messages(self) -> list[Node]:
        """The messages of the range: what may be named as a source."""
        return [node for node in self.nodes if _is_message(node)]

    @property
    def user_messages(self) -> list[Node]:
        """The messages that the user wrote to a root agent."""
        return [
            node
            for node in self.messages
            if node.role is Role.USER and node.agent_id in self.roots and not node.flags.synthetic
        ]

    @property
    def end(self) -> int:
        """The sequence number up to which this has been read once it has."""
        return self.nodes[-1].node_seq

    @property
    def tokens(self) -> int:
        """What its messages cost."""
        return sum(node.token_count for node in self.messages)

    def shown(self) -> str:
        """The text for the model. Only messages of the range show their node ids."""
        around = [f"[{node.role}]\n{_words(node, _AROUND_CHARS)}" for node in self.before]
        asked = [f"[{node.role} {node.node_id}]\n{_words(node)}" for node in self.messages]
        return "\n\n".join([*around, *asked]).replace(_CLOSING, "&lt;/conversation")


def unprocessed_spans(
    path: Sequence[Node],
    cursor: int,
    *,
    roots: Collection[str],
    room: int,
    terms_of: Callable[[Node], MemoryTerms],
) -> list[MessageSpan]:
    """Split what has not been scanned of a path into spans of about `room` tokens.

    A span has messages under the same terms only.

    Args:
        path: root first.
        cursor: the sequence number of the last node that was scanned; 0 for none.
        roots: the session's root agents.
        room: tokens that a model takes at once.
        terms_of: the terms of a node; nodes whose scope is `off` are passed over.
    """
    spans: list[MessageSpan] = []
    before: dict[MemoryTerms, list[Node]] = {}
    current: list[Node] = []
    left, terms = room, MemoryTerms()

    def close_span() -> None:
        span = MessageSpan(current, before.get(terms, ())[-_AROUND:], roots, terms)
        spans.append(span)
        before[terms] = current

    for node in path:
        if node.is_partial or not _is_message(node):
            continue
        its_terms = terms_of(node)
        if its_terms.scope == MEMORY_OFF:
            continue
        if node.node_seq <= cursor:
            before[its_terms] = [*before.get(its_terms, ())[1 - _AROUND :], node]
            continue
        cost = estimate_text(_words(node))
        if current and (cost > left or its_terms != terms):
            close_span()
            current, left = [], room
        terms = its_terms
        current.append(node)
        left -= cost
    if current:
        close_span()
    return spans


def _is_message(node: Node) -> bool:
    """Return whether something was said."""
    is_said = node.node_type is NodeType.MESSAGE and node.role is not Role.TOOL
    return is_said and bool(node.text.strip())


def _words(node: Node, limit: int = _MESSAGE_CHARS) -> str:
    """What was said; content that was marked as such is left out."""
    text = without_content(node.text).strip()
    if len(text) <= limit:
        return text
    return f"{text[: limit * 2 // 3]}\n[…]\n{text[-(limit // 3) :]}"


class ExtractionReason(StrEnum):
    """Why an extraction takes place."""

    EXPLICIT = "explicit"
    MESSAGE_BACKLOG = "message_backlog"
    TOKEN_BACKLOG = "token_backlog"  # noqa: S105 - a name
    IDLE = "idle"


def is_explicit_request(text: str) -> bool:
    """Whether a user asks, in so many words, for something to be remembered.

    Of a long text the beginning and the end are searched: what is pasted between is no request.
    """
    if len(text) > 2 * _MOST_SEARCHED:
        text = f"{text[:_MOST_SEARCHED]}\n{text[-_MOST_SEARCHED:]}"
    return re.search(_REQUEST, text) is not None


class Backlog(Struct, frozen=True):
    """What a session has that was not scanned: enough to know that it is not worth a scan yet."""

    messages: int = 0
    tokens: int = 0
    has_request: bool = False

    @classmethod
    def of(cls, spans: Sequence[MessageSpan]) -> "Backlog":
        """The backlog that these spans are."""
        messages = [node for span in spans for node in span.user_messages]
        has_request = any(is_explicit_request(without_content(node.text)) for node in messages)
        return cls(len(messages), sum(span.tokens for span in spans), has_request)

    def plus(self, nodes: Sequence[Node]) -> "Backlog":
        """With what a run of a root agent has added."""
        roots = {node.agent_id for node in nodes}
        more = Backlog.of([MessageSpan(nodes, (), roots)] if nodes else [])
        return Backlog(
            self.messages + more.messages,
            self.tokens + more.tokens,
            self.has_request or more.has_request,
        )

    def reason(self, config: MemoryConfig) -> ExtractionReason | None:
        """Why the session should be scanned now, or None."""
        if self.has_request:
            return ExtractionReason.EXPLICIT
        if self.messages >= config.extract_every_messages:
            return ExtractionReason.MESSAGE_BACKLOG
        if self.messages and self.tokens >= config.extract_every_tokens:
            return ExtractionReason.TOKEN_BACKLOG
        return None

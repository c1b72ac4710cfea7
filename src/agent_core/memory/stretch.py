"""The part of a conversation that an extraction is asked about, and how it is shown."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from agent_core.types import Node, NodeType, Role

_AROUND = 4
_AROUND_CHARS = 400
_MESSAGE_CHARS = 4000
_CLOSING = "</conversation"


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Some new messages, and the last ones before them.

    Attributes:
        nodes: what was not scanned yet, in order.
        before: what stands around it, for the sense of it.
        roots: the session's root agents; only to them speaks the user.
    """

    nodes: Sequence[Node]
    before: Sequence[Node]
    roots: Collection[str]

    @property
    def messages(self) -> list[Node]:
        """The messages of the range: what may be named as a source."""
        return [node for node in self.nodes if _is_message(node) and node.text.strip()]

    @property
    def user_messages(self) -> list[Node]:
        """The messages that the user wrote."""
        return [node for node in self.messages if is_from_user(node, self.roots)]

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
        around = [f"[{node.role}]\n{_cut(node.text, _AROUND_CHARS)}" for node in self.before]
        asked = [f"[{node.role} {node.node_id}]\n{_cut(node.text)}" for node in self.messages]
        return "\n\n".join([*around, *asked]).replace(_CLOSING, "&lt;/conversation")


def unprocessed_spans(
    path: Sequence[Node],
    cursor: int,
    *,
    roots: Collection[str],
    room: int,
    estimate: Callable[[str], int],
) -> list[MessageSpan]:
    """What has not been scanned of a path, in stretches of about `room` tokens.

    Args:
        path: root first.
        cursor: the sequence number of the last node that was scanned; 0 for none.
        roots: the session's root agents.
        room: tokens that a model takes at once.
        estimate: tokens of a text.
    """
    new = [node for node in path if node.node_seq > cursor and not node.is_partial]
    old = [node for node in path if node.node_seq <= cursor and not node.is_partial]
    before = [node for node in old if _is_message(node) and node.text.strip()]
    stretches: list[MessageSpan] = []
    current: list[Node] = []
    left = room
    for node in new:
        cost = estimate(_cut(node.text)) if _is_message(node) else 0
        if cost > left and current:
            stretches.append(MessageSpan(current, before[-_AROUND:], roots))
            before, current, left = stretches[-1].messages, [], room
        current.append(node)
        left -= cost
    if current:
        stretches.append(MessageSpan(current, before[-_AROUND:], roots))
    return stretches


def is_from_user(node: Node, roots: Collection[str]) -> bool:
    """A message that the user wrote to a root agent."""
    is_said = node.role is Role.USER and node.node_type is NodeType.MESSAGE
    return is_said and node.agent_id in roots and not node.metadata.get("synthetic")


def _is_message(node: Node) -> bool:
    return node.node_type is NodeType.MESSAGE and node.role is not Role.TOOL


def _cut(text: str, limit: int = _MESSAGE_CHARS) -> str:
    text = text.strip()
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[…]\n{text[-tail:]}"

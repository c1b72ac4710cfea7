"""The messages of the user in a session as a tree, and short names for them."""

from collections.abc import Iterable

from msgspec import Struct, field

from agent_core.history.reading import Exchange, History, MessageEntry, spoken
from agent_core.types import Node, NodeType, Role

_LEAST = len("node_") + 8


class Branch(Struct):
    """A message of the user, with its answer and the later messages.

    Attributes:
        node: the message, or the summary.
        exchange: the run it belongs to.
        answer: the last words of the agent.
        children: the messages that followed it; several are branches.
    """

    node: Node
    exchange: Exchange
    answer: str = ""
    children: "list[Branch]" = field(default_factory=list["Branch"])


def grow_tree(history: History) -> list[Branch]:
    """Return the first messages of the user, each with the messages that followed it."""
    branches: dict[str, Branch] = {}
    holder: dict[str, str | None] = {}  # the message that a node belongs to
    roots: list[Branch] = []
    for exchange in history.exchanges:
        for entry in exchange.entries:
            if not isinstance(entry, MessageEntry):
                continue
            node = entry.node
            above = _holder_of(node.parent_id, history, holder)
            is_message = node.role is Role.USER and node.node_type is NodeType.MESSAGE
            if is_message or node.node_type is NodeType.COMPACTION:
                branch = branches[node.node_id] = Branch(node, exchange)
                holder[node.node_id] = node.node_id
                parent = branches.get(above or "")
                (roots if parent is None else parent.children).append(branch)
                continue
            holder[node.node_id] = above
            if node.role is Role.ASSISTANT and above in branches and (text := spoken(node)):
                branches[above].answer = text
    return roots


def _holder_of(node_id: str | None, history: History, holder: dict[str, str | None]) -> str | None:
    """Return the message of the user above a node; results of tools between are not listed."""
    passed: list[str] = []
    while node_id is not None and node_id not in holder:
        passed.append(node_id)
        node = history.nodes.get(node_id)
        node_id = node.parent_id if node is not None else None
    found = holder[node_id] if node_id is not None else None
    holder.update(dict.fromkeys(passed, found))
    return found


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """The shortest beginning of each id that no other one has."""
    ordered = sorted(ids)
    found: dict[str, str] = {}
    for place, each in enumerate(ordered):
        length = _LEAST
        for other in (*ordered[max(place - 1, 0) : place], *ordered[place + 1 : place + 2]):
            while each[:length] == other[:length] and length < len(each):
                length += 1
        found[each] = each[:length]
    return found

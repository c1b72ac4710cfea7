"""Where a history is cut: before a user's turn, and never between a call and its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from agent_core.types import Node, NodeType, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A place to cut a path at; indexes into the path.

    Attributes:
        start: the first node that no earlier summary covers.
        turn: where the turn begins that is cut in two; equal to `end` if none is.
        end: the first node that is kept as it is.
        previous: the compaction that the new one replaces.
        replaced_tokens: what is summarised costs now, the previous summary included.
        tokens_before: all of the history costs now.
    """

    start: int
    turn: int
    end: int
    previous: Node | None
    replaced_tokens: int
    tokens_before: int


def choose_cut(path: Sequence[Node], *, keep: int, least: int = 1) -> Cut | None:
    """Choose what to summarise so that about `keep` tokens at the end stay as they are.

    The cut is aligned to a user's turn; a last turn that alone is larger than `keep` is cut in
    two, between exchanges.

    Returns:
        None if all of it may stay, or if fewer than `least` tokens would be summarised that no
        summary covers yet.
    """
    previous, start = _last_compaction(path)
    tail = _tail_tokens(path)
    if tail[start] <= keep:
        return None
    joined = _joined(path)
    turns = [i for i in range(start, len(path)) if is_user_message(path[i]) and i not in joined]
    end = next((i for i in turns if i > start and tail[i] <= keep), None)
    turn = end
    if end is None:
        turn = turns[-1] if turns else start
        end = _split(path, turn, tail=tail, keep=keep, joined=joined)
    if end is None:
        end = turn
    if end is None or turn is None or end <= start or tail[start] - tail[end] < max(least, 1):
        return None
    before = previous.token_count if previous else 0
    return Cut(
        start=start,
        turn=max(turn, start),
        end=end,
        previous=previous,
        replaced_tokens=tail[start] - tail[end] + before,
        tokens_before=tail[start] + before,
    )


def visible_tokens(path: Sequence[Node]) -> int:
    """What the history of a path costs in a request: the last summary and what follows it."""
    previous, start = _last_compaction(path)
    return _tail_tokens(path)[start] + (previous.token_count if previous else 0)


def is_user_message(node: Node) -> bool:
    """Something a user has said, or a parent agent in a user's place."""
    is_message = node.role is Role.USER and node.node_type is NodeType.MESSAGE
    return is_message and not node.is_partial and not node.metadata.get("synthetic")


def is_in_view(node: Node) -> bool:
    """Whether the node is part of the messages of a request, as long as no summary covers it."""
    return not node.is_partial and node.node_type is not NodeType.COMPACTION


def _split(
    path: Sequence[Node], begin: int, *, tail: Sequence[int], keep: int, joined: set[int]
) -> int | None:
    """Where a huge turn is cut in two: before one of its exchanges, the latest if need be."""
    places = [
        i
        for i in range(begin + 1, len(path))
        if path[i].role is Role.ASSISTANT and is_in_view(path[i]) and i not in joined
    ]
    return next((i for i in places if tail[i] <= keep), places[-1] if places else None)


def _last_compaction(path: Sequence[Node]) -> tuple[Node | None, int]:
    """The compaction in force, and where the tail begins that it keeps."""
    places = {node.node_id: place for place, node in enumerate(path)}
    for here in range(len(path) - 1, -1, -1):
        node = path[here]
        if node.node_type is not NodeType.COMPACTION or not node.text.strip():
            continue
        kept = node.metadata.get("first_kept_node_id")
        start = here if kept is None else places.get(kept, here)
        if kept is None or start < here:
            while start > 0 and path[start].role is Role.TOOL:
                start -= 1
            return node, start
    return None, 0


def _tail_tokens(path: Sequence[Node]) -> list[int]:
    """For every place, what is in view from there to the end costs; 0 behind the end."""
    costs = (node.token_count if is_in_view(node) else 0 for node in reversed(path))
    return list(accumulate(costs, initial=0))[::-1]


def _joined(path: Sequence[Node]) -> set[int]:
    """The places that lie between a call and its result."""
    asked: dict[str, int] = {}
    joined: set[int] = set()
    for place, node in enumerate(path):
        for result in node.results:
            if (call := asked.pop(result.tool_call_id, None)) is not None:
                joined.update(range(call + 1, place + 1))
        if not node.is_partial:
            asked.update((call.tool_call_id, place) for call in node.calls)
    return joined

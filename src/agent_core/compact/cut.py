"""The time and the place to cut a history for a summary: before a turn, between exchanges."""

from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct

from agent_core.config.models import CompactionConfig
from agent_core.text import estimate_text
from agent_core.types import Node, NodeType, Role, answered_message, is_user_message

_LEAST_PIECE = 512
_PROMPT_AROUND = 1500
"""Generous estimate of the tokens of the compact agent's own instructions."""


class CompactPolicy(Struct, frozen=True, kw_only=True):
    """The configured reserves, clamped to one model's window.

    Attributes:
        window: the context window of the conversation's model, in its tokens.
        room: size of the history in a request, in estimated tokens: the window without the
            answer, the system prompt and the tools.
    """

    config: CompactionConfig
    window: int
    room: int

    @property
    def threshold(self) -> int:
        """Tokens of a request above which the history is summarised in the background."""
        return max(self.window - self.config.reserve_tokens, self.window // 3)

    @property
    def keep(self) -> int:
        """Tokens at the end of the history that stay unchanged."""
        return min(self.config.keep_recent_tokens, self.room * 2 // 5)

    @property
    def kept(self) -> int:
        """Tokens that the facts carried over verbatim may take."""
        return max(min(self.window // 4, self.room // 5), 1)

    @property
    def summary(self) -> int:
        """Tokens that the summary may take."""
        return max(min(self.config.max_summary_tokens, self.room // 5), 1)

    @property
    def message(self) -> int:
        """Tokens that the message of a turn may take whose beginning is summarised."""
        return self.window // 4

    @property
    def worth(self) -> int:
        """Tokens that must be saved before a summary in the background is worth a model call."""
        return self.room // 8

    def piece(self, window: int, scale: float) -> int:
        """Return the tokens of conversation that a compact model with this window gets at once."""
        free = window * 0.7 - 1.5 * self.summary - _PROMPT_AROUND
        return max(int(free / scale), _LEAST_PIECE)


class Cut(Struct, frozen=True, kw_only=True):
    """A place to cut a path at; indexes into the path.

    Attributes:
        start: the first node that no earlier summary covers.
        turn: the beginning of the turn that is cut in two; equal to `end` if none is.
        end: the first node that stays unchanged.
        previous: the compaction that the new one replaces.
        replaced_tokens: current size of the summarised part, with the previous summary.
        tokens_before: current size of the whole history.
    """

    start: int
    turn: int
    end: int
    previous: Node | None
    replaced_tokens: int
    tokens_before: int


def choose_cut(
    path: Sequence[Node], *, keep: int, message: int | None = None, least: int = 1
) -> Cut | None:
    """Choose what to summarise so that about `keep` tokens at the end stay unchanged.

    The cut is aligned to a user's turn; a last turn that alone is larger than `keep` is cut in two,
    between exchanges. A call is never separated from its result.

    Args:
        path: the conversation, root first.
        keep: tokens at the end that stay unchanged.
        message: the most tokens that the message of a turn cut in two takes; it stays in view.
        least: tokens that must be summarised.

    Returns:
        None if all of it may stay, or if fewer than `least` tokens that no summary covers yet would
          be summarised.
    """
    previous, start = _last_compaction(path)
    tail = _tail_tokens(path)
    if tail[start] <= keep:
        return None
    inside = _inside_exchanges(path)
    turns = [
        _turn_begin(path, i, start)
        for i in range(start, len(path))
        if is_user_message(path[i]) and i not in inside
    ]
    end = next((i for i in turns if i > start and tail[i] <= keep), None)
    turn = end
    if end is None:
        turn = turns[-1] if turns else start
        replies = [
            i
            for i in range(turn + 1, len(path))
            if path[i].role is Role.ASSISTANT and is_in_view(path[i]) and i not in inside
        ]
        latest = replies[-1] if replies else turn
        room = keep - min(_standing_tokens(path, latest, message), keep // 2)
        end = next((i for i in replies if tail[i] <= room), latest)
    stands, stood = (_standing_tokens(path, i, message) for i in (end, start))
    before = stood + (previous.token_count if previous else 0)
    gone = tail[start] - tail[end] + before - stands
    if turn is None or end <= start or tail[start] - tail[end] + stood - stands < max(least, 1):
        return None
    return Cut(
        start=start,
        turn=max(turn, start),
        end=end,
        previous=previous,
        replaced_tokens=gone,
        tokens_before=tail[start] + before,
    )


def visible_tokens(path: Sequence[Node], *, message: int | None = None) -> int:
    """Return the tokens of a path's history in a request: the last summary and what follows.

    `message` is as for `choose_cut`.
    """
    previous, start = _last_compaction(path)
    before = previous.token_count + _standing_tokens(path, start, message) if previous else 0
    return _tail_tokens(path)[start] + before


def _turn_begin(path: Sequence[Node], message: int, start: int) -> int:
    """Return the index of the first resource that a message names; they are before it."""
    while message > start and path[message - 1].node_type is NodeType.RESOURCE_CONTEXT:
        message -= 1
    return message


def _standing_tokens(path: Sequence[Node], start: int, most: int | None) -> int:
    """Return the tokens of the message that stays in view if only the path from `start` does."""
    message = answered_message(path, start)
    if message is None or most is None or message.token_count <= most:
        return message.token_count if message else 0
    # Its texts are shortened; its pictures stay, up to twice as much.
    pictures = min(message.token_count - estimate_text(message.text), 2 * most)
    return max(most, pictures + most // 4)


def is_in_view(node: Node) -> bool:
    """Return whether a node is part of a request's messages if no summary covers it."""
    return not node.is_partial and node.node_type is not NodeType.COMPACTION


def is_prefix(covered: Sequence[Node], path: Sequence[Node]) -> bool:
    """Return whether a path still begins with the summarised part; its last node decides."""
    place = len(covered) - 1
    return place < len(path) and covered[place].node_id == path[place].node_id


def _last_compaction(path: Sequence[Node]) -> tuple[Node | None, int]:
    """Return the compaction in force, and the index where the part it keeps begins."""
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
    """Return the tokens in view from each index to the end; 0 at the end."""
    costs = (node.token_count if is_in_view(node) else 0 for node in reversed(path))
    return list(accumulate(costs, initial=0))[::-1]


def _inside_exchanges(path: Sequence[Node]) -> set[int]:
    """Return the indexes that lie between a call and its result."""
    calls: dict[str, int] = {}
    inside: set[int] = set()
    for place, node in enumerate(path):
        for result in node.results:
            if (call := calls.pop(result.tool_call_id, None)) is not None:
                inside.update(range(call + 1, place + 1))
        if not node.is_partial:
            calls.update((call.tool_call_id, place) for call in node.calls)
    return inside

"""Make a history fit: first shorten older tool results, then, where allowed, leave groups out.

Both go a little further than they must, so that the next turns do not change the past again and
the provider's prompt cache keeps its prefix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from agent_core.context.fold import Entry, EntryKind
from agent_core.context.history import History, open_instructions
from agent_core.context.shorten import shortened
from agent_core.context.tokens import estimate_blocks
from agent_core.types import Node, NodeType

MAX_PICTURE_BYTES = 24_000_000
"""Base64 of all pictures of a request; services refuse requests of more than 32 MB."""

_SLACK = 0.85
_LATEST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What stands in a request as a summary or in part, and what not at all, from now on."""

    cut: Sequence[Node] = ()
    dropped: Sequence[str] = ()


def trim(history: History, limit: int, *, may_drop: bool, kept: str | None = None) -> Trimmed:
    """Bring a history below `limit` estimated tokens, as far as that is possible and allowed.

    Args:
        history: of one run.
        limit: estimated tokens.
        may_drop: whole groups may be left out.
        kept: what must not be lost with them; it stands before the messages from then on.
    """
    cut = _cut_pictures(history)
    if history.fold.tokens <= limit:
        return Trimmed(cut)
    cut += _cut_results(history, limit)
    if history.fold.tokens > limit:
        cut += _show_latest_in_part(history, limit)
    if not may_drop or history.fold.tokens <= limit:
        return Trimmed(cut)
    history.keep(kept or history.kept)
    dropped = _drop_groups(history, limit)
    if history.fold.tokens > limit:
        dropped += _drop_largest(history, limit)
    if history.fold.tokens > limit:
        history.keep(None)  # better a request without it than none
    return Trimmed(cut, dropped)


def _cut_pictures(history: History) -> list[Node]:
    """Show older tool results with pictures as summaries, if all pictures take too many bytes."""
    if history.fold.picture_bytes <= MAX_PICTURE_BYTES:
        return []
    excess = history.fold.picture_bytes - int(MAX_PICTURE_BYTES * _SLACK)
    return _cut_older(history, excess, lambda entry: entry.picture_bytes)


def _cut_results(history: History, limit: int) -> list[Node]:
    """Show older tool results as summaries, so that the rest has `limit` tokens."""
    return _cut_older(history, history.fold.tokens - int(limit * _SLACK), _tokens_saved)


def _tokens_saved(entry: Entry) -> int:
    return entry.tokens - estimate_blocks(map(shortened, entry.message.content))


def _cut_older(history: History, excess: int, saved_by: Callable[[Entry], int]) -> list[Node]:
    """Cut tool results down, oldest first; never those of the latest exchange."""
    tools = [entry for entry in history.fold.entries if entry.kind is EntryKind.TOOL]
    cut: list[Node] = []
    for entry in tools[:-1]:
        if excess <= 0:
            break
        if (saved := saved_by(entry)) > 0:
            excess -= saved
            cut.extend(entry.nodes)
    if cut:
        history.cut.update((node.node_id, 0) for node in cut)
        history.refold()
    return cut


def _show_latest_in_part(history: History, limit: int) -> list[Node]:
    """A latest exchange that would take most of the window keeps head and tail of its results.

    Nothing else makes room for it, and a model that sees a part can ask for the next one.
    """
    tools = [entry for entry in history.fold.entries if entry.kind is EntryKind.TOOL]
    share = int(limit * _LATEST_SHARE)
    if not tools or tools[-1].tokens <= share:
        return []
    nodes = list(tools[-1].nodes)
    history.cut.update((node.node_id, share) for node in nodes)
    history.refold()
    return nodes


def _drop_groups(history: History, limit: int) -> list[str]:
    """Leave out the oldest whole groups; what must never go stays, even of an old group."""
    entries = history.fold.entries
    protected = _protected(history)
    excess = history.fold.tokens - int(limit * _SLACK)
    dropped: list[str] = []
    for _, group in groupby(entries, lambda entry: entry.group):
        if excess <= 0:
            break
        for entry in group:
            if id(entry) not in protected:
                excess -= entry.tokens
                dropped.extend(entry.node_ids)
    if dropped:
        history.dropped.update(dropped)
        history.refold()
    return dropped


def _drop_largest(history: History, limit: int) -> list[str]:
    """Leave out the largest groups before the current message, the otherwise protected ones too.

    A first goal or a latest exchange that fills the window alone would end every later run.
    """
    entries = history.fold.entries
    users = [entry for entry in entries if entry.kind is EntryKind.USER]
    current = users[-1].group if users else 0
    never = _always_kept(history)
    groups: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.group < current and id(entry) not in never:
            groups.setdefault(entry.group, []).append(entry)
    excess = history.fold.tokens - limit
    dropped: list[str] = []
    for group in sorted(groups.values(), key=lambda group: -sum(e.tokens for e in group)):
        if excess <= 0:
            break
        excess -= sum(entry.tokens for entry in group)
        dropped.extend(node_id for entry in group for node_id in entry.node_ids)
    if dropped:
        history.dropped.update(dropped)
        history.refold()
    return dropped


def _protected(history: History) -> set[int]:
    entries = history.fold.entries
    users = [entry for entry in entries if entry.kind is EntryKind.USER]
    kept: list[Entry] = users[-1:]
    if history.compaction is None:
        kept += users[:1]  # the first goal; a compaction carries it itself
    latest = next((e.group for e in reversed(entries) if e.kind is EntryKind.TOOL), None)
    kept += [entry for entry in entries if entry.group == latest]
    return {id(entry) for entry in kept} | _always_kept(history)


def _always_kept(history: History) -> set[int]:
    """Summaries, open instructions, and what is kept word for word."""
    kept: set[int] = set()
    open_now = {node.node_id for node in open_instructions(history.path)}
    for entry in history.fold.entries:
        node = entry.nodes[0] if entry.nodes else None
        is_summary = node is not None and node.node_type is NodeType.COMPACTION
        is_open = node is not None and node.node_id in open_now
        is_kept = node is None and entry.kind is EntryKind.SYNTHETIC
        if is_summary or is_open or is_kept:
            kept.add(id(entry))
    return kept

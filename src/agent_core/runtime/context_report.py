"""Report on the contents of a session's context window, read from its requests; asks no model."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_core.config.models import Config
from agent_core.context.history import is_of_other_memory
from agent_core.context.messages import WindowShares
from agent_core.storage.rows import session_not_found
from agent_core.storage.store import SessionStore
from agent_core.text import estimate_text
from agent_core.types import (
    ContextReport,
    ContextSegment,
    EventType,
    Node,
    NodeType,
    PrefixChange,
    Role,
    RuntimeEvent,
    SegmentName,
)
from agent_core.types.memory_scopes import MEMORY_SHARED

_REQUESTS = 50
"""Number of past requests searched for a change of the prefix."""

_ORDER: Sequence[SegmentName] = (
    "system",
    "tools",
    "instructions",
    "skills",
    "memory",
    "conversation",
    "tool results",
    "task board",
)
_BLOCKS: Mapping[str, SegmentName] = {
    "system.instruction_catalog": "instructions",
    "run_instructions": "instructions",
    "skill_catalog": "skills",
    "memory_catalog": "memory",
    "tool_catalog": "tools",
    "mcp_servers": "tools",
}
_NODES: Mapping[NodeType, SegmentName] = {
    NodeType.SKILL_CONTEXT: "skills",
    NodeType.MEMORY_CONTEXT: "memory",
    NodeType.TOOL_CONTEXT: "tools",
}


async def read_context_report(
    store: SessionStore, config: Config, session_id: str
) -> ContextReport:
    """Report what fills the context window of a session.

    Raises:
        StorageError: `session_not_found`.
    """
    session = await store.session(session_id)
    if session is None:
        raise session_not_found(session_id)
    shares = WindowShares.share_out(config.model, config.context)
    empty = ContextReport(
        session_id=session_id,
        model=config.model.name,
        window=shares.window,
        reserve=shares.output_reserve,
        free=shares.prompt,
    )
    agent_id = session.root_agent_id
    if agent_id is None:
        return empty
    built = await store.last_events(session_id, agent_id, EventType.CONTEXT_BUILT, limit=_REQUESTS)
    if not built:
        return empty
    last = built[0].payload
    path = await store.path(session.active_node_id) if session.active_node_id else []
    counts = Counter[SegmentName]()
    for block in await _system_blocks(store, built):
        counts[_block_segment(str(block["block_id"]))] += int(block["token_count"])
    counts["tools"] += last["use"]["tools"]
    board = estimate_text(last["task_board"] or "")
    counts["task board"] += board
    counts.update(_count_messages(path, last, last["use"]["messages"] - board))
    scale = float(last["use"]["scale"])
    segments = [
        ContextSegment(name=name, tokens=round(counts[name] * scale))
        for name in _ORDER
        if counts[name]
    ]
    window, reserve = last["budget"]["window"], last["budget"]["output_reserve"]
    answered = await store.last_events(session_id, agent_id, EventType.MODEL_COMPLETED, limit=1)
    usage: Mapping[str, Any] = answered[0].payload["usage"] if answered else {}
    return empty.model_copy(
        update={
            "model": last["settings"]["model"],
            "memory": last.get("memory", MEMORY_SHARED),
            "window": window,
            "reserve": reserve,
            "segments": segments,
            "free": max(window - reserve - sum(each.tokens for each in segments), 0),
            "last_change": next((_change(each) for each in built if _has_moved(each)), None),
            "last_input_tokens": int(usage.get("input_tokens") or 0),
            "last_cached_tokens": int(usage.get("cache_read_tokens") or 0),
        }
    )


async def _system_blocks(
    store: SessionStore, built: Sequence[RuntimeEvent]
) -> Iterable[Mapping[str, Any]]:
    """Return the last request's system blocks; only requests that change them record them."""
    run_id = built[0].run_id
    for event in built:
        if event.run_id == run_id and "system" in event.payload:
            return event.payload["system"]
    for event in await store.events_after(run_id, 0, limit=_REQUESTS) if run_id else ():
        if event.event_type is EventType.CONTEXT_BUILT and "system" in event.payload:
            return event.payload["system"]
    return ()


def _block_segment(block_id: str) -> SegmentName:
    return (
        "instructions" if block_id.startswith("instructions:") else _BLOCKS.get(block_id, "system")
    )


def _count_messages(
    path: Sequence[Node], last: Mapping[str, Any], sent: int
) -> Counter[SegmentName]:
    """Count the tokens of a path by segment: as they were sent, and as added since."""
    scope = last.get("memory", MEMORY_SHARED)
    path = [node for node in path if not is_of_other_memory(node, scope)]
    ends = [place for place, node in enumerate(path) if node.node_id == last["path_end_node_id"]]
    starts = [place for place, node in enumerate(path) if node.node_type is NodeType.COMPACTION]
    start = starts[-1] if starts else 0
    end = ends[0] + 1 if ends else start
    settled = set(last["settled_node_ids"])
    before = _by_segment(node for node in path[start:end] if node.node_id not in settled)
    after = _by_segment(path[max(start, end) :])
    total = sum(before.values())
    share = sent / total if total and ends else 1.0  # older results may have been cut
    for name, count in before.items():
        after[name] += round(count * share)
    return after


def _by_segment(nodes: Iterable[Node]) -> Counter[SegmentName]:
    counts = Counter[SegmentName]()
    for node in nodes:
        own: SegmentName = "tool results" if node.role is Role.TOOL else "conversation"
        counts[_NODES.get(node.node_type, own)] += node.token_count
    return counts


def _has_moved(event: RuntimeEvent) -> bool:
    return bool(event.payload["changed_segment"])


def _change(event: RuntimeEvent) -> PrefixChange:
    return PrefixChange(
        part=event.payload["changed_segment"],
        run_id=event.run_id or "",
        turn=event.payload["turn"],
        created_at=event.created_at,
    )

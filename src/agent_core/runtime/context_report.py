"""Report on the contents of a session's context window, read from its requests; asks no model."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent_core.config.models import Config
from agent_core.context.history import MessageHistory
from agent_core.context.messages import WindowShares
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
    Usage,
)
from agent_core.types.event_details import ContextBuilt, ModelReplied, SystemPart
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
    session = await store.require_session(session_id)
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
    requests = _requests(built)
    if not requests:
        return empty
    last = requests[0][1]
    path = await store.path(session.active_node_id) if session.active_node_id else []
    counts = Counter[SegmentName]()
    for block in await _system_blocks(store, requests):
        counts[_block_segment(block.block_id)] += block.token_count
    counts["tools"] += last.use.tools
    board = estimate_text(last.task_board or "")
    counts["task board"] += board
    counts.update(_count_messages(path, last, last.use.messages - board))
    segments = [
        ContextSegment(name=name, tokens=round(counts[name] * last.use.scale))
        for name in _ORDER
        if counts[name]
    ]
    window, reserve = last.budget.window, last.budget.output_reserve
    answered = await store.last_events(session_id, agent_id, EventType.MODEL_COMPLETED, limit=1)
    reply = answered[0].details if answered else None
    usage = (reply.usage if isinstance(reply, ModelReplied) else None) or Usage()
    return empty.model_copy(
        update={
            "model": last.settings.model,
            "memory": last.memory or MEMORY_SHARED,
            "window": window,
            "reserve": reserve,
            "segments": segments,
            "free": max(window - reserve - sum(each.tokens for each in segments), 0),
            "last_change": next(_changes(requests), None),
            "last_input_tokens": usage.input_tokens,
            "last_cached_tokens": usage.cache_read_tokens,
        }
    )


def _requests(events: Iterable[RuntimeEvent]) -> list[tuple[RuntimeEvent, ContextBuilt]]:
    read = ((event, event.details) for event in events)
    return [(event, details) for event, details in read if isinstance(details, ContextBuilt)]


async def _system_blocks(
    store: SessionStore, requests: Sequence[tuple[RuntimeEvent, ContextBuilt]]
) -> Iterable[SystemPart]:
    """Return the last request's system blocks; only requests that change them record them."""
    run_id = requests[0][0].run_id
    for event, request in requests:
        if event.run_id == run_id and request.system is not None:
            return request.system
    for _, request in _requests(
        await store.events_after(run_id, 0, limit=_REQUESTS) if run_id else ()
    ):
        if request.system is not None:
            return request.system
    return ()


def _block_segment(block_id: str) -> SegmentName:
    return (
        "instructions" if block_id.startswith("instructions:") else _BLOCKS.get(block_id, "system")
    )


def _count_messages(path: Sequence[Node], last: ContextBuilt, sent: int) -> Counter[SegmentName]:
    """Count the tokens of a path by segment: as they were sent, and as added since."""
    ends = [place + 1 for place, node in enumerate(path) if node.node_id == last.path_end_node_id]
    before = path[: ends[0] if ends else 0]
    total = sum(node.token_count for node in _in_view(before, last))
    share = sent / total if total else 1.0  # older results may have been cut
    were_sent = {node.node_id for node in before}
    shown = _in_view(path, last)
    counts = _by_segment(node for node in shown if node.node_id not in were_sent)
    for name, count in _by_segment(node for node in shown if node.node_id in were_sent).items():
        counts[name] += round(count * share)
    return counts


def _in_view(path: Sequence[Node], last: ContextBuilt) -> list[Node]:
    """Return the nodes that a request shows of a path: with a summary, also what it keeps."""
    history = MessageHistory(
        last.budget.reattached,
        settled=last.settled_node_ids,
        scope=last.memory or MEMORY_SHARED,
    )
    history.take(path)
    return [node for entry in history.builder.entries for node in entry.nodes]


def _by_segment(nodes: Iterable[Node]) -> Counter[SegmentName]:
    counts = Counter[SegmentName]()
    for node in nodes:
        own: SegmentName = "tool results" if node.role is Role.TOOL else "conversation"
        counts[_NODES.get(node.node_type, own)] += node.token_count
    return counts


def _changes(requests: Iterable[tuple[RuntimeEvent, ContextBuilt]]) -> Iterator[PrefixChange]:
    for event, request in requests:
        if request.changed_segment:
            yield PrefixChange(
                part=request.changed_segment,
                run_id=event.run_id or "",
                turn=request.turn,
                created_at=event.created_at,
            )

"""How memories are listed for a model: one line each, within a budget."""

import json
from collections.abc import Callable, Iterable

from agent_core.memory.entry import Memory

Estimate = Callable[[str], int]
"""Tokens of a text."""


def bounded(lines: Iterable[str], room: int, estimate: Estimate) -> str:
    """As many whole lines as fit into `room` tokens; a last line counts the others."""
    kept: list[str] = []
    more = 0
    for line in lines:
        if room >= 0 and line.strip():
            room -= estimate(line) + 1
            if room >= 0:
                kept.append(line)
        more += room < 0 and bool(line.strip())
    if more:
        kept.append(f"- ({more} more are not listed)")
    return "\n".join(kept)


def front_matter_line(memory: Memory) -> str:
    """What a memory's head says, as one line of JSON."""
    head = {
        "id": memory.memory_id,
        "category": memory.category,
        "summary": memory.summary,
        "tags": list(memory.tags),
        "updated_at": f"{memory.updated_at:%Y-%m-%d}",
        "source_node_ids": list(memory.source_node_ids)[-5:],
    }
    return json.dumps(head, ensure_ascii=False)

"""The ContextBuildReport: why the model saw what it saw, and why a prompt cache missed."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_core.context.blocks import CutBlock
from agent_core.context.budget import Budget
from agent_core.text import json_bytes
from agent_core.types import SystemBlock, ToolDefinition

MOST_IDS = 200
"""A report lists at most this many node ids, the newest ones, and says how many there are."""

SEGMENTS = ("static_system", "tools", "dynamic_system", "history")
"""The parts of a request in the order in which a provider's prompt cache compares them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Estimated tokens of one request; `scale` turns estimates into the model's own count."""

    static_system: int
    dynamic_system: int
    tools: int
    messages: int
    scale: float

    @property
    def estimated(self) -> int:
        """All parts, as estimated: what `TokenScale.observe` compares with the usage."""
        return self.static_system + self.dynamic_system + self.tools + self.messages

    @property
    def total(self) -> int:
        """All parts in the model's own tokens, as far as it is known."""
        return round(self.estimated * self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBuildReport:
    """How one request came to be; with the path's nodes it is enough to build it again.

    Attributes:
        turn: from 1, within the run.
        settings: `model`, `temperature` and `max_output_tokens` of the request.
        node_ids: of the path, in the first report of a run; None later.
        added_node_ids: new on the path since the last report; None in the first one.
        excluded_node_ids: not (or no longer) part of the request, since the last report.
        cut_results: tool nodes shown as summaries from this request on, with their artifacts.
        dropped_node_ids: left out from this request on, because nothing else made it fit.
        settled_node_ids: the instruction files of the system part; others are messages.
        kept: what stands before the messages because exchanges are left out.
        system: the blocks as they stand, where they differ from the last report.
        tools: the tools' names, where they differ from the last report.
        message_count: messages of the history; `hashes["history"]` covers these.
        changed_segment: the first of `SEGMENTS` that is not what it was; a history that has only
            grown at its end has not changed.
    """

    turn: int
    settings: Mapping[str, Any]
    budget: Budget
    use: Use
    over_budget: bool
    path_end_node_id: str | None
    node_count: int
    node_ids: Sequence[str] | None
    added_node_ids: Sequence[str] | None
    excluded_node_ids: Sequence[str]
    compaction_node_id: str | None
    kept_blocks: Sequence[str]
    cut_blocks: Sequence[CutBlock]
    cut_results: Sequence[Mapping[str, Any]]
    dropped_node_ids: Sequence[str]
    settled_node_ids: Sequence[str]
    kept: str | None
    system: Sequence[SystemBlock] | None
    tools: Sequence[str] | None
    board: str | None
    message_count: int
    hashes: Mapping[str, str]
    changed_segment: str | None

    def payload(self) -> dict[str, Any]:
        """The report as the payload of `context_built`."""
        budget, use = self.budget, self.use
        payload: dict[str, Any] = {
            "turn": self.turn,
            "settings": dict(self.settings),
            "budget": {
                "window": budget.window,
                "output_reserve": budget.output_reserve,
                "prompt": budget.prompt,
                "dynamic_system": budget.dynamic,
                "reattached": budget.reattached,
            },
            "use": {
                "static_system": use.static_system,
                "dynamic_system": use.dynamic_system,
                "tools": use.tools,
                "messages": use.messages,
                "estimated": use.estimated,
                "total": use.total,
                "scale": round(use.scale, 4),
            },
            "over_budget": self.over_budget,
            "path_end_node_id": self.path_end_node_id,
            "node_count": self.node_count,
            **_listed("excluded_node_ids", self.excluded_node_ids),
            "compaction_node_id": self.compaction_node_id,
            "system_blocks": {
                "kept": list(self.kept_blocks),
                "cut": [
                    {"block_id": c.block_id, "tokens": c.tokens, "kept_tokens": c.kept_tokens}
                    for c in self.cut_blocks
                ],
            },
            "downgraded_artifacts": [dict(result) for result in self.cut_results],
            "dropped_node_ids": list(self.dropped_node_ids),
            "settled_node_ids": list(self.settled_node_ids),
            "kept": self.kept,
            "task_board": self.board,
            "message_count": self.message_count,
            "hashes": dict(self.hashes),
            "changed_segment": self.changed_segment,
        }
        if self.node_ids is not None:
            payload["node_ids"] = list(self.node_ids)
        if self.added_node_ids is not None:
            payload |= _listed("added_node_ids", self.added_node_ids)
        if self.system is not None:
            payload["system"] = [_block_reference(block) for block in self.system]
        if self.tools is not None:
            payload["tools"] = list(self.tools)
        return payload


def hash_system(blocks: Iterable[SystemBlock]) -> str:
    """A hash of what the model reads of these blocks."""
    rolling = hashlib.sha256()
    for block in blocks:
        rolling.update(block.content.encode("utf-8", "surrogatepass"))
        rolling.update(b"\0")
    return rolling.hexdigest()[:16]


def hash_tools(tools: Iterable[ToolDefinition]) -> str:
    """A hash of what the model sees of these tools."""
    rolling = hashlib.sha256()
    for tool in tools:
        rolling.update(json_bytes([tool.name, tool.description, tool.input_schema]))
    return rolling.hexdigest()[:16]


def _listed(key: str, ids: Sequence[str]) -> dict[str, Any]:
    listed: dict[str, Any] = {key: list(ids[-MOST_IDS:])}
    if len(ids) > MOST_IDS:
        listed[f"{key}_count"] = len(ids)
    return listed


def _block_reference(block: SystemBlock) -> dict[str, Any]:
    """A block by reference where its text is kept elsewhere: in the package, or in a node."""
    reference: dict[str, Any] = {
        "block_id": block.block_id,
        "source": block.source,
        "priority": block.priority,
        "dynamic": block.dynamic,
        "token_count": block.token_count,
        "metadata": block.metadata,
    }
    if not block.metadata.keys() & {"asset_id", "node_id"}:
        reference["content"] = block.content
    return reference

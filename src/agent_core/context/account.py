"""Tells, turn by turn, what is new in the requests of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_core.config.models import ModelConfig
from agent_core.context.budget import Budget
from agent_core.context.history import History
from agent_core.context.report import MOST_IDS, SEGMENTS, ContextBuildReport, Use
from agent_core.context.segments import SystemSegment, ToolSegment
from agent_core.context.shorten import artifact_ids
from agent_core.context.trim import Trimmed
from agent_core.types import Node, SystemBlock, ToolDefinition


@dataclass(frozen=True, slots=True)
class Parts:
    """What the requests of one run are put together from."""

    model: ModelConfig
    budget: Budget
    history: History
    system: SystemSegment
    tools: ToolSegment

    def settings(self, use: Use) -> dict[str, Any]:
        """The request's own settings, beside its texts."""
        return {
            "model": self.model.name,
            "temperature": self.model.temperature,
            "max_output_tokens": self.budget.output_for(use.total),
        }


class ContextReporter:
    """Remembers what was reported last, so that a report costs what has changed.

    Args:
        previous: the last report's payload of an earlier run of this session, if there is one.
    """

    def __init__(self, previous: Mapping[str, Any] | None = None) -> None:
        self._previous = previous
        self._turn = 0
        self._nodes = 0
        self._revision = 0
        self._excluded = 0
        self._summarised = 0
        self._cut: list[Mapping[str, Any]] = []
        self._dropped: list[str] = []
        self._hashes: dict[str, str] = {}
        self._blocks: Sequence[SystemBlock] | None = None
        self._tools: Sequence[ToolDefinition] | None = None

    def report(
        self, parts: Parts, *, use: Use, trimmed: Trimmed, board: str | None
    ) -> ContextBuildReport:
        """Describe the request that has just been put together.

        A request that is over budget is not sent: what its report would have told is told again
        by the next one.
        """
        history, system, tools = parts.history, parts.system, parts.tools
        path = history.path
        is_first = self._turn == 0
        hashes = {
            "static_system": system.static_hash,
            "tools": tools.hash,
            "dynamic_system": system.dynamic_hash,
            "history": history.fold.hash,
        }
        self._cut += [_reference(node, history.cut[node.node_id]) for node in trimmed.cut]
        self._dropped += trimmed.dropped
        has_new_tools = tools.definitions is not self._tools
        report = ContextBuildReport(
            turn=self._turn + 1,
            settings=parts.settings(use),
            budget=parts.budget,
            use=use,
            over_budget=use.total > parts.budget.prompt,
            path_end_node_id=path[-1].node_id if path else None,
            node_count=len(path),
            node_ids=_ids(path[-MOST_IDS:]) if is_first else None,
            added_node_ids=None if is_first else _ids(path[self._nodes :]),
            excluded_node_ids=self._newly_excluded(history),
            compaction_node_id=history.compaction.node_id if history.compaction else None,
            kept_blocks=[block.block_id for block in system.blocks],
            cut_blocks=system.cut,
            cut_results=self._cut,
            dropped_node_ids=self._dropped,
            settled_node_ids=sorted(history.settled or ()),
            kept=history.kept,
            system=system.blocks if system.blocks is not self._blocks else None,
            tools=[tool.name for tool in tools.definitions] if has_new_tools else None,
            board=board,
            message_count=len(history.fold.messages),
            hashes=hashes,
            changed_segment=self._first_change(hashes, history),
        )
        if not report.over_budget:
            self._remember(parts, hashes)
        return report

    def _remember(self, parts: Parts, hashes: dict[str, str]) -> None:
        history = parts.history
        self._turn += 1
        self._nodes, self._revision, self._hashes = len(history.path), history.revision, hashes
        self._excluded, self._summarised = len(history.fold.excluded), history.summarised
        self._blocks, self._tools = parts.system.blocks, parts.tools.definitions
        self._cut, self._dropped = [], []

    def _first_change(self, hashes: Mapping[str, str], history: History) -> str | None:
        before = self._hashes
        count: int | None = None
        if not before and self._previous is not None:
            before = self._previous.get("hashes", {})
            count = self._previous.get("message_count")
        for segment in SEGMENTS[:-1]:
            if before and before.get(segment) != hashes[segment]:
                return segment
        if count is not None:
            has_changed = history.fold.hash_at(count) != before.get("history")
        else:
            has_changed = bool(before) and history.revision != self._revision
        return "history" if has_changed else None

    def _newly_excluded(self, history: History) -> list[str]:
        fold = history.fold
        is_new_fold = history.revision != self._revision
        new = fold.excluded[0 if is_new_fold else self._excluded :]
        if history.summarised > self._summarised:
            new = _ids(history.path[self._summarised : history.summarised]) + new
        return new


def _ids(nodes: Sequence[Node]) -> list[str]:
    return [node.node_id for node in nodes]


def _reference(node: Node, shown_tokens: int) -> dict[str, Any]:
    """A tool node whose results are not shown whole, and the artifacts that hold them."""
    artifacts = [known for result in node.results for known in artifact_ids(result)]
    reference: dict[str, Any] = {"node_id": node.node_id, "artifact_ids": artifacts}
    return reference | {"shown_tokens": shown_tokens} if shown_tokens else reference

"""One compaction: summarise piece by piece, put what core keeps in front, check the result."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, Protocol

from agent_core.assets import load_asset
from agent_core.compact.answer import summary_of
from agent_core.compact.cut import Cut
from agent_core.compact.kept import Estimate, Kept, collect_kept, escaped, fitted, rendered
from agent_core.compact.transcript import pieces, transcript
from agent_core.errors import ErrorCode, SchemaError
from agent_core.types import Draft, Node, NodeType, user_text

_HISTORY, _TURN = "system.compact_history", "system.compact_turn"
_CUT = "\n[the summary was cut here: it was longer than allowed]"


class CompactRunner(Protocol):
    """Runs the compact agent: it reads a text and answers; it has no tools and no history."""

    async def ask(self, prompt: str, *, max_tokens: int) -> str:
        """One run of the agent, and its answer of about `max_tokens` tokens at most.

        Raises:
            AgentCoreError: the run failed, for the reason that this gives.
        """
        ...


KeepArtifact = Callable[[str], Awaitable[str]]
"""Stores a text beside the session and returns the artifact's id."""

OpenPlans = Callable[[Sequence[Node]], Sequence[Node]]
"""The plan and task instructions of a path that have not been acted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """In estimated tokens: the summary, what core keeps, and a piece of conversation at a time."""

    summary: int
    kept: int
    piece: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A compaction that is good to be written.

    Attributes:
        draft: the node; what is written into `details` says how it came to be.
        tokens: what the node costs, in estimated tokens.
    """

    draft: Draft
    tokens: int


class Compactor:
    """Makes compactions of one path.

    Args:
        runner: the compact agent.
        estimate: tokens of a text.
        keep: for what no longer fits into the `<kept>` part.
        open_plans: asked about the whole path.
    """

    def __init__(
        self,
        runner: CompactRunner,
        *,
        estimate: Estimate,
        keep: KeepArtifact,
        open_plans: OpenPlans,
    ) -> None:
        self._runner = runner
        self._estimate = estimate
        self._keep = keep
        self._open_plans = open_plans

    async def compact(self, path: Sequence[Node], cut: Cut, limits: Limits) -> Compaction:
        """Summarise what lies before the cut.

        Raises:
            SchemaError: the answer holds no summary, or the result lacks what core keeps, or is
                longer than what it replaces.
            AgentCoreError: the compact agent failed, or the artifact could not be stored.
        """
        kept, rest = await asyncio.to_thread(self._kept, path, limits.kept)
        summary = await self._summary(path, cut, limits)
        artifact_id = await self._keep(rest) if rest else None
        head = rendered(kept, artifact_id)
        text = f"{head}\n\n{summary}"
        tokens = self._estimate(text)
        _check(text, kept, artifact_id, tokens=tokens, replaced=cut.replaced_tokens)
        metadata: dict[str, Any] = {
            "summary": summary,
            "first_kept_node_id": path[cut.end].node_id,
            "tokens_before": cut.tokens_before,
            "details": {
                "kept": kept.details(artifact_id),
                "covered_node_id": path[-1].node_id,
                "previous_compaction_id": cut.previous.node_id if cut.previous else None,
                "split_turn": cut.turn < cut.end,
            },
        }
        return Compaction(draft=user_text(text, NodeType.COMPACTION, **metadata), tokens=tokens)

    def _kept(self, path: Sequence[Node], room: int) -> tuple[Kept, str]:
        return fitted(collect_kept(path, self._open_plans(path)), room, self._estimate)

    async def _summary(self, path: Sequence[Node], cut: Cut, limits: Limits) -> str:
        """The summary of what came before; the beginning of a turn cut in two on its own."""
        earlier = str(cut.previous.metadata.get("summary", "")) if cut.previous else ""
        before, begun = path[cut.start : cut.turn], path[cut.turn : cut.end]
        if earlier and not before:  # more of a turn whose beginning is part of the summary
            before, begun = begun, before
        most = limits.summary // 2 if before and begun else limits.summary
        summary = await self._of(_HISTORY, before, earlier, limits=limits, most=most)
        if not begun:
            return summary
        turn = await self._of(_TURN, begun, "", limits=limits, most=most)
        return f"{summary}\n\n# The turn under way, so far\n\n{turn}" if before else turn

    async def _of(
        self, asset_id: str, nodes: Sequence[Node], earlier: str, *, limits: Limits, most: int
    ) -> str:
        """Go through a part of the path, each piece with the summary of those before it."""
        summary = earlier
        parts = pieces(transcript(nodes), limits.piece, self._estimate)
        template = Template(load_asset(asset_id).text)
        for number, part in enumerate(parts, 1):
            prompt = template.substitute(
                earlier=summary or "(none)",
                part=f"{number} of {len(parts)}",
                words=max(most * 3 // 5, 40),
                conversation=part,
            )
            answer = await self._runner.ask(prompt, max_tokens=most)
            summary = self._bounded(summary_of(answer), most)
        return summary

    def _bounded(self, summary: str, most: int) -> str:
        cost = self._estimate(summary)
        if cost <= most:
            return summary
        return summary[: max(len(summary) * most // cost - len(_CUT), 1)].rstrip() + _CUT


def _check(text: str, kept: Kept, artifact_id: str | None, *, tokens: int, replaced: int) -> None:
    """Refuse a compaction that loses something, or saves nothing.

    Raises:
        SchemaError: says which.
    """
    missing = [said for said in kept.texts() if escaped(said) not in text]
    if artifact_id is not None and artifact_id not in text:
        missing.append(artifact_id)
    if missing:
        message = f"the compaction lacks what had to be kept: {missing[0][:100]!r}"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
    if tokens >= replaced:
        message = f"the summary has {tokens} tokens, and what it would replace only {replaced}"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)

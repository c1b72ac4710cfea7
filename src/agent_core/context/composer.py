"""Path in, request out: what the model sees in each turn of one run."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.account import ContextReporter, Parts
from agent_core.context.budget import Budget
from agent_core.context.history import History, shown_texts
from agent_core.context.loaded import View
from agent_core.context.report import ContextBuildReport, Use
from agent_core.context.segments import SystemSegment, ToolSegment
from agent_core.context.tokens import TokenScale, estimate_blocks
from agent_core.context.trim import Trimmed, trim
from agent_core.context.wrappers import board_message
from agent_core.types import (
    ModelMessage,
    ModelRequest,
    Node,
    NodeType,
    SystemBlock,
    ToolDefinition,
    Usage,
)

TaskBoardSource = Callable[[int], str | None]
"""Gives the task board as it stands, within a budget in tokens; None where there is none."""


@dataclass(frozen=True, slots=True)
class Built:
    """A request, and the account of how it came to be.

    `over_budget` says that it does not fit: compact the path and build again, or give up with
    `prompt_too_long`.
    """

    request: ModelRequest
    report: ContextBuildReport

    @property
    def over_budget(self) -> bool:
        return self.report.over_budget

    def report_payload(self) -> dict[str, Any]:
        """The report as the payload of `context_built`."""
        return self.report.payload()


class Composer:
    """Builds the requests of one run, and keeps what it has made of the path so far.

    Args:
        model: window, name and settings.
        context: reserves and budgets, clamped to the window.
        static: blocks that are always kept, in their order.
        dynamic: blocks that are kept as far as they fit, by priority. Instruction files the
            model has read come with the path and join them.
        own: instruction files that are in the prompt from the start.
        settled: `settled` of the agent's last composer, if it had one.
        view: is told which texts stand in each request.
        scale: what is known about real token counts, shared by all runs.
        board: the task board, shown after the history.
        previous: the last `context_built` payload of the session, for `changed_segment`.
        metadata: goes into every request, for those who watch; no provider sees it.
    """

    def __init__(
        self,
        *,
        model: ModelConfig,
        context: ContextConfig,
        static: Sequence[SystemBlock],
        dynamic: Sequence[SystemBlock] = (),
        own: Sequence[SystemBlock] = (),
        settled: Collection[str] | None = None,
        view: View | None = None,
        scale: TokenScale | None = None,
        board: TaskBoardSource | None = None,
        previous: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._scale = scale or TokenScale()
        self._board = board
        budget = Budget.share_out(model, context)
        block_budget = int(budget.dynamic / self._scale.of(model.name))
        self._parts = Parts(
            model,
            budget,
            History(budget.reattached, settled=settled),
            SystemSegment(static, dynamic, own=own, budget=block_budget),
            ToolSegment(),
        )
        self._account = ContextReporter(previous)
        self._view = view or View()
        self._kept: str | None = None
        self._metadata = dict(metadata or {})
        self._estimated = 0
        self._last: Built | None = None

    def build(
        self, path: Sequence[Node], tools: Sequence[ToolDefinition], *, may_drop: bool = False
    ) -> Built:
        """Turn the path, root first, into the next request.

        Older tool results are cut down when it does not fit. `may_drop` allows leaving out the
        oldest whole exchanges after that; what still does not fit is `over_budget`.
        """
        parts = self._parts
        if self._last is None:
            parts.system.show(())
        parts.history.own = parts.system.own_versions
        parts.history.take(path)
        if self._last is None:
            parts.system.begin(parts.history.former)
        parts.system.show(list(parts.history.instructions.values()))
        parts.tools.show(tools)
        board = self._board(parts.budget.board) if self._board else None
        trailing = [board_message(board)] if board else []
        trimmed = self._make_fit(trailing, may_drop=may_drop)
        use = self._use(trailing)
        self._estimated = use.estimated
        request = ModelRequest(
            **parts.settings(use),
            system=parts.system.blocks,
            messages=parts.history.fold.messages + trailing,
            tools=list(tools),
            metadata=self._metadata,
        )
        self._estimated = use.estimated
        report = self._account.report(parts, use=use, trimmed=trimmed, board=board)
        self._last = Built(request, report)
        self._view.show(self._shown)
        return self._last

    def keep(self, text: str) -> None:
        """Take what must not be lost, should the next request leave exchanges out."""
        self._kept = text

    @property
    def room_for_kept(self) -> int:
        """Estimated tokens that `keep` may take: at most a quarter of the window."""
        budget, scale = self._parts.budget, self._scale.of(self._parts.model.name)
        return max(int(min(budget.window // 4, budget.prompt // 5) / scale), 1)

    @property
    def settled(self) -> Collection[str]:
        """Ids of the instruction files of the system part, for the agent's next composer."""
        return frozenset(self._parts.history.settled or ())

    def _shown(self, node_type: NodeType) -> Iterator[Mapping[str, Any]]:
        if node_type is NodeType.INSTRUCTION_CONTEXT:
            yield from self._parts.system.instructions()
        yield from shown_texts(self._parts.history, node_type)

    @property
    def last_report(self) -> dict[str, Any] | None:
        """The payload of the last report: what `previous` of the session's next run wants."""
        return self._last.report_payload() if self._last else None

    def observe(self, usage: Usage) -> None:
        """Learn from what the last built request really cost, cached tokens included."""
        whole = max(usage.input_tokens, usage.total_tokens - usage.output_tokens)
        model = self._parts.model.name
        self._scale.observe(model, self._estimated, whole, usage.input_tokens)

    def refused(self) -> None:
        """Learn that the provider found the last built request too long.

        The same path, built again, is over budget.
        """
        budget = self._parts.budget
        self._scale.exceeded(self._parts.model.name, self._estimated, budget.prompt)

    def _make_fit(self, trailing: Sequence[ModelMessage], *, may_drop: bool) -> Trimmed:
        history, use = self._parts.history, self._use(trailing)
        room = int(self._parts.budget.prompt / use.scale) - use.estimated + history.fold.tokens
        return trim(history, room, may_drop=may_drop, kept=self._kept)

    def _use(self, trailing: Sequence[ModelMessage]) -> Use:
        parts = self._parts
        extra = sum(estimate_blocks(message.content) for message in trailing)
        return Use(
            static_system=parts.system.static_tokens,
            dynamic_system=parts.system.dynamic_tokens,
            tools=parts.tools.tokens,
            messages=parts.history.fold.tokens + extra,
            scale=self._scale.of(parts.model.name),
        )

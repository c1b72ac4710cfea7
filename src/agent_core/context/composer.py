"""Path in, request out: what the model sees in each turn of one run."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.history import MessageHistory, trim
from agent_core.context.messages import board_message
from agent_core.context.report import ContextBuildReport, ContextReporter, Use
from agent_core.context.system_prompt import SystemSegment, ToolSegment
from agent_core.context.tokens import Budget, TokenScale, estimate_blocks
from agent_core.tools.loaded import View
from agent_core.types import ModelRequest, Node, NodeType, SystemBlock, ToolDefinition, Usage

TaskBoardSource = Callable[[int], str | None]
"""Gives the task board as it stands, within a budget in tokens; None where there is none."""


@dataclass(frozen=True, slots=True)
class Built:
    """A request, what it takes of the budget, and the report of how it came to be."""

    request: ModelRequest
    report: ContextBuildReport
    budget: Budget
    use: Use

    @property
    def over_budget(self) -> bool:
        """It does not fit: compact the path and build again, or give up (`prompt_too_long`)."""
        return self.use.total > self.budget.prompt

    def report_payload(self) -> dict[str, Any]:
        """The report as the payload of `context_built`."""
        return dict(self.report)


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
        view: is updated with the texts that stand in each request.
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
        self._model = model
        self._scale = scale or TokenScale()
        self._board = board
        self._budget = budget = Budget.share_out(model, context)
        self._history = MessageHistory(budget.reattached, settled=settled)
        block_budget = int(budget.dynamic / self._scale.of(model.name))
        self._system = SystemSegment(static, dynamic, own=own, budget=block_budget)
        self._tools = ToolSegment()
        self._reporter = ContextReporter(previous)
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
        history, system, model = self._history, self._system, self._model
        if self._last is None:
            system.show(())
        history.own = system.own_versions
        history.take(path)
        if self._last is None:
            system.former = history.former
        system.show(list(history.instructions.values()))
        self._tools.show(tools)
        board = self._board(self._budget.board) if self._board else None
        trailing = [board_message(board)] if board else []
        around = sum(estimate_blocks(message.content) for message in trailing)
        scale = self._scale.of(model.name)
        taken = system.static_tokens + system.dynamic_tokens + self._tools.tokens + around
        room = int(self._budget.prompt / scale) - taken
        trimmed = trim(history, room, may_drop=may_drop, kept=self._kept)
        use = Use(
            static_system=system.static_tokens,
            dynamic_system=system.dynamic_tokens,
            tools=self._tools.tokens,
            messages=history.builder.tokens + around,
            scale=scale,
        )
        self._estimated = use.estimated
        settings: dict[str, Any] = {
            "model": model.name,
            "temperature": model.temperature,
            "max_output_tokens": self._budget.output_for(use.total),
        }
        request = ModelRequest(
            **settings,
            system=system.blocks,
            messages=history.builder.messages + trailing,
            tools=list(tools),
            metadata=self._metadata,
        )
        report = self._reporter.report(
            history,
            trimmed,
            system=system,
            tools=self._tools,
            settings=settings,
            budget=self._budget,
            use=use,
            task_board=board,
        )
        self._last = Built(request, report, self._budget, use)
        self._view.show(self._loaded_texts)
        return self._last

    def keep(self, text: str) -> None:
        """Take what must not be lost, should the next request leave exchanges out."""
        self._kept = text

    @property
    def room_for_kept(self) -> int:
        """Estimated tokens that `keep` may take: at most a quarter of the window."""
        budget, scale = self._budget, self._scale.of(self._model.name)
        return max(int(min(budget.window // 4, budget.prompt // 5) / scale), 1)

    @property
    def settled(self) -> Collection[str]:
        """Ids of the instruction files of the system part, for the agent's next composer."""
        return frozenset(self._history.settled or ())

    @property
    def last_report(self) -> dict[str, Any] | None:
        """The payload of the last report: what `previous` of the session's next run wants."""
        return self._last.report_payload() if self._last else None

    def observe(self, usage: Usage) -> None:
        """Learn from what the last built request really cost, cached tokens included."""
        whole = max(usage.input_tokens, usage.total_tokens - usage.output_tokens)
        self._scale.observe(self._model.name, self._estimated, whole, usage.input_tokens)

    def refused(self) -> None:
        """Learn that the provider found the last built request too long.

        The same path, built again, is over budget.
        """
        self._scale.exceeded(self._model.name, self._estimated, self._budget.prompt)

    def _loaded_texts(self, node_type: NodeType) -> Iterator[Mapping[str, Any]]:
        """The metadata of the texts of one type in the system part and among the messages."""
        if node_type is NodeType.INSTRUCTION_CONTEXT:
            yield from self._system.instructions()
        for entry in self._history.builder.entries:
            for node in entry.nodes:
                if node.node_type is node_type:
                    yield node.metadata

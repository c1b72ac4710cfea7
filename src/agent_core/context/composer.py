"""Path in, request out: what the model sees in each turn of one run, and the report of why."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from agent_core.assets import load_asset
from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.history import MessageHistory, Trimmed, trim
from agent_core.context.messages import TokenScale, WindowShares, artifact_ids, board_message
from agent_core.context.system_prompt import (
    SystemSegment,
    ToolSegment,
    hash_system,
    hash_tools,
    instruction_block,
)
from agent_core.providers.estimates import estimate_blocks
from agent_core.tools.base import View
from agent_core.types import (
    ModelRequest,
    Node,
    NodeType,
    OutputFormat,
    SystemBlock,
    ToolDefinition,
    Usage,
)
from agent_core.types.memory_scopes import MEMORY_SHARED

MOST_IDS = 200
"""A report lists at most this many node ids, the newest ones, and says how many there are."""

_SEGMENTS = ("static_system", "tools", "dynamic_system")
"""The parts of a request before its history, in the order in which a prompt cache compares them."""


class Use(Struct, frozen=True, kw_only=True):
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


ContextBuildReport = dict[str, Any]
"""How one request came to be, as the payload of `context_built`.

With the path's nodes it is enough to build the request again. Beside the budget, the estimated use
and the ids of what was cut, dropped or excluded since the last report it has:

- `turn`: from 1, within the run; `settings`: model, temperature and output tokens of the request.
- `node_ids`: of the path, in the first report of a run; later only `added_node_ids`.
- `downgraded_artifacts`: tool nodes shown as summaries from this request on, with their artifacts.
- `settled_node_ids`: the instruction files of the system part; others are messages.
- `kept`: what stands before the messages because exchanges are left out.
- `memory`: the scope of the run's memory, where it is not the shared one.
- `system` and `tools`: the blocks and the tools' names, where they differ from the last report.
- `message_count`: messages of the history; `hashes.history` covers these.
- `changed_segment`: the first of static_system, tools, dynamic_system and history that is not what
  it was; a history that has only grown at its end has not changed.
"""


def _newest(key: str, ids: Sequence[str]) -> dict[str, Any]:
    listed: dict[str, Any] = {key: list(ids[-MOST_IDS:])}
    return listed | {f"{key}_count": len(ids)} if len(ids) > MOST_IDS else listed


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
        self,
        history: MessageHistory,
        trimmed: Trimmed,
        *,
        system: SystemSegment,
        tools: ToolSegment,
        budget: WindowShares,
        use: Use,
        **facts: Any,
    ) -> ContextBuildReport:
        """Describe the request that has just been put together.

        A request that is over budget is not sent: the next report repeats what its report holds.

        Args:
            history: whose messages stand in the request.
            trimmed: what was cut and dropped for it.
            system: the system part.
            tools: the tools on offer.
            budget: of the model.
            use: what the request takes of it.
            facts: `settings` and `task_board` of the report.
        """
        path, builder, total = history.path, history.builder, use.total
        for node in trimmed.cut:
            artifacts = [known for result in node.results for known in artifact_ids(result)]
            reference: dict[str, Any] = {"node_id": node.node_id, "artifact_ids": artifacts}
            if shown := history.cut[node.node_id]:
                reference["shown_tokens"] = shown
            self._cut.append(reference)
        self._dropped += trimmed.dropped
        is_rebuilt = history.revision != self._revision
        excluded = builder.excluded[0 if is_rebuilt else self._excluded :]
        if history.summarised > self._summarised:
            excluded = _ids(path[self._summarised : history.summarised]) + excluded
        hashes = {
            "static_system": system.static_hash,
            "tools": tools.hash,
            "dynamic_system": system.dynamic_hash,
            "history": builder.hash,
        }
        report: ContextBuildReport = {
            "turn": self._turn + 1,
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
                "total": total,
                "scale": round(use.scale, 4),
            },
            "over_budget": total > budget.prompt,
            "path_end_node_id": path[-1].node_id if path else None,
            "node_count": len(path),
            **_newest("excluded_node_ids", excluded),
            "compaction_node_id": history.compaction.node_id if history.compaction else None,
            "system_blocks": {
                "kept": [block.block_id for block in system.blocks],
                "cut": [block._asdict() for block in system.cut],
            },
            "downgraded_artifacts": list(self._cut),
            "dropped_node_ids": list(self._dropped),
            "settled_node_ids": sorted(history.settled or ()),
            "kept": history.kept,
            "message_count": len(builder.messages),
            "hashes": hashes,
            "changed_segment": self._first_change(hashes, history),
            **facts,
        }
        if history.scope != MEMORY_SHARED:
            report["memory"] = history.scope
        if self._turn == 0:
            report["node_ids"] = _ids(path[-MOST_IDS:])
        else:
            report |= _newest("added_node_ids", _ids(path[self._nodes :]))
        if system.blocks is not self._blocks:
            report["system"] = [_block_reference(block) for block in system.blocks]
        if tools.definitions is not self._tools:
            report["tools"] = [tool.name for tool in tools.definitions]
        if not report["over_budget"]:
            self._turn += 1
            self._nodes, self._revision, self._hashes = len(path), history.revision, hashes
            self._excluded, self._summarised = len(builder.excluded), history.summarised
            self._blocks, self._tools = system.blocks, tools.definitions
            self._cut, self._dropped = [], []
        return report

    def _first_change(self, hashes: Mapping[str, str], history: MessageHistory) -> str | None:
        before: Mapping[str, Any] = self._hashes
        count: int | None = None
        if not before and self._previous is not None:
            before = self._previous.get("hashes", {})
            count = self._previous.get("message_count")
        for segment in _SEGMENTS:
            if before and before.get(segment) != hashes[segment]:
                return segment
        if count is not None:
            has_changed = history.builder.hash_at(count) != before.get("history")
        else:
            has_changed = bool(before) and history.revision != self._revision
        return "history" if has_changed else None


def _ids(nodes: Sequence[Node]) -> list[str]:
    return [node.node_id for node in nodes]


def rebuild_requests(
    nodes: Iterable[Node],
    reports: Sequence[Mapping[str, Any]],
    tools: Mapping[str, ToolDefinition],
    *,
    variants: Mapping[str, ToolDefinition] | None = None,
    output: OutputFormat | None = None,
) -> list[ModelRequest]:
    """Build the requests of a run's turns again.

    Args:
        nodes: at least the path up to the last report's `path_end_node_id`, in any order.
        reports: the payloads of the run's `context_built` events, from the first one on.
        tools: definitions by name; definitions are not part of the history, so these are the
            ones of today.
        variants: other definitions of some of them, for the requests whose hash they fit.
        output: the answer format, the same in every request of the run.

    Returns:
        One request for each report. `metadata.exact` says whether all its hashes are those of
        the original: redaction, or a newer version of a prompt or tool, makes them differ.
    """
    known = {node.node_id: node for node in nodes}
    blocks: list[SystemBlock] = []
    names: list[str] = []
    cut: dict[str, int] = {}
    dropped: set[str] = set()
    requests: list[ModelRequest] = []
    for report in reports:
        if "system" in report:
            blocks = [_restore_block(reference, known) for reference in report["system"]]
        names = report.get("tools", names)
        for result in report["downgraded_artifacts"]:
            cut[result["node_id"]] = result.get("shown_tokens", 0)
        dropped |= set(report["dropped_node_ids"])
        settled = report.get("settled_node_ids")
        history = MessageHistory(
            report["budget"]["reattached"],
            cut=cut,
            dropped=dropped,
            settled=settled,
            scope=report.get("memory", MEMORY_SHARED),
        )
        path: list[Node] = []
        node_id = report["path_end_node_id"]
        while node_id is not None and (node := known.get(node_id)) is not None:
            path.append(node)
            node_id = node.parent_id
        history.take(path[::-1])
        history.keep(report.get("kept"))
        offered = [tools[name] for name in names if name in tools]
        if variants and hash_tools(offered) != report["hashes"]["tools"]:
            others = [variants.get(tool.name, tool) for tool in offered]
            if hash_tools(others) == report["hashes"]["tools"]:
                offered = others
        hashes = {
            "static_system": hash_system(block for block in blocks if not block.dynamic),
            "tools": hash_tools(offered),
            "dynamic_system": hash_system(block for block in blocks if block.dynamic),
            "history": history.builder.hash,
        }
        board, is_exact = report["task_board"], hashes == report["hashes"]
        request = ModelRequest(
            **report["settings"],
            system=blocks,
            messages=history.builder.messages + ([board_message(board)] if board else []),
            tools=offered,
            output=output,
            metadata={"rebuilt": True, "turn": report["turn"], "exact": is_exact},
        )
        requests.append(request)
    return requests


def _restore_block(reference: Mapping[str, Any], known: Mapping[str, Node]) -> SystemBlock:
    """A block as it was; text that stands elsewhere is read there."""
    if "content" in reference:
        return SystemBlock.model_validate(reference)
    metadata = reference["metadata"]
    if "asset_id" in metadata:
        return SystemBlock(**reference, content=load_asset(metadata["asset_id"]).text)
    node = known.get(metadata["node_id"])
    return instruction_block(node) if node else SystemBlock(**reference, content="")


TaskBoardSource = Callable[[int], str | None]
"""Gives the task board as it stands, within a budget in tokens; None where there is none."""


class Built(Struct, frozen=True):
    """A request, what it takes of the budget, and the report of how it came to be."""

    request: ModelRequest
    report: ContextBuildReport
    budget: WindowShares
    use: Use

    @property
    def over_budget(self) -> bool:
        """It does not fit: compact the path and build again, or give up (`prompt_too_long`)."""
        return bool(self.report["over_budget"])

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
        history: its `history`: a path that goes on costs what is new.
        view: is updated with the texts that stand in each request.
        scale: what is known about real token counts, shared by all runs.
        board: the task board, shown after the history.
        previous: the last `context_built` payload of the session, for `changed_segment`.
        metadata: goes into every request, for those who watch; no provider sees it.
        output: what the answer has to be.
        memory_scope: of the run; what was recalled from another memory is not shown.
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
        history: MessageHistory | None = None,
        view: View | None = None,
        scale: TokenScale | None = None,
        board: TaskBoardSource | None = None,
        previous: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        output: OutputFormat | None = None,
        memory_scope: str = MEMORY_SHARED,
    ) -> None:
        self._output = output
        self._model = model
        self._context = context
        self._scale = scale or TokenScale()
        self._board = board
        self._budget = budget = WindowShares.share_out(model, context)
        if history is None or not history.can_serve(budget.reattached, memory_scope):
            history = MessageHistory(budget.reattached, settled=settled, scope=memory_scope)
        self.history = history
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
        history, system, model = self.history, self._system, self._model
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
        request = ModelRequest.of_checked(
            **settings,
            system=list(system.blocks),
            messages=history.builder.messages + trailing,
            tools=list(tools),
            tool_choice=None,
            output=self._output,
            stop=[],
            provider_options={},
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

    def use(self, model: ModelConfig) -> bool:
        """Build the next requests for another model; returns whether the last one fits it, too."""
        self._model = model
        self._budget = WindowShares.share_out(model, self._context)
        return self._estimated * self._scale.of(model.name) <= self._budget.prompt

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
        return frozenset(self.history.settled or ())

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
        for entry in self.history.builder.entries:
            for node in entry.nodes:
                if node.node_type is node_type:
                    yield node.metadata

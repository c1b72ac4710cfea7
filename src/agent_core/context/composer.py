"""Builds the request of each turn from the path, and the report on its construction."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct

from agent_core.assets import load_asset
from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.history import MessageHistory, TrimResult, trim
from agent_core.context.loaded import (
    CurrentText,
    CurrentTexts,
    dump_texts,
    load_texts,
)
from agent_core.context.messages import (
    MARGIN,
    TokenScale,
    WindowShares,
    artifact_ids,
    board_message,
)
from agent_core.context.system_prompt import (
    SystemSegment,
    ToolSegment,
    hash_system,
    hash_tools,
    instruction_block,
)
from agent_core.providers.estimates import estimate_blocks
from agent_core.text.json_text import table
from agent_core.tools.base import View
from agent_core.types import (
    ModelRequest,
    Node,
    NodeType,
    OutputFormat,
    Role,
    SystemBlock,
    ToolDefinition,
    Usage,
)
from agent_core.types.memory_scopes import MEMORY_SHARED

MOST_IDS = 200
"""A report lists at most this many node ids, the newest ones, and gives the full count."""

_NEARLY_FULL = 0.8
"""Share of the window from which a refusal without a reason may be about the length."""

_SEGMENTS = ("static_system", "tools", "dynamic_system")
"""The parts of a request before its history, in the order in which a prompt cache compares them."""


class ContextUse(Struct, frozen=True, kw_only=True):
    """Estimated tokens of a request; `scale` converts estimates to the token count of the model.

    Attributes:
        estimated: the estimate of all parts; `TokenScale.observe` compares it with the usage.
        total: all parts in tokens of the model, as far as its scale is known.
    """

    static_system: int
    dynamic_system: int
    tools: int
    messages: int
    scale: float
    estimated: int
    total: int


ContextBuildReport = dict[str, Any]
"""The construction of a request, as the payload of `context_built`.

Together with the nodes of the path it suffices to rebuild the request. Besides the budget, the
estimated use, and the ids of everything cut, dropped or excluded since the last report, it has:

- `turn`: from 1, within the run; `settings`: model, temperature, output tokens and the like.
- `node_ids`: the nodes of the path, in the first report of a run; later only `added_node_ids`.
- `downgraded_artifacts`: tool nodes shown as summaries from this request on, with their artifacts.
- `settled_node_ids`: the instruction files of the system part; others are messages.
- `file_texts`: the texts of files that have changed since the model loaded them, by node: the text
  shown from this request on, or None if none is.
- `kept`: the text before the messages if exchanges are left out.
- `memory`: the scope of the run's memory, if it is not the shared one.
- `system` and `tools`: the blocks and the names of the tools, if they differ from the last report.
- `message_count`: messages of the history; `hashes.history` covers these.
- `changed_segment`: the first changed one of static_system, tools, dynamic_system and history; a
  history that has only grown at its end is unchanged.
"""


def _newest(key: str, ids: Sequence[str]) -> dict[str, Any]:
    listed: dict[str, Any] = {key: list(ids[-MOST_IDS:])}
    return listed | {f"{key}_count": len(ids)} if len(ids) > MOST_IDS else listed


def _block_reference(block: SystemBlock) -> dict[str, Any]:
    """Return a block by reference if its text is stored in the package or in a node."""
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
    """Remembers the last report, so that a new report contains only changes.

    Args:
        previous: the payload of the last report of an earlier run of this session, if any.
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
        self._texts: CurrentTexts = {}
        self._hashes: dict[str, str] = {}
        self._blocks: Sequence[SystemBlock] | None = None
        self._tools: Sequence[ToolDefinition] | None = None

    def report(
        self,
        history: MessageHistory,
        trimmed: TrimResult,
        *,
        system: SystemSegment,
        tools: ToolSegment,
        budget: WindowShares,
        use: ContextUse,
        **facts: Any,
    ) -> ContextBuildReport:
        """Describe the request that has just been built.

        A request over its budget is not sent; the next report repeats the contents of its report.

        Args:
            history: the history with the messages of the request.
            trimmed: the parts cut and dropped for it.
            system: the system part.
            tools: the tools offered.
            budget: the budget of the model.
            use: the part of the budget that the request uses.
            facts: `settings` and `task_board` of the report.
        """
        path, builder = history.path, history.builder
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
            gone = path[self._summarised : history.summarised]
            excluded = _ids([node for node in gone if node is not history.answered]) + excluded
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
                "total": use.total,
                "scale": round(use.scale, 4),
            },
            "over_budget": use.total > budget.prompt,
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
        if history.texts is not self._texts and (history.texts or self._texts):
            report["file_texts"] = dump_texts(history.texts)
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
            self._texts, self._cut, self._dropped = history.texts, [], []
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
    return list(map(attrgetter("node_id"), nodes))


def rebuild_requests(
    nodes: Iterable[Node],
    reports: Sequence[Mapping[str, Any]],
    tools: Mapping[str, ToolDefinition],
    *,
    variants: Mapping[str, ToolDefinition] | None = None,
    output: OutputFormat | None = None,
) -> list[ModelRequest]:
    """Rebuild the requests of the turns of a run.

    Args:
        nodes: at least the path up to the last report's `path_end_node_id`, in any order.
        reports: the payloads of the run's `context_built` events, from the first one on.
        tools: the current definitions by name; the history contains no definitions.
        variants: other definitions of some tools, for the requests with a matching hash.
        output: the answer format, which is the same in all requests of the run.

    Returns:
        One request for each report. `metadata.exact` says whether all its hashes equal the
        original hashes: redaction or a newer version of a prompt or tool changes them.
        the original: redaction, or a newer version of a prompt or tool, makes them differ.
    """
    known = {node.node_id: node for node in nodes}
    blocks: list[SystemBlock] = []
    names: list[str] = []
    cut: dict[str, int] = {}
    dropped: set[str] = set()
    texts: CurrentTexts = {}
    requests: list[ModelRequest] = []
    for report in reports:
        if "system" in report:
            blocks = [_restore_block(reference, known) for reference in report["system"]]
        names = report.get("tools", names)
        for result in report["downgraded_artifacts"]:
            cut[result["node_id"]] = result.get("shown_tokens", 0)
        dropped |= set(report["dropped_node_ids"])
        settled = report.get("settled_node_ids")
        if "file_texts" in report:
            texts = load_texts(report["file_texts"], known)
        history = MessageHistory(
            report["budget"]["reattached"],
            cut=cut,
            dropped=dropped,
            settled=settled,
            scope=report.get("memory", MEMORY_SHARED),
            texts=texts,
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
    """Restore a block; a text stored elsewhere is read from there."""
    if "content" in reference:
        return SystemBlock.model_validate(reference)
    metadata = reference["metadata"]
    if "asset_id" in metadata:
        return SystemBlock(**reference, content=load_asset(metadata["asset_id"]).text)
    node = known.get(metadata["node_id"])
    return instruction_block(node) if node else SystemBlock(**reference, content="")


def _noted_repository(compaction: Node | None) -> str | None:
    """Return the state of the repository that a compaction has noted."""
    noted = table(compaction.metadata.get("details")).get("repository") if compaction else None
    return noted if isinstance(noted, str) else None


_UNSET: Mapping[str, Any] = {"provider_tools": [], "reasoning": None, "seed": None, "stop": []}
"""Settings that most requests do not have."""

TaskBoardSource = Callable[[int], str | None]
"""Returns the current task board within a budget in tokens; None if there is none."""


class BuiltRequest(Struct, frozen=True):
    """A request, its use of the budget, and the report on its construction.

    A request that is `over_budget` does not fit: compact the path and build again, or give up.
    """

    request: ModelRequest
    report: ContextBuildReport
    budget: WindowShares
    use: ContextUse
    over_budget: bool


class SystemBlocks(Struct, frozen=True):
    """The blocks of the system part.

    Attributes:
        static: always kept, in their order.
        dynamic: kept by priority as long as they fit. Instruction files that the model has read
            are found in the path and added to them.
        state: builds the dynamic block on the state of the project, as it was when the last
            compaction began, which has noted it, or when the session was opened (None).
        budget: estimated tokens of the dynamic blocks; by default a share of the window.
        own: instruction files that are in the prompt from the start.
    """

    static: Sequence[SystemBlock] = ()
    dynamic: Sequence[SystemBlock] = ()
    state: Callable[[str | None], SystemBlock] | None = None
    budget: int | None = None
    own: Sequence[SystemBlock] = ()


class ComposerState(Struct, frozen=True):
    """The state that a composer takes over from the agent's last one.

    Attributes:
        settled: ids of the instruction file nodes in the system part; None: all those on the path.
        history: only new nodes of a continued path are processed.
        report: the last `context_built` payload of the session, for `changed_segment`.
    """

    settled: Collection[str] | None = None
    history: MessageHistory | None = None
    report: Mapping[str, Any] | None = None


class Texts(Struct, frozen=True):
    """The texts that a conversation loads.

    Attributes:
        view: updated with the texts contained in each request.
        current: looks up loaded texts on disk; without it, they are shown as they were loaded.
        memory_scope: the scope of the run; memories recalled from another scope are not shown.
    """

    view: View | None = None
    current: CurrentText | None = None
    memory_scope: str = MEMORY_SHARED


class RequestFields(Struct, frozen=True):
    """Further fields of every request.

    Attributes:
        metadata: for observers; not sent to a provider.
        output: the format of the answer.
        sampling: `seed` and `stop`, if any.
    """

    metadata: Mapping[str, Any] | None = None
    output: OutputFormat | None = None
    sampling: Mapping[str, Any] | None = None


_NOTHING_EARLIER, _NO_TEXTS, _NO_FIELDS = ComposerState(), Texts(), RequestFields()


class Composer:
    """Builds the requests of a run, and keeps the messages built from the path so far.

    Args:
        model: its window, name and settings.
        context: reserves and budgets, limited by the window.
        system: the blocks of the system part.
        earlier: taken over from the agent's last composer.
        texts: texts that the conversation loads.
        scale: the observed token counts, shared by all runs.
        board: the task board, shown after the history.
        fields: further fields of the requests.
    """

    def __init__(
        self,
        model: ModelConfig,
        context: ContextConfig,
        system: SystemBlocks,
        *,
        earlier: ComposerState = _NOTHING_EARLIER,
        texts: Texts = _NO_TEXTS,
        scale: TokenScale | None = None,
        board: TaskBoardSource | None = None,
        fields: RequestFields = _NO_FIELDS,
    ) -> None:
        self._output = fields.output
        self._sampling = dict(fields.sampling or {})
        self._model = model
        self._context = context
        self._scale = scale or TokenScale()
        self._board = board
        self._budget = budget = WindowShares.share_out(model, context)
        history, scope = earlier.history, texts.memory_scope
        if history is None or not history.can_serve(budget.reattached, scope):
            history = MessageHistory(
                budget.reattached, settled=earlier.settled, scope=scope, current=texts.current
            )
        self.history = history
        self._state = system.state
        self._noted_by: Node | None = None
        dynamic = system.dynamic
        if system.state is not None:
            dynamic = [system.state(None), *dynamic]
        most = budget.dynamic if system.budget is None else system.budget
        self._system = SystemSegment(system.static, dynamic, own=system.own, budget=most)
        self._tools = ToolSegment()
        self._reporter = ContextReporter(earlier.report)
        self._view = texts.view or View()
        self._kept: str | None = None
        self._metadata = dict(fields.metadata or {})
        self._estimated = 0
        self._largest_answered = 0
        self._last: BuiltRequest | None = None

    def build(
        self, path: Sequence[Node], tools: Sequence[ToolDefinition], *, may_drop: bool = False
    ) -> BuiltRequest:
        """Build the next request from the path, root first.

        Older tool results are cut if it does not fit. With `may_drop`, the oldest whole exchanges
        are left out after that; a request that still does not fit is `over_budget`.
        """
        history, system, model = self.history, self._system, self._model
        if self._last is None:
            system.show(())
        history.own = system.own_versions
        history.take(path)
        system.former = history.former
        if self._state is not None and history.compaction is not self._noted_by:
            self._noted_by = history.compaction
            system.replace(self._state(_noted_repository(history.compaction)))
        system.show(list(history.instructions.values()))
        self._tools.show(tools)
        board = self._board(self._budget.board) if self._board else None
        trailing = [board_message(board)] if board else []
        around = estimate_blocks(trailing[0].content) if trailing else 0
        scale = self._scale.of(model.name)
        before = system.static_tokens + system.dynamic_tokens + self._tools.tokens
        room = int(self._budget.prompt / scale) - before - around
        trimmed = trim(history, room, may_drop=may_drop, kept=self._kept)
        messages = history.builder.tokens + around
        self._estimated = before + messages
        use = ContextUse(
            static_system=system.static_tokens,
            dynamic_system=system.dynamic_tokens,
            tools=self._tools.tokens,
            messages=messages,
            scale=scale,
            estimated=before + messages,
            total=round((before + messages) * scale),
        )
        settings: dict[str, Any] = {
            "model": model.name,
            "temperature": model.temperature,
            "max_output_tokens": self._budget.output_for(use.total),
        }
        if model.provider_tools:
            settings["provider_tools"] = list(model.provider_tools)
        if model.reasoning is not None:
            settings["reasoning"] = model.reasoning
        request = ModelRequest.of_checked(
            **{**_UNSET, **settings, **self._sampling},
            system=list(system.blocks),
            messages=history.builder.messages + trailing,
            tools=list(tools),
            tool_choice=None,
            output=self._output,
            provider_options={},
            metadata=self._metadata,
        )
        report = self._reporter.report(
            history,
            trimmed,
            system=system,
            tools=self._tools,
            settings=settings | self._sampling,
            budget=self._budget,
            use=use,
            task_board=board,
        )
        self._last = BuiltRequest(request, report, self._budget, use, report["over_budget"])
        self._view.show(self._loaded_texts)
        return self._last

    def use(self, model: ModelConfig) -> bool:
        """Build the next requests for another model; return whether the last one also fits it."""
        self._model = model
        self._budget = WindowShares.share_out(model, self._context)
        return self._estimated * self._scale.of(model.name) <= self._budget.prompt

    def keep(self, text: str) -> None:
        """Set the text to keep if the next request leaves exchanges out."""
        self._kept = text

    @property
    def room_for_kept(self) -> int:
        """Return the estimated tokens that `keep` may use: at most a quarter of the window."""
        budget, scale = self._budget, self._scale.of(self._model.name)
        return max(int(min(budget.window // 4, budget.prompt // 5) / scale), 1)

    @property
    def handed_on(self) -> ComposerState:
        """Return what the agent's next composer takes over."""
        report = dict(self._last.report) if self._last else None
        return ComposerState(frozenset(self.history.settled or ()), self.history, report)

    def observe(self, usage: Usage) -> None:
        """Learn from the real token count of the last request, cached tokens included."""
        whole = max(usage.input_tokens, usage.total_tokens - usage.output_tokens)
        self._scale.observe(self._model.name, self._estimated, whole, usage.input_tokens)
        self._largest_answered = max(self._largest_answered, self._estimated)

    @property
    def may_be_too_long(self) -> bool:
        """Return whether the last request nearly fills the window, or outgrew those answered."""
        last = self._last
        if last is None:
            return False
        if last.use.total > self._budget.window * _NEARLY_FULL:
            return True
        has_answers = any(message.role is Role.ASSISTANT for message in last.request.messages)
        return has_answers and last.use.estimated > self._largest_answered

    async def correct_window(
        self, window: int | None, *, is_stated: bool = True
    ) -> ModelConfig | None:
        """Learn that the service found the last request too long; see `ContextSource`.

        A window without a name becomes smaller than that request. Where the window is known, or no
        answer has shown yet how the model counts, the estimate is taken to be wrong instead.

        Returns:
            The model with its new window; None if it has the window it had.
        """
        name, last = self._model.name, self._last
        used = last.use.total if last is not None else 0
        if window is None or window == self._model.window:
            is_miscounted = is_stated and not (window is None and self._scale.knows(name))
            if is_miscounted and self._scale.exceeded(name, self._estimated, self._budget.prompt):
                return None
            window = max(min(self._model.window, int(used / MARGIN)), 1)
        output = self._budget.output_for(used)
        fits = self.use(self._model.with_window(window))
        self._system.limit(self._budget.dynamic)
        if fits and self._budget.output_for(used) >= output:
            return await self.correct_window(self._model.window)
        return self._model

    async def confirm_window(self) -> None:
        """Do nothing; see `ContextSource`."""

    def _loaded_texts(self, node_type: NodeType) -> Iterator[Mapping[str, Any]]:
        """Yield the metadata of the texts of one type in the system part and the messages."""
        if node_type is NodeType.INSTRUCTION_CONTEXT:
            yield from self._system.instructions()
        for entry in self.history.builder.entries:
            for node in entry.nodes:
                if node.node_type is node_type:
                    yield node.metadata

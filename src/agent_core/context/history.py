"""A path as the conversation of a model: its start, the nodes carried along, the parts cut.

Trimming removes a little more than necessary, so that the next turns do not change the past again
and the provider's prompt cache keeps its prefix.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from agent_core.context.loaded import (
    FILE_TEXTS,
    CurrentText,
    CurrentTexts,
    compare_with_disk,
    find_outdated,
    without_outdated,
)
from agent_core.context.messages import (
    Entry,
    EntryKind,
    MessageBuilder,
    shorten_result,
    synthetic_message,
)
from agent_core.providers.estimates import estimate_blocks
from agent_core.text import BYTES_PER_TOKEN, shorten_text, utf8_size
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    ContentBlock,
    ImageBlock,
    Node,
    NodeType,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    answered_message,
)
from agent_core.types.memory_scopes import MEMORY_SHARED

MAX_PICTURE_BYTES = 24_000_000
"""Base64 of all pictures of a request; services refuse requests of more than 32 MB."""

_SLACK = 0.85
_LATEST_SHARE = 0.5
_TOO_LARGE = "[a picture of this message is left out: it takes too much of the context window]"
_MESSAGE_SHARE = 2
"""Tokens of a message whose turn was cut, in shares of `reattached`: a quarter of the window."""
_CONSUMED_BY = {
    NodeType.PLAN_INSTRUCTION: {"code.write_file", "code.edit_file"},
    NodeType.TASK_INSTRUCTION: {"agent.task_create"},
}
_NAMED_BY = {
    NodeType.SKILL_CONTEXT: "name",
    NodeType.MEMORY_CONTEXT: "ids",
    NodeType.TOOL_CONTEXT: "name",
}
_RECALL = "internal.recall_memory"
_SCOPE = "memory"
"""The key of the scope in the metadata of recalled memories, if the scope is not the shared one."""

_OTHER_MEMORY = "(recalled from another memory than this run's: it is not shown)"


class MessageHistory:
    """Keeps the messages of a growing path up to date.

    Args:
        reattached: the tokens for skills, memories and tools carried over a compaction.
        cut: tool nodes not shown in full, and the tokens shown of their exchange (0: only
            summaries); extended by `trim`.
        dropped: ids of nodes to leave out; extended by `trim`.
        scope: the memory scope of the run; memories recalled from another scope are left out.
        settled: ids of the instruction file nodes in the system part. None: all those on the path
            when it is first taken. A compaction adds those before it. Others are messages, so that
            the beginning of the request stays the same in every process until a compaction changes
            it anyway; except files that are already there, or are too large.
        current: looks up loaded texts on disk, when the path is first taken and after a compaction.
        texts: the loaded texts that were found on disk, for a request that is rebuilt.

    Attributes:
        own: the hashes of the instruction files that were in the prompt from the start, by path.
        instructions: the files of the system part, by path, in their latest version.
        former: ids of the instruction file nodes whose texts are no newer than `own`.
        texts: loaded texts that are shown differently from their nodes, or left out.
        kept: the text to keep if `dropped` leaves exchanges out.
        answered: the message before the kept part that its beginning works on; it stays in view.
        revision: incremented when earlier messages have changed.
    """

    def __init__(
        self,
        reattached: int,
        *,
        cut: Mapping[str, int] | None = None,
        dropped: Iterable[str] = (),
        settled: Iterable[str] | None = None,
        scope: str = MEMORY_SHARED,
        current: CurrentText | None = None,
        texts: CurrentTexts | None = None,
    ) -> None:
        self.scope = scope
        self.texts: CurrentTexts = texts or {}
        self.path: Sequence[Node] = ()
        self.instructions: dict[str, Node] = {}
        self.own: Mapping[str, str] = {}
        self.former: frozenset[str] = frozenset()
        self.settled: set[str] | None = None if settled is None else set(settled)
        self.kept: str | None = None
        self.compaction: Node | None = None
        self.answered: Node | None = None
        self.summarised = 0
        self.revision = 0
        self.cut = dict(cut or {})
        self.dropped = set(dropped)
        self.builder = MessageBuilder(self.cut, self.dropped)
        self._reattached = reattached
        self._late: dict[str, ToolResultBlock] = {}
        self._positions: dict[str, int] = {}
        self._last_id: str | None = None
        self._current = current
        self._loaded: list[Node] = []
        self._outdated: Collection[str] = ()

    def take(self, path: Sequence[Node]) -> None:
        """Follow the path to its end; only new nodes are processed."""
        seen = len(self._positions)
        # A node's id determines its ancestors: if this node is the same, all before it are.
        is_longer = len(path) >= seen and path[seen - 1].node_id == self._last_id if seen else True
        if not is_longer:
            self.instructions.clear()
            self.compaction = self.kept = self.answered = None
            self._late.clear()
            self._positions.clear()
            self._loaded.clear()
            self.builder = MessageBuilder(self.cut, self.dropped)
            self.revision += 1
            self.summarised = seen = 0
        self.path = path
        new = path[seen:]
        is_compacted = False
        loaded: list[Node] = []
        for position, node in enumerate(new, seen):
            self._positions[node.node_id] = position
            if node.node_type is NodeType.COMPACTION and self._is_valid(node):
                self.compaction, is_compacted = node, True
            elif node.node_type in FILE_TEXTS:
                loaded.append(node)
        self._loaded += loaded
        if seen == 0 or is_compacted:
            self._look_up()
        if loaded or seen == 0 or is_compacted:  # as in few turns
            self._settle(loaded, is_first=seen == 0, is_compacted=is_compacted)
        if is_compacted:
            self.rebuild()
        else:
            for node in self._shown(new):
                self.builder.add(node)
            self.builder.seal()
        if self.builder.answered_late:
            self._late |= self.builder.answered_late
            self.rebuild()
        if new:
            self._last_id = new[-1].node_id

    def can_serve(self, reattached: int, scope: str) -> bool:
        """Return whether another run that continues the path would build the same messages.

        It would not if anything was cut or left out, and not with texts of files: these are looked
        up again for every run.
        """
        is_whole = not (self.cut or self.dropped or self.kept or self._loaded)
        return is_whole and self._reattached == reattached and self.scope == scope

    def keep(self, text: str | None) -> None:
        """Put the text to keep before the messages, or remove it."""
        if text != self.kept:
            self.kept = text
            self.rebuild()

    def rebuild(self) -> None:
        """Rebuild the messages: the past has changed."""
        if self.builder.entries:
            self.revision += 1
        self.builder = MessageBuilder(self.cut, self.dropped, self._late)
        self.summarised = 0
        if self.compaction is not None:
            kept = self.compaction.metadata.get("first_kept_node_id")
            start = self._positions[kept if kept is not None else self.compaction.node_id]
            while start > 0 and self.path[start].role is Role.TOOL:
                start -= 1  # never begin at a result whose call has been summarised
            self.summarised = start
            # Most histories have no summary.
            from agent_core.context.older_summaries import (  # noqa: PLC0415
                with_own_words,
            )

            self.builder.add(with_own_words(self.compaction, self.path))
            for node in self._carried(self.compaction):
                self.builder.add(node)
            self.answered = None if kept is None else answered_message(self.path, start)
            if self.answered is not None:
                self.builder.add(_fit_message(self.answered, _MESSAGE_SHARE * self._reattached))
        if self.kept:
            self.builder.note(synthetic_message(self.kept, "kept"))
        for node in self._shown(self.path[self.summarised :]):
            self.builder.add(node)
        self.builder.seal()

    def _shown(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Yield the nodes that become messages; earlier summaries are noted as excluded."""
        settled = self.settled or ()
        for node in nodes:
            if node.node_type is NodeType.COMPACTION:
                if self.compaction is None or node.node_id != self.compaction.node_id:
                    self.builder.excluded.append(node.node_id)
            elif node.node_type in _NAMED_BY and is_of_other_memory(node, self.scope):
                self.builder.excluded.append(node.node_id)
            elif node.role is Role.TOOL:
                node = _without_other_memory(node, self.scope)
                yield without_outdated(node, self._outdated) if self._outdated else node
            elif node.node_id not in settled:
                if (shown := self.texts.get(node.node_id, node)) is None:
                    self.builder.excluded.append(node.node_id)
                else:
                    yield shown

    def _look_up(self) -> None:
        """Look up the loaded texts of the path on disk."""
        if self._current is not None:
            self.texts = compare_with_disk(self._loaded, self._current) if self._loaded else {}
            self.former = frozenset()
        self._outdated = find_outdated(self.path, self.texts)

    def _settle(self, new: Sequence[Node], *, is_first: bool, is_compacted: bool) -> None:
        """Determine the instruction files that belong to the system part from now on."""
        files = [node for node in new if node.node_type is NodeType.INSTRUCTION_CONTEXT]
        if is_first:
            self.former = frozenset(node.node_id for node in files)
        if is_first and self.settled is None:
            settled = files
        else:
            settled = [node for node in files if self._belongs_to_system(node)]
        if self.compaction is not None and is_compacted:
            self.kept = None
            before = self.path[: self._positions[self.compaction.node_id]]
            settled += [n for n in before if n.node_type is NodeType.INSTRUCTION_CONTEXT]
        self.settled = (self.settled or set()) | {node.node_id for node in settled}
        if settled or is_first or is_compacted:
            self.instructions = {}
            for node in self._loaded:
                if (
                    node.node_id in self.settled
                    and (shown := self.texts.get(node.node_id, node)) is not None
                ):
                    file = str(node.metadata.get("path", ""))
                    self.instructions.pop(file, None)
                    self.instructions[file] = shown

    def _belongs_to_system(self, node: Node) -> bool:
        """Return whether it is there already, or is too large for a message."""
        node = self.texts.get(node.node_id, node) or node
        file = str(node.metadata.get("path", ""))
        is_there = self.own.get(file) == node.metadata.get("hash")
        return is_there or (node.token_count or estimate_blocks(node.content)) > self._reattached

    def _is_valid(self, node: Node) -> bool:
        kept = node.metadata.get("first_kept_node_id")
        here = self._positions[node.node_id]
        return bool(node.text.strip()) and (kept is None or self._positions.get(kept, here) < here)

    def _carried(self, compaction: Node) -> list[Node]:
        """Return the nodes a compaction reattaches: skills, memories, tools, open instructions.

        If not all fit, the newest are chosen; a newer version replaces an older one. Nodes after
        the compaction have no influence: they must not change the past.
        """
        until = self._positions[compaction.node_id]
        open_then = {node.node_id for node in open_instructions(self.path[:until])}
        names = {_loaded_name(node) for node in self.path[self.summarised : until]}
        room, carried = self._reattached, list[Node]()
        for node in reversed(self.path[: self.summarised]):
            if node.node_id in open_then:
                carried.append(node)
            elif is_of_other_memory(node, self.scope):
                continue
            elif (name := _loaded_name(node)) is not None and name not in names:
                names.add(name)
                shown = self.texts.get(node.node_id, node)
                cost = estimate_blocks(shown.content) if shown else 0
                if shown is not None and cost <= room:
                    room -= cost
                    carried.append(shown)
        return carried[::-1]


def _fit_message(node: Node, room: int) -> Node:
    """Return a user's message; its longest texts lose their middle if it has more than `room`.

    Its pictures stay, as far as they do not take more than twice the room.
    """
    if (node.token_count or estimate_blocks(node.content)) <= room:
        return node
    content: list[ContentBlock] = []
    free = 2 * room
    for block in node.content:
        cost = estimate_blocks([block]) if isinstance(block, ImageBlock) else 0
        content.append(block if cost <= free else TextBlock(text=_TOO_LARGE))
        free -= cost if cost <= free else 0
    texts = sorted(utf8_size(block.text) for block in content if isinstance(block, TextBlock))
    left = max(room - (2 * room - free), room // 4) * BYTES_PER_TOKEN
    limit = 0
    for waiting, size in zip(range(len(texts), 0, -1), texts, strict=True):
        limit = left // waiting  # the room that shorter texts leave belongs to longer ones
        if size > limit:
            break
        left -= size
    content = [
        TextBlock(text=shorten_text(block.text, limit)) if isinstance(block, TextBlock) else block
        for block in content
    ]
    return node.model_copy(update={"content": content, "token_count": estimate_blocks(content)})


def is_of_other_memory(node: Node, scope: str) -> bool:
    """Return whether a node holds memories of another scope; shared memories name no scope."""
    is_recalled = node.node_type is NodeType.MEMORY_CONTEXT
    return is_recalled and node.metadata.get(_SCOPE, MEMORY_SHARED) != scope


def _without_other_memory(node: Node, scope: str) -> Node:
    """Return the results of a turn without recalls from another memory scope."""
    for block in node.content:
        if isinstance(block, ToolResultBlock) and _answers_for_other_memory(block, scope):
            break
    else:
        return node
    content = [
        block.model_copy(update={"content": [TextBlock(text=_OTHER_MEMORY)]})
        if isinstance(block, ToolResultBlock) and _answers_for_other_memory(block, scope)
        else block
        for block in node.content
    ]
    return node.model_copy(update={"content": content})


def _answers_for_other_memory(result: ToolResultBlock, scope: str) -> bool:
    is_recall = result.metadata.get("tool_name") == _RECALL and not result.is_error
    return is_recall and result.metadata.get(_SCOPE, MEMORY_SHARED) != scope


def _loaded_name(node: Node) -> tuple[NodeType, str] | None:
    """Return the key of a skill, memory or tool node; nodes with the same key are versions."""
    key = _NAMED_BY.get(node.node_type)
    return (node.node_type, str(node.metadata.get(key, node.node_id))) if key else None


def open_instructions(path: Iterable[Node]) -> list[Node]:
    """Return the plan and task instructions that the model has not followed yet.

    An instruction also ends with the answer of a later run: the plan was given in words, or the
    user wants something else now.
    """
    waiting: dict[NodeType, Node] = {}
    calls: dict[str, ToolCallBlock] = {}
    for node in path:
        if node.node_type in _CONSUMED_BY:
            waiting[node.node_type] = node
        calls.update((call.tool_call_id, call) for call in node.calls)
        for result in node.results:
            call = calls.get(result.tool_call_id)
            if call is None or result.is_error:
                continue
            for node_type, tools in _CONSUMED_BY.items():
                if call.name in tools and _acts_on(node_type, call.arguments):
                    waiting.pop(node_type, None)
        if waiting and node.role is Role.ASSISTANT and not (node.calls or node.is_partial):
            waiting = {key: each for key, each in waiting.items() if each.run_id == node.run_id}
    return list(waiting.values())


def _acts_on(node_type: NodeType, arguments: JsonObject) -> bool:
    """Return whether a call follows an instruction; for a plan, a Markdown file is written."""
    if node_type is NodeType.PLAN_INSTRUCTION:
        return str(arguments.get("path", "")).endswith(".md")
    return True


class TrimResult(Struct, frozen=True):
    """The nodes that requests show only in part, and the nodes they omit, from now on."""

    cut: Sequence[Node] = ()
    dropped: Sequence[str] = ()


def trim(
    history: MessageHistory, limit: int, *, may_drop: bool, kept: str | None = None
) -> TrimResult:
    """Reduce a history to `limit` estimated tokens as far as possible and allowed.

    Older tool results are shortened first; then, if allowed, whole groups are left out.

    Args:
        history: the history of a run.
        limit: the limit in estimated tokens.
        may_drop: whether whole groups may be left out.
        kept: the text to keep if groups are left out; it is put before the messages from then on.
    """
    cut: list[Node] = []
    if history.builder.picture_bytes > MAX_PICTURE_BYTES:
        excess = history.builder.picture_bytes - int(MAX_PICTURE_BYTES * _SLACK)
        cut += _cut_older(history, excess, lambda entry: entry.picture_bytes)
    if history.builder.tokens <= limit:
        return TrimResult(cut)
    excess = history.builder.tokens - int(limit * _SLACK)
    cut += _cut_older(
        history,
        excess,
        lambda e: e.tokens - estimate_blocks(map(shorten_result, e.message.content)),
    )
    if history.builder.tokens > limit:
        # Only the latest exchange is left to cut: the model sees a part and can ask for the next.
        share = int(limit * _LATEST_SHARE)
        latest = [e for e in history.builder.entries if e.kind is EntryKind.TOOL][-1:]
        cut += _cut(history, [n for e in latest if e.tokens > share for n in e.nodes], share)
    if not may_drop or history.builder.tokens <= limit:
        return TrimResult(cut)
    history.keep(kept or history.kept)
    dropped = _drop(history, int(limit * _SLACK), is_last_resort=False)
    if history.builder.tokens > limit:
        dropped += _drop(history, limit, is_last_resort=True)
    if history.builder.tokens > limit:
        history.keep(None)  # a request without this text is better than no request
    return TrimResult(cut, dropped)


def _cut_older(
    history: MessageHistory, excess: int, saved_by: Callable[[Entry], int]
) -> list[Node]:
    """Cut tool results to summaries, oldest first, except in the latest exchange."""
    tools = [entry for entry in history.builder.entries if entry.kind is EntryKind.TOOL]
    cut: list[Node] = []
    for entry in tools[:-1]:
        if excess <= 0:
            break
        if (saved := saved_by(entry)) > 0:
            excess -= saved
            cut.extend(entry.nodes)
    return _cut(history, cut, 0)


def _cut(history: MessageHistory, nodes: list[Node], tokens: int) -> list[Node]:
    if nodes:
        history.cut.update((node.node_id, tokens) for node in nodes)
        history.rebuild()
    return nodes


def _drop(history: MessageHistory, limit: int, *, is_last_resort: bool) -> list[str]:
    """Leave out whole groups until the rest has `limit` tokens.

    The oldest groups are left out first, except protected entries. As a last resort, the largest
    groups before the current message are, including otherwise protected ones: a first goal or a
    latest exchange that fills the window by itself would end every later run.
    """
    entries = history.builder.entries
    users = [entry for entry in entries if entry.kind is EntryKind.USER]
    protected = _always_kept(history)
    if not is_last_resort:
        latest = next((e.group for e in reversed(entries) if e.kind is EntryKind.TOOL), None)
        first = users[:1] if history.compaction is None else []  # a compaction contains the goal
        in_latest = [entry for entry in entries if entry.group == latest]
        protected |= {id(entry) for entry in (*first, *users[-1:], *in_latest)}
    groups = [list(group) for _, group in groupby(entries, lambda entry: entry.group)]
    if is_last_resort:
        current = users[-1].group if users else 0
        groups = [group for group in groups if group[0].group < current]
    groups = [[entry for entry in group if id(entry) not in protected] for group in groups]
    if is_last_resort:
        groups.sort(key=lambda group: -sum(entry.tokens for entry in group))
    excess = history.builder.tokens - limit
    dropped: list[str] = []
    for group in groups:
        if excess <= 0:
            break
        excess -= sum(entry.tokens for entry in group)
        dropped += [node.node_id for entry in group for node in entry.nodes]
    if dropped:
        history.dropped.update(dropped)
        history.rebuild()
    return dropped


def _always_kept(history: MessageHistory) -> set[int]:
    """Return the ids of the summaries, open instructions and texts kept literally."""
    open_now = {node.node_id for node in open_instructions(history.path)}
    return {
        id(entry)
        for entry in history.builder.entries
        if (not entry.nodes and entry.kind is EntryKind.SYNTHETIC)
        or any(
            node.node_type is NodeType.COMPACTION or node.node_id in open_now
            for node in entry.nodes[:1]
        )
    }

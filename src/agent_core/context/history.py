"""One path as a model's conversation: where it starts, what is carried along, what was cut."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent_core.context.fold import MessageBuilder
from agent_core.context.tokens import estimate_blocks
from agent_core.context.wrappers import kept_message
from agent_core.types import Node, NodeType, Role, ToolCallBlock, ToolResultBlock

_CONSUMED_BY = {
    NodeType.PLAN_INSTRUCTION: "code.write_file",
    NodeType.TASK_INSTRUCTION: "agent.task_create",
}


class History:
    """Keeps the fold of a growing path up to date.

    Args:
        reattached: tokens that skills and memories carried over a compaction may take.
        cut: tool nodes not to show whole, and the tokens to show of their exchange (0: only
            summaries); grows by `trim`.
        dropped: ids of nodes to leave out; grows by `drop`.
        settled: ids of nodes of instruction files that stand in the system part. None: all that
            the path has when it is first taken. Those that come later are messages, so that the
            beginning of the request stays, until a compaction changes it anyway; but not those
            that are there already, or too large.
        kept: what must not be lost, where `dropped` leaves exchanges out.

    Attributes:
        own: the hashes of the instruction files that were in the prompt from the start, by path.
        instructions: the files of the system part, by path, in their latest version.
        former: ids of the nodes of instruction files on the path when it was first taken.
    """

    def __init__(
        self,
        reattached: int,
        *,
        cut: Mapping[str, int] | None = None,
        dropped: Iterable[str] = (),
        settled: Iterable[str] | None = None,
        kept: str | None = None,
    ) -> None:
        self.path: Sequence[Node] = ()
        self.instructions: dict[str, Node] = {}
        self.own: Mapping[str, str] = {}
        self.former: frozenset[str] = frozenset()
        self.settled: set[str] | None = None if settled is None else set(settled)
        self.kept = kept
        self.compaction: Node | None = None
        self.summarised = 0
        self.revision = 0
        self.cut = dict(cut or {})
        self.dropped = set(dropped)
        self.fold = MessageBuilder(self.cut, self.dropped)
        self._reattached = reattached
        self._late: dict[str, ToolResultBlock] = {}
        self._positions: dict[str, int] = {}
        self._last: Node | None = None

    def take(self, path: Sequence[Node]) -> None:
        """Follow the path to its end; only what is new costs anything."""
        seen = len(self._positions)
        if seen and (len(path) < seen or path[seen - 1] is not self._last):
            self._forget()
            seen = 0
        self.path = path
        new = path[seen:]
        compacted = False
        for position, node in enumerate(new, seen):
            self._positions[node.node_id] = position
            if node.node_type is NodeType.COMPACTION and self._is_valid(node):
                self.compaction, compacted = node, True
        self._settle(new, is_first=seen == 0)
        if compacted:
            self.refold()
        else:
            self._add(new)
            self.fold.seal()
        if self.fold.answered_late:
            self._late |= self.fold.answered_late
            self.refold()
        if new:
            self._last = new[-1]

    def keep(self, text: str | None) -> None:
        """Put what must not be lost before the messages, or take it away."""
        if text != self.kept:
            self.kept = text
            self.refold()

    def _settle(self, new: Sequence[Node], *, is_first: bool) -> None:
        """Decide which instruction files belong to the system part from now on."""
        files = [node for node in new if node.node_type is NodeType.INSTRUCTION_CONTEXT]
        is_compacted = self.compaction is not None and any(n is self.compaction for n in new)
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
        if settled or is_first:
            self.instructions = {}
            for node in self.path:
                if node.node_id in self.settled:
                    file = str(node.metadata.get("path", ""))
                    self.instructions.pop(file, None)
                    self.instructions[file] = node

    def _belongs_to_system(self, node: Node) -> bool:
        """It stands there already, or would take too much of the window as a message."""
        file = str(node.metadata.get("path", ""))
        is_there = self.own.get(file) == node.metadata.get("hash")
        return is_there or (node.token_count or estimate_blocks(node.content)) > self._reattached

    def refold(self) -> None:
        """Make the messages anew: the past has changed."""
        if self.fold.entries:
            self.revision += 1
        self.fold = MessageBuilder(self.cut, self.dropped, self._late)
        self.summarised = 0
        if self.compaction is not None:
            self.summarised = self._start(self.compaction)
            self.fold.add(self.compaction)
            for node in self._carried(self.compaction):
                self.fold.add(node)
        if self.kept:
            self.fold.note(kept_message(self.kept))
        self._add(self.path[self.summarised :])
        self.fold.seal()

    def _add(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.node_type is NodeType.COMPACTION:
                if node is not self.compaction:
                    self.fold.excluded.append(node.node_id)
            elif node.node_id not in (self.settled or ()):
                self.fold.add(node)

    def _is_valid(self, node: Node) -> bool:
        kept = node.metadata.get("first_kept_node_id")
        here = self._positions[node.node_id]
        return bool(node.text.strip()) and (kept is None or self._positions.get(kept, here) < here)

    def _start(self, compaction: Node) -> int:
        """Where the kept tail begins: never at a result whose call has been summarised."""
        kept = compaction.metadata.get("first_kept_node_id")
        start = self._positions[kept if kept is not None else compaction.node_id]
        while start > 0 and self.path[start].role is Role.TOOL:
            start -= 1
        return start

    def _carried(self, compaction: Node) -> list[Node]:
        """What a compaction re-attaches: loaded skills and memories, instructions still open.

        The newest come first when not all of them fit; a newer version replaces an older one.
        What comes after the compaction has no say: it must not change the past.
        """
        kept = self.path[self.summarised : self._positions[compaction.node_id]]
        before = self.path[: self.summarised]
        open_then = {node.node_id for node in open_instructions([*before, *kept])}
        names = {_name(node) for node in kept}
        room, carried = self._reattached, list[Node]()
        for node in reversed(before):
            if node.node_id in open_then:
                carried.append(node)
            elif (name := _name(node)) is not None and name not in names:
                names.add(name)
                cost = estimate_blocks(node.content)
                if cost <= room:
                    room -= cost
                    carried.append(node)
        return carried[::-1]

    def _forget(self) -> None:
        self.instructions.clear()
        self.compaction = None
        self.kept = None
        self._late.clear()
        self._positions.clear()
        self.fold = MessageBuilder(self.cut, self.dropped)
        self.summarised = 0
        self.revision += 1


def shown_texts(history: History, node_type: NodeType) -> Iterator[Mapping[str, Any]]:
    """The metadata of the texts of one type that stand among the messages."""
    for entry in history.fold.entries:
        for node in entry.nodes:
            if node.node_type is node_type:
                yield node.metadata


def open_instructions(path: Iterable[Node]) -> list[Node]:
    """Plan and task instructions that the model has not acted on yet."""
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
            for node_type, tool in _CONSUMED_BY.items():
                if call.name == tool and _acts_on(node_type, call.arguments):
                    waiting.pop(node_type, None)
    return list(waiting.values())


def _name(node: Node) -> tuple[NodeType, str] | None:
    """What a skill or memory node holds: two with one name are versions of one thing."""
    match node.node_type:
        case NodeType.SKILL_CONTEXT:
            return node.node_type, str(node.metadata.get("name", node.node_id))
        case NodeType.MEMORY_CONTEXT:
            return node.node_type, str(node.metadata.get("ids", node.node_id))
        case _:
            return None


def _acts_on(node_type: NodeType, arguments: dict[str, Any]) -> bool:
    """A plan is written as a Markdown file; other writes do not use the instruction up."""
    if node_type is NodeType.PLAN_INSTRUCTION:
        return str(arguments.get("path", "")).endswith(".md")
    return True

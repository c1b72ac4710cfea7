"""The parts of a request before its messages, with what they cost: worked out when they change."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import is_
from typing import Any

from agent_core.context.blocks import CutBlock, fit_blocks, instruction_block
from agent_core.context.report import hash_system, hash_tools
from agent_core.context.tokens import estimate_tools
from agent_core.types import Node, SystemBlock, ToolDefinition


class SystemSegment:
    """Static blocks, then the dynamic ones that fit, instruction files among them.

    Args:
        static: always kept, in this order.
        dynamic: kept by priority.
        own: instruction files as they were on the disk when the run began; a version that was
            loaded since takes the place of one.
        budget: estimated tokens for the dynamic blocks together.
    """

    def __init__(
        self,
        static: Sequence[SystemBlock],
        dynamic: Sequence[SystemBlock],
        *,
        own: Sequence[SystemBlock] = (),
        budget: int,
    ) -> None:
        self._own = {block.block_id: block for block in own}
        self._former: frozenset[str] = frozenset()
        self._read: frozenset[str] = frozenset()
        self._static = list(static)
        self._dynamic = list(dynamic)
        self._budget = budget
        self._files: list[Node] | None = None
        self.blocks: list[SystemBlock] = []
        self.cut: list[CutBlock] = []
        self.static_tokens = sum(block.token_count for block in static)
        self.static_hash = hash_system(static)
        self.dynamic_tokens = 0
        self.dynamic_hash = ""

    def begin(self, former: Iterable[str]) -> None:
        """Take the ids of the nodes of instruction files that are older than the run."""
        self._former = frozenset(former)

    def show(self, files: Sequence[Node]) -> None:
        """Take the instruction files that belong here now."""
        if self._files is not None and _same(files, self._files):
            return
        self._files = list(files)
        self._read = frozenset(f"instructions:{node.metadata.get('path', '')}" for node in files)
        loaded = {block.block_id: (node, block) for node, block in _blocks_of(files)}
        replaced = {
            name
            for name, (node, block) in loaded.items()
            if name in self._own
            and (node.node_id in self._former or _version(block) == _version(self._own[name]))
        }
        own = [block for name, block in self._own.items() if name in replaced or name not in loaded]
        later = [block for name, (_, block) in loaded.items() if name not in replaced]
        wanted = [*self._dynamic, *own, *later]
        fitted, self.cut = fit_blocks(wanted, self._budget)
        self.blocks = [*self._static, *fitted]
        self.dynamic_tokens = sum(block.token_count for block in fitted)
        self.dynamic_hash = hash_system(fitted)

    @property
    def own_versions(self) -> dict[str, str]:
        """The hash of each instruction file that was in the prompt from the start, by path."""
        return {
            str(block.metadata["path"]): str(_version(block))
            for block in self.blocks
            if self._own.get(block.block_id) is block
        }

    def instructions(self) -> list[Mapping[str, Any]]:
        """The metadata of the instruction files here that the model has read."""
        return [block.metadata for block in self.blocks if block.block_id in self._read]


class ToolSegment:
    """The tools on offer."""

    def __init__(self) -> None:
        self.definitions: Sequence[ToolDefinition] = ()
        self.tokens = 0
        self.hash = hash_tools(())

    def show(self, definitions: Sequence[ToolDefinition]) -> None:
        """Take the tools as they are now; the same sequence again costs nothing."""
        if definitions is self.definitions:
            return
        self.definitions = definitions
        self.tokens, self.hash = _measured(_Offered(definitions))


class _Offered:
    """Definitions as a key: the same objects in the same order are the same offer."""

    __slots__ = ("definitions",)

    def __init__(self, definitions: Sequence[ToolDefinition]) -> None:
        self.definitions = tuple(definitions)

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.definitions)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Offered) and _same(self.definitions, other.definitions)


@lru_cache(maxsize=64)
def _measured(offered: _Offered) -> tuple[int, str]:
    """Tokens and hash; run after run offers the same tools."""
    return estimate_tools(offered.definitions), hash_tools(offered.definitions)


def _blocks_of(files: Sequence[Node]) -> Iterator[tuple[Node, SystemBlock]]:
    return ((node, instruction_block(node)) for node in files)


def _version(block: SystemBlock) -> object:
    return block.metadata.get("hash")


def _same(these: Sequence[object], those: Sequence[object]) -> bool:
    return len(these) == len(those) and all(map(is_, these, those))

"""The parts of a request before its messages, with what they cost: worked out when they change."""

from collections.abc import Sequence
from functools import lru_cache
from operator import is_

from agent_core.context.blocks import CutBlock, fit_blocks, instruction_block
from agent_core.context.report import hash_system, hash_tools
from agent_core.context.tokens import estimate_tools
from agent_core.types import Node, SystemBlock, ToolDefinition


class SystemSegment:
    """Static blocks, then the dynamic ones that fit, instruction files read so far among them.

    Args:
        static: always kept, in this order.
        dynamic: kept by priority.
        budget: estimated tokens for the dynamic blocks together.
    """

    def __init__(
        self, static: Sequence[SystemBlock], dynamic: Sequence[SystemBlock], *, budget: int
    ) -> None:
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

    def show(self, files: Sequence[Node]) -> None:
        """Take the instruction files as they are now on the path."""
        if self._files is not None and _same(files, self._files):
            return
        self._files = list(files)
        wanted = [*self._dynamic, *map(instruction_block, files)]
        fitted, self.cut = fit_blocks(wanted, self._budget)
        self.blocks = [*self._static, *fitted]
        self.dynamic_tokens = sum(block.token_count for block in fitted)
        self.dynamic_hash = hash_system(fitted)


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


def _same(these: Sequence[object], those: Sequence[object]) -> bool:
    return len(these) == len(those) and all(map(is_, these, those))

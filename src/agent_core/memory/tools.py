"""`internal.recall_memory`: what is remembered, as context. It never writes a file."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Protocol

from pydantic import Field

from agent_core.errors import AgentCoreError, ErrorCode, ToolError
from agent_core.memory.entry import Memory
from agent_core.memory.folder import MOST_PROBLEMS, MemoryFolder
from agent_core.memory.recall import Selector
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, ToolOutput
from agent_core.tools.schema import Arguments, model_check, model_schema
from agent_core.types import (
    Access,
    Draft,
    NodeType,
    ToolDefinition,
    ToolPermission,
    user_text,
)

_LEAST_TOKENS = 32


class RecallMemory(Arguments):
    """Arguments of `internal.recall_memory`."""

    query: str = Field(min_length=1, description="What you want to know about the user.")


class View(Protocol):
    """The loaded texts in the latest request of one run."""

    @property
    def turn(self) -> int:
        """Grows with every request."""
        ...

    def texts(self, node_type: NodeType, /) -> Sequence[Mapping[str, Any]]:
        """The metadata of every text of this type in view, the latest version last."""
        ...


class Recaller(Protocol):
    """Does what the tool promises."""

    async def recall(self, query: str, tool_call_id: str) -> ToolOutput:
        """Choose memories and put their bodies into the conversation, as one node.

        Raises:
            ToolError: `memory_recall_failed`, the memory cannot be read.
        """
        ...


class Recall:
    """Recalls memories for one run; what is in view already is not added again.

    Args:
        folder: where memories lie.
        view: the run's own.
        room: tokens that the bodies may take together.
        estimate: tokens of a text.
    """

    def __init__(
        self,
        folder: MemoryFolder,
        view: View,
        *,
        room: int,
        estimate: Callable[[str], int],
    ) -> None:
        self._folder = folder
        self._view = view
        self._turn = view.turn
        self._room = room
        self._estimate = estimate
        self._coming: dict[str, str] = {}

    async def recall(self, query: str, tool_call_id: str, *, selector: Selector) -> ToolOutput:
        """Let `selector` choose, and make one node of the bodies that are not in view yet.

        Raises:
            ToolError: `memory_recall_failed`, the memory cannot be read.
        """
        try:
            remembered = await asyncio.to_thread(self._folder.read)
            catalog = await asyncio.to_thread(self._folder.catalog)
        except (AgentCoreError, OSError) as error:
            message = f"what is remembered cannot be read: {error}"
            raise ToolError(ErrorCode.MEMORY_RECALL_FAILED, message) from error
        choice = await selector.select(query, catalog, remembered)
        in_view = self._in_view()
        new = [one for one in choice.memories if in_view.get(one.memory_id) != one.version]
        texts = self._fitting(new)
        self._coming |= {one.memory_id: one.version for one in texts}
        shown = [one for one in choice.memories if one in texts or one not in new]
        answer: dict[str, Any] = {
            "memory_ids": [one.memory_id for one in shown],
            "memories": [_told(one, already=one not in texts) for one in shown],
            "already_recalled": bool(shown) and not texts,
            "selected_by": choice.by,
        }
        if len(shown) < len(choice.memories):
            answer["left_out"] = [one.memory_id for one in choice.memories if one not in shown]
        if remembered.problems:
            answer["unreadable"] = list(remembered.problems[:MOST_PROBLEMS])
        return ToolOutput(answer, [_node(texts, tool_call_id)] if texts else [])

    def _in_view(self) -> dict[str, str]:
        """The last version of each memory in view, or on its way there."""
        if self._turn != self._view.turn:
            self._turn = self._view.turn
            self._coming.clear()
        versions: dict[str, str] = {}
        for text in self._view.texts(NodeType.MEMORY_CONTEXT):
            versions |= text.get("hashes") or {}
        return versions | self._coming

    def _fitting(self, memories: Sequence[Memory]) -> dict[Memory, str]:
        """The bodies that fit; one that is too long by itself is cut."""
        room, texts = self._room, dict[Memory, str]()
        for memory in memories:
            text = _body(memory)
            cost = self._estimate(text)
            if cost > room and not texts and room >= _LEAST_TOKENS:
                text = text[: len(text) * room // cost].rstrip() + " […]"
                cost = room
            if cost <= room:
                texts[memory] = text
                room -= cost
        return texts


def recall_tool(recall: Recaller) -> Tool:
    """`internal.recall_memory` for one run."""

    async def prepare(arguments: RecallMemory, context: ToolContext, /) -> Action:
        run = partial(recall.recall, arguments.query, context.tool_call_id)
        return Action(Access(summary=arguments.query[:200]), run)

    definition = _definition()
    return Tool(definition, model_check(definition.name, RecallMemory), prepare, Concurrency.READ)


@cache
def _definition() -> ToolDefinition:
    return ToolDefinition(
        name="internal.recall_memory",
        description="Recall what is remembered about the user; the texts follow this call's "
        "result. Changes nothing.",
        input_schema=model_schema(RecallMemory),
        permission=ToolPermission.READONLY,
        tags={"internal", "readonly"},
    )


def _node(texts: dict[Memory, str], tool_call_id: str) -> Draft:
    return user_text(
        "\n\n".join(texts.values()),
        NodeType.MEMORY_CONTEXT,
        ids=[memory.memory_id for memory in texts],
        categories=list(dict.fromkeys(memory.category for memory in texts)),
        hashes={memory.memory_id: memory.version for memory in texts},
        tool_call_id=tool_call_id,
    )


def _told(memory: Memory, *, already: bool) -> dict[str, Any]:
    return {
        "memory_id": memory.memory_id,
        "category": memory.category,
        "summary": memory.summary,
        "hash": memory.version,
        "already_recalled": already,
    }


def _body(memory: Memory) -> str:
    day = f"{memory.updated_at:%Y-%m-%d}"
    return f"## {memory.summary} ({memory.category}, {day})\n\n{memory.content}"

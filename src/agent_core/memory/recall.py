"""`internal.recall_memory`: memories chosen for a question, as context. It never writes a file.

A model chooses; if it fails, memories are ranked by the words they share with the question.
"""

import asyncio
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from string import Template
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from pydantic import Field

from agent_core.assets import load_asset
from agent_core.errors import AgentCoreError, ErrorCode, SchemaError, ToolError
from agent_core.memory.entry import Memory, find_id
from agent_core.memory.folder import MOST_PROBLEMS, MemoryFolder, MemoryList
from agent_core.text import estimate_text, fit_lines
from agent_core.text.folding import fold
from agent_core.text.json_text import JsonObject, table
from agent_core.tools.base import (
    Action,
    LoadedTexts,
    Tool,
    ToolAnswer,
    ToolContext,
    ToolReturn,
    View,
)
from agent_core.tools.registry import model_tool
from agent_core.tools.schema import Arguments
from agent_core.types import Access, JsonBlock, NodeType, ToolResult, user_text
from agent_core.types.memory_scopes import MEMORY_SHARED

if TYPE_CHECKING:
    from agent_core.memory.extraction import AskModel

logger = logging.getLogger(__name__)

_WORD = re.compile(r"[^\W_]+")
_IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_ANSWER_TOKENS = 512
_MOST_WORDS = 64
"""Number of different words of a question that are used."""
_MOST_CHARS = 16_384
"""Characters of a memory or a question that are used."""
_SUMMARY_WEIGHT, _TAG_WEIGHT = 3, 3
_LEAST_SHARE = 0.2
"""Smallest score of a match, as a share of the best one; lower scores are chance."""
_LEAST_TOKENS = 32
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a about an and are at by can do does for from has have how in is it me my of on or our
        should that the their them they this to use user want was we what when which who will with
        you your
        """,
    )
)


class MemorySelection(Struct, frozen=True):
    """The chosen memories, the most useful first, and how they were chosen."""

    memories: Sequence[Memory]
    by: str


class Selector:
    """Picks memories for a question.

    Args:
        ask: the recall model.
        top_k: the largest number of memories.
        room: tokens that the catalog, and the front matter, may take each.
    """

    def __init__(self, ask: "AskModel", *, top_k: int, room: int) -> None:
        self._ask = ask
        self._top_k = top_k
        self._room = room

    async def select(self, query: str, catalog: str, known: MemoryList) -> MemorySelection:
        """Let the model choose from catalog and front matter; rank by words if it fails."""
        if not known.memories:
            return MemorySelection((), "nothing is remembered")
        system = Template(load_asset("system.memory_recall").text).substitute(top_k=self._top_k)
        try:
            prompt = await asyncio.to_thread(self._prompt, query, catalog, known.memories)
            ids = _parse_ids(await self._ask(system, prompt, max_tokens=_ANSWER_TOKENS))
            names = {memory.memory_id: memory for memory in known.memories}
            chosen = dict.fromkeys(find_id(one, names) for one in ids)
            found = [names[one] for one in chosen if one in names]
            if ids and not found:
                raise _unusable("it names no memory there is")
            return MemorySelection(found[: self._top_k], "model")
        except AgentCoreError as error:
            logger.info("memories are chosen by their words: %s", error.message)
            likely = await asyncio.to_thread(ranked, query, known.memories)
            return MemorySelection(likely[: self._top_k], "keywords")

    def _prompt(self, query: str, catalog: str, memories: Sequence[Memory]) -> str:
        likely = ranked(query, memories)
        ids = {memory.memory_id for memory in likely}
        ordered = [*likely, *(memory for memory in memories if memory.memory_id not in ids)]
        lines = (memory.as_json_line() for memory in ordered)
        listed = fit_lines(catalog.splitlines(), self._room)
        return (
            f"<memory_catalog>\n{listed}\n</memory_catalog>\n\n"
            f"<front_matter>\n{fit_lines(lines, self._room)}\n</front_matter>\n\n"
            f"<question>\n{query}\n</question>"
        )


def ranked(query: str, memories: Sequence[Memory]) -> list[Memory]:
    """Return the memories that share words with the query, those with rarer words first."""
    wanted = list(dict.fromkeys(_words(query[:_MOST_CHARS])))[:_MOST_WORDS]
    # Split only memories that can match: searching for letters is much faster.
    likely = [memory for memory in memories if _has_letters_of(wanted, memory)]
    bags = [weigh_words(memory) for memory in likely]
    worth = {
        word: math.log(1 + len(memories) / spread)
        for word in wanted
        if (spread := sum(word in bag for bag in bags))
    }
    scores = [sum(bag.get(word, 0) * each for word, each in worth.items()) for bag in bags]
    order = sorted(range(len(likely)), key=lambda place: (-scores[place], place))
    least = max(scores, default=0) * _LEAST_SHARE
    return [likely[place] for place in order if scores[place] > least]


def _has_letters_of(words: Sequence[str], memory: Memory) -> bool:
    text = fold(f"{memory.summary} {' '.join(memory.tags)} {memory.content[:_MOST_CHARS]}")
    return any(word in text for word in words)


@lru_cache(maxsize=8192)
def weigh_words(memory: Memory) -> dict[str, float]:
    """Return the weight of each word of a memory; computed once for each version."""
    bag: dict[str, float] = dict.fromkeys(_words(memory.content[:_MOST_CHARS]), 1)
    bag |= dict.fromkeys(_words(" ".join(memory.tags)), _TAG_WEIGHT)
    bag |= dict.fromkeys(_words(memory.summary), _SUMMARY_WEIGHT)
    return bag


def _words(text: str) -> list[str]:
    """Split a text into lower-case words without plural s; scripts without spaces into pairs."""
    text = fold(text)
    has_pairs = not text.isascii() and _IDEOGRAPHS.search(text) is not None
    words: list[str] = []
    for word in _WORD.findall(text):
        if has_pairs and _IDEOGRAPHS.search(word):
            words += [word[i : i + 2] for i in range(max(len(word) - 1, 1))]
        elif len(word) > 1 and word not in _STOP_WORDS:
            words.append(word[:-1] if len(word) > 3 and word[-1] == "s" else word)
    return words


def _parse_ids(text: str) -> list[str]:
    begin, end = text.find("{"), text.rfind("}")
    try:
        value: Any = json.loads(text[begin : end + 1]) if begin >= 0 else None
    except (ValueError, RecursionError):
        value = None
    ids = table(value).get("memory_ids")
    if not isinstance(ids, list):
        raise _unusable("it is not an object with memory_ids")
    return [one for one in cast("list[Any]", ids) if isinstance(one, str)]


def _unusable(why: str) -> SchemaError:
    return SchemaError(ErrorCode.SCHEMA_ERROR, f"the recall model's answer cannot be used: {why}")


class Recall:
    """Recalls memories for one run, without adding those already in view.

    Args:
        folder: the memory folder.
        view: the view of the run.
        scope: the memory's scope, recorded with the recalled texts.
        room: tokens that the bodies may take together.
    """

    def __init__(self, folder: MemoryFolder, view: View, *, scope: str, room: int) -> None:
        self._folder = folder
        self._scope = scope
        self._loaded = LoadedTexts(view, NodeType.MEMORY_CONTEXT, "ids")
        self._room = room

    async def recall(self, query: str, tool_call_id: str, *, selector: Selector) -> ToolAnswer:
        """Let `selector` choose, and make one node of the bodies that are not in view yet.

        Raises:
            ToolError: `memory_recall_failed`, the memory cannot be read.
        """
        try:
            known = await asyncio.to_thread(self._folder.read)
            catalog = await asyncio.to_thread(self._folder.list_catalog, known)
        except (AgentCoreError, OSError) as error:
            message = f"memories cannot be read: {error}"
            raise ToolError(ErrorCode.MEMORY_RECALL_FAILED, message) from error
        selected = await selector.select(query, catalog, known)
        versions = self._loaded.versions()
        new = [one for one in selected.memories if versions.get(one.memory_id) != one.version]
        texts = fit_memories(new, self._room)
        for memory in texts:
            self._loaded.add(memory.memory_id, memory.version)
        shown = [one for one in selected.memories if one in texts or one not in new]
        answer: JsonObject = {
            "memory_ids": [one.memory_id for one in shown],
            "memories": [
                {
                    "memory_id": one.memory_id,
                    "category": one.category,
                    "summary": one.summary,
                    "hash": one.version,
                    "already_recalled": one not in texts,
                }
                for one in shown
            ],
            "already_recalled": bool(shown) and not texts,
            "selected_by": selected.by,
        }
        if left_out := [one.memory_id for one in selected.memories if one not in shown]:
            answer["left_out"] = left_out
        if known.problems:
            answer["unreadable"] = list(known.problems[:MOST_PROBLEMS])
        # Recalled texts stay in the session, but a later run with another memory must not see them.
        result: ToolReturn = answer
        origin = JsonObject()
        if self._scope != MEMORY_SHARED:
            origin["memory"] = self._scope
            result = ToolResult(content=[JsonBlock(data=answer)], metadata=origin)
        if not texts:
            return ToolAnswer(result)
        node = user_text(
            "\n\n".join(texts.values()),
            NodeType.MEMORY_CONTEXT,
            ids=[memory.memory_id for memory in texts],
            categories=list(dict.fromkeys(memory.category for memory in texts)),
            hashes={memory.memory_id: memory.version for memory in texts},
            tool_call_id=tool_call_id,
            **origin,
        )
        return ToolAnswer(result, [node])


def fit_memories(memories: Sequence[Memory], room: int) -> dict[Memory, str]:
    """Return the bodies that fit into `room` tokens; a first one that is too long is cut."""
    texts = dict[Memory, str]()
    for memory in memories:
        origin = f"{memory.category}, {memory.updated_at:%Y-%m-%d}"
        text = f"## {memory.summary} ({origin})\n\n{memory.content}"
        cost = estimate_text(text)
        if cost > room and not texts and room >= _LEAST_TOKENS:
            text = text[: len(text) * room // cost].rstrip() + " […]"
            cost = room
        if cost <= room:
            texts[memory] = text
            room -= cost
    return texts


RECALL_MEMORY = "internal.recall_memory"


class RecallArguments(Arguments):
    """Recall what is remembered about the user; the texts follow the result."""

    query: str = Field(min_length=1)


def recall_tool(recall: Callable[[str, str], Awaitable[ToolAnswer]]) -> Tool:
    """Build `internal.recall_memory` for one run; `recall` gets the query and the call's id."""

    async def prepare(arguments: RecallArguments, context: ToolContext, /) -> Action:
        access = Access(summary=arguments.query[:200])
        return Action(access, lambda: recall(arguments.query, context.tool_call_id))

    return model_tool(RECALL_MEMORY, RecallArguments, prepare)

"""Choosing memories for a question: a model chooses, and words are counted where it cannot."""

import asyncio
import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import Template
from typing import Any, cast

from agent_core.assets import load_asset
from agent_core.errors import AgentCoreError, ErrorCode, SchemaError
from agent_core.memory.catalog import bounded, front_matter_line
from agent_core.memory.entry import Memory
from agent_core.memory.extraction import AskModel
from agent_core.memory.folder import Remembered

logger = logging.getLogger(__name__)

_WORD = re.compile(r"[^\W_]+")
_IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_ANSWER_TOKENS = 512
_MOST_WORDS = 64
"""Different words of a question that are looked for."""
_MOST_CHARS = 16_384
"""Of a memory or a question: what stands behind these is not counted."""
_SUMMARY_WEIGHT, _TAG_WEIGHT = 3, 3
_LEAST_SHARE = 0.2
"""Of the best match's score: what matches less than that matches by chance."""
_SAY_NOTHING = re.compile(
    "an?|about|are|at|by|can|do|does|for|from|has|have|how|in|is|it|me|my|of|on|or|our|should|"
    "that|the|their|them|they|this|to|use|user|want|was|we|what|when|which|who|will|with|your?|and"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The memories that were chosen, the most useful one first, and by whom."""

    memories: Sequence[Memory]
    by: str


class Selector:
    """Picks memories for a question.

    Args:
        ask: the recall model.
        top_k: how many it may choose.
        estimate: tokens of a text.
        room: tokens that the catalog, and the front matter, may take each.
    """

    def __init__(
        self, ask: AskModel, *, top_k: int, estimate: Callable[[str], int], room: int
    ) -> None:
        self._ask = ask
        self._top_k = top_k
        self._estimate = estimate
        self._room = room

    async def select(self, query: str, catalog: str, remembered: Remembered) -> Choice:
        """Let the model choose from catalog and front matter; count words if it fails."""
        memories = remembered.memories
        if not memories:
            return Choice((), "nothing is remembered")
        try:
            return Choice(await self._chosen(query, catalog, remembered), "model")
        except AgentCoreError as error:
            logger.info("memories are chosen by their words: %s", error.message)
            likely = await asyncio.to_thread(ranked, query, memories)
            return Choice(likely[: self._top_k], "keywords")

    async def _chosen(self, query: str, catalog: str, remembered: Remembered) -> list[Memory]:
        system = Template(load_asset("system.memory_recall").text).substitute(top_k=self._top_k)
        prompt = await asyncio.to_thread(self._material, query, catalog, remembered)
        ids = _ids_in(await self._ask(system, prompt, max_tokens=_ANSWER_TOKENS))
        found = [one for one in map(remembered.get, dict.fromkeys(ids)) if one is not None]
        if ids and not found:
            raise _unusable("it names no memory there is")
        return found[: self._top_k]

    def _material(self, query: str, catalog: str, remembered: Remembered) -> str:
        likely = ranked(query, remembered.memories)
        chosen = {memory.memory_id for memory in likely}
        rest = [memory for memory in remembered.memories if memory.memory_id not in chosen]
        heads = bounded(map(front_matter_line, [*likely, *rest]), self._room, self._estimate)
        listed = bounded(catalog.splitlines(), self._room, self._estimate)
        return (
            f"<memory_catalog>\n{listed}\n</memory_catalog>\n\n"
            f"<front_matter>\n{heads}\n</front_matter>\n\n"
            f"<question>\n{query}\n</question>"
        )


def ranked(query: str, memories: Sequence[Memory]) -> list[Memory]:
    """The memories that share words with the query, the rarest and most prominent ones first."""
    bags = [_bag(memory) for memory in memories]
    worth = {
        word: math.log(1 + len(memories) / spread)
        for word in list(dict.fromkeys(_words(query[:_MOST_CHARS])))[:_MOST_WORDS]
        if (spread := sum(word in bag for bag in bags))
    }
    scores = [sum(bag.get(word, 0) * each for word, each in worth.items()) for bag in bags]
    order = sorted(range(len(memories)), key=lambda place: (-scores[place], place))
    least = max(scores, default=0) * _LEAST_SHARE
    return [memories[place] for place in order if scores[place] > least]


@lru_cache(maxsize=2048)
def _bag(memory: Memory) -> dict[str, float]:
    """How much each word of a memory says about it; worked out once for every version of it."""
    bag: dict[str, float] = dict.fromkeys(_words(memory.content[:_MOST_CHARS]), 1)
    bag |= dict.fromkeys(_words(" ".join(memory.tags)), _TAG_WEIGHT)
    bag |= dict.fromkeys(_words(memory.summary), _SUMMARY_WEIGHT)
    return bag


def _words(text: str) -> list[str]:
    """Words in small letters, a plural's s left off; of scripts without spaces, pairs of signs."""
    words: list[str] = []
    for word in _WORD.findall(text.casefold()):
        if _IDEOGRAPHS.search(word):
            words += [word[i : i + 2] for i in range(max(len(word) - 1, 1))]
        elif len(word) > 1 and not _SAY_NOTHING.fullmatch(word):
            words.append(word[:-1] if len(word) > 3 and word.endswith("s") else word)
    return words


def _ids_in(text: str) -> list[str]:
    begin, end = text.find("{"), text.rfind("}")
    try:
        value: Any = json.loads(text[begin : end + 1]) if begin >= 0 else None
    except (ValueError, RecursionError):
        value = None
    ids = cast("dict[str, Any]", value).get("memory_ids") if isinstance(value, dict) else None
    if not isinstance(ids, list):
        raise _unusable("it is no object with memory_ids")
    return [one for one in cast("list[Any]", ids) if isinstance(one, str)]


def _unusable(why: str) -> SchemaError:
    return SchemaError(ErrorCode.SCHEMA_ERROR, f"the recall model's answer cannot be used: {why}")

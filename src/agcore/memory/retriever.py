"""The search for knowledge pages: by the words they share with a query, and by embeddings."""

import asyncio
import math
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import mul
from typing import Any

from agcore.memory.error import InvalidMemoryError, MemoryStorageError, raise_as_memory_error
from agcore.memory.knowledge import KnowledgeStore, ScoredItem
from agcore.memory.store import MemoryStore
from agcore.memory.types import MemoryFilter, MemoryItem
from agent_core.aio.loops import LoopLock
from agent_core.api.arguments import checks_arguments
from agent_core.callbacks import check_callback, result_of

Embed = Callable[[list[str]], Any]
"""Gives one vector for each text, all of one length: a coroutine function, or a plain one, which
runs in a thread."""

VECTOR_PREFIX = "_vector:"
_AT_ONCE = 100
_MOST_CHARS = 8000


@checks_arguments(constructor=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverConfig:
    """Limits of search results.

    Attributes:
        top_k: the largest number of pages.
        min_score: pages below this are left out; from 0 to 1.
    """

    top_k: int = 5
    min_score: float = 0.1


@dataclass(frozen=True, slots=True)
class RetrievalResult:
    """Search results, best first; pages that fit equally well are oldest first."""

    query: str
    items: list[ScoredItem]


@checks_arguments(constructor=True)
class MemoryRetriever:
    """Searches a knowledge store.

    A page's score is the highest Dice overlap of the query's words with the words of its title, its
    summary, its tags or its best sentence, so long pages are not at a disadvantage. With embeddings
    it is the cosine of the vectors of query and page, if that is higher: a page may be found that
    shares no word with the query.

    Args:
        knowledge: the pages.
        config: limits of the results.
        embed: gives a vector for each of some texts, for example by a model's embeddings.
        vectors: keeps the vectors of pages; without it they are requested again in each process.

    Raises:
        ArgumentError: `embed` is not a function of a list of texts.
    """

    def __init__(
        self,
        knowledge: KnowledgeStore,
        config: RetrieverConfig | None = None,
        *,
        embed: Embed | None = None,
        vectors: MemoryStore | None = None,
    ) -> None:
        check_callback("embed", embed, "texts")
        self._knowledge = knowledge
        self._config = config or RetrieverConfig()
        self._vectors = None if embed is None else _PageVectors(embed, vectors)

    async def search(self, query: str) -> RetrievalResult:
        """Return the pages that match a query best.

        Raises:
            MemoryError: the store cannot be read, or the embeddings failed.
        """
        with raise_as_memory_error():
            found = await self._search(query)
            await self._knowledge.count_use(item.page.page_id for item in found.items)
            return found

    async def _search(self, query: str) -> RetrievalResult:
        least, most = self._config.min_score, self._config.top_k
        if self._vectors is None:
            found = await self._knowledge.best(query, min_score=least, limit=most)
            return RetrievalResult(query, found)
        pages = await self._knowledge.pages()
        texts = ((page.page_id, f"{page.title}\n{page.summary}\n{page.content}") for page in pages)
        near = await self._vectors.nearness(query, texts)
        alike = await self._knowledge.best(query, min_score=least, limit=len(pages))

        def rank() -> list[ScoredItem]:
            by_words = {item.page.page_id: item.score for item in alike}
            scored = [
                ScoredItem(page, max(score, by_words.get(page.page_id, 0.0)))
                for page, score in zip(pages, near, strict=True)
            ]
            fitting = [item for item in scored if item.score and item.score >= least]
            fitting.sort(key=lambda item: -item.score)  # stable: the pages came oldest first
            return fitting[:most]

        return RetrievalResult(query, await asyncio.to_thread(rank))


class _PageVectors:
    """The vectors of pages. A page is embedded once, and again when its text has changed.

    Args:
        embed: gives the vectors.
        store: keeps them; without one they are lost with this object. Vectors of another model
            need another store.
    """

    def __init__(self, embed: Embed, store: MemoryStore | None = None) -> None:
        self._embed = embed
        self._store = store
        self._known: dict[str, tuple[str, array[float]]] = {}
        self._lock = LoopLock("the index of vectors")

    async def nearness(self, query: str, pages: Iterable[tuple[str, str]]) -> list[float]:
        """Return how similar each page (id and text) is to a query, from 0 to 1.

        Raises:
            MemoryError: the embeddings failed or are invalid, or the store failed.
        """
        async with self._lock:
            vectors = await self._vectors_of(await asyncio.to_thread(_hashed, pages))
            (wanted,) = await self._ask([query])
        if any(len(vector) != len(wanted) for vector in vectors):
            message = "the embeddings differ in length; use one store for each embedding model"
            raise InvalidMemoryError(message)
        return await asyncio.to_thread(
            lambda: [min(1.0, max(0.0, sum(map(mul, wanted, vector)))) for vector in vectors]
        )

    async def _vectors_of(self, pages: Sequence[tuple[str, str, str]]) -> list["array[float]"]:
        missing = self._missing(pages)
        if missing and self._store is not None:  # another process may have stored them
            stored = await self._store.list(MemoryFilter(prefix=VECTOR_PREFIX))
            self._known |= await asyncio.to_thread(lambda: dict(map(_stored_vector, stored)))
            missing = self._missing(pages)
        for start in range(0, len(missing), _AT_ONCE):
            some = missing[start : start + _AT_ONCE]
            vectors = await self._ask([text for _, text, _ in some])
            for (page_id, _, text_hash), vector in zip(some, vectors, strict=True):
                self._known[page_id] = text_hash, vector
                if self._store is not None:
                    content = b64encode(vector.tobytes()).decode()
                    item_id, facts = VECTOR_PREFIX + page_id, {"text": text_hash}
                    await self._store.save(MemoryItem(id=item_id, content=content, metadata=facts))
        return [self._known[page_id][1] for page_id, _, _ in pages]

    def _missing(self, pages: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
        """Return the pages without vectors, or with vectors of an earlier text."""
        return [page for page in pages if self._known.get(page[0], ("",))[0] != page[2]]

    async def _ask(self, texts: list[str]) -> list["array[float]"]:
        """Compute the vectors of texts, each of length 1."""
        try:
            given = await result_of(self._embed, texts)
            vectors = await asyncio.to_thread(lambda: [_unit_vector(vector) for vector in given])
        except Exception as error:
            raise MemoryStorageError(f"the embeddings failed: {error}") from error
        if len(vectors) != len(texts):
            message = f"there are {len(vectors)} embeddings for {len(texts)} texts"
            raise InvalidMemoryError(message)
        return vectors


def _stored_vector(item: MemoryItem) -> tuple[str, tuple[str, "array[float]"]]:
    """Return the page id of a stored vector, with the hash of its text and the vector."""
    vector = array("f", b64decode(item.content))
    return item.id.removeprefix(VECTOR_PREFIX), (str(item.metadata.get("text")), vector)


def _hashed(pages: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Return the id, the beginning of the text, and its hash, for each page."""
    shortened = [(page_id, text[:_MOST_CHARS]) for page_id, text in pages]
    return [
        (page_id, text, sha256(text.encode(errors="surrogatepass")).hexdigest())
        for page_id, text in shortened
    ]


def _unit_vector(vector: Sequence[float]) -> "array[float]":
    length = math.hypot(*vector)
    if not math.isfinite(length):
        raise ValueError("a vector has a part that is not a finite number")
    return array("f", (part / length if length else 0.0 for part in vector))

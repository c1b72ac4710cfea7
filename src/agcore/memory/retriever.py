"""The search for knowledge pages: by the words they share with a query, and by embeddings."""

import asyncio
from dataclasses import dataclass

from agcore.memory.embeddings import Embed, PageVectors
from agcore.memory.error import raise_as_memory_error
from agcore.memory.knowledge import KnowledgeStore, ScoredItem
from agcore.memory.store import MemoryStore


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
        vectors: keeps the vectors of pages; without it they are asked for anew in each process.
    """

    def __init__(
        self,
        knowledge: KnowledgeStore,
        config: RetrieverConfig | None = None,
        *,
        embed: Embed | None = None,
        vectors: MemoryStore | None = None,
    ) -> None:
        self._knowledge = knowledge
        self._config = config or RetrieverConfig()
        self._vectors = None if embed is None else PageVectors(embed, vectors)

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

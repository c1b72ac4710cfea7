"""Finds the pages that have most in common with a question, by words alone."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from agcore.memory.knowledge import KnowledgePage, KnowledgeStore
from agcore.memory.words import dice, words

_SENTENCE = re.compile(r"[\n\u3002\uff01\uff1f\uff1b]+|[.!?;](?=\s|\Z)")

_Parts = Sequence[frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverConfig:
    """How much is found.

    Attributes:
        top_k: at most so many pages.
        min_score: pages below this are left out; from 0 to 1.
    """

    top_k: int = 5
    min_score: float = 0.1


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """A page, and how well it fits: from 0 to 1."""

    page: KnowledgePage
    score: float


@dataclass(frozen=True, slots=True)
class RetrievalResult:
    """What was found, best first; pages that fit equally well, oldest first."""

    query: str
    items: list[ScoredItem]


class MemoryRetriever:
    """Searches a knowledge store.

    A page's score is the Dice overlap of the query's words with those of its title, its summary,
    its tags or its best sentence, whichever is highest: a long page is not punished for the rest.
    """

    def __init__(self, knowledge: KnowledgeStore, config: RetrieverConfig | None = None) -> None:
        self._knowledge = knowledge
        self._config = config or RetrieverConfig()
        self._known: dict[str, tuple[datetime, _Parts]] = {}

    async def search(self, query: str) -> RetrievalResult:
        """The pages that fit best.

        Raises:
            MemoryError: the store cannot be read.
        """
        wanted = words(query)
        pages = await self._knowledge.pages()
        self._known = {page.page_id: self._parts(page) for page in pages}
        scored = [
            ScoredItem(page, max(dice(wanted, part) for part in self._known[page.page_id][1]))
            for page in pages
        ]
        found = [item for item in scored if item.score and item.score >= self._config.min_score]
        found.sort(key=lambda item: -item.score)  # stable: the pages came oldest first
        return RetrievalResult(query, found[: self._config.top_k])

    def _parts(self, page: KnowledgePage) -> tuple[datetime, _Parts]:
        """The words of each part; read again only when the page has changed."""
        known = self._known.get(page.page_id)
        if known is not None and known[0] == page.updated_at:
            return known
        return page.updated_at, [words(text) for text in _texts(page)]


def _texts(page: KnowledgePage) -> Iterator[str]:
    yield page.title
    yield page.summary
    yield " ".join(page.tags)
    yield from _SENTENCE.split(page.content)

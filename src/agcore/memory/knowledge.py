"""Knowledge pages: stored, listed, and searched by the words they share with a query."""

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationError

from agcore.memory.error import InvalidMemoryError, MemoryNotFoundError
from agcore.memory.items import ItemTable
from agcore.memory.page_index import KNOWLEDGE_PREFIX
from agcore.memory.store import MemoryStore
from agcore.memory.types import MemoryFilter, MemoryItem
from agcore.memory.words import Words, dice, words_of
from agent_core.api.arguments import checks_arguments
from agent_core.providers.jsontext import dump_text, parse
from agent_core.types import Frozen, UtcDatetime, new_id, utc_now

logger = logging.getLogger(__name__)

_AT_ONCE = 100
_SENTENCE = re.compile(r"[\n\u3002\uff01\uff1f\uff1b]+|[.!?;](?=\s|\Z)")


class PageIndexEntry(Frozen):
    """A page in an index: enough to decide whether to read it."""

    page_id: str
    title: str
    summary: str
    tags: list[str]


class KnowledgePage(Frozen):
    """A page. `links` are ids of other pages."""

    page_id: Annotated[str, Field(min_length=1)]
    title: str
    content: str
    summary: str = ""
    tags: list[str] = []
    links: list[str] = []
    created_at: UtcDatetime = Field(default_factory=utc_now)
    updated_at: UtcDatetime = Field(default_factory=utc_now)

    @property
    def entry(self) -> PageIndexEntry:
        """The page as its index shows it."""
        return PageIndexEntry(
            page_id=self.page_id, title=self.title, summary=self.summary, tags=self.tags
        )


@checks_arguments(constructor=True)
class KnowledgeStore:
    """Pages in a memory store.

    The toolkit's stores keep an index of the pages' words. Any other store is listed at every
    search, and its pages are compared one by one.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        # A subclass may store something other than it is given, so it gets no index.
        self._ours = store if isinstance(store, ItemTable) and store.indexes_pages else None
        self._compared: dict[str, _Compared] = {}

    async def save_page(
        self,
        title: str,
        content: str,
        tags: Iterable[str] = (),
        *,
        summary: str = "",
        links: Iterable[str] = (),
        page_id: str | None = None,
    ) -> KnowledgePage:
        """Store a page; it replaces the page with this id if there is one.

        Raises:
            MemoryError: it could not be stored. `Invalid`; the id is empty.
        """
        if page_id is not None and not page_id.strip():
            raise InvalidMemoryError("the id of a page is empty; leave it out for a new page")
        page = KnowledgePage(
            page_id=new_id("page") if page_id is None else page_id,
            title=title,
            content=content,
            summary=summary,
            tags=list(tags),
            links=list(links),
        )
        return await self._save(page)

    async def update_page(self, page_id: str, **changes: Any) -> KnowledgePage:
        """Change some fields of a page.

        Raises:
            MemoryError: `NotFound`; there is no such page.
        """
        page = await self.get_page(page_id)
        if page is None:
            raise MemoryNotFoundError(f"there is no page {page_id!r}")
        changed = page.model_dump() | changes | {"page_id": page_id, "updated_at": utc_now()}
        return await self._save(KnowledgePage.model_validate(changed))

    async def get_page(self, page_id: str) -> KnowledgePage | None:
        """Return the page with this id, if there is one."""
        item = await self._store.get(KNOWLEDGE_PREFIX + page_id)
        return _page(item) if item is not None else None

    async def delete_page(self, page_id: str) -> None:
        """Delete a page; nothing happens if there is none."""
        await self._store.delete(KNOWLEDGE_PREFIX + page_id)

    async def pages(self) -> list[KnowledgePage]:
        """Return every page, oldest first."""
        items = await self._store.list(MemoryFilter(prefix=KNOWLEDGE_PREFIX))
        return await asyncio.to_thread(lambda: [_page(item) for item in items])

    async def index(self) -> list[PageIndexEntry]:
        """Return the index entry of every page, oldest first."""
        return [page.entry for page in await self.pages()]

    async def search(self, query: str, tags: Sequence[str] = ()) -> list[PageIndexEntry]:
        """Return the pages with every word of the query and every tag, oldest first."""
        wanted = {*await asyncio.to_thread(words_of, query), *map(_tag_word, tags)}
        if not wanted:
            return await self.index()
        if (indexed := await self._up_to_date_index()) is not None:
            items = await indexed.pages_with_all(wanted)
            return await asyncio.to_thread(lambda: [_page(item).entry for item in items])
        return [
            each.page.entry
            for each in await self._compare_all()
            if wanted <= Words().union(*each.parts)
        ]

    async def best(self, query: str, *, min_score: float, limit: int) -> "list[ScoredItem]":
        """Return the pages that match a query best, best first, older ones first among equals."""
        wanted = await asyncio.to_thread(words_of, query)
        if not wanted:
            return []
        if (indexed := await self._up_to_date_index()) is not None:
            found = await indexed.best_pages(wanted, min_score=min_score, limit=limit)
            return await asyncio.to_thread(
                lambda: [ScoredItem(_page(i), score) for i, score in found]
            )
        known = await self._compare_all()

        def score() -> list[ScoredItem]:
            scored = [ScoredItem(each.page, each.score(wanted)) for each in known]
            fitting = [item for item in scored if item.score and item.score >= min_score]
            fitting.sort(key=lambda item: -item.score)  # stable: the pages came oldest first
            return fitting[:limit]

        return await asyncio.to_thread(score)

    async def count_use(self, page_ids: Iterable[str]) -> None:
        """Count retrieved pages as used, in a store that evicts by that."""
        if isinstance(self._store, ItemTable):
            await self._store.count_use(KNOWLEDGE_PREFIX + page_id for page_id in page_ids)

    async def _up_to_date_index(self) -> ItemTable | None:
        """Return the store if it has an index, after indexing pages that were saved without it."""
        indexed = self._ours
        if indexed is None or not await indexed.has_page_index():
            return None
        while pages := await indexed.unindexed_pages(_AT_ONCE):
            words = await asyncio.to_thread(lambda: [_stored_parts(*page) for page in pages])
            await indexed.index_pages(
                [(*page, parts) for page, parts in zip(pages, words, strict=True)]
            )
        return indexed

    async def _compare_all(self) -> "list[_Compared]":
        """Return every page with its words, recomputed only for pages that have changed."""
        items = await self._store.list(MemoryFilter(prefix=KNOWLEDGE_PREFIX))
        before = self._compared

        def compare(item: MemoryItem) -> _Compared:
            known = before.get(item.id)
            if known is not None and known.content == item.content:
                return known
            page = _page(item)
            return _Compared(item.content, page, _parts(page))

        found = await asyncio.to_thread(lambda: [compare(item) for item in items])
        self._compared = {item.id: each for item, each in zip(items, found, strict=True)}
        return found

    async def _save(self, page: KnowledgePage) -> KnowledgePage:
        content, parts = await asyncio.to_thread(
            lambda: (dump_text(page.model_dump(mode="json")), _parts(page))
        )
        item = MemoryItem(
            id=KNOWLEDGE_PREFIX + page.page_id, content=content, created_at=page.created_at
        )
        if self._ours is not None and await self._ours.has_page_index():
            await self._ours.save_page(item, parts)
        else:
            await self._store.save(item)
        return page


@dataclass(frozen=True, slots=True)
class _Compared:
    """A page that is in no index, and the words of its parts."""

    content: str
    page: KnowledgePage
    parts: Sequence[Words]

    def score(self, wanted: Words) -> float:
        return max((dice(wanted, part) for part in self.parts), default=0.0)


def _page(item: MemoryItem) -> KnowledgePage:
    try:
        return KnowledgePage.model_validate(parse(item.content))
    except (ValueError, ValidationError) as error:
        message = f"the page {item.id.removeprefix(KNOWLEDGE_PREFIX)!r} cannot be read: {error}"
        raise InvalidMemoryError(message) from error


def _parts(page: KnowledgePage) -> list[Words]:
    """Return the word sets a query is compared with: one for each part, and the whole tags."""
    texts = [page.title, page.summary, " ".join(page.tags), *_SENTENCE.split(page.content)]
    parts = [words_of(text) for text in texts]
    return [part for part in [*parts, frozenset(map(_tag_word, page.tags))] if part]


def _stored_parts(item_id: str, content: str) -> list[Words]:
    try:
        return _parts(KnowledgePage.model_validate(parse(content)))
    except (ValueError, ValidationError) as error:
        logger.warning("the page %s is never found, it cannot be read: %s", item_id, error)
        return []


def _tag_word(tag: str) -> str:
    """Convert a tag to a word for the index that is different from every word of a text."""
    return f"#{tag.casefold().encode('utf-8', 'replace').hex()}"


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """A page, and how well it fits: from 0 to 1."""

    page: KnowledgePage
    score: float

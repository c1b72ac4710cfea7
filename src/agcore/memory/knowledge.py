"""Pages of what is known: kept in a store, listed, and searched by the words they share."""

import re
import unicodedata
from collections.abc import Iterable, Sequence, Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from agcore.errors import MemoryNotFoundError
from agcore.memory.stores import MemoryFilter, MemoryItem, MemoryStore
from agent_core.providers.jsontext import dump_text, parse
from agent_core.types import Frozen, UtcDatetime, new_id, utc_now

_PREFIX = "_knowledge:"
_SENTENCE = re.compile(r"[\n\u3002\uff01\uff1f\uff1b]+|[.!?;](?=\s|\Z)")

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
_RUN = re.compile(rf"(?P<cjk>[{_CJK}]+)|[^\W_{_CJK}]+")

_ENGLISH = frozenset(
    re.findall(
        r"\w+",
        """
        a about after all also am an and any are as at be because been before being but by can
        could did do does doing don for from had has have having he her here him his how i if in
        into is it its just me my no nor not of off on or our out over own s she should so some
        such t than that the their them then there these they this those through to too under up
        us very was we were what when where which while who whom why will with would you your
        """,
    )
)
_CHINESE = re.compile(
    "因为|所以|但是|可是|如果|以及|或者|并且|而且|什么|怎么|怎样|如何|哪些|哪个|这个|那个|这些|那些"
    "|我们|你们|他们|她们|它们|一个|一些|可以|没有|不是|就是|还是|关于|请问"
    "|[的了是在和与及或也都就而且着过吗呢吧啊呀我你他她它这那有个把被让给对从向到于之其]"
)


def words_of(text: str) -> frozenset[str]:
    """The words of a text without stop words. Each pair of Chinese characters is a word."""
    words: set[str] = set()
    for run in _RUN.finditer(unicodedata.normalize("NFKC", text).casefold()):
        if run["cjk"] is None:
            words.add(run[0])
            continue
        for part in filter(None, _CHINESE.split(run[0])):
            words |= {part[place : place + 2] for place in range(max(len(part) - 1, 1))}
    return frozenset(words - _ENGLISH)


def dice(one: AbstractSet[str], other: AbstractSet[str]) -> float:
    """Twice what both have, by what each has: 0 for nothing in common, 1 for the same words."""
    if not one or not other:
        return 0.0
    return 2 * len(one & other) / (len(one) + len(other))


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


class KnowledgeStore:
    """Pages in a memory store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

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
        """Keep a page; with the id of one that is there, instead of it.

        Raises:
            MemoryError: it could not be stored.
        """
        page = KnowledgePage(
            page_id=page_id or new_id("page"),
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
        """The page of that id."""
        item = await self._store.get(_PREFIX + page_id)
        return _page(item) if item is not None else None

    async def delete_page(self, page_id: str) -> None:
        """Forget a page; nothing happens if there is none."""
        await self._store.delete(_PREFIX + page_id)

    async def pages(self) -> list[KnowledgePage]:
        """Every page, oldest first."""
        return [_page(item) for item in await self._store.list(MemoryFilter(prefix=_PREFIX))]

    async def index(self) -> list[PageIndexEntry]:
        """Every page as the index shows it, oldest first."""
        return [page.entry for page in await self.pages()]

    async def search(self, query: str, tags: Sequence[str] = ()) -> list[PageIndexEntry]:
        """The pages that have every word of the query and every tag, oldest first."""
        wanted, tagged = words_of(query), {tag.casefold() for tag in tags}
        return [
            page.entry
            for page in await self.pages()
            if wanted
            <= words_of(f"{page.title}\n{page.summary}\n{page.content} {' '.join(page.tags)}")
            and tagged <= {tag.casefold() for tag in page.tags}
        ]

    async def _save(self, page: KnowledgePage) -> KnowledgePage:
        content = dump_text(page.model_dump(mode="json"))
        await self._store.save(
            MemoryItem(id=_PREFIX + page.page_id, content=content, created_at=page.created_at)
        )
        return page


def _page(item: MemoryItem) -> KnowledgePage:
    return KnowledgePage.model_validate(parse(item.content))


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
        self._known: dict[str, tuple[datetime, Sequence[frozenset[str]]]] = {}

    async def search(self, query: str) -> RetrievalResult:
        """The pages that fit best.

        Raises:
            MemoryError: the store cannot be read.
        """
        wanted = words_of(query)
        pages = await self._knowledge.pages()
        before, self._known, scored = self._known, {}, list[ScoredItem]()
        for page in pages:
            known = before.get(page.page_id)
            if known is None or known[0] != page.updated_at:
                parts = [page.title, page.summary, " ".join(page.tags)]
                parts += _SENTENCE.split(page.content)
                known = page.updated_at, [words_of(part) for part in parts]
            self._known[page.page_id] = known
            scored.append(ScoredItem(page, max(dice(wanted, part) for part in known[1])))
        found = [item for item in scored if item.score and item.score >= self._config.min_score]
        found.sort(key=lambda item: -item.score)  # stable: the pages came oldest first
        return RetrievalResult(query, found[: self._config.top_k])

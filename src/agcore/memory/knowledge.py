"""Pages of what is known, with an index to choose from and a search by words."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field

from agcore.memory.errors import MemoryNotFoundError
from agcore.memory.store import MemoryStore
from agcore.memory.types import MemoryFilter, MemoryItem
from agcore.memory.words import words
from agent_core.providers.jsontext import dump_text, parse
from agent_core.types import Frozen, UtcDatetime, new_id, utc_now

_PREFIX = "_knowledge:"


class PageIndexEntry(Frozen):
    """What an index says of a page: enough to decide whether to read it."""

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
        wanted, tagged = words(query), {tag.casefold() for tag in tags}
        return [
            page.entry
            for page in await self.pages()
            if wanted <= words(_all_text(page)) and tagged <= {tag.casefold() for tag in page.tags}
        ]

    async def _save(self, page: KnowledgePage) -> KnowledgePage:
        content = dump_text(page.model_dump(mode="json"))
        await self._store.save(
            MemoryItem(id=_PREFIX + page.page_id, content=content, created_at=page.created_at)
        )
        return page


def _all_text(page: KnowledgePage) -> str:
    return "\n".join([page.title, page.summary, page.content, *page.tags])


def _page(item: MemoryItem) -> KnowledgePage:
    return KnowledgePage.model_validate(parse(item.content))

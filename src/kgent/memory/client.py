"""The memories that come with kgent: none at all, and one kept in a store of the toolkit."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from agcore.memory import (
    MemoryFilter,
    MemoryItem as StoredItem,
    MemoryStore,
    SqliteStore,
    dice,
    words_of,
)
from agent_core.errors import AgentCoreError
from agent_core.types import new_id
from kgent.errors import ErrorCategory, KgentError
from kgent.memory.contract import MemoryClient, MemoryItem, MemoryWriteResult
from kgent.runtime.loops import BackgroundLoop

SQLITE = "sqlite:"


class NoMemory:
    """Remembers nothing. What the model wants kept becomes a candidate for people to look at."""

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:  # noqa: ARG002
        """Nothing."""
        return []

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:  # noqa: ARG002
        """Refuse."""
        return MemoryWriteResult(accepted=False, summary="no memory is connected")


class StoreMemory:
    """A memory in a store of the toolkit, found by the words it shares with the question.

    Args:
        store: any `MemoryStore`; ids begin with `kgent:<scope>:`.
        loop: where the store lives.
    """

    def __init__(self, store: MemoryStore, loop: BackgroundLoop) -> None:
        self._store = store
        self._loop = loop

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        """The items with the greatest overlap of words, best first.

        Raises:
            AgentCoreError: the store cannot be read.
        """
        prefix = f"kgent:{scope}:" if scope else "kgent:"
        found = self._loop.run(self._store.list(MemoryFilter(prefix=prefix)))
        wanted = words_of(query)
        scored = [(dice(wanted, words_of(item.content)), item) for item in found]
        best = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])
        return [_item(item, score) for score, item in best[: max(limit, 0)]]

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        """Keep an item.

        Raises:
            AgentCoreError: it could not be stored.
        """
        item_id = f"kgent:{scope}:{new_id('mem')}"
        item = StoredItem(id=item_id, content=content, metadata={"scope": scope, "tags": tags})
        self._loop.run(self._store.save(item))
        return MemoryWriteResult(accepted=True, memory_id=item_id, summary="remembered")


@contextmanager
def open_memory(
    file: Path | None, given: MemoryClient | MemoryStore | None
) -> Generator[MemoryClient | None]:
    """The memory of a run, until the end of the block; None if there is none.

    Args:
        file: the database of a `sqlite:` provider.
        given: what the caller brought along; it is used instead.

    Raises:
        KgentError: category `config`; the database cannot be opened.
    """
    if given is not None and hasattr(given, "recall_memory"):
        yield cast("MemoryClient", given)
        return
    if given is None and file is None:
        yield None
        return
    loop = BackgroundLoop()
    try:
        if given is not None:
            yield StoreMemory(cast("MemoryStore", given), loop)
        elif file is not None:
            store = loop.run(_opened(file))
            try:
                yield StoreMemory(store, loop)
            finally:
                loop.run(store.close())
    finally:
        loop.close()


def is_known(provider: str | None) -> bool:
    """Whether `memory.provider` names something that kgent can open itself."""
    return provider is not None and provider.startswith(SQLITE) and len(provider) > len(SQLITE)


async def _opened(file: Path) -> SqliteStore:
    try:
        return await SqliteStore.open(file)
    except AgentCoreError as error:
        message = f"memory.provider: {file} cannot be opened: {error.message}"
        raise KgentError(error.code, message, category=ErrorCategory.CONFIG) from error


def _item(item: StoredItem, score: float) -> MemoryItem:
    tags: object = item.metadata.get("tags", [])
    return MemoryItem(
        content=item.content,
        scope=str(item.metadata.get("scope", "")),
        tags=[str(tag) for tag in cast("list[object]", tags)] if isinstance(tags, list) else [],
        memory_id=item.id,
        score=score,
    )

"""The built-in memories; none has a database of its own."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from agcore.memory import (
    MemoryFilter,
    MemoryItem as StoredItem,
    MemoryStore,
    SqliteStore,
    dice,
    words_of,
)
from agent_core.errors import AgentCoreError
from agent_core.text.json_text import array
from agent_core.types import new_id
from kgent.config.models import SQLITE, KgentConfig
from kgent.errors import config_error
from kgent.memory.contract import MemoryClient, MemoryItem, MemoryWriteResult
from kgent.runtime.blocking import run_blocking


class NoMemory:
    """Remembers nothing and refuses every write."""

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:  # noqa: ARG002
        """Return nothing."""
        return []

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:  # noqa: ARG002
        """Refuse the item."""
        return MemoryWriteResult(accepted=False, summary="no memory is connected")


class StoreMemory:
    """A memory in a store of the toolkit that finds items by words they share with the query.

    Args:
        store: any `MemoryStore`; ids begin with `kgent:<scope>:`.
        loop: the event loop of the store; other threads call the methods.
    """

    def __init__(self, store: MemoryStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        """Return the items that share the most words with the query, best first."""
        prefix = f"kgent:{scope}:" if scope else "kgent:"
        stored = run_blocking(lambda: self._store.list(MemoryFilter(prefix=prefix)), self._loop)
        wanted = words_of(query)
        scored = [(dice(wanted, words_of(item.content)), item) for item in stored]
        best = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])
        found: list[MemoryItem] = []
        for score, item in best[: max(limit, 0)]:
            tags: object = item.metadata.get("tags", [])
            known = array(tags)
            found.append(
                MemoryItem(
                    content=item.content,
                    scope=str(item.metadata.get("scope", "")),
                    tags=[str(tag) for tag in known],
                    memory_id=item.id,
                    score=score,
                )
            )
        return found

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        """Save an item."""
        item_id = f"kgent:{scope}:{new_id('mem')}"
        item = StoredItem(id=item_id, content=content, metadata={"scope": scope, "tags": tags})
        run_blocking(lambda: self._store.save(item), self._loop)
        return MemoryWriteResult(accepted=True, memory_id=item_id, summary="remembered")


async def check_memory(config: KgentConfig) -> None:
    """Refuse a profile whose memory cannot be opened; do not create a missing database.

    Raises:
        KgentError: category `config`; see `open_memory`.
    """
    file = _find_database(config, is_needed=True) if config.memory.enabled else None
    if file is None:
        return
    if file.exists():
        async with open_memory(config, None):
            return
    above = next(folder for folder in file.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise config_error(f"memory.provider: {file} cannot be made: {above} cannot be written to")


def _find_database(config: KgentConfig, *, is_needed: bool) -> Path | None:
    """Find the database of a profile.

    Raises:
        KgentError: category `config`; there is none, but it `is_needed`.
    """
    wanted = config.memory
    name = (wanted.provider or "").removeprefix(SQLITE)
    if name and name != wanted.provider:
        return config.place(name)
    if is_needed and wanted.write_mode == "external":
        raise config_error(
            "memory.write_mode external needs a memory: one given in code, or"
            f" memory.provider {SQLITE}<file>"
        )
    return None


@asynccontextmanager
async def open_memory(
    config: KgentConfig, given: MemoryClient | MemoryStore | None
) -> AsyncGenerator[MemoryClient | None]:
    """Open the memory of a run: `given`, or the profile's database; None if there is neither.

    Raises:
        KgentError: category `config`; the database cannot be opened, or a memory is missing.
    """
    if not config.memory.enabled:
        yield None
        return
    file = _find_database(config, is_needed=given is None)
    loop = asyncio.get_running_loop()
    if given is not None:
        yield given if isinstance(given, MemoryClient) else StoreMemory(given, loop)
        return
    if file is None:
        yield None
        return
    try:
        store = await SqliteStore.open(file)
    except AgentCoreError as error:
        message = f"memory.provider: {file} cannot be opened: {error.message}"
        raise config_error(message, error.code) from error
    try:
        yield StoreMemory(store, loop)
    finally:
        await store.close()

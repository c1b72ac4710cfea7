"""Where memories are kept: the protocol, and a store that lives as long as the process."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Protocol

from agcore.memory.types import EvictionConfig, EvictionPolicy, MemoryFilter, MemoryItem
from agent_core.types import utc_now

_EVERYTHING = MemoryFilter()


class MemoryStore(Protocol):
    """Keeps items by id. Shared by everything that remembers; ids keep them apart."""

    async def save(self, item: MemoryItem) -> None:
        """Keep an item, instead of the one of the same id if there is one.

        Raises:
            MemoryError: it could not be stored.
        """
        ...

    async def save_new(self, items: Sequence[MemoryItem]) -> bool:
        """Keep these items if none of their ids is taken: all of them, or none.

        Returns whether they are kept. Nothing is ever replaced, whichever task or process saves
        at the same time; the ids of items that are too old are free.

        Raises:
            MemoryError: they could not be stored.
        """
        ...

    async def last(self, prefix: str, before: str | None = None) -> MemoryItem | None:
        """The item with the greatest id that begins with `prefix`, and is less than `before`.

        Costs the same however many items there are, and does not count as a use.
        """
        ...

    async def get(self, item_id: str) -> MemoryItem | None:
        """The item of that id, unless it is too old."""
        ...

    async def delete(self, item_id: str) -> None:
        """Forget an item; nothing happens if there is none."""
        ...

    async def list(self, wanted: MemoryFilter = _EVERYTHING) -> list[MemoryItem]:
        """The items that fit, oldest first, those of the same age by id."""
        ...


class InMemoryStore:
    """A store in the memory of the process."""

    def __init__(self, eviction: EvictionConfig | None = None) -> None:
        self._eviction = eviction or EvictionConfig()
        self._items: OrderedDict[str, MemoryItem] = OrderedDict()  # the next to go stands first
        self._ids: list[str] = []  # sorted

    def __len__(self) -> int:
        return len(self._items)

    async def save(self, item: MemoryItem) -> None:
        """See `MemoryStore.save`; what is too old or too much goes."""
        if item.id not in self._items:
            insort(self._ids, item.id)
        self._items[item.id] = item
        self._items.move_to_end(item.id)
        self._evict()

    async def save_new(self, items: Sequence[MemoryItem]) -> bool:
        """See `MemoryStore.save_new`."""
        for item in items:
            found = self._items.get(item.id)
            if found is not None and not self._is_expired(found):
                return False
        for item in items:
            await self.save(item)
        return True

    async def last(self, prefix: str, before: str | None = None) -> MemoryItem | None:
        """See `MemoryStore.last`."""
        end = prefix + chr(0x10FFFF) if before is None else before
        for place in range(bisect_left(self._ids, end) - 1, -1, -1):
            if not self._ids[place].startswith(prefix):
                return None
            item = self._items[self._ids[place]]
            if not self._is_expired(item):
                return item
        return None

    async def get(self, item_id: str) -> MemoryItem | None:
        """See `MemoryStore.get`."""
        item = self._items.get(item_id)
        if item is None or self._is_expired(item):
            return None
        if self._eviction.policy is EvictionPolicy.LEAST_RECENTLY_USED:
            self._items.move_to_end(item_id)
        return item

    async def delete(self, item_id: str) -> None:
        """See `MemoryStore.delete`."""
        self._drop(item_id)

    async def list(self, wanted: MemoryFilter = _EVERYTHING) -> list[MemoryItem]:
        """See `MemoryStore.list`."""
        found = [
            item
            for item in self._beginning_with(wanted.prefix or "")
            if not self._is_expired(item)
            and (wanted.since is None or item.created_at >= wanted.since)
        ]
        found.sort(key=lambda item: (item.created_at, item.id))
        return found[: wanted.limit]

    def _beginning_with(self, prefix: str) -> Iterator[MemoryItem]:
        for place in range(bisect_left(self._ids, prefix), len(self._ids)):
            if not self._ids[place].startswith(prefix):
                return
            yield self._items[self._ids[place]]

    def _evict(self) -> None:
        capacity = self._eviction.capacity
        while self._items:
            first = next(iter(self._items.values()))
            is_too_many = capacity is not None and len(self._items) > capacity
            if not is_too_many and not self._is_expired(first):
                return
            self._drop(first.id)

    def _drop(self, item_id: str) -> None:
        if self._items.pop(item_id, None) is not None:
            del self._ids[bisect_left(self._ids, item_id)]

    def _is_expired(self, item: MemoryItem) -> bool:
        ttl = self._eviction.ttl
        return ttl is not None and utc_now() - item.created_at > ttl

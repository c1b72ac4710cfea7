"""What memory stores hold, how they fail, and a store that lives as long as the process."""

import re
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from agent_core.errors import ErrorCode, StorageError
from agent_core.types import SESSION_ID_PATTERN, Frozen, UtcDatetime, utc_now


class MemoryError(StorageError):  # noqa: A001 - the toolkit's own, never imported without its package
    """Memory failed."""

    NotFound: ClassVar[type["MemoryNotFoundError"]]
    Storage: ClassVar[type["MemoryStorageError"]]
    Invalid: ClassVar[type["InvalidMemoryError"]]

    default_code: ClassVar[ErrorCode] = ErrorCode.STORAGE_ERROR
    recoverable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(self.default_code, message, self.recoverable)

    def is_recoverable(self) -> bool:
        """Whether the application may simply go on."""
        return self.recoverable


class MemoryNotFoundError(MemoryError):
    """There is nothing of that id."""

    default_code = ErrorCode.MEMORY_RECALL_FAILED
    recoverable = True


class MemoryStorageError(MemoryError):
    """The store cannot be read or written."""


class InvalidMemoryError(MemoryError):
    """A name or a value cannot be stored as it is."""

    default_code = ErrorCode.VALIDATION_ERROR


MemoryError.NotFound = MemoryNotFoundError
MemoryError.Storage = MemoryStorageError
MemoryError.Invalid = InvalidMemoryError


class MemoryItem(Frozen):
    """Something remembered, under an id of the caller's choice. Saving an id again replaces it."""

    id: Annotated[str, Field(min_length=1)]
    content: str
    metadata: dict[str, Any] = {}
    created_at: UtcDatetime = Field(default_factory=utc_now)


class MemoryFilter(Frozen):
    """Which items to list: ids beginning with `prefix`, not before `since`, at most `limit`."""

    prefix: str | None = None
    since: UtcDatetime | None = None
    limit: Annotated[int, Field(ge=0)] | None = None


class EvictionPolicy(StrEnum):
    """Which item goes first when a store is full."""

    OLDEST = "oldest"
    LEAST_RECENTLY_USED = "least_recently_used"


class EvictionConfig(Frozen):
    """When a store forgets.

    `ttl` counts from an item's `created_at`; `capacity` is a number of items.
    """

    policy: EvictionPolicy = EvictionPolicy.OLDEST
    ttl: timedelta | None = None
    capacity: Annotated[int, Field(gt=0)] | None = None


def session_prefix(kind: str, session_id: str) -> str:
    """What the ids of one session's items begin with; no two sessions share one.

    Raises:
        MemoryError: `Invalid`; the session id could be mistaken for another one.
    """
    if not re.fullmatch(SESSION_ID_PATTERN, session_id):
        raise InvalidMemoryError(
            f"the session id {session_id[:80]!r} is not usable; it must be 1 to 64 letters, digits,"
            " '_' or '-'"
        )
    return f"_{kind}_{session_id}:"


EVERYTHING = MemoryFilter()


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

    async def list(self, wanted: MemoryFilter = EVERYTHING) -> list[MemoryItem]:
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

    async def list(self, wanted: MemoryFilter = EVERYTHING) -> list[MemoryItem]:
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

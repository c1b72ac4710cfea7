"""The protocol of memory stores, and the items and filters they take."""

import re
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Protocol

from pydantic import Field

from agcore.errors import InvalidMemoryError
from agent_core.types import SESSION_ID_PATTERN, Frozen, UtcDatetime, utc_now


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

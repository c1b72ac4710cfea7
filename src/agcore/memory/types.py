"""The items of memory stores, and how they are selected and evicted."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from agcore.memory.error import InvalidMemoryError
from agent_core.errors import ArgumentError
from agent_core.text import quoted
from agent_core.types import SESSION_ID_PATTERN, Frozen, UtcDatetime, utc_now


class MemoryItem(Frozen):
    """Something remembered, under an id of the caller's choice. Saving an id again replaces it."""

    id: Annotated[str, Field(min_length=1)]
    content: str
    metadata: dict[str, Any] = {}
    created_at: UtcDatetime = Field(default_factory=utc_now)


class MemoryFilter(Frozen):
    """Selects the items to list: ids with `prefix`, not before `since`, at most `limit`."""

    prefix: str | None = None
    since: UtcDatetime | None = None
    limit: Annotated[int, Field(ge=0)] | None = None


class EvictionPolicy(StrEnum):
    """Order in which a full store removes items."""

    OLDEST = "oldest"
    LEAST_RECENTLY_USED = "least_recently_used"
    RECALL_BASED = "recall_based"
    """Those that `get` and retrievers have returned least often, first."""


class EvictionConfig(Frozen):
    """Limits beyond which a store removes items.

    `ttl` counts from an item's `created_at`; `capacity` is a number of items.
    """

    policy: EvictionPolicy = EvictionPolicy.OLDEST
    ttl: timedelta | None = None
    capacity: Annotated[int, Field(gt=0)] | None = None


def check_place(name: str, value: object) -> None:
    """Check where a store is to be kept.

    Args:
        name: the argument.
        value: a path or an address.

    Raises:
        ArgumentError: it is empty.
    """
    if not str(value).strip():
        raise ArgumentError(f"{name} is empty; is a variable not set?", name)


def session_prefix(kind: str, session_id: str) -> str:
    """Return the prefix of the ids of one session's items; no two sessions share one.

    Raises:
        MemoryError: `Invalid`; the session id could be mistaken for another one.
    """
    if not re.fullmatch(SESSION_ID_PATTERN, text := str(session_id)) or text != session_id:
        raise InvalidMemoryError(
            f"the session id {quoted(text)} is not usable; it must be 1 to 64 letters, digits,"
            " '_' or '-'"
        )
    return f"_{kind}_{session_id}:"


EVERYTHING = MemoryFilter()

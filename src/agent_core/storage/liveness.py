"""Liveness of the owners of sessions, as operations of the store judge it."""

from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from agent_core.storage.sql import Connection
from agent_core.types import SessionRecord

OwnerIsDead = Callable[[str, bool], bool]
"""Returns whether the process with this owner id is gone; the second argument says whether its
lease is over by the store's clock. Must be quick: it is called inside a transaction, in storage's
own thread.
"""


def by_lease(_: str, is_lease_over: bool, /) -> bool:
    """Judge an owner by its lease alone."""
    return is_lease_over


class Liveness(Struct, frozen=True):
    """Decides whether owners live.

    Attributes:
        now: returns the time of the database, which all its users share.
        is_dead: judges the owner of one session that is about to be used.
        is_surely_dead: judges owners for a process that looks after all sessions.
    """

    now: Callable[[Connection], datetime]
    is_dead: OwnerIsDead = by_lease
    is_surely_dead: OwnerIsDead = by_lease


def is_free(session: SessionRecord, is_dead: OwnerIsDead, now: datetime) -> bool:
    """Return whether no living owner has the session."""
    if session.owner is None:
        return True
    lease_end = session.lease_expires_at
    return is_dead(session.owner, lease_end is None or lease_end <= now)

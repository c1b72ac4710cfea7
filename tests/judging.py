"""Stores whose judge of owners a test chooses."""

from typing import TypeVar

from agent_core.storage.liveness import OwnerIsDead
from agent_core.storage.store import SessionStore

Store = TypeVar("Store", bound=SessionStore)


class Judge:
    """Judges owners by one function."""

    def __init__(self, is_dead: OwnerIsDead) -> None:
        self.is_dead = self.is_lost = is_dead


def judged(store: Store, is_dead: OwnerIsDead) -> Store:
    """Return the store, with owners judged by a function."""
    return store.judged_by(Judge(is_dead))


def after_deaths(store: Store) -> Store:
    """Return the store, with every other owner judged as dead."""
    return judged(store, owners_are_dead)


def owners_live(_: str, is_lease_over: bool) -> bool:
    """Judge every owner as living."""
    return False


def owners_are_dead(_: str, is_lease_over: bool) -> bool:
    """Judge every owner as dead."""
    return True

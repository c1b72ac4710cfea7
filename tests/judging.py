"""Stores whose judge of owners a test chooses, and a machine whose clock is wrong."""

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from agent_core.storage.liveness import OwnerIsDead
from agent_core.storage.owners import Owner
from agent_core.storage.store import SessionStore
from agent_core.types import utc_now

Store = TypeVar("Store", bound=SessionStore)


class Judge(Owner):
    """Judges other owners by one function."""

    def __init__(self, judge: OwnerIsDead) -> None:
        super().__init__("judge", Path("/"))
        self._judge = judge

    def is_dead(self, owner_id: str, is_lease_over: bool) -> bool:
        """Return whether the function judges an owner as dead."""
        return self._judge(owner_id, is_lease_over)

    is_lost = is_dead


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


def machine_is_ahead(patched: pytest.MonkeyPatch, by: timedelta) -> None:
    """Make the clock wrong by which the program dates what it stores, and judges ages."""

    def wrong() -> datetime:
        return utc_now() + by

    for name, module in [*sys.modules.items()]:
        if name.startswith("agent_core.") and getattr(module, "utc_now", None) is utc_now:
            patched.setattr(module, "utc_now", wrong)

"""What a session has cost beside its own runs: every call behind the scenes is counted."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from agent_core.events import SessionJournal, SessionReads
from agent_core.types import Usage

_KEY = "background_usage"


class UsageLedger:
    """Adds up the tokens of background model calls in the session's metadata, by purpose."""

    def __init__(self, store: SessionReads, journal: SessionJournal) -> None:
        self._store = store
        self._journal = journal
        self._lock = asyncio.Lock()  # adding up is reading, then writing

    async def add(self, session_id: str, purpose: str, usage: Usage) -> None:
        """Count what a call has cost; a call that cost nothing is not worth a write.

        Raises:
            StorageError: it could not be stored.
        """
        if usage == Usage():
            return
        async with self._lock:
            session = await self._store.session(session_id)
            if session is None:
                return
            known = background_usage(session.metadata)
            known[purpose] = known.get(purpose, Usage()).plus(usage)
            stored = {name: one.model_dump(exclude={"raw_usage"}) for name, one in known.items()}
            await self._journal.remember(session_id, {_KEY: stored})


def background_usage(metadata: Mapping[str, Any]) -> dict[str, Usage]:
    """What a session's metadata says about the cost of its background calls, by purpose."""
    stored = metadata.get(_KEY)
    if not isinstance(stored, dict):
        return {}
    entries = cast("dict[str, Any]", stored)
    return {purpose: Usage.model_validate(usage) for purpose, usage in entries.items()}

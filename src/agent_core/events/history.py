"""The port through which the journal writes history."""

import asyncio
from typing import Protocol

from agent_core.types import Batch, Position


class HistoryStore(Protocol):
    """What the journal needs from storage: one atomic, ordered write."""

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        """Queue a write and return at once; batches are stored in the order of the calls.

        The future fails with `StorageError` if nothing was stored: `session_active` if another
        owner than the batch's holds the session, or has closed the run. Nobody may cancel it.
        """
        ...

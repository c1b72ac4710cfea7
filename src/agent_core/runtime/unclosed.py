"""Ends of runs that the store did not take: kept until it does."""

import asyncio
import logging

from agent_core.aio import to_the_end
from agent_core.errors import StorageError
from agent_core.events import Journal

logger = logging.getLogger(__name__)


class UnclosedRuns:
    """The journals whose end has been shown, and stands in no row yet.

    Their sessions stay claimed meanwhile. A runtime that ends before the store takes them leaves
    them to the next one, which closes them as lost.
    """

    def __init__(self) -> None:
        self._journals: list[Journal] = []
        self._lock = asyncio.Lock()

    def add(self, journal: Journal) -> None:
        """Keep a journal; the store has refused its end."""
        self._journals.append(journal)

    async def close(self) -> None:
        """Store every end that is still missing.

        Raises:
            StorageError: the store does not take them now; what it did not take is kept.
        """
        async with self._lock:
            while self._journals:
                await to_the_end(self._close(self._journals[0]))

    async def _close(self, journal: Journal) -> None:
        try:
            await journal.close_again()
        except StorageError as error:
            if error.retryable:
                raise
            # Closed as lost by another process, or deleted: there is nothing to add.
            logger.warning("the end of %s is not stored: %s", journal.run.run_id, error)
        self._journals.remove(journal)

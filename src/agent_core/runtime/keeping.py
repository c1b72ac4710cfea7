"""What must not be lost where exchanges are left out of a request: it needs no model."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from agent_core.compact import KeptFacts, collect_kept, fit_kept, render_kept
from agent_core.context.composer import Composer
from agent_core.context.history import open_instructions
from agent_core.context.tokens import estimate_text
from agent_core.errors import AgentCoreError
from agent_core.events import Journal
from agent_core.types import Node

logger = logging.getLogger(__name__)

KeepText = Callable[[str], Awaitable[str]]
"""Stores a text beside the session and returns the artifact's id."""


class Keeping:
    """Gives one run's composer the `<kept>` part of its path; a compactor that summarises nothing.

    Args:
        composer: of the run.
        keep: for what does not fit into the part.
    """

    def __init__(self, composer: Composer, keep: KeepText) -> None:
        self._composer = composer
        self._keep = keep
        self._left_out: tuple[str, str | None] = ("", None)

    async def recover(self, journal: Journal) -> bool:
        """Make the part ready for a request that leaves exchanges out."""
        await self.prepare(journal)
        return False

    async def prepare(self, journal: Journal) -> None:
        """Collect from the whole path what must not be lost, within its room."""
        path, room = list(journal.path), self._composer.room_for_kept
        kept, rest = await asyncio.to_thread(_collected, path, room)
        if rest and rest != self._left_out[0]:
            self._left_out = rest, await self._stored(rest)
        self._composer.keep(render_kept(kept, self._left_out[1] if rest else None))

    async def _stored(self, rest: str) -> str | None:
        try:
            return await self._keep(rest)
        except AgentCoreError as error:
            logger.warning("older rules of the user could not be stored: %s", error)
            return None


def _collected(path: Sequence[Node], room: int) -> tuple[KeptFacts, str]:
    return fit_kept(collect_kept(path, open_instructions(path)), room, estimate_text)

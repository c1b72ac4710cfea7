"""Writes what happens in a session outside of its runs: work in the background."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_core.events.journal import build_node, pending
from agent_core.events.store import SessionStore
from agent_core.redaction.journal import JournalRedactor
from agent_core.types import (
    ContentBlock,
    Draft,
    EventDraft,
    EventLevel,
    EventType,
    Node,
    SessionNote,
)


class SessionJournal:
    """Writes nodes and events of no run: summaries that are ready between runs, memory, costs.

    Args:
        store: where it is written.
        redactor: removes secrets, as for a run's journal.
        estimate: what content will cost in a request, in tokens.
    """

    def __init__(
        self,
        store: SessionStore,
        redactor: JournalRedactor,
        estimate: Callable[[Sequence[ContentBlock]], int],
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._estimate = estimate

    async def note(
        self,
        session_id: str,
        event_type: EventType,
        payload: Mapping[str, Any],
        *,
        level: EventLevel = EventLevel.INFO,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Record what happened, and merge `metadata` into the session's.

        Raises:
            StorageError: it could not be stored.
        """
        event = pending(EventDraft(event_type, self._redactor.payload(payload), level))
        await self._store.note(
            SessionNote(session_id=session_id, events=[event], metadata=dict(metadata or {}))
        )

    async def remember(self, session_id: str, metadata: Mapping[str, Any]) -> None:
        """Merge into the session's metadata; None removes a key.

        Raises:
            StorageError: it could not be stored.
        """
        await self._store.note(SessionNote(session_id=session_id, metadata=dict(metadata)))

    async def add(
        self,
        draft: Draft,
        after: Node,
        announce: EventType,
        *,
        agent_id: str,
        payload: Mapping[str, Any],
    ) -> Node | None:
        """Hang the draft under the session's active node, which has to be `after`.

        Returns:
            The node; None if the session has gone on meanwhile, and nothing was written.

        Raises:
            StorageError: it could not be stored.
        """
        node = build_node(
            draft,
            self._redactor,
            self._estimate,
            session_id=after.session_id,
            agent_id=agent_id,
            run_id=None,
            parent_id=after.node_id,
        )
        announcement = EventDraft(announce, self._redactor.payload(payload), node_id=node.node_id)
        note = SessionNote(session_id=after.session_id, events=[pending(announcement)], node=node)
        return node if await self._store.note(note) else None

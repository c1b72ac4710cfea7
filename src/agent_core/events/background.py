"""The writer for what happens in a session outside of any run: work in the background."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from agent_core.events.journal import HistoryRedactor
from agent_core.types import (
    ContentBlock,
    Draft,
    EventDraft,
    EventLevel,
    EventType,
    Node,
    PendingEvent,
    SessionNote,
    new_id,
    utc_now,
)


class NoteStore(Protocol):
    """What this writer needs from storage."""

    async def note(self, note: SessionNote) -> bool:
        """Store a note; False, and nothing is stored, if its node comes too late."""
        ...


class SessionJournal:
    """Writes between runs. Inside of a run its own journal is the only writer.

    Args:
        store: where it is written.
        scrubber: removes secrets, as for a run's journal.
        estimate: what content will cost in a request, in tokens.
    """

    def __init__(
        self,
        store: NoteStore,
        redactor: HistoryRedactor,
        estimate: Callable[[Sequence[ContentBlock]], int],
    ) -> None:
        self._store = store
        self._journal_redactor = redactor
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
        event = self._event(EventDraft(event_type, self._journal_redactor.payload(payload), level))
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
        content = self._journal_redactor.content(draft.content)
        node = Node(
            node_id=new_id("node"),
            session_id=after.session_id,
            node_seq=0,
            parent_id=after.node_id,
            agent_id=agent_id,
            run_id=None,
            role=draft.role,
            node_type=draft.node_type,
            content=content,
            metadata=self._journal_redactor.metadata(draft.metadata),
            token_count=draft.token_count or self._estimate(content),
            created_at=utc_now(),
        )
        told = EventDraft(announce, self._journal_redactor.payload(payload), node_id=node.node_id)
        note = SessionNote(session_id=after.session_id, events=[self._event(told)], node=node)
        return node if await self._store.note(note) else None

    def _event(self, draft: EventDraft) -> PendingEvent:
        return PendingEvent(new_id("evt"), utc_now(), draft)

"""Events and nodes of a run: the journal that stores them, and the stream that shows them."""

from agent_core.events.journal import (
    HeldSession,
    HistoryStore,
    Journal,
    JournalEnd,
    SessionJournal,
)
from agent_core.events.stream import MESSAGE_BOUNDS, EventStream, whole_text
from agent_core.types import Batch, PendingEvent, Position, RunChange

__all__ = [
    "MESSAGE_BOUNDS",
    "Batch",
    "EventStream",
    "HeldSession",
    "HistoryStore",
    "Journal",
    "JournalEnd",
    "PendingEvent",
    "Position",
    "RunChange",
    "SessionJournal",
    "whole_text",
]

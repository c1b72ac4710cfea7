"""Events and nodes of a run: the journal that stores them, and the stream that shows them."""

from agent_core.events.journal import Journal, JournalEnd, SessionJournal
from agent_core.events.store import (
    BudgetStore,
    GrantStore,
    HistoryStore,
    QuestionStore,
    SessionReads,
    SessionStore,
    SessionWrites,
)
from agent_core.events.stream import MESSAGE_BOUNDS, EventStream, whole_text
from agent_core.types import Batch, PendingEvent, Position, RunChange

__all__ = [
    "MESSAGE_BOUNDS",
    "Batch",
    "BudgetStore",
    "EventStream",
    "GrantStore",
    "HistoryStore",
    "Journal",
    "JournalEnd",
    "PendingEvent",
    "Position",
    "QuestionStore",
    "RunChange",
    "SessionJournal",
    "SessionReads",
    "SessionStore",
    "SessionWrites",
    "whole_text",
]

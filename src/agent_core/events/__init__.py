"""What happened in a run: the journal that stores it, and the stream that shows it."""

from agent_core.events.journal import DeltaRedactor, HistoryRedactor, Journal, RunEnd
from agent_core.events.session_journal import SessionJournal
from agent_core.events.store import HistoryStore, SessionReads, SessionStore, SessionWrites
from agent_core.events.stream import EventStream
from agent_core.types import Batch, PendingEvent, Position, RunChange

__all__ = [
    "Batch",
    "DeltaRedactor",
    "EventStream",
    "HistoryRedactor",
    "HistoryStore",
    "Journal",
    "PendingEvent",
    "Position",
    "RunChange",
    "RunEnd",
    "SessionJournal",
    "SessionReads",
    "SessionStore",
    "SessionWrites",
]

"""What happened in a run: the journal that writes it down, and the stream that shows it."""

from agent_core.events.history import Batch, HistoryStore, PendingEvent, Position, RunChange
from agent_core.events.journal import DeltaRedactor, Journal, Scrubber
from agent_core.events.stream import EventStream

__all__ = [
    "Batch",
    "DeltaRedactor",
    "EventStream",
    "HistoryStore",
    "Journal",
    "PendingEvent",
    "Position",
    "RunChange",
    "Scrubber",
]

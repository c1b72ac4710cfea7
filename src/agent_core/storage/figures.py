"""Adds up a run's turns and usage from its events, if its process died before it could."""

from msgspec import Struct, field

from agent_core.storage.rows import loads, skip_unreadable
from agent_core.storage.sql import Connection
from agent_core.types import EventType, Usage
from agent_core.types.event_details import (
    EventDetails,
    ModelAsked,
    ModelGaveUp,
    ModelReplied,
    ModelRetried,
    read_details,
)

_COUNTED = (
    EventType.LOOP_STARTED,
    EventType.MODEL_STARTED,
    EventType.MODEL_RETRY,
    EventType.MODEL_FAILED,
    EventType.MODEL_COMPLETED,
)
_EVENTS = f"""SELECT event_type, payload_json FROM events WHERE run_id = ?
    AND event_type IN ({", ".join("?" * len(_COUNTED))}) ORDER BY run_seq"""  # noqa: S608


class Figures(Struct):
    """Turns and usage of a run.

    Attributes:
        replies: replies of the model; each of them was a turn.
        usage: usage of the replies, and of calls without a reply.
        is_in_turn: the model was asked again after its last reply.
    """

    replies: int = 0
    usage: Usage = field(default_factory=Usage)
    is_in_turn: bool = False


def read_figures(connection: Connection, run_id: str) -> Figures:
    """Add up the events of a run. A call during which a process died counts with its estimate."""
    figures, under_way = Figures(), Usage()
    rows = connection.execute(_EVENTS, (run_id, *(each.value for each in _COUNTED)))
    for event_type, text in rows.fetchall():
        details = EventDetails()
        with skip_unreadable(f"an event of run {run_id}"):
            details = read_details(event_type, loads(text))
        if isinstance(details, ModelReplied | ModelRetried | ModelGaveUp):
            figures.usage = figures.usage.plus(details.usage or Usage())
        match event_type:
            case EventType.MODEL_STARTED:
                under_way, figures.is_in_turn = _estimate(details), True
            case EventType.LOOP_STARTED:  # another process continues
                figures.usage, under_way = figures.usage.plus(under_way), Usage()
            case EventType.MODEL_COMPLETED:
                under_way, figures.is_in_turn = Usage(), False
                figures.replies += 1
            case EventType.MODEL_FAILED:
                under_way = Usage()
            case _:
                pass  # the next attempt is under way
    figures.usage = figures.usage.plus(under_way)
    return figures


def _estimate(details: EventDetails) -> Usage:
    """Return the estimate in the start of a call; starts of earlier versions have none."""
    given = details.estimate if isinstance(details, ModelAsked) else None
    if given is None:
        return Usage()
    tokens = given.input_tokens
    return Usage(input_tokens=tokens, total_tokens=tokens, cost=given.cost, is_estimated=True)

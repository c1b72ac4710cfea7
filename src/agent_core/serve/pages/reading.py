"""Sessions and runs are read for pages in parts: the last events first, older ones on demand."""

from msgspec import Struct

from agent_core.history.reading import History, HistoryReader
from agent_core.serve.pages.frame import Frame
from agent_core.serve.visits import Visit
from agent_core.types import ReplayResult, RunStatus, SessionRecord

EVENTS = 400
"""Events on one page."""

LOOKBACK = 500
"""Number of events before a page that are searched for the start of its open calls."""


class Part(Struct):
    """A part of a session or of a run.

    Attributes:
        history: the runs of the part, with what is known of them.
        reader: takes further events.
        first_seq: the number of its first event, in the session or in the run.
        last_seq: the number of its last one; 0 without events.
        above: where the active path continues before this part; None: it does not.
    """

    history: History
    reader: HistoryReader
    first_seq: int
    last_seq: int
    above: str | None


async def read_part(
    visit: Visit,
    session_id: str,
    *,
    to_seq: int | None = None,
    at: str | None = None,
) -> Part:
    """Read a page of a session.

    Args:
        visit: the request.
        session_id: the session, which the principal may see.
        to_seq: the number of the last event; None: to the end.
        at: the node at which the active path enters the part; None: the active node.

    Raises:
        StorageError: `session_not_found`.
    """
    page = await _page(visit, session_id, to_seq)
    reader = HistoryReader(visit.runtime, page.runs, tenant=visit.tenant, finds_children=True)
    reader.note(page.damaged)
    reader.add_rows(page)
    for event in page.events:
        await reader.add_event(event)
    if to_seq is None:
        for run in await visit.runtime.session_runs(session_id, tenant=visit.tenant):
            if run.parent_run_id is None and run.status is RunStatus.QUEUED:
                reader.add_runs([run])
                reader.exchange_of(run.run_id)  # one that has not begun has no event
    history, above = _history(page.session, reader, at or page.session.active_node_id)
    first = page.events[0].seq if page.events else None
    history.is_cut = (first or 1) > 1
    last = page.events[-1].seq if page.events else None
    return Part(history, reader, first or 1, last or 0, above)


async def read_run(visit: Visit, run_id: str, *, to_seq: int | None = None) -> Part:
    """Read a page of a run, also of a child.

    Args:
        visit: the request.
        run_id: the run, which the principal may see.
        to_seq: the number in the run of the last event; None: to the end.

    Raises:
        StorageError: `run_not_found`.
    """
    page = await visit.runtime.replay_run(
        run_id, from_seq=-EVENTS, to_seq=to_seq, tenant=visit.tenant
    )
    reader = HistoryReader(visit.runtime, page.runs, tenant=visit.tenant, finds_children=True)
    reader.note(page.damaged)
    reader.add_rows(page)
    for event in page.events:
        await reader.add_event(event)
    reader.exchange_of(run_id)
    history = History(
        page.session,
        [reader.exchanges[run_id]],
        frozenset(reader.nodes),
        reader.nodes,
        reader.damaged,
    )
    first = page.events[0].run_seq if page.events else None
    last = page.events[-1].run_seq if page.events else None
    return Part(history, reader, first or 1, last or 0, None)


def other_parts(frame: Frame, part: Part, own: tuple[str, str]) -> str:
    """Return the links from a part to the one before it and to the last one.

    Args:
        frame: the request.
        part: the part on the page.
        own: the address of the page.
    """
    say = frame.say
    links: list[str] = []
    if part.first_seq > 1:
        url = frame.address(*own, to=part.first_seq - 1, at=part.above)
        links.append(f'<a href="{url}" rel="prev">{say("Earlier messages")}</a>')
    if frame.request.query_params.get("to"):
        links.append(f'<a href="{frame.address(*own)}">{say("The latest messages")}</a>')
    return f"<p>{' · '.join(links)}</p>" if links else ""


async def _page(visit: Visit, session_id: str, to_seq: int | None) -> ReplayResult:
    runtime, tenant = visit.runtime, visit.tenant
    if to_seq is None:
        return await runtime.replay_session(session_id, -EVENTS, tenant=tenant)
    first = max(to_seq - EVENTS + 1, 1)
    return await runtime.replay_session(session_id, first, to_seq, tenant=tenant)


def _history(
    session: SessionRecord, reader: HistoryReader, at: str | None
) -> tuple[History, str | None]:
    active = set[str]()
    while (node := reader.nodes.get(at or "")) is not None and at not in active:
        active.add(node.node_id)
        at = node.parent_id
    exchanges = [
        each
        for each in reader.exchanges.values()
        if each.run is None or each.run.parent_run_id is None
        if each.entries or each.run is not None
    ]
    return History(session, exchanges, frozenset(active), reader.nodes, reader.damaged), at

"""Live parts of pages: events become fragments that replace or extend what the page shows."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from agent_core.aio import TaskStream
from agent_core.errors import AgentCoreError
from agent_core.history.page import status_mark
from agent_core.history.reading import CallEntry, Entry, Exchange, History, HistoryReader
from agent_core.serve.pages.conversation import Conversation
from agent_core.serve.pages.frame import Frame
from agent_core.serve.pages.reading import LOOKBACK
from agent_core.serve.streams import ServerEvent
from agent_core.text.pages import plain
from agent_core.types import CLOSING_EVENTS, ReplayResult, RunRecord, RuntimeEvent
from agent_core.types.event_details import (
    PermissionDecided,
    PermissionRequested,
    TextDelta,
    ToolOutput,
    ToolProgress,
)

_GATHERED_S = 0.05
"""Seconds in which the pieces of a text are put together."""

_LOOK_S = 1.0
"""Seconds between two looks for runs that others have started."""

_ASKED = (PermissionRequested, PermissionDecided)


class Live:
    """Turns the events of runs into fragments for one page.

    Attributes:
        frame: the request for the stream.

    Args:
        frame: likewise.
        reader: knows what the page shows already.
        history: likewise.
    """

    def __init__(self, frame: Frame, reader: HistoryReader, history: History) -> None:
        self.frame = frame
        self._reader = reader
        self._parts = Conversation(frame, history)
        self._history = history
        self._session_id = history.session.session_id
        self._shown = {each.run_id for each in history.exchanges}

    async def fragments(self, events: Sequence[RuntimeEvent]) -> str:
        """Return the fragments for events that follow each other."""
        parts: list[str] = []
        text: list[str] = []
        for event in events:
            details = event.details
            if isinstance(details, TextDelta):
                if details.from_start:
                    text = []
                    parts.append(_swap("innerHTML", "now", ""))
                text.append(details.text)
                continue
            if text:
                parts.append(_swap("beforeend", "now", plain("".join(text))))
                text = []
            parts.append(await self._fragment(event))
        if text:
            parts.append(_swap("beforeend", "now", plain("".join(text))))
        return "".join(parts)

    async def _fragment(self, event: RuntimeEvent) -> str:
        await self._load(event)
        exchange = self._reader.exchange_of(event.run_id)
        before = len(exchange.entries)
        entries = await self._reader.add_event(event)
        parts: list[str] = []
        if event.run_id not in self._shown:
            self._shown.add(event.run_id)
            self._history.exchanges.append(exchange)
            block = self._parts.exchange(exchange, self._number(exchange))
            parts.append(_swap("beforeend", "conversation", block))
            if exchange.run is not None:
                parts.append(_swap("innerHTML", "status", self._status(exchange.run)))
        else:
            parts += self._changes(exchange, entries, before)
        match event.details:
            case ToolOutput(text=text) | ToolProgress(text=text):
                parts += self._output(event, text)
            case details if isinstance(details, _ASKED):
                parts.append(await self._questions())
            case _:
                pass
        if event.node_id is not None:
            parts.append(_swap("innerHTML", "now", ""))
        if event.event_type in CLOSING_EVENTS:
            parts += await self._end(exchange)
        return "".join(parts)

    def _changes(self, exchange: Exchange, entries: Sequence[Entry], before: int) -> list[str]:
        new = exchange.entries[before:]
        parts: list[str] = []
        for entry in entries:
            body = self._parts.entry(entry)
            if any(entry is each for each in new):
                place = f"{exchange.run_id or 'outside'}-entries"
                parts.append(_swap("beforeend", place, body))
            elif isinstance(entry, CallEntry) and entry.key:
                parts.append(_swap("outerHTML", f"call-{entry.key}", body))
        return parts

    def _output(self, event: RuntimeEvent, text: str) -> list[str]:
        entry = self._reader.open_call(event.agent_id, event.tool_call_id or "")
        if entry is None or not entry.key:
            return []
        return [_swap("innerHTML", f"output-{entry.key}", f"<pre>{plain(text)}</pre>")]

    async def _load(self, event: RuntimeEvent) -> None:
        """Read the run and the node that an event names, if the page does not have them."""
        runtime, tenant = self.frame.visit.runtime, self.frame.visit.tenant
        is_closing = event.event_type in CLOSING_EVENTS
        known = self._reader.exchanges.get(event.run_id)
        if event.run_id is not None and (known is None or known.run is None or is_closing):
            page = await runtime.replay_session(
                self._session_id, event.seq or 1, event.seq or 1, tenant=tenant
            )
            self._reader.add_rows(page)
            self._reader.add_runs(page.runs)
        elif event.node_id is not None and event.node_id not in self._reader.nodes:
            page = await runtime.replay_session(
                self._session_id, event.seq or 1, event.seq or 1, tenant=tenant
            )
            self._reader.add_rows(page)

    async def _questions(self) -> str:
        visit = self.frame.visit
        records = await visit.runtime.approvals(self._session_id, tenant=visit.tenant)
        return _swap("innerHTML", "questions", self._parts.questions(records))

    async def _end(self, exchange: Exchange) -> list[str]:
        """Show the end of a run: its status, its files, and what can be done next."""
        key = exchange.run_id or "outside"
        await self._follow_path()
        failure = f'<p class="notice bad">{plain(exchange.failure)}</p>' if exchange.failure else ""
        label = self._parts.run_label(exchange, self._number(exchange))
        status = [] if exchange.run is None else [self._status(exchange.run)]
        return [
            *(_swap("innerHTML", "status", each) for each in status),
            _swap("innerHTML", "costs", self._parts.usage()),
            _swap("innerHTML", "tree", self._parts.tree()),
            _swap("innerHTML", "now", ""),
            _swap("outerHTML", f"{key}-head", label),
            _swap("innerHTML", f"{key}-foot", failure + self._parts.foot(exchange)),
            _swap("innerHTML", "stop", ""),
            await self._questions(),
        ]

    def _number(self, exchange: Exchange) -> str:
        numbers = enumerate(self._history.exchanges, 1)
        return next((str(number) for number, each in numbers if each is exchange), "")

    def _status(self, run: RunRecord) -> str:
        return status_mark(self.frame.say, run.status)

    async def _follow_path(self) -> None:
        visit = self.frame.visit
        page = await visit.runtime.replay_session(self._session_id, 1, 0, tenant=visit.tenant)
        self._history.session = page.session
        active, at = set[str](), page.session.active_node_id
        while (node := self._reader.nodes.get(at or "")) is not None and at not in active:
            active.add(node.node_id)
            at = node.parent_id
        self._history.active = frozenset(active)


async def stream_session(live: Live, session_id: str, after: int) -> AsyncGenerator[ServerEvent]:
    """Yield the fragments of everything that happens in a session after an event, for ever."""
    async with aclosing(_batches(_session_events(live.frame, session_id, after))) as batches:
        async for batch in batches:
            body = await live.fragments(batch)
            last = max((event.seq or 0 for event in batch), default=0)
            yield ServerEvent(body, id=str(last) if last else None)


async def stream_run(
    live: Live, run_id: str, events: AsyncGenerator[RuntimeEvent]
) -> AsyncGenerator[ServerEvent]:
    """Yield the fragments of a run, and then the event `end`, which closes the stream."""
    async with aclosing(_batches(events)) as batches:
        async for batch in batches:
            body = await live.fragments(batch)
            last = max((event.run_seq or 0 for event in batch), default=0)
            yield ServerEvent(body, id=str(last) if last else None)
    yield ServerEvent(run_id, event="end")


async def _session_events(
    frame: Frame, session_id: str, after: int
) -> AsyncGenerator[RuntimeEvent]:
    """Yield the events of a session after one of them: stored ones, and those of active runs."""
    visit = frame.visit
    page = await visit.runtime.replay_session(session_id, -LOOKBACK, tenant=visit.tenant)
    run = _active_run(page)
    while True:
        if run is None:
            page = await visit.runtime.replay_session(session_id, after + 1, tenant=visit.tenant)
            run = _active_run(page)
            for event in page.events:
                after = max(after, event.seq or 0)
                yield event
            if run is None and page.next_seq is None:
                await asyncio.sleep(_LOOK_S)
            continue
        number = _last_of(page, run)
        found = await visit.runtime.run_events(run.run_id, number, tenant=visit.tenant)
        run = None
        async with aclosing(found) as events:
            async for event in events:
                if event.seq is None or event.seq > after:
                    after = max(after, event.seq or 0)
                    yield event


def _last_of(page: ReplayResult, run: RunRecord) -> int:
    """Return the number in its run from which the events of a run are followed."""
    numbers = [event.run_seq or 0 for event in page.events if event.run_id == run.run_id]
    return max(max(numbers, default=0) - LOOKBACK, 0)


def _active_run(page: ReplayResult) -> RunRecord | None:
    """Return the run of the user that is at work."""
    for run in reversed(page.runs):
        if run.parent_run_id is None and run.has_begun:
            return run
    return None


async def _batches(
    events: AsyncGenerator[RuntimeEvent],
) -> AsyncGenerator[Sequence[RuntimeEvent]]:
    """Yield events in groups: what comes within a moment is shown together."""
    stream = TaskStream(events)
    upcoming: asyncio.Task[RuntimeEvent | None] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.create_task(_next(stream))
            first = await upcoming
            upcoming = None
            if first is None:
                return
            batch = [first]
            ends_at = asyncio.get_running_loop().time() + _GATHERED_S
            while (rest := ends_at - asyncio.get_running_loop().time()) > 0:
                upcoming = upcoming or asyncio.create_task(_next(stream))
                await asyncio.wait({upcoming}, timeout=rest)
                if not upcoming.done():
                    break
                found = upcoming.result()
                upcoming = None
                if found is None:
                    yield batch
                    return
                batch.append(found)
            yield batch
    finally:
        if upcoming is not None:
            upcoming.cancel()
            with suppress(asyncio.CancelledError, AgentCoreError):
                await upcoming
        await stream.aclose()


async def _next(events: AsyncGenerator[RuntimeEvent]) -> RuntimeEvent | None:
    return await anext(events, None)


def _swap(how: str, place: str, body: str) -> str:
    """Return a fragment that changes an element of the page.

    Args:
        how: `innerHTML`, `outerHTML` or `beforeend`.
        place: the id of the element.
        body: HTML.
    """
    return f'<hx-partial hx-target="#{plain(place)}" hx-swap="{how}">{body}</hx-partial>'

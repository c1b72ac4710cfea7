"""Live parts of pages: events become fragments that replace or extend what the page shows."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from msgspec import Struct

from agent_core.aio import TaskStream
from agent_core.errors import AgentCoreError
from agent_core.history.reading import CallEntry, Entry, Exchange, History, HistoryReader, NoteEntry
from agent_core.serve.pages.conversation import ConversationParts, open_questions
from agent_core.serve.pages.frame import Frame
from agent_core.serve.pages.reading import LOOKBACK
from agent_core.serve.streams import ServerEvent
from agent_core.text.pages import plain
from agent_core.types import CLOSING_EVENTS, ReplayResult, RunRecord, RuntimeEvent
from agent_core.types.event_details import (
    ChildEvent,
    ModelReplied,
    PermissionDecided,
    PermissionRequested,
    TextDelta,
    ToolOutput,
    ToolProgress,
)

Event = TypeVar("Event")

_GATHERED_S = 0.05
"""Seconds in which the pieces of a text are put together."""

_NEWEST = 20
"""How many nodes and runs are searched for a child's last event."""

MOST_QUEUED = 100
"""Queued runs of a page that its stream knows of."""

_LOOK_S = 1.0
"""Seconds between two looks for runs that others have started."""


class Moved(Struct, frozen=True):
    """A user has let a session continue from another node."""


class _News:
    """Everything that a group of events changes on a page.

    Attributes:
        exchanges: runs that are not on the page.
        added: entries that are not on the page, each with its run.
        changed: calls that look different now.
        waits: runs that no longer wait for a worker.
        outputs: what open calls have printed last, by their keys.
        children: children that have begun or ended, each with the run above it.
        metered: runs whose model has replied.
        ended: runs that have ended.
        has_asked: a question was asked or answered.
        has_moved: the session continues from another node.
    """

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.added: list[tuple[Exchange, Entry]] = []
        self.changed: list[CallEntry] = []
        self.waits: list[str] = []
        self.outputs: dict[str, str] = {}
        self.children: dict[str, Exchange] = {}
        self.metered: list[Exchange] = []
        self.ended: list[Exchange] = []
        self.has_asked = False
        self.has_moved = False
        self._is_cleared = False
        self._text = ""

    def note(self, exchange: Exchange, touched: Sequence[Entry], new: Sequence[Entry]) -> None:
        """Add what an event has changed in a run."""
        self.added += [(exchange, entry) for entry in new]
        for entry in touched:
            if isinstance(entry, NoteEntry) and entry.is_past:
                self.waits.append(entry.run_id)
            is_new = any(entry is each for each in new)
            if isinstance(entry, CallEntry) and not is_new and entry not in self.changed:
                self.changed.append(entry)

    def add_text(self, delta: TextDelta) -> None:
        """Add a piece of the message that is being written."""
        if delta.from_start:
            self.clear_text()
        self._text += delta.text

    def clear_text(self) -> None:
        """Remove the message that was being written: it is complete, or begins again."""
        self._is_cleared, self._text = True, ""

    def text_swaps(self) -> Iterator[str]:
        """Yield what changes of the message that is being written."""
        if self._is_cleared:
            yield _swap("innerHTML", "now", plain(self._text))
        elif self._text:
            yield _swap("beforeend", "now", plain(self._text))


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
        self._parts = ConversationParts(frame, history)
        self._history = history
        self._session_id = history.session.session_id
        self._shown = {each.run_id for each in history.exchanges}
        self._unseen = {each.run_id for each in history.exchanges if each.unseen_prompt is not None}
        for exchange in history.exchanges:
            self._shown |= {each.run_id for each in exchange.children}

    def show_queued(self, run_ids: Sequence[str]) -> None:
        """Note runs that are on the page although they have no events that it has seen."""
        for run_id in filter(None, run_ids):
            if run_id not in self._shown:
                self._shown.add(run_id)
                self._unseen.add(run_id)
                self._history.exchanges.append(self._reader.exchange_of(run_id))

    async def fragments(self, events: Sequence[RuntimeEvent | Moved]) -> str:
        """Return the fragments for events that follow each other.

        A fragment cannot change what another one of the same answer adds: everything is shown as it
        is after the last event.
        """
        news = _News()
        for event in events:
            if isinstance(event, Moved):
                news.has_moved = True
            elif isinstance(event.details, TextDelta):
                news.add_text(event.details)
            else:
                await self._take(event, news)
        is_other = bool(news.exchanges or news.ended or news.has_asked)
        if is_other:
            await self._follow_path()
        parts = [
            *(self._block(each) for each in news.exchanges),
            *self._entries(news),
            *self._children(news),
            *news.text_swaps(),
        ]
        for exchange in news.ended:
            parts += self._end(exchange, is_new=exchange in news.exchanges)
        parts += self._metered(news)
        if is_other:
            parts += await self._state()
        elif news.metered:
            parts.append(_swap("innerHTML", "costs", self._parts.usage()))
        if news.has_moved:
            parts.append(_swap("innerHTML", "moved", self._moved()))
            parts.append(_swap("innerHTML", "moves", await self._parts.moves()))
        return "".join(parts)

    async def _take(self, event: RuntimeEvent, news: "_News") -> None:
        """Add an event to the history, and note what it changes on the page."""
        await self._load(event)
        exchange = self._reader.exchange_of(event.run_id)
        before = len(exchange.entries)
        touched = await self._reader.add_event(event)
        if event.run_id not in self._shown:
            self._shown.add(event.run_id)
            self._history.exchanges.append(exchange)
            news.exchanges.append(exchange)
        elif exchange not in news.exchanges:
            is_output = isinstance(event.details, ToolOutput | ToolProgress)
            news.note(exchange, () if is_output else touched, exchange.entries[before:])
        match event.details:
            case ToolOutput(text=text) | ToolProgress(text=text):
                entry = self._reader.open_call(event.agent_id, event.tool_call_id or "")
                if entry is not None and entry.key:
                    news.outputs[entry.key] = text
            case ModelReplied():
                if exchange not in news.metered:
                    news.metered.append(exchange)
            case PermissionRequested() | PermissionDecided():
                news.has_asked = True
            case ChildEvent(child_run_id=str(child)):
                news.children.update({child: exchange})
            case _:
                pass
        if event.node_id is not None:
            news.clear_text()
        if event.event_type in CLOSING_EVENTS:
            news.ended.append(exchange)

    def _block(self, exchange: Exchange) -> str:
        block = self._parts.exchange(exchange, self._number(exchange))
        return _swap("beforeend", "conversation", block)

    def _entries(self, news: "_News") -> Iterator[str]:
        new = {id(entry) for _, entry in news.added}
        for exchange, entry in news.added:
            if exchange.run_id in self._unseen and exchange.unseen_prompt is None:
                self._unseen.discard(exchange.run_id)
                yield _swap("innerHTML", f"{exchange.run_id}-unseen", "")
            place = f"{exchange.run_id or 'outside'}-entries"
            yield _swap("beforeend", place, self._parts.entry(entry))
        for entry in news.changed:
            if id(entry) not in new and entry.key:
                yield _swap("outerHTML", f"call-{entry.key}", self._parts.entry(entry))
        for run_id in news.waits:
            yield _swap("outerHTML", f"{run_id}-waits", "")
        keys = {entry.key for entry in news.changed}
        keys |= {entry.key for _, entry in news.added if isinstance(entry, CallEntry)}
        for key, text in news.outputs.items():
            if key not in keys:
                yield _swap("innerHTML", f"output-{key}", f"<pre>{plain(text)}</pre>")

    def _children(self, news: "_News") -> Iterator[str]:
        """Yield the children that no call has started."""
        for run_id, exchange in news.children.items():
            found = next((each for each in exchange.children if each.run_id == run_id), None)
            if found is None or exchange in news.exchanges:
                continue
            place = self.frame.say("child {number}", number=exchange.children.index(found) + 1)
            block = self._parts.exchange(found, place)
            if run_id in self._shown:
                yield _swap("outerHTML", run_id, block)
            else:
                self._shown.add(run_id)
                yield _swap("beforeend", f"{exchange.run_id or 'outside'}-entries", block)

    def _metered(self, news: "_News") -> Iterator[str]:
        """Yield the lines of runs that have used more, and go on."""
        for exchange in news.metered:
            if exchange not in [*news.exchanges, *news.ended]:
                label = self._parts.run_label(exchange, self._number(exchange))
                yield _swap("outerHTML", f"{exchange.run_id or 'outside'}-head", label)

    async def _load(self, event: RuntimeEvent) -> None:
        """Read the run and the node that an event names, if the page does not have them."""
        known = self._reader.exchanges.get(event.run_id)
        is_new = event.run_id is not None and (known is None or known.run is None)
        is_unknown = event.node_id is not None and event.node_id not in self._reader.nodes
        if not (is_new or is_unknown or event.event_type in CLOSING_EVENTS):
            return
        visit, seq = self.frame.visit, event.seq or 1
        page = await visit.runtime.replay_session(self._session_id, seq, seq, tenant=visit.tenant)
        self._reader.add_rows(page)
        self._reader.add_runs(page.runs)
        if not page.events:  # it is a child's: the timeline has only those of the user's runs
            newest = await visit.runtime.pages.session(
                self._session_id, _NEWEST, tenant=visit.tenant
            )
            self._reader.add_nodes(newest.nodes)
            self._reader.add_runs(newest.runs)

    async def _state(self) -> Sequence[str]:
        """Return what depends on all runs: the status, the questions, the tree, and the cost."""
        records = await open_questions(self.frame, self._session_id)
        return [
            _swap("innerHTML", "questions", self._parts.questions(records)),
            _swap("innerHTML", "status", self._parts.status(is_asked=bool(records))),
            _swap("innerHTML", "moves", await self._parts.moves()),
            _swap("innerHTML", "stop", self._parts.stop()),
            _swap("innerHTML", "tree", self._parts.tree()),
            _swap("innerHTML", "costs", self._parts.usage()),
        ]

    def _end(self, exchange: Exchange, *, is_new: bool) -> Iterator[str]:
        """Yield the end of a run: its line, its files, and what can be done next."""
        key = exchange.run_id or "outside"
        if not is_new:
            label = self._parts.run_label(exchange, self._number(exchange))
            yield _swap("outerHTML", f"{key}-head", label)
            failure = exchange.failure
            failure = failure and self.frame.say.error(failure, exchange.error_code)
            notice = f'<p class="notice bad">{plain(failure)}</p>' if failure else ""
            yield _swap("innerHTML", f"{key}-foot", notice + self._parts.foot(exchange))

    def _moved(self) -> str:
        say, url = self.frame.say, self.frame.address("sessions", self._session_id)
        said = say("The session continues from another message now.")
        link = f'<a href="{url}">{say("Reload this page to see what is new.")}</a>'
        return f'<p class="notice fair">{said} {link}</p>'

    def _number(self, exchange: Exchange) -> str:
        numbers = enumerate(self._history.exchanges, 1)
        return next((str(number) for number, each in numbers if each is exchange), "")

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
            last = max((_seq_of(event) for event in batch), default=0)
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


def _seq_of(event: RuntimeEvent | Moved) -> int:
    return 0 if isinstance(event, Moved) else event.seq or 0


async def _session_events(
    frame: Frame, session_id: str, after: int
) -> AsyncGenerator[RuntimeEvent | Moved]:
    """Yield the events of a session after one of them: stored events, and events of active runs."""
    visit = frame.visit
    page = await visit.runtime.replay_session(session_id, -LOOKBACK, tenant=visit.tenant)
    run, before = _active_run(page), page.session.active_node_id
    has_followed = False
    while True:
        if run is None:
            page = await visit.runtime.replay_session(session_id, after + 1, tenant=visit.tenant)
            run = _active_run(page)
            for event in page.events:
                after = max(after, event.seq or 0)
                yield event
            is_moved = page.session.active_node_id != before
            if is_moved and not (page.events or has_followed):
                yield Moved()
            before, has_followed = page.session.active_node_id, False
            if run is None and page.next_seq is None:
                await asyncio.sleep(_LOOK_S)
            continue
        number = _last_of(page, run)
        found = await visit.runtime.run_events(run.run_id, number, tenant=visit.tenant)
        run, has_followed = None, True
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
    events: AsyncGenerator[Event],
) -> AsyncGenerator[Sequence[Event]]:
    """Yield events in groups: what comes within a moment is shown together."""
    stream = TaskStream(events)
    upcoming: asyncio.Task[Event | None] | None = None
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


async def _next(events: AsyncGenerator[Event]) -> Event | None:
    return await anext(events, None)


def _swap(how: str, place: str, body: str) -> str:
    """Return a fragment that changes an element of the page.

    Args:
        how: `innerHTML`, `outerHTML` or `beforeend`.
        place: the id of the element.
        body: HTML.
    """
    return f'<hx-partial hx-target="#{plain(place)}" hx-swap="{how}">{body}</hx-partial>'

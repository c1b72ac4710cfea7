"""The only writer of a run's history: nodes and events together, stored first, then shown."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from agent_core.events.history import HistoryStore
from agent_core.events.stream import EventStream
from agent_core.types import (
    AgentStatus,
    Batch,
    ContentBlock,
    Draft,
    EventDraft,
    EventLevel,
    EventType,
    Node,
    PendingEvent,
    Position,
    RunChange,
    RunIdentity,
    RunStatus,
    RuntimeEvent,
    new_id,
    utc_now,
)


class DeltaRedactor(Protocol):
    """Cleans text that arrives in pieces."""

    def feed(self, text: str) -> str:
        """Return what can be shown now; a tail that could begin a secret is held back."""
        ...

    def finish(self) -> str:
        """Return what was held back, and start anew."""
        ...


class Scrubber(Protocol):
    """What the journal needs of redaction."""

    def payload(self, value: Any) -> Any:
        """Remove secret values and token shapes from event data."""
        ...

    def content(self, blocks: Iterable[ContentBlock]) -> list[ContentBlock]:
        """Remove secret values, and only those: the model must see the files it edits."""
        ...

    def metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Remove secret values, and only those, from what a node says about itself."""
        ...

    def stream(self) -> DeltaRedactor:
        """Clean one text that will arrive in pieces."""
        ...


class Journal:
    """One run's history: the path of nodes so far, and the only way to add to it.

    `add` and `note` write down; `commit` waits until everything written down is stored and
    shown. What was not committed by the end of the event loop's current step is stored with the
    next one: words that belong together share a transaction, and none waits for long.
    Cancelling a `commit` never splits or loses a write.

    `estimate` says what content will cost in a request, in tokens.
    `session_owner` is the runtime that holds the session, for the journal of a root agent: its
    nodes are where the session's next message continues. Other agents leave that alone.
    """

    def __init__(
        self,
        run: RunIdentity,
        *,
        store: HistoryStore,
        stream: EventStream,
        scrubber: Scrubber,
        estimate: Callable[[Sequence[ContentBlock]], int],
        path: Iterable[Node] = (),
        session_owner: str | None = None,
    ) -> None:
        self.run = run
        self.path = list(path)
        self.is_closing = False
        self._store = store
        self._stream = stream
        self._scrubber = scrubber
        self._estimate = estimate
        self._owner = session_owner
        self._nodes: list[Node] = []
        self._events: list[PendingEvent] = []
        self._writing: asyncio.Future[Position] | None = None
        self._failure: BaseException | None = None
        self._scheduled = False
        self._change: RunChange | None = None
        self._deltas: dict[EventType, DeltaRedactor] = {}

    def begin(self) -> None:
        """Mark the run and its agent as running, with the next write."""
        self._change = RunChange(status=RunStatus.RUNNING)

    def add(
        self,
        draft: Draft,
        announce: EventType = EventType.MESSAGE_CREATED,
        *,
        payload: Mapping[str, Any] | None = None,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> Node:
        """Hang the draft under the last node, and announce it: by default, with what it is."""
        content = self._scrubber.content(draft.content)
        node = Node(
            node_id=new_id("node"),
            session_id=self.run.session_id,
            node_seq=0,
            parent_id=self.path[-1].node_id if self.path else None,
            agent_id=self.run.agent_id,
            run_id=self.run.run_id,
            role=draft.role,
            node_type=draft.node_type,
            content=content,
            metadata=self._scrubber.metadata(draft.metadata),
            token_count=draft.token_count or self._estimate(content),
            created_at=utc_now(),
        )
        self.path.append(node)
        self._nodes.append(node)
        told = {"role": draft.role, "node_type": draft.node_type} if payload is None else payload
        self._record(announce, told, level, node.node_id, tool_call_id)
        return node

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> None:
        """Record that something happened that is not part of the conversation."""
        self._record(event_type, payload, level, None, tool_call_id)

    async def delta(self, event_type: EventType, text: str) -> None:
        """Show text as it arrives; the finished message is what gets stored."""
        redactor = self._deltas.get(event_type)
        if redactor is None:
            redactor = self._deltas[event_type] = self._scrubber.stream()
        if shown := redactor.feed(text):
            self._show_delta(event_type, shown)
            await self._stream.drain()

    def end_deltas(self) -> None:
        """Show what was held back: the text is complete, or will stay as it is."""
        for event_type, redactor in self._deltas.items():
            if rest := redactor.finish():
                self._show_delta(event_type, rest)
        self._deltas.clear()

    async def commit(self) -> None:
        """Return when everything written down is stored and shown.

        Raises:
            StorageError: it could not be stored; the run cannot go on.
        """
        self._flush()
        if self._writing is not None:
            await asyncio.shield(self._writing)
        if self._failure is not None:
            raise self._failure
        await self._stream.drain()

    async def close(
        self, change: RunChange, *, agent_status: AgentStatus, active_node_id: str | None
    ) -> None:
        """Store the end of the run with everything still waiting, and end the stream.

        A session whose last run this is becomes free for other processes.

        Raises:
            StorageError: the end could not be stored. The stream is ended all the same.
        """
        self.is_closing = True
        try:
            self._flush(run=change, agent_status=agent_status, active_node_id=active_node_id)
            if self._writing is not None:
                await asyncio.shield(self._writing)
            if self._failure is not None:
                raise self._failure
        finally:
            self._stream.close()

    def clean(self, value: Any) -> Any:
        """Text or JSON-like data as an event would hold it: for what leaves the run beside it."""
        return self._scrubber.payload(value)

    def show(self, event: EventDraft) -> None:
        """Publish without storing: deltas, and the end of a run whose store has failed."""
        self._stream.write(self._event(PendingEvent(new_id("evt"), utc_now(), event)))

    def _record(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None,
        level: EventLevel,
        node_id: str | None,
        tool_call_id: str | None,
    ) -> None:
        clean: dict[str, Any] = self._scrubber.payload(payload) if payload else {}
        draft = EventDraft(event_type, clean, level, node_id, tool_call_id)
        self._events.append(PendingEvent(new_id("evt"), utc_now(), draft))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _show_delta(self, event_type: EventType, text: str) -> None:
        self.show(EventDraft(event_type, {"text": text}))

    def _flush(
        self,
        *,
        run: RunChange | None = None,
        agent_status: AgentStatus | None = None,
        active_node_id: str | None = None,
    ) -> None:
        self._scheduled = False
        if not self._events and run is None:
            return
        nodes, events = self._nodes, self._events
        self._nodes, self._events = [], []
        if run is None and self._change is not None:
            run, agent_status = self._change, AgentStatus.RUNNING
        self._change = None
        if active_node_id is None and nodes and not nodes[-1].is_partial:
            active_node_id = nodes[-1].node_id
        batch = Batch(
            session_id=self.run.session_id,
            agent_id=self.run.agent_id,
            run_id=self.run.run_id,
            nodes=nodes,
            events=events,
            run=run,
            agent_status=agent_status,
            active_node_id=active_node_id if self._owner else None,
            release=self._owner if self.is_closing else None,
        )
        self._writing = self._store.append(batch)
        if self._writing.done():
            self._publish(events, self._writing)
        else:  # the first callback of the future: shown before anybody who waits goes on
            self._writing.add_done_callback(lambda written: self._publish(events, written))

    def _publish(self, events: list[PendingEvent], written: asyncio.Future[Position]) -> None:
        if failure := written.exception():
            self._failure = self._failure or failure
            return
        start = written.result()
        for offset, event in enumerate(events):
            self._stream.write(self._event(event, start, offset))

    def _event(
        self, event: PendingEvent, start: Position | None = None, offset: int = 0
    ) -> RuntimeEvent:
        draft = event.draft
        return RuntimeEvent(
            event_id=event.event_id,
            seq=start.seq + offset if start else None,
            run_seq=start.run_seq + offset if start else None,
            session_id=self.run.session_id,
            agent_id=self.run.agent_id,
            run_id=self.run.run_id,
            level=draft.level,
            event_type=draft.event_type,
            node_id=draft.node_id,
            tool_call_id=draft.tool_call_id,
            payload=dict(draft.payload),
            created_at=event.created_at,
        )

"""Writes a run's history: nodes and events together, stored first, then shown.

Events outside of runs are written by `SessionJournal`; the store itself closes runs whose owner has
died, and records that a session was moved.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from agent_core.errors import ErrorCode, StorageError
from agent_core.events.stream import EventStream
from agent_core.redaction.redactor import JournalRedactor, LiveText, json_text
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
    RunPrompt,
    RunStatus,
    RuntimeEvent,
    SessionNote,
    StoredOptions,
    ToolCall,
    call_ids_of,
    new_id,
    utc_now,
)

_GATHER_S = 0.005
"""Seconds that an event waits for others before it is stored, if nothing commits it earlier."""

_OUTPUT_CHARS = 4_000
"""Characters of the output of a running call that one event shows."""

_PIECE_CHARS = 262_144
"""Largest number of characters of a delta that are cleaned and shown at once."""


class JournalEnd(Struct, frozen=True):
    """The end of a run: its last events, and the final state of its rows.

    Attributes:
        events: the last events; the closing event is the last one.
        change: change of the run's row.
        agent_status: new status of the agent's row.
        active_node_id: the node from which the session's next message continues, if the run is a
            root agent's.
    """

    events: Sequence[EventDraft]
    change: RunChange
    agent_status: AgentStatus
    active_node_id: str | None


class HeldSession(Struct, frozen=True):
    """The claim with which a root agent's journal moves its session; each claim has an epoch."""

    owner: str
    epoch: int | None = None


class JournalKeeper(Protocol):
    """Looks after journals whose writes the store does not take."""

    def add_unclosed(self, journal: "Journal", /) -> None:
        """Keep a journal whose end could not be stored."""
        ...

    def refused(self, journal: "Journal", /) -> None:
        """Note that another owner has the session of a journal."""
        ...


class HistoryStore(Protocol):
    """The store, as far as the journal of a run needs it."""

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        """Queue a write and return at once: see `SessionStore.append`."""
        ...


class NoteStore(Protocol):
    """The store, as far as records outside of runs need it."""

    async def note(self, note: SessionNote) -> bool:
        """Add records outside of any run; False if the session has moved on meanwhile."""
        ...


class Journal:
    """One run's history: the path of nodes so far, and the only way to add to it.

    `add` and `note` record; `commit` waits until everything recorded is stored and shown. Anything
    not committed within milliseconds is stored then: the records of one step of the loop share a
    transaction, and none is delayed for long, whatever the run waits for. Cancelling a `commit`
    never splits or loses a write.

    One batch is being written at a time. If the store refuses it, everything recorded after it is
    dropped, the path ends at the last stored node again, and from then on only an end is stored: a
    later batch would describe consequences of something that was never stored.

    `estimate` returns the tokens that content will take in a request. `held` is the
    claim to the session, for the journal of a root agent: the session's next message
    continues from its nodes. Other agents do not move the session.

    Attributes:
        active_node_id: the session's active node, if this journal has moved it.
        complete: the number of nodes at the beginning of the path that are known to be complete:
            the last of them is one to continue at, and every call on them is answered.
        failure: the reason why the store refused this run's history; the run cannot continue.
        is_running: whether the run's row says that it runs.
        shows_output: whether the output of a command is shown while it runs.
    """

    def __init__(
        self,
        run: RunIdentity,
        *,
        store: HistoryStore,
        stream: EventStream,
        redactor: JournalRedactor,
        estimate: Callable[[Sequence[ContentBlock]], int],
        path: Iterable[Node] = (),
        held: HeldSession | None = None,
        keeper: JournalKeeper | None = None,
    ) -> None:
        self.run = run
        self._session_id, self._agent_id, self._run_id = run.session_id, run.agent_id, run.run_id
        self.path = list(path)
        self.is_closing = self.is_abandoned = self.has_end = False
        self.active_node_id: str | None = None
        self.complete = self._searched = 0
        self._call_ids: set[str] = set()
        self._store = store
        self._stream = stream
        self._redactor = redactor
        self._estimate = estimate
        self._owner = None if held is None else held.owner
        self.epoch = None if held is None else held.epoch
        self._keeper = keeper
        self._nodes: list[Node] = []
        self._events: list[PendingEvent] = []
        self._delivered: list[str] = []
        self._recorded = 0
        self._stored = 0
        self._writing: asyncio.Future[Position] | None = None
        self.failure: BaseException | None = None
        self.is_running = False
        self.shows_output = True
        self._due: asyncio.TimerHandle | None = None
        self._change: RunChange | None = None
        self._facts: Mapping[str, Any] = {}
        self._late_end: Batch | None = None
        self._deltas: dict[EventType, LiveText] = {}
        self._is_held = False

    def hold(self) -> None:
        """Keep what is recorded until `begin`: the row of the run does not exist yet."""
        self._is_held = True

    def continue_path(self, path: Sequence[Node], call_ids: set[str]) -> None:
        """Begin the path with complete nodes, on which these calls were made."""
        self.path.extend(path)
        self.complete = self._searched = len(path)
        self._call_ids = call_ids

    def call_ids(self) -> set[str]:
        """Return the ids of all calls on the path, and of the calls that could not be stored."""
        self._call_ids |= call_ids_of(islice(self.path, self._searched, None))[0]
        self._searched = len(self.path)
        return self._call_ids

    def begin(self, options: StoredOptions | None = None) -> None:
        """Mark the run as running, with the next write, unless its row says so already.

        `options` replace the stored ones, for a process that continues the run later.
        """
        if options is not None or not self.is_running:
            self._change = RunChange(status=RunStatus.RUNNING, options=options)
        self._is_held = False

    def replace_prompt(self, prompt: Draft) -> None:
        """Replace the message in the run's row by this one."""
        content = self._redactor.content(prompt.content)
        stored = RunPrompt(content=content, metadata=self._redactor.metadata(prompt.metadata))
        self._change = replace(self._change or RunChange(), prompt=stored)

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge these values into the metadata of the run's row, with the next write."""
        change = self._change or RunChange()
        self._change = replace(change, metadata={**(change.metadata or {}), **metadata})

    def remember(self, metadata: Mapping[str, Any]) -> None:
        """Merge these values into the metadata of the session, with the next write."""
        self._facts = {**self._facts, **metadata}

    def queue(self, payload: Mapping[str, Any]) -> None:
        """Record that the run has to wait, and mark it as queued with the same write."""
        self.is_running = False
        self._change = RunChange(status=RunStatus.QUEUED)
        self.note(EventType.RUN_QUEUED, payload)

    def add(
        self,
        draft: Draft,
        announce: EventType = EventType.MESSAGE_CREATED,
        *,
        payload: Mapping[str, Any] | None = None,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> Node:
        """Add the draft below the last node, and announce it, by default with its role and type."""
        node = build_node(
            draft,
            self._redactor,
            self._estimate,
            session_id=self._session_id,
            agent_id=self._agent_id,
            run_id=self._run_id,
            parent_id=self.path[-1].node_id if self.path else None,
        )
        if self.failure is None and not self.is_closing:
            self.path.append(node)
            self._nodes.append(node)
            facts = {"role": draft.role, "node_type": draft.node_type}
            facts = facts if payload is None else payload
            self.note(announce, facts, level=level, node_id=node.node_id, tool_call_id=tool_call_id)
        return node

    def deliver(self, message_id: str) -> None:
        """Remove a waiting message with the write of the node or event that is recorded next."""
        if self.failure is None and not self.is_closing:
            self._delivered.append(message_id)

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
        node_id: str | None = None,
        tool_call_id: str | None = None,
    ) -> None:
        """Record an event; `add` does so for each node of the conversation."""
        if self.failure is not None or self.is_closing:
            return
        draft = EventDraft(event_type, payload or {}, level, node_id, tool_call_id)
        self._events.append(PendingEvent(draft, json_text(draft.payload)))
        self._recorded += 1
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_GATHER_S, self._flush_late)

    async def delta(self, event_type: EventType, text: str) -> None:
        """Show text as it arrives; only the finished message is stored."""
        redactor = self._deltas.get(event_type)
        if redactor is None:
            self._flush()  # earlier events are shown before the text
            redactor = self._deltas[event_type] = self._redactor.stream()
        for start in range(0, len(text), _PIECE_CHARS):
            if start:
                await asyncio.sleep(0)  # a long text must leave room for a cancellation
            if shown := redactor.feed(text[start : start + _PIECE_CHARS]):
                self._show_delta(event_type, shown)
                await self._stream.drain()

    def end_deltas(self) -> None:
        """Show the text held back so far: nothing more of it will come."""
        for event_type, redactor in self._deltas.items():
            if rest := redactor.finish():
                self._show_delta(event_type, rest)
        self._deltas.clear()

    def show_output(self, call: ToolCall, text: str, lines: int) -> None:
        """Show the last output of a call that runs; what may be the beginning of a secret waits."""
        if self.failure is not None or self.is_closing or not self.shows_output:
            return
        redactor = self._redactor.stream()
        shown = redactor.feed(text)
        lines -= redactor.finish().count("\n")
        cut = len(shown) - _OUTPUT_CHARS
        shown = shown[shown.find("\n", cut) + 1 or cut :] if cut > 0 else shown
        payload = {"tool_name": call.name, "text": shown, "lines": lines}
        draft = EventDraft(EventType.TOOL_OUTPUT, payload, tool_call_id=call.tool_call_id)
        self._stream.write(self._event(PendingEvent(draft)))

    async def commit(self, *, is_shown: bool = True) -> None:
        """Wait until everything recorded is stored, and the stream's consumer has kept up.

        With `is_shown=False`, do not wait for the consumer, however slow it is.

        Raises:
            StorageError: it could not be stored; the run cannot continue.
        """
        self._flush()
        last = self._recorded
        while self._stored < last and self._writing is not None:
            await asyncio.wait([self._writing])
        if self.failure is not None:
            raise self.failure
        if is_shown:
            await self._stream.drain()

    def abandon(self, reason: StorageError) -> None:
        """Write nothing more, not even an end: the run belongs, or will belong, to another owner.

        Batches already sent to the store stay; a reader here sees the end of the stream.
        """
        self.failure = reason
        self.is_abandoned = True
        self._stream.close()

    async def close(self, end: JournalEnd, *, on_stored: Callable[[], None]) -> None:
        """Store the end of the run with everything still waiting, show it, and end the stream.

        If this is the session's last run, the session becomes free for other processes. `on_stored`
        is called before the closing event is shown, so that neither is seen without the other.

        Raises:
            StorageError: this batch or an earlier one could not be stored. The path ends at the
                last stored node; closing once more with an end that fits it stores only that end.
        """
        self.is_closing = True
        if self._due is not None:
            self._due.cancel()
        if self.is_abandoned:
            return
        await self._written_out()
        if self.failure is None:
            self._flush(end, on_stored)
            await self._written_out()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self._stream.close()

    def close_later(self, end: JournalEnd) -> None:
        """Show an end that the store does not accept now, and keep it for `close_again`."""
        self._late_end = self._take(end)
        for event in self._late_end.events:
            self._stream.write(self._event(event))
        self._stream.close()
        if self._keeper is not None:
            self._keeper.add_unclosed(self)

    async def close_again(self) -> None:
        """Store the end that was shown but not stored; does nothing if it has been stored.

        Must not be cancelled.

        Raises:
            StorageError: it could not be stored this time either.
        """
        if self._late_end is not None:
            await self._store.append(self._late_end)
            self._late_end = None
            self.has_end = True

    @property
    def is_stored(self) -> bool:
        """Return whether the store has the end of the run, once the run has ended here."""
        return self._late_end is None and not self.is_abandoned

    def clean(self, value: Any) -> Any:
        """Clean text or JSON-like data as for an event, for use outside of the journal."""
        return self._redactor.payload(value)

    def _show_delta(self, event_type: EventType, text: str) -> None:
        self._stream.write(self._event(PendingEvent(EventDraft(event_type, {"text": text}))))

    def _flush_late(self) -> None:
        self._due = None
        self._flush()

    def _flush(
        self, end: JournalEnd | None = None, on_stored: Callable[[], None] | None = None
    ) -> None:
        """Send everything that waits to the store, unless another batch is being written."""
        if end is None and (
            not self._events
            or self._is_held
            or self._writing is not None
            or self.failure is not None
            or self.is_closing
        ):
            return
        batch = self._take(end)
        writing = self._writing = self._store.append(batch)
        if writing.done():
            self._written(batch, on_stored, writing)
        else:  # the first callback of the future: shown before any waiting task continues
            writing.add_done_callback(partial(self._written, batch, on_stored))

    def _take(self, end: JournalEnd | None = None) -> Batch:
        """Return everything that waits, as one batch."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        nodes, events, change = self._nodes, self._events, self._change
        self._nodes, self._events, self._change = [], [], None
        delivered, self._delivered = self._delivered, []
        facts, self._facts = self._facts, {}
        agent_status: AgentStatus | None = None
        active = nodes[-1].node_id if nodes and not nodes[-1].is_partial else None
        if end is not None:
            events += [PendingEvent(draft, json_text(draft.payload)) for draft in end.events]
            added = change.metadata if change is not None else None
            change, agent_status = end.change, end.agent_status
            if added is not None:
                change = replace(change, metadata={**added, **(change.metadata or {})})
            active = end.active_node_id or active
        return Batch(
            session_id=self._session_id,
            agent_id=self._agent_id,
            run_id=self._run_id,
            nodes=nodes,
            events=self._redactor.events(events),
            run=change,
            agent_status=agent_status,
            active_node_id=active if self._owner else None,
            owner=self._owner,
            epoch=self.epoch,
            release=self._owner if end is not None else None,
            delivered=delivered,
            session_metadata=facts,
        )

    def _written(
        self,
        batch: Batch,
        on_stored: Callable[[], None] | None,
        written: asyncio.Future[Position],
    ) -> None:
        self._writing = None
        if failure := written.exception():
            self._fail(batch, failure)
            return
        self.active_node_id = batch.active_node_id or self.active_node_id
        if on_stored is not None:
            self.has_end = batch.run is not None and batch.run.status is not RunStatus.WAITING
            on_stored()
        start, stream = written.result(), self._stream
        for offset, event in enumerate(batch.events):
            if stream.is_read:
                stream.write(self._event(event, start, offset))
            else:
                stream.pass_over(event.draft.event_type, start.run_seq + offset)
        self._stored += len(batch.events)
        self._flush()

    def _fail(self, batch: Batch, failure: BaseException) -> None:
        """Go back to the stored state: this batch and everything after it is dropped."""
        self.failure = failure
        missing = {node.node_id for node in (*batch.nodes, *self._nodes)}
        self.path[:] = [node for node in self.path if node.node_id not in missing]
        self._nodes, self._events, self._change = [], [], None
        self._delivered = []
        is_refused = isinstance(failure, StorageError) and failure.code is ErrorCode.SESSION_ACTIVE
        if is_refused and self._keeper is not None:
            self._keeper.refused(self)

    async def _written_out(self) -> None:
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def _event(
        self, event: PendingEvent, start: Position | None = None, offset: int = 0
    ) -> RuntimeEvent:
        draft = event.draft
        return RuntimeEvent.of_checked(
            event_id=event.event_id,
            seq=start.seq + offset if start else None,
            run_seq=start.run_seq + offset if start else None,
            session_id=self._session_id,
            agent_id=self._agent_id,
            run_id=self._run_id,
            level=draft.level,
            event_type=draft.event_type,
            node_id=draft.node_id,
            tool_call_id=draft.tool_call_id,
            payload={**draft.payload},
            created_at=event.created_at,
        )


def build_node(
    draft: Draft,
    redactor: JournalRedactor,
    estimate: Callable[[Sequence[ContentBlock]], int],
    *,
    session_id: str,
    agent_id: str,
    run_id: str | None,
    parent_id: str | None,
) -> Node:
    """Convert the draft to a node without secrets; its `node_seq` comes from the store."""
    content = redactor.content(draft.content)
    return Node.of_checked(
        node_id=new_id("node"),
        session_id=session_id,
        node_seq=0,
        parent_id=parent_id,
        agent_id=agent_id,
        run_id=run_id,
        role=draft.role,
        node_type=draft.node_type,
        content=content,
        metadata=redactor.metadata(draft.stored_metadata),
        token_count=draft.token_count or estimate(content),
        created_at=utc_now(),
    )


class SessionJournal:
    """Writes nodes and events outside of runs: summaries ready between runs, memory, usage.

    Args:
        store: the store to write to.
        redactor: removes secrets, as for a run's journal.
        estimate: returns the tokens that content will take in a request.
        on_move: called with a session's id before its active node is moved.
    """

    def __init__(
        self,
        store: NoteStore,
        redactor: JournalRedactor,
        estimate: Callable[[Sequence[ContentBlock]], int],
        on_move: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._store = store
        self._on_move = on_move
        self._redactor = redactor
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
        """Record an event, and merge `metadata` into the session's metadata.

        Raises:
            StorageError: it could not be stored.
        """
        event = PendingEvent(EventDraft(event_type, self._redactor.payload(payload), level))
        await self._store.note(
            SessionNote(session_id=session_id, events=[event], metadata=dict(metadata or {}))
        )

    async def remember(self, session_id: str, metadata: Mapping[str, Any]) -> None:
        """Merge values into the session's metadata; None removes a key.

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
        """Add the draft below the session's active node, which must be `after`.

        Returns:
            The node; None if the session has moved on meanwhile, and nothing was written.

        Raises:
            StorageError: it could not be stored.
        """
        node = build_node(
            draft,
            self._redactor,
            self._estimate,
            session_id=after.session_id,
            agent_id=agent_id,
            run_id=None,
            parent_id=after.node_id,
        )
        announcement = EventDraft(announce, self._redactor.payload(payload), node_id=node.node_id)
        events = [PendingEvent(announcement)]
        note = SessionNote(session_id=after.session_id, events=events, node=node)
        self._on_move(after.session_id)
        return node if await self._store.note(note) else None

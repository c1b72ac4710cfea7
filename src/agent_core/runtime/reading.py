"""Reads a run from the store, whichever process executes it: its events, its text, its end."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct, field

from agent_core.errors import ErrorCode, StorageError
from agent_core.events import MESSAGE_BOUNDS, whole_text
from agent_core.redaction.redactor import JournalRedactor
from agent_core.storage.owners import Owner
from agent_core.storage.store import SessionStore
from agent_core.text import shown_id
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    CLOSING_EVENTS,
    LIVE_EVENTS,
    EventLevel,
    EventType,
    RunRecord,
    RunStatus,
    RuntimeEvent,
    new_id,
    utc_now,
)

if TYPE_CHECKING:
    from agent_core.storage.postgres.notices import NoticeQueue, Notices

CONTROL = "soong_control"
"""Channel for requests to the process that executes a run."""

_POLL_S = 0.25
"""Seconds between reads of a run of another process."""

_CONNECTED_POLL_S = 2.0
"""Seconds between these reads while its process can send notices."""

_LOST_S = 10.0
"""Seconds between checks whether the owner of a run is still alive."""

_LATE_S = 2.0
"""Seconds that another process has, after a run's time limit, to store that the run is late."""

_ASK_S = 5.0
"""Seconds between requests for the text of messages under way, while a run is watched."""

_ASK_ANEW_S = 0.5
"""Shortest time in seconds between requests for a message from its beginning, after a gap."""

_SHOWN_CHARS = 80
"""Characters of an invalid id shown in an error; ids are ASCII and shorter."""

_PAGE = 1000


def channel_of(run_id: str) -> str:
    """Return the channel on which a run's process announces stored events and sends text."""
    return f"run_{run_id}"


class TextPiece(Struct, frozen=True):
    """Text of an unfinished message, as a notice carries it.

    Attributes:
        event_type: type of the delta.
        bound: number of the stored event after which its message began.
        after: number of the last event that was stored before it.
        start: characters of the message before this piece.
        text: the text of this piece.
    """

    event_type: EventType
    bound: int
    after: int
    start: int
    text: str

    @classmethod
    def read(cls, payload: str) -> "TextPiece | None":
        """Parse a notice; None if it holds no piece."""
        try:
            match json.loads(payload):
                case [str(event_type), int(bound), int(after), int(start), str(text)]:
                    is_possible = 0 <= bound <= after and start >= 0
                    if is_possible and event_type in LIVE_EVENTS:
                        return cls(EventType(event_type), bound, after, start, text)
                case _:
                    pass
        except (ValueError, RecursionError):
            pass
        return None

    def __str__(self) -> str:
        return json.dumps([self.event_type, self.bound, self.after, self.start, self.text])


class _Progress(Struct):
    """Position of a reader in a run.

    Attributes:
        seen: number of the last event it has.
        bound: number of the last event after which another message begins, if known.
        lengths: characters it has of this message, by the type of the deltas.
        text: the visible text it has of this message.
        is_new_message: a message has begun whose text was not requested yet.
    """

    seen: int
    bound: int | None
    is_new_message: bool = False
    lengths: dict[EventType, int] = field(default_factory=dict[EventType, int])
    text: str = ""

    def pass_event(self, event: RuntimeEvent) -> None:
        self.seen = event.run_seq or self.seen
        self.is_new_message = event.event_type is EventType.MODEL_STARTED
        if event.event_type in MESSAGE_BOUNDS:
            self.begin(self.seen)

    def begin(self, bound: int) -> None:
        self.bound = bound
        self.lengths.clear()
        self.text = ""

    def new_text(self, piece: TextPiece) -> str:
        """Return the new part of a piece; empty if an earlier part is missing."""
        had = self.lengths.get(piece.event_type, 0)
        new = piece.text[had - piece.start :] if piece.start <= had else ""
        if new:
            self.lengths[piece.event_type] = had + len(new)
            if piece.event_type is EventType.MODEL_TEXT_DELTA:
                self.text += new
        return new


class RunReader:
    """Reads runs from the store.

    Args:
        store, owner, redactor: of the process.
        notices: notices of the store, if it has any; otherwise the store is polled.
    """

    def __init__(
        self,
        store: SessionStore,
        owner: Owner,
        redactor: JournalRedactor,
        notices: "Notices | None" = None,
    ) -> None:
        self._store = store
        self._owner = owner
        self._redactor = redactor
        self._notices = notices

    async def record(self, run_id: str) -> RunRecord:
        """Return the record of a run.

        Raises:
            StorageError: `run_not_found`.
        """
        shown = f"{run_id}"[:_SHOWN_CHARS].encode("ascii", "backslashreplace").decode()
        record = await self._store.run(run_id) if shown == run_id else None
        if record is None:
            message = f"there is no run {shown_id(shown)}"
            raise StorageError(ErrorCode.RUN_NOT_FOUND, message, details={"run_id": shown})
        return record

    async def wait(self, run_id: str, *, only_end: bool = False) -> RunStatus:
        """Return the status of a run that has ended or, unless `only_end`, waits for an answer.

        A run that a worker continues once it has its answer does not count as waiting.

        Raises:
            StorageError: `run_not_found`.
        """
        record = await self.record(run_id)
        with self._watched(record) as changes:
            while True:
                status = record.status
                if status.is_terminal:
                    return status
                is_pause = status is RunStatus.WAITING and not only_end
                if is_pause and not (
                    record.is_for_workers and await self._store.is_answered(run_id)
                ):
                    return status
                while not (await changes.wait())[1]:
                    pass
                record = await self.record(run_id)

    async def wait_until_late(self, run: RunRecord) -> None:
        """Wait until a run's process has stored that the cancelled run did not stop in time.

        That process was asked by a notice, so its time limit ends with the caller's, or soon after.
        """
        for _ in range(round(_LATE_S / _POLL_S)):
            late = await self._store.last_events(
                run.session_id, run.agent_id, EventType.CANCEL_TIMEOUT, limit=1
            )
            if late and late[0].run_id == run.run_id:
                return
            if (await self.record(run.run_id)).status.is_terminal:
                return
            await asyncio.sleep(_POLL_S)

    async def events(
        self,
        run_id: str,
        after: int,
        *,
        follow: bool = True,
        until: Callable[[], bool] = lambda: False,
    ) -> AsyncGenerator[RuntimeEvent]:
        """Yield the stored events after a number; with `follow`, also those until the run ends.

        Following stops early, between two events, once `until` returns True.

        Text of a message under way is yielded as it arrives; any missing text comes just before the
        event that completes the message.

        Raises:
            StorageError: `run_not_found`.
        """
        progress = _Progress(after, bound=0 if after == 0 else None)
        if not follow:
            async for event in self._stored(run_id, progress):
                yield event
            return
        record = await self.record(run_id)
        is_over = record.status.is_terminal
        pieces: Sequence[TextPiece] = ()
        with self._watched(record, is_read=True) as changes:
            while True:
                before, was_over = progress.seen, is_over
                async for event in self._stored(run_id, progress):
                    yield event
                    if event.event_type in CLOSING_EVENTS:
                        return
                if was_over or until():
                    return
                if progress.seen == before:  # its end may be among the events the reader has
                    is_over = (await self.record(run_id)).status.is_terminal
                if progress.is_new_message:  # perhaps from a new process
                    progress.is_new_message = False
                    changes.ask_for_text()
                is_behind = is_over
                while not is_behind:
                    for piece in pieces:
                        if delta := await self._delta(record, piece, progress):
                            yield delta
                    pieces, is_behind = await changes.wait()
                    is_behind = is_behind or any(each.after > progress.seen for each in pieces)

    async def _stored(self, run_id: str, progress: _Progress) -> AsyncGenerator[RuntimeEvent]:
        is_whole = False
        while not is_whole:
            page = await self._store.events_after(run_id, progress.seen, limit=_PAGE)
            is_whole = len(page) < _PAGE
            for event in page:
                if text := await self._rest_of(event, progress.text):
                    yield text
                progress.pass_event(event)
                yield event

    async def _rest_of(self, event: RuntimeEvent, shown: str) -> RuntimeEvent | None:
        """Return the missing part of a complete message's text as one delta."""
        if event.event_type is not EventType.MESSAGE_COMPLETED or event.node_id is None:
            return None
        node = await self._store.node(event.node_id)
        if node is None or not node.text:
            return None
        text = self._redactor.payload({"text": node.text})["text"]
        whole = whole_text(event, EventType.MODEL_TEXT_DELTA, text)
        if not shown or not text.startswith(shown):
            return whole
        rest = text[len(shown) :]
        return whole.model_copy(update={"payload": {"text": rest}}) if rest else None

    async def _delta(
        self, record: RunRecord, piece: TextPiece, progress: _Progress
    ) -> RuntimeEvent | None:
        """Convert a piece to an event, if it belongs to the current message and is new."""
        if piece.after > progress.seen:
            return None
        if progress.bound is None:  # the reader may have begun in the middle of a message
            between = await self._store.events_after(record.run_id, piece.bound, limit=_PAGE)
            if any(event.event_type in MESSAGE_BOUNDS for event in between):
                return None
            progress.begin(piece.bound)
        text = progress.new_text(piece) if piece.bound == progress.bound else ""
        if not text:
            return None
        payload: JsonObject = {"text": text}
        if piece.start == 0 and progress.lengths[piece.event_type] == len(text):
            payload["from_start"] = True
        return RuntimeEvent.of_checked(
            event_id=new_id("evt"),
            seq=None,
            run_seq=None,
            session_id=record.session_id,
            agent_id=record.agent_id,
            run_id=record.run_id,
            level=EventLevel.INFO,
            event_type=piece.event_type,
            node_id=None,
            tool_call_id=None,
            payload=payload,
            created_at=utc_now(),
        )

    @contextmanager
    def _watched(self, record: RunRecord, *, is_read: bool = False) -> Generator["_Changes"]:
        """Watch for changes of a run; with `is_read` its process is asked for its text too."""
        if self._notices is None or record.status.is_terminal:
            yield _Changes(self._store, self._owner)
            return
        notices, channel = self._notices, channel_of(record.run_id)
        with notices.subscribe(channel) as inbox, notices.watch(record.session_id, inbox):
            run_id = record.run_id if is_read else None
            yield _NoticedChanges(self._store, self._owner, notices, inbox, run_id)


class _Changes:
    """Decides when to read a run of another process again."""

    def __init__(self, store: SessionStore, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._checked = monotonic()

    async def wait(self) -> tuple[Sequence[TextPiece], bool]:
        """Return the text that has arrived, and whether it is time to read the store.

        A run whose owner has died is closed as lost.
        """
        come = await self._next()
        if monotonic() - self._checked > _LOST_S:
            await self._store.close_lost_runs()
            self._checked = monotonic()
        return come

    def ask_for_text(self) -> None:
        """Ask the run's process to send the text of messages under way."""

    async def _next(self) -> tuple[Sequence[TextPiece], bool]:
        await asyncio.sleep(_POLL_S)
        return (), True


class _NoticedChanges(_Changes):
    """The same, woken by notices; without a connection for them it polls."""

    def __init__(
        self,
        store: SessionStore,
        owner: Owner,
        notices: "Notices",
        inbox: "NoticeQueue",
        read_run_id: str | None,
    ) -> None:
        super().__init__(store, owner)
        self._notices = notices
        self._inbox = inbox
        self._run_id = read_run_id
        self._asked = self._asked_anew = self._looked = -_ASK_S
        self._lacks_text = False

    def ask_for_text(self, *, is_anew: bool = False) -> None:
        if self._run_id is not None:
            request = {"what": "watch", "run_id": self._run_id, "anew": is_anew}
            self._notices.send(CONTROL, json.dumps(request))
            self._asked = monotonic()

    async def _next(self) -> tuple[Sequence[TextPiece], bool]:
        poll_s = _CONNECTED_POLL_S if self._notices.is_connected else _POLL_S
        await self._inbox.wait(poll_s)
        payloads, has_missed = self._inbox.take()
        now = monotonic()
        self._lacks_text |= has_missed
        is_anew = self._lacks_text and now - self._asked_anew > _ASK_ANEW_S
        if is_anew or now - self._asked > _ASK_S:
            self.ask_for_text(is_anew=is_anew)
            if is_anew:
                self._asked_anew, self._lacks_text = now, False
        pieces = [piece for each in payloads if (piece := TextPiece.read(each))]
        is_behind = has_missed or len(pieces) < len(payloads) or now - self._looked > poll_s
        if is_behind:
            self._looked = now
        return pieces, is_behind

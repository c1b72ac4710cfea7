"""Acts at once on requests of other processes about runs executed here.

The requests are stored, so without this they are found a little later. Only the text of messages
under way is sent by notices alone.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import cast

from msgspec.structs import replace

from agent_core.errors import StorageError
from agent_core.events import MESSAGE_BOUNDS, EventStream
from agent_core.permissions.questions import Questions
from agent_core.runtime.leases import RemoteControls
from agent_core.runtime.reading import CONTROL, TextPiece, channel_of
from agent_core.storage.postgres.notices import LONGEST_NOTICE, Notices
from agent_core.storage.store import SessionStore
from agent_core.text.json_text import JsonObject
from agent_core.types import LAST_TURN, LIVE_EVENTS, EventType

logger = logging.getLogger(__name__)

_GATHER_S = 0.05
"""Seconds during which text is gathered and sent together."""

_WATCHED_S = 15.0
"""Seconds for which text is sent after a reader has asked for it."""

_PIECE_CHARS = 7_500
"""Characters of plain text that fit into a notice; other characters take more room."""


class RunControl:
    """Serves requests from other processes.

    Args:
        notices: delivers the requests.
        store: holds the requests.
        questions: questions of the runs of this process.
        stream_of: returns the events of a run that is under way here.
        controls: called with the runs that the requests name.
    """

    def __init__(
        self,
        notices: Notices,
        store: SessionStore,
        questions: Questions,
        *,
        stream_of: Callable[[str], EventStream | None],
        controls: RemoteControls,
    ) -> None:
        self._notices = notices
        self._store = store
        self._questions = questions
        self._stream_of = stream_of
        self._controls = controls
        self._senders: dict[str, _TextSender] = {}

    async def serve(self) -> None:
        """Serve requests until cancelled."""
        try:
            with self._notices.subscribe(CONTROL) as inbox:
                while True:
                    await inbox.wait()
                    payloads, has_missed = inbox.take()
                    if has_missed:
                        self._questions.look_up()
                    for payload in payloads:
                        await self._do(payload)
        finally:
            for sender in self._senders.values():
                sender.stop()

    async def _do(self, payload: str) -> None:
        try:
            request = json.loads(payload)
        except (ValueError, RecursionError):
            return
        match request:
            case {"what": "answer", "request_id": str(request_id)}:
                self._questions.take(request_id)
            case {"what": "cancel", "run_id": str(run_id)}:
                await self._cancel(run_id)
            case {"what": "message", "run_id": str(run_id)}:
                self._controls.look_for_messages([run_id])
            case {"what": "watch", "run_id": str(run_id)}:
                facts = cast("JsonObject", request)
                self._watch(run_id, anew=facts.get("anew") is True)
            case _:
                pass

    async def _cancel(self, run_id: str) -> None:
        if self._stream_of(run_id) is None:
            return
        try:
            record = await self._store.run(run_id)
        except StorageError as error:  # the next heartbeat may find it
            logger.warning("a request to cancel could not be looked up: %s", error)
            return
        if record is not None and record.cancel_requested_at is not None:
            self._controls.cancel([run_id])
        elif record is not None and LAST_TURN in record.metadata:
            self._controls.end_after_turn([run_id])

    def _watch(self, run_id: str, *, anew: bool) -> None:
        for known_id in [each for each, sender in self._senders.items() if sender.is_over]:
            del self._senders[known_id]
        sender = self._senders.get(run_id)
        if sender is None:
            if (stream := self._stream_of(run_id)) is None or stream.is_closed:
                return
            sender = self._senders[run_id] = _TextSender(run_id, stream, self._notices)
        sender.resume(anew=anew)


class _TextSender:
    """Sends the text of a run while another process watches it."""

    def __init__(self, run_id: str, stream: EventStream, notices: Notices) -> None:
        self._channel = channel_of(run_id)
        self._stream = stream
        self._notices = notices
        self._until = 0.0
        self._has_begun = False
        self._sending: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the run is no longer watched, or has ended."""
        return self._sending is None or self._sending.done()

    def resume(self, *, anew: bool) -> None:
        """Send text for a while from now on; `anew` starts at the beginning of the message."""
        self._until = monotonic() + _WATCHED_S
        if self.is_over or (anew and self._has_begun):
            self.stop()
            self._has_begun = False
            self._sending = asyncio.create_task(self._send(), name="text")

    def stop(self) -> None:
        """Send nothing more."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        await asyncio.sleep(_GATHER_S)  # readers that ask at the same time are served together
        self._has_begun = True
        stream = self._stream
        while not stream.is_closed and self._until > monotonic():
            bound, after = stream.last_bound, stream.last_run_seq
            lengths: dict[EventType, int] = {}
            with stream.follow() as follower:
                while (left := self._until - monotonic()) > 0 and not follower.is_over:
                    pieces: list[TextPiece] = []
                    for event in await follower.gather(_GATHER_S, timeout_s=left):
                        after = event.run_seq or after
                        if event.event_type in MESSAGE_BOUNDS:
                            bound = after
                            lengths.clear()
                        elif event.event_type in LIVE_EVENTS:
                            text, kind = event.payload["text"], event.event_type
                            start = lengths.get(kind, 0)
                            lengths[kind] = start + len(text)
                            pieces.append(TextPiece(kind, bound, after, start, text))
                    self._notices.send(self._channel, *_as_notices(pieces))


def _as_notices(pieces: Iterable[TextPiece]) -> Iterable[str]:
    """Split the pieces until each is short enough for a notice."""
    for piece in pieces:
        at = 0
        while at < len(piece.text):
            size, notice = 2 * _PIECE_CHARS, ""
            while not notice or len(notice) > LONGEST_NOTICE:
                size //= 2
                text = piece.text[at : at + size]
                notice = str(replace(piece, start=piece.start + at, text=text))
            yield notice
            at += size

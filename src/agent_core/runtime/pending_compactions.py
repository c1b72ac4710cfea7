"""Summaries in the making, and how they reach the path: through a run, or between two runs.

A run's own journal is the only writer of its path, so a summary that is ready waits for the
run's next request. Between runs the session's journal writes it, and a run that begins meanwhile
waits until it has.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from agent_core.compact.compactor import Compaction
from agent_core.compact.cut import is_prefix
from agent_core.events import Journal, SessionJournal, SessionReads, SessionStore
from agent_core.types import EventLevel, EventType, Node, utc_now

_PAUSE_KEY = "compact_pause"
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=1)
_KNOWN_SESSIONS = 1024


@dataclass(eq=False, slots=True)
class PendingCompaction:
    """A summary in the making, or ready.

    Attributes:
        covered: the path that it covers, as it was at the beginning.
        root_agent_id: whose path that is.
        payload: of its events.
        ready: set when there is a result, or there will be none.
        settled: whether it stands on the path, is stale, or has failed.
        changed: set whenever it may be time to look again.
    """

    covered: Sequence[Node]
    root_agent_id: str
    payload: dict[str, Any]
    compaction: Compaction | None = None
    settled: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self) -> None:
        """Nothing more will come of it."""
        self.settled = True
        self.ready.set()
        self.changed.set()


class PendingCompactions:
    """Knows which sessions have a run under way, and brings summaries to their paths."""

    def __init__(self, store: SessionStore, session_journal: SessionJournal) -> None:
        self._store = store
        self._session_journal = session_journal
        self._live: dict[str, Journal] = {}
        self._writing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pending: dict[str, PendingCompaction] = {}

    def get(self, session_id: str) -> PendingCompaction | None:
        """The summary of this session that is under way or waits."""
        return self._pending.get(session_id)

    def begin(self, session_id: str, work: PendingCompaction) -> None:
        """A summary of this session is being made: the only one at a time."""
        self._pending[session_id] = work

    def end(self, session_id: str) -> None:
        """The work is over, whatever came of it."""
        self._pending.pop(session_id).settle()
        if session_id not in self._live:
            self._writing.pop(session_id, None)

    async def join(self, journal: Journal) -> None:
        """A run is about to read the session's path; from now on it is the writer of that."""
        session_id = journal.run.session_id
        async with self._writing[session_id]:
            self._live[session_id] = journal

    def leave(self, session_id: str) -> None:
        """The session's run has ended."""
        self._live.pop(session_id, None)
        if work := self._pending.get(session_id):
            work.changed.set()
        else:
            self._writing.pop(session_id, None)

    def is_live(self, journal: Journal) -> bool:
        """Whether this is the journal of the session's run under way."""
        return self._live.get(journal.run.session_id) is journal

    def take(self, journal: Journal) -> bool:
        """Put a summary that is ready on this run's path; whether that was done."""
        work = self._pending.get(journal.run.session_id)
        if work is None or work.settled or work.compaction is None or not self.is_live(journal):
            return False
        fits = is_prefix(work.covered, journal.path)
        if fits:
            payload = {**work.payload, "stale": False}
            journal.add(work.compaction.draft, EventType.COMPACT_COMPLETED, payload=payload)
        else:
            journal.note(EventType.COMPACT_COMPLETED, {**work.payload, "stale": True})
        work.settle()
        return fits

    async def deliver(self, session_id: str, work: PendingCompaction) -> None:
        """Wait until a summary that is ready stands on the path, or is stale.

        Raises:
            StorageError: it could not be written.
        """
        work.ready.set()
        while not work.settled:
            work.changed.clear()
            async with self._writing[session_id]:
                is_between = self._writer(session_id) is None
                if is_between and await self._write(session_id, work):
                    work.settle()
            if not is_between:
                await work.changed.wait()

    async def note(
        self,
        session_id: str,
        event_type: EventType,
        payload: Mapping[str, Any],
        level: EventLevel = EventLevel.INFO,
    ) -> None:
        """Record what happened in the run under way, or in the session.

        Raises:
            StorageError: it could not be stored.
        """
        if journal := self._writer(session_id):
            journal.note(event_type, payload, level=level)
        else:
            await self._session_journal.note(session_id, event_type, payload, level=level)

    def _writer(self, session_id: str) -> Journal | None:
        journal = self._live.get(session_id)
        return None if journal is None or journal.is_closing else journal

    async def _write(self, session_id: str, work: PendingCompaction) -> bool:
        """Write it at the end of the path, or record that it is stale; False: try again."""
        session = await self._store.session(session_id)
        if session is None or session.active_node_id is None or work.compaction is None:
            return True
        path = await self._store.path(session.active_node_id)
        if not is_prefix(work.covered, path):
            stale = {**work.payload, "stale": True}
            await self._session_journal.note(session_id, EventType.COMPACT_COMPLETED, stale)
            return True
        node = await self._session_journal.add(
            work.compaction.draft,
            path[-1],
            EventType.COMPACT_COMPLETED,
            agent_id=work.root_agent_id,
            payload={**work.payload, "stale": False},
        )
        return node is not None


class CompactionPauses:
    """When a failed summary is tried again: after pauses that grow, kept with the session."""

    def __init__(self, store: SessionReads, journal: SessionJournal) -> None:
        self._store = store
        self._journal = journal
        self._known: OrderedDict[str, tuple[int, datetime]] = OrderedDict()

    async def load(self, session_id: str) -> None:
        """Read what earlier processes have stored; once for a session."""
        if session_id in self._known:
            return
        session = await self._store.session(session_id)
        self._set(session_id, *_parse_pause(session.metadata.get(_PAUSE_KEY) if session else None))

    def is_over(self, session_id: str) -> bool:
        """Whether a summary may be tried. A clock that was set back ends a pause, too."""
        _, until = self._known.get(session_id, (0, utc_now()))
        return not utc_now() < until <= utc_now() + _LONGEST_PAUSE

    async def failed(self, session_id: str) -> None:
        """Wait longer than the last time.

        Raises:
            StorageError: it could not be stored.
        """
        failures = self._known.get(session_id, (0, utc_now()))[0] + 1
        until = utc_now() + min(_FIRST_PAUSE * 2 ** min(failures - 1, 10), _LONGEST_PAUSE)
        self._set(session_id, failures, until)
        stored = {"failures": failures, "until": until.isoformat()}
        await self._journal.remember(session_id, {_PAUSE_KEY: stored})

    async def succeeded(self, session_id: str) -> None:
        """Forget the failures.

        Raises:
            StorageError: it could not be stored.
        """
        failures, _ = self._known.get(session_id, (0, utc_now()))
        if failures:
            self._set(session_id, 0, utc_now())
            await self._journal.remember(session_id, {_PAUSE_KEY: None})

    def _set(self, session_id: str, failures: int, until: datetime) -> None:
        self._known[session_id] = failures, until
        self._known.move_to_end(session_id)
        if len(self._known) > _KNOWN_SESSIONS:
            self._known.popitem(last=False)


def _parse_pause(value: object) -> tuple[int, datetime]:
    if isinstance(value, dict):
        entry = cast("dict[str, Any]", value)
        try:
            failures, until = entry["failures"], datetime.fromisoformat(entry["until"])
            if isinstance(failures, int) and until.tzinfo is not None:
                return failures, until
        except (KeyError, TypeError, ValueError):
            pass
    return 0, utc_now()

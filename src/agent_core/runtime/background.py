"""Work beside runs and after them: jobs, their cost, and unfinished summaries."""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msgspec import Struct, field

from agent_core.compact.cut import is_prefix
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.events import Journal, SessionJournal
from agent_core.redaction import log_failure
from agent_core.storage.store import SessionStore
from agent_core.types import (
    MEMORY_USAGE,
    Batch,
    EventLevel,
    EventType,
    Node,
    RunChange,
    RunIdentity,
    RunRecord,
    SessionRecord,
    Usage,
    utc_now,
)

if TYPE_CHECKING:
    from agent_core.compact.compactor import Compaction

logger = logging.getLogger(__name__)

_USAGE_KEY = "background_usage"


class Jobs:
    """Background jobs of one runtime, by session.

    Attributes:
        grace_s: seconds that `close` waits for unfinished jobs.
    """

    def __init__(self, *, grace_s: float) -> None:
        self.grace_s = grace_s
        self._patient: set[asyncio.Task[None]] = set()
        self._tasks: defaultdict[str, set[asyncio.Task[None]]] = defaultdict(set)

    def start(
        self,
        session_id: str,
        work: Coroutine[Any, Any, None],
        *,
        name: str,
        then: Callable[[], None],
        is_patient: bool = False,
    ) -> None:
        """Run `work` in the background. An exception in it is a bug, and is logged.

        `then` is called when the job has ended, even if it was cancelled before it began.

        Patient work can be done another day: `close` cancels it instead of waiting for it.
        """
        task = asyncio.create_task(work, name=_title(session_id, name))
        if is_patient:
            self._patient.add(task)
            task.add_done_callback(self._patient.discard)
        self._tasks[session_id].add(task)
        task.add_done_callback(lambda done: self._forget(session_id, done, then))

    @property
    def is_idle(self) -> bool:
        """Return whether no job is under way."""
        return not self._tasks

    def stop(self, session_id: str, *, name: str) -> None:
        """Cancel the jobs with this name without waiting for them."""
        for task in self._tasks.get(session_id, ()):
            if task.get_name() == _title(session_id, name):
                task.cancel()

    async def cancel(self, session_id: str) -> None:
        """Cancel the jobs of a session and wait until they have ended."""
        await _cancel_all(self._tasks.get(session_id, set()))

    async def close(self) -> None:
        """Wait up to the grace period for every job, then cancel the rest."""
        await _cancel_all(self._patient)
        tasks = [task for of_session in self._tasks.values() for task in of_session]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self.grace_s)
            await _cancel_all(late)

    def _forget(self, session_id: str, task: asyncio.Task[None], then: Callable[[], None]) -> None:
        tasks = self._tasks[session_id]
        tasks.discard(task)
        if not tasks:
            del self._tasks[session_id]
        if not task.cancelled() and (error := task.exception()) and not _is_deletion(error):
            log_failure(logger, f"the background job {task.get_name()} broke", error=error)
        then()


def _is_deletion(error: BaseException) -> bool:
    """Return whether a job failed because its session was deleted in the meantime."""
    return isinstance(error, AgentCoreError) and error.code is ErrorCode.SESSION_NOT_FOUND


def _title(session_id: str, name: str) -> str:
    return f"{name} of {session_id}"


async def _cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    waiting = set(tasks)
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)


class UsageLedger:
    """Adds up the tokens of background model calls in the session's metadata, by purpose."""

    def __init__(self, store: SessionStore, journal: SessionJournal) -> None:
        self._store = store
        self._journal = journal
        self._lock = asyncio.Lock()  # a read followed by a write

    async def add(
        self, session_id: str, purpose: str, usage: Usage, *, run: RunIdentity | None = None
    ) -> None:
        """Add the usage of a call, also to the run that waited for it, if it is given.

        A call without usage is not written.

        Raises:
            StorageError: the usage could not be stored.
        """
        if usage == Usage():
            return
        async with self._lock:
            session = await self._store.session(session_id)
            if session is None:
                return
            known = read_background_usage(session.metadata)
            known[purpose] = known.get(purpose, Usage()).plus(usage)
            stored = {name: one.model_dump(exclude={"raw_usage"}) for name, one in known.items()}
            await self._journal.remember(session_id, {_USAGE_KEY: stored})
            record = None if run is None else await self._store.run(run.run_id)
            if run is not None and record is not None:
                spent = read_memory_usage(record).plus(usage).model_dump(exclude={"raw_usage"})
                batch = Batch(
                    session_id=session_id,
                    agent_id=run.agent_id,
                    run_id=run.run_id,
                    run=RunChange(metadata={MEMORY_USAGE: spent}),
                )
                await self._store.append(batch)


def read_memory_usage(run: RunRecord) -> Usage:
    """Read the tokens that the choice of memories has taken in a run from its metadata."""
    stored: object = run.metadata.get(MEMORY_USAGE)
    return Usage.model_validate(stored) if isinstance(stored, dict) else Usage()


def total_usage(tree: Sequence[RunRecord], run_id: str) -> Usage:
    """Return the tokens of a run with everything below it, and of the choice of its memories.

    A run that only summarises reports the tokens of the run that has written the summary.
    """
    total = Usage()
    for run in tree:
        if run.run_id != run_id or run.turn_count or len(tree) == 1:
            total = total.plus(run.usage)
        total = total.plus(read_memory_usage(run))
    return total


def read_background_usage(metadata: Mapping[str, Any]) -> dict[str, Usage]:
    """Read the usage of a session's background calls from its metadata, by purpose."""
    stored = metadata.get(_USAGE_KEY)
    if not isinstance(stored, dict):
        return {}
    entries = cast("dict[str, Any]", stored)
    return {purpose: Usage.model_validate(usage) for purpose, usage in entries.items()}


_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=1)
_KNOWN_SESSIONS = 1024


class Background(Struct, frozen=True):
    """The means for work beside and between runs.

    Attributes:
        jobs: its tasks.
        usage: adds up what they cost.
        journal: writes into sessions outside of runs.
    """

    jobs: Jobs
    usage: UsageLedger
    journal: SessionJournal


class PendingCompaction(Struct, eq=False):
    """A summary that is being made, or is ready.

    Attributes:
        covered: the path it covers, as it was when the work began.
        root_agent_id: the agent the path belongs to.
        payload: payload of its events.
        ready: set when there is a result, or when there will be none.
        settled: true once the summary is on the path, is stale, or has failed.
        changed: set whenever a waiter should check again.
    """

    covered: Sequence[Node]
    root_agent_id: str
    payload: dict[str, Any]
    compaction: "Compaction | None" = None
    settled: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self) -> None:
        """Mark the work as finished, and wake everything that waits for it."""
        self.settled = True
        self.ready.set()
        self.changed.set()


class PendingCompactions:
    """Tracks the sessions with a run under way, and adds summaries to their paths."""

    def __init__(self, store: SessionStore, session_journal: SessionJournal) -> None:
        self._store = store
        self._session_journal = session_journal
        self._live: dict[str, Journal] = {}
        self._writing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pending: dict[str, PendingCompaction] = {}

    def get(self, session_id: str) -> PendingCompaction | None:
        """Return the session's unfinished or waiting summary, if any."""
        return self._pending.get(session_id)

    def begin(self, session_id: str, work: PendingCompaction) -> None:
        """Register a summary of this session; only one is made at a time."""
        self._pending[session_id] = work

    def end(self, session_id: str) -> None:
        """Remove the session's summary, whatever its result."""
        self._pending.pop(session_id).settle()
        if session_id not in self._live:
            self._writing.pop(session_id, None)

    async def join(self, journal: Journal) -> None:
        """Register the journal of a run that is about to read the path and becomes its writer."""
        session_id = journal.run.session_id
        async with self._writing[session_id]:
            self._live[session_id] = journal

    def leave(self, session_id: str) -> None:
        """Unregister the session's run, which has ended."""
        self._live.pop(session_id, None)
        if work := self._pending.get(session_id):
            work.changed.set()
        else:
            self._writing.pop(session_id, None)

    def is_live(self, journal: Journal) -> bool:
        """Return whether this journal belongs to the session's run under way."""
        return self._live.get(journal.run.session_id) is journal

    def take(self, journal: Journal) -> bool:
        """Add a ready summary to this run's path; return whether it was added."""
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
        """Wait until a ready summary is on the path or is stale.

        Raises:
            StorageError: the summary could not be written.
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
        """Record an event in the run under way, or else in the session.

        Raises:
            StorageError: the event could not be stored.
        """
        if journal := self._writer(session_id):
            journal.note(event_type, payload, level=level)
        else:
            await self._session_journal.note(session_id, event_type, payload, level=level)

    def _writer(self, session_id: str) -> Journal | None:
        journal = self._live.get(session_id)
        return None if journal is None or journal.is_closing else journal

    async def _write(self, session_id: str, work: PendingCompaction) -> bool:
        """Write the summary at the end of the path or mark it stale; False means try again."""
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


class RetryPauses:
    """Pauses before failed work is tried again: they grow, and are stored with the session.

    Attributes:
        key: their key in the metadata of the session.
    """

    key: ClassVar[str]

    def __init__(self, journal: SessionJournal) -> None:
        self._journal = journal
        self._known: OrderedDict[str, tuple[int, datetime]] = OrderedDict()

    def load(self, session: SessionRecord) -> None:
        """Load a pause that an earlier process stored; does nothing if the session is known."""
        stored = session.metadata.get(self.key)
        if stored is not None and session.session_id not in self._known:
            self._set(session.session_id, *_parse_pause(stored))

    def has_failed(self, session_id: str) -> bool:
        """Return whether the last attempt failed."""
        return self._known.get(session_id, (0,))[0] > 0

    def seconds_left(self, session_id: str) -> float:
        """Return how long the pause still takes; 0 if there is none."""
        if session_id not in self._known or self.is_over(session_id):
            return 0.0
        return (self._known[session_id][1] - utc_now()).total_seconds()

    def is_over(self, session_id: str) -> bool:
        """Return whether the work may be tried. A clock set back also ends a pause."""
        _, until = self._known.get(session_id, (0, utc_now()))
        return not utc_now() < until <= utc_now() + _LONGEST_PAUSE

    async def failed(self, session_id: str) -> None:
        """Start a pause, longer than the last one.

        Raises:
            StorageError: the pause could not be stored.
        """
        failures = self._known.get(session_id, (0, utc_now()))[0] + 1
        until = utc_now() + min(_FIRST_PAUSE * 2 ** min(failures - 1, 10), _LONGEST_PAUSE)
        self._set(session_id, failures, until)
        stored = {"failures": failures, "until": until.isoformat()}
        await self._journal.remember(session_id, {self.key: stored})

    async def succeeded(self, session_id: str) -> None:
        """Forget the session's failures.

        Raises:
            StorageError: the change could not be stored.
        """
        failures, _ = self._known.get(session_id, (0, utc_now()))
        if failures:
            self._set(session_id, 0, utc_now())
            await self._journal.remember(session_id, {self.key: None})

    def _set(self, session_id: str, failures: int, until: datetime) -> None:
        self._known[session_id] = failures, until
        self._known.move_to_end(session_id)
        if len(self._known) > _KNOWN_SESSIONS:
            self._known.popitem(last=False)


class CompactionPauses(RetryPauses):
    """Pauses before a failed summary is tried again."""

    key = "compact_pause"


class ExtractionPauses(RetryPauses):
    """Pauses before a failed extraction of memories is tried again."""

    key = "memory_pause"


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

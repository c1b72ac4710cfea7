"""The runs of this process: at work, or waiting for an answer."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from itertools import count
from weakref import WeakValueDictionary

from msgspec import Struct, field
from msgspec.structs import replace

from agent_core.events import EventStream, HeldSession, Journal
from agent_core.loop import Inbox
from agent_core.loop.inside import Inside, enclosing_runs
from agent_core.loop.options import RunOptions
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction.redactor import JournalRedactor
from agent_core.runtime.leases import SessionLeases
from agent_core.runtime.run import STARTED_BY_HOOK, Caller, Execute, Run, RunScope, identity_of
from agent_core.runtime.session_history import LeftSession, SessionHistory
from agent_core.storage.owners import Owner
from agent_core.storage.store import SessionStore
from agent_core.tools.limits import ResultLimiter
from agent_core.types import (
    LAST_TURN,
    ClaimedRun,
    Draft,
    Node,
    Role,
    RunIdentity,
    RunRecord,
    RunStatus,
)


class ParkedRun(Struct, frozen=True):
    """A run that waits for an answer.

    Attributes:
        record: as it is stored.
        caller: what only its program can provide, as far as this process has it.
    """

    record: RunRecord
    caller: Caller = field(default_factory=Caller)

    @property
    def can_continue(self) -> bool:
        """Return whether this process has the options that only the run's program can have."""
        stored = self.record.options
        return stored is None or not stored.needs_caller or self.caller.options is not None


_MOST_LEFT = 64
_MOST_LEFT_NODES = 10_000
"""On the paths of these sessions together; a longer path is not kept at all."""


class RunTable:
    """Creates and numbers runs, and finds them as long as anything else holds them.

    Attributes:
        parked: the waiting run of each session that has one.
        results: bounds the results of all runs.
    """

    def __init__(
        self,
        store: SessionStore,
        owner: Owner,
        redactor: JournalRedactor,
        leases: SessionLeases,
        results: ResultLimiter,
    ) -> None:
        self.store = store
        self.owner = owner
        self.leases = leases
        self.parked: dict[str, ParkedRun] = {}
        self.results = results
        self._redactor = redactor
        self._numbers = count()
        self._runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
        self._left: OrderedDict[str, LeftSession] = OrderedDict()

    def get(self, run_id: str) -> Run | None:
        """Return the run, if this process still has it."""
        return self._runs.get(run_id)

    def ending(self) -> list[Run]:
        """Return the runs whose outcome is known, and whose work has not ended."""
        return [r for r in self._runs.values() if r.outcome and not r.ended.is_set()]

    def enclosing(self) -> tuple[Run, Inside] | None:
        """Return the innermost run of this runtime that the current code works for, if any."""
        for inside in enclosing_runs():
            run = inside.run()
            if isinstance(run, Run) and self._runs.get(run.identity.run_id) is run:
                return run, inside
        return None

    def is_continuing(self, run_id: str) -> bool:
        """Return whether a run that has waited is under way or being ended here."""
        run = self._runs.get(run_id)
        if run is None or not run.is_continued:
            return False
        return run.outcome is None and not run.ended.is_set()

    def parked_as(self, record: RunRecord) -> ParkedRun:
        """Return a waiting run with what this process has kept for it."""
        found = self.parked.get(record.session_id)
        if found is None or found.record.run_id != record.run_id:
            return ParkedRun(record)
        return replace(found, record=record)

    def unpark(self, record: RunRecord) -> None:
        """Forget a run that waits no more."""
        found = self.parked.get(record.session_id)
        if found is not None and found.record.run_id == record.run_id:
            del self.parked[record.session_id]

    def options_of(self, run_id: str) -> RunOptions | None:
        """Return the options of a run as its caller has set them, if this process has them."""
        run = self._runs.get(run_id)
        if run is not None and run.options is not None:
            return run.options
        for parked in self.parked.values():
            if parked.record.run_id == run_id:
                return parked.caller.options
        return None

    def add(
        self,
        record: RunRecord,
        claimed: ClaimedRun | None,
        caller: Caller,
        *,
        known: Callable[[], Sequence[Node]],
        execute: Execute,
        is_new: bool = False,
        is_continued: bool = False,
    ) -> Run:
        """Create the run of a record.

        Args:
            record: the run as it is stored, with its message.
            claimed: the claim to its session, if this process has claimed it for a run.
            caller: what its program provides.
            known: returns a path whose messages are ready for its agent.
            execute: executes it, when it is next.
            is_new: its session has no path yet.
            is_continued: it was begun before.
        """
        identity, stream, prompt = identity_of(record), EventStream(), record.prompt
        epoch = None if claimed is None else claimed.session.epoch
        held = HeldSession(self.owner.owner_id, epoch)
        before = self._runs.get(identity.run_id)  # it has waited for an answer
        run = Run(
            identity=identity,
            status=record.status,
            number=next(self._numbers),
            execute=execute,
            prompt=Draft(Role.USER, prompt.content, metadata=prompt.metadata) if prompt else None,
            options=caller.options,
            stored_options=record.options,
            is_continued=is_continued,
            is_stopping=record.cancel_requested_at is not None,
            nesting=caller.nesting or (before.nesting if before else None),
            scope=RunScope(
                run_id=identity.run_id, has_hooks=STARTED_BY_HOOK not in record.metadata
            ),
            journal=self.open_journal(identity, stream, held=held),
            stream=stream,
            history=SessionHistory(
                self.store,
                identity.session_id,
                is_new=is_new,
                left=partial(self.left, identity.session_id, identity.run_id),
                known=known,
                is_message=prompt is not None,
                results=self.results,
            ),
            claimed=claimed,
            context=copy_context() if caller.context is None else caller.context,
            inbox=Inbox(store=self.store, has_mail=True, is_last_turn=LAST_TURN in record.metadata),
        )
        if caller.trace is not None:
            caller.trace.identify(identity)
            run.trace = caller.trace
        run.journal.is_running = record.status is RunStatus.RUNNING
        self._runs[identity.run_id] = run
        if claimed is not None:
            left = self._left.pop(identity.session_id, None)
            if left is not None and claimed.is_unchanged:  # otherwise others may have changed it
                self._left[identity.session_id] = replace(left, claimed=claimed)
            run.scope.lease = self.leases.lease_for(
                identity.run_id, identity.session_id, claimed.session.epoch, claimed.asked_at
            )
        return run

    # sessions between their runs

    def last_claim(self, session_id: str) -> ClaimedRun | None:
        """Return the last claim to a session that was released here, if it may be as it was."""
        left = self._left.get(session_id)
        return None if left is None else left.claimed

    def left(self, session_id: str, run_id: str) -> LeftSession | None:
        """Return what a run continues, if its claim has found the session unchanged."""
        left = self._left.get(session_id)
        return left if left is not None and left.claimed.run.run_id == run_id else None

    def forget_path(self, session_id: str) -> None:
        """Forget a session's path: its active node moves."""
        self._left.pop(session_id, None)

    def run_ended(self, run: Run) -> None:
        """Keep the path of a session for its next run, if all of it is stored."""
        session_id, journal, claimed = run.identity.session_id, run.journal, run.claimed
        self._left.pop(session_id, None)
        is_stored = run.status.is_terminal and journal.has_end and journal.is_stored
        if claimed is None or claimed.session.place or not is_stored or not journal.path:
            return  # with a place, workers take the next run
        if journal.path[-1].node_id != journal.active_node_id:
            return  # it was cut off, and few are
        if len(journal.path) > _MOST_LEFT_NODES:
            return
        changes = {"active_node_id": journal.active_node_id}
        session = claimed.session.model_copy(update=changes)
        claimed = replace(claimed, session=session)
        self._left[session_id] = LeftSession(claimed, journal.path, journal.call_ids())
        nodes = sum(len(left.path) for left in self._left.values())
        while len(self._left) > _MOST_LEFT or nodes > _MOST_LEFT_NODES:
            _, oldest = self._left.popitem(last=False)
            nodes -= len(oldest.path)

    def forget(self, run: Run) -> None:
        """Forget a run that another process has taken over."""
        if self._runs.get(run.identity.run_id) is run:
            del self._runs[run.identity.run_id]

    def open_journal(
        self,
        run: RunIdentity,
        stream: EventStream,
        path: Iterable[Node] = (),
        *,
        held: HeldSession | None = None,
    ) -> Journal:
        """Open the journal of a run; an end that cannot be stored goes to the leases."""
        return Journal(
            run,
            store=self.store,
            stream=stream,
            redactor=self._redactor,
            estimate=estimate_blocks,
            path=path,
            held=held,
            keeper=self.leases,
        )

    def history_of(self, parked: RunRecord) -> SessionHistory:
        """Return the history of a waiting run, which continues from its end node."""
        return SessionHistory(
            self.store,
            parked.session_id,
            is_new=False,
            from_node_id=parked.end_node_id,
            results=self.results,
        )

"""Memory of a runtime: extracted from sessions after runs, recalled in later runs."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs
from msgspec.structs import asdict

from agent_core.config.models import MemoryConfig, ModelConfig
from agent_core.config.paths import Setup
from agent_core.disk.locks import locked_if_free
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import AgentCoreError, StorageError
from agent_core.events import Journal, SessionJournal
from agent_core.loop.options import RunOptions
from agent_core.memory.folder import MemoryFolder, MemoryWriter
from agent_core.memory.scopes import memory_folder
from agent_core.memory.spans import (
    Backlog,
    ExtractionReason,
    MessageSpan,
    ScanRecord,
    unprocessed_spans,
)
from agent_core.runtime.background import Background, ExtractionPauses
from agent_core.runtime.models import OneShotModelCall
from agent_core.runtime.process import ProcessParts
from agent_core.runtime.wishes import Wishes
from agent_core.storage.store import SessionStore
from agent_core.tools.base import Tool, ToolAnswer, View
from agent_core.types import (
    ErrorPayload,
    EventLevel,
    EventType,
    Node,
    RunIdentity,
    SessionRecord,
    StoredOptions,
)
from agent_core.types.memory_scopes import (
    MEMORY_CURSOR,
    MEMORY_OFF,
    MEMORY_SHARED,
    MEMORY_SPANS,
    MemoryTerms,
    checked_scope,
)

if TYPE_CHECKING:
    from agent_core.memory.extraction import ExtractionResult
    from agent_core.memory.recall import Recall
    from agent_core.runtime.run import RunScope
    from agent_core.types import MemoryWish

EXTRACTION = "memory_extraction"
RECALL = "memory_recall"
_IDLE = "memory_idle"
_BACKLOG = "memory_backlog"
_LEFT = ""
"""In place of a session: the search for wishes that other processes have left."""

_KNOWN_SESSIONS = 1024
_WISH_WAIT_S = 60.0
_NOBODYS = MemoryTerms(scope=MEMORY_OFF)
_KNOWN_FOLDERS = 64
"""Number of folders whose parsed files are kept."""

_MOST_LEFT = 1_000
"""Number of earlier processes' sessions that one process scans."""

logger = logging.getLogger(__name__)


class _Unprocessed(Struct, frozen=True):
    """The part of a session that has not been scanned yet, and how far the scans have come."""

    record: ScanRecord
    spans: Sequence[MessageSpan]
    tenant: str | None = None

    @property
    def new_spans(self) -> list[MessageSpan]:
        """The spans that no attempt has failed to scan."""
        return [span for span in self.spans if not span.has_failed]


class MemoryService:
    """Extracts memories in the background, and provides the recall tool and the catalog for runs.

    Args:
        setup: the configuration, and the place of the memories.
        process: the parts of this process.
        background: runs and records the extraction.
        is_busy: returns whether a run of a session is queued or running.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        process: ProcessParts,
        background: Background,
        is_busy: Callable[[str], bool],
    ) -> None:
        self._config: MemoryConfig = setup.config.memory
        self._root = setup.memory_dir
        self._is_off_by_default = setup.memory_scope == MEMORY_OFF
        self._folders: OrderedDict[tuple[str, str | None], MemoryFolder] = OrderedDict()
        self._unfinished_writes = UnfinishedWrites.at(setup.writable_home)
        self._store = process.store
        self._models = process.models
        self._redactor = process.redactor
        self._jobs = background.jobs
        self._usage = background.usage
        self._session_journal = background.journal
        self._pauses = ExtractionPauses(background.journal)
        self._is_busy = is_busy
        self._backlogs: dict[str, Backlog] = {}
        self._live_models: dict[str, ModelConfig] = {}  # by run, for runs with a model of their own
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._idle_context = Context()
        self._is_closed = False
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._unfinished: set[str] = set()
        self._lock = setup.writable_home and setup.writable_home / "memory-backlog.lock"
        self._has_taken_up = False
        self.wishes = Wishes()

    def scope_of(self, options: RunOptions | StoredOptions) -> str:
        """Return the memory scope of a run; by default the shared memory, if there is one."""
        default = MEMORY_OFF if self._is_off_by_default else MEMORY_SHARED
        return default if options.memory is None else checked_scope(options.memory) or default

    def open(self, scope: str, tenant: str | None) -> MemoryFolder | None:
        """Return the folder of a scope for a session of this tenant; None without memory."""
        has_memory = self._config.enabled and scope != MEMORY_OFF
        return self._folder_of(scope, tenant) if has_memory else None

    def _folder_of(self, scope: str, tenant: str | None) -> MemoryFolder:
        """Return the folder, with its parsed files if it was used lately."""
        folder = self._folders.pop((scope, tenant), None)
        folder = folder or memory_folder(self._root, scope, tenant)
        self._folders[scope, tenant] = folder
        if len(self._folders) > _KNOWN_FOLDERS:
            self._folders.popitem(last=False)
        return folder

    def run_begins(self, session_id: str) -> None:
        """Stop waiting for this session to become idle."""
        if timer := self._timers.pop(session_id, None):
            timer.cancel()
        self._jobs.stop(session_id, name=_IDLE)

    async def carry_out_wishes(self) -> None:
        """Wait for what users have asked to be remembered, unless it is left to the next process.

        A service that does not answer is not waited for, and `exit_wait_ms = 0` leaves everything.
        """
        if self._jobs.grace_s and not self.wishes.are_left:
            try:
                await asyncio.wait_for(self.wishes.settled(), _WISH_WAIT_S)
            except TimeoutError:
                self.leave_wishes()

    async def finish_wishes(self, on_wait: Callable[[], object] | None) -> "list[MemoryWish]":
        """Wait until the wishes are carried out, and return what became of them."""
        await self.wishes.settled(on_wait)
        return self.wishes.take()

    def leave_wishes(self) -> None:
        """Leave what users have asked to be remembered to the next process."""
        self.wishes.leave()
        self._jobs.grace_s = 0.0

    def close(self) -> None:
        """Stop waiting for sessions to become idle."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def keep_backlog(self) -> None:
        """Store the sessions not scanned before the end, for the next start."""
        if left := self._unfinished | self._again:
            try:
                await self._store.add_to_memory_backlog(left)
            except StorageError as error:
                logger.warning("sessions are not searched for memories: %s", error)

    def take_up_backlog(self, scope: str) -> None:
        """Scan, once and in the background, the sessions that earlier processes left.

        This begins with the first run that has a memory: before that, memory is not in use. `scope`
        is the scope of the run.
        """
        if not self._config.enabled or self._lock is None or self._has_taken_up:
            return
        if scope != MEMORY_OFF:
            self._has_taken_up = True
            self.wishes.begin(_LEFT)
            done = partial(self.wishes.end, _LEFT)
            self._jobs.start("", self._take_up(self._lock), name=_BACKLOG, then=done)

    def run_ended(
        self, run: RunIdentity, path: Sequence[Node], model: ModelConfig | None = None
    ) -> None:
        """Check, in the background, whether there is something to remember.

        `model` is the run's own: only this model reads the run's messages.
        """
        if not self._config.enabled:
            return
        session_id = run.session_id
        if model is not None:
            self._live_models[run.run_id] = model
            if len(self._live_models) > _KNOWN_SESSIONS:
                del self._live_models[next(iter(self._live_models))]
        backlog = self._backlogs.pop(session_id, None)
        mine = _nodes_of(run, path)
        if backlog is None and len(mine) == len(path):
            backlog = Backlog()  # the session's first run: there is nothing else to look at
        backlog = backlog.plus(mine, [run.agent_id]) if backlog else None
        if backlog is not None and not backlog.has_request:
            is_wanted = backlog.reason(self._config) or self._pauses.has_failed(session_id)
            if not (is_wanted and self._pauses.is_over(session_id)):
                self._keep(session_id, backlog)
                self._wait_for_idleness(session_id)
                return
        self._look(session_id)

    def run_is_left(
        self, run: RunIdentity, path: Sequence[Node], *, has_memory: bool, is_plan: bool
    ) -> None:
        """Leave what a run has asked for, which is not searched, to the session's next scan.

        A run without a memory asks for nothing. After a plan, the session is not searched before
        another run of it ends, or another process comes.
        """
        session_id = run.session_id
        if self._config.enabled and has_memory:
            asked = Backlog().plus(_nodes_of(run, path), [run.agent_id])
            if asked.has_request:
                self._keep(session_id, asked)
                self._unfinished.add(session_id)
                if is_plan:
                    self.wishes.tell(_left_by_plan(session_id))
        if session_id in self._backlogs and not (is_plan or self._is_closed):
            self._wait_for_idleness(session_id)

    def tools(
        self, folder: MemoryFolder, scope: str, journal: Journal, view: View, run: "RunScope"
    ) -> list[Tool]:
        """Make `internal.recall_memory` for one run; `scope` is the run's memory scope."""
        from agent_core.memory.recall import Recall, recall_tool  # noqa: PLC0415 - may be off

        model = self._models.resolve()
        room = min(self._config.memory_context_token_budget, model.window // 8)
        recall = Recall(folder, view, scope=scope, room=room)
        return [recall_tool(partial(self.recall, recall, journal.run, run))]

    async def recall(
        self, recall: "Recall", run: RunIdentity, of_run: "RunScope", query: str, tool_call_id: str
    ) -> ToolAnswer:
        """Recall memories for one run, and add the usage of the selection to the session.

        Raises:
            ToolError: `memory_recall_failed`.
        """
        from agent_core.memory.recall import Selector  # noqa: PLC0415

        profile, session_id = self._config.recall_model_profile, run.session_id
        await self._models.sized(self._models.resolve(profile, instead=of_run.model))
        ask = OneShotModelCall(
            self._models,
            profile,
            session_id=session_id,
            purpose=RECALL,
            running=of_run.meter,
            instead=of_run.model,
        )
        room = self._catalog_room(ask.model)
        top_k = self._config.recall_top_k
        selector = Selector(ask, top_k=top_k, room=room)
        try:
            return await recall.recall(query, tool_call_id, selector=selector)
        finally:
            of_run.spends_beside = True
            await self._usage.add(session_id, RECALL, ask.usage, run=run)

    async def _take_up(self, lock: Path) -> None:
        """Scan the sessions that other processes have left: first those with a wish."""
        if not await self._store.memory_backlog(1):
            return
        with locked_if_free(lock) as is_free:  # otherwise another process is doing this
            left = await self._store.memory_backlog(_MOST_LEFT) if is_free else []
            others = [one for one in left if not await self._take_up_one(one, only_wishes=True)]
            self.wishes.end(_LEFT)
            for session_id in others:
                await self._take_up_one(session_id, only_wishes=False)

    async def _take_up_one(self, session_id: str, *, only_wishes: bool) -> bool:
        """Scan a session that was left; return whether nothing is left to do for it now."""
        if session_id in self._busy:
            return True
        self._busy.add(session_id)
        try:
            if (session := await self._store.session(session_id)) is not None:
                self._pauses.load(session)
            if not self._pauses.is_over(session_id):
                return True  # left until its pause is over
            found = await self._unprocessed(session_id)
            if self._is_off_by_default and _names_no_user(found.spans):
                return True  # left for a process whose user has memory on
            reason = await self._reason(session_id, found)
            if reason is ExtractionReason.EXPLICIT:
                self.wishes.begin(session_id, is_known=True)
            elif reason is not None and only_wishes:
                return False
            if reason is not None:
                await self._scan(session_id, reason, found)
            if not self._pauses.has_failed(session_id):
                await self._store.remove_from_memory_backlog(session_id)
        except AgentCoreError as error:
            logger.warning("a session was not searched for memories: %s", error)
        finally:
            self._done(session_id)
        return True

    def _look(self, session_id: str) -> None:
        self.wishes.begin(session_id)
        self._again.add(session_id)
        self._unfinished.add(session_id)
        if session_id not in self._busy:
            self._busy.add(session_id)
            done = partial(self._done, session_id)
            self._jobs.start(session_id, self._after_run(session_id), name=EXTRACTION, then=done)

    def _keep(self, session_id: str, backlog: Backlog) -> None:
        self._backlogs[session_id] = backlog
        if len(self._backlogs) > _KNOWN_SESSIONS:
            del self._backlogs[next(iter(self._backlogs))]

    def _wait_for_idleness(self, session_id: str) -> None:
        self.run_begins(session_id)
        loop = asyncio.get_running_loop()
        wait_s = max(self._config.idle_seconds, self._pauses.seconds_left(session_id))
        # With its own context: the timer must not keep the run's variables alive.
        timer = loop.call_later(wait_s, self._is_idle, session_id, context=self._idle_context)
        self._timers[session_id] = timer

    def _is_idle(self, session_id: str) -> None:
        del self._timers[session_id]
        if session_id not in self._busy and not self._is_busy(session_id):
            self._busy.add(session_id)
            work, done = self._scan_idle(session_id), partial(self._done, session_id)
            self._jobs.start(session_id, work, name=_IDLE, then=done, is_patient=True)

    async def _scan_idle(self, session_id: str) -> None:
        await self._scan(session_id, ExtractionReason.IDLE)
        if not self._pauses.has_failed(session_id):
            self._unfinished.discard(session_id)
        elif not self._is_closed:
            self._wait_for_idleness(session_id)

    def _done(self, session_id: str) -> None:
        """End the session's job; a run that ended in the meantime starts another."""
        self._busy.discard(session_id)
        if session_id in self._again and not self._is_closed:
            self._look(session_id)
        else:
            self.wishes.end(session_id)

    async def _after_run(self, session_id: str) -> None:
        """Check once for all runs that have ended meanwhile."""
        while session_id in self._again:
            self._again.discard(session_id)
            found = await self._unprocessed(session_id)
            reason = await self._reason(session_id, found)
            if reason is ExtractionReason.EXPLICIT:
                self.wishes.begin(session_id, is_known=True)
            else:
                self.wishes.end(session_id)
            if reason is not None:
                await self._scan(session_id, reason, found)
            else:
                self._keep(session_id, await asyncio.to_thread(Backlog.of, found.new_spans))
            has_more = self._pauses.has_failed(session_id) or self._has_backlog(session_id)
            if has_more and not self._is_busy(session_id) and not self._is_closed:
                self._wait_for_idleness(session_id)
        if not self._pauses.has_failed(session_id):
            self._unfinished.discard(session_id)

    def _has_backlog(self, session_id: str) -> bool:
        backlog = self._backlogs.get(session_id)
        return backlog is not None and backlog.messages > 0

    async def _reason(self, session_id: str, found: _Unprocessed) -> ExtractionReason | None:
        """Return the reason to scan a session now, or None.

        What has failed waits for the end of a pause, which holds back no new wish.
        """
        if self._pauses.is_over(session_id):
            reason = (await asyncio.to_thread(Backlog.of, found.spans)).reason(self._config)
            has_failed = any(span.has_failed for span in found.spans)
            return reason or (ExtractionReason.IDLE if has_failed else None)
        has_wish = (await asyncio.to_thread(Backlog.of, found.new_spans)).has_request
        return ExtractionReason.EXPLICIT if has_wish else None

    async def _scan(
        self,
        session_id: str,
        reason: ExtractionReason,
        found: _Unprocessed | None = None,
    ) -> None:
        """Scan everything that may be scanned now, one span at a time, until one fails."""
        self._backlogs.pop(session_id, None)
        while True:
            found = found or await self._unprocessed(session_id)
            span = await asyncio.to_thread(self._next_span, session_id, found, reason)
            if span is None or not await self._extract(span, found, session_id, reason):
                self._keep(session_id, await asyncio.to_thread(Backlog.of, found.new_spans))
                return
            found = None

    def _next_span(
        self, session_id: str, found: _Unprocessed, reason: ExtractionReason
    ) -> MessageSpan | None:
        """Return the span to scan next; None if there is none, or what is left has to wait.

        A new wish comes before what has failed.
        """
        new, is_wish = found.new_spans, reason is ExtractionReason.EXPLICIT
        has_wish = is_wish and Backlog.of(new).has_request
        if not self._pauses.is_over(session_id):
            spans = new if has_wish else []
        else:
            spans = [*new, *found.spans] if has_wish else found.spans
        return spans[0] if any(span.user_messages for span in spans) else None

    async def _extract(
        self,
        span: MessageSpan,
        found: _Unprocessed,
        session_id: str,
        reason: ExtractionReason,
    ) -> bool:
        """Scan one span; return whether it worked."""
        from agent_core.memory.extraction import Extractor  # noqa: PLC0415 - after many messages

        try:
            model = self._own_model(span)
        except _UnknownModelError:
            return False
        facts: dict[str, Any] = {
            "reason": reason,
            "memory": span.terms.scope,
            "messages": len(span.messages),
        }
        await self._session_journal.note(session_id, EventType.MEMORY_EXTRACTION_STARTED, facts)
        cursor = _SessionCursor(session_id, found.record, self._store, self._session_journal)
        is_wish = await asyncio.to_thread(lambda: Backlog.of([span]).has_request)
        profile = self._config.extract_model_profile
        await self._models.sized(self._models.resolve(profile, instead=model))
        ask = OneShotModelCall(
            self._models,
            profile,
            session_id=session_id,
            purpose=EXTRACTION,
            instead=model,
        )
        folder = self._folder_of(span.terms.scope, found.tenant)
        extractor = Extractor(
            folder,
            self._config.categories,
            writer=MemoryWriter(folder, unfinished=self._unfinished_writes),
            ask=ask,
            clean=self._redactor.text,
            catalog_room=self._catalog_room(ask.model),
        )
        try:
            start = found.record.position
            done = await extractor.extract(span, session_id, start=start, cursor=cursor)
            await self._pauses.succeeded(session_id)
        except (AgentCoreError, OSError) as error:
            facts |= {"error": _failure(error), "usage": ask.cost()}
            if is_wish:
                why = self._redactor.text(str(facts["error"]["message"]))
                self.wishes.tell(_failed_wish(session_id, why))
            await cursor.fail(span.end)
            await self._pauses.failed(session_id)
            await self._session_journal.note(
                session_id, EventType.MEMORY_EXTRACTION_FAILED, facts, level=EventLevel.WARNING
            )
            return False
        else:
            if is_wish and cursor.has_moved:  # otherwise another process was quicker
                self.wishes.tell(_carried_out(session_id, done, self._redactor.text))
            facts |= {**asdict(done), "usage": ask.cost()}
            await self._session_journal.note(
                session_id, EventType.MEMORY_EXTRACTION_COMPLETED, facts
            )
            return True
        finally:
            await self._usage.add(session_id, EXTRACTION, ask.usage)

    def _own_model(self, span: MessageSpan) -> str | ModelConfig | None:
        """Return the model that the runs of a span had of their own; None for the configured one.

        Raises:
            _UnknownModelError: the model was an object of a program that is not in this process.
        """
        model = span.terms.model
        if span.terms.needs_object:
            live = self._live_models.get(span.nodes[-1].run_id or "")
            if live is None:
                raise _UnknownModelError
            return live
        if model is None or not model.startswith("{"):
            return model
        return ModelConfig.model_validate_json(model)

    def _told_apart(self, run_id: str, terms: MemoryTerms) -> MemoryTerms:
        """Return a run's terms with its model object made distinct, which the store cannot do."""
        if not terms.needs_object:
            return terms
        model = self._live_models.get(run_id)
        return structs.replace(terms, model=f"{run_id if model is None else id(model.adapter)}")

    async def _unprocessed(self, session_id: str) -> _Unprocessed:
        """Find the part of the active path that has not been scanned.

        Messages of a run that is no longer stored, as in a fork, belong to no known memory and are
        not used.
        """
        session = await self._store.session(session_id)
        if session is None or session.active_node_id is None:
            return _Unprocessed(ScanRecord(), [])
        self._pauses.load(session)
        path = await self._store.path(session.active_node_id)
        agents = await self._store.agents(session_id)
        of_runs = {node.run_id for node in path if node.run_id is not None}
        stored = await self._store.memory_terms(of_runs)
        known = {run_id: self._told_apart(run_id, terms) for run_id, terms in stored.items()}
        model = self._models.resolve(self._config.extract_model_profile)
        record = _scan_record(session)
        spans = await asyncio.to_thread(
            unprocessed_spans,
            path,
            record,
            roots={agent.agent_id for agent in agents if agent.parent_agent_id is None},
            room=model.window // 3,
            terms_of=lambda node: known.get(node.run_id or "", _NOBODYS),
        )
        return _Unprocessed(record, spans, session.tenant)

    def _catalog_room(self, model: ModelConfig) -> int:
        return min(self._config.catalog_max_tokens, model.window // 8)


class _UnknownModelError(Exception):
    """Only a model that another process has may read the messages."""


class _SessionCursor:
    """The progress of the scans of a session, kept in its metadata."""

    def __init__(
        self,
        session_id: str,
        record: ScanRecord,
        store: SessionStore,
        session_journal: SessionJournal,
    ) -> None:
        self._session_id = session_id
        self._record = record
        self._store = store
        self._session_journal = session_journal
        self.has_moved = False

    async def is_at(self, position: int) -> bool:
        return self._record.position == position and await self._stored() == self._record

    async def move(self, position: int) -> None:
        await self._keep(self._record.with_end(position, is_scanned=True))
        self.has_moved = True

    async def fail(self, position: int) -> None:
        """Record that the span up to this sequence number was tried without success."""
        if await self._stored() == self._record:
            await self._keep(self._record.with_end(position, is_scanned=False))

    async def _stored(self) -> ScanRecord | None:
        session = await self._store.session(self._session_id)
        return session and _scan_record(session)

    async def _keep(self, record: ScanRecord) -> None:
        values: dict[str, Any] = {MEMORY_SPANS: [*map(list, record.ends)] or None}
        if record.position != self._record.position:
            values[MEMORY_CURSOR] = record.position
        await self._session_journal.remember(self._session_id, values)


def _nodes_of(run: RunIdentity, path: Sequence[Node]) -> list[Node]:
    """Return the nodes that a run has added to its path, the last one first."""
    mine: list[Node] = []
    for node in reversed(path):
        if node.run_id != run.run_id:
            break
        mine.append(node)
    return mine


def _names_no_user(spans: Sequence[MessageSpan]) -> bool:
    """Return whether any span is for the memory that all users share."""
    return any(span.terms.scope == MEMORY_SHARED for span in spans)


def _left_by_plan(session_id: str) -> "MemoryWish":
    from agent_core.types import MemoryWish  # noqa: PLC0415 - after a wish

    return MemoryWish(session_id=session_id, is_left=True)


def _failed_wish(session_id: str, why: str) -> "MemoryWish":
    from agent_core.types import MemoryWish  # noqa: PLC0415 - after a wish

    return MemoryWish(session_id=session_id, error=why)


def _carried_out(
    session_id: str, done: "ExtractionResult", clean: Callable[[str], str]
) -> "MemoryWish":
    from agent_core.types import MemoryWish  # noqa: PLC0415 - after a wish

    summaries = {memory_id: clean(summary) for memory_id, summary in done.summaries.items()}
    return MemoryWish(
        session_id=session_id,
        remembered=[summaries[one] for one in (*done.new, *done.updated)],
        forgotten=[summaries[one] for one in done.forgotten],
    )


def _scan_record(session: SessionRecord) -> ScanRecord:
    return ScanRecord.parse(session.metadata.get(MEMORY_CURSOR), session.metadata.get(MEMORY_SPANS))


def _failure(error: AgentCoreError | OSError) -> dict[str, Any]:
    if isinstance(error, OSError):
        return {"type": type(error).__name__, "message": str(error)}
    return ErrorPayload.of(error).model_dump(mode="json")

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
from agent_core.memory.spans import Backlog, ExtractionReason, MessageSpan, unprocessed_spans
from agent_core.runtime.background import Background
from agent_core.runtime.models import OneShotModelCall
from agent_core.runtime.process import ProcessParts
from agent_core.storage.store import SessionStore
from agent_core.tools.base import Tool, ToolOutput, View
from agent_core.types import (
    ErrorPayload,
    EventLevel,
    EventType,
    Node,
    RunIdentity,
    SessionRecord,
    StoredOptions,
)
from agent_core.types.memory_scopes import MEMORY_OFF, MEMORY_SHARED, MemoryTerms, checked_scope

if TYPE_CHECKING:
    from agent_core.memory.recall import Recall
    from agent_core.runtime.run import RunScope

EXTRACTION = "memory_extraction"
RECALL = "memory_recall"
_IDLE = "memory_idle"
_CURSOR = "memory_cursor"
_BACKLOG = "memory_backlog"
_KNOWN_SESSIONS = 1024
_NOBODYS = MemoryTerms(scope=MEMORY_OFF)
_KNOWN_FOLDERS = 64
"""Number of folders whose parsed files are kept."""

_MOST_LEFT = 1_000
"""Number of earlier processes' sessions that one process scans."""

logger = logging.getLogger(__name__)


class _Unprocessed(Struct, frozen=True):
    """The part of a session that has not been scanned yet, and the position of the scan."""

    position: int
    spans: Sequence[MessageSpan]
    tenant: str | None = None


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

    def scope_of(self, options: RunOptions | StoredOptions) -> str:
        """Return the memory scope of a run; by default the shared memory, if there is one."""
        default = MEMORY_OFF if self._is_off_by_default else MEMORY_SHARED
        return checked_scope(options.memory) or default

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

    def take_up_backlog(self, options: RunOptions) -> None:
        """Scan, once and in the background, the sessions that earlier processes left.

        This begins with the first run that has a memory: before that, memory is not in use.
        """
        if not self._config.enabled or self._lock is None or self._has_taken_up:
            return
        if self.scope_of(options) != MEMORY_OFF:
            self._has_taken_up = True
            self._jobs.start("", self._take_up(self._lock), name=_BACKLOG, then=lambda: None)

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
        mine: list[Node] = []
        for node in reversed(path):
            if node.run_id != run.run_id:
                break
            mine.append(node)
        if backlog is None and len(mine) == len(path):
            backlog = Backlog()  # the session's first run: there is nothing else to look at
        backlog = backlog.plus(mine) if backlog else None
        if backlog is None or backlog.reason(self._config):
            self._look(session_id)
        else:
            self._keep(session_id, backlog)
            self._wait_for_idleness(session_id)

    def wait_again(self, session_id: str) -> None:
        """Wait for the session to become idle, after a run that is not scanned."""
        if session_id in self._backlogs and not self._is_closed:
            self._wait_for_idleness(session_id)

    def tools(
        self, folder: MemoryFolder, scope: str, journal: Journal, view: View, run: "RunScope"
    ) -> list[Tool]:
        """Make `internal.recall_memory` for one run; `scope` is the run's memory scope."""
        from agent_core.memory.recall import Recall, recall_tool  # noqa: PLC0415 - may be off

        model = self._models.resolve()
        room = min(self._config.memory_context_token_budget, model.context_window // 8)
        recall = Recall(folder, view, scope=scope, room=room)
        return [recall_tool(partial(self.recall, recall, journal.run, run))]

    async def recall(
        self, recall: "Recall", run: RunIdentity, of_run: "RunScope", query: str, tool_call_id: str
    ) -> ToolOutput:
        """Recall memories for one run, and add the usage of the selection to the session.

        Raises:
            ToolError: `memory_recall_failed`.
        """
        from agent_core.memory.recall import Selector  # noqa: PLC0415

        profile, session_id = self._config.recall_model_profile, run.session_id
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
            await self._usage.add(session_id, RECALL, ask.usage)

    async def _take_up(self, lock: Path) -> None:
        if not await self._store.memory_backlog(1):
            return
        with locked_if_free(lock) as is_free:  # otherwise another process is doing this
            for session_id in await self._store.memory_backlog(_MOST_LEFT) if is_free else ():
                if session_id in self._busy:
                    continue
                self._busy.add(session_id)
                try:
                    found = await self._unprocessed(session_id)
                    if self._is_off_by_default and _names_no_user(found.spans):
                        continue  # left for a process whose user has memory on
                    backlog = await asyncio.to_thread(Backlog.of, found.spans)
                    if reason := backlog.reason(self._config):
                        await self._scan(session_id, reason, found)
                    await self._store.remove_from_memory_backlog(session_id)
                except AgentCoreError as error:
                    logger.warning("a session was not searched for memories: %s", error)
                finally:
                    self._done(session_id)

    def _look(self, session_id: str) -> None:
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
        wait_s = self._config.idle_seconds
        # With its own context: the timer must not keep the run's variables alive.
        timer = loop.call_later(wait_s, self._is_idle, session_id, context=self._idle_context)
        self._timers[session_id] = timer

    def _is_idle(self, session_id: str) -> None:
        del self._timers[session_id]
        if session_id not in self._busy and not self._is_busy(session_id):
            self._busy.add(session_id)
            work, done = (
                self._scan(session_id, ExtractionReason.IDLE),
                partial(self._done, session_id),
            )
            self._jobs.start(session_id, work, name=_IDLE, then=done, is_patient=True)

    def _done(self, session_id: str) -> None:
        """End the session's job; a run that ended in the meantime starts another."""
        self._busy.discard(session_id)
        if session_id in self._again and not self._is_closed:
            self._look(session_id)

    async def _after_run(self, session_id: str) -> None:
        """Check once for all runs that have ended meanwhile."""
        while session_id in self._again:
            self._again.discard(session_id)
            found = await self._unprocessed(session_id)
            backlog = await asyncio.to_thread(Backlog.of, found.spans)
            if reason := backlog.reason(self._config):
                await self._scan(session_id, reason, found)
            else:
                self._keep(session_id, backlog)
                if not self._is_busy(session_id) and not self._is_closed:
                    self._wait_for_idleness(session_id)
        self._unfinished.discard(session_id)

    async def _scan(
        self,
        session_id: str,
        reason: ExtractionReason,
        found: _Unprocessed | None = None,
    ) -> None:
        """Scan everything new, one span at a time, until one fails."""
        self._backlogs.pop(session_id, None)
        while True:
            found = found or await self._unprocessed(session_id)
            if not await asyncio.to_thread(_has_user_message, found.spans):
                self._keep(session_id, await asyncio.to_thread(Backlog.of, found.spans))
                return
            if not await self._extract(found, session_id, reason):
                return
            found = None

    async def _extract(
        self, found: _Unprocessed, session_id: str, reason: ExtractionReason
    ) -> bool:
        """Scan the first span; return whether it worked."""
        from agent_core.memory.extraction import Extractor  # noqa: PLC0415 - after many messages

        span = found.spans[0]
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
        cursor = _SessionCursor(session_id, self._store, self._session_journal)
        ask = OneShotModelCall(
            self._models,
            self._config.extract_model_profile,
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
            start = found.position
            done = await extractor.extract(span, session_id, start=start, cursor=cursor)
        except (AgentCoreError, OSError) as error:
            facts |= {"error": _failure(error), "usage": ask.cost()}
            await self._session_journal.note(
                session_id, EventType.MEMORY_EXTRACTION_FAILED, facts, level=EventLevel.WARNING
            )
            return False
        else:
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
            return _Unprocessed(0, [])
        path = await self._store.path(session.active_node_id)
        agents = await self._store.agents(session_id)
        of_runs = {node.run_id for node in path if node.run_id is not None}
        stored = await self._store.memory_terms(of_runs)
        known = {run_id: self._told_apart(run_id, terms) for run_id, terms in stored.items()}
        model = self._models.resolve(self._config.extract_model_profile)
        position = _position(session)
        spans = await asyncio.to_thread(
            unprocessed_spans,
            path,
            position,
            roots={agent.agent_id for agent in agents if agent.parent_agent_id is None},
            room=model.context_window // 3,
            terms_of=lambda node: known.get(node.run_id or "", _NOBODYS),
        )
        return _Unprocessed(position, spans, session.tenant)

    def _catalog_room(self, model: ModelConfig) -> int:
        return min(self._config.catalog_max_tokens, model.context_window // 8)


class _UnknownModelError(Exception):
    """Only a model that another process has may read the messages."""


class _SessionCursor:
    """Position up to which a session has been scanned, kept in its metadata."""

    def __init__(
        self, session_id: str, store: SessionStore, session_journal: SessionJournal
    ) -> None:
        self._session_id = session_id
        self._store = store
        self._session_journal = session_journal

    async def is_at(self, position: int) -> bool:
        session = await self._store.session(self._session_id)
        return session is not None and _position(session) == position

    async def move(self, position: int) -> None:
        await self._session_journal.remember(self._session_id, {_CURSOR: position})


def _names_no_user(spans: Sequence[MessageSpan]) -> bool:
    """Return whether any span is for the memory that all users share."""
    return any(span.terms.scope == MEMORY_SHARED for span in spans)


def _has_user_message(spans: Sequence[MessageSpan]) -> bool:
    return any(span.user_messages for span in spans)


def _position(session: SessionRecord) -> int:
    position = session.metadata.get(_CURSOR)
    return position if isinstance(position, int) else 0


def _failure(error: AgentCoreError | OSError) -> dict[str, Any]:
    if isinstance(error, OSError):
        return {"type": type(error).__name__, "message": str(error)}
    return ErrorPayload.of(error).model_dump(mode="json")

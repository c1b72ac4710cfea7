"""Puts a question about a call to those who can answer it, and records it with its answer.

Where there is a store, a question is a row before it is shown. The callback and other processes
race then, and the first answer counts.
"""

import asyncio
import json
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from msgspec import Struct

from agent_core.aio import TimeLimit, finish_uncancelled
from agent_core.errors import (
    CallChangedError,
    ParkedError,
    PermissionDeniedError,
    StorageError,
)
from agent_core.permissions.answers import (
    BY_SESSION,
    NOBODY,
    UNANSWERED,
    PermissionCallback,
    UnattendedError,
    WrongAnswerError,
    call_back,
    covered_by,
    current_decider,
    denied,
    unanswered,
)
from agent_core.permissions.request import (
    MAX_REASON,
    REMOVED,
    access_hash,
    agent_path,
    coverage_of,
    event_payload,
)
from agent_core.redaction import log_failure
from agent_core.redaction.redactor import Redactor
from agent_core.text import shortened
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import (
    CHANGED,
    Access,
    Decision,
    EventLevel,
    EventType,
    RunIdentity,
    RunMode,
    ToolCall,
    ToolDefinition,
    utc_now,
)

if TYPE_CHECKING:
    from agent_core.storage.store import SessionStore
    from agent_core.types import (
        ApprovalRecord,
        PermissionDecision,
        PermissionRequest,
    )

logger = logging.getLogger(__name__)


_LATE = "the question was not answered in time"
_WITHDRAWN = "the question was withdrawn"
_FAILED_TO_ASK = "the question could not be asked"
_MOST_OPEN = 1_000
_LOOK_S, _RARE_LOOK_S = 0.5, 5.0
"""Seconds between looks at an open question, while other processes may answer it."""


class _Failed(Struct, frozen=True):
    """The failure of a permission callback.

    Attributes:
        error: what it raised or returned, for the event and not for the model.
    """

    error: str


_Answer: TypeAlias = "PermissionDecision | UnattendedError | _Failed | str"
"""A decision, or why there is none: nobody can be asked, the callback failed, or another reason."""


class PermissionJournal(Protocol):
    """Journal in which questions and answers are written down."""

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, JsonValue] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> None:
        """Record an event; it is stored with the next commit."""
        ...

    async def commit(self) -> None:
        """Return when everything noted is stored and visible."""
        ...


class _Asked(Struct, frozen=True):
    """A question without a store, and the answer of another question that covers it."""

    request: "PermissionRequest"
    covered: "asyncio.Future[PermissionDecision]"


async def _ask_nothing() -> Sequence[str]:
    return ()


class Questions:
    """The open questions of one permission gate.

    Args:
        callback: asks the user; None: only another process can answer.
        redactor: removes secrets from reasons, and from what is logged.
        unattended: the treatment of a question that the callback cannot answer.
        timeout_s: how long one answer may take, in seconds; None waits as long as it takes.
    """

    def __init__(
        self,
        callback: PermissionCallback | None,
        redactor: Redactor,
        *,
        unattended: Literal["deny", "wait", "park"] = "deny",
        timeout_s: float | None = None,
    ) -> None:
        self._callback = callback
        self._redactor = redactor
        self._unattended: Literal["deny", "wait", "park"] = unattended
        self._timeout_s = timeout_s
        self._asking: set[asyncio.Task[_Answer]] = set()
        self._store: SessionStore | None = None
        self._pause_s: float | None = None
        self._answered: dict[str, asyncio.Event] = {}
        self._asked_here: dict[str, _Asked] = {}
        self._runs: Counter[str] = Counter()
        self._limits: dict[str, list[TimeLimit]] = {}
        self._parking = asyncio.Event()
        self._parkable: dict[str, set[str]] = {}

    def park(self) -> Collection[str]:
        """Have every question wait without its run from now on, where that is possible.

        Returns:
            The ids of the users' runs with such a question, which end as waiting.
        """
        self._parking.set()
        return set(self._parkable)

    def run_ended(self, run_id: str) -> None:
        """Forget which questions a user's run is ending for: it waits now, or has ended."""
        self._parkable.pop(run_id, None)

    @contextmanager
    def _may_park(self, run: RunIdentity, call: ToolCall) -> Generator[None]:
        """Count a run among those that `park`, until its question is answered or `run_ended`."""
        calls = self._parkable.setdefault(run.root_id, set())
        calls.add(call.tool_call_id)
        is_parked = False
        try:
            yield
        except ParkedError:
            is_parked = True
            raise
        finally:
            if not is_parked:
                calls.discard(call.tool_call_id)
                if not calls and self._parkable.get(run.root_id) is calls:
                    del self._parkable[run.root_id]

    @property
    def has_callback(self) -> bool:
        """Return whether the user can be asked here."""
        return self._callback is not None

    def keep_in(self, store: "SessionStore", *, is_shared: bool, has_notices: bool = False) -> None:
        """Store every question from now on.

        `is_shared`: other processes can answer, too; `has_notices`: `take` is called when they do.
        """
        self._store = store
        self._pause_s = (_RARE_LOOK_S if has_notices else _LOOK_S) if is_shared else None

    def take(self, request_id: str) -> bool:
        """Look up an answer that was given; whether it was waited for here."""
        if (event := self._answered.get(request_id)) is None:
            return False
        event.set()
        return True

    async def settle_covered(
        self, answered: "PermissionRequest", decision: Decision, *, known: Collection[str] = ()
    ) -> "list[ApprovalRecord]":
        """Settle the open questions that an answer to another one covers, and return them.

        If that cannot be stored, they stay open.

        Args:
            answered: the question that was answered.
            decision: the answer.
            known: ids of questions that it is known to cover; others are compared by their words.
        """
        from agent_core.types import PermissionDecision  # noqa: PLC0415 - few runs need it

        coverage, session_id = coverage_of(answered, decision), answered.session_id
        if coverage is None and not known:
            return []

        def is_covered(request: "PermissionRequest") -> bool:
            if request.request_id in known:
                return True
            is_other = request.request_id != answered.request_id
            is_of_session = request.session_id == session_id
            is_same = coverage is not None and coverage_of(request, decision) == coverage
            return is_other and is_of_session and is_same

        for asked in self._asked_here.values():
            if is_covered(asked.request) and not asked.covered.done():
                reason = covered_by(answered.request_id)
                covered = PermissionDecision(decision=decision, reason=reason)
                asked.covered.set_result(covered)
        if self._store is None:
            return []
        settled: list[ApprovalRecord] = []
        try:
            every = await self._store.approvals(session_id=session_id, limit=_MOST_OPEN)
            for question in every:
                if is_covered(question.request):
                    await self._settle(
                        self._store, question.request_id, decision, by=answered.request_id
                    )
                    settled.append(question)
        except StorageError as error:
            logger.warning("open questions that the answer covers stay open: %s", error.message)
        return settled

    async def _settle(
        self,
        store: "SessionStore",
        request_id: str,
        decision: Decision,
        *,
        by: str | None = None,
    ) -> "ApprovalRecord | None":
        """Answer a question that the answer to another one covers, and return it as it is now."""
        reason = covered_by(by)
        found, _ = await store.answer(
            request_id, decision, reason=reason, by=BY_SESSION, decider=current_decider()
        )
        self.take(request_id)
        return found

    def is_open_here(self, request_id: str) -> bool:
        """Return whether a question waits for its answer in this process."""
        return request_id in self._answered

    def look_up(self) -> None:
        """Look up every question that is open here, now."""
        for event in self._answered.values():
            event.set()

    @contextmanager
    def pausing(self, run_id: str, limit: TimeLimit) -> Generator[None]:
        """Pause a limit on a run's time whenever questions of the run wait for their answers."""
        limits = self._limits.setdefault(run_id, [])
        limits.append(limit)
        if run_id in self._runs:
            limit.pause()
        try:
            yield
        finally:
            limits.remove(limit)
            if not limits:
                del self._limits[run_id]

    @contextmanager
    def waiting_for(self, run_id: str) -> Generator[None]:
        """Pause the limits on a run's time: in this context a question of the run is open."""
        self._runs[run_id] += 1
        if self._runs[run_id] == 1:
            for limit in self._limits.get(run_id, ()):
                limit.pause()
        try:
            yield
        finally:
            self._runs[run_id] -= 1
            if not self._runs[run_id]:
                del self._runs[run_id]
                for limit in self._limits.get(run_id, ()):
                    limit.resume()

    def holds_secret(self, arguments: JsonObject) -> bool:
        """Return whether arguments have the value of a secret in them, or a mark in its place."""
        is_clean = self._redactor.payload_secrets_only(arguments) is arguments
        return not is_clean or REMOVED in json.dumps(arguments, ensure_ascii=False)

    def clean_reason(self, reason: str | None) -> str | None:
        """A reason as it is stored: bounded, and without secrets."""
        return None if reason is None else shortened(self._redactor.text(reason), MAX_REASON)

    @property
    def parks(self) -> bool:
        """Return whether runs stop at questions, because no user can be asked here."""
        return self._callback is None and self._unattended == "park"

    async def ask(
        self,
        request: "PermissionRequest",
        journal: PermissionJournal,
        *,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        find_covering: Callable[[], Awaitable[Decision | None]],
        ask_later: Callable[[], Awaitable[Sequence[str]]] = _ask_nothing,
    ) -> "PermissionDecision":
        """Store the question, put it to the user, and record the answer.

        `find_covering` finds an answer that was given meanwhile and covers the question, which is
        then not put to anybody. `ask_later` asks about the calls that follow, unless a callback
        does, and returns the ids of these questions.

        Raises:
            PermissionDeniedError: there is no answer; its code is `access.refusal` where no
                question can be asked.
            ParkedError: the run is to wait for the answer.
            CallChangedError: the call was allowed with other arguments.
        """
        from agent_core.types import ApprovalState  # noqa: PLC0415 - few runs need it

        store = self._store
        if store is None:
            if self._callback is None:
                raise _no_way_to_ask(definition, access)
            return await self._ask_callback(self._callback, request, journal, find_covering)
        if (changed := call.metadata.get(CHANGED)) is not None:
            record = await store.approval(str(changed["request_id"]))
            is_of_call = record is not None and record.tool_call_id == call.tool_call_id
            if record is not None and is_of_call and record.changed_arguments == call.arguments:
                return _note_answer(record, journal)  # this very call was allowed
        obstacle = self._find_obstacle(call, run)
        treatment = self._treatment(run)
        may_park = treatment == "park" and obstacle is None
        can_ask = self._callback is not None or may_park or treatment == "wait"
        root_id = run.root_id
        # A resumed run may have an answer already.
        if not can_ask and not await store.approval_of(root_id, run.run_id, call.tool_call_id):
            raise _no_way_to_ask(definition, access, obstacle)
        question = await self._question(request, call, definition, access, run)
        with self._may_park(run, call) if may_park else nullcontext():  # others see it from now on
            record = await store.ask(question.model_copy(update={"keeps_run": may_park}))
            if (
                record.state is ApprovalState.OPEN
                and (covering := await find_covering()) is not None
            ):
                record = await self._settle(store, record.request_id, covering) or record
            if record.request_id == question.request_id:
                payload = event_payload(request)
                call_id = call.tool_call_id
                journal.note(EventType.PERMISSION_REQUESTED, payload, tool_call_id=call_id)
            await journal.commit()
            if record.state is ApprovalState.OPEN and not can_ask:
                await store.withdraw(record.request_id)
                raise _no_way_to_ask(definition, access, obstacle)
            if record.state is ApprovalState.OPEN:
                later = () if self._callback is not None else await ask_later()
                with self.waiting_for(run.run_id):
                    try:
                        record = await self._race(
                            store,
                            record,
                            journal,
                            may_park=may_park,
                            obstacle=obstacle,
                            waits=treatment == "wait",
                        )
                    except ParkedError as parked:
                        later = later or await ask_later()
                        raise ParkedError(*parked.request_ids, *later) from None
        if record.changed_arguments is not None and record.decision is not Decision.DENY:
            raise CallChangedError(record.request_id, record.changed_arguments)
        return _note_answer(record, journal)

    async def ask_ahead(
        self,
        request: "PermissionRequest",
        journal: PermissionJournal,
        *,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
    ) -> str | None:
        """Store the question about a call whose turn has not come; return the id of an open one.

        The question is asked again if the call would do something else by then.
        """
        from agent_core.types import ApprovalState  # noqa: PLC0415 - few runs need it

        if self._store is None or self._find_obstacle(call, run) is not None:
            return None
        question = await self._question(request, call, definition, access, run)
        record = await self._store.ask(question)
        if record.request_id == question.request_id:
            journal.note(
                EventType.PERMISSION_REQUESTED,
                event_payload(request),
                tool_call_id=call.tool_call_id,
            )
            await journal.commit()
        return record.request_id if record.state is ApprovalState.OPEN else None

    async def withdraw(self, calls: Sequence[ToolCall], run: RunIdentity) -> None:
        """Withdraw the open questions about calls that are not made."""
        from agent_core.types import ApprovalState  # noqa: PLC0415 - few runs need it

        if self._store is None:
            return
        for call in calls:
            root_id = run.root_id
            found = await self._store.approval_of(root_id, run.run_id, call.tool_call_id)
            if found is not None and found.state is ApprovalState.OPEN:
                await self._store.withdraw(found.request_id)

    async def _question(
        self,
        request: "PermissionRequest",
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
    ) -> "ApprovalRecord":
        from agent_core.types import ApprovalRecord  # noqa: PLC0415 - few runs need it

        return ApprovalRecord(
            request_id=request.request_id,
            session_id=run.session_id,
            run_id=run.run_id,
            root_run_id=run.root_id,
            agent_id=run.agent_id,
            agent_path=agent_path(run),
            tool_call_id=call.tool_call_id,
            tool_name=definition.name,
            access_hash=await asyncio.to_thread(access_hash, call, definition, access, request),
            request=request,
            arguments=self._redactor.payload(call.arguments),
            asked_at=utc_now(),
        )

    def _treatment(self, run: RunIdentity) -> Literal["deny", "wait", "park"]:
        return "wait" if run.questions_wait else self._unattended

    def _find_obstacle(self, call: ToolCall, run: RunIdentity) -> str | None:
        """Return why a run with this question cannot be parked; None if it can, or need not."""
        if self._treatment(run) != "park":
            return None
        if run.mode is RunMode.ORCHESTRATOR:
            return "a run that leads workers cannot be parked: their claims would end meanwhile"
        if self._redactor.payload_secrets_only(call.arguments) is not call.arguments:
            return (
                "its arguments hold a secret, which is not stored: the call cannot wait for an"
                " answer. The secret can stay in the environment or in a file"
            )
        return None

    async def _ask_callback(
        self,
        callback: PermissionCallback,
        request: "PermissionRequest",
        journal: PermissionJournal,
        find_covering: Callable[[], Awaitable[Decision | None]],
    ) -> "PermissionDecision":
        """Ask without a store: only the callback can answer."""
        from agent_core.types import PermissionDecision  # noqa: PLC0415 - few runs need it

        call_id = request.metadata["tool_call_id"]
        covered: asyncio.Future[PermissionDecision] = asyncio.get_running_loop().create_future()
        self._asked_here[request.request_id] = _Asked(request, covered)
        asking = None
        try:
            if (covering := await find_covering()) is not None and not covered.done():
                covered.set_result(PermissionDecision(decision=covering))
            payload = event_payload(request)
            journal.note(EventType.PERMISSION_REQUESTED, payload, tool_call_id=call_id)
            await journal.commit()
            if covered.done():
                answer = covered.result()
            else:
                asking = self._start(callback, request)
                await asyncio.wait(
                    [asking, covered], timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                answer = covered.result() if covered.done() else _outcome(asking)
        finally:
            if asking is not None:
                asking.cancel()
            covered.cancel()
            del self._asked_here[request.request_id]
        if isinstance(answer, UnattendedError):
            answer = _denial(UNANSWERED)
        if isinstance(answer, str | _Failed):
            raise _note_failure(request, answer, journal)
        facts = {"request_id": request.request_id, "tool_name": request.tool_name}
        given: JsonObject = {"decision": answer.decision, "reason": answer.reason}
        if decided_by := answer.metadata.get("decided_by"):
            given["decided_by"] = str(decided_by)
        journal.note(
            EventType.PERMISSION_DECIDED,
            {**facts, **given},
            tool_call_id=call_id,
        )
        return answer

    async def _race(
        self,
        store: "SessionStore",
        record: "ApprovalRecord",
        journal: PermissionJournal,
        *,
        may_park: bool,
        obstacle: str | None,
        waits: bool,
    ) -> "ApprovalRecord":
        """Return the question with its first answer, the callback's or one from elsewhere.

        Raises:
            PermissionDeniedError: there is no answer.
            ParkedError: the run has to wait for it.
        """
        from agent_core.types import PermissionDecision  # noqa: PLC0415 - few runs need it

        request_id = record.request_id
        elsewhere = asyncio.create_task(self._elsewhere(store, request_id))
        asking = self._start(self._callback, record.request) if self._callback else None
        parking = asyncio.create_task(self._parking.wait()) if may_park else None
        waiting = {each for each in (asking, elsewhere, parking) if each is not None}
        answer: _Answer = UnattendedError()
        try:
            async with asyncio.timeout(self._timeout_s):
                if asking is not None:
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    is_parked = self._parking.is_set() and not asking.done()
                    if may_park and is_parked and not elsewhere.done():
                        raise ParkedError(request_id)
                    answer = _outcome(asking) if asking.done() else _WITHDRAWN
                if isinstance(answer, UnattendedError) and not elsewhere.done():
                    if may_park:
                        raise ParkedError(request_id)
                    if waits:
                        await asyncio.wait([elsewhere])
                    else:
                        answer = obstacle or UNANSWERED
        except TimeoutError:
            answer = _LATE
        except asyncio.CancelledError:
            await finish_uncancelled(store.withdraw(request_id))
            raise
        finally:
            for each in waiting:
                each.cancel()
        decision = answer if isinstance(answer, PermissionDecision) else _denial(answer)
        found, is_first = await finish_uncancelled(
            store.answer(
                request_id,
                decision.decision,
                reason=self.clean_reason(decision.reason),
                by=str(decision.metadata.get("decided_by") or "callback"),
                decider=current_decider(),
            )
        )
        if found is None or found.decision is None:
            raise _note_failure(record.request, _WITHDRAWN, journal)
        if is_first and isinstance(answer, str | _Failed) and answer is not UNANSWERED:
            raise _note_failure(record.request, answer, journal)
        return found

    async def _elsewhere(self, store: "SessionStore", request_id: str) -> None:
        """Return when a question has been closed in another place."""
        from agent_core.types import ApprovalState  # noqa: PLC0415 - few runs need it

        event = self._answered[request_id] = asyncio.Event()
        pause = None if self._pause_s is None else _LOOK_S
        try:
            while True:
                try:
                    async with asyncio.timeout(pause):
                        await event.wait()
                except TimeoutError:
                    pass
                event.clear()
                pause = self._pause_s
                with suppress(StorageError):  # the next look may succeed
                    found = await store.approval(request_id)
                    if found is None or found.state is not ApprovalState.OPEN:
                        return
        finally:
            del self._answered[request_id]

    def _start(
        self, callback: PermissionCallback, request: "PermissionRequest"
    ) -> "asyncio.Task[_Answer]":
        """Ask in a separate task, so that a callback that hangs does not keep a cancelled run."""
        asking = asyncio.create_task(
            _call(callback, request, self._redactor), name="permission callback"
        )
        self._asking.add(asking)
        asking.add_done_callback(self._close)
        return asking

    def _close(self, asking: "asyncio.Task[_Answer]") -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # retrieved here: the run that asked may have been cancelled


def _outcome(
    asking: "asyncio.Task[_Answer]",
) -> "_Answer":
    if not asking.done():
        return _LATE
    return _WITHDRAWN if asking.cancelled() else asking.result()


async def _call(
    callback: PermissionCallback, request: "PermissionRequest", redactor: Redactor
) -> "_Answer":
    """Return the callback's answer, or why there is none: the model reads no text of an error."""
    try:
        return await call_back(callback, request)
    except TimeoutError:
        return _LATE
    except UnattendedError as error:
        return error
    except WrongAnswerError as error:
        reason = redactor.text(str(error))
        logger.warning("%s", reason)
        return _Failed(reason)
    except Exception as error:  # noqa: BLE001 - every failure counts as a deny
        log_failure(logger, "the permission callback failed", error=error, clean=redactor.text)
        said = "".join(traceback.format_exception_only(error)).strip()
        # Cut last: a cut key is not recognised.
        reason = redactor.text(f"the permission callback failed: {said}")
        return _Failed(shortened(reason, MAX_REASON))


def _denial(answer: UnattendedError | _Failed | str) -> "PermissionDecision":
    from agent_core.types import PermissionDecision  # noqa: PLC0415 - few runs need it

    reason = None if isinstance(answer, UnattendedError) else _reason_of(answer)
    metadata = {"decided_by": NOBODY}
    return PermissionDecision(decision=Decision.DENY, reason=reason, metadata=metadata)


def _note_answer(record: "ApprovalRecord", journal: PermissionJournal) -> "PermissionDecision":
    from agent_core.types import PermissionDecision  # noqa: PLC0415 - few runs need it

    decision = PermissionDecision(
        decision=record.decision or Decision.DENY,
        reason=record.reason,
        metadata={"decided_by": record.decided_by},
    )
    payload: JsonObject = {
        "request_id": record.request_id,
        "tool_name": record.tool_name,
        "decision": decision.decision,
        "reason": decision.reason,
        "decided_by": record.decided_by,
        "decider": record.decider,
    }
    if record.changed_arguments is not None:
        payload["arguments"] = record.changed_arguments
    journal.note(EventType.PERMISSION_DECIDED, payload, tool_call_id=record.tool_call_id)
    return decision


def _reason_of(failure: _Failed | str) -> str:
    """Return why there is no answer, in words for the model and the store."""
    return failure if isinstance(failure, str) else _FAILED_TO_ASK


def _note_failure(
    request: "PermissionRequest", failure: _Failed | str, journal: PermissionJournal
) -> PermissionDeniedError:
    payload = {
        "request_id": request.request_id,
        "tool_name": request.tool_name,
        "decision": Decision.DENY,
        "error": failure if isinstance(failure, str) else failure.error,
    }
    call_id = request.metadata["tool_call_id"]
    failed = EventType.PERMISSION_FAILED
    journal.note(failed, payload, level=EventLevel.WARNING, tool_call_id=call_id)
    return denied(unanswered(request.tool_name, _reason_of(failure)))


def _no_way_to_ask(
    definition: ToolDefinition, access: Access, obstacle: str | None = None
) -> PermissionDeniedError:
    why = obstacle or "this program has no way to ask for it"
    message = f"{definition.name} needs a permission, and {why}"
    details = {"denied_by": NOBODY} if obstacle is None else {}
    return PermissionDeniedError(access.refusal, message, details=details)

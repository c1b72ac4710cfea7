"""The door in front of every tool call: passes what is allowed, asks, and remembers answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from agent_core.config.models import Config
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.permissions.addresses import hosts_in
from agent_core.permissions.grants import Grant, grant_for
from agent_core.permissions.policy import Policy, Verdict
from agent_core.permissions.request import Questions, for_the_record
from agent_core.redaction.redactor import Redactor
from agent_core.redaction.tracebacks import log_failure
from agent_core.types import (
    Access,
    Decision,
    EventLevel,
    EventType,
    PermissionDecision,
    PermissionRequest,
    RunIdentity,
    ToolCall,
    ToolDefinition,
)

logger = logging.getLogger(__name__)

_MAX_HOSTS_SHOWN = 1_000

PermissionCallback = Callable[[PermissionRequest], Awaitable[PermissionDecision]]
"""Asks the user. Whatever goes wrong in it counts as a deny."""


class PermissionJournal(Protocol):
    """Where questions and answers are written down."""

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> None:
        """Record an event; it is stored with the next commit."""
        ...

    async def commit(self) -> None:
        """Return when everything noted is stored and visible."""
        ...


class PermissionGuard:
    """Decides about every call of one runtime.

    What was allowed for a session is kept in memory only, and is for the calls that its question
    named. A call with a reason of its own is asked for whatever was allowed before.

    Args:
        callback: asks the user; None means that no question can be asked.
        config: `[permissions]` and `[tools.network]` are used.
        project_dir: shown as the folder of calls that have none of their own.
        redactor: cleans what the user is shown.
        timeout_s: how long one answer may take, in seconds; None waits as long as it takes.
    """

    def __init__(
        self,
        callback: PermissionCallback | None,
        config: Config,
        *,
        project_dir: Path,
        redactor: Redactor,
        timeout_s: float | None = None,
    ) -> None:
        self._callback = callback
        self._policy = Policy(config.permissions, config.tools.network)
        self._may_remember = config.permissions.allow_for_session_enabled
        self._questions = Questions(project_dir, redactor)
        self._redactor = redactor
        self._timeout_s = timeout_s
        self._allowed: dict[str, set[str]] = {}
        self._leaving: set[asyncio.Task[PermissionDecision]] = set()

    async def require(
        self,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        journal: PermissionJournal,
    ) -> None:
        """Return if the call may run.

        Raises:
            PermissionDeniedError: the policy or the user said no, or no question can be asked;
                then its code is `access.refusal`.
        """
        hosts = await _hosts_of(call, definition)
        verdict = self._policy.verdict(definition, access, hosts)
        if verdict is Verdict.ALLOW:
            return
        if verdict is Verdict.REFUSE:
            named = ", ".join(hosts or ())[:_MAX_HOSTS_SHOWN]
            raise _denied(
                f"the network policy does not allow {named}; it can be added to"
                " allowed_hosts in [permissions.network_policy]"
            )
        grant = grant_for(call, definition, access, hosts)
        if self._is_granted(grant, run):
            return
        if self._callback is None:
            raise PermissionDeniedError(
                access.refusal,
                f"{definition.name} needs a permission, and this program has no way to ask for it",
            )
        offered = grant if self._may_remember else None
        request = self._questions.about(
            call, definition, access, run, hosts=hosts, covers=offered.covers if offered else None
        )
        answer = await self._ask(self._callback, request, journal)
        if answer.decision is Decision.DENY:
            said = f": {answer.reason}" if answer.reason else ""
            raise _denied(f"the user denied {definition.name}{said}")
        if answer.decision is Decision.ALLOW_FOR_SESSION and offered is not None:
            self._allowed.setdefault(run.session_id, set()).add(offered.key)

    def _is_granted(self, grant: Grant | None, run: RunIdentity) -> bool:
        return grant is not None and grant.key in self._allowed.get(run.session_id, ())

    def forget(self, session_id: str) -> None:
        """Drop what was allowed for a session that is gone."""
        self._allowed.pop(session_id, None)

    async def _ask(
        self, callback: PermissionCallback, request: PermissionRequest, journal: PermissionJournal
    ) -> PermissionDecision:
        call_id = request.metadata["tool_call_id"]
        journal.note(EventType.PERMISSION_REQUESTED, for_the_record(request), tool_call_id=call_id)
        await journal.commit()
        facts = {"request_id": request.request_id, "tool_name": request.tool_name}
        try:
            answer = await self._answer(callback, request)
        except _NoAnswerError as error:
            journal.note(
                EventType.PERMISSION_FAILED,
                {**facts, "decision": Decision.DENY, "error": str(error)},
                level=EventLevel.WARNING,
                tool_call_id=call_id,
            )
            message = f"{request.tool_name} was not allowed, because nobody answered: {error}"
            raise _denied(message) from error
        journal.note(
            EventType.PERMISSION_DECIDED,
            {**facts, "decision": answer.decision, "reason": answer.reason},
            tool_call_id=call_id,
        )
        return answer

    async def _answer(
        self, callback: PermissionCallback, request: PermissionRequest
    ) -> PermissionDecision:
        # A task of its own: a callback that does not let go must not keep a cancelled run.
        asking = asyncio.create_task(
            _called(callback, request, self._redactor), name="permission callback"
        )
        self._leaving.add(asking)
        asking.add_done_callback(self._left)
        try:
            await asyncio.wait([asking], timeout=self._timeout_s)
        except asyncio.CancelledError:
            asking.cancel()
            raise
        if not asking.done():
            asking.cancel()
            raise _NoAnswerError("the question was not answered in time")
        if asking.cancelled():
            raise _NoAnswerError("the question was withdrawn")
        return asking.result()

    def _left(self, asking: asyncio.Task[PermissionDecision]) -> None:
        self._leaving.discard(asking)
        if not asking.cancelled():
            asking.exception()  # seen: nobody may be waiting for it any more


class _NoAnswerError(Exception):
    """The callback did not answer; the message says why."""


async def _called(
    callback: Callable[[PermissionRequest], Awaitable[object]],
    request: PermissionRequest,
    redactor: Redactor,
) -> PermissionDecision:
    try:
        answer = await callback(request)
    except TimeoutError:
        raise _NoAnswerError("the question was not answered in time") from None
    except Exception as error:
        what = "the permission callback broke"
        log_failure(logger, what, error=error, clean=redactor.text)
        raise _NoAnswerError(f"the permission callback broke: {type(error).__name__}") from error
    if not isinstance(answer, PermissionDecision):
        raise _NoAnswerError(
            f"the permission callback answered with {type(answer).__name__}, not a decision"
        )
    return answer


async def _hosts_of(call: ToolCall, definition: ToolDefinition) -> list[str] | None:
    """The hosts that a call of a tool tagged `network` names; None for other tools."""
    if "network" not in definition.tags:
        return None
    return await asyncio.to_thread(hosts_in, call.arguments)  # arguments may be long


def _denied(message: str) -> PermissionDeniedError:
    return PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message)

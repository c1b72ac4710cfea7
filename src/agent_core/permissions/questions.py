"""Puts a question about a call to the user, and records it with its answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.permissions.request import event_payload
from agent_core.redaction import log_failure
from agent_core.redaction.redactor import Redactor
from agent_core.types import (
    Decision,
    EventLevel,
    EventType,
    PermissionDecision,
    PermissionRequest,
)

logger = logging.getLogger(__name__)

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


class Questions:
    """The questions that are put to the user through one callback.

    Args:
        callback: asks the user.
        redactor: removes secrets from what is logged.
        timeout_s: how long one answer may take, in seconds; None waits as long as it takes.
    """

    def __init__(
        self, callback: PermissionCallback, redactor: Redactor, *, timeout_s: float | None = None
    ) -> None:
        self._callback = callback
        self._redactor = redactor
        self._timeout_s = timeout_s
        self._open: set[asyncio.Task[PermissionDecision | str]] = set()

    async def ask(
        self, request: PermissionRequest, journal: PermissionJournal
    ) -> PermissionDecision:
        """Store the question, put it to the user, and record the answer.

        Raises:
            PermissionDeniedError: there is no answer.
        """
        call_id = request.metadata["tool_call_id"]
        journal.note(EventType.PERMISSION_REQUESTED, event_payload(request), tool_call_id=call_id)
        await journal.commit()
        # A task of its own: a callback that does not let go must not keep a cancelled run.
        question = asyncio.create_task(
            _call(self._callback, request, self._redactor), name="permission callback"
        )
        self._open.add(question)
        question.add_done_callback(self._close)
        try:
            await asyncio.wait([question], timeout=self._timeout_s)
            has_ended = question.done()
        finally:
            question.cancel()
        if not has_ended:
            answer = _LATE
        elif question.cancelled():
            answer = "the question was withdrawn"
        else:
            answer = question.result()
        facts = {"request_id": request.request_id, "tool_name": request.tool_name}
        if isinstance(answer, str):
            journal.note(
                EventType.PERMISSION_FAILED,
                {**facts, "decision": Decision.DENY, "error": answer},
                level=EventLevel.WARNING,
                tool_call_id=call_id,
            )
            raise denied(
                f"{request.tool_name} was not allowed, because there is no answer: {answer}"
            )
        journal.note(
            EventType.PERMISSION_DECIDED,
            {**facts, "decision": answer.decision, "reason": answer.reason},
            tool_call_id=call_id,
        )
        return answer

    def _close(self, question: "asyncio.Task[PermissionDecision | str]") -> None:
        self._open.discard(question)
        if not question.cancelled():
            question.exception()  # retrieved here: the run that asked may have been cancelled


_LATE = "the question was not answered in time"


async def _call(
    callback: Callable[[PermissionRequest], Awaitable[object]],
    request: PermissionRequest,
    redactor: Redactor,
) -> PermissionDecision | str:
    """The callback's answer, or why there is none."""
    try:
        answer = await callback(request)
    except TimeoutError:
        return _LATE
    except Exception as error:  # noqa: BLE001 - every failure counts as a deny
        log_failure(logger, "the permission callback broke", error=error, clean=redactor.text)
        return f"the permission callback broke: {type(error).__name__}"
    if isinstance(answer, PermissionDecision):
        return answer
    return f"the permission callback answered with {type(answer).__name__}, not a decision"


def denied(message: str) -> PermissionDeniedError:
    """The error of a call that the user, or a rule of theirs, does not allow."""
    return PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message)

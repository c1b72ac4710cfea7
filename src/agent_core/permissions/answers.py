"""Answers to questions about calls: callbacks that give them, and words that describe them."""

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from agent_core.callbacks import result_of
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.text import shortened
from agent_core.text.languages import ENGLISH, Language
from agent_core.types import Decision

if TYPE_CHECKING:
    from agent_core.types import PermissionDecision, PermissionRequest


DECISIONS: Mapping[str, str] = {
    Decision.DENY: "denied",
    Decision.ALLOW_ONCE: "allowed once",
    Decision.ALLOW_FOR_SESSION: "allowed for session",
    Decision.ALLOW_READS: "allowed with all that only reads",
    Decision.ALLOW_EDITS: "allowed with all edits",
}


PLACES = {
    "callback": "the program",
    "cli": "the command line",
    "console": "the console",
    "editor": "the editor",
    "mcp": "the MCP client",
    "sdk": "the program",
    "session": "another answer",
    "terminal": "the terminal",
}
"""Where questions are answered, by the word that is stored."""


def describe_answer(
    decision: str,
    decided_by: str | None,
    decider: str | None,
    reason: str | None,
    say: Language = ENGLISH,
) -> str:
    """Return an answer in words: the decision, who has made it and where, and the reason."""
    if decided_by == NOBODY:
        return f"{say('denied')}: {reason or say(UNANSWERED)}"
    by = decided_by or "callback"
    place = say(PLACES.get(by, by))
    who = f"{decider} ({place})" if decider else place
    made = say("{made} by {who}", made=say(DECISIONS.get(decision, decision)), who=who)
    return f"{made}{f': {reason}' if reason else ''}"


class PermissionCallback(Protocol):
    """Asks the user: it is given a `PermissionRequest`, and returns the answer.

    It may be a coroutine function or a plain one, which runs in a thread. The answer is a
    `PermissionDecision`, or the decision alone: `"allow_once"`, `"allow_for_session"`, `"deny"`, or
    `True` for once and `False` for deny.
    Any failure in it counts as a deny, except `UnattendedError`.
    """

    def __call__(
        self, request: "PermissionRequest", /
    ) -> "Awaitable[PermissionDecision | str | bool] | PermissionDecision | str | bool": ...


async def call_back(
    callback: "Callable[[PermissionRequest], object]", request: "PermissionRequest"
) -> "PermissionDecision":
    """Return the answer of a callback.

    Raises:
        WrongAnswerError: it has returned something else.
    """
    from agent_core.types import PermissionDecision  # noqa: PLC0415 - few runs need it

    answer = await result_of(callback, request)
    if isinstance(answer, PermissionDecision):
        return answer
    if isinstance(answer, bool):
        return PermissionDecision(decision=Decision.ALLOW_ONCE if answer else Decision.DENY)
    with suppress(ValueError):
        return PermissionDecision(decision=Decision(answer))
    raise WrongAnswerError(
        f"the permission callback returned {shortened(repr(answer), 100)}; return a"
        f" PermissionDecision, True, False, or one of {', '.join(Decision)}"
    )


UNANSWERED = "nobody could be asked"
"""Reason of a denial when no user can be asked."""


_NO_REASON = (None, UNANSWERED)


NOBODY = "nobody"
"""Decider of a call that was denied because its question got no answer."""


THE_USER = "the user"
"""Who has denied a call whose question got an answer."""


BY_SESSION = "session"
"""Decider of a question that the answer to another one covers."""


class UnattendedError(Exception):
    """A permission callback cannot ask the user: `[permissions] unattended` decides."""


class WrongAnswerError(TypeError):
    """A permission callback has returned something other than a decision."""


def covered_by(request_id: str | None) -> str:
    """Return the reason of an answer that was given to another question; None: an earlier one."""
    if request_id is None:
        return "an earlier answer for the session covers it"
    return f"the answer to {request_id} covers it"


def current_decider() -> str:
    """The user and the process that answer here."""
    import getpass  # noqa: PLC0415 - most runs ask nothing

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        user = f"user {os.getuid()}"
    return f"{user}, process {os.getpid()}"


def denial_of(
    answer: "PermissionDecision", name: str, code: ErrorCode = ErrorCode.PERMISSION_DENIED
) -> PermissionDeniedError:
    """Return the error of a denied call; it names who denied it.

    Args:
        answer: the denial.
        name: the name of the tool.
        code: code of the error, if there was no way to ask.
    """
    if answer.metadata.get("decided_by") == NOBODY:
        details = {"denied_by": NOBODY} if answer.reason in _NO_REASON else {}
        return PermissionDeniedError(code, unanswered(name, answer.reason), details=details)
    return denied_by_user(name, answer.reason)


def denied_by_user(name: str, reason: str | None) -> PermissionDeniedError:
    """Return the error of a call that the user has denied."""
    because = f": {reason}" if reason else ""
    return denied(f"{THE_USER} denied {name}{because}", denied_by=THE_USER)


def unanswered(name: str, reason: str | None) -> str:
    """Return the message for a call whose question got no answer."""
    if reason in _NO_REASON:
        return f"{name} was not allowed, because nobody could be asked"
    return f"{name} was not allowed, because there is no answer: {reason}"


def denied(message: str, **details: str) -> PermissionDeniedError:
    """The error of a call that the user, or a rule of theirs, does not allow."""
    return PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message, details=details)

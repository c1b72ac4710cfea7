"""Ids that sort by time, are safe as file names, and can be chosen by the caller."""

import re
import secrets
from dataclasses import dataclass
from typing import Protocol, Self

from agent_core.errors import ErrorCode
from agent_core.types import utc_now
from kgent.errors import ErrorCategory, KgentError

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}")


class ChosenIds(Protocol):
    """The ids a caller may bring along: an earlier session or task is joined by naming it."""

    @property
    def session_id(self) -> str | None: ...
    @property
    def task_id(self) -> str | None: ...
    @property
    def run_id(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class RunIds:
    """Which run this is, of which task, in which session."""

    session_id: str
    task_id: str
    run_id: str

    @classmethod
    def of(cls, chosen: ChosenIds) -> Self:
        """The chosen ids, and new ones in place of those that were not.

        Raises:
            KgentError: category `config`; a chosen id is not safe as a file name.
        """
        return cls(
            _checked(chosen.session_id, "session") or new_id("sess"),
            _checked(chosen.task_id, "task") or new_id("task"),
            _checked(chosen.run_id, "run") or new_id("run"),
        )


def new_id(prefix: str) -> str:
    """`<prefix>_<UTC time>_<8 random hex digits>`."""
    return f"{prefix}_{utc_now():%Y%m%dT%H%M%S%fZ}_{secrets.token_hex(4)}"


def _checked(value: str | None, what: str) -> str | None:
    if value is None or _SAFE.fullmatch(value):
        return value
    message = (
        f"{value[:120]!r} is no {what} id: up to 120 letters, digits, '_', '-' and '.',"
        " beginning with a letter or digit"
    )
    raise KgentError(ErrorCode.VALIDATION_ERROR, message, category=ErrorCategory.CONFIG)

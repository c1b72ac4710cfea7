"""The ids of sessions, tasks and runs."""

import re
import secrets
from typing import NamedTuple, Self

from agent_core.errors import ErrorCode
from agent_core.text import quoted
from agent_core.types import utc_now
from kgent.errors import config_error
from kgent.runtime.options import RunOptions

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}")


def new_session_id() -> str:
    """Create the id of a session."""
    return _new_id("sess")


def new_task_id() -> str:
    """Create the id of a task."""
    return _new_id("task")


def new_run_id() -> str:
    """Create the id of a run."""
    return _new_id("run")


def _new_id(prefix: str) -> str:
    """Create an id that sorts by time: `<prefix>_<UTC time>_<8 random hex digits>`."""
    return f"{prefix}_{utc_now():%Y%m%dT%H%M%S%fZ}_{secrets.token_hex(4)}"


class RunIds(NamedTuple):
    """The ids of a run, its task and its session."""

    session_id: str
    task_id: str
    run_id: str

    @classmethod
    def new(cls) -> Self:
        """Create three new ids."""
        return cls(new_session_id(), new_task_id(), new_run_id())

    @classmethod
    def choose(cls, options: RunOptions) -> Self:
        """Return the ids of the options, with new ids instead of None.

        Raises:
            KgentError: category `config`; a given id is not safe as a file name.
        """
        return cls(
            _check_id(options.session_id, "session") or new_session_id(),
            _check_id(options.task_id, "task") or new_task_id(),
            _check_id(options.run_id, "run") or new_run_id(),
        )


def _check_id(value: str | None, what: str) -> str | None:
    if value is None or _SAFE_ID.fullmatch(value):
        return value
    message = (
        f"{quoted(value, 120)} is not a valid {what} id: up to 120 letters, digits, '_', '-' and"
        " '.', beginning with a letter or digit"
    )
    raise config_error(message, ErrorCode.VALIDATION_ERROR)

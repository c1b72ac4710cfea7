"""Every error that the core raises deliberately, and the closed list of their codes.

* AgentCoreError            carries code, message, retryable, details
  x ConfigError             the surroundings are wrong: files, folders, variables, settings
    + ArgumentError         a program passed an argument that cannot be used
  x ProviderError           a model call failed; the adapter has already retried what it may
  x StorageError            history cannot be read or written, or an id is unknown there
  x SchemaError             data from outside does not have the promised shape
  x ToolError               one call failed; becomes a tool result, never ends the run
    + PermissionDeniedError policy, hook or user said no
    + TaskError             a rule of the Task graph said no; nothing was written

Except for `ArgumentError`, all take the same arguments, so that a custom provider or tool can raise
the one that fits: `raise ToolError(ErrorCode.FILE_NOT_FOUND, "no such file: a.txt")`.

`AgentCoreError` itself with the code `validation_error` is a call that does not fit the state of
its object: a closed runtime, another event loop, a run that has ended.
"""

import copy
import re
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any, ClassVar, cast


class ErrorCode(StrEnum):
    """Error codes for programs; the message is for people. Codes are never renamed."""

    # common
    VALIDATION_ERROR = "validation_error"
    SCHEMA_ERROR = "schema_error"
    CONFIG_ERROR = "config_error"
    PERMISSION_DENIED = "permission_denied"
    TOOL_NOT_AVAILABLE = "tool_not_available"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    INTERNAL_ERROR = "internal_error"
    # run
    MAX_TURNS = "max_turns"
    MAX_OUTPUT_TOKENS = "max_output_tokens"
    OUTPUT_INVALID = "output_invalid"
    BUDGET_EXCEEDED = "budget_exceeded"
    GUARD_STOPPED = "guard_stopped"
    RUN_ENDED = "run_ended"
    # provider
    PROVIDER_ERROR = "provider_error"
    UNSUPPORTED_CAPABILITY = "unsupported_capability"
    PROVIDER_AUTH_FAILED = "provider_auth_failed"
    PROVIDER_RATE_LIMITED = "provider_rate_limited"
    PROVIDER_TIMEOUT = "provider_timeout"
    PROMPT_TOO_LONG = "prompt_too_long"
    EMPTY_REPLY = "empty_reply"
    CONTENT_FILTERED = "content_filtered"
    # storage and files
    STORAGE_ERROR = "storage_error"
    MIGRATION_FAILED = "migration_failed"
    SESSION_ACTIVE = "session_active"
    SESSION_ELSEWHERE = "session_elsewhere"
    SESSION_NOT_FOUND = "session_not_found"
    NODE_NOT_FOUND = "node_not_found"
    RUN_NOT_FOUND = "run_not_found"
    ARTIFACT_NOT_FOUND = "artifact_not_found"
    APPROVAL_NOT_FOUND = "approval_not_found"
    ALREADY_ANSWERED = "already_answered"
    PATH_CONFLICT = "path_conflict"
    FILE_NOT_FOUND = "file_not_found"
    TEXT_NOT_FOUND = "text_not_found"
    AMBIGUOUS_EDIT = "ambiguous_edit"
    PATCH_APPLY_FAILED = "patch_apply_failed"
    PATCH_PATH_MISMATCH = "patch_path_mismatch"
    WRITE_OUTSIDE_ALLOWED_ROOTS = "write_outside_allowed_roots"
    # agents
    INVALID_AGENT_DEFINITION = "invalid_agent_definition"
    DUPLICATE_AGENT_DEFINITION = "duplicate_agent_definition"
    INVALID_AGENT_OVERRIDE = "invalid_agent_override"
    CHILD_AGENT_LIMIT_EXCEEDED = "child_agent_limit_exceeded"
    WORKER_BUSY = "worker_busy"
    WORKER_NOT_AVAILABLE = "worker_not_available"
    WORKER_POOL_BUSY = "worker_pool_busy"
    # tasks
    TASK_NOT_FOUND = "task_not_found"
    TASK_TERMINAL = "task_terminal"
    TASK_NOT_DISPATCHABLE = "task_not_dispatchable"
    TASK_NOT_COMPLETABLE = "task_not_completable"
    DEPENDENCY_CYCLE = "dependency_cycle"
    STEP_NOT_FOUND = "step_not_found"
    STEP_NOT_READY = "step_not_ready"
    STEP_ALREADY_CLAIMED = "step_already_claimed"
    STEP_ALREADY_CLAIMED_BY_RUN = "step_already_claimed_by_run"
    STEP_HAS_DEPENDENTS = "step_has_dependents"
    STEP_NOT_CANCELLABLE = "step_not_cancellable"
    NO_STEP_CLAIMED = "no_step_claimed"
    TASK_WAL_UNAVAILABLE = "task_wal_unavailable"
    # memory and skills
    MEMORY_RECALL_FAILED = "memory_recall_failed"
    MEMORY_WRITE_FAILED = "memory_write_failed"
    SKILL_NOT_FOUND = "skill_not_found"
    SKILL_LOAD_FAILED = "skill_load_failed"
    # hooks and MCP
    HOOK_FAILED = "hook_failed"
    MCP_SERVER_FAILED = "mcp_server_failed"
    TOOL_ERROR = "tool_error"


REFUSALS = frozenset({ErrorCode.PERMISSION_DENIED, ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS})
"""Codes of calls that were denied: every other failed call has failed."""


_UNSPECIFIC = frozenset(
    {
        ErrorCode.CANCELLED,
        ErrorCode.CONFIG_ERROR,
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.PERMISSION_DENIED,
        ErrorCode.SCHEMA_ERROR,
        ErrorCode.TIMEOUT,
        ErrorCode.TOOL_ERROR,
        ErrorCode.VALIDATION_ERROR,
    }
)
_SEARCHABLE = frozenset(ErrorCode) - _UNSPECIFIC
"""Codes that name a failure: the documentation can be searched for them."""

_ROOT = r"(?<![^\s(])\$(?:: |\.(?=[A-Za-z_]\w*(?:[.\[]\S*)?:)|(?=\[\S*:))"
"""The beginning of a place that is followed by what is wrong there: `$.a[0].b: …`."""


def describe_error(message: str, code: str) -> str:
    """Return an error for people: a code that names the failure ends the first line.

    A place in arguments is written without the `$` of its JSON path.
    """
    if not message:
        return code.replace("_", " ")
    message = re.sub(_ROOT, "", message)
    first, newline, rest = message.partition("\n")
    return f"{first} ({code}){newline}{rest}" if code in _SEARCHABLE else message


class PortableError(Exception):
    """An exception that `pickle` and `copy` restore completely, whatever its `__init__` takes.

    Python itself would call `__init__` again, with the message as its only argument. Here the
    attributes are restored, also the ones a subclass adds. The cause, the context and the
    traceback are left out, as with every exception.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_error, (type(self), self.args), self.__getstate__()

    def __setstate__(
        self, state: dict[str, Any] | tuple[dict[str, Any] | None, ...] | None
    ) -> None:
        for part in state if isinstance(state, tuple) else (state,):  # with __slots__ there are two
            for name, value in (part or {}).items():
                object.__setattr__(self, name, value)  # the class may refuse changes


def _new_error(kind: type[PortableError], args: tuple[Any, ...]) -> PortableError:
    """Make an exception without calling its `__init__`."""
    error = kind.__new__(kind, *args)
    object.__setattr__(error, "args", args)
    return error


class AgentCoreError(PortableError):
    """Base of everything the core raises on purpose.

    Args:
        code: the public code; a string must be one of `ErrorCode`.
        message: one sentence for a person: what happened, where, and how to fix it, if possible.
        retryable: the same call may succeed later without any change.
        details: JSON-serialisable facts for programs; never secrets, never a traceback.

    Keys and passwords are removed from the message and from texts in the details, also
    if a program passed them by mistake. Only a `ToolError` keeps them: its reader is the model, and
    whatever is stored of it is redacted later.

    Raises:
        ValueError: `code` is not an `ErrorCode`.
    """

    _is_cleaned: ClassVar[bool] = True

    def __init__(
        self,
        code: ErrorCode | str,
        message: str,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        facts = dict(details or {})
        if self._is_cleaned:
            message, facts = _without_secrets(message, is_prose=True), _cleaned(facts)
        super().__init__(message)
        self.code = ErrorCode(code)
        self.message = message
        self.retryable = retryable
        self.details: dict[str, Any] = facts

    def __str__(self) -> str:
        return self.message


def _cleaned(fact: Any) -> Any:
    """Return details without keys and passwords."""
    match fact:
        case str():
            return _without_secrets(fact, is_prose=" " in fact)
        case dict():
            return {name: _cleaned(each) for name, each in cast("dict[str, Any]", fact).items()}
        case list():
            return [_cleaned(each) for each in cast("list[Any]", fact)]
        case _:
            return fact


def _without_secrets(text: str, *, is_prose: bool) -> str:
    from agent_core.secret_shapes import without_secrets  # noqa: PLC0415 - most programs meet none

    return without_secrets(text, is_prose=is_prose)


def reworded(error: AgentCoreError, message: str) -> AgentCoreError:
    """Return a copy of an error, of the same class, with another message."""
    found = copy.copy(error)
    found.message, found.args = message, (message,)
    return found


def validation_error(message: str) -> AgentCoreError:
    """Return the error for a call that cannot be made now, or not here; see `ArgumentError`."""
    return AgentCoreError(ErrorCode.VALIDATION_ERROR, message)


class ConfigError(AgentCoreError):
    """The configuration, the home or the project is unusable."""


class ArgumentError(ConfigError, ValueError):
    """An argument of a constructor, a method or a run cannot be used, whatever the settings are.

    Its code is `validation_error`; nothing was done or stored, and the same call fails again.

    Args:
        message: names the argument, what was given and what would be right.
        argument: its name, which is `details["option"]`.
        details: more facts for programs.
    """

    def __init__(
        self, message: str, argument: str, details: Mapping[str, Any] | None = None
    ) -> None:
        facts = {"option": argument, **(details or {})}
        super().__init__(ErrorCode.VALIDATION_ERROR, message, details=facts)


class ProviderError(AgentCoreError):
    """A model call failed, after the retries that were allowed."""


class StorageError(AgentCoreError):
    """Sessions, artifacts or logs cannot be read or written, or an id is unknown there."""


class SchemaError(AgentCoreError):
    """Data from outside does not have the promised shape."""


class ToolError(AgentCoreError):
    """One tool call failed. The model reads it as the call's result and continues."""

    _is_cleaned = False


RETRY = "retry"
"""Reason of an error that asks for another call, in its details."""


class ToolRetry(ToolError):  # noqa: N818 - what a tool raises to ask for another call
    """A tool cannot carry out a call, and explains how to call it again.

    Args:
        message: the explanation for the model.
    """

    def __init__(self, message: str) -> None:
        self.reason = message
        asked = f"{message}\nCall the tool again with that in mind."
        super().__init__(ErrorCode.VALIDATION_ERROR, asked, True, {"reason": RETRY})


class PermissionDeniedError(ToolError):
    """A permission, a hook or a policy refused the call."""


class ParkedError(PortableError):
    """The run stops here, and continues from here once its questions are answered.

    Args:
        request_ids: ids of the questions.

    Attributes:
        cut: builds the result of a call that began and waits, for a run that is cancelled before
            it could wait; None for a call that has not begun.
    """

    def __init__(
        self, *request_ids: str, cut: Callable[[], Coroutine[Any, Any, Any]] | None = None
    ) -> None:
        super().__init__(f"waits for the answer to {', '.join(request_ids)}")
        self.request_ids = request_ids
        self.cut = cut


class LastTurnError(PortableError):
    """The run ends here as cancelled, because its user asked for that after a turn."""


class CallChangedError(PortableError):
    """The call in question is allowed with other arguments, and must be judged again with them.

    Args:
        request_id: id of the question.
        arguments: replace the call's own arguments.
    """

    def __init__(self, request_id: str, arguments: Mapping[str, Any]) -> None:
        super().__init__(f"the arguments of the call were changed with the answer to {request_id}")
        self.request_id = request_id
        self.arguments = arguments


class TaskError(ToolError):
    """A rule of the Task graph refused the change; nothing was written."""

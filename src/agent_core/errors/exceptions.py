"""The exception tree.

* AgentCoreError            carries code, message, retryable, details
  x ConfigError             the set-up is wrong; raised before a run starts
  x ProviderError           a model call failed; the adapter has already retried what it may
  x StorageError            history cannot be read or written, or an id is unknown there
  x SchemaError             data from outside does not have the promised shape
  x ToolError               one call failed; becomes a tool result, never ends the run
    + PermissionDeniedError policy, hook or user said no
    + TaskError             a rule of the Task graph said no; nothing was written

All take the same arguments, so that a custom provider or tool can raise the one that fits:
`raise ToolError(ErrorCode.FILE_NOT_FOUND, "no such file: a.txt")`.
"""

from collections.abc import Mapping
from typing import Any

from agent_core.errors.codes import ErrorCode


class AgentCoreError(Exception):
    """Base of everything the core raises on purpose.

    Args:
        code: the public code; a string must be one of `ErrorCode`.
        message: one sentence for a person: what happened, where, and the cure if there is one.
        retryable: the same call may succeed later without any change.
        details: JSON-serialisable facts for programs; never secrets, never a traceback.

    Raises:
        ValueError: `code` is not an `ErrorCode`.
    """

    def __init__(
        self,
        code: ErrorCode | str,
        message: str,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = ErrorCode(code)
        self.message = message
        self.retryable = retryable
        self.details: dict[str, Any] = dict(details or {})

    def __str__(self) -> str:
        return self.message


class ConfigError(AgentCoreError):
    """The configuration, the home or the project cannot be used as they are."""


class ProviderError(AgentCoreError):
    """A model call failed, after whatever retries were allowed."""


class StorageError(AgentCoreError):
    """Sessions, artifacts or logs cannot be read or written, or an id is unknown there."""


class SchemaError(AgentCoreError):
    """Data from outside does not have the promised shape."""


class ToolError(AgentCoreError):
    """One tool call failed. The model reads it as the call's result and goes on."""


class PermissionDeniedError(ToolError):
    """A permission, a hook or a policy refused the call."""


class TaskError(ToolError):
    """A rule of the Task graph refused the change; nothing was written."""

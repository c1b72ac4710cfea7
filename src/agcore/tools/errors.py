"""The kinds of failed tool calls; `ToolError.NotFound` and so on name them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from agent_core.errors import ErrorCode, ToolError as CoreToolError


class ToolError(CoreToolError):
    """One tool call failed.

    Args:
        tool_name: the tool that was called.
        reason: what happened; without one, the kind's default.
        details: facts for programs.
    """

    NotFound: ClassVar[type["ToolNotFoundError"]]
    ExecutionFailed: ClassVar[type["ToolExecutionError"]]
    InvalidArguments: ClassVar[type["InvalidArgumentsError"]]
    PermissionDenied: ClassVar[type["ToolPermissionError"]]
    Timeout: ClassVar[type["ToolTimeoutError"]]
    Mcp: ClassVar[type["McpToolError"]]

    default_code: ClassVar[ErrorCode] = ErrorCode.INTERNAL_ERROR
    default_reason: ClassVar[str] = "failed"
    recoverable: ClassVar[bool] = False

    def __init__(
        self, tool_name: str, reason: str = "", *, details: Mapping[str, Any] | None = None
    ) -> None:
        reason = reason or self.default_reason
        message = reason if tool_name in reason else f"{tool_name}: {reason}"
        facts = {**(details or {}), "tool_name": tool_name}
        super().__init__(self.default_code, message, self.recoverable, facts)
        self.tool_name = tool_name

    def is_recoverable(self) -> bool:
        """Whether another call may succeed though nothing else has changed."""
        return self.recoverable


class ToolNotFoundError(ToolError):
    """There is no such tool here."""

    default_code = ErrorCode.TOOL_NOT_AVAILABLE
    default_reason = "there is no such tool"


class ToolExecutionError(ToolError):
    """The tool ran and failed."""

    recoverable = True


class InvalidArgumentsError(ToolError):
    """The arguments do not fit the tool's schema; nothing was run."""

    default_code = ErrorCode.VALIDATION_ERROR
    default_reason = "the arguments do not fit"


class ToolPermissionError(ToolError):
    """A list, a rule or the user forbids the call; nothing was run."""

    default_code = ErrorCode.PERMISSION_DENIED
    default_reason = "the call is not allowed"


class ToolTimeoutError(ToolError):
    """The tool did not answer in time; whether it took effect is unknown."""

    default_code = ErrorCode.TIMEOUT
    default_reason = "gave no answer in time"
    recoverable = True


class McpToolError(ToolError):
    """The server behind the tool cannot be reached, or failed."""

    default_code = ErrorCode.MCP_SERVER_FAILED
    default_reason = "its MCP server failed"
    recoverable = True


ToolError.NotFound = ToolNotFoundError
ToolError.ExecutionFailed = ToolExecutionError
ToolError.InvalidArguments = InvalidArgumentsError
ToolError.PermissionDenied = ToolPermissionError
ToolError.Timeout = ToolTimeoutError
ToolError.Mcp = McpToolError

_KINDS: Mapping[ErrorCode, type[ToolError]] = MappingProxyType(
    {
        kind.default_code: kind
        for kind in (
            ToolNotFoundError,
            InvalidArgumentsError,
            ToolPermissionError,
            ToolTimeoutError,
            McpToolError,
        )
    }
)


def from_core(tool_name: str, error: CoreToolError) -> ToolError:
    """The kind of error that one of the engine's is; chain it with `from`."""
    if isinstance(error, ToolError):
        return error
    kind = _KINDS.get(error.code, ToolExecutionError)
    return kind(tool_name, error.message, details=error.details)

"""The errors of tool calls, by kind."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from agcore.errors import FamilyError
from agent_core.errors import ErrorCode, ToolError as CoreToolError


class ToolError(FamilyError, CoreToolError):
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

    default_reason: ClassVar[str] = "failed"

    def __init__(
        self, tool_name: str, reason: str = "", *, details: Mapping[str, Any] | None = None
    ) -> None:
        reason = reason or self.default_reason
        message = reason if tool_name in reason else f"{tool_name}: {reason}"
        facts = {**(details or {}), "tool_name": tool_name}
        super().__init__(self.default_code, message, self.recoverable, facts)
        self.tool_name = tool_name


class ToolNotFoundError(ToolError, kind="NotFound", code=ErrorCode.TOOL_NOT_AVAILABLE):
    """There is no such tool here."""

    default_reason = "there is no such tool"


class ToolExecutionError(ToolError, kind="ExecutionFailed", recoverable=True):
    """The tool ran and failed."""


class InvalidArgumentsError(ToolError, kind="InvalidArguments", code=ErrorCode.VALIDATION_ERROR):
    """The arguments do not fit the tool's schema; nothing was run."""

    default_reason = "the arguments do not fit"


class ToolPermissionError(ToolError, kind="PermissionDenied", code=ErrorCode.PERMISSION_DENIED):
    """A list, a rule or the user forbids the call; nothing was run."""

    default_reason = "the call is not allowed"


class ToolTimeoutError(ToolError, kind="Timeout", code=ErrorCode.TIMEOUT, recoverable=True):
    """The tool did not answer in time; whether it took effect is unknown."""

    default_reason = "gave no answer in time"


class McpToolError(ToolError, kind="Mcp", code=ErrorCode.MCP_SERVER_FAILED, recoverable=True):
    """The server behind the tool cannot be reached, or failed."""

    default_reason = "its MCP server failed"


_TOOL_KINDS: Mapping[ErrorCode, type[ToolError]] = MappingProxyType(
    {
        kind.default_code: kind
        for kind in ToolError.__subclasses__()
        if kind is not ToolExecutionError
    }
)


def tool_error_from(tool_name: str, error: CoreToolError) -> ToolError:
    """Convert an engine tool error to the matching `ToolError`; chain it with `from`."""
    if isinstance(error, ToolError):
        return error
    kind = _TOOL_KINDS.get(error.code, ToolExecutionError)
    return kind(tool_name, error.message, details=error.details)

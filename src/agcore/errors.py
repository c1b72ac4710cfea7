"""The errors of the toolkit: one family for each part, and the kinds of each by name."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, Self

from agent_core.errors import (
    AgentCoreError,
    ConfigError,
    ErrorCode,
    ProviderError,
    StorageError,
    ToolError as CoreToolError,
)
from agent_core.types import ErrorPayload


class _FamilyError(AgentCoreError):
    """The base of a family; a subclass with `kind` is an attribute of its family."""

    default_code: ClassVar[ErrorCode] = ErrorCode.INTERNAL_ERROR
    recoverable: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, kind: str = "", code: ErrorCode | None = None, recoverable: bool | None = None
    ) -> None:
        cls.default_code = code or cls.default_code
        cls.recoverable = cls.recoverable if recoverable is None else recoverable
        if kind:
            setattr(cls.__base__, kind, cls)

    def is_recoverable(self) -> bool:
        """True if the application may continue: another call may succeed with nothing changed."""
        return self.recoverable

    def with_details_of(self, error: AgentCoreError | ErrorPayload) -> Self:
        """Copy the code and the details of an engine error into this one, and return it."""
        self.code, self.details = error.code, dict(error.details)
        return self


# --- model calls ----------------------------------------------------------------------------------


class LlmError(_FamilyError, ProviderError, code=ErrorCode.PROVIDER_ERROR):
    """A model call failed. `retryable` means that the same call may succeed later."""

    Authentication: ClassVar[type["AuthenticationError"]]
    RateLimit: ClassVar[type["RateLimitError"]]
    Request: ClassVar[type["RequestError"]]
    Timeout: ClassVar[type["RequestTimeoutError"]]
    Stream: ClassVar[type["StreamBrokenError"]]
    ContextLength: ClassVar[type["ContextLengthError"]]
    Other: ClassVar[type["OtherLlmError"]]

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(self.default_code, message, retryable)


class AuthenticationError(LlmError, kind="Authentication", code=ErrorCode.PROVIDER_AUTH_FAILED):
    """The service refuses the key, or the key is missing."""


class RateLimitError(
    LlmError, kind="RateLimit", code=ErrorCode.PROVIDER_RATE_LIMITED, recoverable=True
):
    """Too many calls.

    Args:
        message: the explanation of the service.
        retry_after_s: how long it asked to wait, in seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message, retryable=True)
        self.retry_after_s = retry_after_s


class RequestError(LlmError, kind="Request"):
    """The service refused the request with an HTTP status."""

    def __init__(self, message: str, *, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message, retryable=status >= 500)
        self.status = status
        self.retry_after_s = retry_after_s


class RequestTimeoutError(
    LlmError, kind="Timeout", code=ErrorCode.PROVIDER_TIMEOUT, recoverable=True
):
    """The service did not answer in time."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message, retryable=retryable)


class StreamBrokenError(LlmError, kind="Stream", recoverable=True):
    """The connection was lost, or the answer ended before its end."""


class ContextLengthError(LlmError, kind="ContextLength", code=ErrorCode.PROMPT_TOO_LONG):
    """The prompt does not fit the model's context window."""


class OtherLlmError(LlmError, kind="Other"):
    """A failure of no other kind; `code` and `details` are the engine's, if it has failed."""


class ToolTurnLimitError(OtherLlmError, code=ErrorCode.MAX_TURNS):
    """The model called tools again after the last round it was allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the model still calls tools after {limit} rounds of them; raise max_tool_turns if it"
            " needs more"
        )
        self.limit = limit


class RequestBlockedError(OtherLlmError, code=ErrorCode.PERMISSION_DENIED):
    """A `PRE_REQUEST` hook stopped the call before anything was sent."""


def llm_error_from_payload(error: ErrorPayload) -> LlmError:
    """Convert the error of a `ModelFailed` or of a failed run to the matching `LlmError`."""
    status = error.details.get("status")
    retry_after_s = error.details.get("retry_after_s")
    for kind in (AuthenticationError, RequestTimeoutError, ContextLengthError):
        if error.code is kind.default_code:
            return kind(error.message)
    if error.code is ErrorCode.PROVIDER_RATE_LIMITED:
        return RateLimitError(error.message, retry_after_s=retry_after_s)
    if isinstance(status, int):
        return RequestError(error.message, status=status, retry_after_s=retry_after_s)
    if error.retryable:
        return StreamBrokenError(error.message, retryable=True)
    return OtherLlmError(error.message).with_details_of(error)


def llm_error_from(error: AgentCoreError) -> LlmError:
    """Convert an engine exception to an `LlmError`; chain it with `from`."""
    if isinstance(error, LlmError):
        return error
    if isinstance(error, ConfigError) and "variable" in error.details:
        return AuthenticationError(error.message)
    return OtherLlmError(error.message).with_details_of(error)


@contextmanager
def raise_as_llm_error() -> Generator[None]:
    """Turn whatever a provider raises into an `LlmError`; a broken reply counts as a failure.

    Raises:
        LlmError: of the kind that fits; chained.
    """
    try:
        yield
    except LlmError:
        raise
    except AgentCoreError as error:
        raise llm_error_from(error) from error
    except TimeoutError as error:
        raise RequestTimeoutError(f"the provider gave no answer in time: {error}") from error
    except Exception as error:
        is_connection = isinstance(error, OSError | EOFError)
        what = "the connection was lost" if is_connection else "the reply broke off"
        message = f"{what}: {type(error).__name__}: {error}"
        raise StreamBrokenError(message, retryable=is_connection) from error


# --- tools ----------------------------------------------------------------------------------------


class ToolError(_FamilyError, CoreToolError):
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


# --- memory and templates -------------------------------------------------------------------------


class MemoryError(_FamilyError, StorageError, code=ErrorCode.STORAGE_ERROR):  # noqa: A001 - the toolkit's own
    """Memory failed."""

    NotFound: ClassVar[type["MemoryNotFoundError"]]
    Storage: ClassVar[type["MemoryStorageError"]]
    Invalid: ClassVar[type["InvalidMemoryError"]]

    def __init__(self, message: str) -> None:
        super().__init__(self.default_code, message, self.recoverable)


class MemoryNotFoundError(
    MemoryError, kind="NotFound", code=ErrorCode.MEMORY_RECALL_FAILED, recoverable=True
):
    """There is nothing with that id."""


class MemoryStorageError(MemoryError, kind="Storage"):
    """The store cannot be read or written."""


class InvalidMemoryError(MemoryError, kind="Invalid", code=ErrorCode.VALIDATION_ERROR):
    """A name or a value cannot be stored as it is."""


@contextmanager
def raise_as_memory_error() -> Generator[None]:
    """Turn whatever a store of the application's own raises into a `MemoryError`.

    Raises:
        MemoryError: `Storage`; chained.
    """
    try:
        yield
    except AgentCoreError:
        raise
    except Exception as error:
        message = f"the memory store failed: {type(error).__name__}: {error}"
        raise MemoryStorageError(message) from error


class PromptError(AgentCoreError):
    """A template or a prompt cannot be used.

    `details` has the place: `template`, `line`, and `variable` or `partial` if one is missing.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(ErrorCode.VALIDATION_ERROR, message, details=details)


class PromptDepthError(PromptError):
    """Blocks of a template, or templates that include one another, are nested too deeply."""


# --- agents ---------------------------------------------------------------------------------------


class AgentError(_FamilyError):
    """An agent could not do what it was asked to.

    Args:
        failure: what happened, or the error of a part: then it is `source` and the cause.
    """

    Llm: ClassVar[type["AgentLlmError"]]
    Tool: ClassVar[type["AgentToolError"]]
    Memory: ClassVar[type["AgentMemoryError"]]
    PlanParse: ClassVar[type["PlanParseError"]]
    HookBlocked: ClassVar[type["HookBlockedError"]]
    LimitExceeded: ClassVar[type["LimitExceededError"]]
    Config: ClassVar[type["AgentConfigError"]]
    Other: ClassVar[type["OtherAgentError"]]

    def __init__(self, failure: str | LlmError | ToolError | MemoryError) -> None:
        if isinstance(failure, str):
            super().__init__(self.default_code, failure)
            self.source = None
        else:
            super().__init__(failure.code, failure.message, failure.retryable, failure.details)
            self.source = self.__cause__ = failure

    def is_recoverable(self) -> bool:
        """True if the failed part says that a retry may succeed; False if no part has failed."""
        return self.source is not None and self.source.is_recoverable()


class AgentLlmError(AgentError, kind="Llm"):
    """A model call failed."""


class AgentToolError(AgentError, kind="Tool"):
    """A tool failed outside of a turn."""


class AgentMemoryError(AgentError, kind="Memory"):
    """A store failed."""


class PlanParseError(AgentError, kind="PlanParse", code=ErrorCode.SCHEMA_ERROR):
    """The model's answer is not a plan; the message gives the reason."""


class HookBlockedError(AgentError, kind="HookBlocked", code=ErrorCode.PERMISSION_DENIED):
    """A hook blocked it, or a guard stopped it (`guard_stopped`)."""


class LimitExceededError(AgentError, kind="LimitExceeded", code=ErrorCode.MAX_TURNS):
    """A limit of `AgentConfig` or of the turn's own options is reached."""


class AgentConfigError(AgentError, kind="Config", code=ErrorCode.CONFIG_ERROR):
    """Something is missing, or does not fit together."""


class OtherAgentError(AgentError, kind="Other"):
    """A failure of no other kind."""


_KINDS: Mapping[ErrorCode, type[AgentError]] = MappingProxyType(
    {
        ErrorCode.MAX_TURNS: LimitExceededError,
        ErrorCode.BUDGET_EXCEEDED: LimitExceededError,
        ErrorCode.GUARD_STOPPED: HookBlockedError,
    }
)
"""Kinds of `AgentError` by the code of a failed model call; any other code is `AgentError.Llm`."""


@contextmanager
def raise_as_agent_error() -> Generator[None]:
    """Raise failures of the parts as the agent's, each with its cause."""
    try:
        yield
    except AgentError:
        raise
    except RequestBlockedError as error:
        raise HookBlockedError(error.message) from error
    except LlmError as error:
        raise _KINDS.get(error.code, AgentLlmError)(error) from error
    except ToolError as error:
        raise AgentToolError(error) from error
    except MemoryError as error:
        raise AgentMemoryError(error) from error
    except AgentCoreError as error:
        is_config = error.code in {ErrorCode.VALIDATION_ERROR, ErrorCode.CONFIG_ERROR}
        kind = AgentConfigError if is_config else OtherAgentError
        raise kind(error.message).with_details_of(error) from error

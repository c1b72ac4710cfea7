"""The kinds of failed model calls; `LlmError.RateLimit` and so on name them."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar

from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, ProviderError
from agent_core.types import ErrorPayload


class LlmError(ProviderError):
    """A model call failed. `retryable` means that the same call may succeed later."""

    Authentication: ClassVar[type["AuthenticationError"]]
    RateLimit: ClassVar[type["RateLimitError"]]
    Request: ClassVar[type["RequestError"]]
    Timeout: ClassVar[type["RequestTimeoutError"]]
    Stream: ClassVar[type["StreamBrokenError"]]
    ContextLength: ClassVar[type["ContextLengthError"]]
    Other: ClassVar[type["OtherLlmError"]]

    default_code: ClassVar[ErrorCode] = ErrorCode.PROVIDER_ERROR

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(self.default_code, message, retryable)

    def is_recoverable(self) -> bool:
        """Whether the application may simply go on: rate limit, timeout, stream."""
        return isinstance(self, RateLimitError | RequestTimeoutError | StreamBrokenError)


class AuthenticationError(LlmError):
    """The service refuses the key, or the key is missing."""

    default_code = ErrorCode.PROVIDER_AUTH_FAILED


class RateLimitError(LlmError):
    """Too many calls.

    Args:
        message: the explanation of the service.
        retry_after_s: how long it asked to wait, in seconds.
    """

    default_code = ErrorCode.PROVIDER_RATE_LIMITED

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message, retryable=True)
        self.retry_after_s = retry_after_s


class RequestError(LlmError):
    """The service refused the request with an HTTP status."""

    def __init__(self, message: str, *, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message, retryable=status >= 500)
        self.status = status
        self.retry_after_s = retry_after_s


class RequestTimeoutError(LlmError):
    """The service did not answer in time."""

    default_code = ErrorCode.PROVIDER_TIMEOUT

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message, retryable=retryable)


class StreamBrokenError(LlmError):
    """The connection was lost, or the answer ended before its end."""


class ContextLengthError(LlmError):
    """The prompt does not fit the model's context window."""

    default_code = ErrorCode.PROMPT_TOO_LONG


class OtherLlmError(LlmError):
    """A failure of no other kind."""


class ToolTurnLimitError(OtherLlmError):
    """The model called tools again after the last round it was allowed."""

    default_code = ErrorCode.MAX_TURNS

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the model still calls tools after {limit} rounds of them; raise max_tool_turns if it"
            " needs more"
        )
        self.limit = limit


class RequestBlockedError(OtherLlmError):
    """A `PRE_REQUEST` hook stopped the call before anything was sent."""

    default_code = ErrorCode.PERMISSION_DENIED


LlmError.Authentication = AuthenticationError
LlmError.RateLimit = RateLimitError
LlmError.Request = RequestError
LlmError.Timeout = RequestTimeoutError
LlmError.Stream = StreamBrokenError
LlmError.ContextLength = ContextLengthError
LlmError.Other = OtherLlmError


_PLAIN_KINDS: Mapping[ErrorCode, type[LlmError]] = MappingProxyType(
    {
        ErrorCode.PROVIDER_AUTH_FAILED: AuthenticationError,
        ErrorCode.PROVIDER_TIMEOUT: RequestTimeoutError,
        ErrorCode.PROMPT_TOO_LONG: ContextLengthError,
    }
)


def from_payload(error: ErrorPayload) -> LlmError:
    """The kind of error that an adapter's `ModelFailed`, or the failure of a run, is."""
    status = error.details.get("status")
    retry_after_s = error.details.get("retry_after_s")
    if error.code in _PLAIN_KINDS:
        return _PLAIN_KINDS[error.code](error.message)
    if error.code is ErrorCode.PROVIDER_RATE_LIMITED:
        return RateLimitError(error.message, retry_after_s=retry_after_s)
    if isinstance(status, int):
        return RequestError(error.message, status=status, retry_after_s=retry_after_s)
    if error.retryable:
        return StreamBrokenError(error.message, retryable=True)
    return OtherLlmError(error.message)


def from_core(error: AgentCoreError) -> LlmError:
    """The kind of error that an exception of the engine is; chain it with `from`."""
    if isinstance(error, LlmError):
        return error
    if isinstance(error, ConfigError) and "variable" in error.details:
        return AuthenticationError(error.message)
    return OtherLlmError(error.message)


@contextmanager
def provider_errors() -> Generator[None]:
    """Turn whatever a provider raises into an `LlmError`: a reply that broke off is no reply.

    Raises:
        LlmError: of the kind that fits; chained.
    """
    try:
        yield
    except AgentCoreError as error:
        known = from_core(error)
        raise known from (None if known is error else error)
    except TimeoutError as error:
        raise RequestTimeoutError(f"the provider gave no answer in time: {error}") from error
    except Exception as error:
        is_connection = isinstance(error, OSError | EOFError)
        what = "the connection was lost" if is_connection else "the reply broke off"
        message = f"{what}: {type(error).__name__}: {error}"
        raise StreamBrokenError(message, retryable=is_connection) from error

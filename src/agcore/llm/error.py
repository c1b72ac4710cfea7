"""The errors of model calls, by kind."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

from agcore.errors import FamilyError
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, ProviderError
from agent_core.types import ErrorPayload


class LlmError(FamilyError, ProviderError, code=ErrorCode.PROVIDER_ERROR):
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
    """The connection was lost, or the answer is incomplete."""


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
            return kind(error.message).with_details_of(error)
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
        return AuthenticationError(error.message).with_details_of(error)
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

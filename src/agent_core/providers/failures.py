"""Failures of a model call: what they are called, and whether another attempt can help."""

from collections.abc import Mapping
from typing import Any

from agent_core.errors import AgentCoreError, ErrorCode, ProviderError
from agent_core.types import ErrorPayload


class CallError(ProviderError):
    """One attempt failed; `retryable` says whether the next one may succeed.

    Args:
        retry_after_s: how long the service asked to be left alone, in seconds.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(code, message, retryable, details)
        self.retry_after_s = retry_after_s


def error_payload(error: AgentCoreError) -> ErrorPayload:
    """The error as data. Every kind of provider error is a `ProviderError` to the outside."""
    kind = "ProviderError" if isinstance(error, ProviderError) else type(error).__name__
    return ErrorPayload(
        type=kind,
        code=error.code,
        message=error.message,
        retryable=error.retryable,
        details=error.details,
    )

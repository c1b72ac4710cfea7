"""Retries failed calls for adapters that do not do so themselves."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import AgentCoreError
from agent_core.providers.adapter_faults import open_stream
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.failures import CallError, pause_before_retry_s
from agent_core.types import (
    ErrorPayload,
    ModelEvent,
    ModelFailed,
    ModelReasoningDelta,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    ToolCallDelta,
)

_PIECES = (ModelTextDelta, ModelReasoningDelta, ToolCallDelta)
_LONGEST_S = 1e9
"""A longer pause, which no policy waits for, may be too large a number for a float."""


def with_retries(
    adapter: ProviderAdapter, model: ModelConfig, *, maker: ProviderAdapter | None = None
) -> ProviderAdapter:
    """Return the adapter with retries, unless it has its own.

    The policy is `[model.retry]`; if that is not set, the adapter's attribute `retry`.

    Args:
        adapter: makes the calls.
        model: the model that is called.
        maker: the wrapped adapter whose attributes decide, if it is another one.
    """
    maker = maker or adapter
    if getattr(maker, "retries_itself", False):
        return adapter
    policy, own = model.retry, getattr(maker, "retry", None)
    if not policy.model_fields_set and isinstance(own, RetryConfig):
        policy = own
    return RetryingAdapter(adapter, policy)


class RetryingAdapter:
    """An adapter that retries failed calls, as the HTTP adapters do.

    A call is retried if its failure is `retryable` and nothing of the reply has come. The pause is
    never shorter than `retry_after_s` in the failure's details.

    Args:
        adapter: the wrapped adapter.
        policy: number of attempts, and the pauses between them.
        is_whole: leave the pieces of a reply out, so that one that breaks off can be repeated.
    """

    def __init__(
        self, adapter: ProviderAdapter, policy: RetryConfig, *, is_whole: bool = False
    ) -> None:
        self._adapter = adapter
        self._policy = policy
        self._left_out = _PIECES if is_whole else ()

    async def close(self) -> None:
        """See `ProviderAdapter.close`."""
        await self._adapter.close()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `ProviderAdapter.stream`."""
        attempt = 0
        has_started = is_final = False
        while True:
            attempt += 1
            failed: ModelFailed | None = None
            raised: AgentCoreError | None = None
            try:
                async with open_stream(self._adapter, request) as events:
                    async for event in events:
                        if isinstance(event, ModelFailed) and not is_final:
                            failed = event
                            break
                        is_repeated = isinstance(event, ModelStarted) and has_started
                        if is_repeated or isinstance(event, self._left_out):
                            continue
                        # An adapter that reports retries has made them; what has come is not
                        # repeated.
                        has_started = True
                        is_final = is_final or not isinstance(event, ModelStarted)
                        yield event
            except AgentCoreError as error:
                if is_final:
                    raise
                raised, failed = error, ModelFailed(error=ErrorPayload.of(error))
            if failed is None:
                return
            pause_s = self._pause_after(failed.error, attempt)
            if pause_s is None:
                if raised is not None:
                    raise raised
                yield failed
                return
            yield ModelRetry(attempt=attempt, delay_ms=round(pause_s * 1000), error=failed.error)
            await asyncio.sleep(pause_s)

    def _pause_after(self, error: ErrorPayload, attempt: int) -> float | None:
        asked: Any = error.details.get("retry_after_s")
        is_number = isinstance(asked, int | float) and not isinstance(asked, bool)
        is_usable = is_number and asked >= 0
        failure = CallError(
            error.code,
            error.message,
            error.retryable,
            retry_after_s=float(min(asked, _LONGEST_S)) if is_usable else None,
        )
        return pause_before_retry_s(self._policy, attempt, failure)

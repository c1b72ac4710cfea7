"""Several models behind one adapter: when one cannot answer, the next one is used."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers.adapter_faults import open_stream
from agent_core.providers.base import ProviderAdapter
from agent_core.types import (
    ErrorPayload,
    ModelEvent,
    ModelFailed,
    ModelRequest,
    ModelRetry,
    ModelStarted,
)


def is_passing(error: ErrorPayload) -> bool:
    """Return whether a model may answer later: it is unreachable, overloaded or out of quota."""
    return error.retryable or error.details.get("quota_used_up") is True


class FallbackProvider:
    """The adapter of one run: its model, and the fallback models.

    A model that fails before the first delta, by default because it is unreachable, overloaded or
    out of quota, is replaced by the next one from then on.

    Args:
        models: the models and their adapters, which are not closed here; the first is used first.
            The `provider_tools` of another one are those that it can take over.
        on_switch: called with the model used from now on; returns whether the request fits it.
        hands_over: returns whether the next model is used after this failure.
    """

    def __init__(
        self,
        models: Sequence[tuple[ModelConfig, ProviderAdapter]],
        on_switch: Callable[[ModelConfig], bool],
        hands_over: Callable[[ErrorPayload], bool] = is_passing,
    ) -> None:
        self._models = models
        self._hands_over = hands_over
        self._on_switch = on_switch
        self._current = 0

    async def close(self) -> None:
        """See `ProviderAdapter.close`; there is nothing to release."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `ProviderAdapter.stream`; each model used begins with `ModelStarted`."""
        made = before = 0  # attempts, of all models
        while True:
            model, adapter = self._models[self._current]
            asked = _addressed(request, model) if self._current else request
            failure, begun = None, False
            async with aclosing(_events(adapter, asked)) as events:
                async for event in events:
                    has_failed = isinstance(event, ModelFailed)
                    if has_failed and not begun and self._has_next_for(event.error):
                        failure = event.error
                        break
                    if isinstance(event, ModelRetry):
                        made = before + event.attempt
                        yield event.model_copy(update={"attempt": made})
                        continue
                    begun = begun or not isinstance(event, ModelStarted)
                    yield event
            if failure is None:
                return
            made = before = made + 1
            self._current += 1
            model = self._models[self._current][0]
            named = {"provider": model.provider, "model": model.name}
            lost = [each for each in request.provider_tools if each not in model.provider_tools]
            fallback = {**named, "without": lost} if lost else named
            details = {**failure.details, "fallback": fallback}
            error = failure.model_copy(update={"details": details})
            yield ModelRetry(attempt=made, delay_ms=0, error=error)
            if not self._on_switch(model):
                too_long = ProviderError(
                    ErrorCode.PROMPT_TOO_LONG,
                    f"the request does not fit into the {model.window} tokens of"
                    f" {model.name}, which answers instead of {request.model}",
                    details=named,
                )
                yield ModelFailed(error=ErrorPayload.of(too_long))
                return

    def _has_next_for(self, error: ErrorPayload) -> bool:
        return self._current + 1 < len(self._models) and self._hands_over(error)


def _addressed(request: ModelRequest, model: ModelConfig) -> ModelRequest:
    """Adapt the request to this model: it may have been made for the first one."""
    most = min(request.max_output_tokens or model.max_output_tokens, model.max_output_tokens)
    update = {
        "model": model.name,
        "temperature": model.temperature,
        "reasoning": model.reasoning,
        "max_output_tokens": most,
        "provider_tools": [each for each in request.provider_tools if each in model.provider_tools],
    }
    return request.model_copy(update=update)


async def _events(adapter: ProviderAdapter, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
    """Yield the events of one model; an error raised by its adapter becomes an event."""
    try:
        async with open_stream(adapter, request) as events:
            async for event in events:
                yield event
    except ProviderError as error:
        yield ModelFailed(error=ErrorPayload.of(error))

"""What core expects of a provider, and what a provider may expect of core."""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from agent_core.config.models import ModelConfig
from agent_core.types import ModelEvent, ModelRequest


class ProviderAdapter(Protocol):
    """One model service behind the one protocol. Streaming is the only path.

    An adapter belongs to one event loop and may serve many streams at once.
    """

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Make one model call.

        Yields `ModelStarted` before anything is sent, then deltas and retries, and exactly one
        `ModelCompleted` or `ModelFailed` last. A failure of the service is an event, never an
        exception; closing the iterator closes the connection at once.

        Raises:
            ConfigError: the environment variable that holds the key is missing.
            ProviderError: `unsupported_capability`, found before anything was sent.
        """
        ...

    async def close(self) -> None:
        """Give back connections and memory. Harmless when called again."""
        ...


ProviderFactory = Callable[[ModelConfig], ProviderAdapter]
"""Makes an adapter from a resolved model configuration."""

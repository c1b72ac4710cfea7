"""What core expects of a provider, and what a provider may expect of core."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


@dataclass(frozen=True, slots=True)
class RawExchange:
    """One attempt of a model call as it went over the wire, without the headers.

    `status` is None when no answer came; `response` is cut at 4 MB.
    """

    provider: str
    model: str
    url: str
    request: bytes
    status: int | None
    response: bytes


RawExchangeSink = Callable[[ModelRequest, RawExchange], Awaitable[None]]
"""Takes the raw traffic of a call, for debugging; whoever keeps it redacts it."""


@runtime_checkable
class Traceable(Protocol):
    """An adapter whose raw traffic can be looked at."""

    def trace(self, sink: RawExchangeSink | None) -> None:
        """Give `sink` every attempt once it is over, or stop doing so.

        A call that is cancelled is not reported.
        """
        ...

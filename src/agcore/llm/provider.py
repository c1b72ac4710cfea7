"""What the toolkit expects of a model, and a place to keep several."""

from collections.abc import AsyncIterator
from typing import Protocol

from agcore.llm.errors import OtherLlmError
from agcore.llm.types import ChatChunk, ChatRequest, ChatResponse


class LlmProvider(Protocol):
    """A model. May be shared by any number of sessions of one event loop."""

    async def chat(self, request: ChatRequest) -> ChatResponse:
        """Get one reply.

        Raises:
            LlmError: the call failed; `retryable` says whether it is worth another try.
        """
        ...

    def stream(self, request: ChatRequest) -> AsyncIterator[ChatChunk | ChatResponse]:
        """Get one reply piece by piece.

        Yields chunks; whoever reads joins them. A provider that has the whole reply in the end
        yields it last, and then it counts instead of the joined chunks.

        Raises:
            LlmError: the call failed, maybe after some chunks.
        """
        ...


class ProviderRegistry:
    """Providers by name. The first one registered is the default until another is chosen."""

    def __init__(self) -> None:
        self._providers: dict[str, LlmProvider] = {}
        self._default: str | None = None

    def register(self, name: str, provider: LlmProvider, *, default: bool = False) -> None:
        """Add a provider.

        Raises:
            LlmError: the name is taken.
        """
        if name in self._providers:
            raise OtherLlmError(f"there is already a provider named {name!r}; choose another name")
        self._providers[name] = provider
        if default or self._default is None:
            self._default = name

    def get(self, name: str) -> LlmProvider | None:
        """The provider of that name."""
        return self._providers.get(name)

    def default(self) -> LlmProvider | None:
        """The provider to use when nobody names one; None while there is none at all."""
        return self._providers[self._default] if self._default is not None else None

    def names(self) -> list[str]:
        """Every name, in the order of registration."""
        return list(self._providers)

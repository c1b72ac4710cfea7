"""The engine's adapters as providers of the toolkit: OpenAI, Anthropic, Ollama, local, scripted."""

import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Self

from agcore.llm.errors import StreamBrokenError, from_core, from_payload
from agcore.llm.types import (
    ChatChunk,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChatRole,
    FinishReason,
    Usage,
)
from agent_core.config.models import ModelConfig
from agent_core.errors import AgentCoreError
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.registry import ProviderRegistry as AdapterRegistry
from agent_core.providers.requests import IdentityCache
from agent_core.types import (
    ContentBlock,
    ModelCompleted,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelTextDelta,
    Role,
    StopReason,
    SystemBlock,
)

_SYSTEM = frozenset({ChatRole.SYSTEM, ChatRole.DEVELOPER})


class AdapterProvider:
    """A provider that speaks through one of the engine's adapters.

    System and developer messages become the system prompt, wherever they stand. A message's name
    is for people and for templates; these services are not sent one.

    Args:
        adapter: any `agent_core` provider adapter; closed by `close`.
        model: the model of requests that name none.
        key_env: the environment variable that holds the adapter's key, if it takes one.
    """

    def __init__(self, adapter: ProviderAdapter, model: str, *, key_env: str | None = None) -> None:
        self._adapter = adapter
        self._key_env = key_env
        self._model = model
        self._messages: IdentityCache[ChatMessage, ModelMessage] = IdentityCache()

    @classmethod
    def open(cls, config: ModelConfig, registry: AdapterRegistry | None = None) -> Self:
        """A provider for a model configuration; nothing is connected yet.

        The adapter tries once: retries belong to `LlmCycle`, which has hooks for them.

        Raises:
            LlmError: the configuration names no known provider, or does not suit it.
        """
        once = config.retry.model_copy(update={"max_attempts": 1})
        try:
            adapter = (registry or AdapterRegistry()).create(
                config.model_copy(update={"retry": once})
            )
        except AgentCoreError as error:
            raise from_core(error) from error
        return cls(adapter, config.name, key_env=config.api_key_env)

    def secrets(self) -> Mapping[str, str]:
        """The key, by the name of its variable: what must not get into any text."""
        key = os.environ.get(self._key_env) if self._key_env else None
        return {self._key_env: key} if self._key_env and key else {}

    async def chat(self, request: ChatRequest) -> ChatResponse:
        """See `LlmProvider.chat`."""
        async with aclosing(self.stream(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ChatResponse):
                    return piece
        raise StreamBrokenError(f"the stream of {self._model} ended without a reply")

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk | ChatResponse]:
        """See `LlmProvider.stream`; the whole reply comes last."""
        events = self._adapter.stream(self._request(request))
        try:
            async for event in events:
                match event:
                    case ModelTextDelta(text=text):
                        yield ChatChunk(text=text)
                    case ModelCompleted():
                        yield response_of(event)
                    case ModelFailed(error=error):
                        raise from_payload(error)
                    case _:
                        pass
        except AgentCoreError as error:
            known = from_core(error)
            raise known from (None if known is error else error)
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()  # the connection closes now, not when it is collected

    async def close(self) -> None:
        """Give back connections and memory. Harmless when called again."""
        await self._adapter.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _request(self, request: ChatRequest) -> ModelRequest:
        said = [message for message in request.messages if message.role not in _SYSTEM]
        return ModelRequest(
            model=request.model or self._model,
            system=list(_system_blocks(request.messages)),
            messages=list(self._conversation(said)),
            tools=list(request.tools),
            tool_choice=request.tool_choice,
            temperature=request.temperature,
            max_output_tokens=request.max_output_tokens,
            stop=list(request.stop),
            provider_options=request.provider_options,
        )

    def _conversation(self, messages: Sequence[ChatMessage]) -> Iterator[ModelMessage]:
        """The messages; answers that stand in a row are one message to the engine."""
        for role, group in groupby(messages, key=lambda message: message.role):
            together = list(group)
            if role is ChatRole.TOOL and len(together) > 1:
                content = [block for message in together for block in message.content]
                yield ModelMessage(role=Role.TOOL, content=content)
            else:
                yield from self._messages.get_all(together, _model_message)


def response_of(completed: ModelCompleted) -> ChatResponse:
    """The engine's finished reply as ours.

    Raises:
        LlmError: `Stream`; the model gave up in the middle of it.
    """
    if completed.stop_reason is StopReason.ERROR:
        reason = completed.raw_stop_reason or "no reason given"
        raise StreamBrokenError(f"the model gave up in the middle of its reply ({reason})")
    content: list[ContentBlock] = completed.content
    return ChatResponse(
        message=ChatMessage(role=ChatRole.ASSISTANT, content=content),
        usage=Usage.of(completed.usage),
        stop_reason=FinishReason.of(completed.stop_reason),
    )


def _model_message(message: ChatMessage) -> ModelMessage:
    return ModelMessage(role=Role(message.role.value), content=message.content)


def _system_blocks(messages: Sequence[ChatMessage]) -> Iterator[SystemBlock]:
    for number, message in enumerate(m for m in messages if m.role in _SYSTEM):
        yield SystemBlock(
            block_id=f"{message.role}.{number}", source="agcore", content=message.text
        )

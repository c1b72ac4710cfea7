"""Models as the toolkit calls them: the protocol, the engine's adapters behind it, and a mock."""

import os
from abc import abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from itertools import groupby
from typing import Any, Protocol, Self, runtime_checkable

from agcore.llm.error import (
    LlmError,
    OtherLlmError,
    StreamBrokenError,
    llm_error_from,
    llm_error_from_payload,
)
from agcore.llm.history import INSTRUCTION_ROLES
from agcore.llm.stream import ChatChunk, ToolCallChunk
from agcore.llm.types import (
    MODEL_SETTINGS,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChatRole,
    FinishReason,
    ModelSettings,
)
from agent_core.aio import TaskStream
from agent_core.api.arguments import checks_arguments
from agent_core.config.models import ModelConfig
from agent_core.errors import AgentCoreError, ArgumentError
from agent_core.loop.model_turn import require_native
from agent_core.providers.base import ProviderAdapter, ProviderRegistry as AdapterRegistry
from agent_core.providers.jsontext import dump_text
from agent_core.providers.requests import IdentityCache
from agent_core.providers.scripted import pieces
from agent_core.text import not_a_list
from agent_core.types import (
    ModelCompleted,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelStarted,
    ModelTextDelta,
    Role,
    StopReason,
    SystemBlock,
    ToolCall,
    Usage,
    new_id,
)

INSTRUCTED = "agcore.messages"
"""The source of system blocks that are messages of the conversation."""


class LlmProvider(Protocol):
    """A model. May be shared by any number of sessions of one event loop."""

    @abstractmethod
    async def chat(self, request: ChatRequest) -> ChatResponse:
        """Get one reply.

        Raises:
            LlmError: the call failed; `retryable` if it is worth another try.
        """
        ...

    async def stream(self, request: ChatRequest) -> AsyncIterator[ChatChunk | ChatResponse]:
        """Get one reply piece by piece; by default the whole reply of `chat` at once.

        Yields chunks, which the reader joins. A provider that has the whole reply in the end
        yields it last, and then it counts instead of the joined chunks.

        Raises:
            LlmError: the call failed, maybe after some chunks.
        """
        reply = await self.chat(request)
        yield ChatChunk(text=reply.text)
        yield reply


@runtime_checkable
class SecretSource(Protocol):
    """A provider that names the secrets of its configuration; `AdapterProvider` is one."""

    def secrets(self) -> Mapping[str, str]:
        """Return each secret by the name that is shown in its place."""
        ...


@checks_arguments(constructor=True)
class ProviderRegistry:
    """Providers by name. The first one registered is the default until another is chosen."""

    def __init__(self) -> None:
        self._providers: dict[str, LlmProvider] = {}
        self._default: str | None = None

    def register(self, name: str, provider: LlmProvider, *, default: bool = False) -> None:
        """Add a provider.

        Raises:
            LlmError: the name is taken or empty.
        """
        if not name.strip():
            raise OtherLlmError("the name of a provider is empty; give it one")
        if name in self._providers:
            raise OtherLlmError(f"there is already a provider named {name!r}; choose another name")
        self._providers[name] = provider
        if default or self._default is None:
            self._default = name

    def get(self, name: str) -> LlmProvider | None:
        """Return the provider of that name."""
        return self._providers.get(name)

    def default(self) -> LlmProvider | None:
        """Return the default provider; None if none is registered."""
        return self._providers[self._default] if self._default is not None else None

    def names(self) -> list[str]:
        """Return every name, in the order of registration."""
        return list(self._providers)


class AdapterProvider:
    """A provider that calls one of the engine's adapters.

    System and developer messages become the system prompt, in any position. A message's name
    is not sent.

    Args:
        adapter: any `agent_core` provider adapter; closed by `close`.
        model: the model of requests that name none.
        key_env: the environment variable that holds the adapter's key, if it takes one.
        config: the adapter's model configuration, which prices depend on.
    """

    def __init__(
        self,
        adapter: ProviderAdapter,
        model: str,
        *,
        key_env: str | None = None,
        config: ModelConfig | None = None,
    ) -> None:
        self.config = config
        self.adapter = adapter
        self._key_env = key_env
        self.model = model
        self._messages: IdentityCache[ChatMessage, ModelMessage] = IdentityCache()

    @classmethod
    def open(cls, config: ModelConfig, registry: AdapterRegistry | None = None) -> Self:
        """Build a provider for a model configuration, without connecting it.

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
            raise llm_error_from(error) from error
        return cls(adapter, config.name, key_env=config.api_key_env, config=config)

    def secrets(self) -> Mapping[str, str]:
        """Return the API key by the name of its variable, so that it can be redacted."""
        key = os.environ.get(self._key_env) if self._key_env else None
        return {self._key_env: key} if self._key_env and key else {}

    async def chat(self, request: ChatRequest) -> ChatResponse:
        """See `LlmProvider.chat`."""
        async with aclosing(self._pieces(request)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, ChatResponse):
                    return chunk
        raise StreamBrokenError(f"the stream of {self.model} ended without a reply")

    def stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk | ChatResponse]:
        """See `LlmProvider.stream`; the whole reply comes last.

        Leaving the stream early, in any way, stops the call.
        """
        return TaskStream(self._pieces(request))

    async def _pieces(self, request: ChatRequest) -> AsyncGenerator[ChatChunk | ChatResponse]:
        sent = model_request(request, self._messages, model=self.model)
        events = self.adapter.stream(sent)
        try:
            async for event in events:
                match event:
                    case ModelStarted():
                        if sent.output is not None:
                            require_native(sent.output, event)
                    case ModelTextDelta(text=text):
                        yield ChatChunk(text=text)
                    case ModelCompleted():
                        yield response_of(event)
                    case ModelFailed(error=error):
                        raise llm_error_from_payload(error)
                    case _:
                        pass
        except AgentCoreError as error:
            known = llm_error_from(error)
            raise known from (None if known is error else error)
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()  # the connection closes now, not when it is collected

    async def close(self) -> None:
        """Give back connections and memory. Harmless when called again."""
        await self.adapter.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def model_request(
    request: ChatRequest, messages_of: IdentityCache[ChatMessage, ModelMessage], *, model: str
) -> ModelRequest:
    """Convert a request to the engine's; system and developer messages become its system prompt."""
    messages: list[ModelMessage] = []
    turns = (message for message in request.messages if message.role not in INSTRUCTION_ROLES)
    for role, group in groupby(turns, key=lambda message: message.role):
        together = list(group)
        if role is ChatRole.TOOL and len(together) > 1:  # one message to the engine
            content = [block for message in together for block in message.content]
            messages.append(ModelMessage(role=Role.TOOL, content=content))
        else:
            messages += messages_of.get_all(
                together, lambda m: ModelMessage(role=Role(m.role.value), content=m.content)
            )
    return ModelRequest(
        **request_settings(request, model),
        system=instruction_blocks(request.messages),
        messages=messages,
        tools=list(request.tools),
        output=request.output,
    )


def system_messages(sent: ModelRequest) -> list[ChatMessage]:
    """Return the system prompt of a request, without what were messages of the conversation."""
    own = (block for block in sent.system if block.source != INSTRUCTED)
    return [ChatMessage.system_text(block.content) for block in own]


def instruction_blocks(messages: Iterable[ChatMessage]) -> list[SystemBlock]:
    """Return the system and developer messages as blocks of the engine's system prompt."""
    instructions = (message for message in messages if message.role in INSTRUCTION_ROLES)
    return [
        SystemBlock(block_id=f"{message.role}.{number}", source=INSTRUCTED, content=message.text)
        for number, message in enumerate(instructions)
    ]


def request_settings(settings: ModelSettings, model: str) -> dict[str, Any]:
    """Return settings as fields of the engine's request; `model` is the provider's own."""
    return settings.by_name() | {"model": settings.model or model, "stop": list(settings.stop)}


def chat_request(
    sent: ModelRequest, messages: Sequence[ChatMessage], *, model: str | None
) -> ChatRequest:
    """Convert a request of the engine, whose messages are given, to the toolkit's."""
    given: dict[str, Any] = {name: getattr(sent, name) for name in MODEL_SETTINGS}
    given["model"] = model
    return ChatRequest(**given, messages=messages, tools=sent.tools, output=sent.output)


MockReply = str | ChatResponse | LlmError
MockAnswer = Callable[[ChatRequest], MockReply]


class MockProvider:
    """Plays a script: each call takes the next reply. For tests, examples and trying offline.

    Args:
        replies: text, whole responses, errors to raise, or functions of the request. A function
            instead of a list answers every request.
        chunks: number of pieces that a streamed text, and the arguments of a call, are cut into.
    """

    def __init__(
        self, replies: Iterable[MockReply | MockAnswer] | MockAnswer = (), *, chunks: int = 3
    ) -> None:
        if not callable(replies) and (
            isinstance(replies, str) or not isinstance(replies, Iterable)  # pyright: ignore[reportUnnecessaryIsInstance] - a program's
        ):
            raise ArgumentError(not_a_list("replies", replies), "replies")
        self.requests: list[ChatRequest] = []
        """Every request so far, oldest first."""
        self._replies: Iterator[MockReply | MockAnswer] = (
            iter(lambda: replies, None) if callable(replies) else iter(list(replies))
        )
        self._chunks = chunks

    async def chat(self, request: ChatRequest) -> ChatResponse:
        """Return the next reply of the script.

        Raises:
            LlmError: the next reply of the script is an error, or there is no reply left.
        """
        self.requests.append(request)
        reply = next(self._replies, None)
        if callable(reply):
            reply = reply(request)
        if reply is None:
            message = f"the mock's script is used up; this is request {len(self.requests)}"
            raise OtherLlmError(message)
        if isinstance(reply, LlmError):
            raise reply
        if isinstance(reply, ChatResponse):
            return reply
        sent = sum(len(message.text.split()) for message in request.messages)
        usage = Usage.from_input_output(sent, len(reply.split()))  # a word is a token here
        return ChatResponse(ChatMessage.assistant_text(reply), usage)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk | ChatResponse]:
        """Yield the next reply of the script, in pieces."""
        response = await MockProvider.chat(self, request)
        for text in pieces(response.text, self._chunks):
            yield ChatChunk(text=text)
        for index, call in enumerate(response.tool_calls):
            yield ChatChunk(tool_calls=[ToolCallChunk(index, call.tool_call_id, call.name)])
            for part in pieces(dump_text(call.arguments), self._chunks):
                yield ChatChunk(tool_calls=[ToolCallChunk(index, arguments=part)])
        yield ChatChunk(
            usage=response.usage, finish_reason=response.stop_reason or FinishReason.STOP
        )


def tool_call_reply(name: str, /, **arguments: Any) -> ChatResponse:
    """Build a reply that consists of one tool call."""
    call = ToolCall(tool_call_id=new_id("call"), name=name, arguments=arguments)
    return ChatResponse(ChatMessage.assistant_text("", [call]), stop_reason=FinishReason.TOOL_CALLS)


def response_of(completed: ModelCompleted) -> ChatResponse:
    """Convert the engine's finished reply to the toolkit's.

    Raises:
        LlmError: `Stream`; the model stopped with an error.
    """
    if completed.stop_reason is StopReason.ERROR:
        reason = completed.raw_stop_reason or "no reason given"
        raise StreamBrokenError(f"the model gave up in the middle of its reply ({reason})")
    message = ChatMessage(role=ChatRole.ASSISTANT, content=completed.content)
    return ChatResponse(message, completed.usage, FinishReason.of(completed.stop_reason))

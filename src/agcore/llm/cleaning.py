"""Keeps configured secrets out of what a cycle sends, remembers and tells."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol, TypeVar, cast, runtime_checkable

from pydantic import BaseModel, TypeAdapter

from agcore.llm.errors import LlmError
from agcore.llm.types import ChatMessage, ChatRequest, ChatResponse
from agent_core.providers.requests import IdentityCache
from agent_core.redaction import Redactor
from agent_core.types import ContentBlock, ReasoningBlock, ToolDefinition, ToolResult

M = TypeVar("M", bound=BaseModel)


@runtime_checkable
class HoldsSecrets(Protocol):
    """A provider that knows which secrets it was configured with; `AdapterProvider` is one."""

    def secrets(self) -> Mapping[str, str]:
        """What is shown in place of each secret, and the secret."""
        ...


class Cleaner:
    """Removes the values that a redactor knows. What has none in it is the same object."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._known = -1
        self._messages: IdentityCache[ChatMessage, ChatMessage | None] = IdentityCache()

    @cached_property
    def _block(self) -> TypeAdapter[ContentBlock]:
        return TypeAdapter(ContentBlock)

    def text(self, text: str) -> str:
        """The text without secrets."""
        return self._redactor.secrets_only(text)

    def messages(self, messages: Iterable[ChatMessage]) -> list[ChatMessage]:
        """The messages without secrets; each is looked at once."""
        given = list(messages)
        if not self._redactor.has_secrets:
            return given
        if self._known != self._redactor.known:  # what was looked at before has to be again
            self._known, self._messages = self._redactor.known, IdentityCache()
        clean = self._messages.get_all(given, self._message)
        return [new or old for old, new in zip(given, clean, strict=True)]

    def request(self, request: ChatRequest) -> ChatRequest:
        """The request without secrets, its tools included."""
        if not self._redactor.has_secrets:
            return request
        tools: Sequence[ToolDefinition] = [_without(tool, self._redactor) for tool in request.tools]
        return replace(request, messages=self.messages(request.messages), tools=tools)

    def response(self, response: ChatResponse) -> ChatResponse:
        """The reply without secrets."""
        (message,) = self.messages([response.message])
        usage = _without(response.usage, self._redactor)
        return replace(response, message=message, usage=usage)

    def results(self, results: Iterable[ToolResult]) -> list[ToolResult]:
        """Answers of tools without secrets."""
        return [_without(result, self._redactor) for result in results]

    def error(self, error: LlmError) -> LlmError:
        """The same error, its words without secrets."""
        error.message = self.text(error.message)
        error.args = (error.message,)
        error.details = self._redactor.payload_secrets_only(error.details)
        return error

    def _message(self, message: ChatMessage) -> ChatMessage | None:
        """The message without secrets; None if there are none in it."""
        blocks = [self._cleaned(block) for block in message.content]
        facts = {"name": message.name, "metadata": message.metadata}
        clean = cast("dict[str, object]", self._redactor.payload_secrets_only(facts))
        is_same = all(new is old for new, old in zip(blocks, message.content, strict=True))
        if is_same and clean is facts:
            return None
        return message.model_copy(update={**clean, "content": blocks})

    def _cleaned(self, block: ContentBlock) -> ContentBlock:
        before = block.model_dump()
        after = self._redactor.payload_secrets_only(before)
        if after is before:
            return block
        if isinstance(block, ReasoningBlock):
            after["signature"] = None  # it was given for other words, and would be refused
        return self._block.validate_python(after)


def _without(model: M, redactor: Redactor) -> M:
    if not redactor.has_secrets:
        return model
    before = model.model_dump()
    after = redactor.payload_secrets_only(before)
    return model if after is before else type(model).model_validate(after)

"""Takes configured secrets out of everything that is sent to a model."""

from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from agent_core.providers.base import ProviderAdapter
from agent_core.providers.requests import IdentityCache
from agent_core.redaction.journal import JournalRedactor
from agent_core.redaction.redactor import Redactor
from agent_core.types import ModelEvent, ModelMessage, ModelRequest, SystemBlock, ToolDefinition

T = TypeVar("T")


class CleanRequests:
    """An adapter whose requests hold no configured secret."""

    def __init__(self, adapter: ProviderAdapter, redactor: Redactor) -> None:
        self._adapter = adapter
        self._cleaner = RequestCleaner(redactor)

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """See `ProviderAdapter.stream`."""
        return self._adapter.stream(self._cleaner.clean(request))

    async def close(self) -> None:
        """See `ProviderAdapter.close`."""
        await self._adapter.close()


class RequestCleaner:
    """Takes configured secrets out of requests, wherever the text came from.

    Stored messages are clean already. System prompts, task boards, tool descriptions and schemas,
    and messages stored before a secret was configured, are made so here. Messages without a
    secret are passed on as the same objects, so that adapters can keep what they made of them.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._journal_redactor = JournalRedactor(redactor)
        self._known = redactor.known
        self._messages: IdentityCache[ModelMessage, ModelMessage | None] = IdentityCache()
        self._tools: IdentityCache[ToolDefinition, ToolDefinition | None] = IdentityCache()

    def clean(self, request: ModelRequest) -> ModelRequest:
        """The request without secrets; the same object while none is configured."""
        if not self._redactor.has_secrets:
            return request
        if self._known != self._redactor.known:  # what was looked at before has to be again
            self._known, self._messages, self._tools = (
                self._redactor.known,
                IdentityCache(),
                IdentityCache(),
            )
        messages = self._messages.get_all(request.messages, self._message)
        tools = self._tools.get_all(request.tools, self._tool)
        update = {
            "system": [self._block(block) for block in request.system],
            "messages": _replaced(request.messages, messages),
            "tools": _replaced(request.tools, tools),
        }
        return request.model_copy(update=update)

    def _block(self, block: SystemBlock) -> SystemBlock:
        content = self._redactor.secrets_only(block.content)
        return block if content is block.content else block.model_copy(update={"content": content})

    def _message(self, message: ModelMessage) -> ModelMessage | None:
        """The message without secrets; None if there are none in it."""
        content = self._journal_redactor.content(message.content)
        if all(new is old for new, old in zip(content, message.content, strict=True)):
            return None
        return message.model_copy(update={"content": content})

    def _tool(self, tool: ToolDefinition) -> ToolDefinition | None:
        told = {"description": tool.description, "input_schema": tool.input_schema}
        clean = self._redactor.payload_secrets_only(told)
        return None if clean is told else tool.model_copy(update=clean)


def _replaced(before: Sequence[T], changed: Sequence[T | None]) -> list[T]:
    return [old if new is None else new for old, new in zip(before, changed, strict=True)]

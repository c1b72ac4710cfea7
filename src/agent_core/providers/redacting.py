"""Keeps configured secrets out of requests."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from agent_core.providers.base import ProviderAdapter
from agent_core.providers.requests import IdentityCache
from agent_core.redaction import Redactor
from agent_core.redaction.redactor import JournalRedactor
from agent_core.types import (
    ModelEvent,
    ModelMessage,
    ModelRequest,
    OutputFormat,
    SystemBlock,
    ToolDefinition,
)

T = TypeVar("T")


class RedactingAdapter:
    """An adapter whose requests hold no configured secret.

    Attributes:
        adapter: the wrapped adapter.
    """

    def __init__(self, adapter: ProviderAdapter, redactor: Redactor) -> None:
        self.adapter = adapter
        self._redactor = redactor
        self._requests = RequestRedactor(redactor)

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """See `ProviderAdapter.stream`."""
        if self._redactor.has_secrets:
            request = self._requests.clean(request)
        return self.adapter.stream(request)

    async def close(self) -> None:
        """See `ProviderAdapter.close`."""
        await self.adapter.close()


class RequestRedactor:
    """Removes configured secrets from requests, whatever the source of the text.

    Stored messages are clean already. System prompts, task boards, tool descriptions and schemas,
    and messages stored before a secret was configured, are cleaned here. Messages without a secret
    are passed on as the same objects, so that adapters can reuse what they derived from them.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._journal_redactor = JournalRedactor(redactor)
        self._known = redactor.known
        self._messages: IdentityCache[ModelMessage, ModelMessage | None] = IdentityCache()
        self._tools: IdentityCache[ToolDefinition, ToolDefinition | None] = IdentityCache()

    def clean(self, request: ModelRequest) -> ModelRequest:
        """Return the request without secrets; the same object while no secret is configured."""
        if not self._redactor.has_secrets:
            return request
        if self._known != self._redactor.known:  # earlier results are no longer valid
            self._known = self._redactor.known
            self._messages, self._tools = IdentityCache(), IdentityCache()
        messages = self._messages.get_all(request.messages, self._message)
        tools = self._tools.get_all(request.tools, self._tool)
        update: dict[str, Any] = {
            "system": [self._block(block) for block in request.system],
            "messages": _replaced(request.messages, messages),
            "tools": _replaced(request.tools, tools),
        }
        if request.output is not None:
            facts = request.output.model_dump()
            clean = self._redactor.payload_secrets_only(facts)
            update["output"] = OutputFormat.model_construct(**clean)
        return request.model_copy(update=update)

    def _block(self, block: SystemBlock) -> SystemBlock:
        content = self._redactor.secrets_only(block.content)
        return block if content is block.content else block.model_copy(update={"content": content})

    def _message(self, message: ModelMessage) -> ModelMessage | None:
        """Return the message without secrets; None if it holds none."""
        content = self._journal_redactor.content(message.content)
        if all(new is old for new, old in zip(content, message.content, strict=True)):
            return None
        return message.model_copy(update={"content": content})

    def _tool(self, tool: ToolDefinition) -> ToolDefinition | None:
        texts = {"description": tool.description, "input_schema": tool.input_schema}
        clean = self._redactor.payload_secrets_only(texts)
        return None if clean is texts else tool.model_copy(update=clean)


def _replaced(before: Sequence[T], changed: Sequence[T | None]) -> list[T]:
    return [old if new is None else new for old, new in zip(before, changed, strict=True)]

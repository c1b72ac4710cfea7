"""Keeps configured secrets out of what a cycle sends and what a conversation stores."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from agcore.llm.errors import LlmError
from agcore.llm.types import ChatMessage, ChatRequest
from agent_core.providers.requests import IdentityCache
from agent_core.redaction import Redactor
from agent_core.redaction.redactor import JournalRedactor
from agent_core.types import ToolDefinition, Usage


@runtime_checkable
class SecretSource(Protocol):
    """A provider that knows which secrets it was configured with; `AdapterProvider` is one."""

    def secrets(self) -> Mapping[str, str]:
        """What is shown in place of each secret, and the secret."""
        ...


class ChatRedactor:
    """Removes the values that a redactor knows. What has none in it is the same object."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._journal_redactor = JournalRedactor(redactor)
        self._known = -1
        self._messages: IdentityCache[ChatMessage, ChatMessage | None] = IdentityCache()

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
        messages = self.messages(request.messages)
        return replace(request, messages=messages, tools=list(map(self._tool, request.tools)))

    def usage(self, usage: Usage) -> Usage:
        """The usage, with what the service reported of it without secrets."""
        raw = self._redactor.payload_secrets_only(usage.raw_usage)
        return usage if raw is usage.raw_usage else usage.model_copy(update={"raw_usage": raw})

    def error(self, error: LlmError) -> LlmError:
        """The same error, its words without secrets."""
        error.message = self._redactor.secrets_only(error.message)
        error.args = (error.message,)
        error.details = self._redactor.payload_secrets_only(error.details)
        return error

    def _message(self, message: ChatMessage) -> ChatMessage | None:
        """The message without secrets; None if there are none in it."""
        content = self._journal_redactor.content(message.content)
        facts = {"name": message.name, "metadata": message.metadata}
        clean = self._redactor.payload_secrets_only(facts)
        is_same = all(new is old for new, old in zip(content, message.content, strict=True))
        if is_same and clean is facts:
            return None
        return message.model_copy(update={**clean, "content": content})

    def _tool(self, tool: ToolDefinition) -> ToolDefinition:
        before = tool.model_dump()
        after = self._redactor.payload_secrets_only(before)
        return tool if after is before else ToolDefinition.model_validate(after)

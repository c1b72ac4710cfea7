"""Build a prompt message by message."""

from collections.abc import Iterable, Sequence
from typing import Self

from agcore.llm import ChatMessage, ChatRole
from agcore.prompt.error import PromptError
from agcore.prompt.templates import PromptTemplate, PromptTemplateRegistry, Values
from agent_core.api.arguments import checks_arguments
from agent_core.types import ContentBlock, TextBlock, ToolResultBlock

_INSTRUCTIONS = frozenset({ChatRole.SYSTEM, ChatRole.DEVELOPER})


@checks_arguments(constructor=True)
class PromptComposer:
    """Builds messages in a chain: `PromptComposer().system("…").user("…").compose()`.

    Args:
        templates: where the `*_template` methods look up names.
        messages: the first messages.
    """

    def __init__(
        self,
        templates: PromptTemplateRegistry | None = None,
        *,
        messages: Iterable[ChatMessage] = (),
    ) -> None:
        self._templates = templates
        self._messages = list(messages)

    @classmethod
    def from_messages(cls, messages: Iterable[ChatMessage]) -> Self:
        """Continue a conversation."""
        return cls(messages=messages)

    def system(self, text: str) -> Self:
        """Add a system message."""
        return self.system_content([TextBlock(text=text)])

    def developer(self, text: str) -> Self:
        """Add a developer message."""
        return self.developer_content([TextBlock(text=text)])

    def user(self, text: str) -> Self:
        """Add a user message."""
        return self.user_content([TextBlock(text=text)])

    def assistant(self, text: str) -> Self:
        """Add an assistant message."""
        return self.assistant_content([TextBlock(text=text)])

    def tool(self, tool_call_id: str, text: str, *, is_error: bool = False) -> Self:
        """Add the answer to a tool call."""
        return self.tool_content(tool_call_id, [TextBlock(text=text)], is_error=is_error)

    def system_template(self, template: str | PromptTemplate, context: Values) -> Self:
        """Add a system message from a template, or the name of one."""
        return self.system(self._render(template, context))

    def developer_template(self, template: str | PromptTemplate, context: Values) -> Self:
        """Add a developer message from a template, or the name of one."""
        return self.developer(self._render(template, context))

    def user_template(self, template: str | PromptTemplate, context: Values) -> Self:
        """Add a user message from a template, or the name of one."""
        return self.user(self._render(template, context))

    def assistant_template(self, template: str | PromptTemplate, context: Values) -> Self:
        """Add an assistant message from a template, or the name of one."""
        return self.assistant(self._render(template, context))

    def tool_template(
        self, tool_call_id: str, template: str | PromptTemplate, context: Values
    ) -> Self:
        """Add the answer to a tool call from a template, or the name of one."""
        return self.tool(tool_call_id, self._render(template, context))

    def system_content(self, content: Sequence[ContentBlock]) -> Self:
        """Add a system message made of blocks."""
        return self._add(ChatRole.SYSTEM, content)

    def developer_content(self, content: Sequence[ContentBlock]) -> Self:
        """Add a developer message made of blocks."""
        return self._add(ChatRole.DEVELOPER, content)

    def user_content(self, content: Sequence[ContentBlock]) -> Self:
        """Add a user message made of blocks: text and images."""
        return self._add(ChatRole.USER, content)

    def assistant_content(self, content: Sequence[ContentBlock]) -> Self:
        """Add an assistant message made of blocks: text, reasoning and tool calls."""
        return self._add(ChatRole.ASSISTANT, content)

    def tool_content(
        self, tool_call_id: str, content: Sequence[ContentBlock], *, is_error: bool = False
    ) -> Self:
        """Add the answer to a tool call, made of blocks."""
        block = ToolResultBlock(tool_call_id=tool_call_id, content=list(content), is_error=is_error)
        return self._add(ChatRole.TOOL, [block])

    def with_name(self, name: str) -> Self:
        """Name the author of the last message.

        Raises:
            PromptError: there is no message yet.
        """
        if not self._messages:
            raise PromptError("there is no message yet to which a name could belong")
        self._messages[-1] = self._messages[-1].model_copy(update={"name": name})
        return self

    def validate_messages(self) -> Self:
        """Check the order: instructions first, then user and assistant in turn, answers directly
        after their calls.

        Raises:
            PromptError: names the message that is wrong, and why.
        """
        last: ChatRole | None = None
        open_calls: set[str] = set()
        for number, message in enumerate(self._messages):
            if reason := _find_problem(message, last, open_calls):
                raise PromptError(
                    f"message {number} ({message.role}) is out of place: {reason}", index=number
                )
            if message.role is ChatRole.TOOL:
                open_calls -= _answered_calls(message)
            elif message.role not in _INSTRUCTIONS:
                open_calls = {call.tool_call_id for call in message.tool_calls}
            last = last if message.role in _INSTRUCTIONS else message.role
        if open_calls:
            raise PromptError(f"tool calls without an answer: {', '.join(sorted(open_calls))}")
        return self

    def compose(self) -> list[ChatMessage]:
        """Return the messages so far."""
        return list(self._messages)

    def _add(self, role: ChatRole, content: Sequence[ContentBlock]) -> Self:
        self._messages.append(ChatMessage(role=role, content=list(content)))
        return self

    def _render(self, template: str | PromptTemplate, context: Values) -> str:
        if isinstance(template, PromptTemplate):
            return template.render(context, self._templates)
        if self._templates is None:
            message = (
                f"there are no templates in which to find {template!r} in; give the composer some"
            )
            raise PromptError(message, template=template)
        return self._templates.render(template, context)


def _answered_calls(message: ChatMessage) -> set[str]:
    return {b.tool_call_id for b in message.content if isinstance(b, ToolResultBlock)}


def _find_problem(message: ChatMessage, last: ChatRole | None, open_calls: set[str]) -> str | None:
    """Return the reason why a message must not follow one of the role `last`; None if it may."""
    role, reason = message.role, None
    if role in _INSTRUCTIONS:
        reason = "instructions come before the conversation" if last is not None else None
    elif role is ChatRole.TOOL:
        answered = _answered_calls(message)
        if len(answered) < len(message.content) or not answered <= open_calls:
            reason = "it answers no tool call before it"
    elif open_calls:
        reason = "the tool calls before it have no answers yet"
    elif role is last:
        reason = f"the {role} has just spoken"
    elif role is ChatRole.ASSISTANT and last is None:
        reason = "the user speaks first"
    return reason

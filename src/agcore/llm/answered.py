"""Every call is answered: a history that was interrupted is made fit to be sent.

Services refuse a history in which a tool call has no answer, or an answer no call. A process that
was killed between the two would make a stored conversation unusable for ever.
"""

from collections.abc import Iterable, Iterator

from agcore.llm.types import ChatMessage, ChatRole
from agent_core.types import ContentBlock, ToolResultBlock

INTERRUPTED = "this call has no result: it was interrupted, and whether it took effect is unknown"


def fill_missing_results(messages: Iterable[ChatMessage]) -> Iterator[ChatMessage]:
    """The messages, with an answer for each call that has none, and without answers to nothing.

    A message that needs no change is passed on as the same object.
    """
    open_calls: list[str] = []
    for message in messages:
        if message.role is ChatRole.TOOL:
            if kept := _fitting(message, open_calls):
                yield kept
            continue
        yield from _interrupted(open_calls)
        open_calls = [call.tool_call_id for call in message.tool_calls]
        yield message
    yield from _interrupted(open_calls)


def _fitting(message: ChatMessage, open_calls: list[str]) -> ChatMessage | None:
    """The message with what it answers of the open calls, which are open no more."""
    content: list[ContentBlock] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock) and block.tool_call_id in open_calls:
            open_calls.remove(block.tool_call_id)
            content.append(block)
    if not content:
        return None
    is_same = len(content) == len(message.content)
    return message if is_same else message.model_copy(update={"content": content})


def _interrupted(open_calls: Iterable[str]) -> Iterator[ChatMessage]:
    for call_id in open_calls:
        yield ChatMessage.tool_text(call_id, INTERRUPTED, is_error=True)

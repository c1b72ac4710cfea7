"""A provider that says what it is told to: for tests, for examples, for trying things offline."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any

from agcore.llm.errors import LlmError, OtherLlmError
from agcore.llm.types import (
    ChatChunk,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    FinishReason,
    ToolCallChunk,
    Usage,
)
from agent_core.providers.jsontext import dump_text
from agent_core.providers.scripted import pieces
from agent_core.types import ToolCall, new_id

MockReply = str | ChatResponse | LlmError
MockAnswer = Callable[[ChatRequest], MockReply]


class MockProvider:
    """Plays a script: each call takes the next reply.

    Args:
        replies: text, whole responses, errors to raise, or functions of the request. A function
            instead of a list answers every request.
        chunks: into how many pieces a text, and the arguments of a call, are cut in a stream.
    """

    def __init__(
        self, replies: Iterable[MockReply | MockAnswer] | MockAnswer = (), *, chunks: int = 3
    ) -> None:
        self.requests: list[ChatRequest] = []
        """Every request so far, oldest first."""
        self._replies: Iterator[MockReply | MockAnswer] = (
            iter(lambda: replies, None) if callable(replies) else iter(list(replies))
        )
        self._chunks = chunks

    async def chat(self, request: ChatRequest) -> ChatResponse:
        """The next reply of the script."""
        return self._next(request)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk | ChatResponse]:
        """The next reply of the script, in pieces."""
        response = self._next(request)
        for text in pieces(response.text, self._chunks):
            yield ChatChunk(text=text)
        for index, call in enumerate(response.tool_calls):
            yield ChatChunk(tool_calls=[ToolCallChunk(index, call.tool_call_id, call.name)])
            for part in pieces(dump_text(call.arguments), self._chunks):
                yield ChatChunk(tool_calls=[ToolCallChunk(index, arguments=part)])
        yield ChatChunk(
            usage=response.usage, finish_reason=response.stop_reason or FinishReason.STOP
        )

    def _next(self, request: ChatRequest) -> ChatResponse:
        self.requests.append(request)
        reply = next(self._replies, None)
        if reply is None:
            raise OtherLlmError(
                f"the mock's script is used up; this is request {len(self.requests)}"
            )
        if callable(reply):
            reply = reply(request)
        if isinstance(reply, LlmError):
            raise reply
        if isinstance(reply, ChatResponse):
            return reply
        return ChatResponse(ChatMessage.assistant_text(reply), _counted(request, reply))


def tool_call_reply(name: str, /, **arguments: Any) -> ChatResponse:
    """A reply that is one tool call."""
    call = ToolCall(tool_call_id=new_id("call"), name=name, arguments=arguments)
    return ChatResponse(ChatMessage.assistant_text("", [call]), stop_reason=FinishReason.TOOL_CALLS)


def _counted(request: ChatRequest, reply: str) -> Usage:
    """A word is a token here."""
    said = sum(len(message.text.split()) for message in request.messages)
    return Usage.from_input_output(said, len(reply.split()))

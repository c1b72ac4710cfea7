"""Joins the chunks of a streamed reply: text as it comes, tool calls by their index."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator

from agcore.llm.adapter import response_of
from agcore.llm.errors import StreamBrokenError
from agcore.llm.types import ChatChunk, ChatResponse, FinishReason, Usage
from agent_core.providers.reply import CallDraft, ReplyAccumulator
from agent_core.types import ModelCompleted, ModelEvent, ModelTextDelta, StopReason

_STOPS = {
    FinishReason.STOP: StopReason.END_TURN,
    FinishReason.LENGTH: StopReason.MAX_TOKENS,
    FinishReason.TOOL_CALLS: StopReason.TOOL_USE,
    FinishReason.CONTENT_FILTER: StopReason.CONTENT_FILTER,
}


class _Joined:
    """One reply while its chunks arrive; what makes it valid is the engine's business."""

    def __init__(self) -> None:
        self._draft = ReplyAccumulator("agcore", str, history=())
        self._calls: dict[int, CallDraft] = {}
        self._usage = Usage()
        self._finish_reason: FinishReason | None = None

    def take(self, chunk: ChatChunk) -> list[ModelEvent]:
        """The display events of one more chunk."""
        if chunk.text:
            self._draft.add_text(chunk.text)
        for piece in chunk.tool_calls:
            call = self._calls.get(piece.index)
            if call is None:
                call = self._draft.open_call(piece.tool_call_id, piece.name)
                self._calls[piece.index] = call
            elif not call.wire_name:
                call.wire_name = piece.name
            self._draft.feed(call, piece.arguments)
        self._usage = chunk.usage or self._usage
        self._finish_reason = chunk.finish_reason or self._finish_reason
        return self._draft.deltas()

    def finish(self) -> list[ModelEvent]:
        """The last display events and the finished reply.

        Raises:
            LlmError: no chunk had a finish reason.
        """
        if self._finish_reason is None:
            raise StreamBrokenError("the stream ended without a finish reason")
        reason = self._finish_reason
        return self._draft.finish(_STOPS[reason], reason.value, usage=self._usage)


async def joined(
    pieces: AsyncIterator[ChatChunk | ChatResponse],
) -> AsyncGenerator[str | ChatResponse]:
    """Text as it arrives, and the whole reply last. Closing it closes `pieces`.

    Raises:
        LlmError: the stream failed, or ended without a finish reason: it is not finished then.
    """
    reply = _Joined()
    try:
        async for piece in pieces:
            if isinstance(piece, ChatResponse):
                yield piece
                return
            for said in _shown(reply.take(piece)):
                yield said
        for said in _shown(reply.finish()):
            yield said
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


def _shown(events: Iterable[ModelEvent]) -> Iterator[str | ChatResponse]:
    for event in events:
        match event:
            case ModelTextDelta(text=text):
                yield text
            case ModelCompleted():
                yield response_of(event)
            case _:
                pass

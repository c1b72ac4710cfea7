"""Answers of a hundred megabytes: ended at once, and kept as far as they are worth keeping."""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from agent_core import ErrorCode, EventType, RunStatus
from agent_core.errors import ProviderError
from agent_core.loop.model_turn import PARTIAL_CHARS
from agent_core.providers.scripted import Hangs, ScriptedProvider
from agent_core.types import (
    ErrorPayload,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelReasoningDelta,
    ModelRequest,
    ModelStarted,
    ModelTextDelta,
    StopReason,
    TextBlock,
    ToolCallDelta,
)
from isolation import Home
from runtimes import CONFIG, ask, runtime
from sweeps import sampled

HUGE = 100_000_000
WORDS = "The quick brown fox jumps over the lazy dog. "
LEADS = "my token: a-b sk- password "


class Flood(ScriptedProvider):
    """Answers the first request without end, the others from its script."""

    def __init__(self, *, then: str | None = None) -> None:
        super().__init__(["here I am"])
        self.is_through = asyncio.Event()
        self._then = then

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        if self.is_through.is_set():
            async for event in super().stream(request):
                yield event
            return
        yield ModelStarted(provider="flood", model="flood")
        read = (WORDS * 1500)[:65_536]
        for _ in range(HUGE // len(read)):
            yield ModelTextDelta(text=read)
        self.is_through.set()
        if self._then is None:
            await asyncio.Event().wait()
        error = ProviderError(ErrorCode.PROVIDER_ERROR, self._then or "")
        yield ModelFailed(error=ErrorPayload.of(error))


@pytest.mark.sweep
@pytest.mark.parametrize("then", sampled([None, "the line is dead"], keep=1))
async def test_a_huge_answer_that_is_cut_off_ends_within_a_second(
    home: Home, project: Path, then: str | None
) -> None:
    provider = Flood(then=then)
    async with runtime(home, project, provider, config=CONFIG) as made:
        handle = await made.start("go", session_id="s1")
        shown = 0
        watching = asyncio.create_task(_count(handle.events()))
        await provider.is_through.wait()
        began = time.process_time()
        if then is None:
            await handle.cancel()
        await handle.wait()
        assert time.process_time() - began < 5
        shown = await watching
        partial = (await made.replay_run(handle.run_id, include_sensitive=True)).nodes[-1]
        after = await ask(made, "go on")
    assert handle.status is (RunStatus.CANCELLED if then is None else RunStatus.FAILED)
    assert shown > HUGE - 65_536
    assert len(partial.text) == PARTIAL_CHARS
    assert partial.is_partial
    assert partial.metadata["truncated"] is True
    assert partial.metadata["characters"] == shown
    assert (home.path / "sessions.sqlite").stat().st_size < 3 * PARTIAL_CHARS
    assert after.result_text == "here I am"


class Torrent(ScriptedProvider):
    """Sends a gigabyte in small pieces without ever waiting for anything."""

    def __init__(self, kind: type[ModelTextDelta | ModelReasoningDelta | ToolCallDelta]) -> None:
        super().__init__(["here I am"])
        self.kind = kind
        self.has_begun = asyncio.Event()
        self.is_through = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        if self.has_begun.is_set():
            async for event in super().stream(request):
                yield event
            return
        yield ModelStarted(provider="torrent", model="torrent")
        self.has_begun.set()
        read = (WORDS * 250)[:10_000]
        for _ in range(10 * HUGE // len(read)):
            if self.kind is ToolCallDelta:
                yield ToolCallDelta(tool_call_id="c1", name="t", arguments_fragment=read)
            elif self.kind is ModelReasoningDelta:
                yield ModelReasoningDelta(text=read)
            else:
                yield ModelTextDelta(text=read)
        self.is_through = True
        yield ModelCompleted(content=[TextBlock(text="all")], stop_reason=StopReason.END_TURN)


@pytest.mark.parametrize(
    "kind", sampled([ModelTextDelta, ModelReasoningDelta, ToolCallDelta], keep=1)
)
async def test_an_answer_that_arrives_without_a_wait_can_be_cancelled(
    home: Home,
    project: Path,
    kind: type[ModelTextDelta | ModelReasoningDelta | ToolCallDelta],
) -> None:
    provider = Torrent(kind)
    async with runtime(home, project, provider, config=CONFIG) as made:
        handle = await made.start("go", session_id="s1")
        await provider.has_begun.wait()
        result = await handle.cancel()
        assert result.status is RunStatus.CANCELLED
        assert not provider.is_through
        assert (await ask(made, "go on")).result_text == "here I am"


async def _count(events: AsyncGenerator[object]) -> int:
    shown = 0
    async for event in events:
        if getattr(event, "event_type", None) is EventType.MODEL_TEXT_DELTA:
            shown += len(getattr(event, "payload", {})["text"])
    return shown


@pytest.mark.parametrize("text", sampled([WORDS, LEADS, "é", "-"], keep=1))
async def test_a_huge_answer_in_one_piece_leaves_room_for_a_cancellation(
    home: Home, project: Path, text: str
) -> None:
    reply = Hangs(text=text * (HUGE // len(text)))
    async with runtime(home, project, [reply, "here I am"], config=CONFIG) as made:
        handle = await made.start("go", session_id="s1")
        async for event in handle.events():
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                break
        began = time.process_time()
        result = await handle.cancel()
        assert time.process_time() - began < 5
        assert result.status is RunStatus.CANCELLED
        assert (await ask(made, "go on")).result_text == "here I am"

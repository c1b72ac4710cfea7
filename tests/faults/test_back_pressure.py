"""Consumers that sleep, never come or leave, and more text than anybody reads."""

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from agent_core import EventType, RunHandle, RunStatus
from agent_core.providers.scripted import Says, ScriptedProvider
from faults.depth import Depth, Tally
from isolation import Home
from runtimes import runtime

pytestmark = pytest.mark.timeout(300)
MEGABYTE = 1_000_000


async def reads_all(handle: RunHandle) -> str:
    """Everything that is shown, joined."""
    return await joined(handle, pause_every=0)


async def sleeps(handle: RunHandle) -> str:
    """The same, with long pauses in between."""
    return await joined(handle, pause_every=500)


async def joined(handle: RunHandle, *, pause_every: int) -> str:
    parts: list[str] = []
    async for event in handle.events():
        if event.event_type is EventType.MODEL_TEXT_DELTA:
            parts.append(event.payload["text"])
            if pause_every and len(parts) % pause_every == 0:
                await asyncio.sleep(0.05)
    return "".join(parts)


async def never_comes(handle: RunHandle) -> None:
    """Nobody reads."""
    await handle.wait()


async def leaves(handle: RunHandle) -> None:
    """Leaves in the middle."""
    events = handle.events()
    for _ in range(3):
        await anext(events)
    await events.aclose()


async def forgets(handle: RunHandle) -> None:
    """Takes a few events, and drops the rest without a word."""
    events = handle.events()
    for _ in range(3):
        await anext(events)


CONSUMERS = [reads_all, sleeps, never_comes, leaves, forgets]


@pytest.mark.long
@pytest.mark.faults("back-pressure")
async def test_text_is_exact_and_memory_bounded_whatever_the_consumer_does(
    home: Home, project: Path, tally: Tally, size: Depth
) -> None:
    deltas = size.some(100_000, 1_600)
    text = "".join(f"word {n:06d} " for n in range(deltas))
    provider = ScriptedProvider(lambda request: Says(text=text, chunks=deltas))
    async with runtime(home, project, provider) as made:
        for consumer in CONSUMERS:
            with tally.case(consumer.__name__):
                tracemalloc.start()
                handle = await made.start("go", session_id=consumer.__name__)
                async with asyncio.timeout(200):
                    shown = await consumer(handle)
                    status = await handle.wait()
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert (status, handle.result_text) == (RunStatus.COMPLETED, text)
                assert shown in {None, text}
                assert peak < 20 * len(text) + 20 * MEGABYTE, peak
    tally.verdict()

"""Wishes for the memory are waited for; a search for them, for a moment only."""

import asyncio

import pytest

from agent_core.runtime import wishes as module
from agent_core.runtime.wishes import Wishes
from agent_core.types import MemoryWish


async def test_a_wish_is_waited_for_and_told_once() -> None:
    wishes, waits = Wishes(), list[str]()
    await wishes.settled(lambda: waits.append("idle"))
    wishes.begin("s1")
    waiting = asyncio.create_task(wishes.settled(lambda: waits.append("wish")))
    await asyncio.sleep(0)
    assert waits == []
    wishes.begin("s1", is_known=True)
    wishes.begin("s2", is_known=True)
    wishes.end("s1")
    await asyncio.sleep(0)
    assert (waits, waiting.done()) == (["wish"], False)
    outcome = MemoryWish(session_id="s2", remembered=["Likes tea"])
    wishes.tell(outcome)
    wishes.end("s2")
    await waiting
    assert (wishes.take(), wishes.take()) == ([outcome], [])


async def test_a_wish_that_is_left_is_not_waited_for() -> None:
    wishes = Wishes()
    wishes.begin("s1", is_known=True)
    waiting = asyncio.create_task(wishes.settled())
    await asyncio.sleep(0)
    wishes.leave()
    await waiting
    await wishes.settled()


async def test_a_search_for_wishes_is_waited_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SEARCH_S", 0.0)
    wishes = Wishes()
    wishes.begin("s1")
    await wishes.settled()
    wishes.begin("s1", is_known=True)
    waiting = asyncio.create_task(wishes.settled())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    wishes.end("s1")
    await waiting

"""Work that a cancellation does not cut short."""

import asyncio

import pytest

from agent_core.aio import start_uncancelled


async def test_work_that_waits_for_nothing_is_done_without_a_task() -> None:
    async def work() -> tuple[str, asyncio.Task[object] | None]:
        return "done", asyncio.current_task()

    assert await start_uncancelled(work()) == ("done", asyncio.current_task())


async def test_work_that_waits_is_carried_on_where_it_stopped() -> None:
    async def work() -> list[int]:
        seen: list[int] = []
        for number in range(3):
            await asyncio.sleep(0 if number else 0.001)
            seen.append(number)
        return seen

    assert await start_uncancelled(work()) == [0, 1, 2]


async def test_a_cancelled_caller_leaves_no_work_half_done() -> None:
    gate, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await gate.wait()
        await asyncio.sleep(0)
        ended.set()

    caller = asyncio.create_task(start_uncancelled(work()))
    await asyncio.sleep(0)
    for _ in range(2):
        caller.cancel()
        await asyncio.sleep(0)
    assert not caller.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


@pytest.mark.parametrize("waits", [False, True])
async def test_an_error_of_the_work_is_the_callers(*, waits: bool) -> None:
    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await start_uncancelled(work())

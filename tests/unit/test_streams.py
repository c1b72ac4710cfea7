"""A stream may be left at any point, in any way, and what it has opened is closed in order."""

import asyncio
import gc
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import pytest

from agent_core.aio import TaskStream


@pytest.fixture(scope="module", autouse=True)
def little_to_search() -> None:
    """Keep what other tests have left out of the searches for garbage of this file."""
    gc.collect()
    gc.freeze()


class Source:
    """A generator inside of a generator, which both take time to close."""

    def __init__(self, count: int = 10) -> None:
        self.closed: list[str] = []
        self.tasks: set[asyncio.Task[Any] | None] = set()
        self.given = 0
        self._count = count

    async def inner(self) -> AsyncGenerator[int]:
        try:
            async with asyncio.timeout(30):  # may only be left by the task that has entered it
                for number in range(self._count):
                    await asyncio.sleep(0)
                    self.tasks.add(asyncio.current_task())
                    yield number
        finally:
            self.closed.append("inner")
            await asyncio.sleep(0.01)

    async def outer(self) -> AsyncGenerator[int]:
        try:
            async with aclosing(self.inner()) as numbers:
                async for number in numbers:
                    self.given += 1
                    yield number
        finally:
            self.closed.append("outer")
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a generator says nothing when it ends
            await asyncio.sleep(0.001)


async def test_a_stream_gives_what_its_generator_gives() -> None:
    source = Source(3)
    assert [number async for number in TaskStream(source.outer())] == [0, 1, 2]
    assert source.closed == ["inner", "outer"]


async def test_no_step_is_taken_before_it_is_asked_for() -> None:
    source = Source()
    stream = TaskStream(source.outer())
    await anext(stream)
    await asyncio.sleep(0.02)
    assert source.given == 1
    await stream.aclose()
    assert len(source.tasks) == 1


async def leave_by_break(stream: TaskStream[int]) -> None:
    async for _ in stream:
        break


async def leave_by_error(stream: TaskStream[int]) -> None:
    with suppress(KeyError):
        async for _ in stream:
            raise KeyError


async def leave_by_aclose(stream: TaskStream[int]) -> None:
    await anext(stream)
    await stream.aclose()
    await stream.aclose()


async def leave_by_throw(stream: TaskStream[int]) -> None:
    await anext(stream)
    with pytest.raises(KeyError):
        await stream.athrow(KeyError())


async def leave_in_time(stream: TaskStream[int]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            async for _ in stream:
                await asyncio.sleep(0.01)


async def leave_by_cancelling(stream: TaskStream[int]) -> None:
    async def read() -> None:
        async for _ in stream:
            await asyncio.sleep(0.01)

    task = asyncio.create_task(read())
    await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait([task])


async def close_while_it_is_read(stream: TaskStream[int]) -> None:
    async def read() -> list[int]:
        return [number async for number in stream]

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await stream.aclose()
    await task


WAYS: list[Callable[[TaskStream[int]], Coroutine[Any, Any, None]]] = [
    *(leave_by_break, leave_by_error, leave_by_aclose, leave_by_throw, leave_in_time),
    *(leave_by_cancelling, close_while_it_is_read),
]


@pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)
async def test_what_a_stream_has_opened_is_closed_however_it_is_left(
    leave: Callable[[TaskStream[int]], Coroutine[Any, Any, None]],
) -> None:
    source = Source()
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    await leave(TaskStream(source.outer()))
    gc.collect()
    await until(lambda: source.closed)
    await until(lambda: len(source.closed) == 2)
    assert source.closed == ["inner", "outer"]
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert len(source.tasks) <= 1
    assert faults == []


@pytest.mark.long
@pytest.mark.parametrize("steps", range(12))
async def test_cancelling_at_any_step_closes_everything(steps: int) -> None:
    source = Source()
    stream = TaskStream(source.outer())

    async def read() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert source.closed in ([], ["inner", "outer"])
    assert source.given == 0 or source.closed
    await until(lambda: len(asyncio.all_tasks()) == 1)


async def test_an_error_of_the_generator_is_raised_once() -> None:
    async def broken() -> AsyncGenerator[int]:
        yield 1
        raise ValueError("broken")

    stream = TaskStream(broken())
    assert await anext(stream) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(stream)
    assert [number async for number in stream] == []


async def test_a_second_reader_is_refused() -> None:
    stream = TaskStream(Source().outer())
    first = asyncio.create_task(stream.asend(None))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one reader"):
        await anext(stream)
    assert await first == 0
    await stream.aclose()


PROGRAM = """
import asyncio
from agent_core.aio import TaskStream
from test_streams import Source

source = Source()
kept = []

async def main():
    stream = TaskStream(source.outer())
    {keep}
    async for _ in stream:
        break
    {wait}

asyncio.run(main(), debug=True)
print(source.closed)
"""


@pytest.mark.parametrize(
    ("keep", "wait"),
    [
        ("kept.append(stream)", ""),
        ("", "del stream; await asyncio.sleep(0)"),
        pytest.param("", "", marks=pytest.mark.sweep),
        pytest.param("", "del stream", marks=pytest.mark.sweep),
        pytest.param("kept.append(stream)", "del stream", marks=pytest.mark.sweep),
        pytest.param(
            "kept.append(stream)", "del stream; await asyncio.sleep(0)", marks=pytest.mark.sweep
        ),
    ],
)
def test_the_end_of_the_loop_closes_a_stream_that_was_left(keep: str, wait: str) -> None:
    text = textwrap.dedent(PROGRAM).format(keep=keep, wait=wait)
    folder = str(__file__).rpartition("/")[0]
    done = subprocess.run(  # noqa: S603 - our own program, in our own interpreter
        [sys.executable, "-X", "dev", "-W", "error", "-c", text],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert (done.stderr, done.stdout) == ("", "['inner', 'outer']\n")

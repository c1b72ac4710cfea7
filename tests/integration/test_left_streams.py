"""A run goes on when its stream is left, in any way, and nothing is printed about it."""

import subprocess
import sys
from pathlib import Path

import pytest

from isolation import Home, program_file
from sweeps import is_whole

PROGRAM = """
import asyncio
import sys
from contextlib import suppress
from itertools import product

from agent_core import AgentRuntime, RunStatus
from agent_core.providers.scripted import ScriptedProvider, calls

home, project, every = sys.argv[1:]


async def answer(request):
    for word in ("[1, ", "2, ", "3]"):
        yield word
        await asyncio.sleep(0.01)


def play(what):
    seen = set()

    def line(request):
        run_id = request.metadata["run_id"]
        is_first, _ = not seen, seen.add(run_id)
        if is_first and what == "child_events":
            return calls("agent.create_sub_agent", task="look")
        return answer(request)

    return ScriptedProvider(line)


async def streams(runtime, handle, what):
    if what == "child_events":
        if not kept_children:
            async for event in handle.events():
                if event.event_type == "child_agent_created":
                    kept_children.append(event.payload["child_run_id"])
                    break
        return handle.child_events(kept_children[0], debug=True)
    if what == "events":
        return handle.events(debug=True)
    if what == "partial_output":
        return handle.partial_output()
    attached = await runtime.attach(handle.run_id)
    return attached.partial_output() if what == "attached partial_output" else attached.events()


async def by_break(stream):
    async for _ in stream:
        break


async def by_error(stream):
    with suppress(KeyError):
        async for _ in stream:
            raise KeyError


async def by_closing(stream):
    await anext(stream)
    await stream.aclose()


async def in_time(stream):
    with suppress(TimeoutError):
        async with asyncio.timeout(0.005):
            async for _ in stream:
                await asyncio.sleep(0.001)


async def by_cancelling(stream):
    async def read():
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.wait([task])


async def not_at_all(stream):
    pass


kept_children = []
kept = []  # to the end of the loop, and longer
WHAT = ["child_events", "events", "partial_output", "attached events", "attached partial_output"]
WAYS = [by_break, by_error, by_closing, in_time, by_cancelling, not_at_all]


async def leave(what, way, is_kept):
    kept_children.clear()
    async with AgentRuntime(project, home_dir=home, model=play(what)) as runtime:
        handle = await runtime.start("count", output_type=list[int])
        stream = await streams(runtime, handle, what)
        await way(stream)
        if is_kept:
            kept.append(stream)
        del stream
        assert await handle.wait() is RunStatus.COMPLETED, handle.error
        result = await handle.result()
        assert result.output == [1, 2, 3]
        again = await runtime.attach(handle.run_id)  # of a run that is over, and left in the middle
        await way(await streams(runtime, again, what))
        whole = [part async for part in (await runtime.attach(handle.run_id)).events()]
        assert whole[-1].event_type == "run_completed", whole[-1]


for number, (what, way, is_kept) in enumerate(product(WHAT, WAYS, [False, True])):
    if number % int(every):
        continue
    print(what, way.__name__, is_kept)
    asyncio.run(leave(what, way, is_kept), debug=True)
print("ended")
"""


@pytest.mark.long
def test_a_run_goes_on_when_its_stream_is_left(home: Home, project: Path) -> None:
    home.path.mkdir(exist_ok=True)
    every = "1" if is_whole() else "7"  # no divisor of the ways, so that all of each are tried
    done = subprocess.run(  # noqa: S603 - our own program, in our own interpreter
        [sys.executable, program_file(PROGRAM), str(home.path), str(project), every],
        env=home.env(PYTHONWARNINGS="error"),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert lines == []
    assert done.stdout.endswith("ended\n")

"""A run cancelled, its runtime closed or its caller cancelled at every step of the event loop."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, RunHandle, RunStatus
from agent_core.errors import AgentCoreError
from agent_core.providers.scripted import Calls, calls
from agent_core.types import Mode
from casts import Cast, together
from faults import aftermath
from faults.depth import Depth, Tally
from faults.drivers import opened, task_script
from faults.homes import Place, a_place

pytestmark = pytest.mark.timeout(900)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the callbacks that are scheduled, and slips in one of its own at a chosen one."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self._at = 0
        self._then: Callable[[], object] = int

    def interrupt(self, at: int, then: Callable[[], object]) -> None:
        """Call `then` at the step that is `at` steps away."""
        self._at = self.steps + at
        self._then = then

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.steps += 1
        if self.steps == self._at:
            super().call_soon(self._then)
        return super().call_soon(callback, *args, context=context)


@dataclass
class Scene:
    """A runtime at work, and what was done to it."""

    made: AgentRuntime
    mode: Mode
    handle: RunHandle | None = None
    events: list[Any] = field(default_factory=list[Any])

    async def work(self) -> None:
        self.handle = await self.made.start("go", session_id="s1", mode=self.mode)
        async for event in self.handle.events(debug=True):
            self.events.append(event)
        await self.handle.wait()


SCRIPT: list[str | Calls] = [
    calls("note", text="one"),
    calls("code.write_file", path="made/a.txt", content="first\n"),
    together(calls("note", text="two"), calls("note", text="three")),
    calls("code.run_command", argv=["sh", "-c", "echo ran >> ran.txt; sleep 0.01"]),
    "done",
]


async def interrupted(place: Place, parts: dict[str, Any], mode: Mode, way: str, at: int) -> bool:
    """One run with an interruption; False if the run had ended before."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    provider = Cast({**parts, "again": ["fine"]})
    beside: list[asyncio.Task[Any]] = []
    came_in_time = False
    async with opened(str(place.home.path), str(place.project), provider) as made:
        await made.list_sessions()  # opens what the first call opens
        scene = Scene(made, mode)
        work = asyncio.create_task(scene.work())

        def strike() -> None:
            nonlocal came_in_time
            came_in_time = not work.done()
            match way:
                case "caller":
                    work.cancel()
                case "run" if scene.handle is not None:
                    beside.append(loop.create_task(scene.handle.cancel()))
                case "runtime":
                    beside.append(loop.create_task(made.close()))
                case _:
                    came_in_time = True  # nothing to cancel yet

        loop.interrupt(at, strike)
        began = time.monotonic()
        async with asyncio.timeout(50):
            done = await asyncio.gather(work, return_exceptions=True)
            loop.interrupt(0, strike)  # from here on it is too late
            await asyncio.gather(*beside)
            if scene.handle is not None and way != "runtime":
                await scene.handle.wait()
        assert time.monotonic() - began < 40
        for error in done:
            expected = (asyncio.CancelledError, AgentCoreError)
            assert error is None or isinstance(error, expected), repr(error)
    await check(place, provider, scene)
    return came_in_time


async def check(place: Place, provider: Cast, scene: Scene) -> None:
    """One closing event, one settled row, nothing twice, and the session goes on."""
    async with opened(str(place.home.path), str(place.project), provider) as made:
        handle = await made.start("again", session_id="s1")
        await handle.wait()
        assert handle.status is RunStatus.COMPLETED, handle.error
        assert aftermath.unanswered(provider.requests[-1].messages) == set()
        replay = await made.replay_session("s1")
    rows = {run.run_id: run.status for run in replay.runs}
    assert not {RunStatus.RUNNING, RunStatus.QUEUED} & set(rows.values()), rows
    ends = Counter(event.run_id for event in replay.events if event.event_type in aftermath.CLOSING)
    assert ends == Counter(list(rows)), (ends, rows)
    if scene.handle is not None:
        assert rows[scene.handle.run_id] is scene.handle.status
    closing = [event for event in scene.events if event.event_type in aftermath.CLOSING]
    assert len(closing) <= 1
    aftermath.check_effects(place.project, replay)


def open_files() -> Counter[str]:
    """What this process has open, by kind."""
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[str(link.readlink()).split(":")[0]] += 1
        except OSError:
            continue
    return found


def once(place: Place, parts: dict[str, Any], mode: Mode, way: str, at: int) -> bool:
    """One case in an event loop of its own, with nothing left over."""
    before = open_files()

    async def whole() -> bool:
        came_in_time = await interrupted(place, parts, mode, way, at)
        for _ in range(3):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return came_in_time

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        came_in_time = runner.run(whole())
    gc.collect()
    assert open_files() - before == Counter()
    assert aftermath.survivors(place.project) == []
    return came_in_time


def sweep(
    tally: Tally, depth: Depth, script: dict[str, Any], mode: Mode, way: str, stride: int
) -> None:
    for at in depth.points(*range(3, 700, 160 * stride), stride=stride):
        place = a_place(f"cancel-{mode}-{way}-{at}")
        name = f"{way} interrupted at step {at} in {place.home.path}"
        went_on = tally.try_case(name, partial(once, place, script, mode, way, at))
        if went_on is not None:
            place.give_back()
        if went_on is False:
            break
    tally.verdict()


WAYS = pytest.mark.parametrize("way", ["run", "caller", "runtime"])


@pytest.mark.long
@WAYS
@pytest.mark.faults("cancel at every step: a session")
def test_a_run_interrupted_at_any_step_ends_once_and_its_session_goes_on(
    way: str, tally: Tally, depth: Depth
) -> None:
    sweep(tally, depth, {"go": SCRIPT}, "normal", way, 1)


@pytest.mark.long
@WAYS
@pytest.mark.faults("cancel at every step: an orchestrator")
def test_an_orchestrator_interrupted_at_any_step_ends_with_all_its_workers(
    way: str, tally: Tally, depth: Depth
) -> None:
    sweep(tally, depth, task_script(), "orchestrator", way, 5)

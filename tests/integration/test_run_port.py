"""Runs by their id: events without a gap, the end, a cancellation, also from another runtime."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from datetime import timedelta
from pathlib import Path

import pytest

from agent_core import AgentRuntime, EventType, RunHandle, RunStatus, RuntimeEvent
from agent_core.errors import ErrorCode, StorageError
from agent_core.providers.scripted import Hangs, Says, calls
from agent_core.runtime import leases, reading
from agent_core.runtime.runs import Runs
from isolation import Home
from runtimes import ask, collect, runtime


async def runs_of(made: AgentRuntime) -> Runs:
    return (await made._home.services()).runs


async def watched(runs: Runs, run_id: str, *, after: int | None = None) -> list[RuntimeEvent]:
    return [event async for event in runs.watch(run_id, after=after, debug=True)]


def numbers(events: list[RuntimeEvent]) -> list[int]:
    return [event.run_seq for event in events if event.run_seq is not None]


@pytest.mark.parametrize("after", [0, 3])
async def test_an_ended_run_is_watched_from_the_store(
    home: Home, project: Path, after: int
) -> None:
    (project / "a.txt").write_text("hello\n")
    async with runtime(home, project, [calls("code.read_file", path="a.txt"), "done"]) as made:
        handle = await ask(made)
        stored = (await made.replay_run(handle.run_id)).events
        seen = await watched(await runs_of(made), handle.run_id, after=after)
    kept = [event for event in seen if event.run_seq is not None]
    assert kept == [event for event in stored if (event.run_seq or 0) > after]
    assert seen[-1].event_type is EventType.RUN_COMPLETED


@pytest.mark.parametrize("after", [0, 2])
async def test_a_run_under_way_is_watched_without_a_gap_and_without_repetition(
    home: Home, project: Path, after: int
) -> None:
    (project / "a.txt").write_text("hello\n")
    script = [calls("code.read_file", path="a.txt"), Hangs(text="so far")]
    async with runtime(home, project, script) as made:
        handle = await made.start("go", session_id="s1")
        runs = await runs_of(made)
        while len((await made.replay_run(handle.run_id)).events) < 9:  # noqa: ASYNC110 - what is stored
            await asyncio.sleep(0.01)
        watching = asyncio.create_task(watched(runs, handle.run_id, after=after))
        await asyncio.sleep(0.05)
        await handle.cancel()
        seen = await watching
        stored = (await made.replay_run(handle.run_id)).events
    assert numbers(seen) == [n for n in numbers(stored) if n > after]
    assert seen[-1].event_type is EventType.RUN_CANCELLED


async def test_text_that_comes_after_the_subscription_is_seen_after_what_was_stored(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, [Says(text="one two three", chunks=3)]) as made:
        handle = await made.start("go", session_id="s1")
        seen = await watched(await runs_of(made), handle.run_id, after=0)
    deltas = [e.payload["text"] for e in seen if e.event_type is EventType.MODEL_TEXT_DELTA]
    assert "".join(deltas) == "one two three"
    assert numbers(seen) == list(range(1, len(numbers(seen)) + 1))


async def test_another_runtime_watches_awaits_and_cancels_a_run_by_its_id(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT", timedelta(seconds=0.05))
    async with runtime(home, project, [Hangs()]) as made, runtime(home, project) as other:
        handle = await made.start("go", session_id="s1")
        runs = await runs_of(other)
        watching = asyncio.create_task(watched(runs, handle.run_id, after=0))
        waiting = asyncio.create_task(runs.wait(handle.run_id))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        result = await runs.cancel(handle.run_id)
        assert (result.status, result.timed_out) == (RunStatus.CANCELLED, False)
        assert await waiting is RunStatus.CANCELLED
        seen = await watching
    assert numbers(seen) == list(range(1, len(seen) + 1))
    assert seen[-1].event_type is EventType.RUN_CANCELLED
    assert handle.status is RunStatus.CANCELLED


KILLED = """
import asyncio, os, sys
from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs, ScriptedProvider

async def main():
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_provider("custom", lambda model: ScriptedProvider([Hangs()]))
    async with runtime:
        handle = await runtime.start("go", session_id="s1")
        async for event in handle.events():
            if event.event_type == "model_started":
                print(handle.run_id, flush=True)
                os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_whoever_waits_for_a_run_learns_that_its_process_has_died(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_POLL_S", 0.01)
    monkeypatch.setattr(reading, "_LOST_S", 0.1)
    async with runtime(home, project) as made:
        script = home.write("killed.py", KILLED)
        victim = await asyncio.create_subprocess_exec(
            sys.executable, str(script), str(home.path), str(project), stdout=PIPE
        )
        said, _ = await victim.communicate()
        runs, run_id = await runs_of(made), said.decode().strip()
        status, seen = await asyncio.wait_for(
            asyncio.gather(runs.wait(run_id), watched(runs, run_id, after=0)), 5
        )
    assert status is RunStatus.FAILED
    assert seen[-1].event_type is EventType.RUN_FAILED
    assert seen[-1].payload["reason"] == "owner_lost"


async def test_a_run_that_is_not_there_is_not_found(home: Home, project: Path) -> None:
    async with runtime(home, project) as made:
        runs = await runs_of(made)
        for asked in (watched(runs, "run_x"), runs.wait("run_x"), runs.cancel("run_x")):
            with pytest.raises(StorageError) as caught:
                await asked
            assert caught.value.code is ErrorCode.RUN_NOT_FOUND


async def test_a_handle_reads_the_end_of_a_run_that_the_runtime_no_longer_holds(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["one", "two"]) as made:
        handle: RunHandle = await ask(made)
        await ask(made)
        assert await handle.wait() is RunStatus.COMPLETED
        assert handle.result_text == "one"
        assert [event async for event in handle.events()] == []
        assert (await handle.cancel()).status is RunStatus.COMPLETED


@pytest.mark.long
async def test_any_number_watch_by_number_and_one_that_is_slow_misses_no_stored_event(
    home: Home, project: Path
) -> None:
    (project / "a.txt").write_text("hello\n")
    script = [calls("code.read_file", path="a.txt") for _ in range(60)]
    async with runtime(home, project, [*script, "done"]) as made:
        handle = await made.start("go", session_id="s1")
        runs = await runs_of(made)

        async def watch_slowly() -> list[RuntimeEvent]:
            seen: list[RuntimeEvent] = []
            async for event in runs.watch(handle.run_id, after=0, debug=True):
                seen.append(event)
                if len(seen) == 5:
                    await handle.wait()
            return seen

        quick, slow, read = await asyncio.gather(
            watched(runs, handle.run_id, after=0), watch_slowly(), collect(handle)
        )
        stored = (await made.replay_run(handle.run_id)).events
    assert len(stored) > 300  # more than what waits for a reader
    assert numbers(quick) == numbers(slow) == numbers(stored)
    assert read[-1].event_type is EventType.RUN_COMPLETED

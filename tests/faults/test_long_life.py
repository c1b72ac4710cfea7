"""A thousand turns and a hundred thousand events: what is used does not grow with them."""

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from agent_core import AgentRuntime, RunStatus, tool
from agent_core.providers.scripted import Calls, Says, ScriptedProvider, calls
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import ModelRequest, PendingEvent, Role
from faults.depth import Depth, Tally
from isolation import Home
from rows import a_batch, an_event
from runtimes import runtime

pytestmark = pytest.mark.timeout(600)


@pytest.mark.long
@pytest.mark.faults("a thousand turns")
async def test_a_thousand_turns_leave_nothing_behind(
    home: Home, project: Path, tally: Tally, size: Depth
) -> None:
    runs, turns = size.some(400, 140), size.some(5, 1)

    def answer(request: ModelRequest) -> Says | Calls:
        said = [message for message in request.messages if message.role is Role.USER]
        since = request.messages[request.messages.index(said[-1]) :]
        return calls("note") if len(since) < 2 * turns - 1 else Says(text="done")

    @tool(permission="readonly")
    async def note() -> str:
        """Answer a little."""
        return "noted"

    provider = ScriptedProvider(answer)
    made = runtime(home, project, provider)
    made.register_tool(note)
    used: list[tuple[int, int, int, int]] = []
    async with made:
        tracemalloc.start()
        for number in range(1, runs + 1):
            with tally.case(f"run {number}"):
                handle = await made.start("go", session_id=f"s{number}")
                assert await handle.wait() is RunStatus.COMPLETED, handle.error
                provider.requests.clear()
                del handle
            # By half of it the caches of what recent sessions said are full.
            if number in {runs // 2, runs}:
                used.append(in_use())
        tracemalloc.stop()
    first, last = used
    assert last[0] < first[0] * 1.1, (first, last)
    assert last[1] <= first[1] + 2, (first, last)
    assert last[2] <= first[2] + 4, (first, last)
    assert last[3] <= first[3] + 4, (first, last)
    tally.verdict()


def in_use() -> tuple[int, int, int, int]:
    """Memory, tasks, threads and open files."""
    gc.collect()
    memory, _ = tracemalloc.get_traced_memory()
    files = len(list(Path("/proc/self/fd").iterdir()))
    return memory, len(asyncio.all_tasks()), threading.active_count(), files


async def fill(path: Path, events: int) -> None:
    """Append to the session's timeline what many runs would have left there, beside its path."""
    async with SqliteSessionStore.open(path) as store:
        session = await store.session("s1")
        assert session is not None
        page = await store.page("s1")
        run = page.runs[0]
        for start in range(0, events, 1000):
            rows: list[PendingEvent] = [
                an_event(payload={"i": start + n}) for n in range(min(1000, events - start))
            ]
            await store.append(
                a_batch(*rows, session_id="s1", run_id=run.run_id, agent_id=run.agent_id)
            )


async def peak_of(work: Callable[[], Awaitable[object]]) -> int:
    """How much memory the work needs on top, in bytes."""
    gc.collect()
    tracemalloc.start()
    try:
        await work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.long
@pytest.mark.faults("a hundred thousand events")
async def test_a_long_timeline_costs_no_more_memory_than_a_short_one(
    home: Home, project: Path, tally: Tally, size: Depth
) -> None:
    sizes = (2_000, size.some(100_000, 20_000))
    short, long = [await peaks_of(home, project, count, tally) for count in sizes]
    for name, peak in long.items():
        assert peak < short[name] * 1.5 + 500_000, (name, short[name], peak)
    tally.verdict()


async def peaks_of(home: Home, project: Path, count: int, tally: Tally) -> dict[str, int]:
    """What a start on a session of so many events needs, by what is done."""
    (home.path / "sessions.sqlite").unlink(missing_ok=True)
    provider = ScriptedProvider(lambda request: Says(text="ok"))
    async with runtime(home, project, provider) as made:
        await (await made.start("go", session_id="s1")).wait()
    await fill(home.path / "sessions.sqlite", count)
    peaks: dict[str, int] = {}
    async with runtime(home, project, provider) as made:
        works: dict[str, Callable[[], Awaitable[object]]] = {
            "list": made.list_sessions,
            "run": partial(one_run, made),
            "first page": partial(made.replay_session, "s1"),
            "last page": partial(made.replay_session, "s1", from_seq=count - 500),
        }
        for name, work in works.items():
            with tally.case(f"{name} of {count}"):
                peaks[name] = await peak_of(work)
    return peaks


async def one_run(made: AgentRuntime) -> None:
    handle = await made.start("and now?", session_id="s1")
    assert await handle.wait() is RunStatus.COMPLETED

"""Kill -9 between a question and its effect: nothing is done twice, nor without an answer."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from agent_core import AgentCoreError, RunStatus
from agent_core.types import ApprovalState, Decision, EventType, ReplayResult
from faults import aftermath
from faults.depth import Depth, Tally
from faults.drivers import answer_all, parking
from faults.homes import Place, a_place
from faults.injection import Ended, Fault, run_driver
from faults.test_cancelling import CountingLoop
from runtimes import CONFIG

pytestmark = pytest.mark.timeout(900)

PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n[memory]\nenabled = false\n'


async def check(place: Place, ended: Ended) -> None:
    """Answer what is still open, go on, and look at what has become of each call."""
    async with parking(str(place.home.path), str(place.project)) as made:
        await answer_all(made)
        handle = await made.start("again", session_id="s1")
        async with asyncio.timeout(20):
            assert await handle.wait() is RunStatus.COMPLETED, handle.error
        assert await made.approvals() == []
        replay = await made.replay_session("s1")
        (last,) = (run for run in replay.runs if run.run_id == handle.run_id)
        path = {node.node_id for node in await made.get_node_path(last.end_node_id or "")}
        questions = await made.approvals(is_open=False)
        children = [
            await made.replay_run(run_id)
            for run_id in {question.run_id for question in questions}
            if run_id not in {run.run_id for run in replay.runs}
        ]
    aftermath.check_history(replay, ended)
    aftermath.check_effects(place.project, replay)
    for database in place.home.path.glob("*.sqlite"):
        aftermath.check_database(database)
    allowed = {q.tool_call_id for q in questions if q.decision is Decision.ALLOW_ONCE}
    for part in (replay, *children):
        assert all(run.status.is_terminal for run in part.runs), part.runs
        started = {e.tool_call_id for e in part.events if e.event_type is EventType.TOOL_STARTED}
        asked = {
            call.tool_call_id
            for node in part.nodes
            if part is not replay or node.node_id in path
            for call in node.calls
        }
        asking = {
            call.tool_call_id
            for node in part.nodes
            for call in node.calls
            if call.name.startswith("code.")
        }
        assert started & asking <= allowed, "a call began without an answer"
        results = Counter(r.tool_call_id for node in part.nodes for r in node.results)
        # Nothing continues the path of a child that was closed after its process or its parent,
        # nor a reply whose answers could not be stored: the next run goes on from before it.
        is_whole = part is replay or part.runs[0].status is RunStatus.COMPLETED
        assert set(results.values()) <= {1}, "a call is answered twice"
        assert asked <= set(results) or not is_whole, "a call has no answer"
    assert all(q.state is not ApprovalState.OPEN for q in questions)
    first = next((run for run in replay.runs if run.run_id != handle.run_id), None)
    has_asked = bool(questions) and first is not None and first.status is RunStatus.COMPLETED
    if has_asked and _is_whole([replay, *children]):
        assert (place.project / "ran.txt").read_text() == "ran\n"
        assert (place.project / "made" / "b.txt").read_text() == "first\n"


def _is_whole(parts: Iterable[ReplayResult]) -> bool:
    """Whether every call has succeeded."""
    nodes = (node for part in parts for node in part.nodes)
    return not any(result.is_error for node in nodes for result in node.results)


def kill(call: str, at: int) -> bool:
    """Kill a run there, and look; False if it had ended before."""
    place = a_place(f"asking-{call}-{at}")
    place.home.write_config(PARK)
    paths = place.database if call != "write" else []
    fault = Fault(call, "kill", at, paths=paths)
    ended = run_driver("asking", place.home.path, place.project, fault)
    assert ended.is_killed or ended.code == 0, ended.errors
    try:
        asyncio.run(check(place, ended))
    except Exception as error:
        error.add_note(f"{fault} in {place.home.path}; calls:\n{ended.calls[-600:]}")
        raise
    place.give_back()
    return ended.is_killed


@pytest.mark.long
@pytest.mark.faults("questions: a run without a fault")
def test_a_run_that_asks_three_times_ends_whole(tally: Tally) -> None:
    place = a_place("asking-whole")
    place.home.write_config(PARK)
    with tally.case("no fault"):
        ended = run_driver("asking", place.home.path, place.project)
        assert ended.code == 0, ended.errors
        assert [run["run"] for run in ended.runs] == ["waiting", "completed"]
        asyncio.run(check(place, ended))
    tally.verdict()


@pytest.mark.long
@pytest.mark.usefixtures("strace")
@pytest.mark.faults("kill: a question, its answer and its effect")
def test_a_question_killed_at_any_write_of_the_database_is_asked_and_acted_on_once(
    tally: Tally, depth: Depth
) -> None:
    points = depth.points(40, 100, stride=43)
    assert tally.sweep(points, partial(kill, "pwrite64")), "no run was killed"


@pytest.mark.long
@pytest.mark.usefixtures("strace")
@pytest.mark.faults("kill: effects of answered questions")
def test_an_answered_call_killed_at_any_write_is_not_made_twice(tally: Tally, depth: Depth) -> None:
    assert tally.sweep(depth.points(2), partial(kill, "write")), "no run was killed"


@pytest.mark.long
@pytest.mark.usefixtures("strace")
@pytest.mark.faults("failed writes: questions")
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from then on"])
def test_questions_survive_a_full_disk(for_good: bool, tally: Tally, depth: Depth) -> None:
    def fill(at: int) -> bool:
        place = a_place(f"asking-full-{at}-{for_good}")
        place.home.write_config(PARK)
        fault = Fault("pwrite64", "ENOSPC", at, for_good=for_good, paths=place.database)
        ended = run_driver("asking", place.home.path, place.project, fault)
        assert ended.code in {0, 1}, ended.errors
        assert "Traceback" not in ended.errors
        asyncio.run(check(place, ended))
        place.give_back()
        return ended.has_failed_calls

    assert tally.sweep(depth.points(45, 75, stride=89), fill), "no write failed"


async def interrupted(place: Place, way: str, at: int) -> bool:
    """A run that is answered as it asks, with an interruption; False if it had ended before."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    beside: list[asyncio.Task[Any]] = []
    came_in_time = False
    async with parking(str(place.home.path), str(place.project)) as made:
        await made.list_sessions()  # opens what the first call opens

        async def work() -> None:
            handle = await made.start("go", session_id="s1")
            await handle.wait()
            await answer_all(made, is_told=False)

        async def cancel() -> None:
            for session in await made.list_sessions():
                page = await made.replay_session(session.session_id)
                for run in page.runs:
                    await (await made.attach(run.run_id)).cancel()

        async def answer() -> None:
            for question in await made.approvals(is_open=False):
                with suppress(AgentCoreError):
                    await made.answer(question.request_id, "allow_once")

        def strike() -> None:
            nonlocal came_in_time
            came_in_time = not working.done()
            match way:
                case "caller":
                    working.cancel()
                case "run":
                    beside.append(loop.create_task(cancel()))
                case "answer":
                    beside.append(loop.create_task(answer()))
                case _:
                    beside.append(loop.create_task(made.close()))

        working = asyncio.create_task(work())
        loop.interrupt(at, strike)
        async with asyncio.timeout(30):
            done: list[object] = [*await asyncio.gather(working, return_exceptions=True)]
            loop.interrupt(0, strike)  # from here on it is too late
            done += await asyncio.gather(*beside, return_exceptions=True)
        for error in done:
            expected = (asyncio.CancelledError, AgentCoreError)
            assert error is None or isinstance(error, expected), repr(error)
    await check(place, Ended(0, [], "", "", has_failed_calls=False))
    return came_in_time


def interrupt(way: str, at: int) -> bool:
    """One case in an event loop of its own, with nothing left over."""
    place = a_place(f"asking-{way}-{at}")
    place.home.write_config(PARK)
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        came_in_time = runner.run(interrupted(place, way, at))
        assert not asyncio.all_tasks(runner.get_loop())
    place.give_back()
    return came_in_time


@pytest.mark.parametrize("way", ["run", "caller", "answer", "runtime"])
@pytest.mark.faults("interrupted at every step: questions")
def test_a_run_that_waits_interrupted_at_any_step_ends_once(
    way: str, tally: Tally, depth: Depth
) -> None:
    points = depth.points(*range(20, 320, 150), stride=3)
    assert tally.sweep(points, partial(interrupt, way))

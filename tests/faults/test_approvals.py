"""Kill -9 between a question and its effect: nothing is done twice, nor without an answer."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial

import pytest

from agent_core import RunStatus
from agent_core.types import ApprovalState, Decision, EventType, ReplayResult
from faults import aftermath
from faults.depth import Depth, Tally
from faults.drivers import answer_all, parking
from faults.homes import Place, a_place
from faults.injection import Ended, Fault, run_driver
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
        asked = {call.tool_call_id for node in part.nodes for call in node.calls}
        asking = {
            call.tool_call_id
            for node in part.nodes
            for call in node.calls
            if call.name.startswith("code.")
        }
        assert started & asking <= allowed, "a call began without an answer"
        results = Counter(r.tool_call_id for node in part.nodes for r in node.results)
        is_whole = all(run.status is not RunStatus.FAILED for run in part.runs)
        assert set(results.values()) <= {1}, "a call is answered twice"
        assert set(results) == asked or not is_whole, "a call has no answer"
    assert all(q.state is not ApprovalState.OPEN for q in questions)
    first = next((run for run in replay.runs if run.run_id != handle.run_id), None)
    if first is not None and first.status is RunStatus.COMPLETED and _is_whole([replay, *children]):
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


@pytest.mark.usefixtures("strace")
@pytest.mark.faults("kill: a question, its answer and its effect")
def test_a_question_killed_at_any_write_of_the_database_is_asked_and_acted_on_once(
    tally: Tally, depth: Depth
) -> None:
    points = depth.points(40, 70, 100, stride=3)
    assert tally.sweep(points, partial(kill, "pwrite64")), "no run was killed"


@pytest.mark.usefixtures("strace")
@pytest.mark.faults("kill: effects of answered questions")
def test_an_answered_call_killed_at_any_write_is_not_made_twice(tally: Tally, depth: Depth) -> None:
    assert tally.sweep(depth.points(2), partial(kill, "write")), "no run was killed"

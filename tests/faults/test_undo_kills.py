"""Kill -9 at every write of a run that records its files, and of an undo; errors of its disk."""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import count
from pathlib import Path

import pytest

from agent_core import AgentCoreError, RunStatus
from casts import Cast
from faults.depth import Depth, Tally
from faults.drivers import opened
from faults.homes import Place, a_place
from faults.injection import FOLDERS, MODES, NAMES, SYNCS, WRITES, Ended, Fault, run_driver
from rights import as_anyone, as_superuser

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("strace")]

State = dict[str, tuple[int, bytes | str | None]]


def state_of(folder: Path) -> State:
    """Every path in a folder with its rights and what is in it."""
    found: State = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if path.is_symlink():
            found[str(path.relative_to(folder))] = (mode, str(path.readlink()))
        else:
            found[str(path.relative_to(folder))] = (
                mode,
                None if path.is_dir() else path.read_bytes(),
            )
    return found


@cache
def before_a_run() -> Place:
    """A project with files, and a home whose database is there."""
    place = a_place("files")
    (place.project / "old.txt").write_text("old\n")
    (place.project / "run.sh").write_text("true\n")
    (place.project / "empty").mkdir()
    assert run_driver("opening", place.home.path, place.project).code == 0
    return place


def after_a_run(name: str) -> Place:
    """The same after a run that has changed its files."""
    place = a_place(name, like=before_a_run())
    ended = run_driver("recorded", place.home.path, place.project)
    assert [run["run"] for run in ended.runs] == ["completed"], ended.errors
    return place


async def undo(place: Place) -> bool:
    """Start anew and take the message back, if there is one."""
    made = opened(str(place.home.path), str(place.project), Cast({}), snapshots="turn")
    async with made:
        try:
            await made.undo("s1")
        except AgentCoreError as error:
            if "nothing to undo" in error.message or "no session" in error.message:
                return False
            raise
        return True


async def redo(place: Place) -> None:
    made = opened(str(place.home.path), str(place.project), Cast({}), snapshots="turn")
    async with made:
        await made.redo("s1")


async def active_node(place: Place) -> str | None:
    """Where the session goes on after a new start, which finishes what was begun."""
    made = opened(str(place.home.path), str(place.project), Cast({}))
    async with made:
        return (await made.list_sessions())[0].active_node_id


def kill_run(call: str, at: int) -> bool:
    """Kill a run there: an undo still takes back all that it did. False if it ended before."""
    place = a_place(f"recorded-{call}-{at}", like=before_a_run())
    ended = run_driver("recorded", place.home.path, place.project, Fault(call, "kill", at))
    assert ended.is_killed or ended.code == 0, ended.errors
    try:
        asyncio.run(undo(place))
        assert state_of(place.project) == state_of(before_a_run().project)
    except Exception as error:
        error.add_note(f"killed at {call} {at} in {place.home.path}; calls:\n{ended.calls[-600:]}")
        raise
    place.give_back()
    return ended.is_killed


def kill_undo(call: str, at: int) -> bool:
    """Kill an undo there: files and conversation are both as before, or both undone."""
    place = after_a_run(f"undoing-{call}-{at}")
    whole, original = state_of(place.project), state_of(before_a_run().project)
    ended = run_driver("undoing", place.home.path, place.project, Fault(call, "kill", at))
    assert ended.is_killed or ended.code == 0, ended.errors
    try:
        is_undone = asyncio.run(active_node(place)) is None
        assert state_of(place.project) == (original if is_undone else whole)
        assert asyncio.run(undo(place)) is not is_undone
        assert state_of(place.project) == original
        asyncio.run(redo(place))
        assert state_of(place.project) == whole
    except Exception as error:
        error.add_note(f"killed at {call} {at} in {place.home.path}; calls:\n{ended.calls[-600:]}")
        raise
    place.give_back()
    return ended.is_killed


def fail_undo(call: str, what: str, at: int) -> bool:
    """Let one call of an undo fail: files and conversation are both as before, or both undone."""
    place = after_a_run(f"undoing-{what}-{call}-{at}")
    whole, original = state_of(place.project), state_of(before_a_run().project)
    ended = run_driver("undoing", place.home.path, place.project, Fault(call, what, at))
    try:
        left = state_of(place.project)  # before another start could mend it
        is_undone = asyncio.run(active_node(place)) is None
        assert left == state_of(place.project) == (original if is_undone else whole)
        assert asyncio.run(undo(place)) is not is_undone
        assert state_of(place.project) == original
    except Exception as error:
        error.add_note(f"{what} at {call} {at} in {place.home.path}; calls:\n{ended.calls[-600:]}")
        raise
    place.give_back()
    return ended.has_failed_calls


@cache
def before_a_run_that_closes() -> Place:
    """The same, with folders that a run can close."""
    place = a_place("closed", like=before_a_run())
    (place.project / "d" / "e").mkdir(parents=True)
    (place.project / "d" / "a").write_text("a\n")
    (place.project / "d" / "e" / "b").write_text("b\n")
    return place


def kill_undo_of_closed(call: str, at: int) -> bool:
    """Kill an undo that opens what the run has closed: rights are as before, too, or undone."""
    place = a_place(f"closed-{call}-{at}", like=before_a_run_that_closes())
    original = state_of(place.project)
    assert run_driver("closing", place.home.path, place.project).code == 0
    whole = state_of(place.project)
    fault = Fault(call, "kill", at)
    ended = run_driver("undoing as anyone", place.home.path, place.project, fault)
    assert ended.is_killed or ended.code == 0, ended.errors
    try:
        with as_anyone():
            is_undone = asyncio.run(active_node(place)) is None
            assert state_of_all(place.project) == (original if is_undone else whole)
            assert asyncio.run(undo(place)) is not is_undone
            assert state_of_all(place.project) == original
            asyncio.run(redo(place))
            assert state_of_all(place.project) == whole
    except Exception as error:
        error.add_note(f"killed at {call} {at} in {place.home.path}; calls:\n{ended.calls[-600:]}")
        raise
    place.give_back()
    return ended.is_killed


def state_of_all(folder: Path) -> State:
    """`state_of`, with the rights of the superuser, if the test has them."""
    with as_superuser():
        return state_of(folder)


def kill_beside_the_living(call: str, at: int) -> bool:
    """Kill an undo beside a process that lives on: its next undo finishes that one first."""
    place = after_a_run(f"beside-{call}-{at}")
    whole, original = state_of(place.project), state_of(before_a_run().project)
    ended = asyncio.run(_undo_beside(place, Fault(call, "kill", at)))
    try:
        assert state_of(place.project) == original
        assert asyncio.run(active_node(place)) is None
        asyncio.run(redo(place))
        assert state_of(place.project) == whole
    except Exception as error:
        error.add_note(f"killed at {call} {at} in {place.home.path}; calls:\n{ended.calls[-600:]}")
        raise
    place.give_back()
    return ended.is_killed


async def _undo_beside(place: Place, fault: Fault) -> Ended:
    made = opened(str(place.home.path), str(place.project), Cast({}), snapshots="turn")
    async with made:
        await made.list_sessions()
        ended = await asyncio.to_thread(
            run_driver, "undoing", place.home.path, place.project, fault
        )
        try:
            await made.undo("s1")
        except AgentCoreError as error:
            assert "nothing to undo" in error.message, error  # noqa: PT017
        return ended


def kill_before_a_message(call: str, at: int) -> bool:
    """Kill an undo, and send a message in a process that lives on: its files are those it knows."""
    place = after_a_run(f"message-{call}-{at}")
    whole, original = state_of(place.project), state_of(before_a_run().project)
    ended, said = asyncio.run(_ask_beside(place, Fault(call, "kill", at)))
    try:
        assert said in {("go", "again"), ("again",)}
        assert state_of(place.project) == (whole if "go" in said else original)
    except Exception as error:
        error.add_note(f"killed at {call} {at} in {place.home.path}; calls:\n{ended.calls[-600:]}")
        raise
    place.give_back()
    return ended.is_killed


async def _ask_beside(place: Place, fault: Fault) -> tuple[Ended, tuple[str, ...]]:
    cast = Cast({"again": ["fine"]})
    made = opened(str(place.home.path), str(place.project), cast, snapshots="turn")
    async with made:
        await made.list_sessions()
        ended = await asyncio.to_thread(
            run_driver, "undoing", place.home.path, place.project, fault
        )
        handle = await made.start("again", session_id="s1")
        assert await handle.wait() is RunStatus.COMPLETED
        active = str((await made.list_sessions())[0].active_node_id)
        path = await made.get_node_path(active)
        return ended, tuple(node.text for node in path if node.text in {"go", "again"})


CALLS = (*WRITES, *SYNCS, *NAMES, *FOLDERS)
OF_A_RUN = {"pwrite64": 61, "write": 9, "fsync": 5, "mkdir": 4, "rename": 4}
OF_AN_UNDO = {"pwrite64": 19, "write": 4, "fsync": 4, "unlinkat": 3}


def sweep(
    tally: Tally,
    depth: Depth,
    kill: Callable[[str, int], bool],
    *,
    strides: Mapping[str, int],
    sample: Mapping[str, int],
) -> None:
    """Kill at each call, some strides apart; a part of a whole sweep has calls of its own."""
    if depth.is_whole:
        for call in depth.of(CALLS, len(CALLS)):
            tally.sweep(count(1, strides.get(call, 1)), partial(kill, call))
    else:
        for call, at in sample.items():
            tally.sweep([at], partial(kill, call))


@pytest.mark.long
@pytest.mark.faults("kill: a run that records its files")
def test_what_a_run_that_was_killed_did_is_taken_back(tally: Tally, depth: Depth) -> None:
    sample = {"rename": 2, "pwrite64": 60}
    sweep(tally, depth, kill_run, strides=OF_A_RUN, sample=sample)


@pytest.mark.long
@pytest.mark.faults("kill: an undo")
def test_an_undo_that_was_killed_is_finished_or_never_was(tally: Tally, depth: Depth) -> None:
    sample = {"write": 3, "rename": 3}
    sweep(tally, depth, kill_undo, strides=OF_AN_UNDO, sample=sample)


@pytest.mark.faults("failed calls: an undo")
def test_an_undo_that_meets_a_broken_disk_is_whole_or_never_was(tally: Tally, depth: Depth) -> None:
    if depth.is_whole:
        for call in depth.of(NAMES, len(NAMES)):
            tally.sweep(count(1), partial(fail_undo, call, "EIO"))
    else:
        tally.sweep([5], partial(fail_undo, "rename", "EIO"))


@pytest.mark.faults("kill: an undo of what a run has closed")
def test_an_undo_that_opens_what_is_closed_leaves_nothing_open(tally: Tally, depth: Depth) -> None:
    if depth.is_whole:
        for call in depth.of((*MODES, "rename", "unlink"), len(MODES) + 2):
            tally.sweep(count(1), partial(kill_undo_of_closed, call))
    else:
        tally.sweep([2, 20], partial(kill_undo_of_closed, "chmod"))


@pytest.mark.faults("kill: an undo beside a living process")
def test_the_next_undo_of_a_living_process_finishes_a_killed_one(
    tally: Tally, depth: Depth
) -> None:
    sample = {"rename": 3}
    sweep(tally, depth, kill_beside_the_living, strides=OF_AN_UNDO, sample=sample)


@pytest.mark.faults("kill: an undo before a message in a living process")
def test_a_message_after_a_killed_undo_meets_the_files_it_knows(tally: Tally, depth: Depth) -> None:
    sample = {"write": 3, "unlink": 2}
    sweep(tally, depth, kill_before_a_message, strides=OF_AN_UNDO, sample=sample)

"""Kill -9 at every write, sync and change of a name, of everything that writes."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import pytest

from faults import aftermath
from faults.depth import Depth, Tally
from faults.homes import Place, a_place, released_before, used_before
from faults.injection import FOLDERS, NAMES, SYNCS, WRITES, Ended, Fault, run_driver, running

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("strace")]

Watched = tuple[str, Callable[[Place], list[Path]]]


def anything(place: Place) -> list[Path]:
    return []


def database(place: Place) -> list[Path]:
    return place.database


def task_log(place: Place) -> list[Path]:
    return [place.log]


def each(calls: tuple[str, ...], where: Callable[[Place], list[Path]]) -> list[Watched]:
    return [(call, where) for call in calls]


FILES = each((*WRITES, *SYNCS, *NAMES, *FOLDERS), anything)
STORE = each(("pwrite64", "ftruncate", "fdatasync", "fsync"), database)
LOG = each(("pwrite64", "ftruncate", "fsync"), task_log)
_LOCKS = {"memory-backlog.lock"}  # stays for good where a start has found sessions left over


@cache
def undisturbed(program: str) -> frozenset[str]:
    """The names of the files that are there after a run and a next start without a fault."""
    place = a_place(f"{program}-whole")
    ended = run_driver(program, place.home.path, place.project)
    assert ended.code == 0, ended.errors
    assert all(run["run"] == "completed" for run in ended.runs), ended.runs
    look(program, place, ended)
    return frozenset(aftermath.names(place.home.path, place.project)) | _LOCKS


def look(program: str, place: Place, ended: Ended) -> None:
    """Everything that must hold at the next start."""
    match program:
        case "profile":
            aftermath.check_run_folder(place.project / "run")
        case "tasks":
            asyncio.run(aftermath.check_tasks(place.home, place.project, ended))
            asyncio.run(aftermath.check_session(place.home, place.project, ended))
        case _:
            asyncio.run(aftermath.check_session(place.home, place.project, ended))
            aftermath.check_memories(place.home)


def kill(program: str, watched: Watched, at: int, *, like: Place | None = None) -> bool:
    """Kill a run there, and look; False if the run had ended before."""
    call, where = watched
    place = a_place(f"{program}-{call}-{at}", like=like)
    fault = Fault(call, "kill", at, paths=where(place))
    ended = run_driver(program, place.home.path, place.project, fault)
    assert ended.is_killed or ended.code == 0, ended.errors
    try:
        assert aftermath.survivors(place.project) == []
        look(program, place, ended)
        if program != "profile":  # a run folder has no next start
            left = aftermath.names(place.home.path, place.project) - undisturbed(program)
            assert not left, f"left behind: {left}"
    except Exception as error:
        error.add_note(f"{fault} in {place.home.path}; calls:\n{ended.calls[-600:]}")
        raise
    place.give_back()
    return ended.is_killed


def sweep(
    tally: Tally,
    depth: Depth,
    program: str,
    watched: list[Watched],
    *,
    like: Place | None = None,
    strides: Mapping[str, int] = {},
    **sample: int,
) -> None:
    """Each call at all its points, or at the one that the sample names."""
    killed = 0
    for each in watched:
        call = each[0]
        points = depth.points(
            *[sample[call]] if call in sample else [], stride=strides.get(call, 1)
        )
        killed += tally.sweep(points, partial(kill, program, each, like=like))
    assert killed, "no run was killed"


@pytest.mark.long
@pytest.mark.faults("kill: a session's database")
def test_a_session_killed_at_any_write_of_its_database_goes_on(tally: Tally, depth: Depth) -> None:
    strides = {"pwrite64": 17}
    sweep(
        tally,
        depth,
        "session",
        STORE,
        like=used_before(),
        strides=strides,
        pwrite64=45,
        fdatasync=2,
    )


@pytest.mark.long
@pytest.mark.faults("kill: the making of a database")
def test_a_database_killed_while_it_is_made_is_made_by_the_next_start(
    tally: Tally, depth: Depth
) -> None:
    sweep(tally, depth, "upgrade", STORE, strides={"pwrite64": 7}, pwrite64=20, ftruncate=1)


@pytest.mark.long
@pytest.mark.faults("kill: a migration")
def test_a_migration_killed_at_any_write_is_finished_by_the_next_start(
    tally: Tally, depth: Depth
) -> None:
    strides = {"pwrite64": 3}
    sweep(
        tally,
        depth,
        "upgrade",
        STORE,
        like=released_before(),
        strides=strides,
        pwrite64=4,
        ftruncate=1,
    )


@pytest.mark.long
@pytest.mark.faults("kill: files of tools and artifacts")
def test_a_session_killed_at_any_change_of_a_file_goes_on(tally: Tally, depth: Depth) -> None:
    sweep(tally, depth, "session", FILES, strides={"pwrite64": 131}, write=4, linkat=1, rename=1)


@pytest.mark.long
@pytest.mark.faults("kill: a Task's log")
def test_a_task_killed_at_any_write_of_its_log_goes_on(tally: Tally, depth: Depth) -> None:
    sweep(tally, depth, "tasks", LOG, pwrite64=4, fsync=2)


@pytest.mark.long
@pytest.mark.faults("kill: an orchestrator's files")
def test_an_orchestrator_killed_at_any_change_of_a_file_goes_on(tally: Tally, depth: Depth) -> None:
    sweep(tally, depth, "tasks", FILES, strides={"pwrite64": 149}, mkdirat=2)


@pytest.mark.long
@pytest.mark.faults("kill: memories")
def test_memory_killed_at_any_change_of_a_file_is_whole(tally: Tally, depth: Depth) -> None:
    sweep(tally, depth, "memory", FILES, strides={"pwrite64": 101}, write=2)


@pytest.mark.long
@pytest.mark.faults("kill: a run folder")
def test_a_profiles_run_killed_at_any_change_of_a_file_is_honest(
    tally: Tally, depth: Depth
) -> None:
    strides = {"write": 7, "fsync": 7}
    sweep(tally, depth, "profile", FILES, strides=strides, write=9, renameat=5)


@pytest.mark.faults("kill: a run with a command")
def test_no_process_of_a_command_survives_the_run_that_was_killed(tally: Tally) -> None:
    place = a_place("commanding")
    with (
        tally.case("setsid, double fork, closed pipes"),
        running("commanding", place.home.path, place.project) as (process, said),
    ):
        next(said)
        assert aftermath.survivors(place.project)
        process.kill()
        process.wait()
        until = time.monotonic() + 5
        while aftermath.survivors(place.project) and time.monotonic() < until:
            time.sleep(0.05)
        assert aftermath.survivors(place.project) == []
    tally.verdict()

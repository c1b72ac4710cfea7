"""A disk that is full or broken for a moment, or from then on, at every write and sync."""

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from agent_core.types import ReplayResult
from faults import aftermath
from faults.depth import Depth, Tally
from faults.homes import Place, a_place, released_before, used_before
from faults.injection import Ended, Fault, run_driver

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("strace")]

REFUSALS = {"storage_error", "migration_failed", "task_wal_unavailable", "config_error"}
Where = Callable[[Place], list[Path]]


def fail(program: str, fault: Fault, place: Place) -> bool:
    """Run with the fault, and look; False if it never came to it."""
    ended = run_driver(program, place.home.path, place.project, fault)
    try:
        check_end(program, ended, fault)
        assert aftermath.survivors(place.project) == []
        look(program, place, ended)
    except Exception as error:
        told = f"{fault} in {place.home.path}\n{ended.runs}\n{ended.errors}\n{ended.calls[-600:]}"
        error.add_note(told)
        raise
    place.give_back()
    return ended.has_failed_calls


def check_end(program: str, ended: Ended, fault: Fault) -> None:
    """A clear error, no traceback, and after a single failure the same process goes on."""
    assert ended.code in {0, 1}, "the process did not end in order"
    assert "Traceback" not in ended.errors
    assert "never retrieved" not in ended.errors
    for run in ended.runs:
        if run["run"] != "completed":
            assert run["code"], run
            assert run["message"], run
            if program in {"session", "upgrade"}:
                assert run["code"] in REFUSALS, run
    if program == "session" and not fault.for_good and len(ended.runs) > 1:
        for failed, following in pairwise(ended.runs):
            goes_on = failed["run"] == "completed" or following["run"] == "completed"
            assert goes_on, "the next run in the same process"


def look(program: str, place: Place, ended: Ended) -> None:
    """What must hold at the next start, when there is room again."""
    if program == "profile":
        aftermath.check_run_folder(place.project / "run")
        return
    if program == "tasks":
        asyncio.run(aftermath.check_tasks(place.home, place.project, ended))
    replay = asyncio.run(aftermath.check_session(place.home, place.project, ended))
    aftermath.check_memories(place.home)
    check_rows(replay, ended)


def check_rows(replay: ReplayResult, ended: Ended) -> None:
    """What the handle said about a run is what its row says, if anything could be stored."""
    rows = {run.run_id: str(run.status) for run in replay.runs}
    for run in ended.runs:
        row = rows.get(run.get("run_id", ""))
        if row is not None and run["run"] == "completed":
            assert row == "completed", (run, row)
        if row == "completed":
            assert run["run"] == "completed", (run, row)


def sweep(
    tally: Tally,
    depth: Depth,
    program: str,
    calls: Mapping[str, int],
    where: Where,
    *,
    like: Place | None = None,
    **sample: int,
) -> None:
    """Each call at all its points, its stride apart, or at the one that the sample names.

    Every point with one of the errors, once and for good.
    """
    for call, stride in calls.items():
        short = [sample[call]] if call in sample else []
        for number, at in enumerate(depth.points(*short, stride=stride)):
            what = _ERRORS[number % len(_ERRORS)]
            place = a_place(f"{program}-{call}-{at}", like=like)
            once = Fault(call, what, at, paths=where(place))
            if tally.try_case(str(once), partial(fail, program, once, place)) is False:
                break
            place = a_place(f"{program}-{call}-{at}", like=like)
            always = Fault(call, what, at, for_good=True, paths=where(place))
            tally.try_case(str(always), partial(fail, program, always, place))
    tally.verdict()


_ERRORS = ("ENOSPC", "EIO", "EDQUOT")


def anything(place: Place) -> list[Path]:
    return []


def database(place: Place) -> list[Path]:
    return place.database


def task_log(place: Place) -> list[Path]:
    return [place.log]


@pytest.mark.long
@pytest.mark.faults("failed writes: a session's database")
def test_a_session_survives_failed_writes_of_its_database(tally: Tally, depth: Depth) -> None:
    calls = {"pwrite64": 19, "fdatasync": 1, "ftruncate": 1}
    sweep(tally, depth, "session", calls, database, like=used_before(), pwrite64=7)


@pytest.mark.long
@pytest.mark.faults("failed writes: the making of a database")
def test_the_making_of_a_database_survives_failed_writes(tally: Tally, depth: Depth) -> None:
    calls = {"pwrite64": 7, "fdatasync": 1, "ftruncate": 1}
    sweep(tally, depth, "upgrade", calls, database, pwrite64=7, fdatasync=1)


@pytest.mark.long
@pytest.mark.faults("failed writes: a migration")
def test_a_migration_survives_failed_writes(tally: Tally, depth: Depth) -> None:
    calls = {"pwrite64": 7, "fdatasync": 1, "ftruncate": 1}
    sweep(tally, depth, "upgrade", calls, database, like=released_before(), pwrite64=4)


@pytest.mark.faults("failed writes: files of tools and artifacts")
def test_tools_and_artifacts_survive_failed_writes(tally: Tally, depth: Depth) -> None:
    sweep(tally, depth, "session", {"write": 1, "fsync": 1, "linkat": 1}, anything, write=3)


@pytest.mark.faults("failed writes: a Task's log")
def test_a_tasks_log_survives_failed_writes(tally: Tally, depth: Depth) -> None:
    sweep(tally, depth, "tasks", {"pwrite64": 1, "fsync": 1}, task_log, fsync=1)


@pytest.mark.long
@pytest.mark.faults("failed writes: memories")
def test_memories_survive_failed_writes(tally: Tally, depth: Depth) -> None:
    sweep(tally, depth, "memory", {"write": 1, "fsync": 1, "renameat": 1}, anything, write=1)


@pytest.mark.faults("failed writes: a run folder")
def test_a_run_folder_survives_failed_writes(tally: Tally, depth: Depth) -> None:
    sweep(tally, depth, "profile", {"write": 7, "fsync": 7, "renameat": 1}, anything, write=3)


@pytest.mark.faults("failed writes: the command line")
def test_the_command_line_says_what_is_wrong_and_ends_with_its_code(
    tally: Tally, depth: Depth
) -> None:
    def check(at: int) -> bool:
        place = a_place(f"cli-{at}", like=used_before())
        script = place.home.write("script.json", json.dumps(["fine"]))
        model = f'provider = "scripted"\nname = "s"\ncontext_window = 32000\npath = "{script}"'
        place.home.write_config(f"[model]\n{model}\n")
        fault = Fault("pwrite64", "ENOSPC", at, for_good=True, paths=place.database)
        ended = run_driver("command line", place.home.path, place.project, fault)
        assert "Traceback" not in ended.errors
        assert ended.code == 0 or (ended.code == 1 and "disk" in ended.errors), ended.errors
        place.give_back()
        return ended.has_failed_calls

    tally.sweep(depth.points(1, stride=3), check)

"""Clocks that jump by ten days in the middle of a run, and processes that stand still."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from faults import aftermath
from faults.depth import Depth, Tally
from faults.homes import Place, a_place
from faults.injection import run_driver, running

pytestmark = pytest.mark.timeout(300)
LIBRARIES = ("/usr/lib", "/usr/local/lib", "/opt/homebrew/lib")


@pytest.fixture(scope="module")
def library() -> str:
    """The path of libfaketime."""
    found = sorted(
        str(path) for root in LIBRARIES for path in Path(root).glob("**/libfaketimeMT.so*")
    )
    if not found:
        pytest.skip("needs libfaketime (Debian: apt-get install libfaketime)")
    return found[0]


def clock(library: str, place: Place, *jumps: str) -> dict[str, str]:
    """What makes a driver's clock jump; timeouts keep the monotonic clock."""
    file = place.home.path.with_suffix(".clock")
    file.write_text(jumps[0], encoding="ascii")
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # with it, threads wait for the interpreter in a loop
        "FAULT_JUMPS": ",".join(jumps),
    }


JUMPS = [("+0", "+10d", "-10d"), ("+10d", "+0"), ("-10d", "+10d"), ("+0", "-10d")]


@pytest.mark.long
@pytest.mark.faults("clock jumps")
def test_a_run_whose_clock_jumps_is_an_ordinary_run(
    tally: Tally, depth: Depth, library: str
) -> None:
    cases = [(program, jumps) for jumps in JUMPS for program in ("session", "tasks")]
    for program, jumps in depth.of(cases, 1):
        with tally.case(f"{program} with {jumps}"):
            place = a_place(f"clock-{program}")
            began = time.monotonic()
            ended = run_driver(
                program, place.home.path, place.project, environment=clock(library, place, *jumps)
            )
            assert time.monotonic() - began < 50
            assert ended.code == 0, ended.errors
            assert {run["run"] for run in ended.runs} == {"completed"}, ended.runs
            assert ended.errors == ""
            if program == "tasks":
                asyncio.run(aftermath.check_tasks(place.home, place.project, ended))
            asyncio.run(aftermath.check_session(place.home, place.project, ended))
    tally.verdict()


@pytest.mark.long
@pytest.mark.faults("clock jumps")
def test_a_session_of_a_living_process_is_not_taken_by_one_that_is_ten_days_ahead(
    tally: Tally, library: str
) -> None:
    place = a_place("ahead")
    with (
        tally.case("taken while alive"),
        running("holding", place.home.path, place.project) as (process, said),
    ):
        assert "started" in next(said)
        later = clock(library, place, "+10d")
        ended = run_driver("session", place.home.path, place.project, environment=later)
        assert {run["code"] for run in ended.runs} == {"session_active"}
        process.send_signal(signal.SIGSTOP)
        ended = run_driver("session", place.home.path, place.project, environment=later)
        assert {run["code"] for run in ended.runs} == {"session_active"}
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        ended = run_driver("session", place.home.path, place.project, environment=later)
        assert {run["run"] for run in ended.runs} == {"completed"}, ended.runs
        asyncio.run(aftermath.check_session(place.home, place.project, ended))
    tally.verdict()


@pytest.mark.long
@pytest.mark.faults("suspended processes")
def test_a_run_whose_process_stands_still_for_a_while_goes_on(tally: Tally) -> None:
    place = a_place("still")
    with (
        tally.case("stopped and continued"),
        running("pausing", place.home.path, place.project) as (process, said),
    ):
        lines: list[Any] = []
        for line in said:
            lines.append(line)
            if "pausing" in line:
                process.send_signal(signal.SIGSTOP)
                time.sleep(1.2)
                process.send_signal(signal.SIGCONT)
        assert [line["run"] for line in lines if "run" in line] == ["completed"] * 2
        types = [line["type"] for line in lines if "type" in line]
        assert "model_retry" not in types
        assert types.count("model_started") == 3
    tally.verdict()

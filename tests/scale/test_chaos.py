"""A short round of chaos, whose faults come once and in one order.

Only `--whole` has all of them; `make chaos` plays whole rounds.
"""

import asyncio
from pathlib import Path

import pytest

from isolation import Home
from postgres import Server
from scale.chaos import Shape, play
from sweeps import is_whole

FAULTS = ("pause_in_call", "kill", "cut")
MORE = ("lose_answer", "drain", "pause", "half_close", "kill_in_call", "stall")
SHORT = Shape(
    runs=16 if is_whole() else 6,
    sessions=6 if is_whole() else 3,
    snapshots=2 if is_whole() else 1,
    readers=1,
    workers=2,
    heartbeat_s=0.5,
    lease_s=2,
    pause_s=4,
    between_faults_s=(0.7, 0.7),
    patience_s=60,
    faults=(*FAULTS, *MORE) if is_whole() else FAULTS,
    more_faults=0,
)


@pytest.mark.cold  # what is left behind is known by the variables it was started with
@pytest.mark.timeout(120)
def test_runs_end_well_on_workers_that_are_killed_paused_and_cut_off(
    home: Home, project: Path, shared_postgres: Server, database_url: str
) -> None:
    database = database_url.rpartition("/")[2]
    problems = asyncio.run(play(SHORT, 1, shared_postgres, database, project / "round"))
    assert problems == []

"""A short round of chaos: every fault once, in one order. `make chaos` plays whole rounds."""

import asyncio
from pathlib import Path

import pytest

from isolation import Home
from postgres import Server
from scale.chaos import Shape, play

SHORT = Shape(
    runs=16,
    sessions=6,
    snapshots=3,
    readers=1,
    workers=2,
    heartbeat_s=0.5,
    lease_s=2,
    pause_s=4,
    between_faults_s=(0.7, 0.7),
    patience_s=60,
    faults=(
        *("pause_in_call", "kill", "cut", "lose_answer"),
        *("pause", "half_close", "kill_in_call", "drain", "stall"),
    ),
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

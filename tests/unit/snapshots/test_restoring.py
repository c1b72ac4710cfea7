"""A restore brings back exactly what was recorded, and destroys nothing else."""

import shutil
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agent_core.snapshots.store import SnapshotStore
from workspaces import change, fingerprint


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "home" / "snapshots")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.mark.timeout(120)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 12), min_size=2, max_size=5))
def test_any_state_comes_back_exactly(seed: int, steps: list[int]) -> None:
    random = Random(seed)  # noqa: S311
    place = Path(tempfile.mkdtemp())
    try:
        work = place / "work"
        work.mkdir()
        store = SnapshotStore(place / "store")
        states: list[tuple[str, str]] = []
        for count in steps:
            for _ in range(count):
                change(work, random)
            states.append((store.record(work).snapshot_id, fingerprint(work)))
        for snapshot_id, expected in random.sample(states * 2, len(states) * 2):
            done = store.restore(work, snapshot_id)
            assert fingerprint(work) == expected, (seed, steps, done)
            assert not done.refused
            assert store.record(work).snapshot_id == snapshot_id
            assert not list(work.glob(".soong-agent-*"))
    finally:
        shutil.rmtree(place)

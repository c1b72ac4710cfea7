"""The objects behind snapshots: shared, swept, checked, and sound after a crash."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent_core.errors import StorageError
from agent_core.snapshots.packs import Packs, digest_of
from agent_core.snapshots.store import SnapshotStore


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "store")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def later() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=5)


def packed_bytes(work: Path) -> int:
    return sum(path.stat().st_size for path in (work.parent / "store" / "packs").iterdir())


def test_the_same_content_is_kept_once(store: SnapshotStore, work: Path, tmp_path: Path) -> None:
    (work / "a").write_bytes(os.urandom(100_000))
    store.record(work)
    size = packed_bytes(work)
    (work / "b").write_bytes((work / "a").read_bytes())
    other = tmp_path / "other"
    other.mkdir()
    (other / "c").write_bytes((work / "a").read_bytes())
    store.record(work)
    store.record(other)
    assert packed_bytes(work) < size + 2000


@pytest.mark.long
def test_a_small_change_of_a_large_file_takes_little(store: SnapshotStore, work: Path) -> None:
    (work / "large").write_bytes(os.urandom(20 << 20))
    first = store.record(work).snapshot_id
    size = packed_bytes(work)
    with (work / "large").open("ab") as file:
        file.write(b"more")
    store.record(work)
    assert packed_bytes(work) < size + (5 << 20)
    store.restore(work, first)
    assert (work / "large").stat().st_size == 20 << 20


def test_a_sparse_file_takes_no_space(store: SnapshotStore, work: Path) -> None:
    with (work / "sparse").open("wb") as file:
        file.truncate(16 << 20)
        file.seek(8 << 20)
        file.write(b"middle")
    first = store.record(work).snapshot_id
    assert packed_bytes(work) < 200_000
    content = (work / "sparse").read_bytes()
    (work / "sparse").unlink()
    store.restore(work, first)
    assert (work / "sparse").read_bytes() == content
    assert (work / "sparse").stat().st_blocks * 512 < 1 << 20


def test_a_sweep_removes_what_only_forgotten_snapshots_held(
    store: SnapshotStore, work: Path
) -> None:
    (work / "kept").write_bytes(os.urandom(200_000))
    kept = store.record(work).snapshot_id
    (work / "gone").write_bytes(os.urandom(500_000))
    gone = store.record(work).snapshot_id
    (work / "gone").unlink()
    assert store.sweep({kept, gone}, recorded_before=later()) == 0
    assert store.sweep({kept}, recorded_before=datetime.now(UTC) - timedelta(hours=1)) == 0
    assert store.sweep({kept}, recorded_before=later()) > 400_000
    assert packed_bytes(work) < 250_000
    with pytest.raises(StorageError, match="there is no snapshot"):
        store.get(gone)
    assert store.verify(kept) == []


def test_what_was_swept_is_recorded_again(store: SnapshotStore, work: Path) -> None:
    (work / "a").write_bytes(os.urandom(100_000))
    (work / "in").mkdir()
    (work / "in" / "large").write_bytes(os.urandom(5 << 20))
    first = store.record(work)
    store.sweep([], recorded_before=later())
    again = store.record(work)
    assert again == first
    assert store.verify(again.snapshot_id) == []


def test_a_sweep_leaves_what_is_in_use_to_a_later_one(store: SnapshotStore, work: Path) -> None:
    (work / "a").write_bytes(os.urandom(100_000))
    store.record(work)
    with store._working():
        assert store.sweep([], recorded_before=later()) == 0
    assert store.sweep([], recorded_before=later()) > 0


def test_an_erasure_removes_the_objects_that_a_sweep_has_left(
    store: SnapshotStore, work: Path
) -> None:
    (work / "kept").write_bytes(os.urandom(500_000))
    (work / "gone").write_bytes(small := os.urandom(5000))
    store.record(work)
    (work / "gone").unlink()
    kept = store.record(work).snapshot_id

    def is_there() -> bool:
        with Packs(work.parent / "store" / "packs") as packs:
            return packs.has(digest_of(small))

    assert store.sweep({kept}, recorded_before=later()) == 0  # too little to rewrite a pack for
    assert is_there()
    for _ in range(2):
        store.erase([], lambda: {kept}, recorded_before=later(), wait_s=0)
        assert not is_there()
        assert store.verify(kept) == []
    with store._working(), pytest.raises(StorageError, match="are in use"):
        store.erase([kept], list, recorded_before=later(), wait_s=0.1)
    assert store.has(kept)
    store.erase([kept], list, recorded_before=later(), wait_s=0)
    assert not store.has(kept)


@pytest.mark.parametrize("size", [0, 5, 15, 16, 17, 60, -1])
@pytest.mark.parametrize("flips", [False, True])
def test_a_sweep_ignores_damaged_findings(
    store: SnapshotStore, work: Path, size: int, flips: bool
) -> None:
    (work / "a").write_bytes(os.urandom(100_000))
    store.record(work)
    (last,) = (work.parent / "store" / "projects").glob("*/last")
    content = bytearray(last.read_bytes())
    if flips:
        content[size] ^= 0xFF
    last.write_bytes(content if flips else content[:size])
    assert store.sweep([], recorded_before=later()) > 0
    assert last.exists()
    assert store.verify(store.record(work).snapshot_id) == []


def test_many_small_packs_become_one(store: SnapshotStore, work: Path) -> None:
    ids: list[str] = []
    for number in range(45):
        (work / "a").write_text(str(number))
        ids.append(store.record(work).snapshot_id)
    assert len(list((work.parent / "store" / "packs").iterdir())) < 10
    assert [store.verify(snapshot_id) for snapshot_id in ids] == [[]] * 45


@pytest.mark.parametrize("harm", ["middle", "end", "footer", "empty"])
def test_damage_is_named_and_the_rest_is_usable(
    store: SnapshotStore, work: Path, harm: str
) -> None:
    for name in ("a", "b", "c"):
        (work / name).write_bytes(name.encode() * 3 + os.urandom(50_000))
    contents = {path.name: path.read_bytes() for path in work.iterdir()}
    first = store.record(work).snapshot_id
    (work / "d").write_text("later")
    second = store.record(work).snapshot_id
    packs = sorted(
        (work.parent / "store" / "packs").iterdir(), key=lambda path: path.stat().st_size
    )
    content = bytearray(packs[-1].read_bytes())
    match harm:
        case "middle":
            content[60_000] ^= 1
        case "end":
            del content[120_000:]
        case "footer":
            content[-20] ^= 1
        case _:
            content.clear()
    packs[-1].write_bytes(content)
    damaged = {each.path for each in store.verify(second)}
    if harm == "footer":
        assert not damaged
    else:
        assert damaged
    for path in work.iterdir():
        path.unlink()
    if damaged & contents.keys():
        with pytest.raises(StorageError) as caught:
            store.restore(work, second)
        assert set(caught.value.details["paths"]) == damaged & contents.keys() | damaged
        assert list(work.iterdir()) == []
    if first and "." not in damaged:
        done = store.restore(work, second, force=True)
        assert set(done.refused) == damaged
        left = {path.name: path.read_bytes() for path in work.iterdir() if path.name != "d"}
        assert left == {name: contents[name] for name in contents.keys() - damaged}
        assert (work / "d").read_text() == "later"


def test_a_store_that_cannot_be_written_is_a_clear_error_and_loses_nothing(
    store: SnapshotStore, work: Path
) -> None:
    (work / "a").write_text("kept")
    kept = store.record(work).snapshot_id
    for number in range(20):
        (work / f"large-{number}").write_bytes(os.urandom(200_000))
    program = """
import resource, sys
from pathlib import Path
from agent_core.errors import StorageError
from agent_core.snapshots.store import SnapshotStore
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    SnapshotStore(Path(sys.argv[1])).record(Path(sys.argv[2]))
except StorageError as error:
    print(error)
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", program, str(work.parent / "store"), str(work)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no snapshot can be written to" in done.stdout, done.stderr
    assert store.verify(kept) == []
    assert [path.suffix for path in (work.parent / "store" / "packs").iterdir()] == [".pack"]
    full = store.record(work)
    assert (full.files, store.verify(full.snapshot_id)) == (21, [])

"""Who is alive, told by locks that die with their holder."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core.errors import StorageError
from agent_core.storage.owners import Owner
from isolation import program_file
from tables import together

HOLD = """
import sys, time
from pathlib import Path
from agent_core.storage.owners import Owner
with Owner.open(Path(sys.argv[1])) as owner:
    print(owner.owner_id, flush=True)
    time.sleep(60)
"""
LEASE_IS_OVER, LEASE_HOLDS = True, False


def locks(home: Path) -> list[Path]:
    return sorted((home / "sessions" / ".owners").iterdir())


def start_holder(home: Path) -> tuple[subprocess.Popen[str], str]:
    holder = subprocess.Popen(  # noqa: S603
        [sys.executable, program_file(HOLD), str(home)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    return holder, holder.stdout.readline().strip()


def test_an_owner_lives_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    with Owner.open(tmp_path) as judge:
        with Owner.open(tmp_path) as other:
            assert not judge.is_dead(other.owner_id, LEASE_IS_OVER)
            assert not other.is_dead(judge.owner_id, LEASE_IS_OVER)
            assert not judge.is_dead(judge.owner_id, LEASE_IS_OVER)
        assert judge.is_dead(other.owner_id, LEASE_IS_OVER)
        assert len(locks(tmp_path)) == 1
    assert locks(tmp_path) == []


def test_looking_at_an_owner_does_not_disturb_it(tmp_path: Path) -> None:
    with Owner.open(tmp_path) as judge, Owner.open(tmp_path) as other:
        for _ in range(100):
            assert not judge.is_dead(other.owner_id, LEASE_IS_OVER)
            judge.sweep()
        assert len(locks(tmp_path)) == 2


def test_a_killed_process_is_dead_at_once_whatever_its_lease_says(tmp_path: Path) -> None:
    holder, owner_id = start_holder(tmp_path)
    with holder, Owner.open(tmp_path) as judge:
        assert not judge.is_dead(owner_id, LEASE_IS_OVER)
        holder.send_signal(signal.SIGSTOP)
        assert not judge.is_dead(owner_id, LEASE_IS_OVER)
        holder.kill()
        holder.wait()
        assert judge.is_dead(owner_id, LEASE_HOLDS)
        assert len(locks(tmp_path)) == 2
        judge.sweep()
        assert len(locks(tmp_path)) == 1
        assert judge.is_dead(owner_id, LEASE_HOLDS)


def test_a_child_process_does_not_keep_its_parent_alive(tmp_path: Path) -> None:
    with Owner.open(tmp_path) as judge:
        with Owner.open(tmp_path) as parent:
            child = subprocess.Popen(["sleep", "30"])  # noqa: S607
        with child:
            assert judge.is_dead(parent.owner_id, LEASE_IS_OVER)
            child.kill()


@together("foreign", ["own_1.0123456789ab", "own_1.lease", "own_1", ""])
def test_an_owner_whose_lock_is_out_of_sight_is_judged_by_its_lease(
    tmp_path: Path, foreign: str
) -> None:
    with Owner.open(tmp_path) as judge:
        assert judge.is_dead(foreign, LEASE_IS_OVER)
        assert not judge.is_dead(foreign, LEASE_HOLDS)


def test_two_homes_that_share_a_database_judge_each_other_by_lease(tmp_path: Path) -> None:
    with Owner.open(tmp_path / "one") as one, Owner.open(tmp_path / "two") as two:
        assert not one.is_dead(two.owner_id, LEASE_HOLDS)
        assert one.is_dead(two.owner_id, LEASE_IS_OVER)


def test_locks_are_for_their_user_only(tmp_path: Path) -> None:
    with Owner.open(tmp_path):
        (lock,) = locks(tmp_path)
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(lock.parent.parent.stat().st_mode) == 0o700


def test_a_home_that_takes_no_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("in the way", encoding="utf-8")
    with pytest.raises(StorageError, match="sessions"), Owner.open(tmp_path):
        pass


def test_many_owners_come_and_go_at_once_without_losing_a_lock(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from agent_core.storage.owners import Owner
home = Path(sys.argv[1])
for _ in range(150):
    with Owner.open(home) as owner:
        held = home / "sessions" / ".owners" / f"{owner.owner_id}.lock"
        assert held.exists(), held
        owner.sweep()
        assert held.exists(), held
"""
    workers = [
        subprocess.Popen(  # noqa: S603
            [sys.executable, program_file(code), str(tmp_path)], stderr=subprocess.PIPE
        )
        for _ in range(4)
    ]
    for worker in workers:
        _, complaint = worker.communicate()
        assert worker.returncode == os.EX_OK, complaint.decode()
    assert locks(tmp_path) == []


def test_where_files_cannot_be_locked_leases_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with Owner.open(tmp_path) as one, Owner.open(tmp_path) as two:
        assert not one.is_dead(two.owner_id, LEASE_HOLDS)
        assert two.is_dead(one.owner_id, LEASE_IS_OVER)
        assert not one.is_dead(one.owner_id, LEASE_IS_OVER)

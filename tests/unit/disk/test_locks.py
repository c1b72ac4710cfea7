"""The locks of files, beside processes that are forked while one is held."""

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from agent_core.disk.locks import locked, locked_if_free
from agent_core.memory.folder import MemoryFolder

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

Lock = Callable[[Path], AbstractContextManager[object]]
LOCKS: dict[str, Lock] = {
    "locked": lambda folder: locked(folder / "lock", check=lambda: None),
    "locked if free": lambda folder: locked_if_free(folder / "lock"),
    "memory": lambda folder: MemoryFolder(folder / "memory").locked(),
}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_a_process_that_is_forked_under_a_lock_does_not_keep_it(lock: Lock, tmp_path: Path) -> None:
    with lock(tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
    try:
        with locked_if_free(next(tmp_path.rglob("*lock"))) as is_free:
            assert is_free
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_forked_process_does_not_release_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock = locked(tmp_path / "lock", check=lambda: None)
    lock.__enter__()
    child = os.fork()
    if child == 0:
        lock.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    with locked_if_free(tmp_path / "lock") as is_free:
        assert not is_free
    lock.__exit__(None, None, None)

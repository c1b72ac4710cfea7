"""Files are opened where they were checked, and replaced whole or not at all."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agent_core.aio import finish_uncancelled
from agent_core.disk.folders import folder_address
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools import files
from agent_core.tools.files import (
    disk_errors,
    open_file,
    read_state,
)
from isolation import program_file

Replace = Callable[..., object]


@pytest.fixture
def replace_file(home: Path) -> Replace:
    return partial(files.replace_file, unfinished=UnfinishedWrites.at(home))


def read(path: Path) -> bytes:
    with disk_errors("it"), open_file(path) as file:
        return file.read()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def code_of(path: Path) -> ErrorCode:
    with pytest.raises(ToolError) as refusal:
        read(path)
    return refusal.value.code


def test_an_ordinary_file_is_read(project: Path) -> None:
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"text")
    assert read(deep / "f") == b"text"


def test_a_folder_swapped_for_a_link_is_not_followed(
    project: Path, home: Path, replace_file: Replace
) -> None:
    (project / "folder").mkdir()
    path = project / "folder" / "config.toml"
    path.write_bytes(b"mine")
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(home)
    assert code_of(path) is ErrorCode.PATH_CONFLICT
    with pytest.raises(ToolError), disk_errors("it"):
        replace_file(path, b"new", before=None)
    assert (home / "config.toml").read_bytes() == b"secret"


def test_a_file_swapped_for_a_link_is_not_followed(project: Path, home: Path) -> None:
    path = project / "file"
    path.symlink_to(home / "config.toml")
    assert code_of(path) is ErrorCode.PATH_CONFLICT


def test_what_is_no_ordinary_file_is_refused_without_waiting(project: Path) -> None:
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(project / "socket"))
        assert code_of(project / "pipe") is ErrorCode.PATH_CONFLICT
        assert code_of(project / "socket") is ErrorCode.PATH_CONFLICT
    for special in ("/dev/zero", "/proc/self/mem", f"/proc/{os.getpid()}/environ", "/sys/kernel"):
        assert code_of(Path(special)) is ErrorCode.PATH_CONFLICT
    assert code_of(project) is ErrorCode.PATH_CONFLICT
    assert code_of(project / "nothing") is ErrorCode.FILE_NOT_FOUND
    assert code_of(project / "pipe" / "x") is ErrorCode.PATH_CONFLICT
    assert code_of(project / ("x" * 300)) is ErrorCode.VALIDATION_ERROR


def test_a_new_file_appears_with_its_folders_and_the_usual_mode(
    project: Path, replace_file: Replace
) -> None:
    path = project / "a" / "b" / "f"
    mask = os.umask(0o022)
    try:
        replace_file(path, b"new", before=None)
    finally:
        os.umask(mask)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert names(path.parent) == ["f"]


def test_a_replaced_file_keeps_its_mode(project: Path, replace_file: Replace) -> None:
    path = project / "f"
    path.write_bytes(b"old")
    path.chmod(0o751)
    replace_file(path, b"new", before=read_state(path))
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751


def test_a_file_that_changed_or_appeared_since_is_left_alone(
    project: Path, replace_file: Replace
) -> None:
    path = project / "f"
    path.write_bytes(b"old")
    before = read_state(path)
    path.write_bytes(b"odd")
    for snapshot in (before, None):
        with pytest.raises(ToolError, match="changed on disk") as refusal:
            replace_file(path, b"new", before=snapshot)
        assert refusal.value.code is ErrorCode.PATH_CONFLICT
    assert path.read_bytes() == b"odd"
    assert names(project) == ["f"]


def test_a_file_that_went_away_since_is_not_made_again(
    project: Path, replace_file: Replace
) -> None:
    path = project / "f"
    path.write_bytes(b"old")
    before = read_state(path)
    path.unlink()
    with pytest.raises(ToolError, match="changed on disk"):
        replace_file(path, b"new", before=before)
    assert names(project) == []


def test_a_hard_link_elsewhere_keeps_its_content(
    project: Path, home: Path, replace_file: Replace
) -> None:
    os.link(home / "config.toml", project / "f")
    replace_file(project / "f", b"new", before=read_state(project / "f"))
    assert (home / "config.toml").read_bytes() == b"secret"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    project: Path, monkeypatch: pytest.MonkeyPatch, replace_file: Replace
) -> None:
    path = project / "f"
    path.write_bytes(b"old")
    before = read_state(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolError) as refusal, disk_errors("f"):
        replace_file(path, b"new", before=before)
    assert refusal.value.code is ErrorCode.STORAGE_ERROR
    assert path.read_bytes() == b"old"
    assert names(project) == ["f"]


KILLED = """
import os, signal, sys
from pathlib import Path
from agent_core.tools import files
from agent_core.aio import finish_uncancelled
from agent_core.disk.unfinished import UnfinishedWrites
path, nth = Path(sys.argv[1]), int(sys.argv[2])
count = 0
def step(real):
    def call(*args, **kwargs):
        global count
        count += 1
        if count == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call
before = files.read_state(path)
for name in ("open", "fdopen", "fsync", "rename", "fchmod", "close"):
    setattr(os, name, step(getattr(os, name)))
notes = UnfinishedWrites(path.parent.parent / "notes")
files.replace_file(path, b"new" * 100_000, before=before, unfinished=notes)
"""


@pytest.mark.long
def test_g8_a_kill_at_any_step_leaves_the_old_file_or_the_new_one(project: Path) -> None:
    path = project / "f"
    seen: set[bytes] = set()
    for nth in (5, 12, 16, 18, 20, 22, 24, 26, 28, 99):
        path.write_bytes(b"old")
        subprocess.run(  # noqa: S603
            [sys.executable, program_file(KILLED), str(path), str(nth)], check=False
        )
        seen.add(path.read_bytes())
    assert seen == {b"old", b"new" * 100_000}


def test_a_folder_has_an_address_that_survives_a_swap(project: Path, home: Path) -> None:
    folder = project / "folder"
    folder.mkdir()
    with folder_address(folder) as address:
        folder.rename(project / "moved")
        folder.symlink_to(home)
        Path(address, "made").touch()
    assert (project / "moved" / "made").exists()
    assert not (home / "made").exists()


async def test_a_change_that_was_begun_is_finished_before_a_cancel_is_over() -> None:
    begun, release = threading.Event(), threading.Event()
    done: list[int] = []

    def change() -> None:
        begun.set()
        release.wait(5)
        done.append(1)

    changing = asyncio.create_task(finish_uncancelled(asyncio.to_thread(change)))
    assert await asyncio.to_thread(begun.wait, 5)
    changing.cancel()
    await asyncio.sleep(0.01)
    assert not changing.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await changing
    assert done == [1]

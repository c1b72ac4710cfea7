"""The power fails: what lies on the disk then is opened by the next start.

A small ext4 image is mounted; while a run works on it, the image is copied without asking the file
system to write anything back. What only the page cache of the mounted file system held is lost in
the copy, as it is when the power fails. Promised then (`synchronous=NORMAL`) is a sound database
that goes on from some earlier moment; not promised are the last commits. A finished Task's log
line is synced, and there.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from faults import aftermath
from faults.depth import Depth, Tally
from faults.homes import Place, used_before
from faults.injection import Ended, command_of, environment_of
from isolation import Home

pytestmark = pytest.mark.timeout(600)
SIZE = 32 * 1024 * 1024


def system(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


@contextmanager
def mounted(image: Path, at: Path) -> Generator[None]:
    """The image's file system, for the block; skips where that is not permitted."""
    at.mkdir(exist_ok=True)
    done = system("mount", "-o", "loop", str(image), str(at))
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()[:150]}")
    try:
        yield
    finally:
        system("umount", "-l", str(at))


@contextmanager
def a_disk(image: Path) -> Generator[Path]:
    """Make an image with a file system in it, and remove it after the block.

    The name must be new: the kernel keeps the file system of an image while anything still uses
    its mount, and would show that one, with all its files, to the next mount of the same image.
    """
    with image.open("xb") as file:
        file.truncate(SIZE)
    made = system("mkfs.ext4", "-q", str(image))
    assert made.returncode == 0, made.stderr
    try:
        yield image
    finally:
        image.unlink()


def laid_out(at: Path) -> Place:
    """A home that has been used, and an empty project, on the disk that is mounted there."""
    place = Place(Home(at / "home"), at / "project")
    used = used_before()
    shutil.copytree(used.home.path, place.home.path)
    place.project.mkdir()
    os.sync()
    return place


def work_until(program: str, place: Place, count: int, image: Path, copy: Path) -> Ended:
    """Run a driver until it has said so many lines; then take the copy, and kill it."""
    command = command_of(program, place.home.path, place.project)
    environment = environment_of(place.home.path)
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd="/"
    ) as process:
        assert process.stdout is not None
        said = [json.loads(line) for line in islice(process.stdout, count)]
        process.send_signal(signal.SIGSTOP)
        shutil.copyfile(image, copy)
        process.kill()
    return Ended(process.returncode, said, "", "", has_failed_calls=False)


def check(program: str, place: Place, ended: Ended) -> None:
    """What is promised after a power cut: the past, up to some moment, and a start that works."""
    durable = {kind for kind in ended.events.values() if kind == "task_completed"}
    promised = [line for line in ended.said if line.get("type") in durable]
    promise = replace(ended, said=promised)
    match program:
        case "profile":
            aftermath.check_run_folder(place.project / "run")
        case "tasks":
            asyncio.run(aftermath.check_tasks(place.home, place.project, promise))
        case _:
            asyncio.run(aftermath.check_session(place.home, place.project, replace(ended, said=[])))
            aftermath.check_memories(place.home)


COUNTS = {"session": 60, "tasks": 50, "memory": 18, "profile": 1}


@pytest.mark.long
@pytest.mark.faults("power cut")
def test_a_start_after_a_power_cut_goes_on_from_an_earlier_moment(
    tmp_path: Path, tally: Tally, depth: Depth
) -> None:
    cases = [
        (program, count)
        for program, most in COUNTS.items()
        for count in range(1, most + 1, max(1, most // 12))
    ]
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs the superuser and mkfs.ext4")
    at = tmp_path / "disk"
    for program, count in depth.of(cases, 3):
        name = f"{program}-{count}"
        copy = tmp_path / f"{name}-copy.img"
        with (
            tally.case(f"{program} after {count} lines"),
            a_disk(tmp_path / f"{name}.img") as image,
        ):
            with mounted(image, at):
                ended = work_until(program, laid_out(at), count, image, copy)
            with mounted(copy, at):
                check(program, Place(Home(at / "home"), at / "project"), ended)
            copy.unlink()
    tally.verdict()

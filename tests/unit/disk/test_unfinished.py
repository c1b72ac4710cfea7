"""A write that is killed leaves the old or the new file, and nothing after the next start."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core.api import AgentRuntime
from agent_core.disk.unfinished import UnfinishedWrites, temporary_name
from isolation import program_file
from sweeps import is_whole

NOTE = "0123456789abcdef"

# One process writes again and again, each time in a child that is killed some calls later.
KILLED_WRITES = """
import os, signal, sys, json
from pathlib import Path
from agent_core.tools.files import replace_file, read_state
from agent_core.disk.unfinished import UnfinishedWrites

home, target, stride = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
new, old = b"new" * 10_000, b"old" * 10_000

def killed_at(number):
    seen = 0
    def count(frame, event, argument):
        nonlocal seen
        if event in ("c_call", "c_return"):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(count)

def sweep(exists):
    found, kills, left = set(), 0, 0
    while True:
        target.unlink(missing_ok=True)
        if exists:
            target.write_bytes(old)
        pid = os.fork()
        if pid == 0:
            before = read_state(target)
            notes = UnfinishedWrites.at(home)
            killed_at(1 + kills * stride)
            replace_file(target, new, before=before, unfinished=notes)
            sys.setprofile(None)
            os._exit(0)
        ended = os.waitpid(pid, 0)[1]
        content = target.read_bytes() if target.exists() else None
        found.add({None: "none", old: "old", new: "new"}.get(content, "mixed"))
        left += len([name for name in os.listdir(target.parent) if name != target.name])
        UnfinishedWrites.at(home).clear()
        rest = [name for name in os.listdir(target.parent) if name != target.name]
        assert not rest, (exists, kills, rest)
        assert not list((home / "unfinished").glob("*")), (exists, kills)
        if ended == 0:
            return {"found": sorted(found), "kills": kills, "left": left}
        kills += 1

print(json.dumps({"new": sweep(exists=False), "replaced": sweep(exists=True)}))
"""


def test_a_write_killed_at_any_call_is_whole_or_not_there_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    stride = 1 if is_whole() else 5
    done = subprocess.run(  # noqa: S603
        [
            *(sys.executable, "-c", KILLED_WRITES, str(tmp_path / "home")),  # a warm one is large
            *(str(project / "file"), str(stride)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes["new"]["found"] == ["new", "none"]
    assert outcomes["replaced"]["found"] == ["new", "old"]
    for outcome in outcomes.values():
        assert outcome["kills"] * stride > 50
        assert outcome["left"] * stride > 10, (
            "no kill has hit the time in which there is a temporary file"
        )


def leftover(home: Path, folder: Path) -> Path:
    """What a killed write leaves: a file, and the note of it."""
    (home / "unfinished").mkdir(exist_ok=True)
    (home / "unfinished" / NOTE).write_bytes(os.fsencode(folder) + b"\n")
    file = folder / temporary_name(NOTE)
    file.write_text("half a fi", encoding="utf-8")
    return file


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    text = '[model]\nprovider = "scripted"\nname = "x"\n'
    (folder / "config.toml").write_text(text, encoding="utf-8")
    return folder


async def test_the_next_start_removes_what_a_killed_write_has_left(
    home: Path, project: Path
) -> None:
    file = leftover(home, project)
    async with AgentRuntime(project_dir=project, home_dir=home):
        assert not file.exists()
        assert not (home / "unfinished").exists()


def test_the_file_of_a_write_that_goes_on_is_left_alone(home: Path, project: Path) -> None:
    file = leftover(home, project)
    with (home / "unfinished" / NOTE).open("rb") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        UnfinishedWrites.at(home).clear()
        assert file.exists()
    UnfinishedWrites.at(home).clear()
    assert not file.exists()


def test_files_of_the_user_are_never_removed(home: Path, project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    kept = [other / "notes.txt", other / temporary_name("f" * 16), home / "unfinished" / "readme"]
    (home / "unfinished").mkdir()
    for each in kept:
        each.write_text("mine", encoding="utf-8")
    (home / "unfinished" / NOTE).write_bytes(os.fsencode(other) + b"\n")
    (home / "unfinished" / ("a" * 16)).write_bytes(b"")  # killed before the note was written
    (home / "unfinished" / ("b" * 16)).write_bytes(b"relative\n")
    (home / "unfinished" / ("f" * 16)).write_bytes(os.fsencode(project / "link") + b"\n")
    (project / "link").symlink_to(other)
    UnfinishedWrites.at(home).clear()
    assert all(each.exists() for each in kept)


def test_a_folder_in_the_place_of_a_temporary_file_is_left_alone(home: Path, project: Path) -> None:
    leftover(home, project).unlink()
    (project / temporary_name(NOTE)).mkdir()
    UnfinishedWrites.at(home).clear()
    assert (project / temporary_name(NOTE)).is_dir()


async def test_what_is_no_note_holds_up_no_start(home: Path, project: Path) -> None:
    file = leftover(home, project)
    notes = home / "unfinished"
    os.mkfifo(notes / ("1" * 16))
    (notes / ("2" * 16)).symlink_to("/dev/zero")
    (notes / ("3" * 16)).mkdir()
    (notes / ("4" * 16)).write_bytes(b"/tmp/\0\n")
    (notes / ("5" * 16)).write_bytes(b"/" + b"x/" * 30_000 + b"\n")
    async with AgentRuntime(project_dir=project, home_dir=home):
        assert not file.exists()


TAKES_AND_REMOVES = """
import sys
from pathlib import Path
from agent_core.disk.unfinished import UnfinishedWrites

unfinished = UnfinishedWrites.at(Path(sys.argv[1]))
for _ in range(250):
    with unfinished.noted(Path("/somewhere")):
        pass
"""


def test_processes_that_write_at_once_do_not_take_the_folder_of_notes_from_each_other(
    home: Path,
) -> None:
    command = [sys.executable, program_file(TAKES_AND_REMOVES), str(home)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]  # noqa: S603
    errors = [writer.communicate()[1] for writer in writers]
    assert errors == [""] * 4
    assert not (home / "unfinished").exists()

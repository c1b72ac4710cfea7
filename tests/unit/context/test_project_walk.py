"""A project that is searched again: changes are found at once, and the rest costs nothing."""

import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent_core import opening
from agent_core.context import project_walk
from agent_core.context.instructions import walk_project
from agent_core.context.project_walk import ProjectWalk
from agent_core.disk import folder_events
from agent_core.disk.folder_events import FolderEvents
from sweeps import sampled
from unit.context.conversations import write

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked on Linux")


@pytest.fixture(params=[pytest.param(0, marks=on_linux), 10**6], ids=["kernel", "times"])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of folders from which on the kernel is asked."""
    monkeypatch.setattr(project_walk, "_MANY_FOLDERS", request.param)
    monkeypatch.setattr(opening, "_SETTLED_NS", 0)
    return request.param


@pytest.fixture
def walk(project: Path, many: int) -> Iterator[ProjectWalk]:
    write(project / "src" / "inner" / "AGENTS.md")
    write(project / "docs" / "guide.md")
    walk = a_walk(project)
    for _ in range(3):
        assert found(walk) == ["src/inner/AGENTS.md"]
    assert (walk._events is not None) == (many == 0)
    yield walk
    walk.close()


def a_walk(project: Path) -> ProjectWalk:
    return walk_project(project, lambda path: path.name == "closed")


def found(walk: ProjectWalk) -> list[str]:
    folders, _ = walk.search()
    return sorted(f"{below}{name}" for below, names in folders for name in names)


def next_tick() -> None:
    time.sleep(0.02)  # a file system's clock may be as coarse as this


def _rewrite(path: Path, content: str) -> None:
    """Write a file in its place, with the size and the age it had."""
    before = path.stat()
    assert before.st_size == len(content)
    path.write_text(content, encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "a file that is added": (
        lambda project: write(project / "docs" / "AGENTS.md"),
        ["docs/AGENTS.md", "src/inner/AGENTS.md"],
    ),
    "a file that is removed": (lambda project: (project / "src/inner/AGENTS.md").unlink(), []),
    "a file that gets its name": (
        lambda project: (project / "docs/guide.md").rename(project / "docs/CLAUDE.md"),
        ["docs/CLAUDE.md", "src/inner/AGENTS.md"],
    ),
    "a folder with a file, below new folders": (
        lambda project: write(project / "docs/new/newer/AGENTS.md"),
        ["docs/new/newer/AGENTS.md", "src/inner/AGENTS.md"],
    ),
    "a folder that is moved": (
        lambda project: (project / "src").rename(project / "docs/src"),
        ["docs/src/inner/AGENTS.md"],
    ),
    "a folder that takes the place of another": (
        lambda project: (
            (project / "src").rename(project / "old"),
            (project / "docs").rename(project / "src"),
        ),
        ["old/inner/AGENTS.md"],
    ),
    "a folder that leaves": (
        lambda project: (project / "src/inner").rename(project.parent / "elsewhere"),
        [],
    ),
    "a folder that is removed": (lambda project: shutil.rmtree(project / "src"), []),
    "a folder that gets the name of a closed one": (
        lambda project: (project / "src/inner").rename(project / "src/closed"),
        [],
    ),
    "an ignore file": (lambda project: write(project / ".gitignore", "inner\n"), []),
    "an ignore file below": (lambda project: write(project / "src/.gitignore", "inner/\n"), []),
    "a link in place of a folder": (
        lambda project: (
            (project / "src/inner").rename(project / "docs/inner"),
            (project / "src/inner").symlink_to(project / "docs/inner"),
        ),
        ["docs/inner/AGENTS.md"],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found_by_the_next_search(
    project: Path, walk: ProjectWalk, change: str
) -> None:
    make, then = CHANGES[change]
    next_tick()
    make(project)
    assert found(walk) == then == found(a_walk(project))
    next_tick()
    write(project / "docs" / "AGENTS.md")  # what has moved is watched where it is now
    for path in (project / "docs").rglob("inner"):
        write(path / "deep" / "CLAUDE.md")
    assert found(walk) == found(a_walk(project))


def test_an_ignore_file_that_is_rewritten_in_its_place_is_read_again(
    project: Path, walk: ProjectWalk
) -> None:
    ignored = write(project / ".gitignore", "/inner\n")
    assert found(walk) == ["src/inner/AGENTS.md"]
    for _ in range(2):
        next_tick()
        _rewrite(ignored, "inner/\n")
        assert found(walk) == []
        next_tick()
        _rewrite(ignored, "/inner\n")
        assert found(walk) == ["src/inner/AGENTS.md"]
    ignored.unlink()
    assert found(walk) == ["src/inner/AGENTS.md"]


def test_folders_that_were_listed_a_moment_ago_are_listed_again(
    project: Path, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_SETTLED_NS", 10**15)

    def stamp_of(_: os.stat_result) -> tuple[int, int]:
        return 0, 0  # as within one tick

    monkeypatch.setattr(project_walk, "_stamp_of", stamp_of)
    walk = a_walk(project)
    for number in range(5):
        assert len(found(walk)) == number
        write(project / f"{number}" / "AGENTS.md")
    walk.close()


def test_an_unchanged_folder_is_not_listed_again(
    project: Path, many: int, walk: ProjectWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    looked_at: list[str] = []
    scandir, status = os.scandir, os.stat

    def counted(path: str) -> object:
        listed.append(path)
        return scandir(path)

    def seen(path: str) -> os.stat_result:
        looked_at.append(path)
        return status(path)

    with monkeypatch.context() as patched:
        patched.setattr("agent_core.context.project_walk.os.scandir", counted)
        patched.setattr("agent_core.context.project_walk.os.stat", seen)
        assert found(walk) == ["src/inner/AGENTS.md"]
        assert listed == []
        assert len(looked_at) == (1 if many == 0 else 4)  # the project and three folders
        next_tick()
        (project / "docs" / "new.txt").touch()
        looked_at.clear()
        assert found(walk) == ["src/inner/AGENTS.md"]
        assert listed == [f"{project}/docs/"]


def test_a_search_that_is_cut_short_is_made_again(
    project: Path, walk: ProjectWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_tick()
    (project / "later").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(project_walk, "_MOST_ENTRIES", 0)
        assert walk.search() == ([], True)
        assert walk.search() == ([], True)
    assert found(walk) == ["src/inner/AGENTS.md"]
    assert not walk.search()[1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_may_be_listed_again_is_searched(project: Path, walk: ProjectWalk) -> None:
    folder = project / "src" / "inner"
    folder.chmod(0)
    assert found(walk) == []
    folder.chmod(0o700)
    assert found(walk) == ["src/inner/AGENTS.md"]
    next_tick()
    (folder / "AGENTS.md").unlink()
    assert found(walk) == []


@pytest.mark.parametrize("seed", sampled(range(8), 1))
def test_a_search_finds_what_a_new_walk_finds_whatever_has_changed(
    project: Path, walk: ProjectWalk, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    names = [*"abc", "closed", "AGENTS.md", ".gitignore"]

    def a_folder() -> Path:
        folders = [project, *(path for path in project.rglob("*") if path.is_dir())]
        return chance.choice(folders)

    for _ in range(40):
        for _ in range(chance.randint(1, 3)):
            place = a_folder() / chance.choice(names)
            with suppress(OSError):
                match chance.randint(0, 3):
                    case 0 if place.suffix or place.name == ".gitignore":
                        place.write_text(chance.choice(["a/\n", "b\n", "!a/\n", "*\n"]))
                    case 0 | 1:
                        place.mkdir()
                    case 2:
                        a_folder().rename(place)
                    case _:
                        shutil.rmtree(place) if place.is_dir() else place.unlink()
        next_tick()
        assert found(walk) == found(a_walk(project))


@pytest.mark.long
@on_linux
def test_more_events_than_the_kernel_keeps_lose_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_walk, "_MANY_FOLDERS", 0)
    monkeypatch.setattr(opening, "_SETTLED_NS", 0)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text(encoding="utf-8"))
    if most > 50_000:
        pytest.skip("the kernel keeps too many events for a quick test")
    walk = a_walk(project)
    (project / "busy").mkdir()
    assert found(walk) == found(walk) == []
    assert walk._events is not None
    for number in range(most // 2 + 1):  # each makes two events
        (project / "busy" / f"{number % 2}").mkdir()
        (project / "busy" / f"{number % 2}").rmdir()
    write(project / "last" / "AGENTS.md")
    assert found(walk) == ["last/AGENTS.md"]
    walk.close()


@on_linux
@pytest.mark.parametrize("refused", ["none", "room", "file system"])
def test_a_project_is_searched_without_the_kernels_events(
    project: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(project_walk, "_MANY_FOLDERS", 0)
    monkeypatch.setattr(opening, "_SETTLED_NS", 0)
    match refused:
        case "none":
            monkeypatch.setattr(FolderEvents, "__init__", refuse)
        case "room":
            monkeypatch.setattr(FolderEvents, "watch", refuse)
        case _:
            monkeypatch.setattr(folder_events, "_LOCAL", set[int]())
    walk = a_walk(project)
    for number in range(4):
        write(project / f"{number}" / "AGENTS.md")
        assert len(found(walk)) == number + 1
    assert walk._events is None


@on_linux
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_is_forked_during_a_search_begins_as_new(
    project: Path, many: int, walk: ProjectWalk
) -> None:
    events = walk._events
    with walk._lock:  # as the thread of a search holds it
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            is_new = walk._events is None and walk._may_listen
            is_closed = events is None or (events._descriptor, events.count) == (-1, 0)
            is_right = is_new and is_closed and walk._lock.acquire(blocking=False)
            walk._lock.release()
            same = [found(walk) == ["src/inner/AGENTS.md"] for _ in range(3)]
            os._exit(int(not (is_right and all(same) and (walk._events is None) == bool(many))))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert walk._events is events


def test_a_project_whose_path_now_leads_elsewhere_is_walked_anew(tmp_path: Path, many: int) -> None:
    above = tmp_path / "above"
    write(above / "project" / "docs" / "AGENTS.md")
    walk = a_walk(above / "project")
    for _ in range(3):
        assert found(walk) == ["docs/AGENTS.md"]
    above.rename(tmp_path / "moved")
    assert found(walk) == []
    write(above / "project" / "src" / "CLAUDE.md")
    for _ in range(3):
        assert found(walk) == ["src/CLAUDE.md"]
    (tmp_path / "moved").rename(tmp_path / "old")
    above.rename(tmp_path / "new")
    (tmp_path / "old").rename(above)
    for _ in range(3):
        assert found(walk) == ["docs/AGENTS.md"]
    assert (walk._events is not None) == (many == 0)
    walk.close()


@on_linux
def test_the_kernel_is_not_asked_about_too_many_folders(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_walk, "_MANY_FOLDERS", 0)
    monkeypatch.setattr(project_walk, "_MOST_WATCHED", 3)
    monkeypatch.setattr(opening, "_SETTLED_NS", 0)
    write(project / "docs" / "AGENTS.md")
    walk = a_walk(project)
    for _ in range(3):
        assert found(walk) == ["docs/AGENTS.md"]
    assert walk._events is not None
    next_tick()
    write(project / "docs" / "a" / "b" / "AGENTS.md")
    for _ in range(3):
        assert found(walk) == ["docs/AGENTS.md", "docs/a/b/AGENTS.md"]
        assert walk._events is None
    large = a_walk(project)
    for _ in range(3):
        assert len(found(large)) == 2
        assert large._events is None
    next_tick()
    write(project / "docs" / "a" / "CLAUDE.md")
    assert len(found(walk)) == len(found(large)) == 3


@on_linux
def test_a_forked_process_leaves_the_events_to_its_parent(
    project: Path, many: int, walk: ProjectWalk
) -> None:
    if many:
        pytest.skip("there are no events")
    next_tick()
    write(project / "docs" / "AGENTS.md")
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os._exit(len(found(walk)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert len(found(walk)) == 2


@on_linux
def test_descriptors_are_given_back(project: Path, many: int, walk: ProjectWalk) -> None:
    if many:
        pytest.skip("there are no events")
    assert walk._events is not None
    descriptor = walk._events._descriptor
    walk.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    write(project / "docs" / "AGENTS.md")
    assert len(found(walk)) == 2

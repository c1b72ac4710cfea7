"""Files that are replaced: on a full disk the old one is whole, and its mode stays."""

import errno
import os
import resource
import stat
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_core.cli.chat.history import MOST_BYTES, FileHistory
from agent_core.cli.chat.pastes import Pastes
from agent_core.opening import write_text
from agent_core.permissions.rules import RuleContext, RuleSet
from agent_core.permissions.saved_rules import SavedRules
from agent_core.redaction.redactor import Redactor
from rights import as_anyone


@contextmanager
def files_no_larger_than(size: int) -> Generator[None]:
    """Let writes fail as on a full disk: a part is written first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_output_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "page.html", tmp_path / "link"
    write_text(path, "old")
    path.chmod(0o640)
    link.symlink_to(path)
    with files_no_larger_than(5), pytest.raises(OSError, match="too large"):
        write_text(path, "longer than that")
    assert path.read_text() == "old"
    with files_no_larger_than(5), pytest.raises(OSError, match="too large"):
        write_text(tmp_path / "new", "longer than that")
    assert {each.name for each in tmp_path.iterdir()} == {"page.html", "link"}
    before = path.stat().st_ino
    write_text(link, "new")
    assert (link.is_symlink(), path.read_text()) == (True, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_ino != before
    write_text(tmp_path / "new", "new")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~umask


def test_what_could_not_be_opened_for_writing_is_not_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    locked, closed = tmp_path / "locked", tmp_path / "closed"
    locked.write_text("old")
    locked.chmod(0o400)
    closed.mkdir(0o500)
    with as_anyone():
        for place in (locked, closed / "new"):
            with pytest.raises(PermissionError) as refused:
                write_text(place, "new")
            assert refused.value.filename == str(place)
        with pytest.raises(IsADirectoryError):
            write_text(f"{tmp_path}/none/", "new")
    assert locked.read_text() == "old"
    assert {each.name for each in tmp_path.iterdir()} == {"locked", "closed"}


def test_a_name_of_any_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("\N{CUT OF MEAT}" * 63)
    write_text(path, "whole")
    assert path.read_text() == "whole"


def test_an_output_that_cannot_be_replaced_is_written_in_place(tmp_path: Path) -> None:
    fifo, received = tmp_path / "fifo", list[str]()
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: received.append(fifo.read_text()))
    reader.start()
    write_text(fifo, "piped")
    reader.join()
    assert received == ["piped"]
    one, other = tmp_path / "one", tmp_path / "other"
    write_text(one, "old")
    other.hardlink_to(one)
    write_text(one, "new")
    assert other.read_text() == "new"
    closed = tmp_path / "closed"
    closed.mkdir()
    write_text(closed / "file", "old")
    closed.chmod(0o500)
    try:
        with as_anyone():
            write_text(closed / "file", "new")
            with pytest.raises(PermissionError):
                write_text(closed / "another", "new")
    finally:
        closed.chmod(0o700)
    assert (closed / "file").read_text() == "new"
    with (tmp_path / "opened").open("w+") as opened:
        write_text(f"/dev/fd/{opened.fileno()}", "new")
        assert os.fstat(opened.fileno()).st_size == 3


def test_an_output_that_is_mounted_by_itself_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mounted"
    write_text(path, "old")

    def refuse(*_: object) -> None:  # as the system does for a mount
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "replace", refuse)
    write_text(path, "new")
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["mounted"]


def test_a_history_on_a_full_disk_keeps_its_entries(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = FileHistory(path, str, Pastes())
    history.store_string("one")
    with files_no_larger_than(path.stat().st_size + 5):
        history.store_string("a longer one")
    history.store_string("two")
    assert list(history.load_history_strings()) == ["two", "one"]
    for number in range(110):
        history.store_string(f"{number} " + "x" * 10_000)
    before, kept = path.read_bytes(), list(history.load_history_strings())
    assert len(before) > MOST_BYTES // 2
    while path.stat().st_size + 10_100 <= MOST_BYTES:
        history.store_string("more " + "y" * 10_000)
    before, kept = path.read_bytes(), list(history.load_history_strings())
    with files_no_larger_than(1000):
        history.store_string("z" * 12_000)  # the older half has to go
    assert path.read_bytes() == before
    assert list(history.load_history_strings()) == kept
    assert [each.name for each in tmp_path.iterdir()] == ["history"]


def test_a_rule_that_cannot_be_saved_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    around = RuleContext(
        home=tmp_path, project=tmp_path, search_path="", is_writable=lambda _: True
    )
    saved, path = SavedRules(tmp_path, RuleSet((), around), Redactor({})), tmp_path / "rules.toml"
    saved.save('[[permissions.rules]]\ndecision = "allow"\ntool = "own.one"\n')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with files_no_larger_than(len(before)), pytest.raises(OSError, match="too large"):
        saved.save('[[permissions.rules]]\ndecision = "allow"\ntool = "own.three"\n')
    assert path.read_bytes() == before

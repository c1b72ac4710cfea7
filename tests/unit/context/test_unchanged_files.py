"""Heads of files are read once for each version of a file, and never an old one."""

import os
import time
from pathlib import Path

import pytest

from agent_core import opening
from agent_core.context.instructions import find_instructions
from agent_core.context.skills import find_skills
from agent_core.opening import version_of
from unit.context.conversations import write

SKILL = "---\nname: one\ndescription: {}\n---\nBody.\n"


@pytest.fixture(params=[0, opening._SETTLED_NS], ids=["settled", "new"], autouse=True)
def settled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_SETTLED_NS", request.param)


def next_tick() -> None:
    """Let the file system's clock move on: a file that is settled was not changed this tick."""
    time.sleep(0.03)


def described(home: Path) -> list[str]:
    return [skill.description for skill in find_skills(home).skills]


def ruled(project: Path) -> list[str]:
    found = find_instructions(project / "home", project, is_closed=lambda path: False)
    return [file.line for file in found.files]


def test_a_skill_that_changes_is_seen_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "skills" / "one.md", SKILL.format("aaa"))
    for described_now in ("bbb", "ccc"):
        assert described(tmp_path) == described(tmp_path)
        next_tick()
        before = path.stat()
        path.write_text(SKILL.format(described_now))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # of the same size and age
        assert described(tmp_path) == [described_now]


def test_a_skill_that_another_file_replaces_is_seen_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "skills" / "one.md", SKILL.format("aaa"))
    other = write(tmp_path / "other.md", SKILL.format("bbb"))
    assert described(tmp_path) == ["aaa"]
    next_tick()
    other.rename(path)
    assert described(tmp_path) == ["bbb"]


def test_an_instruction_file_that_changes_is_seen_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "part" / "AGENTS.md", "---\ntitle: aaa\n---\n")
    assert ruled(tmp_path) == ["- part/AGENTS.md (title: aaa)"]
    next_tick()
    path.write_text("---\ntitle: bbb\n---\n")
    assert ruled(tmp_path) == ["- part/AGENTS.md (title: bbb)"]
    path.unlink()
    assert ruled(tmp_path) == []


def test_a_file_that_was_just_written_has_no_version_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.md")
    monkeypatch.setattr(opening, "_SETTLED_NS", 10**15)
    assert version_of(path) is None
    monkeypatch.setattr(opening, "_SETTLED_NS", 0)
    assert version_of(path) == version_of(path) is not None

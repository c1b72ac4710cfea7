"""The programs that are compared with others are counted as the page says."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "recipes" / "README.md"
PROGRAMS: dict[str, Any] = runpy.run_path(str(ROOT / "bench" / "programs.py"))
JOBS = [
    "typed_answer",
    "database_tool",
    "terminal_chat",
    "remote_approval",
    "multi_agent",
    "handoffs",
    "extract",
    "resume",
    "typed_agent",
    "web_service",
]


def sides() -> list[Any]:
    return PROGRAMS["sides"](Path("nowhere"))


def test_the_table_of_lines_is_what_the_files_have() -> None:
    table = PROGRAMS["table_of_lines"](sides())
    assert f"<!-- lines: begin -->\n\n{table}\n\n<!-- lines: end -->" in PAGE.read_text("utf-8")


def test_ours_are_as_short_as_the_leanest_of_the_others() -> None:
    lines_of: Callable[[Path], int] = PROGRAMS["lines_of"]
    leaner: dict[str, str] = {}
    for job in JOBS:
        ours, *others = [(side.file(job), side.name) for side in sides()]
        found = [(lines_of(file), name) for file, name in others if file is not None]
        assert len(found) >= 2, f"{job} is compared with fewer than two others"
        least, name = min(found)
        if lines_of(ours[0]) > least:
            leaner[job] = name
    assert len(leaner) <= len(JOBS) - 8, leaner


def test_every_program_is_named_in_the_table_and_run() -> None:
    named = set(PROGRAMS["PROGRAMS"])
    assert set(JOBS) <= named
    assert named == set(PROGRAMS["MEASURED"])
    peers = {
        file.stem
        for file in (ROOT / "bench" / "programs").glob("*/*.py")
        if file.parent.name in PROGRAMS["PEERS"]
    }
    assert peers == named
    folders = {file.parent.name for file in (ROOT / "bench" / "programs").glob("*/*.py")}
    assert folders == {"ours", *PROGRAMS["PEERS"]}

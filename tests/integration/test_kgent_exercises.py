"""The programs and the exercises in tampering on the pages about kgent, as they are written."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import warm
from kgent_runs import profile
from sweeps import kept

ROOT = Path(__file__).parents[2]
PAGES = [(ROOT / "docs" / name).read_text("utf-8") for name in ("kgent.md", "kgent-runs.md")]
SECTION = PAGES[1].partition("## Exercises in tampering")[2]
NAMES = ("audit", "clean-csv", "letter")
SCRIPTS = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)```", "".join(PAGES), re.DOTALL)


def test_there_is_an_exercise_for_every_example() -> None:
    examples = (ROOT / "examples" / "kgent").glob("*/kgent.yaml")
    assert {file.parent.name for file in examples} == {
        name for name in NAMES if f"examples/kgent/{name}/" in SECTION
    }
    assert len(SCRIPTS) == 3


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", kept(["audit", pytest.param("clean-csv", marks=pytest.mark.sweep), "letter"], "audit")
)
def test_an_exercise_comes_out_as_the_page_says(tmp_path: Path, name: str) -> None:
    script = SCRIPTS[NAMES.index(name)]
    if "ssh-keygen" in script and shutil.which("ssh-keygen") is None:
        pytest.skip("there is no ssh-keygen on this machine")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    warm.write_command(tmp_path / "bin", "kgent", "kgent")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(  # noqa: S603 - the commands of our own page
        ["/bin/sh", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    rest = done.stdout
    expected = re.findall(r" # (.+)$", script, re.MULTILINE)
    assert len(expected) > 1
    for text in expected:
        found, rest = rest.partition(f"\n{text}")[1:] if not rest.startswith(text) else (
            text, rest[len(text):])  # fmt: skip
        assert found, f"{text!r} is not in the rest of the output:\n{done.stdout}\n{done.stderr}"


def test_the_programs_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profile(tmp_path, deliverables={"required": ["deliverables/report.md"]})
    ends: list[str] = []
    for program in PROGRAMS:
        names: dict[str, Any] = {}
        exec(program, names)  # noqa: S102 - a program of our own page
        ends.append(names["result"].status)
    assert ends == ["incomplete", "completed"]

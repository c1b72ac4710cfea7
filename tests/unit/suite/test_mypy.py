"""What users write passes mypy, too: pyright reads all of it as a part of this repository."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
FOLDERS = [
    "examples/recipes",
    "examples/agcore",
    "examples/testing",
    "examples/tutorials/agcore",
    "examples/tutorials/sdk",
    "examples/typed-answers",
    "bench/programs/ours",
]
OWN_PACKAGES = {"evaluation": "pydantic_evals", "inspect_agent": "inspect_ai"}
"""Programs that need packages of others, which are not among the development ones."""
SHARED = ["examples/tutorials/agcore", "examples/tutorials/sdk"]
"""Folders whose programs import each other."""


@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("mypy") is None, reason="pip install mypy runs it")
@pytest.mark.parametrize(
    ("folders", "count"),
    [
        pytest.param([], 0, id="first"),
        pytest.param(FOLDERS, 30, id="all", marks=pytest.mark.sweep),
    ],
)
def test_programs_of_users_pass_strict_mypy(
    tmp_path: Path, folders: Sequence[str], count: int
) -> None:
    """And a wrong one does not."""
    programs = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).glob("*.py"))
        if find_spec(OWN_PACKAGES.get(path.stem, "mypy")) is not None
    ]
    assert len(programs) >= count
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from agcore import Agent\n\nAgent(instrutions='a')\nAgent(output_type=5)\n")
    paths = [ROOT / "src", *(ROOT / each for each in SHARED)]
    done = subprocess.run(  # noqa: S603 - the type checker of this environment
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache")),
            "--explicit-package-bases",
            *map(str, [*programs, ROOT / "tests" / "typed_api.py", wrong]),
        ],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line for line in found if "wrong.py" not in line] == [], done.stderr
    assert [line.rpartition("[")[2] for line in found] == ["call-overload]"] * 2, done.stdout

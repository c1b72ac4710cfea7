"""What the documents write in Python passes the strict type checker as it is written."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
FIRST = sorted(ROOT.glob("*.md"))
PAGES = sorted([*FIRST, *ROOT.glob("docs/**/*.md")])
WORDS = re.compile(r"\W+")
OWN_PACKAGES = {"evaluation.py": "pydantic_evals", "inspect_agent.py": "inspect_ai"}
"""Examples that need packages of others, which are not among the development ones."""
SETTINGS = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    "extraPaths": [str(ROOT / "src")],
}


def blocks(pages: Sequence[Path]) -> dict[str, str]:
    """The Python of pages by a name; what the reference shows are no programs."""
    return {
        f"{WORDS.sub('_', page.relative_to(ROOT).as_posix())}_{number}": block
        for page in pages
        if page.parent.name != "reference"
        for number, block in enumerate(
            re.findall(r"^```python\n(.+?)^```$", page.read_text("utf-8"), re.S | re.M), start=1
        )
    }


def check(folder: Path) -> dict[str, Any]:
    """What the strict type checker says of the programs in a folder."""
    settings = folder / "pyrightconfig.json"
    settings.write_text(json.dumps(SETTINGS), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "-p", str(settings), "--outputjson"]
    done = subprocess.run(  # noqa: S603 - the type checker of this environment
        [*command, "--pythonpath", sys.executable], capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout)


def errors_of(report: dict[str, Any]) -> list[str]:
    return [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1} {each['message']}"
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    ]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("pages", "count"),
    [
        pytest.param(FIRST, 2, id="first"),
        pytest.param(PAGES, 30, id="all", marks=pytest.mark.sweep),
    ],
)
def test_every_block_passes_as_it_stands_or_as_a_part_of_its_example(
    tmp_path: Path, pages: Sequence[Path], count: int
) -> None:
    """Beside a program with names that the packages do not have, which are errors.

    An example is checked in its folder, as its programs may import each other.
    """
    examples = {
        path.relative_to(ROOT): path.read_text("utf-8")
        for path in sorted(ROOT.glob("examples/**/*.py"))
    }
    found = blocks(pages)
    assert len(found) > count
    checked: dict[Path, str] = {}
    for name, block in found.items():
        example = next((known for known, text in examples.items() if block in text), None)
        if example is None:
            checked[Path(f"{name}.py")] = block
        else:
            checked |= {
                path: text
                for path, text in examples.items()
                if path.parent == example.parent
                and find_spec(OWN_PACKAGES.get(path.name, "agent_core")) is not None
            }
    for path, text in checked.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    packages = ("agent_core", "agent_core.testing", "agcore", "kgent")
    text = "".join(f"from {name} import Nothing as Nothing\n" for name in packages)
    (tmp_path / "wrong.py").write_text(text, encoding="utf-8")
    report = check(tmp_path)
    assert report["summary"]["filesAnalyzed"] == len(checked) + 1
    found = errors_of(report)
    assert [each for each in found if not each.startswith("wrong.py:")] == []
    assert sum('"Nothing" is unknown import symbol' in each for each in found) == len(packages)

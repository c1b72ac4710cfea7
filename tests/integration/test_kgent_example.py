"""The worked example: a whole profile that runs offline."""

import shutil
from pathlib import Path

import pytest

from kgent.cli import main
from kgent_runs import lines, types

EXAMPLE = Path(__file__).parents[2] / "examples" / "kgent"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE, tmp_path / "kgent", ignore=shutil.ignore_patterns("runs"))
    return tmp_path / "kgent" / "kgent.yaml"


def test_the_example_is_valid(config: Path) -> None:
    assert main(["validate", "--config", str(config)]) == 0


def test_the_example_runs_and_delivers(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    prompt = config.parent / "prompt.md"
    arguments = ["--prompt-file", str(prompt), "--sandbox", str(root)]
    assert main(["run", "--config", str(config), *arguments]) == 0
    report = (root / "deliverables" / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# Field report, north trail")
    assert {"skill.loaded", "file.written", "file.rejected", "memory.write.requested"} <= set(
        types(root)
    )
    (candidate,) = lines(root / "archive" / "candidate-memory.jsonl")
    assert candidate["tags"] == ["bridge"]
    assert main(["verify", str(root)]) == 0
    capsys.readouterr()
    assert main(["show", str(root)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert any(line.endswith("  archive/candidate-memory.jsonl") for line in shown)
    assert not any(line.strip().endswith("attempts/001/run.json") for line in shown)

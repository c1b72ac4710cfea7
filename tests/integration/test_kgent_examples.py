"""The worked examples: each is valid, runs offline, delivers, is sound, and can be run again."""

import json
import shutil
from pathlib import Path

import pytest

from kgent.cli import main
from kgent_runs import state, types
from sweeps import kept

EXAMPLES = Path(__file__).parents[2] / "examples" / "kgent"
ARGUMENTS = {"audit": [], "clean-csv": [], "letter": ["--param", "to=Ada Lovelace"]}


def run_example(tmp_path: Path, name: str) -> Path:
    """Run an example in a copy of its folder, and return the run folder."""
    folder, root = tmp_path / name, tmp_path / "run"
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("runs"))
    config, prompt = folder / "kgent.yaml", folder / "prompt.md"
    assert main(["validate", "--config", str(config)]) == 0
    place = ["--prompt-file", str(prompt), "--sandbox", str(root), *ARGUMENTS[name]]
    assert main(["run", "--config", str(config), *place]) == 0
    return root


def check_the_table(root: Path) -> None:
    """Check that the table is clean, and that the check of the run has passed."""
    table = (root / "deliverables" / "orders.csv").read_text().splitlines()
    assert table[1:] == ["1,2026-02-03,Ada,12.50", "2,2026-02-03,Bob,7.00", "3,2026-02-04,Cy,"]
    (check,) = state(root)["checks"]
    assert check["is_passed"]
    assert (root / check["output"]).read_text() == "3 orders, each once\n"


@pytest.mark.long
@pytest.mark.parametrize("name", kept(ARGUMENTS, "clean-csv"))
def test_an_example_runs_is_sound_and_runs_again(tmp_path: Path, name: str) -> None:
    root = run_example(tmp_path, name)
    if name == "clean-csv":
        check_the_table(root)
    assert main(["verify", str(root)]) == 0
    shutil.rmtree(tmp_path / name)
    again = tmp_path / "again"
    assert main(["rerun", str(root), "--sandbox", str(again)]) == 0
    assert state(again)["config_fingerprint"] == state(root)["config_fingerprint"]


@pytest.mark.long
def test_the_audit_is_mended_after_it_was_asked_again(tmp_path: Path) -> None:
    root = run_example(tmp_path, "audit")
    assert types(root).count("nudge.sent") == 1
    findings = json.loads((root / "deliverables" / "findings.json").read_text())
    assert [one["severity"] for one in findings] == ["high", "medium", "low"]
    lines = (root / "inputs" / "shop" / "orders.py").read_text().splitlines()
    assert "execute(f" in lines[findings[0]["line"] - 1]


def test_the_letter_has_its_parameters(tmp_path: Path) -> None:
    root = run_example(tmp_path, "letter")
    assert (root / "deliverables" / "letter.md").read_text().startswith("Dear Ada Lovelace,")
    assert "due in 14 days" in (root / "prompt.md").read_text()
    assert state(root)["parameters"]["tone"] == "warm"

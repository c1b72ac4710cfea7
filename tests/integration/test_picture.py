"""The picture of a run that the documents show can be made, from a run that takes place."""

import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.sweep
@pytest.mark.timeout(90)
def test_the_picture_of_a_run_is_made_by_a_real_run(tmp_path: Path) -> None:
    picture = tmp_path / "terminal.svg"
    script = [sys.executable, "docs/picture.py", str(picture)]
    subprocess.run(script, cwd=ROOT, check=True)  # noqa: S603 - our own
    text = unescape(picture.read_text(encoding="utf-8")).replace("\xa0", " ")
    assert text.startswith("<svg")
    for shown in (
        "exit code 1",
        "allowed once",
        "exit code 0",
        "Fixed",
        "$ soong-agent run",
    ):
        assert shown in text
    assert "http" not in text.replace("http://www.w3.org/", "")
    assert str(Path.home()) not in text

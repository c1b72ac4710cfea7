"""The SQL of the packages, as its text."""

import re
from pathlib import Path

SOURCES = Path(__file__).parents[3] / "src"
FOLDERS = (SOURCES / "agent_core" / "storage", SOURCES / "agcore" / "memory")


def test_no_statement_has_numbered_parameters() -> None:
    """Python 3.12.0 to 3.12.3 warns for each `?1` that is bound from a sequence."""
    found = [
        f"{path.name}: {line.strip()}"
        for folder in FOLDERS
        for path in sorted(folder.rglob("*.py"))
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\?\d", line)
    ]
    assert found == []

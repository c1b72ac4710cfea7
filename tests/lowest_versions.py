"""Prints the lowest version that is declared of every dependency, as constraints for pip."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lowest_versions() -> dict[str, str]:
    """Return the lower bounds of the dependencies and extras of users, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"]]
    for extra in extras.keys() - {"dev", "docs"}:
        requirements += extras[extra]
    found = (re.match(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)", each) for each in requirements)
    return {each[1]: each[2] for each in found if each}


if __name__ == "__main__":
    lines = (f"{name}=={version}\n" for name, version in sorted(lowest_versions().items()))
    sys.stdout.writelines(lines)

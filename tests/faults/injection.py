"""Runs a driver with strace between it and the system, which makes one call fail or deadly."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from faults import drivers
from faults.tracing import WAITS

WRITES = ("write", "pwrite64", "ftruncate")
SYNCS = ("fsync", "fdatasync")
NAMES = ("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat")
FOLDERS = ("mkdir", "mkdirat")
MODES = ("chmod", "fchmod", "fchmodat")


@dataclass(frozen=True)
class Ended:
    """How a driver ended, what it said, the last calls that were watched, and if any failed."""

    code: int
    said: list[dict[str, Any]]
    errors: str
    calls: str
    has_failed_calls: bool

    @property
    def is_killed(self) -> bool:
        return self.code in {-signal.SIGKILL, 128 + signal.SIGKILL}

    @property
    def events(self) -> dict[str, str]:
        """The events it was shown, by id."""
        return {line["event"]: line["type"] for line in self.said if "event" in line}

    @property
    def runs(self) -> list[dict[str, Any]]:
        """How its runs ended."""
        return [line for line in self.said if "run" in line]


@dataclass(frozen=True)
class Fault:
    """What happens at a system call: `kill`, or the name of an error.

    Attributes:
        call: the system call.
        what: `kill`, or an error as `ENOSPC`.
        at: the how-manieth call it happens at, counted by each thread for itself.
        for_good: at every later call too.
        paths: only calls about these files count.
    """

    call: str
    what: str
    at: int
    for_good: bool = False
    paths: Sequence[Path] = ()

    def __str__(self) -> str:
        where = "".join(f" on {path.name}" for path in self.paths[:1])
        return f"{self.what} at {self.call} {self.at}{'+' if self.for_good else ''}{where}"

    @property
    def arguments(self) -> list[str]:
        harm = "signal=SIGKILL" if self.what == "kill" else f"error={self.what}"
        when = f"when={self.at}{'+' if self.for_good else ''}"
        chosen = [part for path in self.paths for part in ("-P", str(path))]
        injected = f"inject={self.call}:{harm}:{when}"
        return ["-e", f"trace={self.call}", "-e", injected, *chosen]


@contextmanager
def running(
    program: str, home: Path, project: Path
) -> Generator[tuple[subprocess.Popen[str], Iterator[Any]]]:
    """A driver at work, and what it says."""
    command = command_of(program, home, project)
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=subprocess.PIPE, text=True, env=environment_of(home), cwd="/"
    ) as process:
        assert process.stdout is not None
        try:
            yield process, map(json.loads, process.stdout)
        finally:
            process.kill()


def command_of(program: str, home: Path, project: Path) -> list[str]:
    """The command line of a driver."""
    return [sys.executable, drivers.__file__, program, str(home), str(project)]


def environment_of(home: Path) -> dict[str, str]:
    """The environment of a driver."""
    return os.environ | {
        "SOONG_AGENT_HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def run_driver(
    program: str,
    home: Path,
    project: Path,
    fault: Fault | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a driver to its end, or to the end the fault makes of it."""
    log = home.parent / f"{home.name}.strace"
    command = command_of(program, home, project)
    chosen = environment_of(home) | dict(environment or {})
    if fault is not None:
        done = run_traced(command, fault, log, cwd=project, environment=chosen)
    else:
        done = subprocess.run(  # noqa: S603 - our own program
            command, capture_output=True, timeout=90, check=False, env=chosen, cwd=project
        )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.endswith(b"}")]
    calls = log.read_text(errors="replace") if log.exists() else ""
    log.unlink(missing_ok=True)
    errors = done.stderr.decode(errors="replace")[-4000:]
    return Ended(done.returncode, said, errors, calls[-2000:], "(INJECTED)" in calls)


def run_traced(
    command: Sequence[str], fault: Fault, log: Path, *, cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that calls `wait_for_tracer` first, with strace attached to it."""
    with subprocess.Popen(  # noqa: S603 - our own program
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, WAITS: "1"},
        cwd=cwd,
    ) as process:
        tracing = ["strace", "-f", "-y", "-o", str(log), *fault.arguments, "-p", str(process.pid)]
        with subprocess.Popen(tracing, stderr=subprocess.PIPE) as tracer:  # noqa: S603
            assert tracer.stderr is not None
            told = tracer.stderr.readline()
            assert b"attached" in told, told
            try:
                out, errors = process.communicate(b"\n", timeout=90)
            finally:
                process.kill()
            tracer.communicate(timeout=90)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


@cache
def reason_to_skip() -> str | None:
    """Why no fault can be injected here; None if it can."""
    if shutil.which("strace") is None:
        return "needs strace (Debian: apt-get install strace)"
    probe = ["strace", "-f", "-qq", "-e", "trace=none", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)  # noqa: S603
    return f"strace may not trace here: {done.stderr.strip()[:200]}" if done.returncode else None

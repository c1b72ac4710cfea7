"""`soong-agent worker` as processes of a test, each with a log of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import aiohttp

from isolation import Home
from model_server import ModelServer

URL_VARIABLE = "WORKER_TEST_DATABASE"
_PATIENCE_S = 60.0  # processes begin slowly on a busy machine

_CONFIG = """
[model]
provider = "openai"
name = "m"
base_url = "{base_url}"
context_window = 32000
[memory]
enabled = false
[store]
url_env = "{variable}"
[worker]
heartbeat_s = {heartbeat_s}
lease_s = {lease_s}
{more}
"""


def write_config(
    home: Home,
    server: ModelServer,
    more: str = "",
    *,
    heartbeat_s: float = 0.2,
    lease_s: float = 1.5,
) -> None:
    """Settings of a home whose runs ask this server, and whose sessions are in the database."""
    home.write_config(
        _CONFIG.format(
            base_url=server.base_url("openai"),
            variable=URL_VARIABLE,
            heartbeat_s=heartbeat_s,
            lease_s=lease_s,
            more=more,
        )
    )


WORKER = (sys.executable, "-m", "agent_core.cli", "worker")


def start_process(
    command: Sequence[str], log: Path, environ: Mapping[str, str], folder: Path | str = "/"
) -> subprocess.Popen[bytes]:
    """Start a worker in a session of its own, so that a signal to the tests is none to it."""
    with log.open("wb") as file:
        return subprocess.Popen(  # noqa: S603 - our own program
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=folder,
            start_new_session=True,
        )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker that has not ended, and what is still in its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(eq=False, kw_only=True)
class WorkerProcess:
    """One worker; `log` is its standard error."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    @property
    def has_begun(self) -> bool:
        """Whether it came to take runs; before, it ends where its database fails."""
        return " takes runs of " in self.text

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_for(self, words: str) -> str:
        """Wait until the worker has written this, and return its log."""
        end = time.monotonic() + _PATIENCE_S
        while words not in self.text:
            assert self.process.poll() is None, f"the worker has ended:\n{self.text}"
            assert time.monotonic() < end, f"no {words!r} in:\n{self.text}"
            time.sleep(0.02)
        return self.text

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for the end."""
        try:
            return self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker goes on:\n{self.text}") from None


class Workers:
    """Starts workers, and kills those that are left at the end of the test."""

    def __init__(self, home: Home, database_url: str) -> None:
        self._home = home
        self._url = database_url
        self._numbers = count(1)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        *arguments: str,
        home: Home | None = None,
        waits: bool = True,
        command: Sequence[str] = WORKER,
        **environ: str,
    ) -> WorkerProcess:
        """Start a worker; it `waits` until that takes runs."""
        home = home or self._home
        log = home.path / f"worker-{next(self._numbers)}.log"
        environ = home.env(**{URL_VARIABLE: self._url}, **environ)
        process = start_process((*command, *arguments), log, environ)
        self._started.append(process)
        worker = WorkerProcess(process=process, log=log)
        if waits:
            worker.wait_for("takes runs")
        return worker

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Carry out another command in the home, to its end."""
        return subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-m", "agent_core.cli", *arguments],
            env=self._home.env(**{URL_VARIABLE: self._url}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )

    def end(self) -> None:
        for process in self._started:
            end_process(process)


@contextmanager
def workers(home: Home, database_url: str) -> Generator[Workers]:
    """Workers of this home and database, until the end of the block."""
    made = Workers(home, database_url)
    try:
        yield made
    finally:
        made.end()


async def page(worker: WorkerProcess, path: str) -> tuple[int, str]:
    """What a worker answers that was started with `--metrics-port`."""
    (url,) = {line.split()[-1] for line in worker.text.splitlines() if "metrics are at" in line}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url.replace("/metrics", path)) as response,
    ):
        return response.status, await response.text()

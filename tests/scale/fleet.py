"""Real `soong-agent worker` processes, each behind a proxy of its own, to be broken at will."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from postgres import Server
from tcp_proxy import Proxy

URL_VARIABLE = "SOONG_CHAOS_URL"
WORKER_VARIABLE = "SOONG_CHAOS_WORKER"
KEY_VARIABLE = "SOONG_CHAOS_KEY"


@dataclass(eq=False)
class WorkerProcess:
    """One worker; `number` grows with every start, so that its effects can be told from others'."""

    name: str
    proxy: Proxy
    process: subprocess.Popen[bytes]
    log: Path
    paused_until: float = 0.0
    is_draining: bool = False

    @property
    def is_paused(self) -> bool:
        return self.paused_until > 0


@dataclass
class Fleet:
    """The workers of one round. `arguments` follow `soong-agent worker`.

    The places have the homes by turns.
    """

    server: Server
    database: str
    homes: Sequence[Path]
    project: Path
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    proxies: list[Proxy]
    workers: list[WorkerProcess | None] = field(default_factory=list[WorkerProcess | None])
    started: list[WorkerProcess] = field(default_factory=list[WorkerProcess])

    def start(self, place: int) -> WorkerProcess:
        """Start the worker of one place, or another one after the last has gone."""
        name = f"{self.environment['SOONG_CHAOS_ROUND']}.w{place}.{len(self.started)}"
        proxy = self.proxies[place]
        proxy.flow()
        home = self.homes[place % len(self.homes)]
        variables = {
            **self.environment,
            "SOONG_AGENT_HOME": str(home),
            WORKER_VARIABLE: name,
            URL_VARIABLE: self.server.url(self.database, port=proxy.port),
        }
        log = home / f"{name}.log"
        with log.open("wb") as output:
            process = self._spawn(variables, output)
        worker = WorkerProcess(name, proxy, process, log)
        self.workers[place] = worker
        self.started.append(worker)
        return worker

    def _spawn(self, variables: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", "agent_core.cli", "worker", *self.arguments)
        return subprocess.Popen(  # noqa: S603 - our own command
            command,
            cwd=self.project,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    def living(self) -> list[int]:
        """The places whose worker takes runs, and is neither gone nor paused."""
        return [
            place
            for place, worker in enumerate(self.workers)
            if worker is not None
            and worker.process.poll() is None
            and not worker.is_paused
            and _has_begun(worker)
        ]

    def worker(self, place: int) -> WorkerProcess:
        found = self.workers[place]
        assert found is not None
        return found

    def kill(self, place: int) -> None:
        """End a worker as a crash does, and leave its place empty."""
        worker = self.worker(place)
        worker.process.kill()
        worker.process.wait()
        self.workers[place] = None

    def pause(self, place: int, seconds: float) -> None:
        """Stop a worker where it is; `wake` lets it go on when the time is over."""
        worker = self.worker(place)
        worker.process.send_signal(signal.SIGSTOP)
        worker.paused_until = time.monotonic() + seconds

    def wake(self, *, all_of_them: bool = False) -> None:
        """Let the paused workers go on whose time is over."""
        for worker in filter(None, self.workers):
            if worker.is_paused and (all_of_them or time.monotonic() >= worker.paused_until):
                worker.process.send_signal(signal.SIGCONT)
                worker.paused_until = 0.0

    def drain(self, place: int) -> WorkerProcess:
        """Ask a worker to end, once: a second time would end it at once."""
        worker = self.worker(place)
        if not worker.is_draining:
            worker.is_draining = True
            worker.process.terminate()
        return worker

    def failures(self) -> list[str]:
        """Workers that ended in a way that nothing here has caused, with the end of their logs."""
        return [
            f"{worker.name} ended with {worker.process.returncode}:"
            f" {worker.log.read_text('utf-8', 'replace')[-2000:]}"
            for worker in self.started
            if worker.process.poll() not in {None, 0, -signal.SIGKILL}
            and _has_begun(worker)
            and not _is_cut_off(worker)
        ]


def _is_cut_off(worker: WorkerProcess) -> bool:
    """Whether it was drained while its database did not answer, and says so."""
    return worker.process.poll() == 1 and b" could not be handed over" in worker.log.read_bytes()


def _has_begun(worker: WorkerProcess) -> bool:
    """Whether it came to take runs; before, it ends where its database fails, or when asked to."""
    return b" takes runs of " in worker.log.read_bytes()


@contextmanager
def fleet(
    server: Server,
    database: str,
    homes: Sequence[Path],
    project: Path,
    *,
    size: int,
    name: str,
    arguments: tuple[str, ...] = (),
) -> Generator[Fleet]:
    """Places for workers, none of them started; whatever is left at the end is killed."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy.in_thread(server.port)) for _ in range(size)]
        environment = {
            **os.environ,
            "SOONG_CHAOS_ROUND": name,
            KEY_VARIABLE: "sk-chaos-0123456789abcdef",
        }
        made = Fleet(server, database, homes, project, arguments, environment, proxies)
        made.workers = [None] * size
        try:
            yield made
        finally:
            for worker in made.started:
                if worker.process.poll() is None:
                    worker.process.kill()
                    worker.process.wait()


def left_behind(name: str) -> list[str]:
    """Command lines of the processes that still carry the name of a round in their environment."""
    found: list[str] = []
    mark = f"SOONG_CHAOS_WORKER={name}.".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                found.append(f"{folder.name} {' '.join(words)}")
    return found

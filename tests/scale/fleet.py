"""Real `soong-agent worker` processes, each behind a proxy of its own, to be broken at will."""

import os
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from postgres import Server, programs_with
from tcp_proxy import Proxy
from worker_processes import WORKER, WorkerProcess, end_process, start_process

URL_VARIABLE = "SOONG_CHAOS_URL"
WORKER_VARIABLE = "SOONG_CHAOS_WORKER"
KEY_VARIABLE = "SOONG_CHAOS_KEY"


@dataclass(eq=False, kw_only=True)
class FleetWorker(WorkerProcess):
    """One worker; its name is no other's, so that its effects can be told from theirs."""

    name: str
    proxy: Proxy
    paused_until: float = 0.0
    is_draining: bool = False

    @property
    def is_paused(self) -> bool:
        return self.paused_until > 0


@dataclass
class Fleet:
    """The workers of one round; each place has its home."""

    server: Server
    database: str
    homes: Sequence[Path]
    project: Path
    environment: Mapping[str, str]
    proxies: list[Proxy]
    workers: list[FleetWorker | None] = field(default_factory=list[FleetWorker | None])
    started: list[FleetWorker] = field(default_factory=list[FleetWorker])

    def start(self, place: int, command: Sequence[str] = WORKER) -> FleetWorker:
        """Start the worker of one place, or another one after the last has gone."""
        name = f"{self.environment['SOONG_CHAOS_ROUND']}.w{place}.{len(self.started)}"
        proxy = self.proxies[place]
        proxy.flow()
        home = self.homes[place]
        variables = {
            **self.environment,
            "SOONG_AGENT_HOME": str(home),
            WORKER_VARIABLE: name,
            URL_VARIABLE: self.server.url(self.database, port=proxy.port),
        }
        log = home / f"{name}.log"
        process = start_process(command, log, variables, self.project)
        worker = FleetWorker(process=process, log=log, name=name, proxy=proxy)
        self.workers[place] = worker
        self.started.append(worker)
        return worker

    def living(self) -> list[int]:
        """The places whose worker takes runs, and is neither gone nor paused."""
        return [
            place
            for place, worker in enumerate(self.workers)
            if worker is not None
            and not worker.has_ended
            and not worker.is_paused
            and worker.has_begun
        ]

    def worker(self, place: int) -> FleetWorker:
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

    def lose_answer(self, place: int, patience_s: float = 5.0) -> bool:
        """Leave a worker that has stored that a call begins without the answer that it did.

        Returns whether there was a call.
        """
        worker = self.worker(place)
        before, end = worker.proxy.muted, time.monotonic() + patience_s
        worker.proxy.unanswered = b'"tool_started"'
        while worker.proxy.muted == before and time.monotonic() < end and not worker.has_ended:
            time.sleep(0.01)
        worker.proxy.unanswered = None
        return worker.proxy.muted > before and not worker.has_ended

    def wake(self, *, all_of_them: bool = False) -> None:
        """Let the paused workers go on whose time is over."""
        for worker in filter(None, self.workers):
            if worker.is_paused and (all_of_them or time.monotonic() >= worker.paused_until):
                worker.proxy.cut()  # nobody keeps a connection for as long
                worker.process.send_signal(signal.SIGCONT)
                worker.paused_until = 0.0

    def drain(self, place: int) -> FleetWorker:
        """Ask a worker to end, once: a second time would end it at once."""
        worker = self.worker(place)
        if not worker.is_draining:
            worker.is_draining = True
            worker.process.terminate()
        return worker

    def failures(self) -> list[str]:
        """Workers that ended in a way that nothing here has caused, with the end of their logs."""
        return [
            f"{worker.name} ended with {worker.process.returncode}: {worker.text[-2000:]}"
            for worker in self.started
            if worker.process.poll() not in {None, 0, -signal.SIGKILL}
            and worker.has_begun
            and not _is_cut_off(worker)
        ]


def _is_cut_off(worker: FleetWorker) -> bool:
    """Whether it was drained while its database did not answer, and says so."""
    return worker.process.poll() == 1 and " could not be handed over" in worker.text


@contextmanager
def fleet(
    server: Server,
    database: str,
    homes: Sequence[Path],
    project: Path,
    *,
    size: int,
    name: str,
) -> Generator[Fleet]:
    """Places for workers, none of them started; whatever is left at the end is killed."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy.in_thread(server.port)) for _ in range(size)]
        environment = {
            **os.environ,
            "SOONG_CHAOS_ROUND": name,
            KEY_VARIABLE: "sk-chaos-0123456789abcdef",
        }
        made = Fleet(server, database, homes, project, environment, proxies)
        made.workers = [None] * size
        try:
            yield made
        finally:
            for worker in made.started:
                end_process(worker.process)


def left_behind(name: str) -> list[str]:
    """Command lines of the processes that still carry the name of a round in their environment."""
    found: list[str] = []
    for folder in programs_with(WORKER_VARIABLE, f"{name}."):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            found.append(f"{folder.name} {' '.join(words)}")
    return found

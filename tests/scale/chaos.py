"""Rounds of chaos: many runs on several workers that are killed, paused and cut off at random.

    python tests/scale/chaos.py --rounds 10 --seed 7      # what `make chaos ROUNDS=10` does

A round prints its seed, which chooses the plans and the faults, the faults it has made, and what it
took. It fails with everything that is not as it must be, and keeps its folder then.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_core import AgentCoreError, AgentRuntime, RunHandle
from agent_core.types import CLOSING_EVENTS
from model_server import ModelServer
from postgres import DURABLE, Server, hold_session, make_cluster
from scale.checks import Stored, misplaced, missing_marks, unread, violations
from scale.fleet import KEY_VARIABLE, URL_VARIABLE, WORKER_VARIABLE, Fleet, fleet, left_behind
from scale.plans import Plans, prompt
from tcp_proxy import Proxy

LETTERS: tuple[str, ...] = ("e", "e", "e", "s", "s", "ee", "w", "w")
_BEGINS_S = 40.0
"""A worker begins to take runs within this time."""

CONFIG = """
[model]
provider = "openai"
name = "scripted"
base_url = "{base_url}"
api_key_env = "{key}"
context_window = 32000

[store]
url_env = "{url}"

[worker]
heartbeat_s = {heartbeat_s}
lease_s = {lease_s}
drain_seconds = {drain_s}
concurrency = {concurrency}

[memory]
enabled = false

[tools]
env_allowlist = ["PATH", "HOME", "TMPDIR", "SOONG_CHAOS_WORKER"]

[permissions]
unattended = "park"

[[permissions.rules]]
decision = "allow"
command = ["{effect}", "*"]

[[permissions.rules]]
decision = "allow"
command = ["{show}", "*"]
"""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large a round is, and how it is disturbed."""

    runs: int = 200
    sessions: int = 40
    snapshots: int = 6
    """So many of the sessions have their files in snapshots."""
    readers: int = 6
    """So many runs are watched by processes of their own, too."""
    workers: int = 3
    concurrency: int = 4
    heartbeat_s: float = 1.0
    lease_s: float = 6.0
    drain_s: float = 0.5
    pause_s: float = 60.0
    between_faults_s: tuple[float, float] = (0.5, 2.0)
    patience_s: float = 300.0
    faults: tuple[str, ...] = (
        "kill",
        "kill_in_call",
        "pause",
        "pause_in_call",
        "lose_answer",
        "cut",
        "cut",
        "half_close",
        "stall",
        "drain",
        "restart",
        "crash",
    )
    most_pauses: int = 1
    more_faults: int = 60


@dataclass
class Watched:
    """What a watcher has read of a run."""

    numbers: list[int] = field(default_factory=list[int])
    closing: str = ""
    attached: int = 0


@dataclass(kw_only=True)
class Round:
    """One round: what was started, seen and broken."""

    shape: Shape
    random: random.Random
    runtime: AgentRuntime
    fleet: Fleet
    homes: Sequence[Path]
    own_proxy: Proxy
    started: list[str] = field(default_factory=list[str])
    jobs: dict[str, str] = field(default_factory=dict[str, str])
    kept_here: set[str] = field(default_factory=set[str])
    was_away_s: float = 0.0
    has_shown: bool = False
    read: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    cancelled: set[str] = field(default_factory=set[str])
    watched: dict[str, Watched] = field(default_factory=dict[str, Watched])
    made: Counter[str] = field(default_factory=Counter[str])
    log: list[str] = field(default_factory=list[str])
    begun: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self.begun:7.2f} {text}")

    async def start_runs(self, runtime: AgentRuntime, watchers: asyncio.TaskGroup) -> None:
        """Start all runs, those of a session in their order, and watch each."""
        for number in range(self.shape.runs):
            session, job = number % self.shape.sessions, number // self.shape.sessions
            letters = self.random.choices(LETTERS, k=self.random.randint(1, 3))
            if self.random.random() < 0.1:
                letters.insert(self.random.randint(0, len(letters)), "c")
            is_last = number + self.shape.sessions >= self.shape.runs
            in_snapshots = session < self.shape.snapshots
            chance = self.random.random()
            if is_last and chance < 0.5:  # behind a question no run of it may wait
                letters.insert(self.random.randint(0, len(letters)), "q")
            name = f"s{session:02}r{job:02}"
            text = prompt(name, "-".join(letters))
            if is_last and chance > 0.8 and not in_snapshots:
                watchers.create_task(self.carry_out(runtime, name, text, watchers))
                continue
            place = "snapshot" if in_snapshots else None
            handle = await runtime.start(text, f"s{session:02}", place=place)
            self._follow(handle, name, watchers)
            if len(self.read) < self.shape.readers and self.random.random() < 0.1:
                self.read[handle.run_id] = []
                watchers.create_task(self.read_elsewhere(handle.run_id))

    async def carry_out(
        self, runtime: AgentRuntime, name: str, text: str, watchers: asyncio.TaskGroup
    ) -> None:
        """Have a run carried out by this process, after those of its session that workers have."""
        self.kept_here.add(name)
        session_id = name.partition("r")[0]
        handle = await runtime.start(text, session_id, here=True, queue_timeout_s=300)
        self._follow(handle, name, watchers)

    def _follow(self, handle: RunHandle[Any], name: str, watchers: asyncio.TaskGroup) -> None:
        self.started.append(handle.run_id)
        self.jobs[handle.run_id] = name
        watchers.create_task(self.watch(handle.run_id))
        if self.random.random() < 0.04:
            watchers.create_task(self.cancel(handle))

    async def read_elsewhere(self, run_id: str) -> None:
        """Read a run with `soong-agent attach`, which is killed now and then."""
        numbers, is_over, attempt = self.read[run_id], False, 0
        while not is_over:
            attempt += 1
            file = self.homes[0] / f"{run_id}.{attempt}.events"
            after = ("--after", str(numbers[-1] if numbers else 0), "--events", str(file))
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "agent_core.cli", "attach", run_id, *after),
                cwd=self.fleet.project,
                env={**os.environ, "SOONG_AGENT_HOME": str(self.homes[0])},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                seconds = self.random.uniform(1, 5) if attempt == 1 else None
                await asyncio.wait_for(process.wait(), seconds)
            except TimeoutError:
                self.made["kill_reader"] += 1
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            lines = file.read_text("utf-8").splitlines(keepends=True) if file.exists() else []
            for event in (json.loads(line) for line in lines if line.endswith("\n")):
                if event.get("run_id") == run_id and event.get("run_seq") is not None:
                    numbers.append(event["run_seq"])
                    is_over = is_over or event["event_type"] in CLOSING_EVENTS

    async def cancel(self, handle: RunHandle[Any]) -> None:
        await asyncio.sleep(self.random.random() * 10)
        self.cancelled.add(handle.run_id)
        await handle.cancel()

    async def watch(self, run_id: str) -> None:
        """Read a run to its closing event; attach again after a disturbance, and now and then."""
        seen = self.watched[run_id] = Watched()
        while not seen.closing:
            leaves_after = self.random.choice((3, 10_000, 10_000, 10_000))
            after = seen.numbers[-1] if seen.numbers else 0
            with suppress(AgentCoreError):
                handle = await self.runtime.attach(run_id, after=after)
                seen.attached += 1
                async with aclosing(handle.events(debug=True)) as events:
                    async for event in events:
                        if event.run_seq is None:
                            continue
                        seen.numbers.append(event.run_seq)
                        if event.event_type in CLOSING_EVENTS:
                            seen.closing = str(event.event_type)
                        leaves_after -= 1
                        if leaves_after == 0:
                            break
            if not seen.closing:
                await asyncio.sleep(0.2)

    async def answer_questions(self) -> None:
        """Allow whatever is asked, for as long as the round lasts."""
        while True:
            with suppress(AgentCoreError):
                for question in await self.runtime.approvals():
                    with suppress(AgentCoreError):  # answered, or its run was cancelled
                        await self.runtime.answer(question.request_id, "allow_once")
                        self.made["answer"] += 1
            await asyncio.sleep(0.3)

    async def disturb(self) -> None:
        """Break something again and again; a place that is empty gets a new worker."""
        for fault in self._faults():
            await asyncio.sleep(self.random.uniform(*self.shape.between_faults_s))
            self._fill_places()
            async with asyncio.timeout(_BEGINS_S):  # whatever those hold that are paused
                while not (living := self.fleet.living()):
                    await asyncio.sleep(0.1)
                    self._fill_places()
            if fault.startswith("pause") and not self._may_pause(fault):
                continue
            place = self.random.choice(living)
            self.made[fault] += 1
            await self._break(fault, place)
        while True:
            await asyncio.sleep(0.1)
            self._fill_places()

    def _fill_places(self) -> None:
        self.fleet.wake()
        for place, worker in enumerate(self.fleet.workers):
            if worker is None or worker.has_ended:
                self.note(f"start {self.fleet.start(place).name}")

    def _faults(self) -> Iterator[str]:
        """The given ones in their order, and then any of them."""
        yield from self.shape.faults
        for _ in range(self.shape.more_faults):
            yield self.random.choice(self.shape.faults)

    def _may_pause(self, fault: str) -> bool:
        is_paused = any(worker and worker.is_paused for worker in self.fleet.workers)
        return not is_paused and self.made[fault] < self.shape.most_pauses

    async def _break(self, fault: str, place: int) -> None:
        proxy = self.random.choice((self.fleet.proxies[place], self.own_proxy))
        is_own = fault in {"cut", "half_close", "stall"} and proxy is self.own_proxy
        self.note(f"{fault} {'this process' if is_own else self.fleet.worker(place).name}")
        match fault:
            case "kill":
                self.fleet.kill(place)
            case "pause":
                self.fleet.pause(place, self.shape.pause_s)
            case "kill_in_call" | "lose_answer" | "pause_in_call":
                await self._break_in_call(fault, place)
            case "cut":
                proxy.cut()
            case "half_close":
                proxy.half_close()
            case "stall":  # sometimes shorter than the lease, sometimes longer
                proxy.stall()
                seconds = self.random.uniform(0.5, 1.5 * self.shape.lease_s)
                asyncio.get_running_loop().call_later(seconds, proxy.flow)
                if is_own:
                    self.was_away_s = max(self.was_away_s, seconds)
            case "drain":
                self.fleet.drain(place)
            case "restart":
                await self._be_away(self.fleet.server.restart)
            case "crash":
                await self._be_away(self.fleet.server.kill, self.fleet.server.start)
            case _:
                raise ValueError(fault)

    async def _break_in_call(self, fault: str, place: int) -> None:
        if not await asyncio.to_thread(self.fleet.lose_answer, place):
            self.note("    no call has begun")
        elif fault == "kill_in_call":
            self.fleet.kill(place)
        elif fault == "pause_in_call":  # nothing but its hold on the session stops the call then
            self.fleet.pause(place, self.shape.pause_s)
        else:  # it finds out on another connection
            self.fleet.proxies[place].cut()

    async def _be_away(self, *steps: Callable[[], None]) -> None:
        begun = time.monotonic()
        for step in steps:
            await asyncio.to_thread(step)
        self.was_away_s = max(self.was_away_s, time.monotonic() - begun)

    async def settle(self) -> None:
        """Undo what is broken, look whether a worker that wakes up does harm, and drain all."""
        self.own_proxy.flow()
        for proxy in self.fleet.proxies:
            proxy.flow()
        self.fleet.wake(all_of_them=True)
        await asyncio.sleep(3)
        for place, worker in enumerate(self.fleet.workers):
            if worker is None or worker.has_ended:
                continue
            self.fleet.drain(place)
            await asyncio.to_thread(worker.process.wait, 60)

    async def look_at_files(self, runtime: AgentRuntime) -> None:
        """Let a machine that has none of their folders show the files of sessions in snapshots."""
        if not self.shape.snapshots:
            return
        place = len(self.fleet.workers) - 1
        for name in ("workspaces", "snapshots"):
            shutil.rmtree(self.homes[place] / name, ignore_errors=True)
        worker = self.fleet.start(place)
        shows: list[str] = []
        for session in range(self.shape.snapshots):
            name = f"s{session:02}"
            handle = await runtime.start(prompt(f"{name}r99", "p"), name)
            shows.append(handle.run_id)
        async with asyncio.timeout(60):
            for run_id in shows:
                await (await runtime.attach(run_id)).wait()
        self.fleet.drain(place)
        await asyncio.to_thread(worker.process.wait, 60)
        self.has_shown = True


async def play(shape: Shape, seed: int, server: Server, database: str, folder: Path) -> list[str]:
    """One round in a migrated database; what was wrong."""
    project = folder / "project"
    # Locks are seen, and snapshots kept, in one home alone: the last worker has one of its own.
    homes = [*[folder / "home"] * (shape.workers - 1), folder / "far"]
    for each in (project, *homes):
        each.mkdir(parents=True, exist_ok=True)
    plans = Plans.prepare(project)
    name = f"c{secrets.token_hex(4)}"
    with (
        ModelServer.in_thread(plans.answer) as model,
        Proxy.in_thread(server.port) as own_proxy,
        fleet(server, database, homes, project, size=shape.workers, name=name) as workers,
    ):
        facts = {"key": KEY_VARIABLE, "url": URL_VARIABLE}
        programs = {"effect": project / "effect", "show": project / "show"}
        numbers = {
            "heartbeat_s": shape.heartbeat_s,
            "lease_s": shape.lease_s,
            "drain_s": shape.drain_s,
            "concurrency": shape.concurrency,
        }
        base_url = model.base_url("openai")
        config = CONFIG.format(base_url=base_url, **facts, **programs, **numbers)
        for home in homes:
            (home / "config.toml").write_text(config, encoding="utf-8")
        os.environ[KEY_VARIABLE] = workers.environment[KEY_VARIABLE]
        os.environ[WORKER_VARIABLE] = "this-process"
        os.environ[URL_VARIABLE] = server.url(database, port=own_proxy.port)
        for place in range(shape.workers):
            workers.start(place)
        async with (
            AgentRuntime(project, home_dir=homes[0], database_url=server.url(database)) as starter,
            AgentRuntime(project, home_dir=homes[0]) as runtime,
        ):
            played = Round(
                shape=shape,
                random=random.Random(seed),  # noqa: S311 - faults, not secrets
                runtime=runtime,
                fleet=workers,
                homes=homes,
                own_proxy=own_proxy,
            )
            problems = await _carry_out(played, starter)
        for line in played.log:
            say(f"    {line}")
        stored = Stored.read(server.url(database))
        seen = {run_id: each.numbers for run_id, each in played.watched.items() if each.closing}
        asked = frozenset(played.cancelled)
        found = list(violations(stored, played.started, plans.effects(), seen, asked))
        for run_id in {each.partition(": ")[0] for each in found} & set(played.started):
            say(f"    {played.jobs[run_id]}: {stored.tell(run_id)}")
        problems += found
        problems += misplaced(plans.effects(), played.kept_here)
        problems += unread(stored, played.read)
        marks = {f"s{each:02}": plans.shown(f"s{each:02}") for each in range(shape.snapshots)}
        if played.has_shown:
            problems += missing_marks(stored, played.jobs, marks)
        problems += workers.failures()
        problems += await _orphans(name)
        statuses = Counter(stored.runs[run_id]["status"] for run_id in played.started)
        takeovers = sum(run["takeovers"] or 0 for run in stored.runs.values())
        attaches = sum(each.attached for each in played.watched.values())
        say(
            f"    {dict(statuses)}, {takeovers} takeovers, {len(plans.effects())} effects,"
            f" {attaches} attaches, {dict(played.made)}, away for {played.was_away_s:.1f} s at most"
        )
        return problems


async def _carry_out(played: Round, starter: AgentRuntime) -> list[str]:
    helpers = [
        asyncio.create_task(played.disturb()),
        asyncio.create_task(played.answer_questions()),
    ]
    try:
        async with asyncio.timeout(played.shape.patience_s), asyncio.TaskGroup() as watchers:
            await played.start_runs(starter, watchers)
    except TimeoutError:
        open_runs = [run_id for run_id, each in played.watched.items() if not each.closing]
        return [f"not ended after {played.shape.patience_s} s: {open_runs}"]
    finally:
        for helper in helpers:
            helper.cancel()
        done = await asyncio.gather(*helpers, return_exceptions=True)
    failed = [repr(each) for each in done if not isinstance(each, asyncio.CancelledError)]
    await played.settle()
    await played.look_at_files(starter)
    return failed


async def _orphans(name: str) -> list[str]:
    """Processes of workers that are still there; what is being ended gets a moment."""
    found = left_behind(name)
    for _ in range(50):
        if not found:
            break
        await asyncio.sleep(0.1)
        found = left_behind(name)
    return [f"left behind: {each}" for each in found]


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=None, help="of the first round")
    parser.add_argument("--runs", type=int, default=Shape.runs)
    parser.add_argument("--keep", action="store_true", help="keep the folder of a round that held")
    parser.add_argument("--faults", default=",".join(Shape.faults), help="what is done, as often")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)  # that a connection is lost is no news here
    shape = Shape(runs=options.runs, faults=tuple(options.faults.split(",")))
    first = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="soong-agent-chaos-"))
    failed = 0
    with hold_session(folder):
        server = make_cluster(folder).new_server(DURABLE)
        server.start()
        for seed in range(first, first + options.rounds):
            begun = time.monotonic()
            say(f"seed {seed}")
            database = server.create_database()
            problems = asyncio.run(play(shape, seed, server, database, folder / str(seed)))
            failed += bool(problems)
            said = "held" if not problems else "FAILED\n    " + "\n    ".join(problems)
            say(f"seed {seed}: {time.monotonic() - begun:.0f} s, {said}")
    if failed or options.keep:
        say(f"{failed} of {options.rounds} rounds failed; see {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

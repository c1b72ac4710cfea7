"""Instructions that one run, turn, chunk or start takes, counted by cachegrind.

    python instructions.py                          # ours beside the bare loop
    python instructions.py -s run,turn-late agent_core
    python instructions.py -s turn-1000,turn-tools,run-sessions agent_core    # much of something
    python instructions.py -s run,run-traced agent_core                       # and what traces cost
    python instructions.py -s first,next agent_core                           # messages of a session

CPU time misleads on a machine that does other work as well: caches are cold and frequencies change.
The number of instructions is the same to a part in a thousand, so it shows what a change has saved
or cost. It leaves out the kernel's share (writes, syncs, sockets), a sixth of a stored run.

What is done once is cancelled out: a figure is the difference between a process with many units and
one with few, by their number. The event loop's clock runs a thousand times as slow as the real one:
a program that is counted, on a machine that does other work, is several hundred times as slow, and
what waits for milliseconds is to be done as often as without.

Both sides run in this interpreter's environment; skipped where valgrind is missing.
"""

import argparse
import asyncio
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import bench

OURS, LIMIT = "agent_core", "raw_aiohttp"
SLOWER = 1_000

SCENARIOS = {
    # name: (function below, few units, many units, what a unit is)
    "run": ("runs", 5, 25, "a stored run"),
    "conc": ("at_once", 20, 60, "one of many stored runs at once"),
    "turn": ("turns", 10, 30, "a turn, the first 30 of a stored run"),
    "turn-late": ("turns", 180, 200, "a turn, the last 20 of 200"),
    "chunk": ("chunks", 2_000, 8_000, "a streamed chunk"),
    "start": ("first_answer", 0, 1, "a process, to its first answer"),
}
OF_OURS = {  # these take long, and are measured when they are named
    "turn-1000": ("turns", 980, 1_000, "a turn, the last 20 of 1,000"),
    "turn-tools": ("turns_with_tools", 10, 30, "a turn, with 500 tools on offer"),
    "first": ("first_messages", 5, 25, "a stored run of one turn, in a new session"),
    "next": ("next_messages", 5, 25, "the next message of a session, one turn"),
    "run-sessions": ("runs_among_sessions", 5, 25, "a stored run, among 10,000 sessions"),
    "run-traced": ("traced_runs", 5, 25, "a stored run whose spans go to a collector"),
}


class Collector(BaseHTTPRequestHandler):
    """Takes spans and metrics, and forgets them."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class SlowSelector(selectors.DefaultSelector):
    """Waits as long for a time on the slow clock as it takes."""

    def select(self, timeout=None):
        return super().select(timeout and timeout * SLOWER)


class SlowLoop(asyncio.SelectorEventLoop):
    """An event loop whose milliseconds are as long as counting makes them."""

    def __init__(self):
        super().__init__(SlowSelector())

    def time(self):
        return super().time() / SLOWER


async def runs(measured, count):
    await measured.setup(1, bench.WORDS)
    for _ in range(5 + count):
        await measured.run()


async def at_once(measured, count):
    await measured.setup(1, bench.WORDS)
    await measured.run()
    await asyncio.gather(*(measured.run(True) for _ in range(count)))


async def turns(measured, count):
    await measured.setup(count, bench.WORDS)
    await measured.run()


async def turns_with_tools(measured, count):
    from curves import add_tools

    make_agent = measured.adapter.make_agent

    def with_tools(ctx):
        ctx.runtime = make_agent(ctx)
        add_tools(ctx, 499)
        return ctx.runtime

    measured.adapter.make_agent = with_tools
    await turns(measured, count)


async def first_messages(measured, count):
    await measured.setup(0, bench.WORDS)
    for _ in range(5 + count):
        await measured.run()


async def next_messages(measured, count):
    await measured.setup(0, bench.WORDS)
    for _ in range(5 + count):
        measured.sid = 0  # the session of the message before
        await measured.run()


async def sessions(measured, count):
    await measured.setup(1, bench.WORDS)
    for _ in range(count):
        await measured.run()


async def runs_among_sessions(measured, count):
    await runs(measured, count)


async def traced_runs(measured, count):
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = os.environ["BENCH_COLLECTOR"]
    await runs(measured, count)


async def chunks(measured, count):
    await measured.setup(0, count)
    await measured.run()


async def first_answer(measured, count):
    if count:
        await measured.setup(1, bench.WORDS)
        await measured.run()


def worker(adapter, function, url, db, count):
    async def main():
        measured = bench.Bench(adapter, url, db or None)
        await globals()[function](measured, count)
        if count:
            await measured.close()

    with asyncio.Runner(loop_factory=SlowLoop) as runner:
        runner.run(main())


def instructions(adapter, function, url, count):
    """All instructions of a process, its threads included."""
    stored = function not in {"chunks", "first_answer"}
    if function == "first_answer" and not count:
        arguments = ["-c", "pass"]
    else:
        arguments = ["instructions.py", "--worker", adapter, function, url, str(count)]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if function != "first_answer" or count:
            arguments.append(f"{folder}/bench.db" if stored else "")
        if function == "runs_among_sessions":  # made at full speed
            command = [sys.executable, "instructions.py", "--worker", adapter, "sessions", url]
            filled = [*command, "10000", f"{folder}/bench.db"]
            subprocess.run(filled, cwd=bench.HERE, env=bench.ENVIRONMENT, check=True)
        done = subprocess.run(
            [
                "valgrind",
                "--tool=cachegrind",
                "--cache-sim=no",
                f"--cachegrind-out-file={folder}/out",
            ]
            + [sys.executable, *arguments],
            cwd=bench.HERE,
            env=bench.ENVIRONMENT | {"PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
        )
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{adapter}, {function}: {done.stderr[-2000:]}")
    return int(found[1].replace(",", ""))


def write_compiled(adapter, url):
    """Write the .pyc files, which would be counted with the first process."""
    subprocess.run(
        [sys.executable, "instructions.py", "--worker", adapter, "first_answer", url, "1", ""],
        cwd=bench.HERE,
        env=bench.ENVIRONMENT,
        check=True,
    )


def measure(adapter, scenario, url):
    """Instructions of one unit."""
    function, few, many, _ = (SCENARIOS | OF_OURS)[scenario]
    of_many, of_few = (instructions(adapter, function, url, count) for count in (many, few))
    return (of_many - of_few) / (many - few)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("adapters", nargs="*", default=[LIMIT, OURS])
    parser.add_argument("-s", "--scenarios", default=",".join(SCENARIOS), help="comma list")
    options = parser.parse_args()
    known = SCENARIOS | OF_OURS
    scenarios = options.scenarios.split(",")
    if unknown := [name for name in scenarios if name not in known]:
        parser.error(f"no such scenario: {', '.join(unknown)}; there are {', '.join(known)}")
    adapters = {path.stem for path in (bench.HERE / "adapters").glob("[a-z]*.py")}
    if unknown := [name for name in options.adapters if name not in adapters]:
        hint = f"; scenarios follow -s: -s {unknown[0]}" if unknown[0] in known else ""
        parser.error(f"no such adapter: {', '.join(unknown)}{hint}")
    if shutil.which("valgrind") is None:
        print("skipped: there is no valgrind")
        return
    server = subprocess.Popen(
        [sys.executable, "server.py"], cwd=bench.HERE, stdout=subprocess.PIPE, text=True
    )
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    bench.ENVIRONMENT["BENCH_COLLECTOR"] = f"http://127.0.0.1:{collector.server_port}"
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        for adapter in options.adapters:
            write_compiled(adapter, url)
        for scenario in scenarios:
            counted = [measure(adapter, scenario, url) for adapter in options.adapters]
            shown = ", ".join(
                f"{adapter} {count / 1e3:,.1f}"
                for adapter, count in zip(options.adapters, counted, strict=True)
            )
            ratio = f": {counted[-1] / counted[0]:.2f} times" if len(counted) == 2 else ""
            unit = known[scenario][3]
            print(f"{scenario:10} {unit}, thousands: {shown}{ratio}", flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        os.environ.setdefault("NO_PROXY", "127.0.0.1")
        worker(*sys.argv[2:5], sys.argv[6], int(sys.argv[5]))
    else:
        main()

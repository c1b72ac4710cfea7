"""`make guard`: fails if this runtime has become expensive beside a bare loop on aiohttp.

    python guard.py               # about a minute; 0 if every ratio holds, 1 if one does not
    python guard.py -s stream     # some scenarios
    python guard.py --runs 9      # more samples

Both sides run in this interpreter's environment, in turns, in fresh processes, against the same fake
server. Where there is valgrind, what is compared of a start, a run and a chunk are instructions:
other work changes them by 1% at most, so their bounds lie that much above what was measured when they
were set.

All else, and everything where there is no valgrind, is compared by CPU, never time on the clock, and
of each side the least disturbed sample: other work on the machine makes a sample dearer, never
cheaper. These bounds lie a fifth or more above what was measured when they were set, and a ratio that
crosses its bound is measured again with three times the samples before it counts.
"""

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import bench
import instructions

OURS, LIMIT = "agent_core", "raw_aiohttp"
MOST_AGAIN = 3

BOUNDS = {
    # scenario: (figure, bound, what it is, where to look)
    "import": ("cpu_ms", 1.15, "import of the SDK's names", "agent_core/__init__.py, types/"),
    "cold": ("cpu_ms", 2.4, "process start to first answer", "python -X importtime"),
    "seq-db": ("cpu_ms", 5.0, "one stored run", "events/, storage/, loop/"),
    "stream": ("cpu_us", 1.6, "one streamed chunk", "providers/decoding.py, reply.py"),
}
"""CPU of ours, as so many times that of the bare loop, at most."""
COUNTED = {"cold": ("start", 1.25), "seq-db": ("run", 5.09), "stream": ("chunk", 0.87)}
"""What `instructions.py` calls a scenario, and its bound: instructions of ours, as so many times
those of the bare loop, at most."""
GROWTH = ("loop-db", 1.5)
"""CPU of the turns 41-50 of one run, as so many times that of the turns 2-10, at most."""


class Guard:
    """Measures both sides in turns, and keeps the least of each figure."""

    def __init__(self, url, server):
        self.url, self.server = url, server

    def least(self, scenario, figures, names, runs):
        """The least of each figure, by name of the side."""
        found = {name: [] for name in names}
        for _ in range(runs):
            for name in names:
                found[name].append(bench.measure_once(name, scenario, self.url, self.server, 120))
        return {
            name: [min(row[figure] for row in rows) for figure in figures]
            for name, rows in found.items()
        }

    def beside_limit(self, scenario, figure, runs):
        """(ours, the bare loop's) of one figure."""
        least = self.least(scenario, [figure], (LIMIT, OURS), runs)
        return least[OURS][0], least[LIMIT][0]

    def growth(self, scenario, runs):
        """(late turns, early turns) of ours."""
        figures = ["tail_cpu_ms", "head_cpu_ms"]
        return tuple(self.least(scenario, figures, (OURS,), runs)[OURS])


def holds(measure, bound, runs):
    """(ratio, value, beside) of what was measured, once more with more samples if it is too much."""
    value, beside = measure(runs)
    if value > bound * beside:
        again, beside_again = measure(MOST_AGAIN * runs)
        value, beside = min(value, again), min(beside, beside_again)
    return value / beside, value, beside


def check_counted(url, scenarios):
    """As `check`, by instructions; side by side, since that does not change them."""
    for name in (LIMIT, OURS):
        instructions.write_compiled(name, url)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counting = {
            (scenario, name): pool.submit(instructions.measure, name, COUNTED[scenario][0], url)
            for scenario in scenarios
            for name in (OURS, LIMIT)
        }
        for scenario in scenarios:
            ours, limit = (counting[scenario, name].result() for name in (OURS, LIMIT))
            bound, ratio = COUNTED[scenario][1], ours / limit
            _, _, what, where = BOUNDS[scenario]
            thousands = f"{ours / 1e3:,.1f} thousand instructions, the bare loop {limit / 1e3:,.1f}"
            shown = f"{what}: {thousands}: {ratio:.2f} times"
            print(f"{scenario:8} {shown} (at most {bound})", flush=True)
            if ratio > bound:
                yield f"{scenario}: {shown}, more than {bound}. Look at: {where}."


def check(guard, scenarios, runs):
    """Print every ratio, and yield what a person has to know about each that is too high."""
    for scenario, (figure, bound, what, where) in BOUNDS.items():
        if scenario not in scenarios:
            continue
        ratio, ours, limit = holds(
            lambda count, s=scenario, f=figure: guard.beside_limit(s, f, count), bound, runs
        )
        unit = "us" if figure.endswith("us") else "ms"
        shown = f"{what}: {ours:.2f} {unit} of CPU, the bare loop {limit:.2f}: {ratio:.2f} times"
        print(f"{scenario:8} {shown} (at most {bound})", flush=True)
        if ratio > bound:
            yield f"{scenario}: {shown}, more than {bound}. Look at: {where}."
    scenario, bound = GROWTH
    if scenario in scenarios:
        ratio, late, early = holds(lambda count: guard.growth(scenario, count), bound, runs)
        shown = f"a late turn: {late:.2f} ms of CPU, an early one {early:.2f}: {ratio:.2f} times"
        print(f"{scenario:8} {shown} (at most {bound})", flush=True)
        if ratio > bound:
            yield (
                f"{scenario}: {shown}, more than {bound}: the cost of a turn grows with the history. "
                "Look at: context/composer.py, providers/requests.py."
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [*BOUNDS, GROWTH[0]]
    parser.add_argument("-s", "--scenarios", default=",".join(every), help="comma list")
    parser.add_argument("--runs", type=int, default=3, help="samples of each side")
    options = parser.parse_args()
    bench.python = lambda name: sys.executable
    server = subprocess.Popen(
        ["taskset", "-c", "1", sys.executable, "server.py"],
        cwd=bench.HERE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        for name in (LIMIT, OURS):  # writes the .pyc files
            bench.measure_once(name, "cold", url, server.pid, 120)
        scenarios = options.scenarios.split(",")
        has_valgrind = shutil.which("valgrind") is not None
        counted = [name for name in COUNTED if name in scenarios] if has_valgrind else []
        failures = list(check_counted(url, counted)) if counted else []
        rest = [name for name in scenarios if name not in counted]
        failures += check(Guard(url, server.pid), rest, options.runs)
    finally:
        server.terminate()
        server.wait()
    if failures:
        print("\nThis has become too expensive beside a bare loop:", *failures, sep="\n  ")
        print(
            "\nIf the cost is earned, raise the bound in bench/guard.py in the same change and say "
            "why.\n`python bench/guard.py -s <scenario> --runs 9` measures one of them again."
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

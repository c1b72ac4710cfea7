"""`make bench`: this runtime beside a bare loop and other frameworks, held against its goals.

    python compare.py                              # ours, the raw limit, every peer already installed
    python compare.py --install agno,strands_shared  # make these peers' environments first
    python compare.py -r 3 -s seq-db,stream        # fewer samples, some scenarios
    python compare.py --report                     # only print what the last run found

A peer is installed when its virtual environment exists below venvs/. Figures of other machines are
never mixed in: every ratio compares numbers of the same output file.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from bench import HERE, SCENARIOS, TABLES, constants, number, python, table

OURS = "agent_core"
LIMIT = "raw_aiohttp"
PEERS = (
    "agno",
    "agent_framework",
    "strands_shared",
    "openai_agents",
    "langgraph",
    "pydantic_ai",
    "smolagents",
    "google_adk",
)
ADAPTERS = (OURS, LIMIT, "raw_httpx", *PEERS)
SLOW_FOR_PEERS = {"loop200", "loop200-db", "stream"}  # minutes each, and no goal compares them
OUTPUT = HERE / "results" / "results.json"


# ---- environments ---------------------------------------------------------


def installed(name):
    return Path(python(name)).exists()


def install(name):
    """Make the adapter's environment; ours gets this checkout and its tested versions."""
    if installed(name):
        return
    folder = Path(python(name)).parents[1]
    print(f"making {folder.relative_to(HERE)}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    wanted = constants(name)["REQUIRES"]
    if name == OURS:
        root = HERE.parent
        wanted = ["-e", str(root), "-c", str(root / "constraints.txt")]
    pip = [python(name), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True)


# ---- goals ----------------------------------------------------------------


class Results:
    """Medians of one output file."""

    def __init__(self, results):
        self.results = results

    def get(self, name, scenario, key):
        found = self.results.get(name, {}).get("scenarios", {}).get(scenario, {})
        return found[key]["median"] if key in found else None

    def best_peer(self, scenario, key, best=min):
        """(value, name) of the strongest peer that was measured, or None."""
        found = [(self.get(p, scenario, key), p) for p in PEERS]
        return best((f for f in found if f[0] is not None), default=None)


def goals(results):
    """Yields (what, ours, beside, name, ratio, bound, holds); a goal nobody measured is left out."""

    def against(what, name, scenario, key, bound, *, at_least=False):
        ours = results.get(OURS, scenario, key)
        beside = results.get(name, scenario, key) if name else None
        if name is None and (peer := results.best_peer(scenario, key, max if at_least else min)):
            beside, name = peer
        if ours is None or beside is None:
            return
        ratio = ours / beside
        holds = ratio >= bound if at_least else ratio <= bound
        yield what, ours, beside, name, ratio, f"{'>=' if at_least else '<='} {bound:.2f}", holds

    def within(what, scenario, beside, key, bound):
        ours, other = results.get(OURS, scenario, key), results.get(OURS, beside, key)
        if ours is not None and other is not None:
            ratio = ours / other
            yield what, ours, other, beside, ratio, f"<= {bound:.2f}", ratio <= bound

    def growth(scenario, bound):
        first = results.get(OURS, scenario, "head_cpu_ms")
        last = results.get(OURS, scenario, "tail_cpu_ms")
        if first is not None:
            yield (
                f"{scenario}: CPU ms of a late turn",
                last,
                first,
                "turns 2-10",
                last / first,
                f"<= {bound:.2f}",
                last / first <= bound,
            )

    third, half = 1 / 3, 1 / 2
    yield from against("stored run, CPU ms", LIMIT, "seq-db", "cpu_ms", 2.2)
    yield from against("stored run, CPU ms", None, "seq-db", "cpu_ms", 1 / 5)
    yield from against("200 turns, CPU ms", LIMIT, "loop200-db", "cpu_ms", 1.8)
    yield from growth("loop-db", 1.3)
    yield from growth("loop200-db", 2)
    yield from against("streaming, CPU us per chunk", LIMIT, "stream", "cpu_us", 1.3)
    yield from against("import, ms", None, "import", "ms", half)
    yield from against("import, CPU ms", None, "import", "cpu_ms", half)
    yield from against("process to first answer, CPU ms", LIMIT, "cold", "cpu_ms", 1.3)
    yield from against("process to first answer, ms", None, "cold", "ms", 0.7)
    yield from against("process to first answer, CPU ms", None, "cold", "cpu_ms", 0.7)
    yield from against(
        "200 runs at once, runs/s", LIMIT, "conc", "runs_per_s", third, at_least=True
    )
    yield from within("CPU ms a run, 200 at once", "conc", "seq-db", "cpu_ms", 1)
    yield from against("200 runs at once, runs/s", None, "conc", "runs_per_s", 3, at_least=True)


def report(results):
    """Print the goals, then the full tables."""
    lines = ["| goal | ours | beside | of | ratio | goal | |", "|---" * 7 + "|"]
    missed = 0
    for what, ours, beside, name, ratio, bound, holds in goals(Results(results)):
        missed += not holds
        verdict = "holds" if holds else "MISSED"
        lines.append(
            f"| {what} | {number(ours)} | {number(beside)} | {name} | {ratio:.2f} | {bound} | {verdict} |"
        )
    print("\n".join(lines), end="\n\n")
    shown = {name: results[name] for name in ADAPTERS if name in results}
    for title, columns in TABLES.items():
        if text := table(title, columns, shown):
            print(text, end="\n\n")
    return missed


def measure(names, options):
    for name in names:
        wanted = [
            s
            for s in options.scenarios.split(",")
            if name in (OURS, LIMIT) or s not in SLOW_FOR_PEERS
        ]
        if not wanted:
            continue
        command = [sys.executable, "bench.py", "-r", str(options.repeats), "-s", ",".join(wanted)]
        command += ["-x", str(options.extra), "-o", str(options.output), name]
        subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-r", "--repeats", type=int, default=5)
    parser.add_argument("-x", "--extra", type=int, default=5)
    parser.add_argument("-s", "--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    parser.add_argument("-a", "--adapters", help="comma list; default: ours, raw, installed peers")
    parser.add_argument("--install", default="", help="comma list of peers to install first")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.output = options.output.resolve()
    if not options.report:
        for name in (OURS, LIMIT, *filter(None, options.install.split(","))):
            install(name)
        chosen = options.adapters.split(",") if options.adapters else ADAPTERS
        measure([name for name in chosen if installed(name)], options)
    if not options.output.exists():
        sys.exit(f"{options.output} does not exist yet: run without --report first")
    if missed := report(json.loads(options.output.read_text(encoding="utf-8"))):
        print(f"{missed} of the goals above are missed.")


if __name__ == "__main__":
    main()

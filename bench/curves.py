"""The cost of a run by the number of messages, tools, skills, instruction files and sessions.

    python curves.py                                  # all curves, 3 processes a point
    python curves.py -r 5 -c history,tools -o out.json

Each sample is a fresh process of our own environment (`venvs/agent_core`): it makes a home with so
many of one thing, starts a runtime on it, and measures the CPU of runs through the fake server. The
output is `{curve: {"unit": ..., "points": [{"x": ..., "cpu_ms": ..., "turn_cpu_ms": ...}]}}`: the
least of the samples' medians. `cpu_ms` is a whole run, of one turn in `history` and of two in
the others; `turn_cpu_ms` is a turn in the middle of a run of 20 (not in `history`, where the model
only talks).
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time

from bench import HERE, Failed, python, spawn

NAME = "agent_core"
CURVES = {  # name: (what is counted, the points)
    "history": ("messages of the session", [0, 50, 100, 200, 400, 800]),
    "tools": ("tools on offer", [1, 50, 100, 250, 500]),
    "skills": ("skills in the home", [0, 50, 100, 200, 500]),
    "instructions": ("instruction files, each in a folder of its own", [0, 25, 50, 100, 200]),
    "sessions": ("sessions in the database", [0, 100, 1000, 10_000]),
}
RUNS, WARM = 30, 10
HEAD = "---\nname: skill-{0}\ndescription: What number {0} is good for.\n---\nBody {0}.\n"


# ---- the measured process -------------------------------------------------


def add_tools(ctx, count):
    from agent_core import tool

    def made(number):
        async def extra(text: str, times: int = 1) -> str:
            """Repeat a text so many times.

            Args:
                text: What to repeat.
                times: How often.
            """
            return text * times

        extra.__name__ = f"repeat_{number}"
        return tool(permission="readonly")(extra)

    for number in range(count):
        ctx.runtime.register_tool(made(number))


def add_skills(ctx, count):
    folder = ctx.home / "skills"
    folder.mkdir()
    for number in range(count):
        (folder / f"skill-{number}.md").write_text(HEAD.format(number))


def add_instructions(ctx, count):
    for number in range(count):
        folder = ctx.project / f"part{number // 20}" / f"module{number}"
        folder.mkdir(parents=True)
        (folder / "AGENTS.md").write_text(
            f"---\ndescription: Rules of module {number}.\n---\nRule.\n"
        )


async def add_sessions(run, count):
    for number in range(count):
        await run(f"old-{number}")


async def measured(run):
    for number in range(WARM):
        await run(f"warm-{number}")
    samples = []
    for number in range(RUNS):
        start = process_time()
        await run(f"new-{number}")
        samples.append(process_time() - start)
    return median(samples) * 1e3


async def worker(curve, count, url, db):
    from adapters import agent_core as adapter
    from tool import TICKS

    async def opened(model):
        ctx = adapter.Context(url, model, db)
        ctx.runtime = adapter.make_agent(ctx)
        if curve == "tools":
            add_tools(ctx, count - 1)
        elif curve == "skills":
            add_skills(ctx, count)
        elif curve == "instructions":
            add_instructions(ctx, count)
        await ctx.runtime.__aenter__()
        if curve in {"skills", "instructions"}:
            await asyncio.sleep(2.1)  # as long as a file is new it is read for every run

        async def run(session_id):
            handle = await ctx.runtime.start("please add", session_id=session_id)
            if await handle.wait() != "completed":
                raise SystemExit(f"the run ended {handle.status}: {handle.error}")

        return ctx, run

    result = {}
    is_history = curve == "history"
    ctx, run = await opened("fake-0-8" if is_history else "fake-1-8")
    if is_history:
        for _ in range(count // 2):
            await run("long")
        # A branch for each sample keeps the length what it is.
        sessions = await ctx.runtime.list_sessions()
        end = sessions[0].active_node_id if sessions else None

        async def again(session_id):
            if end is None:
                await run(session_id)
            else:
                await ctx.runtime.switch_node("long", end)
                await run("long")

        result["cpu_ms"] = await measured(again)
    else:
        if curve == "sessions":
            await add_sessions(run, count)
        result["cpu_ms"] = await measured(run)
    await adapter.close(ctx)
    if not is_history:
        ctx, run = await opened("fake-20-8")
        for number in range(3):
            TICKS.clear()
            await run(f"turns-{number}")
        cpu = [tick[1] for tick in TICKS]
        result["turn_cpu_ms"] = median(b - a for a, b in zip(cpu[4:], cpu[5:])) * 1e3
        await adapter.close(ctx)
    print("RESULT " + json.dumps(result), flush=True)


# ---- the parent -----------------------------------------------------------


def sample(curve, count, url, timeout):
    folder = tempfile.mkdtemp(prefix="bench-", dir=HERE)
    try:
        args = [python(NAME), "curves.py", "--worker", curve, str(count), url, f"{folder}/x.db"]
        return json.loads(spawn(args, timeout)[1].rsplit("RESULT ", 1)[1])
    finally:
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-r", "--repeats", type=int, default=3)
    parser.add_argument("-c", "--curves", default=",".join(CURVES))
    parser.add_argument("-t", "--timeout", type=float, default=300)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results" / "curves.json")
    args = parser.parse_args()
    results = json.loads(args.output.read_text()) if args.output.exists() else {}
    server = subprocess.Popen(
        ["taskset", "-c", "1", sys.executable, "server.py"],
        cwd=HERE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        for curve in args.curves.split(","):
            unit, counts = CURVES[curve]
            points = []
            for count in counts:
                try:
                    rows = [sample(curve, count, url, args.timeout) for _ in range(args.repeats)]
                except Failed as error:
                    sys.exit(f"{curve} at {count}: {error}")
                points.append({"x": count} | {k: min(r[k] for r in rows) for k in rows[0]})
                print(curve, points[-1], file=sys.stderr, flush=True)
            results[curve] = {"unit": unit, "points": points}
            args.output.write_text(json.dumps(results, indent=1) + "\n")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.path.insert(0, str(HERE))
        os.sched_setaffinity(0, {0})
        asyncio.run(worker(sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
    else:
        main()

"""Measure command-line agents side by side, against a model server on loopback: see README.md."""

import argparse
import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from statistics import median

import drivers
import server

try:
    import bpe_openai  # has its vocabulary in the package

    encode, COUNTED_WITH = bpe_openai.get_encoding("o200k_base").encode, "o200k_base"
except ImportError:
    encode, COUNTED_WITH = (lambda text: text[::4]), "characters / 4"

LIMIT = 180  # seconds a run may take
# Of prctl: what a peer leaves running becomes a child of this process, and is counted.
SUBREAPER = 36
PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance" / "command-lines.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
SAY, READ, FILE = "say done", "Read notes.txt and say done", "notes.txt"
PARTS = ("system", "tools", "messages")
EMPTY = "–"  # a cell without a figure


def make_project(folder):
    """Make a git project of about twenty files with an AGENTS.md of thirty lines."""
    rules = [
        f"- Rule {n}: keep module {n} small, tested, and free of global state." for n in range(28)
    ]
    files = {
        "AGENTS.md": ["# Rules for agents", "", *rules],
        FILE: [f"Line {n} of the notes." for n in range(40)],
        "README.md": ["# Lamps"],
    }
    for n in range(8):
        files[f"shop/part{n}.py"] = [
            f'"""Part {n}."""',
            "",
            "",
            f"def part{n}(count: int) -> int:",
            f"    return count + {n}",
        ]
        files[f"tests/test_part{n}.py"] = [
            f"from shop.part{n} import part{n}",
            "",
            "",
            "def test_it():",
            f"    assert part{n}(1) == {n + 1}",
        ]
    for name, lines in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n")
    for command in (
        "init -qb main",
        "add .",
        "-c user.name=bench -c user.email=bench@localhost commit -qm start",
    ):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)


class Place:
    """Where one peer runs: its home, project, folder for temporary files, and environment."""

    def __init__(self, name, install, root, url):
        self.name, self.peer, self.url, self.root = name, drivers.PEERS[name], url, root / name
        self.home, self.project = self.root / "home", self.root / "project"
        node = (
            install / "node/node_modules/.bin"
        )  # a newer node than the machine's, where one was installed
        path = os.pathsep.join([*([str(node)] if node.is_dir() else []), *os.get_exec_path()])
        self.env = {
            "PATH": path,
            "HOME": str(self.home),
            "TMPDIR": str(self.root / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        self.env |= {key: self.fill(value) for key, value in self.peer.env.items()}
        folder, program = install / name.split("-")[0], self.peer.program[0]
        self.folder = folder
        own = sys.executable if program == "python3" else shutil.which(program, path=path) or "none"
        places = (
            [folder / "node_modules/.bin" / program, folder / "bin" / program]
            if self.peer.install
            else [own]
        )
        self.program = next((str(place) for place in places if Path(place).exists()), None)

    def fill(self, text, ask=""):
        return text.replace(drivers.URL, self.url).replace(drivers.ASK, ask)

    def prepare(self):
        make_project(self.project)
        (self.root / "tmp").mkdir()
        for name, text in {"notes": "", **self.peer.files}.items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(self.fill(text))

    def files(self):
        found = {}
        for path in self.root.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    found[path] = (path.stat().st_size, path.stat().st_mtime_ns)
        return found


def descendants(pid="self"):
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield child
                yield from descendants(child)


def memory(pid):
    """Return the KiB of a process; a page that several share counts once."""
    with contextlib.suppress(OSError):
        return sum(
            int(line.split()[1])
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        )
    return 0


def end_rest(patience=2):
    """Wait for what a peer left running, then end it; return how many processes that were."""
    until, left = time.monotonic() + patience, set()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        rest = set(descendants())
        if not rest:
            return len(left)
        for pid in rest if time.monotonic() > until else ():
            left.add(pid)
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)


def measure(place, arguments, models, weigh=False):
    """Run a peer once and return every number of it. `weigh` samples memory, which disturbs the times."""
    before, files, peak, ended, output = (
        resource.getrusage(resource.RUSAGE_CHILDREN),
        place.files(),
        [0, 0],
        threading.Event(),
        [],
    )
    start = time.monotonic()
    streams = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "start_new_session": True,
    }
    process = subprocess.Popen(
        [place.program, *place.peer.program[1:], *arguments],
        cwd=place.project,
        env=place.env,
        **streams,
    )

    def sample():
        while weigh and not ended.wait(0.03):
            tree = list(descendants())
            peak[:] = max(peak[0], sum(map(memory, tree))), max(peak[1], len(tree))

    threads = [
        threading.Thread(target=sample),
        threading.Thread(target=lambda: output.append(process.stdout.read())),
    ]
    clock = threading.Timer(LIMIT, process.kill)
    for thread in (*threads, clock):
        thread.start()
    status = process.wait()
    wall = time.monotonic() - start
    clock.cancel()
    left = end_rest()
    ended.set()
    for thread in threads:
        thread.join()
    after, now = resource.getrusage(resource.RUSAGE_CHILDREN), place.files()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    grown = sum(size for size, _ in now.values()) - sum(size for size, _ in files.values())
    return {
        "cpu": 1000 * cpu,
        "wall": 1000 * wall,
        "memory": peak[0] / 1024,
        "processes": peak[1],
        "left": left,
        "status": status,
        "written": (after.ru_oublock - before.ru_oublock) / 2,
        "grown": grown / 1024,
        "files": sum(files.get(p) != now[p] for p in now),
        "output": b"".join(output).decode(errors="replace"),
        **conversation(models.requests, start),
    }


def texts(value):
    """Return the texts in a message, without the JSON around them."""
    if isinstance(value, str):
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return "\n".join(filter(None, map(texts, parts)))


def dump(value):
    """Return JSON without the marks that only ask for caching."""
    return re.sub(
        r',"cache_control":\{[^}]*\}',
        "",
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    )


def prefix_kept(first, second):
    """Return the percentage of a request (tools, system, messages, in this order) with which the next one begins."""
    one, two = (
        [dump(item) for item in (*r.tools, *r.system, *r.messages)] for r in (first, second)
    )
    same = next(
        (n for n, (mine, other) in enumerate(zip(one, two)) if mine != other),
        min(len(one), len(two)),
    )
    part = os.path.commonprefix([one[same], two[same]]) if same < min(len(one), len(two)) else ""
    return 100 * (sum(map(len, one[:same])) + len(part)) / sum(map(len, one))


def conversation(requests, start):
    """Return what was asked: the numbers of all requests, and the size of the main one by its parts."""
    asked = [r for r in requests if r.api]
    found = {
        "requests": len(asked),
        "beside": sorted({r.name for r in requests if not r.api}),
        "sent": sum(r.size for r in asked),
    }
    if not asked:
        return found
    main = max(asked, key=lambda r: (len(r.tools) > 0, -len(r.messages), r.size))
    turns = [r for r in asked if len(r.tools) == len(main.tools)]
    found |= {
        "first": 1000 * (asked[0].when - start),
        "size": main.size,
        "offered": len(main.schemas),
    }
    found["kept"] = prefix_kept(*turns[:2]) if len(turns) > 1 else None
    found["by_tool"] = {name: len(encode(dump(spec))) for name, (spec, _) in main.schemas.items()}
    for part, text in zip(
        PARTS, (texts(main.system), dump(main.tools) if main.tools else "", texts(main.messages))
    ):
        found |= {f"{part}_bytes": len(text.encode()), f"{part}_tokens": len(encode(text))}
    return found | {"all_tokens": sum(found[f"{part}_tokens"] for part in PARTS)}


def middle(samples, key):
    values = [sample[key] for sample in samples if sample.get(key) is not None]
    return f"{median(values):,.0f}" if values else EMPTY


def filled(rows):
    """Return the rows without the columns that are empty in all of them but the first, the heads."""
    kept = [n for n in range(len(rows[0])) if any(row[n] != EMPTY for row in rows[1:])]
    return [[row[n] for n in kept] for row in rows]


def table(title, results, columns):
    """Print a Markdown table; each column is (head, scenario, key of a sample)."""
    rows = [
        [name, *(middle(samples.get(scenario, []), key) for _, scenario, key in columns)]
        for name, samples in results.items()
    ]
    if rows := [row for row in rows if set(row[1:]) != {EMPTY}]:
        heads, *rows = filled([["", *(head for head, _, _ in columns)], *rows])
        head = [heads, ["---", *("---:" for _ in heads[1:])]]
        print(
            f"\n**{title}**\n", *("| " + " | ".join(row) + " |" for row in (*head, *rows)), sep="\n"
        )


def version(place):
    """Return the version that a peer's package has in its folder."""
    kind, _, package = place.peer.install.partition(" ")
    folder = place.folder
    if kind == "npm":
        return json.loads((folder / "node_modules" / package / "package.json").read_text())[
            "version"
        ]
    if not kind:
        return EMPTY
    package = package.partition("==")[0]
    code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    return subprocess.check_output([folder / "bin/python", "-c", code, package], text=True).strip()


def page(results, places, runs):
    """Write the table of the documentation: one answer from each command line."""
    columns = [("CPU ms", "text", "cpu"), ("first request ms", "text", "first")]
    columns += [
        ("memory MiB", "weighed", "memory"),
        ("tokens of the first request", "text", "all_tokens"),
    ]
    columns += [("tools offered", "text", "offered"), ("written KiB", "text", "written")]
    columns += [("`--version` CPU ms", "version", "cpu"), ("`--help` CPU ms", "help", "cpu")]
    columns += [("CPU ms of a later message", "late", "cpu")]
    rows = [["", "version", *(head for head, _, _ in columns)]]
    shown = [place for place in places if results[place.name].get("text")]
    for place in sorted(
        shown, key=lambda place: median(s["cpu"] for s in results[place.name]["text"])
    ):
        found = results[place.name]
        cells = [middle(found.get(scenario, []), key) for _, scenario, key in columns]
        rows.append([place.name, version(place), *cells])
    day, cores = date.today().isoformat(), os.cpu_count()
    told = f"Measured on {day}, {cores} cores, Linux; medians of {runs}; tokens by {COUNTED_WITH}."
    before, _, rest = PAGE.read_text().partition(BEGIN)
    heads, *rows = filled(rows)
    marks = ["---", "---", *("---:" for _ in heads[2:])]
    table = ["| " + " | ".join(row) + " |" for row in (heads, marks, *rows)]
    PAGE.write_text(
        "\n".join([before + BEGIN, "", told, "", *table, "", END + rest.partition(END)[2]])
    )


def report(results):
    starts = [
        ("version: CPU ms", "version", "cpu"),
        ("help: CPU ms", "help", "cpu"),
        ("version: wall ms", "version", "wall"),
    ]
    say = [
        ("CPU ms", "cpu"),
        ("first request ms", "first"),
        ("exit ms", "wall"),
        ("requests", "requests"),
        ("left running", "left"),
    ]
    heavy = [("memory MiB", "weighed", "memory"), ("processes", "weighed", "processes")]
    disk = [
        ("written KiB", "text", "written"),
        ("grown KiB", "text", "grown"),
        ("files", "text", "files"),
    ]
    table(
        "Start, and one answer",
        results,
        [*starts, *((head, "text", key) for head, key in say), *heavy, *disk],
    )
    sizes = [
        ("bytes", "size"),
        *((part, f"{part}_bytes") for part in PARTS),
        ("tools offered", "offered"),
    ]
    sizes += [(f"tokens: {part}", f"{part}_tokens") for part in (*PARTS, "all")]
    table(
        f"The first request ({COUNTED_WITH})", results, [(head, "text", key) for head, key in sizes]
    )
    call = [
        ("requests", "requests"),
        ("CPU ms", "cpu"),
        ("exit ms", "wall"),
        ("bytes sent", "sent"),
        ("prefix kept %", "kept"),
    ]
    table(
        "One answer after one call",
        results,
        [(head, "tool", key) for head, key in (*call, ("written KiB", "written"))],
    )
    values = (
        ("CPU ms", "cpu"),
        ("exit ms", "wall"),
        ("request bytes", "size"),
        ("written KiB", "written"),
    )
    session = [(f"{what}, {when}", when, key) for what, key in values for when in ("early", "late")]
    table("Messages of one session: the second to the fourth, the last three", results, session)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--install",
        type=Path,
        required=True,
        help="folder that holds a folder for each installed peer",
    )
    parser.add_argument(
        "--peers", default="all", help=f"all, or names with commas: {', '.join(drivers.PEERS)}"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scenarios", default="version,help,text,tool,turns")
    parser.add_argument("--turns", type=int, default=20, help="messages in the session")
    parser.add_argument(
        "--scratch",
        type=Path,
        help="where homes and projects are made and deleted (default: a temporary folder)",
    )
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument(
        "--page", action="store_true", help="also write docs/performance/command-lines.md"
    )
    options = parser.parse_args()
    names = list(drivers.PEERS) if options.peers == "all" else options.peers.split(",")
    if unknown := set(names) - set(drivers.PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    models, scratch = (
        server.ModelServer(),
        tempfile.TemporaryDirectory(prefix="cli-", dir=options.scratch, ignore_cleanup_errors=True),
    )
    url, root = f"http://127.0.0.1:{models.server_port}", Path(scratch.name)
    places = [Place(name, options.install.resolve(), root, url) for name in names]
    if missing := [place.name for place in places if not place.program]:
        print("Not installed, skipped:", *missing, file=sys.stderr)
    places = [place for place in places if place.program]
    results = {place.name: {} for place in places}

    def once(place, scenario, arguments, ask="", weigh=False):
        models.reset(str(place.project / FILE) if scenario == "tool" else None)
        sample = measure(place, [place.fill(a, ask) for a in arguments], models, weigh)
        if ask and (
            sample["status"] or server.ANSWER not in sample["output"] or not sample["requests"]
        ):
            print(
                f"{place.name}, {scenario}: exit {sample['status']}: …{sample['output'][-500:]}",
                file=sys.stderr,
            )
            return []
        return [sample]

    for place in places:
        place.prepare()
    for number in range(options.runs + 1):  # the first round warms up, and is weighed
        for place in places:
            peer, into = place.peer, results[place.name]
            plans = [(flag, [f"--{flag}"], "") for flag in ("version", "help") if peer.install]
            plans += [("text", peer.ask, SAY)] + ([("tool", peer.ask, READ)] if peer.tools else [])
            for scenario, arguments, ask in plans:
                if scenario in options.scenarios.split(","):
                    name = scenario if number else "weighed" if scenario == "text" else "warm-up"
                    into.setdefault(name, []).extend(
                        once(place, scenario, arguments, ask, weigh=not number)
                    )
    for place in places:
        if "turns" in options.scenarios.split(",") and place.peer.again:
            plans = [place.peer.ask] + [place.peer.again] * (options.turns - 1)
            turns = [
                sample for arguments in plans for sample in once(place, "turns", arguments, SAY)
            ]
            results[place.name] |= {"early": turns[1:4], "late": turns[-3:], "turns": turns}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    report(results)
    if options.page:
        page(results, places, options.runs)
    scratch.cleanup()


if __name__ == "__main__":
    main()

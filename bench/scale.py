"""Costs that grow with an amount: one curve for each kind of amount, in CPU time.

    python scale.py                     # every curve, 3 processes a point, into results/scale.json
    python scale.py -r 1 tools memories # quick look at two curves

Each point comes from a process of its own: set up with that much, warmed up, measured; the median
of the repeats is kept. Runs go through the model server of `bench.py`. Each curve has a floor, whose
name begins with `bare`: the bare loop, or the same data read with the standard library alone.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import bench
from compare import LIMIT, OURS, install

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "results" / "scale.json"
FLOOR = "bare"
LOOP = f"{FLOOR} loop"
WORDS = [
    f"{stem}{end}"
    for stem in "data server night copy index page table model agent write plan store".split()
    for end in ("", "s", "ing", "ed", "er")
] + [f"word{number}" for number in range(3000)]


def text(count):
    return " ".join(random.choice(WORDS) for _ in range(count))


def timed(times, work):
    """The milliseconds of CPU of the quickest of some times: others use the machine too."""
    found = []
    for _ in range(times):
        start = process_time()
        work()
        found.append((process_time() - start) * 1e3)
    return min(found)


# ---- what one process measures: functions of an amount and a folder --------


async def history(turns, url, folder, name):
    """A late turn of a run that has had so many, stored; ours or the bare loop."""
    measured = bench.Bench(name, url, f"{folder}/bench.db")
    result = await bench.loop(measured, turns=turns)
    await measured.close()
    return result["tail_cpu_ms"]


async def run_cost(url, folder, prepare=lambda measured: None, count=40, name=OURS, turns=1):
    """A stored run, with one tool call; `prepare` is given what runs it."""
    measured = bench.Bench(name, url, f"{folder}/bench.db")
    await measured.setup(turns, bench.WORDS)
    prepare(measured)
    for _ in range(10):
        await measured.run()
    start = process_time()
    for _ in range(count):
        await measured.run()
    cost = (process_time() - start) / count * 1e3
    await measured.close()
    return cost


async def sessions(count, url, folder):
    """A run beside so many stored sessions, and a page of their list."""
    from agent_core.storage.sqlite import SqliteSessionStore
    from agent_core.types import Batch, RunChange, RunStatus
    from agent_core.types import AgentType, NewRun

    path = Path(folder, "bench.db")
    async with SqliteSessionStore.open(path) as store:
        for number in range(count):
            names: Any = {
                "session_id": f"s{number}",
                "run_id": f"r{number}",
                "agent_id": f"a{number}",
            }
            opening = NewRun(**names, cwd=folder, owner="me", agent_type=AgentType.MAIN)
            await store.open_run(opening)
            end = RunChange(status=RunStatus.COMPLETED)
            await store.append(Batch(nodes=[], events=[], **names, run=end, release="me"))
    run = await run_cost(url, folder)
    async with SqliteSessionStore.open(path) as store:
        listed = []
        for _ in range(5):
            start = process_time()
            await store.sessions(limit=50)
            listed.append((process_time() - start) * 1e3)
    return {"a stored run": run, "a page of the list": min(listed)}


async def bare_sessions(count, url, folder, name):
    """A run of the bare loop beside so many messages in its table."""

    def fill(measured):
        for number in range(count):
            measured.ctx[1].append(f"s{number}", {"role": "user", "content": "go"})

    return await run_cost(url, folder, fill, name=name)


async def tools(count, url, folder):
    """A run that is offered so many tools: every request has all their definitions."""
    from agent_core import tool

    def register(measured):
        for number in range(count - 1):

            async def look_up(place: str, limit: int = 10) -> str:
                """Look something up in a place."""
                return place

            look_up.__name__ = f"look_up_{number}"
            measured.ctx.runtime.register_tool(tool(permission="readonly")(look_up))

    return await run_cost(url, folder, register, 20)


async def bare_tools(count, url, folder, name):
    """A run of the bare loop whose requests have so many definitions."""

    def offer(measured):
        (defined,) = measured.agent.tools
        look_up = {**defined["function"], "name": "look_up"}
        others = [{"type": "function", "function": look_up} for _ in range(count - 1)]
        measured.agent.tools = [defined, *others]

    return await run_cost(url, folder, offer, 20, name)


def make_folders(project, count, files):
    """Fill a project with folders below folders, each with so many files."""
    for number in range(count):
        place = project / f"area{number % 7}" / f"part{number % 61}" / f"folder{number}"
        place.mkdir(parents=True)
        for name in range(files):
            (place / f"file{name}.py").touch()


async def messages(count, url, folder):
    """A message in a project of so many folders, once those before it have read them."""
    fill = lambda measured: make_folders(measured.ctx.project, count, files=1)
    return await run_cost(url, folder, fill, 20, turns=0)


async def bare_messages(count, url, folder, name):
    """A message of the bare loop, which looks at no project."""
    return await run_cost(url, folder, count=20, name=name, turns=0)


def definitions(count):
    """Taking down what MCP servers offer, and a run's choice among it, once it is known."""
    from agent_core.config.models import ToolsConfig
    from agent_core.mcp.discovery import Offer, read_tool
    from agent_core.mcp.tools import McpTools

    field = {"type": "string", "description": "Where to look."}
    schema = {"type": "object", "properties": {"a": field, "b": {"type": "integer"}}}
    specs = []

    def discover():
        specs[:] = [
            read_tool(f"tool_{number}", "Looks.", schema, is_readonly=True)
            for number in range(count)
        ]

    class Server:
        server_id = "big"

        async def offer(self, _):
            return offered

    first = timed(1, discover)
    offered = Offer(tools=tuple(specs))
    servers = McpTools({}, ToolsConfig())
    servers._servers["big"] = Server()
    asyncio.run(servers.tools())
    sent = [
        json.dumps({"name": f"tool_{number}", "description": "Looks.", "inputSchema": schema})
        for number in range(count)
    ]
    return {
        "the first run": first,
        "a later run": timed(5, lambda: asyncio.run(servers.tools())),
        f"{FLOOR} JSON": timed(5, lambda: [json.loads(each) for each in sent]),
    }


def tree(count, folder):
    """The scan for instruction files, and a page of a recursive listing, of so many folders."""
    from types import SimpleNamespace

    from agent_core.config.load import read_setup
    from agent_core.context.instructions import find_instructions, walk_project
    from agent_core.tools.code.read import _list
    from agent_core.tools.workspace import PathPolicy

    home, project = Path(folder, "home").resolve(), Path(folder, "project").resolve()
    home.mkdir()
    (home / "config.toml").write_text('[model]\nprovider = "scripted"\nname = "x"\n')
    make_folders(project, count, files=10)
    for place in list(project.glob("*/*/*"))[::40]:
        (place / "AGENTS.md").write_text("---\ndescription: this part\n---\n")
    (project / ".gitignore").write_text("*.pyc\nlogs/\n/site\n")
    policy = PathPolicy.of(read_setup(project, home_dir=home))
    arguments = SimpleNamespace(recursive=True, limit=1000)
    context = SimpleNamespace(is_cancelled=lambda: False)
    workspace = SimpleNamespace(boundaries=policy)
    place = policy.resolve(".")
    scan = timed(5, lambda: find_instructions(home, project, is_closed=policy.is_closed))
    walk = walk_project(project, policy.is_closed)

    def scan_again():
        find_instructions(home, project, is_closed=policy.is_closed, walk=walk)

    timed(3, scan_again)  # from the third on, the kernel tells what has changed
    again = timed(5, scan_again)
    walk.close()
    listing = timed(5, lambda: _list(workspace, place, arguments, context))
    return {
        "scan for instructions": scan,
        "a later scan": again,
        "recursive listing, 1,000 entries": listing,
        f"{FLOOR} walk": timed(5, lambda: sum(1 for _ in os.walk(project))),
    }


def memories(count, folder):
    """A recall in a process that has read no memory yet, and the next one."""
    from datetime import UTC, datetime

    from agent_core.memory.entry import Memory
    from agent_core.memory.folder import MemoryFolder
    from agent_core.memory.recall import Recall, Selector
    from agent_core.tools.base import View

    root = Path(folder, "memory")
    (root / "user").mkdir(parents=True)
    now = datetime.now(UTC)
    for number in range(count):
        memory = Memory(
            memory_id=f"mem_{number}",
            category="user",
            path=f"user/about-20260101-mem_{number}.md",
            summary=text(8),
            content=text(60),
            tags=text(2).split(),
            created_at=now,
            updated_at=now,
        )
        (root / memory.path).write_text(memory.as_file())

    async def choose(system, prompt, *, max_tokens):
        return '{"memory_ids": ["mem_3"]}'

    def recall(memories, question):
        selector = Selector(choose, top_k=5, room=2000)
        recalling = Recall(memories, View(), scope="shared", room=2000)
        asyncio.run(recalling.recall(question, "c", selector=selector))

    empty = Path(folder, "empty")
    empty.mkdir()
    recall(MemoryFolder(empty), "what is imported is loaded now")
    known = MemoryFolder(root)
    first = timed(1, lambda: recall(known, "where are the nightly copies of word17?"))
    return {
        "the first recall": first,
        "a later recall": timed(5, lambda: recall(known, "who plans the tables of word18?")),
        f"{FLOOR} reading": timed(5, lambda: [p.read_text() for p in root.rglob("*.md")]),
    }


def pages(count, folder):
    """A search of the toolkit's knowledge pages, of 20 sentences each, kept in a file."""
    from agcore.memory import KnowledgeStore, MemoryRetriever, SqliteStore

    async def main():
        async with await SqliteStore.open(f"{folder}/pages.db") as store:
            knowledge = KnowledgeStore(store)
            start = process_time()
            for _ in range(count):
                content = ". ".join(text(12) for _ in range(20))
                await knowledge.save_page(text(4), content, text(2).split())
            saved = (process_time() - start) / count * 1e3
            retriever, found = MemoryRetriever(knowledge), []
            for number in range(10):
                start = process_time()
                await retriever.search(f"nightly copies of the word{number}")
                found.append((process_time() - start) * 1e3)
        return {"a search": median(found), "saving a page": saved}

    costs = asyncio.run(main())
    with contextlib.closing(sqlite3.connect(f"{folder}/pages.db")) as database:
        tables = database.execute("select name from sqlite_schema where type = 'table'").fetchall()
        read = lambda: [database.execute(f'select * from "{n}"').fetchall() for (n,) in tables]
        return {**costs, f"{FLOOR} reading": timed(5, read)}


def templates(count):
    """Reading a template of so many conditions."""
    from agcore.prompt import PromptTemplate

    source = "{{#if a}}\n{{a}}\n{{/if}}\n" * count
    return {
        "reading it": timed(5, lambda: PromptTemplate("t", source)),
        f"{FLOOR} split": timed(5, lambda: re.split(r"(\{\{[^}]*\}\})", source)),
    }


CURVES = {  # name: (title, what is counted, amounts, {series: (function, needs)})
    "history": (
        "A late turn of one run, stored",
        "turns before it",
        (10, 50, 200, 500, 1000),
        {"agent_core": (history, OURS), LOOP: (history, LIMIT)},
    ),
    "sessions": (
        "Beside many sessions",
        "sessions in the database",
        (10, 100, 1000, 10_000),
        {"": (sessions, "url"), LOOP: (bare_sessions, LIMIT)},
    ),
    "tools": (
        "A stored run, offered many tools",
        "tools, all defined in every request",
        (1, 10, 50, 100, 500),
        {"a stored run": (tools, "url"), LOOP: (bare_tools, LIMIT)},
    ),
    "messages": (
        "A message in a large project",
        "folders of the project",
        (10, 100, 1000, 10_000, 20_000),
        {"a message": (messages, "url"), LOOP: (bare_messages, LIMIT)},
    ),
    "definitions": (
        "Tools of MCP servers",
        "tools offered by servers",
        (100, 1000, 5000, 20_000),
        {"": (definitions, None)},
    ),
    "tree": (
        "Looking at a project",
        "folders, of 10 files each",
        (100, 500, 1000, 2000, 4000, 10_000),
        {"": (tree, "folder")},
    ),
    "memories": (
        "Recall",
        "memories",
        (100, 500, 1000, 2000, 4000),
        {"": (memories, "folder")},
    ),
    "pages": (
        "Knowledge pages of the toolkit",
        "pages of 20 sentences",
        (100, 500, 1000, 2000),
        {"": (pages, "folder")},
    ),
    "templates": (
        "Templates of the toolkit",
        "conditions in a template",
        (1000, 4000, 16_000),
        {"": (templates, None)},
    ),
}


def point(curve, series, amount, url):
    """One process: prints what it has measured."""
    os.sched_setaffinity(0, {0})
    random.seed(1)
    function, needs = CURVES[curve][3][series]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=HERE) as folder:
        match needs:
            case None:
                found = function(amount)
            case "folder":
                found = function(amount, folder)
            case "url":
                found = asyncio.run(function(amount, url, folder))
            case name:
                found = asyncio.run(function(amount, url, folder, name))
    print("RESULT " + json.dumps(found if isinstance(found, dict) else {series: found}))


def measure(curve, repeats, url):
    """{series: [[amount, CPU ms], …]} of one curve."""
    _, _, amounts, parts = CURVES[curve]
    found = {}
    for amount in amounts:
        for series, (_, needs) in parts.items():
            python = bench.python(needs if needs == LIMIT else OURS)
            command = [python, "scale.py", "--point", curve, series, str(amount), url]
            rows = [
                json.loads(bench.spawn(command, 600)[1].rsplit("RESULT ", 1)[1])
                for _ in range(repeats)
            ]
            for name in rows[0]:
                cost = median(row[name] for row in rows)
                found.setdefault(name, []).append([amount, round(cost, 4)])
        print(
            f"{curve:12} {amount:6}",
            {n: v[-1][1] for n, v in found.items()},
            file=sys.stderr,
            flush=True,
        )
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=", ".join(CURVES))
    parser.add_argument("-r", "--repeats", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    for name in (OURS, LIMIT):
        install(name)
    output = options.output.resolve()
    results = json.loads(output.read_text()) if output.exists() else {}
    server = subprocess.Popen(
        ["taskset", "-c", "1", sys.executable, "server.py"],
        cwd=HERE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        for curve in options.curves or CURVES:
            title, counted, *_ = CURVES[curve]
            series = measure(curve, options.repeats, url)
            results[curve] = {"title": title, "counted": counted, "series": series}
            output.write_text(json.dumps(results, indent=1))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--point"]:
        sys.path.insert(0, str(HERE))
        point(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        main()

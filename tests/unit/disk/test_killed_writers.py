"""In whatever way a file is written: a kill at any call leaves nothing after the next start.

A child of a small program does a piece of work and is killed at its first call that changes the
disk, another at the second one, and so on until one gets to the end. Where it leaves something, the
next start takes place, and what is on disk then is compared with what belongs there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps import is_whole

SWEEP = """
import json, os, signal, sys, threading
from pathlib import Path

here, stride = Path(sys.argv[1]), int(sys.argv[2])
CHANGES = {"fsync", "rename", "replace", "link", "mkdir", "unlink", "rmdir", "flock"}

def is_change(function):
    return function.__name__ in CHANGES and function.__module__ in {"posix", "fcntl"}

def killed_at(number):
    seen = 0
    def count(frame, event, argument):
        nonlocal seen
        if event in ("c_call", "c_return") and is_change(argument):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
    threading.setprofile(count)
    sys.setprofile(count)

def sweep(work, next_start, files):
    kills = left = 0
    while True:
        before = files()
        pid = os.fork()
        if pid == 0:
            work(kills, lambda: killed_at(1 + kills * stride))
            sys.setprofile(None)
            os._exit(0)
        ended = os.waitpid(pid, 0)[1]
        if any(name.endswith(".tmp") or "/art_" in name for name in files() - before):
            left += 1
            allowed = next_start(kills)
            wrong = {name for name in files() if not allowed(name)}
            assert not wrong, (kills, wrong)
        if ended == 0:
            print(json.dumps({"kills": kills, "left": left}))
            return
        kills += 1
"""

MEMORY = """
from datetime import UTC, datetime
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.memory.entry import Memory
from agent_core.memory.folder import MemoryFolder, MemoryWriter

folder = MemoryFolder(here / "memory")

def work(number, begin):
    now = datetime.now(UTC)
    memory = Memory(memory_id="mem_1", category="user", path="user/mem_1.md", summary="s",
                    content=f"c{number}", created_at=now, updated_at=now)
    writer = MemoryWriter(folder, unfinished=UnfinishedWrites.at(here))
    with folder.locked():
        begin()
        writer.save(memory)
        writer.write_catalog([memory])

def next_start(number):
    UnfinishedWrites.at(here).clear()
    return {".lock", "MEMORY.md", "user", "user/mem_1.md"}.__contains__

sweep(work, next_start, lambda: {str(p.relative_to(folder.root)) for p in folder.root.rglob("*")})
"""

ARTIFACTS = """
import asyncio
from agent_core.artifacts.store import ArtifactStore
from agent_core.disk.unfinished import Notes
from agent_core.redaction import Redactor
from agent_core.storage.sqlite import SqliteSessionStore
from rows import an_opening

root, notes = here / "sessions", Notes(here / "unfinished")

def store_on(rows):
    return ArtifactStore(root, rows, Redactor({}), notes=notes)

def work(number, begin):
    async def put():
        async with SqliteSessionStore.open(here / "db") as rows:
            if not await rows.session("s1"):
                await rows.open_run(an_opening())
            begin()
            await asyncio.to_thread(sys.setprofile, sys.getprofile())
            await store_on(rows).put(b"x" * 100_000, session_id="s1", kind="debug", filename="f")
    asyncio.run(put())

def next_start(number):
    async def start():
        async with SqliteSessionStore.open(here / "db") as rows:
            await store_on(rows).sweep()
            return {record.path for record in await rows.artifacts()}
    known = asyncio.run(start())
    assert not list((here / "unfinished").glob("*"))
    assert all(Path(path).exists() for path in known)
    return lambda name: name in known

sweep(work, next_start, lambda: {str(p) for p in root.glob("*/artifacts/*/*")})
"""

KGENT = """
from agent_core.redaction import Redactor
from kgent.engine.mock import MockAgentEngine, MockCall
from kgent import RunOptions
from kgent.runtime.runner import run
from kgent_runs import profile

runs = here / "runs"
config = profile(here, tools={"filesystem": {"enabled": True, "write": True}})

def do(name):
    args = {"path": "workspace/a.txt", "content": "a"}
    script = [MockCall(tool="write_file", args=args), "done"]
    return run(config, "Write.", RunOptions(sandbox=runs / name), engine=MockAgentEngine(script))

def work(number, begin):
    begin()
    do(f"killed-{number}")

def next_start(number):
    from shutil import rmtree
    assert do(f"next-{number}").sandbox_root
    rmtree(runs / f"next-{number}")
    return lambda name: "/." not in name

sweep(work, next_start, lambda: {"/" + str(p.relative_to(runs)) for p in runs.rglob("*")})
"""


def swept(folder: Path, program: str, *, stride: int = 1) -> dict[str, int]:
    tests = Path(__file__).parents[2]
    paths = os.pathsep.join([str(tests.parent / "src"), str(tests)])
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", SWEEP + program, str(folder), str(stride)],
        env={"PYTHONPATH": paths, "PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_killed_memory_writer(tmp_path: Path) -> None:
    done = swept(tmp_path, MEMORY)
    assert done["kills"] > 20
    assert done["left"] > 5, "no kill has hit the time in which there is a temporary file"


def test_a_killed_artifact_store(tmp_path: Path) -> None:
    done = swept(tmp_path, ARTIFACTS)
    assert done["kills"] > 10
    assert done["left"] > 5, "no kill has hit the time between the file and its row"


@pytest.mark.timeout(300)  # processes, one after the other
def test_a_killed_run_of_a_profile(tmp_path: Path) -> None:
    done = swept(tmp_path, KGENT, stride=5 if is_whole() else 53)
    assert done["kills"] > 5
    assert done["left"], "no kill has hit the time in which there is a temporary file"

"""The cost of sending the files of a session to other machines, compared with `cp -a`.

    SOONG_AGENT_BENCH_POSTGRES=postgresql://… python bench/workspaces.py --blobs file:///tmp/blobs
    python bench/workspaces.py --files 2000 --megabytes 60      # on a server of its own

10,000 files of 300 MB in all: half of them text, half of it random. Two stores of snapshots stand for
two machines. CPU seconds of this process, and seconds on the clock; the server's own are not in it.
"""

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import psycopg
from postgres import DURABLE, hold_session, make_cluster

from agent_core.blobs.objects import ObjectBlobs
from agent_core.runtime.shared_snapshots import SharedSnapshots
from agent_core.snapshots.store import SnapshotStore
from agent_core.storage.postgres.blobs import BLOB_TABLES, PostgresBlobs

SERVER = "SOONG_AGENT_BENCH_POSTGRES"


def cpu():
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def make(folder, files, size):
    chance = random.Random(1)
    words = "def return self import value for in if not None class async await".split()
    for number in range(files):
        place = folder / f"package{number % 97}" / f"part{number % 11}" / f"module{number}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        if number % 2:
            place.write_bytes(chance.randbytes(size))
        else:
            place.write_text(" ".join(chance.choices(words, k=size // 5)))


@contextmanager
def database():
    if url := os.environ.get(SERVER):
        yield url
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, hold_session(Path(folder)):
        os.chmod(folder, 0o755)
        server = make_cluster(Path(folder)).new_server(DURABLE)
        server.start()
        try:
            yield server.url()
        finally:
            server.stop()


def measured(what, work, *, of=None):
    begun, clock = cpu(), time.monotonic()
    result = work()
    used, took = cpu() - begun, time.monotonic() - clock
    ratio = f" {used / of[0]:.2f} | {took / of[1]:.2f} |" if of else " | |"
    print(f"| {what} | {used:.2f} | {took:.2f} |{ratio}", flush=True)
    return result, (used, took)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--blobs", help="an object store; by default the database")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    project = folder / "project"
    make(project, asked.files, (asked.megabytes << 20) // asked.files)
    contents = ObjectBlobs.at(asked.blobs) if asked.blobs else None
    with database() as url:
        with psycopg.connect(url) as connection:
            for statement in BLOB_TABLES:
                connection.execute(statement)
        with closing(PostgresBlobs(url, contents)) as blobs:
            here, there = (SnapshotStore(folder / name) for name in ("here", "there"))
            sends, gets = (SharedSnapshots("s1", blobs, each) for each in (here, there))
            print("| | CPU s | s | of `cp -a`, CPU | of it, s |\n|---|---|---|---|---|")
            copy = ("cp", "-a", str(project), str(folder / "copy"))
            _, least = measured("`cp -a`", lambda: subprocess.run(copy, check=True))
            first, _ = measured("first recording", lambda: here.record(project), of=least)
            measured("sent", lambda: sends.send(first), of=least)
            measured("fetched", lambda: gets.fetch(first.snapshot_id), of=least)
            other = folder / "other"
            other.mkdir()

            def follow(snapshot):
                there.restore(other, snapshot.snapshot_id, force=True)

            measured("written into an empty folder", lambda: follow(first), of=least)
            for number in range(10):
                (project / f"package{number}" / f"new{number}.py").write_text("changed\n" * 500)
            second, _ = measured(
                "10 changed files recorded", lambda: here.record(project), of=least
            )
            measured("sent", lambda: sends.send(second), of=least)
            measured("fetched", lambda: gets.fetch(second.snapshot_id), of=least)
            measured("brought into the folder", lambda: follow(second), of=least)
            measured("the same again, with nothing to do", lambda: follow(second), of=least)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

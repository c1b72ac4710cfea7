"""Checks what is on disk half-way: copy the store inside the 25th tool call of 50 and count
the tool call ids in the copy, against the ids in the store at the end.

    python durable.py ADAPTER...
"""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import ENVIRONMENT, HERE, Bench, python


def ids(folder):
    found = set()
    for path in Path(folder).rglob("*"):
        if path.is_file():
            found |= set(re.findall(rb"call_\d{8}", path.read_bytes()))
    return len(found)


async def probe(name, url):
    import tool

    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        store, copy = Path(folder) / "store", Path(folder) / "copy"
        store.mkdir()

        class Ticks(list):
            def append(self, tick):
                super().append(tick)
                if len(self) == 25:
                    shutil.copytree(store, copy)

        tool.TICKS = Ticks()
        bench = Bench(name, url, str(store / "bench.db"))
        await bench.setup(50, 8)
        await bench.run()
        end = ids(store)
        await bench.close()
        print("RESULT", json.dumps({"asked_before": 25, "on_disk": ids(copy), "at_end": end}))


if sys.argv[1] == "--worker":
    asyncio.run(probe(*sys.argv[2:]))
else:
    server = subprocess.Popen(
        [sys.executable, "server.py"], cwd=HERE, stdout=subprocess.PIPE, text=True
    )
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        for name in sys.argv[1:]:
            done = subprocess.run(
                [python(name), "durable.py", "--worker", name, url],
                cwd=HERE,
                text=True,
                capture_output=True,
                env=ENVIRONMENT,
            )
            last = (done.stdout or done.stderr).strip().splitlines()
            print(name, next((x for x in last if x.startswith("RESULT")), last[-1:]), flush=True)
    finally:
        server.terminate()
        server.wait()

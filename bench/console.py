"""The console under load: watchers of one run, and runs at once.

    python console.py                          # both, into results/console.json and the page
    python console.py --watchers 50 --runs 10 --no-page

The server is a process of its own: the ASGI application over a runtime that stores everything in
SQLite, with a scripted model. This process plays all clients; both share the machine's cores.

* `watchers`: clients that follow one run of 10 turns and a text of 500 chunks, 100 a second,
  from `/api/runs/{id}/events`. Every one has to get every stored event, and the whole text.
* `runs`: requests at once to `/v1/chat/completions`, streamed, each with a tool call and 100 chunks.

CPU is that of the server, with all its threads; memory is its resident set.
"""

# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "results" / "console.json"
PAGE = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- console: begin -->", "<!-- console: end -->"
TICKS = os.sysconf("SC_CLK_TCK")
TURNS, CHUNKS, PAUSE_S, WORD = 10, 500, 0.01, "word "
SHORT_CHUNKS = 100
START_S = 3.0
"""Seconds before the watched run says anything, for the watchers to come."""
STREAMS = 100
"""Streams that one principal may have open."""

CONFIG = {
    "model": {"provider": "bench", "name": "bench", "context_window": 1_000_000},
    "memory": {"enabled": False},
    "runtime": {"max_concurrent_runs": 1_000, "max_turns": 100},
}


# ---- the server ------------------------------------------------------------


async def reply(request):
    """Call the tool as often as the message says, and then say so many chunks."""
    said = [block.text for block in request.messages[0].content if block.type == "text"]
    turns, chunks, pause, wait = map(float, said[0].split())
    done = sum(message.role == "assistant" for message in request.messages)
    if not done:
        await asyncio.sleep(wait)
    if done < turns:
        from agent_core.providers.scripted import calls

        yield calls("look", number=done)
        return
    for _ in range(int(chunks)):
        yield WORD
        await asyncio.sleep(pause)


async def serve(folder):
    """Serve a runtime until standard input ends; prints the port."""
    from uvicorn import Config, Server

    from agent_core import AgentRuntime, tool
    from agent_core.providers.scripted import ScriptedProvider
    from agent_core.serve import Principal, app

    @tool(permission="readonly")
    def look(number: float) -> str:
        """Look."""
        return f"{number}"

    runtime = AgentRuntime(folder, config=CONFIG, home_dir=f"{folder}/home", tools=[look])
    runtime.register_provider("bench", lambda _: ScriptedProvider(reply))

    def auth(request):
        return Principal(request.headers.get("x-name", "bench"))

    async with runtime:
        server = Server(Config(app(runtime, auth=auth), port=0, log_level="error", lifespan="off"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving


class Served:
    """The server, and what it costs."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def mib(self):
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines)
        return int(found["VmRSS"].split()[0]) / 1024

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


# ---- the clients -----------------------------------------------------------


async def events(response):
    """Yield the type, the number and the data of each event of a stream."""
    kind = number = None
    async for line in response.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            number = int(value)
        elif name == "data":
            yield kind, number, value
            kind = number = None


class Reader:
    """One watcher: what it has seen."""

    def __init__(self):
        self.first_ms = 0.0
        self.numbers = []
        self.text = ""
        self.deltas = 0

    async def watch(self, session, address, run_id, name):
        begun = perf_counter()
        url = f"{address}/api/runs/{run_id}/events"
        async with session.get(url, headers={"x-name": name}) as response:
            assert response.status == 200, await response.text()
            async for kind, number, data in events(response):
                self.first_ms = self.first_ms or (perf_counter() - begun) * 1e3
                if number is not None:
                    self.numbers.append(number)
                if kind == "model_text_delta":
                    payload = json.loads(data)["payload"]
                    self.deltas += 1
                    self.text = (
                        payload["text"]
                        if payload.get("from_start")
                        else self.text + payload["text"]
                    )

    def is_whole(self):
        ids = self.numbers == list(range(1, len(self.numbers) + 1))
        return ids and self.text == WORD * CHUNKS


async def watchers(served, session, count):
    """Follow one run with so many clients; 0 runs it unwatched."""
    before = served.cpu_s()
    message = f"{TURNS} {CHUNKS} {PAUSE_S} {START_S}"
    async with session.post(f"{served.address}/api/runs", json={"message": message}) as response:
        run = await response.json()
    readers = [Reader() for _ in range(count)]
    address, run_id = served.address, run["run_id"]
    names = [f"watcher {number // (STREAMS - 10)}" for number in range(count)]
    begun = perf_counter()
    most = served.mib()
    watching = asyncio.gather(
        *(
            reader.watch(session, address, run_id, name)
            for reader, name in zip(readers, names, strict=True)
        )
    )
    while True:
        await asyncio.sleep(0.2)
        most = max(most, served.mib())
        async with session.get(f"{address}/api/runs/{run_id}") as response:
            if (await response.json())["status"] == "completed":
                break
    ran_s = perf_counter() - begun - START_S
    await watching
    firsts = [reader.first_ms for reader in readers]
    return {
        "watchers": count,
        "seconds": ran_s,
        "cpu_s": served.cpu_s() - before,
        "mib": most,
        "first_ms": median(firsts) if firsts else None,
        "first_95_ms": quantiles(firsts, n=20)[-1] if len(firsts) > 1 else None,
        "events": len(readers[0].numbers) if readers else None,
        "deltas": median(reader.deltas for reader in readers) if readers else None,
        "whole": sum(reader.is_whole() for reader in readers),
    }


async def chat(session, address):
    """One streamed chat completion: milliseconds to its first and to its last event."""
    begun = perf_counter()
    body = {
        "model": "soong-agent",
        "stream": True,
        "messages": [{"role": "user", "content": f"1 {SHORT_CHUNKS} {PAUSE_S} 0"}],
    }
    text, first = "", 0.0
    async with session.post(f"{address}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for _, _, data in events(response):
            first = first or perf_counter()
            if data != "[DONE]":
                text += json.loads(data)["choices"][0]["delta"].get("content") or ""
    assert text == WORD * SHORT_CHUNKS, text
    return (first - begun) * 1e3, (perf_counter() - begun) * 1e3


async def runs(served, session, count):
    """Run so many chats at once, after some that warm up."""
    await asyncio.gather(*(chat(session, served.address) for _ in range(5)))
    before, begun, memory = served.cpu_s(), perf_counter(), served.mib()
    found = await asyncio.gather(*(chat(session, served.address) for _ in range(count)))
    firsts = [first for first, _ in found]
    return {
        "runs": count,
        "seconds": perf_counter() - begun,
        "cpu_s": served.cpu_s() - before,
        "growth_mib": served.mib() - memory,
        "first_ms": median(firsts),
        "first_95_ms": quantiles(firsts, n=20)[-1],
    }


async def measure(arguments):
    import aiohttp

    results = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "watchers": [], "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        served = Served(folder)
        try:
            limits = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(connector=limits, timeout=timeout) as session:
                await runs(served, session, 5)
                for count in dict.fromkeys([0, 1, arguments.watchers]):
                    results["watchers"].append(await watchers(served, session, count))
                    print(results["watchers"][-1], flush=True)
                results["runs"].append(await runs(served, session, arguments.runs))
                print(results["runs"][-1], flush=True)
        finally:
            served.close()
    return results


# ---- the page --------------------------------------------------------------


def table(results):
    lines = [
        f"Measured {results['date']}, with server and clients on the same 2 cores.",
        "",
        "| | CPU of the server, s | memory, MiB | first event, ms (95%) | lost |",
        "|---|---|---|---|---|",
    ]
    for found in results["watchers"]:
        count = found["watchers"]
        what = f"{count} watchers of one run" if count != 1 else "one watcher of it"
        first = f"{found['first_ms']:.0f} ({found['first_95_ms']:.0f})" if count > 1 else "-"
        lost = f"{count - found['whole']} of {count}" if count else "-"
        lines.append(f"| {what} | {found['cpu_s']:.1f} | {found['mib']:.0f} | {first} | {lost} |")
    for found in results["runs"]:
        first = f"{found['first_ms']:.0f} ({found['first_95_ms']:.0f})"
        lines.append(
            f"| {found['runs']} runs at once, streamed | {found['cpu_s']:.1f} |"
            f" +{found['growth_mib']:.0f} | {first} | 0 of {found['runs']} |"
        )
    return "\n".join(lines)


def write_page(results):
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(results)}\n\n{END}{tail}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.serve))
        return
    results = asyncio.run(measure(arguments))
    print(table(results))
    if not arguments.no_page:
        OUTPUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_page(results)


if __name__ == "__main__":
    main()

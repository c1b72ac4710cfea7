"""The HTTP client, for as long as one likes, against a server that does what servers do.

    python tests/faults/http_soak.py --minutes 60 --seed 7      # what `make soak MINUTES=60` does

Many tasks use one client, in the open and over TLS, with a proxy and without. They read responses
to the end, leave them in the middle, or are cancelled at any moment; responses are whole,
compressed, chunked, slow, cut, silent or no HTTP. Checked throughout: a whole response has exactly
the bytes that were sent, a broken one raises an error of the client and never looks whole, nobody
gets bytes of somebody else's response, and sockets, tasks and memory do not grow.
"""

import argparse
import asyncio
import gzip
import logging
import random
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_core.http.client import Client
from agent_core.http.errors import HttpError
from agent_core.http.opening import Route
from raw_servers import open_sockets, read_request, serving
from web_proxy import WebProxy

WORKERS = 12
SILENCE_S = 0.3
PATIENCE_S = 60.0
WHOLE = ("length", "chunked", "gzip", "close", "slow")
BROKEN = ("cut", "garbage", "silent", "gone")
USES = ("read", "read", "read", "leave", "cancel")
MOST_PROBLEMS = 20
MOST_SOCKETS = 400


class Soak:
    """The requests of one soak, and what became of them.

    Attributes:
        counts: number of requests, by the kind of response and its use.
        problems: what went wrong; the first ones.
    """

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._random = random.Random(seed)  # noqa: S311 - repeatable
        self._number = 0

    def report(self, problem: str) -> None:
        """Note what went wrong."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    # The server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests for `/KIND/NUMBER/SIZE`, one after the other."""
        is_kept = True
        while is_kept:
            head, _ = await read_request(reader)
            kind, number, size = head.split(b" ", 2)[1].decode().split("/")[-3:]
            if kind == "silent":
                await reader.read()
            is_kept = kind in {"length", "chunked", "gzip", "slow"}
            for count, piece in enumerate(self._response(kind, body_of(int(number), int(size)))):
                writer.write(piece)
                await writer.drain()
                if kind == "slow" and count < 20:
                    await asyncio.sleep(0.002)

    def _response(self, kind: str, body: bytes) -> Sequence[bytes]:
        """Return what is written as a response, write by write."""
        head = b"HTTP/1.1 200 OK\r\n"
        match kind:
            case "length":
                return head, b"Content-Length: %d\r\n\r\n" % len(body), body
            case "slow":
                return self._parts(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            case "gzip":
                packed = gzip.compress(body, 1)
                told = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
                return head, told, packed
            case "close":
                return head, b"Connection: close\r\n\r\n", body
            case "chunked" | "cut":
                chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in self._parts(body)]
                pieces = [head, b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]
                whole = b"".join(pieces)
                return pieces if kind == "chunked" else [whole[: self._below(len(whole) - 1)]]
            case "garbage":
                return [self._random.randbytes(200)]
            case _:
                return ()

    def _parts(self, data: bytes) -> list[bytes]:
        """Return the data in pieces of random sizes."""
        found: list[bytes] = []
        while data:
            size = self._random.choice((1, 7, 1000, 20_000))
            found.append(data[:size])
            data = data[size:]
        return found

    def _below(self, limit: int) -> int:
        return self._random.randrange(limit)

    # The client

    async def work(self, client: Client, ways: Sequence[tuple[str, Route]], end: float) -> None:
        """Make one request after the other until a time on the clock."""
        while time.monotonic() < end and len(self.problems) < MOST_PROBLEMS:
            self._number += 1
            await self._try(client, self._random.choice(ways), self._number)

    async def _try(self, client: Client, way: tuple[str, Route], number: int) -> None:
        """Make one request, use its response in some way, and judge what came."""
        kind = self._random.choice(WHOLE * 2 + BROKEN)
        use = self._random.choice(USES)
        size = self._random.choice((0, 1, 100, 5_000, 60_000))
        self.counts[f"{kind}, {use}"] += 1
        limit_s = self._random.random() * 0.05 if use == "cancel" else None
        url, route = way
        try:
            async with asyncio.timeout(limit_s):
                address = f"{url}/{kind}/{number}/{size}"
                body = await self._fetch(client, address, route, reads_all=use != "leave")
        except TimeoutError:
            if use != "cancel" and kind != "silent":
                self.report(f"{kind} {size}: too long a silence")
            return
        except HttpError as error:
            if kind in WHOLE:
                self.report(f"{kind} {size}: {error!r}")
            return
        wanted = body_of(number, size)
        is_right = wanted.startswith(body) if use == "leave" else wanted == body
        if not is_right or (kind in BROKEN and use != "leave"):
            self.report(f"{kind} {size}, {use}: it looked whole, with {len(body)} bytes")

    async def _fetch(self, client: Client, url: str, route: Route, *, reads_all: bool) -> bytes:
        """Return the body of a response, or its first block."""
        response = await client.request(
            self._random.choice(("GET", "POST")),
            url,
            headers={},
            body=b"x" * self._random.choice((0, 10, 100_000)),
            route=route,
            silence_s=SILENCE_S if "/silent/" in url else PATIENCE_S,
        )
        try:
            response.unpack()
            blocks = [await response.read()]
            while blocks[-1] and reads_all:
                blocks.append(await response.read())
            return b"".join(blocks)
        finally:
            response.close()

    async def watch(self, proxies: Sequence[WebProxy], seconds: float) -> None:
        """See that memory and sockets do not grow, and print a line each minute."""
        begin, first, printed = time.monotonic(), 0, 0
        while (passed := time.monotonic() - begin) < seconds:
            await asyncio.sleep(min(1, seconds / 20))
            used, sockets = memory_kib(), open_sockets()
            if passed >= seconds / 4:
                first = first or used
            if sockets > MOST_SOCKETS:
                self.report(f"{sockets} sockets are open")
            for proxy in proxies:
                proxy.asked.clear()
            if passed // 60 > printed:
                printed += 1
                show(f"{passed:6.0f} s  {self._number} requests  {used} KiB  {sockets} sockets")
        if memory_kib() > first * 1.2 + 8192:
            self.report(f"memory grew from {first} to {memory_kib()} KiB")


async def play(folder: Path, *, seconds: float, seed: int) -> Soak:
    """Make requests for so many seconds, and return what became of them."""
    soak = Soak(seed)

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        soak.report(f"the event loop reports {context}")

    asyncio.get_running_loop().set_exception_handler(note)
    served, trusted = await asyncio.to_thread(certificates, folder)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(serving(soak.serve))
        encrypted = await stack.enter_async_context(serving(soak.serve, tls=served))
        direct = [(plain, Route()), (encrypted, Route(tls=trusted))]
        ways, proxies = [*direct], list[WebProxy]()
        for url, route in direct:
            proxy = await stack.enter_async_context(WebProxy(int(url.rpartition(":")[2])))
            proxies.append(proxy)
            ways.append((url, Route(proxy=proxy.url, tls=route.tls)))
        before, end = open_sockets(), time.monotonic() + seconds
        client = Client(headers={}, connect_s=30)
        workers = [soak.work(client, ways, end) for _ in range(WORKERS)]
        await asyncio.gather(soak.watch(proxies, seconds), *workers)
        await client.close()
        for _ in range(200):  # the servers notice that the connections have ended
            if open_sockets() <= before:
                break
            await asyncio.sleep(0.05)
        else:
            soak.report(f"{open_sockets() - before} sockets are left")
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        soak.report(f"tasks are left: {left}")
    return soak


def body_of(number: int, size: int) -> bytes:
    """Return a body that no other number has."""
    return (b"%d." % number * (size // 2 + 1))[:size]


def certificates(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make a certificate for 127.0.0.1; return the contexts that serve it and that trust it."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem"
    command += " -subj /CN=t -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(command.split(), cwd=folder, stderr=subprocess.DEVNULL, check=True)  # noqa: S603
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return served, ssl.create_default_context(cafile=str(folder / "cert.pem"))


def memory_kib() -> int:
    """Return the resident memory of this process."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize() // 1024


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # the server writes to clients that left
    with tempfile.TemporaryDirectory() as folder:
        soak = asyncio.run(play(Path(folder), seconds=options.minutes * 60, seed=options.seed))
    for name, count in sorted(soak.counts.items()):
        show(f"{count:9}  {name}")
    if soak.problems:
        sys.exit("\n".join(soak.problems))


if __name__ == "__main__":
    main()

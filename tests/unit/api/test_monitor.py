"""What machines read of a worker, over a real socket and with Prometheus' own parser."""

import asyncio
import logging
import re
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent_core import ConfigError
from agent_core.api import monitor
from agent_core.api.monitor import WorkerFigures, serve_monitor
from agent_core.types.workers import QueueDepth
from tables import together

PAGE = Path(__file__).parents[3] / "docs" / "scale.md"

FIGURES = WorkerFigures(
    worker_id="own_1",
    version="1.2",
    protocol=1,
    concurrency=4,
    running=2,
    started=7,
    ended={"completed": 4, "failed": 1},
    parked=2,
    takeovers=1,
    handed_over=3,
    is_draining=False,
    heartbeat_age_s=0.25,
    is_alive=True,
    lanes=(),
)


def lane(tenant: str | None, depth: int, age_s: float) -> QueueDepth:
    return QueueDepth(
        queue="default",
        place="host:a",
        tenant=tenant,
        protocol=1,
        depth=depth,
        oldest_s=age_s,
    )


async def look() -> WorkerFigures:
    return FIGURES


async def read(figures: WorkerFigures, path: str) -> tuple[int, str, str]:
    async def look() -> WorkerFigures:
        return figures

    async with (
        serve_monitor(look, "127.0.0.1", 0) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, response.headers["Content-Type"], await response.text()


async def samples(figures: WorkerFigures) -> Mapping[tuple[str, frozenset[str]], float]:
    status, content_type, text = await read(figures, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    found: dict[tuple[str, frozenset[str]], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("soong_agent_")
        assert family.documentation
        assert family.type in {"gauge", "counter"}
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.values()))
            assert key not in found
            found[key] = sample.value
    return found


async def test_every_figure_is_a_metric_that_prometheus_reads() -> None:
    waiting = [lane(None, 3, 40), lane('a"b\\c\nd', 1, 5)]
    found = await samples(replace(FIGURES, lanes=waiting))
    none = frozenset[str]()
    assert found["soong_agent_runs_running", none] == 2
    assert found["soong_agent_runs_started_total", none] == 7
    assert found["soong_agent_runs_ended_total", frozenset({"completed"})] == 4
    assert found["soong_agent_runs_ended_total", frozenset({"failed"})] == 1
    assert found["soong_agent_takeovers_total", none] == 1
    assert found["soong_agent_handed_over_total", none] == 3
    assert found["soong_agent_worker_protocol", none] == 1
    assert found["soong_agent_worker_concurrency", none] == 4
    assert found["soong_agent_worker_draining", none] == 0
    assert found["soong_agent_worker_heartbeat_age_seconds", none] == 0.25
    assert found["soong_agent_database_up", none] == 1
    assert found["soong_agent_worker_info", frozenset({"own_1", "1.2"})] == 1
    first = frozenset({"default", "host:a", "", "1"})
    odd = frozenset({"default", "host:a", 'a"b\\c\nd', "1"})
    assert found["soong_agent_queue_depth", first] == 3
    assert found["soong_agent_queue_depth", odd] == 1
    assert 40 <= found["soong_agent_queue_oldest_seconds", first] < 60
    assert 5 <= found["soong_agent_queue_oldest_seconds", odd] < 40


async def test_an_idle_worker_has_every_metric_without_a_lane() -> None:
    found = await samples(replace(FIGURES, ended={}))
    assert ("soong_agent_runs_running", frozenset[str]()) in found
    assert not [name for name, _ in found if "queue" in name or "ended" in name]


async def test_metrics_are_served_while_the_database_is_away() -> None:
    found = await samples(replace(FIGURES, lanes=None))
    assert found["soong_agent_database_up", frozenset[str]()] == 0


@together(
    ("figures", "status", "word"),
    [
        (FIGURES, 200, "ok"),
        (replace(FIGURES, lanes=None), 503, "the database does not respond"),
        (replace(FIGURES, is_alive=False), 503, "the lease has expired"),
        (replace(FIGURES, is_draining=True), 503, "draining"),
    ],
    ids=["ready", "no-database", "late", "draining"],
)
async def test_health_says_whether_runs_are_taken(
    figures: WorkerFigures, status: int, word: str
) -> None:
    answered, content_type, text = await read(figures, "/healthz")
    assert answered == status
    assert content_type.startswith("application/json")
    assert f'"status": "{word}"' in text


async def test_health_has_the_figures_of_the_queue() -> None:
    _, _, text = await read(
        replace(FIGURES, lanes=[lane(None, 3, 9), lane("t", 2, 90)]), "/healthz"
    )
    assert '"queue_depth": 5' in text
    assert '"oldest_s": 90' in text
    assert '"running": 2' in text
    assert '"takeovers": 1' in text


async def test_a_worker_lives_while_it_takes_no_runs() -> None:
    answered, content_type, _ = await read(replace(FIGURES, lanes=None, is_alive=False), "/livez")
    assert (answered, content_type.partition(";")[0]) == (200, "application/json")


async def test_other_pages_are_not_there() -> None:
    assert (await read(FIGURES, "/"))[0] == 404


async def test_a_port_that_is_taken_is_a_configuration_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}.*choose another port"):
            async with serve_monitor(look, "127.0.0.1", port):
                pass
    with pytest.raises(ConfigError, match="cannot be served at there\\.invalid"):
        async with serve_monitor(look, "there.invalid", 0):
            pass


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is closed, by a reset perhaps."""
    received = bytearray()
    try:
        while piece := await reader.read(65_536):
            received += piece
    except ConnectionError:
        pass
    return bytes(received)


@asynccontextmanager
async def connected(
    port: int, *, small: bool = False
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, which holds little of what it has not read if it is `small`."""
    one = socket.socket()
    if small:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=one, limit=1024)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def send_nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def send_half(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n")
    await asyncio.sleep(60)


async def send_slowly(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /metrics HTTP/1.1\r\nX-Long: ")
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.02)


async def send_a_body_slowly(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.02)


@together("send", [send_nothing, send_half, send_slowly, send_a_body_slowly])
async def test_a_client_is_closed_that_does_not_send_its_request_in_time(
    send: Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]],
) -> None:
    async with (
        serve_monitor(look, "127.0.0.1", 0, client_s=0.3) as port,
        connected(port) as (reader, writer),
        asyncio.TaskGroup() as tasks,
    ):
        sending = tasks.create_task(send(writer))
        await read_to_the_end(reader)  # returns because the server has closed it
        sending.cancel()


@pytest.mark.long
async def test_a_client_is_closed_that_does_not_read_its_answer_in_time() -> None:
    tenants = [f"tenant-{number}-{'x' * 1_000}" for number in range(5_000)]
    many = replace(FIGURES, lanes=[lane(tenant, 1, 1) for tenant in tenants])

    asked = asyncio.Event()

    async def look_at_many() -> WorkerFigures:
        asked.set()
        return many

    async def receive(port: int, after_s: float) -> bytes:
        async with connected(port, small=True) as (reader, writer):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            await asked.wait()  # its time has begun; the timers of one loop are called in order
            asked.clear()
            await asyncio.sleep(after_s)
            return await read_to_the_end(reader)

    async with serve_monitor(look_at_many, "127.0.0.1", 0, client_s=0.5) as port:
        head, _, body = (await receive(port, 1.5)).partition(b"\r\n\r\n")
    (whole,) = re.findall(rb"(?i)content-length: (\d+)", head)
    assert len(body) < int(whole)
    assert int(whole) > 8_000_000


@together(
    "request_bytes",
    [
        b"GET /" + b"x" * 10_000,
        b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 10_000,
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 1_000 + b"\r\n",
    ],
    ids=["line", "header", "headers"],
)
async def test_a_request_that_is_too_large_is_refused(request_bytes: bytes) -> None:
    async with (
        serve_monitor(look, "127.0.0.1", 0) as port,
        connected(port) as (reader, writer),
    ):
        writer.write(request_bytes)
        assert b" 400 " in (await read_to_the_end(reader)).splitlines()[0]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"no such thing\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /metrics HTTP/9\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nno header\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"x" * 10_000,
    ],
)
async def test_a_malformed_request_fills_no_log(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_monitor(look, "127.0.0.1", 0) as port:
        for level in (logging.INFO, logging.DEBUG):
            with caplog.at_level(level), suppress(ConnectionError):
                async with connected(port) as (reader, writer):
                    writer.write(request_bytes)
                    await read_to_the_end(reader)
            if level is logging.INFO:
                assert caplog.records == []
    assert all(record.levelno == logging.DEBUG for record in caplog.records)


async def test_an_error_of_its_own_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> WorkerFigures:
        raise ValueError("no figures")

    async with serve_monitor(fail, "127.0.0.1", 0) as port, connected(port) as (reader, writer):
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 500 " in (await read_to_the_end(reader)).splitlines()[0]
    assert "no figures" in caplog.text


@together(("method", "status"), [("GET", 200), ("HEAD", 200), ("POST", 405), ("DELETE", 405)])
async def test_an_answer_ends_its_connection(method: str, status: int) -> None:
    async with (
        serve_monitor(look, "127.0.0.1", 0) as port,
        connected(port) as (reader, writer),
    ):
        writer.write(f"{method} /metrics HTTP/1.1\r\nHost: a\r\n\r\n".encode() * 3)
        head, _, body = (await read_to_the_end(reader)).partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"Connection: close" in head
        assert (b"soong_agent_worker_info" in body) == (method == "GET")
        assert b"HTTP/1.1" not in body


async def test_idle_clients_give_their_place_to_others_and_keep_nothing_from_ending() -> None:
    async with AsyncExitStack() as stack:
        async with serve_monitor(look, "127.0.0.1", 0) as port:
            idle = [await stack.enter_async_context(connected(port)) for _ in range(100)]
            for _, writer in idle[::2]:
                writer.write(b"GET /metrics HTTP/1.1\r\n")
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}/healthz") as response,
            ):
                assert response.status == 200
            for reader, _ in idle[:30]:
                assert await read_to_the_end(reader) == b""
        for reader, _ in idle[30:]:  # they are closed with the server
            assert await read_to_the_end(reader) == b""


def is_connected(client: socket.socket) -> bool:
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    return False  # its end


async def test_clients_that_come_all_at_once_are_limited_too() -> None:
    async with serve_monitor(look, "127.0.0.1", 0) as port, AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        clients: list[socket.socket] = []
        for _ in range(8):
            for _ in range(40):  # the loop sees them all in one turn
                client = socket.create_connection(("127.0.0.1", port))
                client.setblocking(False)
                clients.append(stack.enter_context(client))
            async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
                assert response.status == 200  # all of them have been accepted
        assert sum(map(is_connected, clients)) <= monitor.MOST_CLIENTS
        assert is_connected(clients[-1])


def test_the_page_about_workers_says_what_a_client_may_do() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"after {monitor.CLIENT_S:g} seconds" in page
    assert f"more than {monitor.LINE} bytes" in page
    assert f"more than {monitor.HEADERS} headers" in page
    assert f"At most {monitor.MOST_CLIENTS} clients" in page


async def test_the_page_about_workers_names_every_metric_with_its_labels() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(soong_agent_\w+)` \| (.*?) \|", page, re.MULTILINE)
    _, _, text = await read(replace(FIGURES, lanes=[lane("t", 1, 1)]), "/metrics")
    families = text_string_to_metric_families(text)
    samples = {sample.name: sample for family in families for sample in family.samples}
    assert [name for name, _ in rows] == list(dict.fromkeys(name for name, _ in rows))
    assert {name for name, _ in rows} == samples.keys()
    for name, labels in rows:
        if labels != "the same":
            assert re.findall(r"`(\w+)`", labels) == list(samples[name].labels), name

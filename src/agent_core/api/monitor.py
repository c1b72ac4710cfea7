"""Pages about a worker: `/metrics` in the text format of Prometheus, `/healthz` and `/livez`."""

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus

from msgspec import Struct

from agent_core.errors import ConfigError, ErrorCode
from agent_core.redaction import log_failure
from agent_core.types.workers import QueueDepth

_CONTENT_TYPE = "text/plain; version=0.0.4"
_JSON = "application/json; charset=utf-8"
_REQUEST = re.compile(rb"([A-Z]+) (?:https?://[!-~]*?)?(/[!-~]*|\*) HTTP/1\.[01]\r?\n")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r?\n")
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

CLIENT_S = 30.0
"""Seconds that a client may take to send its request and to read the answer."""

MOST_CLIENTS = 64
"""Most clients connected at once: a further one replaces the oldest."""

_BACKLOG = 64
"""Length of the queue of connections that wait to be accepted."""

LINE = 4096
"""Longest first line of a request, and longest header, in bytes."""

HEADERS = 64
"""Most headers of a request."""

_METRICS = {
    "worker_info": "The worker.",
    "worker_protocol": "Number of the protocol whose runs the worker takes.",
    "worker_concurrency": "Maximum number of runs that the worker executes at once.",
    "worker_draining": "Whether the worker takes no more runs.",
    "worker_heartbeat_age_seconds": "Time since the last heartbeat that the database accepted.",
    "database_up": "Whether the database responds.",
    "runs_running": "Runs the worker is executing.",
    "runs_started_total": "Runs the worker has started.",
    "runs_ended_total": "Runs that have ended in the worker, by status.",
    "runs_parked_total": "Runs that the worker has left waiting for an answer.",
    "takeovers_total": "Runs of dead workers that the worker has continued.",
    "handed_over_total": "Runs that the worker has handed over when it was drained.",
    "queue_depth": "Runs that wait for a worker.",
    "queue_oldest_seconds": "How long the oldest of them has waited.",
}
"""Help text of each metric, by its name without the prefix."""


class WorkerFigures(Struct, frozen=True, kw_only=True):
    """The figures of a worker: its work since its start, and its present state.

    Attributes:
        ended: the number of runs that have ended here, by status.
        parked: the number of runs it has left waiting for an answer.
        takeovers: the number of runs it has continued for a dead worker.
        handed_over: the number of runs it has left to others when it was drained.
        heartbeat_age_s: seconds since the database accepted its last heartbeat.
        is_alive: its lease has not expired, so others may not take its runs.
        lanes: queued runs for all workers; None if the database does not respond.
    """

    worker_id: str
    version: str
    protocol: int
    concurrency: int
    running: int
    started: int
    ended: Mapping[str, int]
    parked: int
    takeovers: int
    handed_over: int
    is_draining: bool
    heartbeat_age_s: float
    is_alive: bool
    lanes: Sequence[QueueDepth] | None

    @property
    def is_ready(self) -> bool:
        """True if it reaches the database, its lease has not expired, and it takes runs."""
        return self.lanes is not None and self.is_alive and not self.is_draining


Look = Callable[[], Awaitable[WorkerFigures]]

logger = logging.getLogger(__name__)


class _Answer(Struct, frozen=True):
    """The answer to a client."""

    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    allow: str = ""

    def written(self, *, with_body: bool) -> bytes:
        """Return it as it is sent; the connection is closed after it."""
        lines = [
            f"HTTP/1.1 {self.status} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
            *([f"Allow: {self.allow}"] if self.allow else ()),
        ]
        head = "\r\n".join((*lines, "", "")).encode("ascii")
        return head + self.body if with_body else head


class _Clients:
    """Answers each client once, and limits their number, and the time of each.

    Args:
        look: returns the figures.
        client_s: seconds that a client may take to send its request and to read the answer.
    """

    def __init__(self, look: Look, client_s: float) -> None:
        self._look = look
        self._client_s = client_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._oldest: deque[asyncio.Task[None]] = deque(maxlen=MOST_CLIENTS)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client, in the place of the oldest one if there are too many."""
        if len(self._oldest) == MOST_CLIENTS:
            self._oldest[0].cancel()
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        self._oldest.append(task)
        task.add_done_callback(partial(self._leave, writer))

    async def close(self) -> None:
        """Close the remaining connections; unread answers are dropped."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leave(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        """Close a connection, even if its task was cancelled before it began."""
        writer.transport.abort()
        self._tasks.discard(task)
        with suppress(ValueError):  # another client has taken its place
            self._oldest.remove(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._client_s):
                writer.transport.set_write_buffer_limits(0)  # so that `drain` waits for all of it
                method, answer = await self._answer(reader)
                writer.write(answer.written(with_body=method != b"HEAD"))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # it was too slow, or has gone

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[bytes, _Answer]:
        """Read a request, and return its method and the answer."""
        try:
            method, path = await _read_request(reader)
        except (ValueError, asyncio.LimitOverrunError) as error:
            logger.debug("a request is malformed: %s", error)
            return b"", _Answer(HTTPStatus.BAD_REQUEST)
        if path not in {b"/metrics", b"/healthz", b"/livez"}:
            text = b"404: the pages are /metrics, /healthz and /livez\n"
            return method, _Answer(HTTPStatus.NOT_FOUND, text)
        if method not in {b"GET", b"HEAD"}:
            return method, _Answer(HTTPStatus.METHOD_NOT_ALLOWED, allow="GET,HEAD")
        if path == b"/livez":
            return method, _Answer(HTTPStatus.OK, b'{"status": "ok"}', _JSON)
        try:
            figures = await self._look()
            if path == b"/metrics":
                text = metrics_text(figures).encode()
                return method, _Answer(HTTPStatus.OK, text, _CONTENT_TYPE)
            status = HTTPStatus.OK if figures.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
            text = json.dumps(health_of(figures)).encode()
            return method, _Answer(status, text, _JSON)
        except Exception as error:  # noqa: BLE001 - the worker goes on working
            log_failure(logger, "the metrics of the worker cannot be shown", error=error)
            return method, _Answer(HTTPStatus.INTERNAL_SERVER_ERROR)


async def _read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return method and path of a request. Its body, if any, is not read.

    Raises:
        ValueError: it is malformed, or has too many headers.
        LimitOverrunError: a line is too long.
        IncompleteReadError: the client has gone.
    """
    request = _REQUEST.fullmatch(await reader.readuntil(b"\n"))
    if request is None:
        raise ValueError("its first line")
    for _ in range(HEADERS + 1):
        line = await reader.readuntil(b"\n")
        if line in {b"\r\n", b"\n"}:
            return request[1], request[2].partition(b"?")[0]
        if not _HEADER.fullmatch(line):
            raise ValueError("a header")
    raise ValueError("too many headers")


@asynccontextmanager
async def serve_monitor(
    look: Look, address: str, port: int, *, client_s: float = CLIENT_S
) -> AsyncGenerator[int]:
    """Answer `/metrics`, `/healthz` and `/livez` until the end of the block, and yield the port.

    A connection is closed with its answer.

    Args:
        look: returns the figures.
        address: the address to listen at.
        port: the port to listen at; 0 for a free one.
        client_s: seconds that a client may take.

    Raises:
        ConfigError: the port cannot be used.
    """
    clients = _Clients(look, client_s)
    try:
        server = await asyncio.start_server(
            clients.accept, address, port, limit=LINE, backlog=_BACKLOG
        )
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = (
            f"the metrics cannot be served at {address} port {port}: {reason};"
            " choose another port, or address"
        )
        raise ConfigError(ErrorCode.CONFIG_ERROR, message) from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await clients.close()
        with suppress(OSError):
            await server.wait_closed()


def health_of(figures: WorkerFigures) -> dict[str, object]:
    """Return the answer of `/healthz` as a JSON-like value."""
    if figures.lanes is None:
        status = "the database does not respond"
    elif not figures.is_alive:
        status = "the lease has expired"
    else:
        status = "draining" if figures.is_draining else "ok"
    lanes = figures.lanes
    return {
        "status": status,
        "worker_id": figures.worker_id,
        "protocol": figures.protocol,
        "heartbeat_age_s": round(figures.heartbeat_age_s, 3),
        "concurrency": figures.concurrency,
        "running": figures.running,
        "started": figures.started,
        "ended": dict(figures.ended),
        "parked": figures.parked,
        "takeovers": figures.takeovers,
        "handed_over": figures.handed_over,
        "queue_depth": None if lanes is None else sum(lane.depth for lane in lanes),
        "oldest_s": None if lanes is None else max((lane.oldest_s for lane in lanes), default=0.0),
    }


def metrics_text(figures: WorkerFigures) -> str:
    """Return the answer of `/metrics`."""
    lanes = [(_labels_of(lane), lane) for lane in figures.lanes or ()]
    facts = {"worker_id": figures.worker_id, "version": figures.version}
    samples: dict[str, Iterable[tuple[Mapping[str, str], float]]] = {
        "worker_info": [(facts, 1)],
        "worker_protocol": [({}, figures.protocol)],
        "worker_concurrency": [({}, figures.concurrency)],
        "worker_draining": [({}, figures.is_draining)],
        "worker_heartbeat_age_seconds": [({}, figures.heartbeat_age_s)],
        "database_up": [({}, figures.lanes is not None)],
        "runs_running": [({}, figures.running)],
        "runs_started_total": [({}, figures.started)],
        "runs_ended_total": [({"status": each}, n) for each, n in sorted(figures.ended.items())],
        "runs_parked_total": [({}, figures.parked)],
        "takeovers_total": [({}, figures.takeovers)],
        "handed_over_total": [({}, figures.handed_over)],
        "queue_depth": [(labels, lane.depth) for labels, lane in lanes],
        "queue_oldest_seconds": [(labels, lane.oldest_s) for labels, lane in lanes],
    }
    lines: list[str] = []
    for name, about in _METRICS.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP soong_agent_{name} {about}", f"# TYPE soong_agent_{name} {kind}"]
        for labels, value in samples[name]:
            shown = ",".join(f'{key}="{text.translate(_ESCAPED)}"' for key, text in labels.items())
            lines.append(f"soong_agent_{name}{f'{{{shown}}}' if shown else ''} {float(value):.15g}")
    return "\n".join((*lines, ""))


def _labels_of(lane: QueueDepth) -> dict[str, str]:
    return {
        "queue": lane.queue,
        "place": lane.place,
        "tenant": lane.tenant or "",
        "protocol": str(lane.protocol),
    }

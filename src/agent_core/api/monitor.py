"""Pages about a worker: `/metrics` in the text format of Prometheus, and `/healthz`."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http import HttpProcessingError
from msgspec import Struct

from agent_core.errors import ConfigError, ErrorCode
from agent_core.types.workers import QueueDepth

_CONTENT_TYPE = "text/plain; version=0.0.4"
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

CLIENT_S = 30.0
"""Seconds that a client may take to send its request and to read the answer."""

MOST_CLIENTS = 64
"""Most clients connected at once: a further one replaces the oldest."""

_ACCEPTED = 64
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
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _OwnErrors(logging.Filter):
    """Logs malformed requests at DEBUG, because anyone who reaches the port can send them."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        if record.levelno > logging.DEBUG:
            client = record.args[0] if isinstance(record.args, tuple) and record.args else "?"
            logger.debug("a request of %s is malformed: %s", client, type(error).__name__)
        return False


logger = logging.getLogger(__name__)
_requests = logger.getChild("requests")
_requests.addFilter(_OwnErrors())


class _Server(web.Server):
    """Limits the number of clients, and the time of each, whatever they send or read."""

    def __init__(self, handler: Handler, *, client_s: float) -> None:
        super().__init__(
            handler,
            access_log=None,
            logger=_requests,
            max_line_size=LINE,
            max_field_size=LINE,
            max_headers=HEADERS,
        )
        self._client_s = client_s
        self._clients: dict[web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._clients) >= MOST_CLIENTS:
            self._close(next(iter(self._clients)))
        end = asyncio.get_running_loop().call_later(self._client_s, self._close, handler)
        self._clients[handler] = transport, end

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        if handler in self._clients:
            self._clients.pop(handler)[1].cancel()
        super().connection_lost(handler, exc)

    def close_all(self) -> None:
        """Close the remaining connections; unread answers are dropped."""
        for handler in tuple(self._clients):
            self._close(handler)

    def _close(self, handler: web.RequestHandler) -> None:
        transport, end = self._clients.pop(handler)
        end.cancel()
        transport.abort()


@asynccontextmanager
async def serve_monitor(
    look: Look, address: str, port: int, *, client_s: float = CLIENT_S
) -> AsyncGenerator[int]:
    """Answer `/metrics` and `/healthz` until the end of the block, and yield the port.

    A connection is closed with its answer.

    Args:
        look: returns the figures.
        address: the address to listen at.
        port: the port to listen at; 0 for a free one.
        client_s: seconds that a client may take.

    Raises:
        ConfigError: the port cannot be used.
    """

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.path not in {"/metrics", "/healthz"}:
            return web.Response(status=404, text="404: the pages are /metrics and /healthz\n")
        if request.method not in {"GET", "HEAD"}:
            return web.Response(status=405, headers={"Allow": "GET,HEAD"})
        figures = await look()
        if request.path == "/healthz":
            status = 200 if figures.is_ready else 503
            return web.json_response(health_of(figures), status=status)
        body = metrics_text(figures).encode()
        return web.Response(body=body, headers={"Content-Type": _CONTENT_TYPE})

    async def answer_once(request: web.BaseRequest) -> web.Response:
        response = await answer(request)
        response.force_close()
        return response

    server = _Server(answer_once, client_s=client_s)
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address, port, backlog=_ACCEPTED).start()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            message = (
                f"the metrics cannot be served at {address} port {port}: {reason};"
                " choose another port, or address"
            )
            raise ConfigError(ErrorCode.CONFIG_ERROR, message) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
        server.close_all()


def health_of(figures: WorkerFigures) -> dict[str, object]:
    """Return the answer of `/healthz` as a JSON-like value."""
    if figures.lanes is None:
        status = "the database does not answer"
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

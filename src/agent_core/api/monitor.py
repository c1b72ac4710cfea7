"""What machines ask of a worker: `/metrics` in the text format of Prometheus, and `/healthz`."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from msgspec import Struct

from agent_core.errors import ConfigError, ErrorCode
from agent_core.types.workers import QueueDepth

_CONTENT_TYPE = "text/plain; version=0.0.4"
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_METRICS = {
    "worker_info": "The worker.",
    "worker_protocol": "Number of the protocol whose runs the worker takes.",
    "worker_concurrency": "How many runs the worker carries out at most at a time.",
    "worker_draining": "Whether the worker takes no more runs.",
    "worker_heartbeat_age_seconds": "Time since the database has taken the last heartbeat.",
    "database_up": "Whether the database answers.",
    "runs_running": "Runs the worker carries out now.",
    "runs_started_total": "Runs the worker has begun.",
    "runs_ended_total": "Runs that have ended in the worker, by status.",
    "takeovers_total": "Runs of dead workers that the worker has gone on with.",
    "handed_over_total": "Runs that the worker has left to others when it was drained.",
    "queue_depth": "Runs that wait for a worker.",
    "queue_oldest_seconds": "How long the oldest of them has waited.",
}
"""Each metric, without its prefix, and what it is."""


class WorkerFigures(Struct, frozen=True, kw_only=True):
    """What a worker has done since it was started, and what it does now.

    Attributes:
        ended: how many runs have ended here, by their status.
        takeovers: how many of the runs it has begun were those of a dead worker.
        handed_over: how many it has left to others when it was drained.
        heartbeat_age_s: since the database has taken its last heartbeat.
        is_alive: that is not so long ago that others may have its runs.
        lanes: what waits, for whichever worker; None: the database does not answer.
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
        """It reaches the database, is known there to be alive, and takes runs."""
        return self.lanes is not None and self.is_alive and not self.is_draining


Look = Callable[[], Awaitable[WorkerFigures]]


@asynccontextmanager
async def serve_monitor(look: Look, address: str, port: int) -> AsyncGenerator[int]:
    """Answer `/metrics` and `/healthz` until the end of the block, and yield the port.

    Args:
        look: gets the figures.
        address: which to listen at.
        port: 0 is a free one.

    Raises:
        ConfigError: the port cannot be had.
    """

    async def metrics(_: web.Request) -> web.Response:
        body = metrics_text(await look())
        return web.Response(body=body.encode(), headers={"Content-Type": _CONTENT_TYPE})

    async def health(_: web.Request) -> web.Response:
        figures = await look()
        return web.json_response(health_of(figures), status=200 if figures.is_ready else 503)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", health)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address, port).start()
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


def health_of(figures: WorkerFigures) -> dict[str, object]:
    """The answer of `/healthz`, as JSON has it."""
    if figures.lanes is None:
        status = "the database does not answer"
    elif not figures.is_alive:
        status = "the lease is over"
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
    """The answer of `/metrics`."""
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

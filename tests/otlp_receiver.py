"""A collector on a real socket: takes OTLP over HTTP, and shows spans and metrics as plain data.

with OtlpReceiver.open() as receiver:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    ...
    assert receiver.tree() == ["invoke_agent main", "  chat m"]
"""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

KINDS = {1: "internal", 2: "server", 3: "client"}
STATUS = {0: "unset", 1: "ok", 2: "error"}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened within a span."""

    name: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span as it came in."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    started: int
    ended: int
    status: str
    message: str
    attributes: dict[str, Any]
    events: list[Event]
    resource: dict[str, Any]
    scope: str


@dataclass(frozen=True, slots=True)
class Point:
    """What one set of attributes has added up to; of a histogram."""

    name: str
    unit: str
    attributes: dict[str, Any]
    count: int
    sum: float
    bounds: list[float]


@dataclass
class OtlpReceiver:
    """What has come in so far."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list[ReceivedSpan])
    points: list[Point] = field(default_factory=list[Point])
    bodies: list[bytes] = field(default_factory=list[bytes])

    @classmethod
    @contextmanager
    def open(cls, *, status: int = 200, delay_s: float = 0) -> "Generator[OtlpReceiver]":
        """Listen on loopback; answers come with this status, after this time."""
        leaving = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                leaving.wait(delay_s)
                if status == 200:
                    receiver.take(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                """Keep the output of tests clean."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        receiver = cls(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            leaving.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def take(self, path: str, body: bytes) -> None:
        """Decode a request."""
        self.bodies.append(body)
        if path == "/v1/traces":
            self.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
        elif path == "/v1/metrics":
            self.points.extend(_points(ExportMetricsServiceRequest.FromString(body)))

    def named(self, name: str) -> ReceivedSpan:
        """The only span of this name."""
        [span] = [span for span in self.spans if span.name == name]
        return span

    def children(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        """What lies below a span, in the order of the beginnings."""
        below = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(below, key=lambda span: span.started)

    def roots(self) -> list[ReceivedSpan]:
        """Spans whose parent has not come in."""
        known = {span.span_id for span in self.spans}
        return sorted(
            (span for span in self.spans if span.parent_id not in known),
            key=lambda span: span.started,
        )

    def tree(self) -> list[str]:
        """The names of all spans, indented below their parents."""

        def lines(span: ReceivedSpan, depth: int) -> Iterator[str]:
            yield "  " * depth + span.name
            for child in self.children(span):
                yield from lines(child, depth + 1)

        return [line for root in self.roots() for line in lines(root, 0)]

    def measured(self, name: str) -> list[Point]:
        """The points of a metric."""
        return [point for point in self.points if point.name == name]


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for group in request.resource_spans:
        resource = _plain(group.resource.attributes)
        for scoped in group.scope_spans:
            for span in scoped.spans:
                yield ReceivedSpan(
                    name=span.name,
                    kind=KINDS[span.kind],
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    started=span.start_time_unix_nano,
                    ended=span.end_time_unix_nano,
                    status=STATUS[span.status.code],
                    message=span.status.message,
                    attributes=_plain(span.attributes),
                    events=[Event(each.name, _plain(each.attributes)) for each in span.events],
                    resource=resource,
                    scope=scoped.scope.name,
                )


def _points(request: ExportMetricsServiceRequest) -> Iterator[Point]:
    for group in request.resource_metrics:
        for scoped in group.scope_metrics:
            for metric in scoped.metrics:
                for point in metric.histogram.data_points:
                    yield Point(
                        name=metric.name,
                        unit=metric.unit,
                        attributes=_plain(point.attributes),
                        count=point.count,
                        sum=point.sum,
                        bounds=list(point.explicit_bounds),
                    )


def _plain(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None

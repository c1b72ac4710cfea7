"""Exporters that the environment asks for, closed within a bounded time."""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agent_core.config.proxies import is_on_this_machine
from agent_core.loading import installed_version
from agent_core.telemetry.spans import Telemetry
from agent_core.text import shortened

logger = logging.getLogger(__name__)

_CLOSE_MS = 2000.0
"""Milliseconds for the last export, unless OTEL_BSP_EXPORT_TIMEOUT sets them."""

_SERVICE = "soong-agent"
_MOST_CHARS = 300
_OFF = "or set OTEL_SDK_DISABLED=true"
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_GRPC = "opentelemetry-exporter-otlp-proto-grpc"
_CREDENTIALS = "OTEL_PYTHON_EXPORTER_{}_CREDENTIAL_PROVIDER"
_CARRIED = ("traceparent", "tracestate")


def open_exporters(signals: Iterable[str], environ: Mapping[str, str]) -> Telemetry | None:
    """Open the exporters that the environment asks for; None, with one warning, if that fails.

    A run must not fail because its traces go nowhere: such variables are often set for all
    programs.
    """
    try:
        return ExportingTelemetry(frozenset(signals), environ)
    except ImportError as error:
        from agent_core.installation import (  # noqa: PLC0415 - rarely missing
            extra_command,
            package_command,
        )

        logger.warning(
            "OTEL_* variables ask for traces or metrics, and %s is missing for that: %s, %s",
            error.name,
            package_command(_GRPC) if error.name == _GRPC else extra_command("otel"),
            _OFF,
        )
    except Exception as error:  # noqa: BLE001 - any exporter may raise anything for a variable
        logger.warning("no traces or metrics: %s; correct the OTEL_* variables, %s", error, _OFF)
    return None


class ExportingTelemetry(Telemetry):
    """Telemetry with its own providers, made according to the environment.

    Args:
        signals: `traces`, `metrics`.
        environ: its `TRACEPARENT` and `TRACESTATE` name the parent span of runs.

    Raises:
        ImportError: a package is missing.
        Exception: an exporter cannot use a variable.
    """

    def __init__(self, signals: frozenset[str], environ: Mapping[str, str]) -> None:
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - of the extra
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.resources import (  # noqa: PLC0415
            SERVICE_NAME,
            SERVICE_VERSION,
            Resource,
        )
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: _SERVICE}))
        if SERVICE_VERSION not in resource.attributes and (version := installed_version()):
            resource = resource.merge(Resource({SERVICE_VERSION: version}))
        made = {signal: _exporters(signal, environ) for signal in signals}
        self._shutdowns: list[Callable[[], None]] = []
        tracers: trace.TracerProvider = trace.NoOpTracerProvider()
        meters: metrics.MeterProvider = metrics.NoOpMeterProvider()
        if exporters := made.get("traces"):
            tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
            for exporter in exporters:
                tracers.add_span_processor(BatchSpanProcessor(exporter))
            self._shutdowns.append(tracers.shutdown)
        if exporters := made.get("metrics"):
            readers = [PeriodicExportingMetricReader(exporter) for exporter in exporters]
            meters = MeterProvider(readers, resource, shutdown_on_exit=False)
            self._shutdowns.append(meters.shutdown)
        caller = {name: environ[name.upper()] for name in _CARRIED if name.upper() in environ}
        parent = TraceContextTextMapPropagator().extract(caller, Context())
        super().__init__(tracers, meters, parent=parent)
        self._close_s = _close_ms(environ) / 1000
        self._log = _FirstFailure()
        self._log.begin()

    async def close(self) -> None:
        """Send the remaining data until the time limit, or until an exporter has failed."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        at_work = list(self._shutdowns)
        if not at_work:
            self._log.end()
            return

        def stop_waiting() -> None:
            with suppress(RuntimeError):  # the loop is closed: too late
                loop.call_soon_threadsafe(done.set)

        def shut_down(step: Callable[[], None]) -> None:
            with suppress(Exception):  # of an exporter that the user chose
                step()
            at_work.remove(step)
            if not at_work:
                self._log.end()
                stop_waiting()

        self._log.on_failure = stop_waiting
        # Daemon threads: the process does not wait for them at its end.
        for step in self._shutdowns:
            threading.Thread(target=shut_down, args=(step,), daemon=True).start()
        try:
            async with asyncio.timeout(self._close_s):
                await done.wait()
        except TimeoutError:
            self._log.show(f"not everything was taken within {self._close_s:g} s; the rest is lost")


class _FirstFailure(logging.Handler):
    """Shows the first failure that OpenTelemetry logs, and no later one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.on_failure: Callable[[], None] = lambda: None
        self._source = logging.getLogger("opentelemetry")
        self._has_shown = False

    def begin(self) -> None:
        """Handle its log records from now on, instead of the program's own handlers."""
        self._source.propagate = False
        self._source.addHandler(self)

    def end(self) -> None:
        """Return them to the program's handlers, unless another runtime still exports."""
        self._source.removeHandler(self)
        if not any(isinstance(handler, _FirstFailure) for handler in self._source.handlers):
            self._source.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        self.show(record.getMessage())
        self.on_failure()

    def show(self, what: str) -> None:
        """Log a failure, if it is the first."""
        if not self._has_shown:
            self._has_shown = True
            reason = shortened(what, _MOST_CHARS)
            logger.warning("traces or metrics are not exported: %s", reason)


def _exporters(signal: str, environ: Mapping[str, str]) -> list[Any]:
    """Create the exporters that the environment names for a signal.

    Raises:
        ImportError: the package of an exporter is missing.
        ValueError: an exporter's name is unknown.
    """
    named = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() or "otlp"
    made: list[Any] = []
    for name in (part.strip().lower() for part in named.split(",")):
        if name == "otlp":
            variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
            if not environ.get(variable, "").strip():
                variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
            protocol = environ.get(variable, "").strip() or "http/protobuf"
            if protocol not in _PROTOCOLS:
                raise ValueError(f"{variable} is {protocol!r}; it may be {', '.join(_PROTOCOLS)}")
            name = _PROTOCOLS[protocol]
        if name not in {"", "none"}:
            made.append(_exporter(signal, name, environ))
    return made


def _session(signal: str, environ: Mapping[str, str]) -> Any:
    """Return the session of an HTTP exporter; None if the environment names one that signs in."""
    own = (_CREDENTIALS.format("OTLP_HTTP"), _CREDENTIALS.format(f"OTLP_HTTP_{signal.upper()}"))
    if any(environ.get(name) for name in own):
        return None
    from agent_core.telemetry.exporting import ExportSession  # noqa: PLC0415 - of the extra

    return ExportSession()


def _exporter(signal: str, name: str, environ: Mapping[str, str]) -> Any:
    if name == "otlp_proto_http":  # searching the installed packages takes a while
        if signal == "traces":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )

            return OTLPSpanExporter(session=_session(signal, environ))
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
            OTLPMetricExporter,
        )

        return OTLPMetricExporter(session=_session(signal, environ))
    for point in entry_points(group=f"opentelemetry_{signal}_exporter", name=name):
        # Standard output belongs to the answer.
        return point.load()(out=sys.stderr) if name == "console" else point.load()()
    if name == "otlp_proto_grpc":
        raise ModuleNotFoundError(name=_GRPC)
    raise ValueError(f"there is no exporter {name!r} for {signal}; otlp, console or none")


def _close_ms(environ: Mapping[str, str]) -> float:
    with suppress(KeyError, ValueError):
        return max(0.0, float(environ["OTEL_BSP_EXPORT_TIMEOUT"]))
    return _CLOSE_MS


class ExportSession(requests.Session):
    """A session that uses no proxy for this machine and follows no redirect to another origin.

    The headers of exports often hold a key.
    """

    def merge_environment_settings(self, url: Any, *settings: Any, **named: Any) -> Any:
        """Return the settings of a request, without proxies if it stays on this machine."""
        merged = super().merge_environment_settings(url, *settings, **named)
        return {**merged, "proxies": {}} if is_on_this_machine(str(url)) else merged

    def rebuild_proxies(self, prepared_request: Any, proxies: Any) -> Any:
        """Return the proxies for a redirected request."""
        if is_on_this_machine(str(prepared_request.url)):
            return {}
        return super().rebuild_proxies(prepared_request, proxies)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the target of a redirect within the response's origin, or None."""
        target = super().get_redirect_target(resp)
        if target is None:
            return None
        parts, here = urlsplit(target), urlsplit(str(resp.url))
        is_same = not parts.netloc or (parts.scheme, parts.netloc) == (here.scheme, here.netloc)
        return target if is_same else None

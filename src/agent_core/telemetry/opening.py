"""Decides if runs are recorded; everything else is loaded only if they are."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from agent_core.telemetry.spans import Telemetry

_FALSE = {"", "none"}


def open_telemetry(
    given: "Telemetry | Literal[False] | None", environ: Mapping[str, str]
) -> "Telemetry | None":
    """Return the telemetry of a runtime; None, with nothing loaded, if it has none.

    Args:
        given: the program's choice: False for none; None for a tracer provider that the program has
          set for the whole process, or else the exporters of the environment.
        environ: its `OTEL_*` variables configure exports, if one of them asks for that.
    """
    if given is False or _is_disabled(environ):
        return None
    if given is not None:
        return given
    if (telemetry := telemetry_of_program(environ)) is not None:
        return telemetry
    signals = [signal for signal in ("traces", "metrics") if is_asked_for(signal, environ)]
    if not signals:
        return None
    from agent_core.telemetry.exporting import open_exporters  # noqa: PLC0415

    return open_exporters(signals, environ)


def telemetry_of_program(environ: Mapping[str, str]) -> "Telemetry | None":
    """Return telemetry with the process's own tracer provider; None if the program set none."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    if _is_disabled(environ):
        return None
    from agent_core.telemetry.spans import Telemetry  # noqa: PLC0415 - few programs trace

    return Telemetry()


def _is_disabled(environ: Mapping[str, str]) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def is_asked_for(signal: str, environ: Mapping[str, str]) -> bool:
    """Return whether the environment wants `traces`, or `metrics`, to be exported."""
    exporter = environ.get(f"OTEL_{signal.upper()}_EXPORTER")
    if exporter is not None and exporter.strip():
        return exporter.strip().lower() not in _FALSE
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return any(environ.get(name, "").strip() for name in endpoints)

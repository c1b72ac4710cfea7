"""Whether runs are recorded; whatever else that needs is loaded only if they are."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from agent_core.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from agent_core.telemetry.spans import Telemetry

_FALSE = {"", "none"}


def open_telemetry(
    given: "Telemetry | Literal[False] | None", environ: Mapping[str, str]
) -> "Telemetry | None":
    """What records the runs of a runtime; None: nothing does, and nothing was loaded for it.

    Args:
        given: by the program: False keeps it off, None leaves it to the rest: a tracer provider
            that the program has set for the whole process, else the environment.
        environ: exports are made as its `OTEL_*` variables say, if one of them asks for that.

    Raises:
        ConfigError: what is given is none of these.
    """
    if given is False or _is_disabled(environ):
        return None
    if given is not None:
        from agent_core.telemetry.spans import Telemetry  # noqa: PLC0415 - few programs trace

        if not isinstance(given, Telemetry):  # pyright: ignore[reportUnnecessaryIsInstance]
            message = f"telemetry is a Telemetry, False or None, not a {type(given).__name__}"
            raise ConfigError(ErrorCode.CONFIG_ERROR, message)
        return given
    if (telemetry := telemetry_of_program(environ)) is not None:
        return telemetry
    signals = [signal for signal in ("traces", "metrics") if is_asked_for(signal, environ)]
    if not signals:
        return None
    from agent_core.telemetry.exporting import open_exporters  # noqa: PLC0415

    return open_exporters(signals, environ)


def telemetry_of_program(environ: Mapping[str, str]) -> "Telemetry | None":
    """What the program has set up for the whole process; None, and nothing loaded: it has not."""
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
    """Whether the environment wants `traces`, or `metrics`, to be exported."""
    exporter = environ.get(f"OTEL_{signal.upper()}_EXPORTER")
    if exporter is not None and exporter.strip():
        return exporter.strip().lower() not in _FALSE
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return any(environ.get(name, "").strip() for name in endpoints)

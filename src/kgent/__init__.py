"""kgent: one YAML profile in, one auditable run folder out."""

from kgent.config.loader import fingerprint_config, load_config
from kgent.config.models import KgentConfig
from kgent.errors import ErrorCategory, ErrorInfo, KgentError
from kgent.runtime.options import RunOptions, RunResult
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus

__all__ = [
    "ErrorCategory",
    "ErrorInfo",
    "KgentConfig",
    "KgentError",
    "RunOptions",
    "RunResult",
    "RunStatus",
    "fingerprint_config",
    "load_config",
    "run",
]

"""kgent: one YAML profile in, one auditable run folder out."""

from kgent.config import KgentConfig
from kgent.errors import ErrorCategory, ErrorInfo, KgentError
from kgent.profile import fingerprint_config, load_config
from kgent.runner import run
from kgent.state import RunFolderStatus as RunStatus, RunOptions, RunResult

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

"""kgent: runs one YAML profile and writes one auditable run folder.

Names are imported when they are first used, so that `import kgent` itself is fast.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgent.config.loader import fingerprint_config, load_config
    from kgent.config.models import KgentConfig
    from kgent.errors import ErrorCategory, ErrorInfo, KgentError
    from kgent.runtime.options import RunOptions, RunResult
    from kgent.runtime.runner import run, run_async
    from kgent.runtime.state import RunStatus
else:
    from agent_core.loading import lazy_names

_HOMES = {
    "ErrorCategory": "kgent.errors",
    "ErrorInfo": "kgent.errors",
    "KgentConfig": "kgent.config.models",
    "KgentError": "kgent.errors",
    "RunStatus": "kgent.runtime.state",
    "RunOptions": "kgent.runtime.options",
    "RunResult": "kgent.runtime.options",
    "fingerprint_config": "kgent.config.loader",
    "load_config": "kgent.config.loader",
    "run": "kgent.runtime.runner",
    "run_async": "kgent.runtime.runner",
}

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
    "run_async",
]


if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)

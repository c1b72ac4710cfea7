"""kgent: runs one YAML profile and writes one auditable run folder.

Names are imported when they are first used, so that `import kgent` itself is fast.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgent.config import KgentConfig
    from kgent.errors import ErrorCategory, ErrorInfo, KgentError
    from kgent.profile import fingerprint_config, load_config
    from kgent.runner import run
    from kgent.state import (
        RunFolderResult as RunResult,
        RunFolderStatus as RunStatus,
        RunOverrides as RunOptions,
    )
else:
    from agent_core.loading import lazy_names

_HOMES = {
    "ErrorCategory": "kgent.errors",
    "ErrorInfo": "kgent.errors",
    "KgentConfig": "kgent.config",
    "KgentError": "kgent.errors",
    "RunStatus": "kgent.state:RunFolderStatus",
    "RunOptions": "kgent.state:RunOverrides",
    "RunResult": "kgent.state:RunFolderResult",
    "fingerprint_config": "kgent.profile",
    "load_config": "kgent.profile",
    "run": "kgent.runner",
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
]


if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)

"""kgent: one YAML profile in, one auditable run folder out.

Names are imported when they are first used, so that `import kgent` itself costs nothing.
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
    from importlib import import_module

_HOMES = {
    "ErrorCategory": "kgent.errors.ErrorCategory",
    "ErrorInfo": "kgent.errors.ErrorInfo",
    "KgentConfig": "kgent.config.KgentConfig",
    "KgentError": "kgent.errors.KgentError",
    "RunStatus": "kgent.state.RunFolderStatus",
    "RunOptions": "kgent.state.RunOverrides",
    "RunResult": "kgent.state.RunFolderResult",
    "fingerprint_config": "kgent.profile.fingerprint_config",
    "load_config": "kgent.profile.load_config",
    "run": "kgent.runner.run",
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


if not TYPE_CHECKING:  # a checker would take any name for one of these

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _HOMES[name].rpartition(".")
        value = globals()[name] = getattr(import_module(module), attribute)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)

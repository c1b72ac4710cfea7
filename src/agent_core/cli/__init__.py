"""The command line. Modules are imported only once the command is known."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from agent_core.loading import require_platform

_PLUGINS = "pydantic.plugin._loader"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `soong-agent` with these arguments (default: the process's) and return its exit code.

    0: the run completed; 1: it failed; 2: wrong usage or configuration; 130: interrupted.
    """
    try:
        require_platform("soong-agent")
    except ImportError as error:
        print(error, file=sys.stderr)
        return 2
    if argv is None and os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__") == "__all__":
        _find_no_plugins()
    from agent_core.cli.command import execute  # noqa: PLC0415 - importing a name must be free

    code = execute(argv)
    if argv is None:
        gc.freeze()  # the process ends: looking for garbage once more would delay that
    return code


def _find_no_plugins() -> None:
    """Keep pydantic from importing what it would look for plugins with, to find none.

    Its `importlib.metadata` takes a twentieth of a run's start. Any name but that of the search is
    taken from the module itself.
    """

    def load(name: str) -> object:
        if name.startswith("__"):  # an import asks for `__path__`
            raise AttributeError(name)
        sys.modules.pop(_PLUGINS, None)
        return getattr(import_module(_PLUGINS), name)

    finder = ModuleType(_PLUGINS)
    vars(finder).update(get_plugins=tuple, __getattr__=load)
    sys.modules[_PLUGINS] = finder

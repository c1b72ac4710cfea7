"""The command line. Modules are imported only once the command is known."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from threading import Lock
from types import ModuleType

from agent_core.loading import require_platform

_PLUGINS = "pydantic.plugin._loader"
_SCHEMAS = "pydantic_core.core_schema"


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
        _load_when_used(_SCHEMAS, _load_schemas)
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
    _load_when_used(_PLUGINS, lambda: import_module(_PLUGINS), get_plugins=tuple)


def _load_when_used(name: str, load: Callable[[], object], **known: object) -> None:
    """Put an empty module in place of one that `load` loads with the first unknown name of it."""

    def find(wanted: str) -> object:
        if wanted.startswith("__"):  # an import asks for `__path__`
            raise AttributeError(wanted)
        with first:
            is_first = sys.modules.get(name) is empty
            if is_first:
                del sys.modules[name]
        if is_first:
            load()
        return getattr(import_module(name), wanted)  # waits while another thread loads it

    empty, first = ModuleType(name), Lock()
    vars(empty).update(known, __getattr__=find)
    sys.modules[name] = empty


def _load_schemas() -> None:
    """Load the module that has types for pydantic's schemas, without the fields of these types.

    They are read by type checkers only; `TypedDict` compiles 600 annotations for them, which takes
    a twentieth of a run's start.
    """
    import typing  # noqa: PLC0415 - slow to import, like the next one

    import typing_extensions  # noqa: PLC0415

    class Fields(dict[str, object]):
        def __init_subclass__(cls, *, total: bool = True) -> None: ...

    places = [typing.__dict__, typing_extensions.__dict__]  # pydantic takes it from one of them
    kept = [place["TypedDict"] for place in places]
    try:
        for place in places:
            place["TypedDict"] = Fields
        import_module(_SCHEMAS)
    finally:
        for place, before in zip(places, kept, strict=True):
            place["TypedDict"] = before

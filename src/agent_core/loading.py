"""Modules that are loaded when they are first needed, and the installed version."""

import gc
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module

_RECORDS, _END_OF_RECORDS = "soong_agent-", ".dist-info"
"""The name of the folder of an installation begins and ends with this."""


@cache  # it reads folders, and a process keeps the version that it was started with
def installed_version() -> str | None:
    """Return the version of the three packages; None if they are not installed.

    It is in the name of the folder that an installer has written beside the packages, and
    `importlib.metadata` is slow to import.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 - so is `pathlib`
        except OSError:  # an archive, or nothing
            continue
        for name in names:
            if name.startswith(_RECORDS) and name.endswith(_END_OF_RECORDS):
                return name[len(_RECORDS) : -len(_END_OF_RECORDS)]
    return None


def require_platform(program: str) -> None:
    """Check that this system can run the program.

    Raises:
        ImportError: it cannot; the message says what can be done.
    """
    if sys.platform == "win32":
        raise ImportError(f"{program} does not run on Windows; install it in WSL 2, as on Linux")


@contextmanager
def without_collection() -> Generator[None]:
    """Pause garbage collection while modules are loaded, because nearly all their objects stay.

    Collecting them repeatedly takes a twelfth of the time to the first answer. At the end they
    count as old, so that the next collection of young objects ignores them. Where no module was
    loaded, nothing is done: asking for frozen objects takes as long as there are many.
    """
    was_enabled = gc.isenabled()
    modules = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            has_loaded = len(sys.modules) != modules
            if has_loaded and not gc.get_freeze_count():  # the program's frozen objects stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` for a package that imports its names when they are first used.

    Args:
        package: its name.
        homes: the module of each name; `module:attribute` if it has another name there.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        require_platform(package)
        module, _, attribute = homes[name].partition(":")
        with without_collection():
            home = import_module(module)
        value = getattr(home, attribute or name)
        setattr(sys.modules[package], name, value)
        return value

    return load

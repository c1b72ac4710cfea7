"""Modules that are loaded when they are first needed, and the version they came in."""

import gc
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module


def installed_version() -> str | None:
    """The version of the three packages; None where they are not installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow to import

    try:
        return version("soong-agent")
    except PackageNotFoundError:
        return None


def require_platform(program: str) -> None:
    """Check that this system can run the program at all.

    Raises:
        ImportError: it cannot. Says what can be done.
    """
    if sys.platform == "win32":
        raise ImportError(f"{program} does not run on Windows; install it in WSL 2, as on Linux")


@contextmanager
def without_collection() -> Generator[None]:
    """Collect no garbage while modules are loaded: what they make stays, and there is much of it.

    Looking through it again and again takes a twelfth of the time to the first answer. At the end
    it counts as old, so that the next look at what is young does not take it in either.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # what the program has frozen stays frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package that imports its names when they are first used.

    Args:
        package: its name.
        homes: by name, the module that has it; `module:attribute` where it is called otherwise.
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

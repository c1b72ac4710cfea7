"""Modules that are loaded when they are first needed."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Generator[None]:
    """Collect no garbage while modules are loaded: what they make stays, and there is much of it.

    Looking through it again and again takes a twelfth of the time to the first answer.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""Modules that are loaded when they are first needed."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


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

"""The CPU time of a piece of work beside a yardstick that is measured in the same moment."""

import gc
from collections.abc import Callable
from time import process_time

TIMES = 7


def relative_cost(work: Callable[[], object], yardstick: Callable[[], object]) -> float:
    """Return how many times as much CPU `work` takes as `yardstick`: the quickest of both count.

    The two take turns, so that a machine that is slow for a while is slow for both. The garbage
    collector waits: what it takes depends on everything else that is alive in the process.
    """
    spent: tuple[list[float], list[float]] = ([], [])
    gc.disable()
    try:
        for _ in range(TIMES):
            for call, times in zip((work, yardstick), spent, strict=True):
                started = process_time()
                call()
                times.append(process_time() - started)
    finally:
        gc.enable()
    return min(spent[0]) / min(spent[1])

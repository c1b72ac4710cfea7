"""Hypothesis with the suite's depth: the same examples every time, many in the whole suite."""

from collections.abc import Callable
from time import process_time
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy, tuples

from faults.depth import Depth, Tally

SECONDS = 2.0
"""More processor time than this for one example of a few kilobytes is a stall."""


def fuzz(
    tally: Tally, size: Depth, check: Callable[..., object], *strategies: SearchStrategy[Any]
) -> None:
    """Check examples; whatever escapes from `check`, and whatever takes too long, is a failure."""

    def timed(example: tuple[Any, ...]) -> None:
        tally.counts["tried"] += 1
        began = process_time()
        check(*example)
        assert process_time() - began < SECONDS

    chosen = settings(
        max_examples=size.some(2000, 60),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    try:
        chosen(given(tuples(*strategies))(timed))()
    except Exception:
        tally.counts["failed"] += 1
        raise

"""How much of a long table `make test` tries; `make test-all` tries all of it.

A test that only repeats what others prove, with more combinations, is marked `sweep`, and runs with
`pytest --whole` alone. A table of cases that share one cause is cut to a sample by `sampled`.
"""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

_is_whole = False


def try_all() -> None:
    """Try everything from now on; called before the tests are collected."""
    global _is_whole
    _is_whole = True


def is_whole() -> bool:
    """Whether everything is tried, or a sample."""
    return _is_whole


def examples(whole: int) -> int:
    """Return how many examples of a property to try: these with `--whole`, otherwise a fifth."""
    return whole if _is_whole else max(whole // 5, 5)


def sampled(cases: Iterable[T], keep: int) -> list[T]:
    """Return all cases with `--whole`, and otherwise `keep` of them, evenly spread."""
    every = list(cases)
    if _is_whole or keep >= len(every):
        return every
    return [every[(2 * index + 1) * len(every) // (2 * keep)] for index in range(keep)]

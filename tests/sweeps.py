"""How much of a long table `make test` tries; `make test-all` tries all of it.

A test that only repeats what others prove, with more combinations, is marked `sweep`, and runs with
`pytest --whole` alone. A table of cases that share one cause is cut to a sample by `sampled`, and
two tables that are multiplied to a few of their pairs by `paired`. Where many tests go through one
list, such as that of the providers, `turned` gives each test one entry of it.
"""

from collections.abc import Iterable
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")
U = TypeVar("U")

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


def paired(first: Iterable[T], second: Iterable[U]) -> list[tuple[T, U]]:
    """Return each pair with `--whole`, and otherwise as few as have every value of both tables."""
    ones, others = list(first), list(second)
    if _is_whole:
        return [(one, other) for one in ones for other in others]
    count = max(len(ones), len(others))
    return [(ones[index % len(ones)], others[index % len(others)]) for index in range(count)]


def kept(cases: Iterable[T], *chosen: T) -> list[T]:
    """Return all cases with `--whole`, and otherwise the chosen ones, which must be among them."""
    every = list(cases)
    assert not (unknown := [each for each in chosen if each not in every]), unknown
    return every if _is_whole else [*chosen]


def turned(cases: Iterable[T], test: str) -> list[T]:
    """Return all cases with `--whole`, and otherwise one, a different one for other tests.

    So each case is tried by some of the tests that all of them share.
    """
    every = list(cases)
    return every if _is_whole else [every[crc32(test.encode()) % len(every)]]


def sampled(cases: Iterable[T], keep: int) -> list[T]:
    """Return all cases with `--whole`, and otherwise `keep` of them, evenly spread."""
    every = list(cases)
    if _is_whole or keep >= len(every):
        return every
    return [every[(2 * index + 1) * len(every) // (2 * keep)] for index in range(keep)]

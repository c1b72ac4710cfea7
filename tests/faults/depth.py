"""How much the suite tries, and the count of what it tried."""

import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count as counting
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

PROPERTY = "faults"
"""Where a test's report carries its count."""

PARTS = 4
"""Into how many tests a whole sweep is split, so that they can run beside each other."""


@dataclass(frozen=True)
class Depth:
    """Which points of a sweep are tried.

    Attributes:
        is_whole: all of them, or a sample that takes seconds.
        part: of a whole sweep, which of its `PARTS`.
    """

    is_whole: bool
    part: int = 0

    def points(self, *sample: int, stride: int = 1) -> Iterator[int]:
        """1, 2, 3 … without end, `stride` apart, or the sample."""
        return counting(1 + self.part * stride, PARTS * stride) if self.is_whole else iter(sample)

    def some(self, whole: int, sample: int) -> int:
        """A size: for the whole suite, or for the sample."""
        return whole if self.is_whole else sample

    def of(self, cases: Iterable[T], sample: int) -> list[T]:
        """This part's share of the cases, or so many of them, evenly spread."""
        every = list(cases)
        if self.is_whole:
            return every[self.part :: PARTS]
        stride = max(1, len(every) // sample)
        return every[stride // 2 :: stride][:sample]


@dataclass
class Tally:
    """Counts cases and keeps what failed, so that one failure does not hide the next.

    Attributes:
        counts: `tried` and `failed`, where the table finds them.
    """

    group: str
    counts: dict[str, int]
    failures: list[tuple[str, Exception]] = field(default_factory=list[tuple[str, Exception]])

    def sweep(self, cases: Iterable[T], check: Callable[[T], bool | None]) -> int:
        """Check case after case, until there are no more or a check returns False; how many."""
        count = 0
        for case in cases:
            if self.try_case(str(case), partial(check, case)) is False:
                break
            count += 1
        self.verdict()
        return count

    def try_case(self, name: str, check: Callable[[], bool | None]) -> bool | None:
        """Check one case; a failure is kept for the verdict."""
        with self.case(name):
            return check()
        return None

    @contextmanager
    def case(self, name: str) -> Generator[None]:
        """A case; a failure in the block is kept for the verdict."""
        self.counts["tried"] += 1
        try:
            yield
        except Exception as error:  # noqa: BLE001 - told by the verdict
            self.counts["failed"] += 1
            self.failures.append((name, error))
            if len(self.failures) >= _ENOUGH:
                self.verdict()

    def verdict(self) -> None:
        """Fail if a case did."""
        if self.failures:
            told = "\n".join(f"== {name}\n{_told(error)}" for name, error in self.failures)
            pytest.fail(f"{self.group}: {len(self.failures)} failed\n{told}", pytrace=False)


_ENOUGH = 8


def _told(error: Exception) -> str:
    """The error, and the last place in the suite that it came from."""
    here = Path(__file__).parent
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent == here
    ]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    notes = "\n".join(getattr(error, "__notes__", ()))
    return f"{place} {type(error).__name__}: {str(error)[:2000]}\n{notes}"


def table(reports: Iterable[pytest.TestReport]) -> list[str]:
    """What was tried and what held, a line for each group."""
    rows: dict[str, list[int]] = {}
    skipped: dict[str, str] = {}
    for report in reports:
        facts: dict[str, Any] = dict(report.user_properties)
        if PROPERTY not in facts or not (report.when == "call" or report.skipped):
            continue
        group, counts = facts[PROPERTY]
        row = rows.setdefault(group, [0, 0])
        row[0] += counts["tried"]
        row[1] += counts["tried"] - counts["failed"]
        if report.skipped and isinstance(report.longrepr, tuple):
            skipped[group] = report.longrepr[2].removeprefix("Skipped: ")
    lines = [f"{'what':<44} {'tried':>6} {'held':>6}"]
    for group, (tried, held) in sorted(rows.items()):
        lines.append(f"{group:<44} {tried:>6} {held:>6}  {skipped.get(group, '')}".rstrip())
    return lines

"""The guard of what a run costs beside a bare loop: when it fails, and what it says."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.checked

BENCH = Path(__file__).parents[3] / "bench"


class Measured:
    """Stands for both sides: `costs` are ours, one for each time that a scenario is measured."""

    def __init__(self, *costs: float) -> None:
        self._costs = iter(costs)
        self.samples: list[int] = []

    def beside_limit(self, _scenario: str, _figure: str, runs: int) -> tuple[float, float]:
        self.samples.append(runs)
        return next(self._costs), 1.0


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[[Measured], list[str]]:
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    for name in ("bench", "guard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    guard: Any = __import__("guard")
    monkeypatch.setattr(guard, "BOUNDS", {"cold": ("cpu_ms", 2.0, "the start", "types/")})

    def run(measured: Measured) -> list[str]:
        found: Iterator[str] = guard.check(measured, ["cold"], 3)
        return list(found)

    return run


def test_a_ratio_within_its_bound_is_measured_once(
    check: Callable[[Measured], list[str]],
) -> None:
    measured = Measured(1.9)

    assert check(measured) == []
    assert measured.samples == [3]


def test_a_ratio_that_was_only_disturbed_passes_the_second_time(
    check: Callable[[Measured], list[str]],
) -> None:
    measured = Measured(2.1, 1.9)

    assert check(measured) == []
    assert measured.samples == [3, 9]


def test_a_ratio_that_stays_too_high_is_explained(
    check: Callable[[Measured], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (failure,) = check(Measured(2.3, 2.2))

    assert "the start: 2.20 ms of CPU, the bare loop 1.00: 2.20 times, more than 2.0" in failure
    assert "types/" in failure
    assert "(at most 2.0)" in capsys.readouterr().out

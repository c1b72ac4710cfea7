"""The frame of the fault suite: how much is tried, and the table of what held."""

import pytest

import sweeps
from faults import injection
from faults.depth import PARTS, PROPERTY, Depth, Tally, table


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A sweep is one test in the short part, and `PARTS` tests in the whole suite."""
    if "depth" in metafunc.fixturenames:
        is_whole = sweeps.is_whole()
        depths = [Depth(is_whole, part) for part in range(PARTS if is_whole else 1)]
        metafunc.parametrize("depth", depths, ids=[f"part{depth.part}" for depth in depths])


@pytest.fixture
def size() -> Depth:
    """The depth of a test that is not split into parts."""
    return Depth(sweeps.is_whole())


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Counts the cases of a test for the table."""
    item: pytest.Item = request.node
    mark = item.get_closest_marker("faults")
    assert mark is not None, "a test with a tally says in its mark what it tries"
    made = Tally(str(mark.args[0]), {"tried": 0, "failed": 0})
    item.user_properties.append((PROPERTY, (made.group, made.counts)))
    return made


@pytest.fixture
def strace(tally: Tally) -> None:
    """Skips where no fault can be injected into system calls."""
    if reason := injection.reason_to_skip():
        pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats.values()
    reports = [each for group in stats for each in group if isinstance(each, pytest.TestReport)]
    if len(lines := table(reports)) > 1:
        terminalreporter.section("faults tried")
        for line in lines:
            terminalreporter.line(line)

"""A test of a whole table tries every case and names those that fail."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tables
from tables import together

pytestmark = pytest.mark.checked


def failures(test: Callable[[], None]) -> list[list[str]]:
    """Return the notes of each failure of a joined test."""
    with pytest.raises(BaseExceptionGroup) as caught:
        test()
    return [each.__notes__ for each in caught.value.exceptions]


def test_every_case_is_tried_and_those_that_fail_are_named() -> None:
    tried: list[int] = []

    @together("number", [1, 2, 3, 4], ids=["one", "two", "three", "four"])
    def check(number: int) -> None:
        tried.append(number)
        assert number % 2

    assert failures(check) == [["in the case two"], ["in the case four"]]
    assert tried == [1, 2, 3, 4]


def test_a_failure_said_by_pytest_counts_and_an_interruption_ends_all() -> None:
    @together("number", [1, 2])
    def fail(number: int) -> None:
        pytest.fail(f"number {number}")

    @together("number", [1, 2])
    def stop(number: int) -> None:
        raise KeyboardInterrupt(number)

    assert failures(fail) == [["in the case 0: {'number': 1}"], ["in the case 1: {'number': 2}"]]
    with pytest.raises(KeyboardInterrupt):
        stop()


def test_tables_above_each_other_are_multiplied() -> None:
    tried: list[tuple[int, str, str]] = []

    @together("number", [1, 2])
    @together("letter, sign", [("a", "+"), pytest.param("b", "-", id="minus")])
    def check(number: int, letter: str, sign: str) -> None:
        tried.append((number, letter, sign))

    check()
    assert tried == [(1, "a", "+"), (1, "b", "-"), (2, "a", "+"), (2, "b", "-")]
    assert tables.cases_of(check) == 4


@together("number", range(100))
def test_a_table_has_more_time_than_one_test(request: pytest.FixtureRequest, number: int) -> None:
    node: pytest.Item = request.node
    limit = node.get_closest_marker("timeout")
    assert limit is not None
    assert limit.args[0] > 60 + number


async def test_coroutines_are_awaited_with_the_fixtures_of_the_test() -> None:
    tried: list[str] = []

    @together("number", [1, 2])
    async def check(fixture: str, number: int) -> None:
        tried.append(f"{fixture} {number}")

    await check(fixture="a")
    assert tried == ["a 1", "a 2"]


def test_each_case_has_a_folder_and_patches_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @together("number", [1, 2])
    def check(
        number: int,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert not [*tmp_path.iterdir()]
        (tmp_path / "file").touch()
        assert "OF_A_CASE" not in os.environ
        monkeypatch.setenv("OF_A_CASE", "1")
        assert not capsys.readouterr().out
        sys.stdout.write("a")

    sys.stdout.write("before")
    check(tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert "OF_A_CASE" not in os.environ


def test_a_skipped_case_skips_no_other_and_shows() -> None:
    tried: list[int] = []

    @together("number", [1, 2, 3])
    def check(number: int) -> None:
        if number == 1:
            pytest.skip("install it")
        tried.append(number)

    with pytest.raises(pytest.skip.Exception, match=r"1 of 3 cases, such as .*: install it"):
        check()
    assert tried == [2, 3]


def test_a_case_that_cannot_be_one_is_refused() -> None:
    for case in ((1, 2, 3), pytest.param(1, 2, marks=pytest.mark.cold)):
        with pytest.raises(TypeError, match="case 0 has"):
            together("a, b", [case])


def test_each_case_is_a_test_again_if_they_are_wanted_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "_is_apart", True)

    @together("number", [1, 2])
    def check(number: int) -> None:
        assert number

    check(number=1)
    assert [mark.name for mark in getattr(check, "pytestmark", [])] == ["parametrize"]

"""Tables of cases that one test goes through.

Collecting a test, setting it up and reporting it costs a few milliseconds, more than most cases of
a table take themselves. `together` is written and works like `pytest.mark.parametrize`, but makes
one test of all cases. It tries every case and names each that failed; `pytest --apart` makes a test
of each case again, to run one of them alone.

Each case has its own `tmp_path` and `monkeypatch`, and a `capsys` that has heard nothing yet. All
other fixtures are shared, so `together` is for cases that leave nothing behind in them.
"""

import contextlib
import functools
import inspect
import reprlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

Ids = Iterable[Any] | Callable[[Any], object] | None

_is_apart = False


def set_apart() -> None:
    """Make a test of each case from now on; called before the tests are collected."""
    global _is_apart
    _is_apart = True


def cases_of(test: object) -> int:
    """Return how many cases a test goes through."""
    return getattr(test, "cases", 1)


def together(
    names: str | Sequence[str], cases: Iterable[Any], *, ids: Ids = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make one test that is called with every case, as `pytest.mark.parametrize` makes many.

    A case that fails does not keep the others from being tried. If cases were skipped and none
    failed, the test counts as skipped.

    Args:
        names: The arguments that a case consists of, as a list or separated by commas.
        cases: Their values: a tuple, or the value alone where there is one name. `pytest.param`
            may give a case an id, but no marks.
        ids: What to call the cases: one name for each, or a function of a value.

    Raises:
        TypeError: If a case has marks or another number of values.
    """
    every = list(cases)
    named: Any = ids if callable(ids) or ids is None else list(ids)
    if _is_apart:
        return pytest.mark.parametrize(names, every, ids=named)
    split = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    table = [Case.read(split, case, named, index) for index, case in enumerate(every)]
    return functools.partial(_join, split, table)


@dataclass(frozen=True)
class Case:
    """One row of a table."""

    index: int
    name: str | None
    values: Mapping[str, Any]

    @classmethod
    def read(cls, names: Sequence[str], case: Any, ids: Any, index: int) -> "Case":
        """Return what a case is called, and its arguments."""
        name: Any = None
        if hasattr(case, "marks") and hasattr(case, "values") and hasattr(case, "id"):
            if case.marks:
                raise TypeError(f"case {index} has marks: use pytest.mark.parametrize")
            name, values = case.id, case.values
        else:
            values = (case,) if len(names) == 1 else tuple(case)
        if len(values) != len(names):
            raise TypeError(f"case {index} has {len(values)} values for {', '.join(names)}")
        if name is None and ids and not callable(ids):
            name = ids[index]
        elif name is None and ids:
            name = "-".join(str(ids(value)) for value in values)
        shown = None if name is None else str(name)
        return cls(index, shown, dict(zip(names, values, strict=True)))

    def __str__(self) -> str:
        return self.name or f"{self.index}: {reprlib.repr(self.values)}"


def _join(names: Sequence[str], table: Sequence[Case], test: Callable[..., Any]) -> Any:
    @functools.wraps(test)
    async def await_each(*args: Any, **given: Any) -> None:
        results = _Results()
        for case in table:
            with results.of(case), _renewed(given, case.index) as own:
                await test(*args, **own, **case.values)
        results.tell()

    @functools.wraps(test)
    def call_each(*args: Any, **given: Any) -> None:
        results = _Results()
        for case in table:
            with results.of(case), _renewed(given, case.index) as own:
                test(*args, **own, **case.values)
        results.tell()

    joined: Any = await_each if inspect.iscoroutinefunction(test) else call_each
    signature = inspect.signature(test)
    left = [each for name, each in signature.parameters.items() if name not in names]
    joined.__signature__ = signature.replace(parameters=left)
    joined.cases = len(table) * cases_of(test)
    del joined.__wrapped__
    return joined


@contextlib.contextmanager
def _renewed(given: Mapping[str, Any], index: int) -> Generator[dict[str, Any]]:
    """Return the fixtures for one case."""
    own = dict(given)
    if "capsys" in given:
        given["capsys"].readouterr()
    if "tmp_path" in given:
        own["tmp_path"] = given["tmp_path"] / str(index)
        own["tmp_path"].mkdir()
    if "monkeypatch" not in given:
        yield own
        return
    with pytest.MonkeyPatch.context() as patches:
        own["monkeypatch"] = patches
        yield own


class _Results:
    """What became of the cases of one test."""

    def __init__(self) -> None:
        self._case: Case | None = None
        self._tried = 0
        self._failed: list[BaseException] = []
        self._skipped: list[str] = []

    def of(self, case: Case) -> "_Results":
        """Note what becomes of a case, as a context."""
        self._case = case
        self._tried += 1
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, pytest.skip.Exception):
            self._skipped.append(f"{self._case}: {error.msg}")
            return True
        if not isinstance(error, (Exception, pytest.fail.Exception)):
            return False
        error.add_note(f"in the case {self._case}")
        self._failed.append(error)
        return True

    def tell(self) -> None:
        """Fail, or skip, for all the cases that did."""
        if self._failed:
            told = f"{len(self._failed)} of {self._tried} cases failed"
            raise BaseExceptionGroup(told, self._failed)
        if self._skipped:
            told = f"{len(self._skipped)} of {self._tried} cases, such as {self._skipped[0]}"
            pytest.skip(told)

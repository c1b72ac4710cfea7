"""Loading modules leaves the garbage collector as the program has set it."""

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType

import pytest

from agent_core.loading import without_collection

pytestmark = pytest.mark.checked


class Knot:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    was_frozen = gc.get_freeze_count() > 0
    yield
    gc.enable()
    gc.unfreeze()
    if was_frozen:  # the suite's own objects
        gc.freeze()


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_on_again_only_if_it_was(is_enabled: bool) -> None:
    (gc.enable if is_enabled else gc.disable)()

    with suppress(ImportError), without_collection():
        assert not gc.isenabled()
        raise ImportError

    assert gc.isenabled() is is_enabled


def test_what_was_left_behind_meanwhile_is_collected_later() -> None:
    with without_collection():
        left = weakref.ref(Knot())

    assert left() is not None
    gc.collect()
    assert left() is None


def test_frozen_objects_are_not_counted_where_nothing_was_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: asked.append("count") or 1)

    with without_collection():
        pass
    assert asked == []
    with without_collection():
        monkeypatch.setitem(sys.modules, "a_new_module", ModuleType("a_new_module"))
    assert asked == ["count"]


def test_what_the_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    before = gc.get_freeze_count()

    with without_collection():
        Knot()

    assert gc.get_freeze_count() > before / 2  # what is freed meanwhile does not count any more

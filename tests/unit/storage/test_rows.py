"""Values on their way into text columns, and back."""

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agent_core.errors import StorageError
from agent_core.storage.rows import dumps, iso, loads
from agent_core.types import JsonBlock, TextBlock, Usage
from tables import together

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)), inner),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_every_json_value_reads_back_as_it_was(value: Any) -> None:
    text = dumps(value)
    text.encode()  # what SQLite will do with it
    assert "\0" not in text
    assert loads(text) == value


@together(
    ("value", "stored"),
    [
        ({"b", "a"}, ["a", "b"]),
        (Path("/a/b"), "/a/b"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (TextBlock(text="x"), {"type": "text", "text": "x"}),
        (float("nan"), None),
    ],
)
def test_what_is_nearly_json_is_stored_as_json(value: object, stored: object) -> None:
    assert loads(dumps({"x": value})) == {"x": stored}


@together("other", [2**70, "\ud800", [1.5]], ids=repr)
def test_a_number_without_a_form_in_json_is_null_whatever_stands_beside_it(other: Any) -> None:
    nested = {"x": [math.nan, {"y": math.inf}], "other": other, "block": JsonBlock(data=math.nan)}
    text = dumps(nested)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    stored = json.loads(text, parse_constant=refuse)
    assert stored["x"] == [None, {"y": None}]
    assert stored["other"] == other
    assert stored["block"]["data"] is None


@together("value", [object(), b"bytes", {"a", 1}, {object(): 1}])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(StorageError):
        dumps({"x": value})


def test_what_is_too_deep_to_be_read_back_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(StorageError):
        dumps({"x": nested})


def test_the_order_of_stored_times_is_the_order_of_times() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = [start + timedelta(microseconds=us) for us in (0, 1, 999_999, 1_000_000)]
    assert [iso(moment) for moment in times] == sorted(iso(moment) for moment in times)
    abroad = times[1].astimezone(timezone(timedelta(hours=-7)))
    assert iso(abroad) == iso(times[1])
    assert datetime.fromisoformat(iso(abroad)) == times[1]


def test_a_count_that_earlier_versions_do_not_know_is_stored_only_if_there_is_one() -> None:
    usage = Usage(input_tokens=5, cache_write_tokens=5)
    kept = usage.model_copy(update={"cache_write_1h_tokens": 3})
    earlier = set(Usage.model_fields) - {"cache_write_1h_tokens"}
    assert set(loads(dumps(usage))) == set(usage.model_dump()) == earlier
    assert Usage.model_validate(loads(dumps(kept))) == kept == Usage(**kept.model_dump())

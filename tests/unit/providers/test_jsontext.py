from datetime import UTC, datetime

import orjson
import pytest

from agent_core.providers import jsontext
from agent_core.text import join_surrogates
from agent_core.text.json_text import JsonObject
from tables import together


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@together(
    "value",
    [
        {"b": 1, "a": {"d": 2, "c": 3}},
        {"n": 2**70},
        {"s": "\ud800"},
        {1: "number as a key", "a": (1, 2)},
        {"when": datetime(2026, 1, 1, tzinfo=UTC)},
        {"set": {1}},
        nested(500),
        {"x": [float("nan"), 2**70]},
    ],
)
def test_everything_can_be_written_and_keys_are_sorted(value: object) -> None:
    raw = jsontext.dump(value)

    assert raw == jsontext.dump(value)
    assert orjson.loads(raw) is not None
    assert raw.find(b'"b"') in {-1, raw.rfind(b'"b"')}
    assert not raw.startswith(b'{"b"')


@together(
    "number",
    [float("nan"), float("inf"), float("-inf"), 10**400, 10**5000],
    ids=["nan", "inf", "-inf", "400", "5000"],
)
@together("slow", ["\ud800", {1}, 2**70])
def test_numbers_without_a_json_form_become_null(number: float, slow: object) -> None:
    raw = jsontext.dump({"number": [number], "slow": slow})

    assert orjson.loads(raw)["number"] == [None]


@together(
    "raw", [b"", b"{", b"NaN", b"1" * 5000, b"[" * 100_000, b"[" * 500 + b"]" * 500 + b"\xff"]
)
def test_what_is_no_json_is_one_kind_of_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|nested|expected|char|Expecting|input|double"):
        jsontext.parse(raw)


def test_halves_of_a_character_are_joined() -> None:
    assert join_surrogates("\ud83d\ude00 and \ud83d") == "😀 and \ufffd"
    assert jsontext.parse(b'"\xff"') == "\ufffd"


@together("levels", [99, 100, 101, 2000])
def test_objects_are_read_down_to_a_depth_that_can_be_stored(levels: int) -> None:
    raw = '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"

    if levels <= jsontext.MAX_DEPTH:
        assert jsontext.parse_object(raw)["a"] is not None
    else:
        with pytest.raises(ValueError, match=r"nested|depth"):
            jsontext.parse_object(raw)


def test_wide_objects_are_not_deep_ones() -> None:
    wide = jsontext.parse_object('{"a":[' + "[]," * 500 + "[]]}")["a"]
    assert isinstance(wide, list)
    assert len(wide) == 501


def test_a_report_is_the_one_that_is_stored() -> None:
    plain: JsonObject = {"tokens": 3, "more": [1.5, "text"]}
    assert jsontext.cleaned(plain) is plain
    for value in (float("nan"), [float("inf")], "\ud800", None):
        odd: JsonObject = {"x": value}
        cleaned = jsontext.cleaned(odd)
        assert orjson.loads(orjson.dumps(cleaned)) == cleaned

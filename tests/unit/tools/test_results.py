"""Whatever a handler returns can be stored."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from agent_core.tools.results import wrap
from agent_core.tools.values import storable, storable_text
from agent_core.types import ImageBlock, JsonBlock, TextBlock, ToolResult
from tables import together


class Point(BaseModel):
    x: int
    name: str = "p"


@dataclass
class Pair:
    left: int
    right: Path


def test_text_stays_text_and_everything_else_becomes_json() -> None:
    assert wrap("hi").content == [TextBlock(text="hi")]
    for value in ({"a": 1}, [1, 2], 7, 1.5, True, None):
        assert wrap(value).content == [JsonBlock(data=value)]


def test_blocks_are_the_content_of_the_result() -> None:
    image, words = ImageBlock(mime_type="image/png", data="aGk="), TextBlock(text="a chart")

    assert wrap(image).content == [image]
    assert wrap([words, image]).content == [words, image]
    assert [block.type for block in wrap([words, 1]).content] == ["json"]
    assert [block.type for block in wrap([]).content] == ["json"]


def test_models_dataclasses_paths_and_times_become_plain_json() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    wrapped = wrap({"p": Point(x=1), "d": Pair(1, Path("/a")), "t": moment, "s": {3}})
    expected = {
        "p": {"x": 1, "name": "p"},
        "d": {"left": 1, "right": "/a"},
        "t": "2026-01-02T00:00:00Z",
        "s": [3],
    }
    assert wrapped.content == [JsonBlock(data=expected)]


class Markup(str):
    """Text that escapes what is added to it, as that of template engines does."""

    __slots__ = ()

    def __radd__(self, other: str) -> str:
        return f"&lt;{other}{self}"

    def replace(self, *args: Any, **kwargs: Any) -> "Markup":
        return Markup(super().replace(*args, **kwargs))


@pytest.mark.parametrize("text", ["plain", "déjà vu"])
def test_text_with_methods_of_its_own_becomes_plain_text(text: str) -> None:
    (block,) = wrap(Markup(text)).content
    assert isinstance(block, TextBlock)
    assert type(block.text) is str
    (block,) = wrap([Markup(text)]).content
    assert isinstance(block, JsonBlock)
    assert type(block.data[0]) is str


def test_an_object_without_a_form_in_json_is_named_by_its_type() -> None:
    class Socket: ...

    data, said = wrap([1, Socket()]).content
    assert data == JsonBlock(data=[1, "(Socket)"])
    assert isinstance(said, TextBlock)
    assert "Socket" in said.text


@together("text", ["a\0b", "\ud800", "x\udcffy", "\U0001f600 ok", "plain"])
def test_text_can_be_stored_whatever_is_in_it(text: str) -> None:
    clean = storable_text(text)
    assert "\0" not in clean
    assert clean.encode()
    assert len(clean) == len(text)


def test_numbers_that_json_or_sqlite_cannot_hold_become_text() -> None:
    assert storable(2**64) == str(2**64)
    assert storable(10**5000).startswith("0x")
    assert storable(math.nan) is None
    assert storable([math.inf, 2**63]) == [None, 2**63]


def test_nesting_has_an_end() -> None:
    bomb: list[Any] = []
    for _ in range(10_000):
        bomb = [bomb]
    assert orjson.dumps(storable(bomb))


def test_a_finished_result_keeps_its_flags_and_loses_its_nuls() -> None:
    result = ToolResult(content=[TextBlock(text="a\0"), JsonBlock(data={"k\0": "\ud800"})])
    wrapped = wrap(result.model_copy(update={"is_error": True}))
    assert wrapped.is_error
    assert wrapped.content == [
        TextBlock(text="a\ufffd"),
        JsonBlock(data={"k\ufffd": "\ufffd"}),
    ]


@pytest.mark.long
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_anything_like_json_can_be_written_and_read_back(value: object) -> None:
    clean = storable(value)
    assert orjson.loads(orjson.dumps(clean)) == clean

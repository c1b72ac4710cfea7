"""The beginning of an answer is read as its end is, and runs no function on what is not written."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    RootModel,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import core_schema

# typing.TypedDict of Python 3.11 keeps too little for pydantic to read.
from typing_extensions import TypedDict

from agent_core.tools.base import OutputMisfitError
from agent_core.tools.output import ExpectedOutput
from agent_core.tools.prefixes import AnswerReader, PartialValues
from tables import together

SEEN: list[Any] = []
"""The arguments that the functions of the types below were called with."""


@pytest.fixture(autouse=True)
def seen() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


def noted(value: Any) -> Any:
    """Remember a value, in a form that can be compared later."""
    SEEN.append(json.dumps(value, default=repr, sort_keys=True))
    return value


def shown(expected: ExpectedOutput, text: str) -> list[Any]:
    """Every value that is shown of an answer that arrives letter by letter."""
    values = PartialValues(AnswerReader(expected))
    return [value for letter in text for value in values.add(letter)]


def read(expected: ExpectedOutput, text: str) -> Any:
    reader = AnswerReader(expected)
    reader.add(text)
    return reader.read()


# --- answers that the final reading accepts -------------------------------------------------------


class Trip(BaseModel):
    city: str
    days: int = 3
    note: str | None = None


class StrictTrip(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    city: str
    day: date
    price: Decimal
    tags: set[str] = set()
    kind: Literal["work", "leisure"] = "work"


class Node(BaseModel):
    name: str
    inner: "Node | None" = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str] = []


class Colour(Enum):
    RED = "red"
    DARK_RED = "dark red"


class Rows(TypedDict, total=False):
    a: str
    b: list[int]


@dataclass
class Place:
    city: str
    people: int = 0


class Pair(NamedTuple):
    left: int
    right: str


STRICT = (
    '{"city": "Rome", "day": "2026-01-02", "price": "1.50", "tags": ["a", "b"], "kind": "work"}'
)
EARLY: list[tuple[Any, str]] = [
    (Trip, '{"city": "Rome", "days": null, "note": null}'),
    (list[Trip], '[{"city": "Rome", "days": null}, {"city": "Lima", "days": 4}]'),
    (list[Trip], '{"answer": [{"city": "Rome", "days": null}, {"city": "Lima"}]}'),
    (list[Trip], '{"trips": [{"city": "Rome"}, {"city": "Lima"}]}'),
    (Trip, '{"trip": {"city": "Rome", "days": null, "note": "a"}}'),
    (Trip, '{"answer": {"city": "Rome", "days": 4}}'),
    (StrictTrip, STRICT),
    (list[StrictTrip], f"[{STRICT}, {STRICT}]"),
    (Trip, '```json\n{"city": "Rome", "days": 4, "note": "x"}\n```'),
    (list[int], "```\n[1, 2, 3]\n```"),
    (Trip, '\n  {"city": "Rome", "note": "ab"}  \n'),
    (Trip | None, '{"answer": {"city": "Rome", "note": "ab"}}'),
    (Cat | Dog, '{"answer": {"kind": "dog", "tricks": ["sit", "roll"]}}'),
    (list[Annotated[Cat | Dog, Field(discriminator="kind")]], '[{"kind": "cat", "lives": 9}, {}]'),
    (list[int] | dict[str, int], "[1, 2, 3]"),
    (list[Colour], '["red", "dark red"]'),
    (dict[str, list[int]], '{"a": [1, 2], "b": [3]}'),
    (Rows, '{"a": "text", "b": [1, 2, null]}'),
    (list[Rows], '[{"a": "x"}, {"b": null, "a": "y"}]'),
    (Node, '{"name": "a", "inner": {"name": "b", "inner": {"name": "c", "inner": null}}}'),
    (Place, '{"city": "Rome", "people": 12}'),
    (list[Pair], '[[1, "a"], [2, "b"]]'),
    (str, '{"answer": "a text of some words"}'),
    (str, '"a text of some words"'),
    (str, "a text of some words"),
    (int, '{"answer": 42 }'),
    (bool, '{"answer": true}'),
    (date, '{"answer": "2026-01-02"}'),
    (Colour, '{"answer": "dark red"}'),
    (RootModel[list[int]], "[1, 2, 3]"),
    (list[str], r'["a\"b\\", "\u00e9\ud83d\ude00", "\ud800x", "c"]'),
    (list[float], '{"answer": [1.5, NaN, 2e3, -4]}'),
    (list[int], '{"answer": [1, 18446744073709551616, 3]}'),
    ({"type": "array", "items": {"type": "integer"}}, "[1, 2, 3]"),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, '{"a": "text"}'),
    (list[Path], '["/a/b", "c"]'),
]


@together(("kind", "text"), EARLY, ids=[f"{n}" for n in range(len(EARLY))])
def test_an_answer_is_shown_before_its_end(kind: Any, text: str) -> None:
    expected = ExpectedOutput(kind)
    values = shown(expected, text[:-1])
    assert values != []
    with suppress(OutputMisfitError):
        assert repr(read(expected, text)) == repr(expected.read([text]))


@together(("kind", "text"), EARLY, ids=[f"{n}" for n in range(len(EARLY))])
def test_lists_and_texts_only_grow(kind: Any, text: str) -> None:
    values = shown(ExpectedOutput(kind), text)
    growing: list[Any] = [value for value in values if isinstance(value, list | str)]
    for shorter, longer in pairwise(growing):
        assert len(shorter) <= len(longer)


@together(
    ("kind", "text"),
    [
        (Trip, 'Here it is: {"city": "Rome"'),
        (Trip, '{"city": 5'),
        (Trip, "{'city': 'Rome'"),
        (list[int], "[1, 2] and so on"),
        (list[int], "{}"),
        (int, "12"),
        (date, "2026-01-02"),
        (Colour, "dark red"),
        (Literal["yes", "yesterday"], '{"answer": "yes'),
        (Trip, "``"),
        (Trip, "```js"),
        (str, '{"answer"'),
        (str, "`"),
    ],
)
def test_nothing_is_shown_of_what_is_not_the_type_yet(kind: Any, text: str) -> None:
    expected = ExpectedOutput(kind, mode="native")
    with pytest.raises(OutputMisfitError):
        read(expected, text)


def test_a_property_of_the_type_is_not_taken_for_the_answer() -> None:
    expected = ExpectedOutput(Node)
    values = shown(expected, '{"inner": {"name": "b"}, "name": "a"}')
    assert {value.name for value in values} == {"", "a"}


def test_words_before_the_call_that_answers_are_passed_over() -> None:
    expected = ExpectedOutput(Trip)
    values = shown(expected, 'I {think}: {"city": "Rome", "note": "x"}')
    assert values[-1] == Trip(city="Rome", note="x")


def test_an_answer_that_was_cut_off_goes_on() -> None:
    reader = AnswerReader(ExpectedOutput(list[str]))
    reader.add('["a", "b')
    reader.begin(continues=True)
    reader.add('c", "d"]')
    assert reader.read() == ["a", "bc", "d"]
    reader.begin(continues=True)
    reader.add('["e"]')
    assert reader.read() == ["e"]
    reader.begin(continues=False)
    reader.add('["f"]')
    assert reader.read() == ["f"]


# --- functions of a program -----------------------------------------------------------------------


class FieldValidators(BaseModel):
    name: str
    size: int = 0
    tags: list[str] = []

    @field_validator("name", "size", "tags", mode="after")
    @classmethod
    def check(cls, value: Any) -> Any:
        return noted(value)

    @field_validator("name", mode="before")
    @classmethod
    def prepare(cls, value: Any) -> Any:
        return noted(value)

    @field_validator("tags", mode="wrap")
    @classmethod
    def around(cls, value: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(noted(value))

    @field_validator("size", mode="plain")
    @classmethod
    def plain(cls, value: Any) -> Any:
        return noted(value)


class ModelBefore(BaseModel):
    name: str
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def prepare(cls, value: Any) -> Any:
        return noted(value)


class ModelAfter(BaseModel):
    name: str
    note: str = ""

    @model_validator(mode="after")
    def check(self) -> "ModelAfter":
        noted([self.name, self.note])
        return self


class ModelWrap(BaseModel):
    name: str
    note: str = ""

    @model_validator(mode="wrap")
    @classmethod
    def around(cls, value: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(noted(value))


class PostInit(BaseModel):
    name: str
    note: str = ""
    _length: int = PrivateAttr(default=7)

    def model_post_init(self, context: Any) -> None:
        noted([self.name, self.note])
        self._length = len(self.name)


class OwnInit(BaseModel):
    name: str
    note: str = ""

    def __init__(self, **data: Any) -> None:
        super().__init__(**noted(data))


@dataclass
class Derived:
    name: str
    note: str = ""
    length: int = field(init=False)

    def __post_init__(self) -> None:
        noted([self.name, self.note])
        self.length = len(self.name)


@dataclass
class Checked:
    name: str
    note: str = ""

    def __post_init__(self) -> None:
        noted([self.name, self.note])


@pydantic_dataclass
class CheckedByPydantic:
    name: str
    note: str = ""

    def __post_init__(self) -> None:
        noted([self.name, self.note])

    @field_validator("name")
    @classmethod
    def check(cls, value: str) -> str:
        return noted(value)


class OwnSchema:
    """A class whose values are made of text by itself."""

    def __init__(self, text: str) -> None:
        self.text = noted(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnSchema) and self.text == other.text

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


class PlainSchema(OwnSchema):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls, json_schema_input_schema=core_schema.str_schema()
        )


def around(value: Any, handler: Callable[[Any], Any]) -> Any:
    return handler(noted(value))


After = Annotated[str, AfterValidator(noted)]
Before = Annotated[str, BeforeValidator(noted)]
Wrap = Annotated[str, WrapValidator(around)]
Plain = Annotated[str, PlainValidator(noted, json_schema_input_type=str)]
BOTH = '{"name": "Rome", "note": "a b"}'
FUNCTIONS: list[tuple[Any, str, bool]] = [
    (FieldValidators, '{"name": "Rome", "tags": ["a", "bc"], "size": 12}', True),
    (ModelBefore, BOTH, True),
    (ModelAfter, BOTH, True),
    (ModelWrap, BOTH, True),
    (PostInit, BOTH, True),
    (OwnInit, BOTH, True),
    (Derived, BOTH, False),
    (Checked, BOTH, True),
    (CheckedByPydantic, BOTH, True),
    (list[ModelAfter], f'[{BOTH}, {BOTH[:-2]}x"}}]', True),
    (list[Derived], f"[{BOTH}, {BOTH}]", True),
    (dict[str, ModelBefore], f'{{"a": {BOTH}, "b": {BOTH}}}', True),
    (list[OwnSchema], '["ab", "cd"]', True),
    (list[PlainSchema], '["ab", "cd"]', True),
    (After, '{"answer": "some text"}', True),
    (list[After], '["ab", "cd"]', True),
    (list[Before], '["ab", "cd"]', True),
    (list[Wrap], '["ab", "cd"]', True),
    (list[Plain], '["ab", "cd"]', True),
    (list[Annotated[int, AfterValidator(noted)]], "[12, 345, 6]", True),
    (Annotated[list[int], AfterValidator(noted)], "[12, 345, 6]", True),
    (Annotated[dict[str, int], BeforeValidator(noted)], '{"a": 12, "a": 345, "b": 6}', True),
    (ModelAfter, f'{{"answer": {BOTH}}}', True),
    (ModelAfter, f"```json\n{BOTH}\n```", True),
]


@together(("kind", "text", "is_early"), FUNCTIONS, ids=[f"{n}" for n in range(len(FUNCTIONS))])
def test_functions_only_see_what_the_model_has_written(
    kind: Any, text: str, is_early: bool
) -> None:
    expected = ExpectedOutput(kind)
    whole = expected.read([text])
    written = set(SEEN)
    SEEN.clear()
    values = shown(expected, text[:-1])
    assert set(SEEN) <= written
    assert (values != []) is is_early
    assert read(expected, text) == whole
    for value in values:
        repr(value)  # no half-built object


def test_a_model_that_is_shown_early_has_its_private_attributes() -> None:
    values = shown(ExpectedOutput(PostInit), BOTH)
    assert [value._length for value in values][:1] == [7]
    assert [json.dumps(["Rome", "a b"])] == SEEN


def test_validators_do_run_on_the_parts_that_have_arrived() -> None:
    def refuse(value: int) -> int:
        if value == 13:
            raise ValueError("unlucky")
        return value

    kind = list[Annotated[int, AfterValidator(refuse)]]
    assert shown(ExpectedOutput(kind), "[12, 13, 14, 15") == [[], [12]]


FAULTS: list[Callable[[], BaseException]] = [
    KeyError,
    RuntimeError,
    RecursionError,
    StopIteration,
    SystemExit,
    GeneratorExit,
    lambda: type("Own", (BaseException,), {})(),
]


@together("fault", FAULTS)
def test_no_exception_of_a_validator_leaves_the_reading(fault: Callable[[], BaseException]) -> None:
    def fail(_: Any) -> Any:
        raise fault()

    for kind in (
        list[Annotated[int, AfterValidator(fail)]],
        dict[str, Annotated[int, BeforeValidator(fail)]],
        {"type": "array"},
    ):
        shown(ExpectedOutput(kind), '[1, 2, {"a": 3}]')
        shown(ExpectedOutput(kind), '{"a": 3, "b": 4}')


def test_values_that_cannot_be_compared_are_shown() -> None:
    class Odd(BaseModel):
        name: str
        note: str = ""

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not comparable")

        __hash__ = None

    assert shown(ExpectedOutput(Odd), BOTH)


@pytest.mark.long
def test_a_long_answer_is_read_a_bounded_number_of_times() -> None:
    rows = json.dumps([{"city": f"n{number}", "note": "x" * 20} for number in range(2_000)])
    reads: list[object] = []

    class Counted(AnswerReader):
        def read(self) -> Any:
            reads.append(None)
            return super().read()

    values = PartialValues(Counted(ExpectedOutput(list[Trip])))
    for start in range(0, len(rows), 20):
        values.add(rows[start : start + 20])
    assert len(reads) < 300

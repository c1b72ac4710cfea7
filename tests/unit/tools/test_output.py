"""What the answer of a run may have to be, and how one is read."""

import datetime
import json
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import pytest
from pydantic import BaseModel, Field, field_validator

from agent_core.errors import AgentCoreError, ArgumentError, ConfigError, ErrorCode
from agent_core.providers.output_schema import ANTHROPIC, OPENAI_STRICT
from agent_core.tools.base import OutputMisfitError
from agent_core.tools.json_schema import BoundedValidator
from agent_core.tools.output import ExpectedOutput, expected_output
from agent_core.tools.prefixes import AnswerReader
from tables import together


class City(BaseModel):
    """A city."""

    name: str
    people: int | None = None

    @field_validator("name")
    @classmethod
    def _is_no_village(cls, name: str) -> str:
        if name == "Kleindorf":
            raise ValueError("is a village")
        return name


@dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict, total=False):
    key: Required[str]
    note: str
    inner: NotRequired["Inner"]


class Inner(TypedDict):
    n: int


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tail: bool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


READ: list[tuple[Any, str, object]] = [
    (City, '{"name": "Rom", "people": 3}', City(name="Rom", people=3)),
    (City, '```json\n{"name": "Rom"}\n```', City(name="Rom")),
    (City, '{"name": "Rom", "people": null}', City(name="Rom")),
    (City, '{"city": {"name": "Rom"}}', City(name="Rom")),
    (Point, '{"x": 1}', Point(1)),
    (Point, '{"x": 1, "y": null}', Point(1)),
    (Row, '{"key": "a", "inner": {"n": 1}}', {"key": "a", "inner": {"n": 1}}),
    (Row, '{"key": "a", "note": null, "inner": null}', {"key": "a"}),
    (Tree, '{"value": 1, "children": [{"value": 2}]}', Tree(value=1, children=[Tree(value=2)])),
    (list[City], '[{"name": "Rom"}]', [City(name="Rom")]),
    (list[City], '{"answer": [{"name": "Rom"}]}', [City(name="Rom")]),
    (list[City], '{"result": [{"name": "Rom"}]}', [City(name="Rom")]),
    (list[Row], '{"answer": [{"key": "a", "note": null}]}', [{"key": "a"}]),
    (City | Point, '{"answer": {"x": 1}}', Point(1)),
    (City | Point, '{"name": "Rom"}', City(name="Rom")),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        '{"answer": {"kind": "dog", "tail": true}}',
        Dog(kind="dog", tail=True),
    ),
    (City | str, "I cannot say.", "I cannot say."),
    (Colour, "blue", Colour.BLUE),
    (Colour, '{"answer": "blue"}', Colour.BLUE),
    (Colour, '"blue"', Colour.BLUE),
    (Literal["yes", "no"], '{"answer": "no"}', "no"),
    (int, "42", 42),
    (int, '{"answer": 42}', 42),
    (Annotated[int, Field(ge=0)], "42", 42),
    (bool, "true", True),
    (float | None, '{"answer": null}', None),
    (Decimal, '"1.50"', Decimal("1.50")),
    (datetime.date, "2026-11-22", datetime.date(2026, 11, 22)),
    (tuple[int, str], '[1, "a"]', (1, "a")),
    (set[int], "[1, 1]", {1}),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (dict[str, int], '{"answer": 1}', {"answer": 1}),
    ({"type": "object", "properties": {"n": {"type": "integer"}}}, '{"n": 1}', {"n": 1}),
    ({"type": "array", "items": {"type": "integer"}}, '{"answer": [1]}', [1]),
    ({"enum": ["a", "b"]}, "a", "a"),
]


@together(("kind", "text", "value"), READ)
def test_an_answer_is_read_as_a_value_of_its_type(kind: Any, text: str, value: object) -> None:
    expected = ExpectedOutput(kind)
    read = expected.read([text])
    assert read == value
    assert type(read) is type(value)
    schema = expected.format.output_schema
    assert schema["type"] == "object"
    assert expected.tool is not None
    assert expected.tool.input_schema["type"] == "object"


MISFITS: list[tuple[Any, str, str]] = [
    (City, "", "it is empty"),
    (City, "  \n", "it is empty"),
    (City, "Rome, I think", "it is not JSON"),
    (City, '{"name": "Kleindorf"}', "$.name: Value error, is a village"),
    (City, '{"name": 3}', "$.name"),
    (list[City], '[{"name": "Rom"}, {}]', "$[1].name: Field required"),
    (list[City], '{"answer": [{}]}', "$[0].name: Field required"),
    (City | Point, '{"z": 1}', "$."),
    (Colour, "green", "not JSON"),
    (int, '"many"', "$: Input should be a valid integer"),
    (int, '{"error": 404}', "$: Input should be a valid integer"),
    (Annotated[str, Field(min_length=1)], '{"error": "busy"}', "$: Input should be a valid string"),
    (Row, "{}", "$.key"),
    (Tree, "[" * 100_000, "JSON"),
    (City, '{"name": "Rom"', "not JSON"),
    ({"type": "object", "required": ["n"]}, "{}", "'n' is a required property"),
]


@together(("kind", "text", "said"), MISFITS)
def test_what_does_not_fit_is_named_by_its_place(kind: Any, text: str, said: str) -> None:
    with pytest.raises(OutputMisfitError) as caught:
        ExpectedOutput(kind).read([text])
    assert said in str(caught.value)
    assert len(str(caught.value)) < 3_000


def test_an_answer_that_was_cut_off_is_read_whole_or_as_begun_anew() -> None:
    expected = ExpectedOutput(City)
    assert expected.read(['{"name": "R', 'om"}']) == City(name="Rom")
    assert expected.read(['{"name": "R', '{"name": "Rom"}']) == City(name="Rom")


@together("kind", [object(), print, type[int], {"type": "nonsense"}, [], 3])
def test_what_is_no_type_is_refused_with_the_name_of_the_option(kind: Any) -> None:
    with pytest.raises(ConfigError, match="output_type cannot be used") as caught:
        ExpectedOutput(kind)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_a_check_that_breaks_is_no_fault_of_the_model() -> None:
    class Broken(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def _check(cls, name: str) -> str:
            raise RuntimeError("no connection")

    with pytest.raises(AgentCoreError, match="no connection") as caught:
        ExpectedOutput(Broken).read(['{"name": "x"}'])
    assert caught.value.code is ErrorCode.INTERNAL_ERROR


def test_one_type_is_compiled_once() -> None:
    first = expected_output(City, mode="auto", retries=2)
    assert expected_output(City, mode="auto", retries=2) is first
    assert expected_output(City, mode="tool", retries=2) is not first
    assert expected_output(int, mode="auto", retries=2).name == "int"


def test_names_are_ones_that_services_take() -> None:
    assert ExpectedOutput(list[City] | None).format.name
    assert ExpectedOutput({"title": "Eine Ä Stadt" * 20}).format.name[:4] == "Eine"
    assert len(ExpectedOutput({"title": "Eine Stadt" * 20}).format.name) <= 64


class Node(TypedDict):
    name: str
    parts: list["Node"]


DAY = datetime.datetime.fromisoformat("2024-03-01")


class Meeting(BaseModel):
    at: datetime.datetime
    title: str = ""


PREFIXES: list[tuple[Any, str, list[object]]] = [
    (list[int], "[12, 345]", [[], [12], [12, 345]]),
    (list[str], '["ab", "c"]', [[], [""], ["a"], ["ab"], ["ab", ""], ["ab", "c"]]),
    (list[Decimal], '["1.25", "2"]', [[], [Decimal("1.25")], [Decimal("1.25"), Decimal(2)]]),
    (list[Literal["a", "ab"]], '["ab"]', [[], ["ab"]]),
    (datetime.datetime, '{"answer": "2024-03-01"}', [DAY]),
    (datetime.datetime, "2024-03-01", []),
    (int, "1234", []),
    (Meeting, '{"at": "2024-03-01"}', [Meeting(at=DAY)]),
    ({"type": "array", "items": {"enum": ["a", "ab"]}}, '["ab"]', [[], ["ab"]]),
]


@together(("kind", "text", "shown"), PREFIXES)
def test_a_beginning_never_shows_what_the_whole_does_not_begin_with(
    kind: Any, text: str, shown: list[object]
) -> None:
    expected, seen = ExpectedOutput(kind), list[object]()
    for length in range(len(text) + 1):
        with suppress(OutputMisfitError):
            reader = AnswerReader(expected)
            reader.add(text[:length])
            value = reader.read()
            if value not in seen[-1:]:
                seen.append(value)
    assert seen == shown


def test_a_typed_dict_may_contain_itself() -> None:
    expected = ExpectedOutput(list[Node])
    told: list[Node] = [{"name": "a", "parts": [{"name": "b", "parts": []}]}]
    assert expected.read([json.dumps(told)]) == told
    with pytest.raises(OutputMisfitError, match=r"\$\[0\].parts\[0\].parts: Field required"):
        expected.read(['[{"name": "a", "parts": [{"name": "b"}]}]'])


NUMBER = {"type": "integer"}
POINTED: list[dict[str, Any]] = [
    {"type": "array", "items": {"$ref": "#/definitions/n"}, "definitions": {"n": NUMBER}},
    {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": NUMBER}},
    {"type": "array", "items": {"anyOf": [NUMBER, {"$ref": "#"}]}},
    {"type": "array", "prefixItems": [NUMBER], "items": {"$ref": "#/prefixItems/0"}},
    {"type": "array", "default": [{"$ref": "#"}], "items": NUMBER},
]


@together("schema", POINTED)
def test_references_of_a_wrapped_schema_lead_to_their_places(schema: dict[str, Any]) -> None:
    expected = ExpectedOutput(schema)
    wrapped = BoundedValidator(expected.format.output_schema)
    assert list(wrapped.errors({"answer": [1, 2]})) == []
    assert list(wrapped.errors({"answer": [1, "x"]})) != []
    assert expected.read(["[1, 2]"]) == [1, 2]
    assert expected.schema == schema


def test_a_null_for_what_is_absent_is_left_out_behind_any_reference() -> None:
    word = {"type": "object", "properties": {"note": {"type": "string"}}}
    named = {"type": "array", "items": {"$ref": "#/definitions/w"}, "definitions": {"w": word}}
    assert ExpectedOutput(named).read(['[{"note": null}]']) == [{}]
    tree = {"type": "object", "properties": {"id": NUMBER, "next": {"$ref": "#"}}}
    assert ExpectedOutput(tree).read(['{"next": {"id": null}}']) == {"next": {}}


def test_a_service_gets_the_definitions_that_a_schema_refers_to() -> None:
    schema = POINTED[0] | {"$id": "https://example.org/n", "$comment": "numbers"}
    for form in (OPENAI_STRICT, ANTHROPIC):
        written = form.of(ExpectedOutput(schema).format.output_schema)
        assert written["definitions"] == {"n": NUMBER}
        assert "description" not in written["properties"]["answer"]


class Opaque:
    pass


@together("kind", ["City", ["City"], "not an expression", Opaque, [Opaque], list[Opaque]], ids=str)
def test_a_type_that_cannot_be_used_is_explained_without_pydantics_advice(kind: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        ExpectedOutput(kind)
    said = caught.value.message
    assert caught.value.details["option"] == "output_type"
    assert "; give " in said
    assert not any(word in said for word in ("TypeAdapter", "rebuild", "pydantic-core", "Forward"))

"""What a signature can say becomes the schema; what cannot be said is refused with its name."""

from __future__ import annotations

import datetime as dt
import functools
import socket
import threading
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, TextIO
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, SecretStr

# typing.TypedDict of Python 3.11 keeps too little for pydantic to read.
from typing_extensions import TypedDict

from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.tools import FunctionTool, Tool, ToolContext, tool, tool_from
from agent_core.types import ToolDefinition, ToolResult
from tables import together


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(StrEnum):
    SMALL = "small"


@dataclass
class Box:
    width: int
    tags: list[str]


class Spot(TypedDict):
    x: int


class Node(BaseModel):
    name: str
    children: list[Node] = []


def properties(made: Tool) -> dict[str, Any]:
    return made.definition.input_schema["properties"]


async def answer(made: Tool, context: ToolContext, **arguments: object) -> Any:
    return await (await made.prepare(made.parse(arguments), context)).run()


# --- defaults ------------------------------------------------------------------------------------


async def test_a_field_as_a_default_gives_constraints_and_a_value(context: ToolContext) -> None:
    @tool
    def pick(x: int = Field(5, ge=1, le=9, description="How many.")) -> int:
        return x

    assert properties(pick) == {
        "x": {
            "type": "integer",
            "minimum": 1,
            "maximum": 9,
            "description": "How many.",
            "default": 5,
        }
    }
    assert "required" not in pick.definition.input_schema
    assert await answer(pick, context) == 5
    assert await answer(pick, context, x=None) == 5
    assert await answer(pick, context, x=7) == 7
    with pytest.raises(ToolError):
        pick.parse({"x": 0})
    assert pick() == 5
    assert pick(3) == 3


async def test_a_field_without_a_default_is_required(context: ToolContext) -> None:
    @tool
    def pick(x: int = Field(ge=1), y: str = Field(..., min_length=2)) -> str:
        return f"{x} {y}"

    assert pick.definition.input_schema["required"] == ["x", "y"]
    with pytest.raises(ToolError):
        pick.parse({"x": 1})
    assert await answer(pick, context, x=1, y="ab") == "1 ab"


async def test_a_default_inside_annotated_counts(context: ToolContext) -> None:
    @tool
    def pick(x: Annotated[int, Field(default=4, gt=1)], y: Annotated[int, Field(gt=1)] = 3) -> int:
        return x * y

    assert properties(pick)["x"]["default"] == 4
    assert await answer(pick, context) == 12
    with pytest.raises(ToolError):
        pick.parse({"x": 1})


async def test_a_factory_makes_a_new_value_for_each_call(context: ToolContext) -> None:
    @tool
    async def collect(items: list[int] = Field(default_factory=list[int])) -> list[int]:  # noqa: B008
        items.append(1)
        return items

    assert "default" not in properties(collect)["items"]
    assert await answer(collect, context) == [1]
    assert await answer(collect, context) == [1]
    assert await collect() == [1]


async def test_a_list_in_a_field_is_not_shared_between_calls(context: ToolContext) -> None:
    @tool
    def collect(items: list[int] = Field([0])) -> list[int]:  # noqa: B008
        items.append(1)
        return items

    assert properties(collect)["items"]["default"] == [0]
    assert await answer(collect, context) == [0, 1]
    assert await answer(collect, context) == [0, 1]


async def test_a_default_without_a_form_in_json_is_passed_on_and_not_shown(
    context: ToolContext,
) -> None:
    lock = threading.Lock()

    @tool
    def hold(x: Any = lock, y: set[str] = {"a"}, z: float = float("inf")) -> bool:  # noqa: B006
        return x is lock and y == {"a"} and z > 1

    assert all("default" not in each for each in properties(hold).values())
    assert await answer(hold, context) is True


def test_equal_defaults_of_different_types_stay_different() -> None:
    def made(default: Any) -> Any:
        @tool
        def pick(x: Any = default) -> None: ...

        return properties(pick)["x"]["default"]

    assert [repr(made(value)) for value in (1, True, 1.0)] == ["1", "True", "1.0"]


# --- types ---------------------------------------------------------------------------------------


async def test_types_of_every_kind_have_a_schema_and_arrive_as_such(context: ToolContext) -> None:
    @tool
    def take(
        colour: Colour,
        box: Box,
        spot: Spot,
        node: Node,
        when: dt.date,
        either: int | list[str],
        size: Size = Size.SMALL,
        mode: Literal["a", 1] = "a",
        note: str | None = None,
        shade: Colour = Colour.BLUE,
    ) -> list[object]:
        kinds = [type(each).__name__ for each in (colour, box, spot, node, when, size)]
        return [*kinds, node.children[0].name, either, note, shade.value, mode]

    shown = properties(take)
    assert shown["colour"]["enum"] == ["red", "blue"]
    assert shown["box"]["required"] == ["width", "tags"]
    assert shown["spot"]["properties"] == {"x": {"type": "integer"}}
    assert shown["when"] == {"type": "string", "format": "date"}
    assert (shown["size"]["default"], shown["shade"]["default"]) == ("small", "blue")
    assert "default" not in shown["note"]
    result = await answer(
        take,
        context,
        colour="red",
        box={"width": 1, "tags": ["t"]},
        spot={"x": 1},
        node={"name": "n", "children": [{"name": "inner"}]},
        when="2026-01-02",
        either=["e"],
    )
    kinds = ["Colour", "Box", "dict", "Node", "date", "Size"]
    assert result == [*kinds, "inner", ["e"], None, "blue", "a"]


async def test_annotations_that_are_text_may_name_local_types(context: ToolContext) -> None:
    class Local(BaseModel):
        n: int

    @tool
    def take(value: Local) -> int:
        return value.n

    @tool(name="other")
    async def later(values: list[Local], context: ToolContext | None = None) -> int:
        assert context is not None
        return sum(value.n for value in values)

    assert await answer(take, context, value={"n": 3}) == 3
    assert await answer(later, context, values=[{"n": 1}, {"n": 2}]) == 3
    assert list(properties(later)) == ["values"]


async def test_a_context_may_be_annotated_in_any_way(context: ToolContext) -> None:
    @tool
    def which(
        a: ToolContext,
        b: ToolContext | None = None,
        c: Annotated[ToolContext, "filled in"] = None,  # pyright: ignore[reportArgumentType]
    ) -> bool:
        return a is b is c is context

    assert properties(which) == {}
    assert await answer(which, context) is True


# --- callables -----------------------------------------------------------------------------------


class Counter:
    """A counter."""

    def __init__(self, start: int) -> None:
        self._start = start

    def __call__(self, by: int = 1) -> int:
        """Count on.

        Args:
            by: how far.
        """
        return self._start + by

    def back(self, by: int) -> int:
        """Count back."""
        return self._start - by

    @classmethod
    def named(cls, name: str) -> str:
        return f"{cls.__name__} {name}"

    @staticmethod
    def fixed(by: Annotated[int, Field(ge=1)]) -> int:
        return by


class Later:
    async def __call__(self, x: int, *, context: ToolContext) -> str:
        return f"{x} {context.run_id}"


async def test_methods_objects_and_partials_are_tools(context: ToolContext) -> None:
    counter = Counter(10)
    assert await answer(tool(counter), context, by=2) == 12
    assert tool(counter).definition.name == "Counter"
    assert tool(counter).definition.description == "Count on."
    assert properties(tool(counter))["by"]["description"] == "how far."
    assert await answer(tool(counter.back), context, by=2) == 8
    assert await answer(tool(Counter.named), context, name="x") == "Counter x"
    assert await answer(tool(Counter.fixed), context, by=2) == 2
    assert await answer(tool(Later()), context, x=2) == "2 run_1"


async def test_a_partial_shows_only_what_is_left_to_fill(context: ToolContext) -> None:
    def join(secret: str, left: str, right: Annotated[str, Field(min_length=1)]) -> str:
        """Join two words.

        Args:
            right: the second word.
        """
        return f"{secret}:{left}{right}"

    made = tool(functools.partial(functools.partial(join, "s"), left="l"))
    assert made.definition.name == "join"
    assert made.definition.description == "Join two words."
    assert properties(made) == {
        "right": {"type": "string", "minLength": 1, "description": "the second word."}
    }
    assert await answer(made, context, right="r") == "s:lr"
    with pytest.raises(ToolError):
        made.parse({"right": "r", "left": "mine"})


async def test_a_wrapped_function_keeps_its_signature(context: ToolContext) -> None:
    def twice(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> int:
            return 2 * function(*args, **kwargs)

        return wrapper

    @tool
    @twice
    def add(a: int, b: int = Field(2)) -> int:
        """Add."""
        return a + b

    assert properties(add)["b"]["default"] == 2
    assert await answer(add, context, a=1) == 6


# --- refusals ------------------------------------------------------------------------------------


class Opaque: ...


def numbers(n: int) -> Iterator[int]:
    yield n


async def later_numbers(n: int) -> AsyncIterator[int]:
    yield n


def says_generator(n: int) -> Generator[int, None, None]:
    return (each for each in range(n))


class Numbers:
    def __call__(self, n: int) -> Iterator[int]:
        yield n


class LaterNumbers:
    async def __call__(self, n: int) -> AsyncIterator[int]:
        yield n


@functools.wraps(numbers)
def wrapped_numbers(*args: Any) -> Any:
    return numbers(*args)


def spread(*values: int) -> None: ...
def keywords(**values: int) -> None: ...
def positional(first: int, /) -> None: ...
def opaque(fine: int, thing: Opaque) -> None: ...
def callback(fine: int, then: Callable[[int], int]) -> None: ...
def choice(fine: int, then: int | Callable[[int], int]) -> None: ...
def aliased(name: str = Field(alias="Name")) -> None: ...
def aliased_inside(name: Annotated[str, Field(validation_alias="Name")]) -> None: ...
def needs_data(n: list[int] = Field(default_factory=lambda data: [len(data)])) -> None: ...  # noqa: B008
def unknown(fine: int, thing: int) -> None: ...


class Named(BaseModel):
    name: str = Field(ge=1)


def text_ge(x: str = Field("a", ge=1)) -> None: ...
def number_length(x: Annotated[int, Field(max_length=3)]) -> None: ...
def number_pattern(x: int = Field(3, pattern="a+")) -> None: ...
def flag_length(x: Annotated[bool, Field(min_length=1)]) -> None: ...
def text_multiple(x: Annotated[str, Field(multiple_of=2)]) -> None: ...
def one_choice(x: Annotated[int | str, Field(ge=1)]) -> None: ...
def optional_text(x: Annotated[str | None, Field(ge=1)] = None) -> None: ...
def inside_list(fine: int, x: list[Annotated[str, Field(ge=1)]]) -> None: ...
def inside_model(fine: int, x: Named) -> None: ...
def one_literal(x: Annotated[Literal["a", 5], Field(ge=1)]) -> None: ...
def one_member(x: Annotated[Colour, Field(ge=1)]) -> None: ...
def second_constraint(x: Annotated[str, Field(min_length=1), Field(le=1)]) -> None: ...
def list_pattern(x: Annotated[list[str], Field(pattern="a")]) -> None: ...


unknown.__annotations__["thing"] = "Nowhere"

REFUSED: list[tuple[Any, str]] = [
    (numbers, "generator"),
    (later_numbers, "generator"),
    (says_generator, "generator"),
    (Numbers(), "generator"),
    (LaterNumbers(), "generator"),
    (functools.partial(numbers, 3), "generator"),
    (functools.partial(Numbers(), n=3), "generator"),
    (wrapped_numbers, "generator"),
    (spread, "values"),
    (keywords, "values"),
    (positional, "first"),
    (opaque, "thing"),
    (callback, "then"),
    (choice, "then"),
    (aliased, "name"),
    (aliased_inside, "name"),
    (needs_data, "n "),
    (unknown, "thing"),
    (text_ge, "x: ge cannot hold for a value of type str"),
    (number_length, "x: max_length cannot hold for a value of type int"),
    (number_pattern, "x: a constraint of texts cannot hold for a value of type int"),
    (flag_length, "bool"),
    (text_multiple, "multiple_of"),
    (one_choice, "str"),
    (optional_text, "str"),
    (inside_list, "x: ge"),
    (inside_model, "x: ge"),
    (one_literal, "str"),
    (one_member, "Colour"),
    (second_constraint, "le"),
    (list_pattern, "list"),
    (lambda: None, "<lambda>"),
    (Counter.back, "self"),
    (classmethod(lambda cls: None), "classmethod"),
    (7, "int"),
]


@together(("function", "named"), REFUSED)
def test_what_cannot_be_a_tool_is_refused_when_decorated(function: Any, named: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a tool") as refusal:
        tool(function)
    assert named in refusal.value.message
    with pytest.raises(ConfigError):
        tool(permission="readonly")(function)


@together(
    "options",
    [{"name": "a b"}, {"name": ""}, {"permission": "maybe"}, {"tags": "dangerous"}, {"tags": 5}],
)
def test_a_name_and_a_permission_that_do_not_fit_are_refused(options: dict[str, Any]) -> None:
    def plain(n: int) -> int:
        return n

    with pytest.raises(ConfigError, match=r"plain\(\) cannot be a tool") as refusal:
        tool(**options)(plain)
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR
    assert "ToolDefinition" not in refusal.value.message


async def test_constraints_that_fit_hold(context: ToolContext) -> None:
    @tool
    def fits(
        number: Annotated[int | float, Field(ge=1)],
        both: Annotated[str | list[int], Field(max_length=2)],
        day: Annotated[dt.date, Field(ge=dt.date(2020, 1, 1))],
        word: Annotated[str, Field(ge="b")],
        five: Annotated[Literal[5], Field(ge=1)],
        anything: Annotated[Any, Field(ge=1)],
        later: Annotated[int | None, Field(ge=1)] = None,
    ) -> list[Any]:
        return [number, both, day, word, five, anything, later]

    good: dict[str, Any] = {"number": 1.5, "both": [1, 2], "day": "2021-01-01", "word": "c"}
    good |= {"five": 5, "anything": 2}
    assert await answer(fits, context, **good) == [
        1.5, [1, 2], dt.date(2021, 1, 1), "c", 5, 2, None,
    ]  # fmt: skip
    for wrong in (
        {"number": 0.5}, {"both": "abc"}, {"day": "2019-01-01"}, {"word": "a"}, {"anything": "a"},
    ):  # fmt: skip
        with pytest.raises(ToolError) as refusal:
            fits.parse(good | wrong)
        assert refusal.value.code is ErrorCode.VALIDATION_ERROR


# --- docstrings ----------------------------------------------------------------------------------


def sphinx(x: int, y: int) -> int:
    """Add numbers.

    Both of them.

    :param int x: the first,
        which comes first
    :param y: the second
    :type y: int
    :returns: a sum
    """
    return x + y


def numpy(x: int, y: int) -> int:
    """Add numbers.

    Both of them.

    Parameters
    ----------
    x : int
        the first,
        which comes first
    y
        the second

    Returns
    -------
    int
        a sum
    """
    return x + y


@pytest.mark.parametrize("function", [sphinx, numpy])
def test_docstrings_of_three_styles_are_read(function: Callable[[int, int], int]) -> None:
    made: FunctionTool[[int, int], int] = tool(function)
    assert made.definition.description == "Add numbers.\n\nBoth of them."
    described = [each["description"] for each in properties(made).values()]
    assert described == ["the first, which comes first", "the second"]


def test_a_description_of_a_field_is_kept() -> None:
    @tool
    def pick(x: int = Field(1, description="from the field")) -> int:
        """Pick.

        Args:
            x: from the docstring.
        """
        return x

    assert properties(pick)["x"]["description"] == "from the field"


class Unwritable:
    """A class of a program, without a form in JSON."""


@dataclass
class PartlyWritable:
    name: str
    held: Unwritable


UNWRITABLE: list[Any] = [
    *(socket.socket, threading.Thread, Unwritable, TextIO, type, ModuleType, Callable[[], int]),
    *(list[Unwritable], dict[str, Unwritable], Unwritable | None, Unwritable | socket.socket),
    *(Annotated[Unwritable, 1], Awaitable[Unwritable], list[Iterator[int]], Iterator[int]),
    *(threading.Lock, threading.RLock, dict[str, threading.Lock], AsyncIterable[int]),
]
WRITABLE: list[Any] = [
    *(None, Any, object, bytes, bytearray, memoryview, complex, set[int], Decimal, UUID, Path),
    *(PartlyWritable, list[PartlyWritable], str | Unwritable, tuple[str, Unwritable], range),
    *(Awaitable[bytes], Coroutine[Any, Any, str], Iterable[int], Mapping[str, bytes], Exception),
    *(deque[int], SecretStr, Literal["a"], ToolResult, dt.date, "Unknown"),
]


def annotated(hint: Any) -> Callable[..., Any]:
    def made() -> Any: ...

    made.__annotations__["return"] = hint
    return made


@together("hint", UNWRITABLE, ids=[f"{n}" for n in range(len(UNWRITABLE))])
def test_a_return_type_that_can_never_be_written_is_refused(hint: Any) -> None:
    with pytest.raises(ConfigError, match=r"made\(\) cannot be a tool: it says that it returns"):
        tool(annotated(hint))


@together("hint", WRITABLE, ids=str)
def test_a_return_type_that_may_be_written_is_accepted(hint: Any) -> None:
    assert tool(annotated(hint)).name == "made"


def test_a_handler_with_such_a_return_type_is_refused() -> None:
    async def handle(arguments: dict[str, Any], context: ToolContext) -> Unwritable:
        return Unwritable()

    definition = ToolDefinition(name="t", description="")
    with pytest.raises(ConfigError, match=r"the handler of t cannot be used: .* Unwritable"):
        tool_from(definition, handle)  # pyright: ignore[reportArgumentType]


def unannotated(name: str, default: str = "") -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(f"def made(item: str, {name}{default}) -> str: ...", namespace)  # noqa: S102
    return namespace["made"]


@together("name", ["context", "ctx"])
def test_a_context_needs_its_annotation(name: str) -> None:
    for default in ("", "=None"):
        with pytest.raises(ConfigError, match=f"write {name}: ToolContext") as refused:
            tool(unannotated(name, default))
        assert refused.value.code is ErrorCode.VALIDATION_ERROR


def test_the_model_fills_in_a_context_of_another_type() -> None:
    def summarise(context: str, other) -> str:  # type: ignore[no-untyped-def] # noqa: ANN001
        return context

    assert list(_schema_of(summarise)["properties"]) == ["context", "other"]


def _schema_of(function: Any) -> dict[str, Any]:
    return dict(tool(function).definition.input_schema)

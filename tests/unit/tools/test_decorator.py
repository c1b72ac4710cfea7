"""A typed function becomes a tool."""

import asyncio
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.tools import Concurrency, FunctionTool, Tool, ToolContext, signatures, tool
from agent_core.types import ToolPermission
from tables import together


class Place(BaseModel):
    city: str
    zoom: int = 1


async def answer(made: Tool, context: ToolContext, **arguments: object) -> object:
    action = await made.prepare(made.parse(arguments), context)
    return await action.run()


@tool
async def forecast(
    place: Place,
    days: Annotated[int, Field(ge=1, le=7)] = 3,
    unit: Literal["c", "f"] = "c",
    note: str | None = None,
) -> dict[str, Any]:
    """Tell the weather.

    It is often right.

    Args:
        place: Where, as a city
            and a zoom.
        days (int): How far ahead.

    Returns:
        Something the model is not told.
    """
    return {"city": place.city, "days": days, "unit": unit, "note": note}


def test_the_definition_comes_from_signature_and_docstring() -> None:
    definition = forecast.definition
    assert definition.name == "forecast"
    assert definition.description == "Tell the weather.\n\nIt is often right."
    assert definition.permission is ToolPermission.WRITE
    assert definition.input_schema == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "place": {
                "type": "object",
                "description": "Where, as a city and a zoom.",
                "properties": {
                    "city": {"type": "string"},
                    "zoom": {"type": "integer", "default": 1},
                },
                "required": ["city"],
            },
            "days": {
                "type": "integer",
                "minimum": 1,
                "maximum": 7,
                "description": "How far ahead.",
                "default": 3,
            },
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "note": {"type": "string"},
        },
        "required": ["place"],
    }


async def test_arguments_arrive_as_types_and_absent_ones_as_defaults(
    context: ToolContext,
) -> None:
    result = await answer(forecast, context, place={"city": "Oslo"}, days=None)
    assert result == {"city": "Oslo", "days": 3, "unit": "c", "note": None}


async def test_the_function_can_still_be_called() -> None:
    assert (await forecast(Place(city="Rome"), days=1))["days"] == 1


@together(
    ("arguments", "path"),
    [
        ({}, "$.place"),
        ({"place": {"city": 1}}, "$.place.city"),
        ({"place": {"city": "x"}, "days": 9}, "$.days"),
        ({"place": {"city": "x"}, "when": 1}, "$.when"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(ToolError) as refusal:
        forecast.parse(arguments)
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR
    assert refusal.value.details["path"] == path


async def test_a_context_is_filled_in_and_not_shown(context: ToolContext) -> None:
    @tool(name="who.am_i", description="Say who.", permission="readonly", tags={"x"})
    def who(greeting: str, context: ToolContext) -> str:
        return f"{greeting} {context.run_id}"

    assert list(who.definition.input_schema["properties"]) == ["greeting"]
    assert who.definition.name == "who.am_i"
    assert who.definition.tags == {"x"}
    assert who.concurrency is Concurrency.READ
    assert await answer(who, context, greeting="hi") == "hi run_1"


async def test_a_plain_function_does_not_hold_up_the_event_loop(context: ToolContext) -> None:
    released = threading.Event()

    @tool
    def wait() -> bool:
        """Wait for the loop."""
        return released.wait(5)

    waiting = asyncio.create_task(answer(wait, context))
    await asyncio.sleep(0)
    released.set()
    assert await waiting is True


async def test_a_plain_function_that_never_returns_can_be_left(context: ToolContext) -> None:
    never = threading.Event()

    @tool
    def hang() -> None:
        never.wait(30)

    waiting = asyncio.create_task(answer(hang, context))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    never.set()


@pytest.mark.parametrize(
    "raised", [ValueError("no"), StopIteration("odd"), ToolError("timeout", "t")]
)
async def test_an_exception_of_a_plain_function_reaches_the_caller(
    context: ToolContext, raised: Exception
) -> None:
    @tool
    def fail() -> None:
        raise raised

    with pytest.raises((type(raised), RuntimeError)):
        await answer(fail, context)


async def test_a_tool_that_writes_asks_and_one_that_reads_does_not(context: ToolContext) -> None:
    @tool(permission="readonly")
    def look(what: str) -> str:
        return what

    @tool(permission="readonly", tags={"network"})
    def fetch(url: str) -> str:
        return url

    def access(made: Tool, **arguments: object) -> Any:
        return made.prepare(made.parse(arguments), context)

    assert not (await access(look, what="x")).access.asks
    assert (await access(fetch, url="x")).access.asks
    writing = (await access(forecast, place={"city": "Oslo"})).access
    assert writing.asks
    assert writing.summary == '{"place":{"city":"Oslo"}}' or "Oslo" in writing.summary


def test_names_that_a_model_class_would_not_take_are_fine() -> None:
    @tool
    def odd(json: str, model_config: int, copy: bool = False) -> None: ...

    assert odd.parse({"json": "a", "model_config": 1}) == {"json": "a", "model_config": 1}


def test_a_signature_without_names_is_refused() -> None:
    def spread(*args: int) -> None: ...

    with pytest.raises(ConfigError, match="spread"):
        tool(spread)

    def unknown(x: object) -> None: ...

    unknown.__annotations__["x"] = "Nowhere"

    with pytest.raises(ConfigError, match="Nowhere"):
        tool(unknown)


def test_two_tools_of_one_shape_share_what_was_compiled() -> None:
    def make() -> FunctionTool[[int], int]:
        @tool
        def double(x: int) -> int:
            """Double."""
            return 2 * x

        return double

    make()
    compiled = signatures._compile_once.cache_info().misses
    make()
    assert signatures._compile_once.cache_info().misses == compiled

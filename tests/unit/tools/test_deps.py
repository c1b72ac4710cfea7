"""Tools find the dependencies of their run, or the run is refused before the model is asked."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NewType, Protocol, TypedDict

import pytest

from agent_core import ConfigError, ErrorCode, ToolContext, ToolRetry, tool
from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.composer import Composer, SystemBlocks
from agent_core.loop import StandaloneRun, build_run
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider
from agent_core.tools import Tool
from agent_core.types import ToolResultBlock, user_text
from tables import together


class Stock:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def count(self, item: str) -> int:
        self.asked.append(item)
        return len(item)


class LargeStock(Stock):
    pass


class Counts(Protocol):
    def count(self, item: str) -> int: ...


class Settings(TypedDict):
    host: str


Handle = NewType("Handle", Stock)


@tool(permission="readonly")
async def count_items(item: str, context: ToolContext[Stock]) -> int:
    """Count."""
    return context.deps.count(item)


@tool(permission="readonly")
def count_in_a_thread(item: str, *, context: "ToolContext[Stock] | None" = None) -> int:
    """Count."""
    assert context is not None
    assert threading.current_thread() is not threading.main_thread()
    return context.deps.count(item)


@tool(permission="readonly")
async def anything(context: ToolContext) -> str:
    """Look."""
    return type(context.deps).__name__


def a_run(deps: object, *tools: Tool, calls: list[ScriptedCall] | None = None) -> StandaloneRun:
    model = ModelConfig(provider="scripted", name="script", context_window=32_000)
    script = [Calls(calls=calls), "done"] if calls else ["done"]
    return build_run(
        provider=ScriptedProvider(script),
        composer=Composer(model, ContextConfig(), SystemBlocks()),
        tools=tools,
        deps=deps,
    )


async def results(run: StandaloneRun) -> list[ToolResultBlock]:
    await run.run(user_text("go"))
    return [result for node in run.ctx.journal.path for result in node.results]


@pytest.mark.parametrize("made", [count_items, count_in_a_thread])
async def test_a_tool_finds_the_very_object_that_the_run_was_given(made: Tool) -> None:
    stock = LargeStock()
    call = ScriptedCall(name=made.name, arguments={"item": "lamp"})
    (result,) = await results(a_run(stock, made, calls=[call]))
    assert not result.is_error
    assert stock.asked == ["lamp"]
    assert "context" not in made.definition.input_schema["properties"]


async def test_a_plain_context_takes_any_dependencies_and_none() -> None:
    for deps in (None, 3, Stock()):
        (result,) = await results(a_run(deps, anything, calls=[ScriptedCall(name="anything")]))
        assert type(deps).__name__ in str(result.content)


@together("deps", [None, "a text", Stock, 0])
def test_other_dependencies_are_refused_with_the_names_of_tool_and_class(deps: object) -> None:
    with pytest.raises(ConfigError, match=r"count_items takes ToolContext\[Stock\]") as caught:
        a_run(deps, anything, count_items)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def takes(hint: Any) -> Tool:
    async def look(context: Any) -> None:
        """Look."""

    look.__annotations__["context"] = ToolContext[hint]
    return tool(look)


FITS: list[tuple[Any, object, object]] = [
    (Stock | None, None, 3),
    (Stock | int, 3, "x"),
    (dict[str, int], {"a": 1}, [1]),
    (Settings, {"host": "h"}, 3),
    (Counts, Stock(), 3),
    (Handle, Stock(), 3),
    (Literal["a", "b"], "a", "c"),
    (Callable[[], int], int, 3),
    (type[Stock], Stock, Stock()),
    (None, None, 3),
]


@together(("hint", "good", "bad"), FITS)
def test_every_kind_of_annotation_is_checked(hint: Any, good: object, bad: object) -> None:
    a_run(good, takes(hint))
    with pytest.raises(ConfigError):
        a_run(bad, takes(hint))


def test_an_annotation_of_anything_takes_anything() -> None:
    a_run(3, takes(Any), takes(object))


def test_a_class_that_cannot_be_found_is_refused_where_the_tool_is_made() -> None:
    async def look(context: Any) -> None:
        """Look."""

    look.__annotations__["context"] = "ToolContext[Missing]"
    with pytest.raises(ConfigError, match="context"):
        tool(look)


async def test_a_partial_and_an_object_get_them_too() -> None:
    class Counter:
        async def __call__(self, item: str, times: int, context: ToolContext[Stock]) -> int:
            """Count."""
            return context.deps.count(item) * times

    made = tool(name="counter")(partial(Counter(), times=2))
    call = ScriptedCall(name="counter", arguments={"item": "lamp"})
    (result,) = await results(a_run(Stock(), made, calls=[call]))
    assert "8" in str(result.content)
    with pytest.raises(ConfigError):
        a_run(None, made)


@tool(permission="readonly")
async def picky(item: str) -> str:
    """Look an item up."""
    if item.islower():
        return f"found {item}"
    raise ToolRetry("items are written in small letters")


@tool(permission="readonly")
def picky_in_a_thread(item: str) -> str:
    """Look an item up."""
    raise ToolRetry(f"{item * 100_000} is none")


async def test_a_tool_can_ask_to_be_called_again() -> None:
    calls = [
        ScriptedCall(name="picky", arguments={"item": "LAMP"}),
        ScriptedCall(name="picky", arguments={"item": "lamp"}),
    ]
    wrong, right = await results(a_run(None, picky, calls=calls))
    assert wrong.is_error
    assert wrong.error is not None
    assert "items are written in small letters" in wrong.error.message
    assert "Call the tool again" in wrong.error.message
    assert wrong.error.code is ErrorCode.VALIDATION_ERROR
    assert not right.is_error


async def test_what_it_says_is_bounded_like_every_error() -> None:
    call = ScriptedCall(name="picky_in_a_thread", arguments={"item": "LAMP"})
    (result,) = await results(a_run(None, picky_in_a_thread, calls=[call]))
    assert result.is_error
    assert len(result.model_dump_json()) < 20_000

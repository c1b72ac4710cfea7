"""A function of a program that cannot be called is refused when the program hands it over."""

from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from agcore.llm import HookEvent, HookExecutor
from agcore.memory import InMemoryStore, KnowledgeStore, MemoryRetriever
from agcore.tools import PermissionConfig
from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    Extension,
    ExtensionContext,
    ModelConfig,
    RunOptions,
    ToolDefinition,
    Toolset,
    Worker,
    on_answer,
    on_message,
    on_tool_call,
    on_tool_result,
    tool,
)
from agent_core.callbacks import callback_problem, result_of
from agent_core.loop.options import stored_options
from agent_core.testing import ScriptedProvider, function_model
from tables import together


def of_nothing() -> str:
    return ""


def of_three(first: str, second: str, third: str) -> str:
    return first + second + third


def of_one(first: Any) -> Any:
    return first


async def async_of_one(first: Any) -> Any:
    return first


class Hook:
    """A hook whose method takes what is given."""

    def __init__(self, execute: object) -> None:
        self.execute = execute


def with_method(name: str, method: object) -> Extension:
    """Return an extension with one method of its own."""
    return type("Own", (Extension,), {name: method})()


DOORS: dict[str, tuple[Callable[[Any], object], str]] = {
    "permission_callback": (lambda given: AgentRuntime(permission_callback=given), "permission"),
    "elicitation_callback": (lambda given: AgentRuntime(elicitation_callback=given), "elicitation"),
    "of a worker": (lambda given: Worker(permission_callback=given), "permission_callback"),
    "the provider": (lambda given: AgentRuntime().register_provider("own", given), "factory"),
    "the handler": (
        lambda given: AgentRuntime().register_tool(
            ToolDefinition(name="own", description="Works."), given
        ),
        "handler",
    ),
    "is_enabled": (lambda given: tool(is_enabled=given)(of_one), "is_enabled"),
    "prepare": (lambda given: tool(prepare=given)(of_one), "prepare"),
    "filter": (lambda given: Toolset("own", filter=given), "filter"),
    "validators": (
        lambda given: stored_options(RunOptions(output_validators=[given])),
        "output_validators",
    ),
    "on_message": (lambda given: on_message(given), "check"),
    "on_tool_call": (lambda given: on_tool_call(given), "check"),
    "on_tool_result": (lambda given: on_tool_result(given), "check"),
    "on_answer": (lambda given: on_answer(given), "check"),
    "a model": (lambda given: function_model(given), "answer"),
    "agcore's question": (lambda given: PermissionConfig(ask=given), "ask"),
    "agcore's hook": (
        lambda given: HookExecutor().register(HookEvent.ON_TURN_END, Hook(given)),  # type: ignore[arg-type]
        "execute",
    ),
    "agcore's embeddings": (
        lambda given: MemoryRetriever(KnowledgeStore(InMemoryStore()), embed=given),
        "embed",
    ),
}
WRONG: dict[str, object] = {
    "a number": 7,
    "a function of nothing": of_nothing,
    "a function of three": of_three,
    "a part of a function": partial(of_three, "a", "b", "c"),
    "a class": Hook,
}


@together(("door", "given"), [(door, given) for door in DOORS for given in WRONG])
def test_what_cannot_be_called_is_refused_with_the_name_of_the_argument(
    door: str, given: str
) -> None:
    hand_over, name = DOORS[door]
    if door == "the provider" and given == "a class":
        return  # it may be one
    with pytest.raises(AgentCoreError) as caught:
        hand_over(WRONG[given])
    assert caught.value.code in {
        ErrorCode.VALIDATION_ERROR,
        ErrorCode.CONFIG_ERROR,
        ErrorCode.PROVIDER_ERROR,  # the kind `Other` of the toolkit
    }
    assert name in caught.value.message


@together("name", [name for name in DOORS if name not in {"the handler"}])
def test_a_function_that_can_be_called_is_taken(name: str) -> None:
    DOORS[name][0](async_of_one)


@together("name", ["on_message", "on_tool_call", "on_tool_result", "on_answer", "agcore's hook"])
def test_what_is_awaited_has_to_be_async(name: str) -> None:
    with pytest.raises(AgentCoreError, match="async"):
        DOORS[name][0](of_one)


def test_instructions_and_keys_are_functions_too() -> None:
    with pytest.raises(AgentCoreError, match=r"^instructions must be a function of \(context\); "):
        stored_options(RunOptions(instructions=of_nothing))  # type: ignore[arg-type]
    with pytest.raises(AgentCoreError, match=r"api_key must be a function without arguments; "):
        ModelConfig(provider="openai", name="x", api_key=of_one)  # type: ignore[arg-type]


async def async_method(self: object, *given: object) -> None:
    pass


def plain_method(self: object, *given: object) -> None:
    pass


async def async_without_context(self: object) -> None:
    pass


METHODS: dict[str, tuple[str, object, str]] = {
    "a method that is awaited": ("before_tool_call", plain_method, "is not async"),
    "a method that is not": ("instructions", async_method, "a coroutine"),
    "a method without context": ("run_started", async_without_context, "cannot be called"),
}


@together("name", METHODS)
def test_a_method_of_an_extension_fits_its_point(name: str) -> None:
    method, function, said = METHODS[name]
    with pytest.raises(AgentCoreError) as caught:
        stored_options(RunOptions(extensions=[with_method(method, function)]))
    assert caught.value.details["option"] == "extensions"
    assert method in caught.value.message
    assert said in caught.value.message


def test_a_builtin_without_a_signature_is_taken() -> None:
    assert callback_problem(max, "first", "second") is None


async def test_a_plain_function_may_return_what_is_awaited() -> None:
    assert await result_of(of_one, 3) == 3
    assert await result_of(async_of_one, 3) == 3

    def later(first: Any) -> Any:
        return async_of_one(first)

    assert await result_of(later, 3) == 3


async def test_a_part_of_an_async_object_is_async() -> None:
    class Asks:
        async def __call__(self, place: str, request: str) -> str:
            return place + request

    part = partial(partial(Asks()), "here: ")
    assert callback_problem(part, "request", needs_async=True) is None
    assert await result_of(part, "this") == "here: this"


def counted(method: Callable[..., Any]) -> Callable[..., Any]:
    """A plain decorator, as most are."""

    @wraps(method)
    def call(*arguments: Any) -> Any:
        COUNTS[method.__name__] += 1
        return method(*arguments)

    return call


COUNTS = Counter[str]()


class Decorated(Extension):
    """Its async methods are below a plain decorator."""

    @counted
    async def on_message(self, context: ExtensionContext, message: str) -> None:
        pass

    @counted
    async def before_stop(self, context: ExtensionContext, answer: str) -> str | None:
        return None


async def test_an_async_method_below_a_plain_decorator_is_awaited(tmp_path: Path) -> None:
    COUNTS.clear()
    model = ScriptedProvider(["hi"])
    async with AgentRuntime(tmp_path, model=model, persist=False, extensions=[Decorated()]) as made:
        assert (await made.run("hello")).text == "hi"
    assert COUNTS == {"on_message": 1, "before_stop": 1}


async def test_an_async_guard_below_a_plain_decorator_is_awaited(tmp_path: Path) -> None:
    COUNTS.clear()

    @on_message
    @counted
    async def loud(text: str) -> None:
        return None

    async with AgentRuntime(tmp_path, model=ScriptedProvider(["hi"]), persist=False) as made:
        assert (await made.run("hello", guards=[loud])).text == "hi"
    assert COUNTS == {"loud": 1}

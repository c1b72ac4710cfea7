"""Which tools there are, and which of them a run may use."""

from functools import partial
from typing import Any

import pytest

from agent_core.config.models import ToolOverrideConfig
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.tools import Concurrency, Toolbox, ToolContext, ToolRegistry, tool, tool_from
from agent_core.tools.registry import apply_override
from agent_core.types import ToolCall, ToolDefinition, ToolPermission
from tables import together


async def echo(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return {"run": context.run_id, **arguments}


def definition(name: str, **fields: Any) -> ToolDefinition:
    return ToolDefinition(name=name, description=f"Does {name}.", **fields)


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(tool_call_id="call_1", name=name, arguments=arguments)


def test_a_duplicate_name_is_an_error_and_the_first_tool_stays() -> None:
    registry = ToolRegistry()
    registry.register(definition("a.b"), echo)
    first = registry.get("a.b")
    with pytest.raises(ConfigError) as refusal:
        registry.register(tool_from(definition("a.b"), echo))
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR
    assert registry.get("a.b") is first
    assert [each.name for each in registry] == ["a.b"]


def test_a_definition_without_a_handler_is_refused() -> None:
    with pytest.raises(ConfigError, match="no handler"):
        ToolRegistry().register(definition("a"), None)  # pyright: ignore[reportArgumentType]


async def test_a_registered_handler_gets_arguments_and_context(context: ToolContext) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    made = tool_from(definition("a", input_schema=schema), echo)
    action = await made.prepare(made.parse({"x": 1}), context)
    assert action.access.asks
    assert await action.run() == {"run": "run_1", "x": 1}


def test_a_toolbox_shows_its_tools_by_name() -> None:
    box = Toolbox(tool_from(definition(name), echo) for name in ("c", "a", "b"))
    assert [each.name for each in box.definitions] == ["a", "b", "c"]
    assert box.definitions is box.definitions
    assert box.names == {"a", "b", "c"}


def test_a_tool_outside_the_box_is_not_available() -> None:
    box = Toolbox([tool_from(definition("code.read_file"), echo)])
    with pytest.raises(ToolError, match=r"code\.read_file") as refusal:
        box.resolve(call("code.readfile"))
    assert refusal.value.code is ErrorCode.TOOL_NOT_AVAILABLE
    assert box.concurrency(call("code.readfile")) is Concurrency.READ
    with pytest.raises(ToolError, match="no tools"):
        Toolbox().resolve(call("x" * 10_000))


def test_arguments_that_were_no_object_come_back_to_the_model() -> None:
    box = Toolbox([tool_from(definition("a"), echo)])
    broken = ToolCall(tool_call_id="c", name="a", metadata={"invalid_arguments": '{"path": '})
    with pytest.raises(ToolError) as refusal:
        box.resolve(broken)
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR
    assert '{"path": ' in str(refusal.value)


def test_a_call_resolves_to_its_tool_and_parsed_arguments() -> None:
    @tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert Toolbox([add]).resolve(call("add", a="2")) == (add, {"a": 2})


async def test_an_override_changes_who_is_asked_and_the_order(context: ToolContext) -> None:
    made = tool_from(definition("a"), echo)
    reads = apply_override(made, ToolOverrideConfig(permission="readonly", tags=["safe"]))
    assert reads.definition.permission is ToolPermission.READONLY
    assert reads.definition.tags == {"safe"}
    assert reads.concurrency is Concurrency.READ
    assert not (await reads.prepare({}, context)).access.asks
    writes = apply_override(reads, ToolOverrideConfig(permission="write"))
    assert (await writes.prepare({}, context)).access.asks
    assert apply_override(made, ToolOverrideConfig()) is made


def _generator(arguments: dict[str, Any], context: ToolContext) -> Any:
    yield 1


async def _async_generator(arguments: dict[str, Any], context: ToolContext) -> Any:
    yield 1


def _too_few(arguments: dict[str, Any]) -> None: ...


@together(
    ("handler", "reason"),
    [
        (_generator, "generator"),
        (_async_generator, "generator"),
        (partial(_generator), "generator"),
        (_too_few, "arguments, context"),
        (7, "must be a function"),
    ],
)
def test_a_handler_that_cannot_be_called_as_one_is_refused_when_registered(
    handler: Any, reason: str
) -> None:
    registry = ToolRegistry()
    with pytest.raises(ConfigError, match=reason):
        registry.register(ToolDefinition(name="t", description="t"), handler)
    assert "t" not in registry

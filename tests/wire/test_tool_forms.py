"""Tools whose schemas a service refuses: rewritten where the meaning is kept, or left out alone."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from agent_core import AgentRuntime, Budget, ToolContext
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.scripted import calls
from agent_core.providers.tool_forms import FORMS, NoFormError
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    Role,
    TextBlock,
    ToolDefinition,
)
from model_server import ModelServer, Received, Reply, Status
from tables import together

QUICK = RetryConfig(max_attempts=2, initial_backoff_ms=1, max_backoff_ms=2)
GOOD = ToolDefinition(name="mcp.shop.good", description="Good.")


def tool(name: str, **schema: Any) -> ToolDefinition:
    return ToolDefinition(name=f"mcp.shop.{name}", description="Odd.", input_schema=schema)


async def played(
    protocol: str, tools: list[ToolDefinition], *replies: Reply
) -> tuple[list[ModelEvent], list[bytes]]:
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    async with ModelServer(replies) as server:
        config = ModelConfig(
            provider=protocol, name="m", base_url=server.base_url(protocol), retry=QUICK
        )
        adapter = ProviderRegistry().create(config)
        request = ModelRequest(model="m", messages=[hello], tools=tools)
        events = [event async for event in adapter.stream(request)]
        await adapter.close()
        return events, [received.raw for received in server.requests]


STRICT = [name for name in FORMS if not FORMS[name].choices]


@together("service", STRICT)
def test_choices_at_the_top_become_arguments(service: str) -> None:
    by_id = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    by_name = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
    schema, names = FORMS[service].of(
        {"type": "object", "anyOf": [by_id, by_name, {"type": "null"}]}
    )
    assert schema["properties"] == {"id": {"type": "integer"}, "name": {"type": "string"}}
    assert not schema.keys() & {"anyOf", "required"}
    assert '{"required":["name"]}' in schema["description"]
    assert names == {}


def test_all_of_and_references_at_the_top_are_joined() -> None:
    schema, _ = FORMS["anthropic"].of(
        {
            "$defs": {"Page": {"properties": {"page": {"type": "integer"}}, "required": ["page"]}},
            "allOf": [{"$ref": "#/$defs/Page"}, {"properties": {"q": {"type": "string"}}}],
        }
    )
    assert schema["type"] == "object"
    assert schema["properties"].keys() == {"page", "q"}
    assert schema["required"] == ["page"]


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}]
)
def test_arguments_that_are_no_object_have_no_form(schema: dict[str, Any]) -> None:
    with pytest.raises(NoFormError):
        FORMS["openai"].of(schema)


@together("service", FORMS)
def test_arrays_say_what_is_in_them(service: str) -> None:
    nested = {"type": ["array", "null"]}
    draft_7 = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}
    old = {"type": "number", "minimum": 0, "exclusiveMinimum": True}
    properties = {"a": {"type": "array"}, "b": draft_7, "c": {"items": nested}, "d": old}
    schema, _ = FORMS[service].of({"type": "object", "properties": properties})
    read = schema["properties"]
    assert read["a"]["items"] == read["c"]["items"]["items"] == {}
    if FORMS[service].tuples:
        assert read["b"] == {"type": "array", "prefixItems": draft_7["items"]}
    else:
        assert read["b"]["items"] == {"anyOf": draft_7["items"]}
        assert "elements in order" in read["b"]["description"]
    assert read["d"] == {"type": "number", "exclusiveMinimum": 0}


async def test_names_of_arguments_are_told_plainly_and_read_back() -> None:
    odd = tool(
        "find",
        type="object",
        properties={"$filter": {"type": "string"}, "filter": {}, "filter[id]": {}},
        required=["$filter"],
    )
    answer = calls(odd.name, filter_2="a", filter_id="7")
    events, sent = await played("anthropic", [odd], answer)
    schema = orjson.loads(sent[0])["tools"][0]["input_schema"]
    assert schema["properties"].keys() == {"filter_2", "filter", "filter_id"}
    assert schema["required"] == ["filter_2"]
    assert isinstance(events[-1], ModelCompleted)
    assert events[-1].tool_calls[0].arguments == {"$filter": "a", "filter[id]": "7"}


async def test_a_tool_without_a_form_is_left_out_and_named() -> None:
    events, sent = await played("anthropic", [tool("odd", type="string"), GOOD], "done")
    assert b"odd" not in sent[0]
    assert isinstance(events[0], ModelStarted)
    assert events[0].left_out.keys() == {"mcp.shop.odd"}
    assert "its arguments are not an object" in events[0].left_out["mcp.shop.odd"]
    assert not [event for event in events if isinstance(event, ModelRetry)]
    assert isinstance(events[-1], ModelCompleted)


@together(
    ("protocol", "words"),
    [
        ("anthropic", "tools.1.custom.input_schema: JSON schema is invalid"),
        ("openai", "Invalid schema for function 'mcp__shop__odd': In context=(), bad"),
        ("openai", "Invalid tools[1].function.parameters"),
        ("gemini", "* GenerateContentRequest.tools[0].function_declarations[1].parameters: bad"),
        ("ollama", "tools.1: json: cannot unmarshal bool into Go struct field properties"),
    ],
)
async def test_a_tool_that_is_refused_is_left_out_and_the_call_repeated(
    protocol: str, words: str
) -> None:
    refusal = Status(400, orjson.dumps({"error": {"message": words}}))
    odd = tool("odd", type="object", properties={"a": {"pattern": "("}})
    events, sent = await played(protocol, [GOOD, odd], refusal, "done")
    assert isinstance(events[-1], ModelCompleted), events
    assert b"odd" in sent[0]
    assert b"odd" not in sent[1]
    assert b"good" in sent[1]
    [told] = [event.error for event in events if isinstance(event, ModelRetry)]
    assert told.details["left_out"] == ["mcp.shop.odd"]
    assert "mcp.shop.odd" in told.message


async def test_attempts_are_counted_over_all_forms_of_a_request() -> None:
    words = "Invalid schema for function 'mcp__shop__odd'"
    refusal = Status(400, orjson.dumps({"error": {"message": words}}))
    busy = Status(500, b"{}")
    events, _ = await played("openai", [GOOD, tool("odd")], busy, refusal, busy, "done")
    assert isinstance(events[-1], ModelCompleted)
    assert [event.attempt for event in events if isinstance(event, ModelRetry)] == [1, 2, 3]


async def never(arguments: dict[str, Any], context: ToolContext[Any]) -> str:
    raise AssertionError


async def test_a_tool_that_is_left_out_costs_no_request_of_the_budget(tmp_path: Path) -> None:
    async with ModelServer(["done"]) as server:
        config = ModelConfig(
            provider="anthropic", name="m", base_url=server.base_url("anthropic"), retry=QUICK
        )
        no_form = {"type": "object", "anyOf": [{"type": "string"}]}
        odd = ToolDefinition(name="odd", description="Odd.", input_schema=no_form)
        async with AgentRuntime(tmp_path, model=config, persist=False) as made:
            result = await made.run(
                "go", tools=[(odd, never)], budget=Budget(requests=1), events=True
            )
    assert result.text == "done"
    (started,) = (each for each in result.events or () if each.event_type == "model_started")
    assert list(started.payload["left_out"]) == ["odd"]
    assert started.level == "warning"
    assert "model_retry" not in [each.event_type for each in result.events or ()]


async def test_the_programs_own_words_about_a_refusal_name_no_tool() -> None:
    words = {"error": {"message": "Invalid schema for function 'mcp__shop__odd': bad"}}
    refusal = Status(400, orjson.dumps(words))
    plain = ToolDefinition(name="status", description="Tells.", input_schema={"type": "object"})
    odd = tool("odd", type="object")
    events, _ = await played("openai", [plain, odd], refusal, "done")
    [told] = [event.error for event in events if isinstance(event, ModelRetry)]
    assert told.details["left_out"] == ["mcp.shop.odd"]


async def test_ordinary_tools_are_sent_as_they_are() -> None:
    plain = tool("plain", type="object", properties={"a": {"type": "string"}}, required=["a"])
    _, sent = await played("anthropic", [GOOD, plain], "done")
    shown = orjson.loads(sent[0])["tools"]
    assert [each["input_schema"] for each in shown] == [GOOD.input_schema, plain.input_schema]


async def in_runs(
    tools: list[ToolDefinition], refused: str, words: str, runs: list[str]
) -> tuple[list[list[ModelEvent]], list[set[str]]]:
    """Play one conversation over several requests, against a service that refuses one tool."""
    sent: list[set[str]] = []

    def answer(received: Received) -> Reply:
        sent.append(
            {each["function"]["name"].rpartition("__")[2] for each in received.body["tools"]}
        )
        if refused in sent[-1]:
            return Status(400, orjson.dumps({"error": {"message": words}}))
        return "done"

    played: list[list[ModelEvent]] = []
    async with ModelServer(answer) as server:
        config = ModelConfig(
            provider="openai", name="m", base_url=server.base_url("openai"), retry=QUICK
        )
        adapter = ProviderRegistry().create(config)
        said = [ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])]
        for run in runs:
            request = ModelRequest(
                model="m", messages=[*said], tools=tools, metadata={"run_id": run}
            )
            played.append([event async for event in adapter.stream(request)])
            said += [
                ModelMessage(role=role, content=[TextBlock(text="x")])
                for role in (Role.ASSISTANT, Role.USER)
            ]
        await adapter.close()
    return played, sent


async def test_a_refused_tool_is_left_out_of_its_run_only() -> None:
    words = "Invalid schema for function 'mcp__shop__odd'"
    played, sent = await in_runs([GOOD, tool("odd")], "odd", words, ["a", "a", "b"])
    assert sent == [{"good", "odd"}, {"good"}, {"good"}, {"good", "odd"}, {"good"}]
    [told] = [event.error for event in played[0] if isinstance(event, ModelRetry)]
    assert "left out: mcp.shop.odd (OpenAI refuses its schema)" in told.message
    assert not [event for event in played[1] if isinstance(event, ModelRetry)]
    assert all(isinstance(events[-1], ModelCompleted) for events in played)


@together("at", [0, 5, 10])
async def test_a_refused_tool_that_is_not_named_is_found_by_halving(at: int) -> None:
    own = ToolDefinition(name="code.read_file", description="Own.")
    tools = [own, *(tool(f"t{number}") for number in range(11))]
    words = "Invalid JSON schema in the request"
    played, sent = await in_runs(tools, f"t{at}", words, ["a"] * 12)
    assert all(isinstance(events[-1], ModelCompleted) for events in played)
    assert sent[-1] == {"read_file", *(f"t{number}" for number in range(11))} - {f"t{at}"}
    refusals = [event for events in played for event in events if isinstance(event, ModelRetry)]
    assert len(refusals) <= 5
    told = [event.error.message for event in refusals if "left out" in event.error.details]
    assert len([each for each in refusals if each.error.details.get("left_out")]) == 1, told


async def test_a_refusal_about_something_else_costs_few_requests() -> None:
    tools = [ToolDefinition(name="code.read_file", description="Own."), *map(tool, "abcd")]
    played, sent = await in_runs(tools, "read_file", "Invalid JSON schema", ["a"])
    assert not isinstance(played[0][-1], ModelCompleted)
    assert len(sent) <= 12

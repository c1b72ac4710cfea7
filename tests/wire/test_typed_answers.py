"""Each service is held to the schema of a typed answer in its own words, or offered the tool."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers.base import ProviderRegistry
from agent_core.tools.output import ExpectedOutput
from agent_core.types import (
    FINAL_ANSWER,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    OutputMode,
    Role,
    TextBlock,
    ToolDefinition,
)
from model_server import ModelServer, Received, Reply, Status
from tables import together

CITY: dict[str, Any] = {
    "type": "object",
    "title": "City",
    "description": "A city.",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "people": {"type": "integer", "minimum": 0},
        "kind": {"oneOf": [{"const": "port"}, {"const": "inland"}]},
    },
    "required": ["name"],
}
STRICT = {
    "type": "object",
    "description": "A city.",
    "properties": {
        "name": {"type": "string", "description": "(minLength: 2)"},
        "people": {"type": ["integer", "null"], "minimum": 0},
        "kind": {"anyOf": [{"anyOf": [{"const": "port"}, {"const": "inland"}]}, {"type": "null"}]},
    },
    "required": ["name", "people", "kind"],
    "additionalProperties": False,
}
CLAUDE = {
    "type": "object",
    "description": "A city.",
    "properties": {
        "name": {"type": "string", "description": "(minLength: 2)"},
        "people": {"type": "integer", "description": "(minimum: 0)"},
        "kind": {"anyOf": [{"const": "port"}, {"const": "inland"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
}
MAP = {"type": "object", "additionalProperties": {"type": "integer"}}
LOOK = ToolDefinition(name="look", description="Look.")


def a_request(
    schema: dict[str, Any] = CITY,
    *tools: ToolDefinition,
    model: str = "m",
    mode: OutputMode = "auto",
) -> ModelRequest:
    expected = ExpectedOutput(schema, mode=mode)
    offered = [*tools, expected.tool] if expected.tool else list(tools)
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="which city?")])
    return ModelRequest(model=model, messages=[hello], tools=offered, output=expected.format)


def _rome(_: Received) -> Reply:
    return '{"name": "Rome"}'


async def sent(
    provider: str,
    request: ModelRequest,
    *replies: Reply,
    times: int = 1,
    **config: Any,
) -> tuple[list[ModelEvent], list[dict[str, Any]]]:
    async with ModelServer(list(replies) or _rome) as server:
        kind = "openai" if provider == "responses" else provider
        settings: dict[str, Any] = {"base_url": server.base_url(provider), **config}
        if provider == "bedrock":
            settings["api_key_env"] = "TYPED_KEY"
        if provider == "responses":
            settings["api"] = "responses"
        made = ModelConfig(provider=kind, name=request.model, **settings)
        adapter = ProviderRegistry().create(made)
        events: list[ModelEvent] = []
        try:
            for _ in range(times):
                events += [event async for event in adapter.stream(request)]
        finally:
            await adapter.close()
    return events, [each.body for each in server.requests]


def offered(body: dict[str, Any]) -> str:
    return json.dumps(body.get("tools", body.get("toolConfig", [])))


CHAT = {
    "type": "json_schema",
    "json_schema": {"name": "City", "description": "A city.", "schema": STRICT, "strict": True},
}
RESPONSES = {
    "type": "json_schema",
    "name": "City",
    "description": "A city.",
    "schema": STRICT,
    "strict": True,
}
Finds = Callable[[dict[str, Any]], Any]
BESIDE_TOOLS: list[tuple[str, str, Finds, Any]] = [
    ("openai", "m", lambda body: body["response_format"], CHAT),
    ("responses", "m", lambda body: body["text"]["format"], RESPONSES),
    (
        "anthropic",
        "claude-sonnet-4-5",
        lambda body: body["output_config"],
        {"format": {"type": "json_schema", "schema": CLAUDE}},
    ),
    (
        "gemini",
        "gemini-3-pro-preview",
        lambda body: body["generationConfig"]["responseJsonSchema"],
        CITY,
    ),
]
ALONE: list[tuple[str, str, Finds, Any]] = [
    *BESIDE_TOOLS,
    (
        "bedrock",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        lambda body: json.loads(
            body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]
        ),
        CLAUDE,
    ),
    ("ollama", "m", lambda body: body["format"], CITY),
    (
        "gemini",
        "gemini-2.5-flash",
        lambda b: b["generationConfig"]["responseMimeType"],
        "application/json",
    ),
]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TYPED_KEY", "k")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


@together(("provider", "model", "find", "said"), ALONE)
async def test_a_service_with_a_schema_mode_is_held_to_the_schema(
    provider: str, model: str, find: Finds, said: object
) -> None:
    events, (body,) = await sent(provider, a_request(model=model))
    assert find(body) == said
    assert FINAL_ANSWER not in offered(body)
    assert isinstance(events[0], ModelStarted)
    assert events[0].native_output
    assert isinstance(events[-1], ModelCompleted)


@together(("provider", "model", "find", "said"), BESIDE_TOOLS)
async def test_tools_stand_beside_the_schema(
    provider: str, model: str, find: Finds, said: object
) -> None:
    _, (body,) = await sent(provider, a_request(CITY, LOOK, model=model))
    assert find(body) == said
    assert "look" in offered(body)
    assert FINAL_ANSWER not in offered(body)


WITHOUT: list[tuple[str, str, dict[str, Any]]] = [
    ("ollama", "m", {}),
    ("gemini", "gemini-2.5-flash", {}),
    ("anthropic", "claude-3-5-haiku-latest", {}),
    ("anthropic", "claude-sonnet-4-20250514", {}),
    ("anthropic", "another", {}),
    ("bedrock", "anthropic.claude-sonnet-4-20250514-v1:0", {}),
    ("bedrock", "amazon.nova-pro-v1:0", {}),
    *(
        ("openai", "m", {"compat": {"server": server}})
        for server in ("vllm", "sglang", "llamacpp", "lmstudio", "groq", "deepseek", "gemini")
    ),
    ("openai", "m", {"compat": {"json_schema": "never"}}),
]


@together(("provider", "model", "config"), WITHOUT)
async def test_where_a_schema_would_keep_a_model_from_its_tools_there_is_one_more_tool(
    provider: str, model: str, config: dict[str, Any]
) -> None:
    events, (body,) = await sent(provider, a_request(CITY, LOOK, model=model), **config)
    assert FINAL_ANSWER in offered(body)
    assert "look" in offered(body)
    assert not {"format", "response_format", "output_config"} & body.keys()
    assert isinstance(events[0], ModelStarted)
    assert not events[0].native_output


@together("provider", ["openai", "responses", "anthropic", "gemini", "ollama"])
async def test_the_tool_can_be_chosen(provider: str) -> None:
    model = "claude-sonnet-4-5" if provider == "anthropic" else "m"
    _, (body,) = await sent(provider, a_request(mode="tool", model=model))
    assert FINAL_ANSWER in offered(body)
    assert "json_schema" not in json.dumps(body)


@together("provider", ["openai", "responses", "gemini", "ollama"])
async def test_the_schema_mode_can_be_chosen_beside_tools(provider: str) -> None:
    _, (body,) = await sent(provider, a_request(CITY, LOOK, mode="native"))
    assert "look" in offered(body)
    assert "people" in json.dumps(body)


async def test_a_model_without_the_mode_is_not_asked_for_it() -> None:
    request = a_request(mode="native", model="claude-3-5-haiku-latest")
    with pytest.raises(ProviderError) as caught:
        await sent("anthropic", request)
    assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY
    assert "output_mode" in caught.value.message


@together("provider", ["openai", "responses", "anthropic"])
async def test_what_strict_schemas_cannot_say_is_not_said_as_one(provider: str) -> None:
    model = "claude-sonnet-4-5" if provider == "anthropic" else "m"
    _, (body,) = await sent(provider, a_request(MAP, model=model))
    if provider == "anthropic":
        assert FINAL_ANSWER in offered(body)
    else:
        said = json.dumps(body)
        assert '"strict": false' in said
        assert json.dumps(MAP["additionalProperties"]) in said


def refusal(words: str) -> Status:
    return Status(
        400, json.dumps({"error": {"message": words, "type": "invalid_request_error"}}).encode()
    )


REFUSALS = [
    ("openai", "Invalid parameter: 'response_format' of type 'json_schema' is not supported"),
    ("openai", "Cannot use custom grammar constraints with tools."),
    ("openai", "Invalid schema for response_format 'City': schema must be nicer"),
    ("responses", "Unsupported parameter: 'text.format'"),
    ("anthropic", "output_config.format: Extra inputs are not permitted"),
    ("gemini", "Function calling with a response mime type: 'application/json' is unsupported"),
]


@pytest.mark.parametrize(("provider", "words"), REFUSALS)
async def test_a_service_that_refuses_the_schema_is_offered_the_tool_from_then_on(
    provider: str, words: str
) -> None:
    models = {"anthropic": "claude-sonnet-4-5", "gemini": "gemini-3-pro"}
    request = a_request(CITY, LOOK, model=models.get(provider, "m"))
    replies = [refusal(words), '{"name": "Rome"}', '{"name": "Rome"}']
    events, bodies = await sent(provider, request, *replies, times=2)
    assert [FINAL_ANSWER in offered(body) for body in bodies] == [False, True, True]
    assert isinstance(events[1], ModelRetry)
    assert words[:20] in events[1].error.message
    assert isinstance(events[-1], ModelCompleted)


async def test_a_refusal_for_another_reason_is_told() -> None:
    events, bodies = await sent(
        "openai", a_request(), refusal("no such model"), refusal("no such model")
    )
    assert len(bodies) == 2
    assert isinstance(events[-1], ModelFailed)
    assert "no such model" in events[-1].error.message


async def test_a_mode_that_was_asked_for_and_is_refused_is_told() -> None:
    words = "Unsupported parameter: 'response_format'"
    with pytest.raises(ProviderError, match="output_mode") as caught:
        await sent("openai", a_request(mode="native"), refusal(words))
    assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY


async def test_options_of_the_user_go_before() -> None:
    _, (body,) = await sent(
        "openai",
        a_request(),
        provider_options={"openai": {"response_format": {"type": "json_object"}}},
    )
    assert body["response_format"] == {"type": "json_object"}


async def test_effort_and_schema_stand_together() -> None:
    _, (body,) = await sent(
        "anthropic", a_request(model="claude-opus-4-6"), reasoning="low", max_output_tokens=8192
    )
    assert body["output_config"]["effort"] == "low"
    assert body["output_config"]["format"]["type"] == "json_schema"

"""The exact bodies that each service is sent. A change here is a change of what models see."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest

from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.chat_completions import OpenAIProvider
from agent_core.providers.failures import Called
from agent_core.types import (
    ModelEvent,
    ModelRequest,
    Role,
    TextBlock,
    ToolDefinition,
)
from model_server import ModelServer, Received
from tables import together
from wire_bodies import ANTHROPIC, BEDROCK, GEMINI, OLLAMA, OPENAI, PICTURES
from wire_conversation import HISTORY, PICTURED, SYSTEM, TOOLS, message


def asked(**more: Any) -> ModelRequest:
    fields: dict[str, Any] = {"system": SYSTEM, "messages": HISTORY, "tools": TOOLS, **more}
    return ModelRequest(model="m", **fields)


class Session:
    """One adapter and the service behind it."""

    def __init__(self, key: str, server: ModelServer, adapter: ProviderAdapter) -> None:
        self.key = key
        self.server = server
        self.adapter = adapter

    async def send(self, request: ModelRequest) -> Received:
        events: list[ModelEvent] = [event async for event in self.adapter.stream(request)]
        assert events
        return self.server.requests[-1]


@pytest.fixture(params=["openai", "anthropic", "ollama", "gemini", "bedrock"])
async def session(request: pytest.FixtureRequest) -> AsyncGenerator[Session]:
    key: str = request.param
    async with ModelServer(lambda _: "ok") as server:
        settings = server.settings(key)
        settings["base_url"] += "/"
        config = ModelConfig(name="m", max_output_tokens=100, **settings)
        adapter = ProviderRegistry().create(config)
        yield Session(key, server, adapter)
        await adapter.close()


BODIES = {
    "openai": OPENAI,
    "anthropic": ANTHROPIC,
    "ollama": OLLAMA,
    "gemini": GEMINI,
    "bedrock": BEDROCK,
}
PATHS = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "ollama": "/api/chat",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
    "bedrock": "/model/m/converse-stream",
}


async def test_a_whole_conversation_is_sent_exactly_like_this(session: Session) -> None:
    received = await session.send(asked(temperature=0.5, stop=["END"]))

    assert received.path == PATHS[session.key]
    assert json.dumps(received.body, indent=1) == json.dumps(BODIES[session.key], indent=1)


async def test_pictures_in_results_are_sent_exactly_like_this(session: Session) -> None:
    received = await session.send(asked(system=[], messages=PICTURED))

    messages = received.body["contents" if session.key == "gemini" else "messages"]
    found = messages[-len(PICTURES[session.key]) :]
    assert json.dumps(found, indent=1) == json.dumps(PICTURES[session.key], indent=1)


async def test_the_next_turn_begins_with_the_same_bytes(session: Session) -> None:
    request = asked()
    first = await session.send(request)
    reply = message(Role.ASSISTANT, TextBlock(text="done"))
    second = await session.send(asked(messages=[*HISTORY, reply]))

    prefix = first.raw if session.key != "anthropic" else without_marks(first.raw)
    longer = second.raw if session.key != "anthropic" else without_marks(second.raw)
    assert longer.startswith(prefix.removesuffix(b"]}"))
    assert len(longer) > len(prefix)


async def test_equal_definitions_give_equal_bytes_in_another_process(session: Session) -> None:
    copies = [ToolDefinition.model_validate(orjson.loads(tool.model_dump_json())) for tool in TOOLS]

    first = await session.send(asked())
    second = await session.send(asked(tools=copies, system=[*SYSTEM]))

    assert first.raw == second.raw


def without_marks(raw: bytes) -> bytes:
    return raw.replace(b'"cache_control":{"type":"ephemeral"},', b"")


async def test_only_four_places_are_marked_for_the_cache() -> None:
    async with ModelServer(lambda _: "ok") as server:
        adapter = ProviderRegistry().create(
            ModelConfig(provider="anthropic", name="m", base_url=server.url)
        )
        turns = [
            message(role, TextBlock(text=f"turn {number}"))
            for number in range(5)
            for role in (Role.USER, Role.ASSISTANT)
        ]
        async for _ in adapter.stream(asked(messages=turns)):
            pass
        await adapter.close()

    body = server.requests[0].body
    assert server.requests[0].raw.count(b"cache_control") == 4
    assert [("cache_control" in block) for block in body["system"]] == [False, True, False]
    assert [("cache_control" in tool) for tool in body["tools"]] == [False, True]
    marked = [
        item["content"][-1]["text"]
        for item in body["messages"]
        if "cache_control" in item["content"][-1]
    ]
    assert marked == ["turn 3", "turn 4"]


@together(
    ("choice", "openai", "anthropic", "gemini", "bedrock"),
    [
        ("auto", "auto", {"type": "auto"}, {"mode": "AUTO"}, {"auto": {}}),
        ("none", "none", {"type": "none"}, {"mode": "NONE"}, None),
        ("required", "required", {"type": "any"}, {"mode": "ANY"}, {"any": {}}),
        (
            "code.list_dir",
            {"type": "function", "function": {"name": "code__list_dir"}},
            {"type": "tool", "name": "code__list_dir"},
            {"allowedFunctionNames": ["code__list_dir"], "mode": "ANY"},
            {"tool": {"name": "code__list_dir"}},
        ),
    ],
)
async def test_the_choice_of_tools_is_said_or_refused(
    session: Session,
    choice: str,
    openai: object,
    anthropic: object,
    gemini: object,
    bedrock: object,
) -> None:
    request = asked(tool_choice=choice)

    if session.key == "ollama" and choice not in {"auto", "none"}:
        with pytest.raises(ProviderError) as caught:
            await session.send(request)
        assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY
        assert caught.value.details["capability"] == "tool_choice"
        return
    body = (await session.send(request)).body
    match session.key:
        case "gemini":
            assert body["toolConfig"] == {"functionCallingConfig": gemini}
        case "bedrock":
            assert body["toolConfig"].get("toolChoice") == bedrock
        case _:
            expected = {"openai": openai, "anthropic": anthropic, "ollama": None}
            assert body.get("tool_choice") == expected[session.key]
            assert ("tools" in body) is (session.key != "ollama" or choice != "none")


async def test_a_choice_of_a_tool_that_is_not_offered_is_refused(session: Session) -> None:
    with pytest.raises(ProviderError):
        await session.send(asked(tool_choice="code.nothing"))


OPTION = {
    "openai": "seed",
    "anthropic": "top_k",
    "ollama": "keep_alive",
    "gemini": "cachedContent",
    "bedrock": "requestMetadata",
}


async def test_options_are_keyed_by_provider_and_checked(session: Session) -> None:
    key, option = session.key, OPTION[session.key]
    own = {option: 7, "extra_body": {"vendor": True}, "headers": {"X-Team": "red"}}
    options = {key: own, "other": {"anything": 1}}

    received = await session.send(asked(provider_options=options))

    assert received.body[option] == 7
    assert received.body["vendor"] is True
    assert received.headers["x-team"] == "red"
    refused: list[dict[str, Any]] = [
        {key: {"tpo_p": 1}},
        {"top_p": 1},
        {key: {"extra_body": {"messages": []}}},
        {key: {"headers": {"Authorization": "Bearer x"}}},
    ]
    for wrong in refused:
        with pytest.raises(ProviderError) as caught:
            await session.send(asked(provider_options=wrong))
        assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY
    assert len(session.server.requests) == 1


async def test_openais_own_models_are_given_their_own_limit_field() -> None:
    config = ModelConfig(provider="openai", name="m", max_output_tokens=5)
    body = OpenAIProvider(config).prepare(asked(), Called("openai", "m")).body

    assert orjson.loads(body)["max_completion_tokens"] == 5

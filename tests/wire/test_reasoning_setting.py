"""`reasoning` has one spelling; each service is asked in its own words."""

from collections.abc import Callable
from typing import Any

import orjson

from agent_core.config.models import ModelConfig
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.local import LocalProvider
from agent_core.types import (
    ModelMessage,
    ModelRequest,
    ReasoningBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
)
from model_server import ModelServer
from tables import together

HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
TOOLS = [ToolDefinition(name="run", description="")]


async def body_of(provider: str, **settings: Any) -> dict[str, Any]:
    name = settings.pop("name", "m")
    messages = settings.pop("messages", [HELLO])
    request = {"tool_choice": settings.pop("tool_choice", None)}
    async with ModelServer(lambda _: "ok") as server:
        config = ModelConfig(
            provider=provider, name=name, base_url=server.base_url(provider), **settings
        )
        adapter = ProviderRegistry().create(config)
        async for _ in adapter.stream(
            ModelRequest(model=name, messages=messages, tools=TOOLS, **request)
        ):
            pass
        await adapter.close()
    return orjson.loads(server.requests[0].raw)


FIELDS = ("reasoning_effort", "thinking", "output_config", "think", "reasoning")


def said(body: dict[str, Any]) -> dict[str, Any]:
    return {key: body[key] for key in FIELDS if key in body}


@together("provider", ["openai", "anthropic", "ollama"])
async def test_nothing_is_said_without_the_setting(provider: str) -> None:
    assert said(await body_of(provider)) == {}


@together(
    ("provider", "level", "expected"),
    [
        *(("openai", each, {"reasoning_effort": each}) for each in ("none", "low", "high")),
        ("ollama", "none", {"think": False}),
        ("ollama", "medium", {"think": "medium"}),
        ("anthropic", "none", {"thinking": {"type": "disabled"}}),
        ("anthropic", "low", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("anthropic", "medium", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("anthropic", "high", {"thinking": {"type": "enabled", "budget_tokens": 3072}}),
    ],
)
async def test_each_service_is_asked_in_its_own_words(
    provider: str, level: str, expected: dict[str, Any]
) -> None:
    assert said(await body_of(provider, reasoning=level)) == expected


@together(
    ("name", "kind"),
    [
        ("claude-3-7-sonnet-20250219", "enabled"),
        ("claude-sonnet-4-20250514", "enabled"),
        ("claude-opus-4-5", "enabled"),
        ("claude-haiku-4-5-20251001", "enabled"),
        ("claude-sonnet-4-6", "adaptive"),
        ("claude-opus-4-10", "adaptive"),
        ("claude-opus-5", "adaptive"),
        ("claude-sonnet-5-5", "adaptive"),
        ("kimi-k2", "enabled"),
    ],
)
async def test_claude_models_are_given_a_budget_or_an_effort(name: str, kind: str) -> None:
    body = await body_of("anthropic", name=name, reasoning="high")

    assert body["thinking"]["type"] == kind
    assert body.get("output_config") == ({"effort": "high"} if kind == "adaptive" else None)


async def test_an_effort_stands_beside_an_output_config_of_the_user() -> None:
    options = {"anthropic": {"output_config": {"format": {"type": "json_schema"}}}}
    body = await body_of(
        "anthropic", name="claude-opus-5", reasoning="low", provider_options=options
    )

    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema"}}


async def test_what_anthropic_refuses_beside_thinking_is_not_sent() -> None:
    body = await body_of("anthropic", reasoning="low", temperature=0.5)
    assert "temperature" not in body
    assert (await body_of("anthropic", reasoning="none", temperature=0.5))["temperature"] == 0.5

    forced = await body_of("anthropic", reasoning="low", temperature=0.5, tool_choice="required")
    assert said(forced) == {}
    assert forced["temperature"] == 0.5

    assert said(await body_of("anthropic", reasoning="low", max_output_tokens=1024)) == {}


def turn(*thoughts: ReasoningBlock) -> list[ModelMessage]:
    """A turn that has called a tool."""
    call = ToolCallBlock(tool_call_id="c", name="run")
    return [
        HELLO,
        ModelMessage(role=Role.ASSISTANT, content=[*thoughts, call]),
        ModelMessage(role=Role.TOOL, content=[ToolResultBlock(tool_call_id="c")]),
    ]


OWN = {"provider": "anthropic", "model": "m"}
SIGNED = ReasoningBlock(text="hm", signature="c2ln", metadata=OWN)
HIDDEN = ReasoningBlock(text="", metadata={**OWN, "redacted_thinking": "aGk="})
CLEANED = ReasoningBlock(text="hm", metadata=OWN)
FOREIGN = ReasoningBlock(text="hm", signature="c2ln", metadata={**OWN, "model": "another"})


@together(
    ("messages", "thinks"),
    [
        (turn(SIGNED), True),
        (turn(HIDDEN), True),
        ([*turn(SIGNED), *turn()[1:]], True),
        ([*turn(), HELLO], True),
        (turn(), False),
        (turn(CLEANED), False),
        (turn(FOREIGN), False),
        ([*turn(SIGNED), *turn()], False),
    ],
)
async def test_a_turn_that_claude_began_without_a_thought_goes_on_without(
    messages: list[ModelMessage], *, thinks: bool
) -> None:
    body = await body_of("anthropic", reasoning="low", messages=messages)

    assert ("thinking" in body) is thinks


async def test_the_engine_in_the_process_is_told_in_what_its_templates_know() -> None:
    for level, expected in (
        ("none", {"enable_thinking": False}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
    ):
        bodies: list[dict[str, Any]] = []

        class Engine:
            def handle_chat_completions(
                self, prompt: str, callback: Callable[[str | dict[str, Any]], bool]
            ) -> None:
                bodies.append(orjson.loads(prompt))  # noqa: B023 - called in this turn only
                callback({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})

        config = ModelConfig.model_validate({"provider": "local", "name": "m", "reasoning": level})
        adapter = LocalProvider(config, Engine)
        async for _ in adapter.stream(ModelRequest(model="m", messages=[HELLO])):
            pass
        await adapter.close()
        assert bodies[0]["chat_template_kwargs"] == expected


@together(
    ("provider", "option"),
    [
        ("openai", {"reasoning_effort": "minimal"}),
        ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ("ollama", {"think": True}),
    ],
)
async def test_an_option_of_the_provider_goes_before_the_setting(
    provider: str, option: dict[str, Any]
) -> None:
    body = await body_of(provider, reasoning="high", provider_options={provider: option})

    assert said(body) == option

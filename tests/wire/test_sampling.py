"""Temperature, seed, stop texts, reasoning and the length of a reply, as each service has them."""

from typing import Any

import orjson
import pytest

from agent_core import ErrorCode, ModelConfig, ProviderError
from agent_core.providers.base import ProviderRegistry
from agent_core.types import ModelFailed, ModelMessage, ModelRequest, Role, TextBlock
from model_server import ModelServer, Received, Status
from tables import together

HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
ASKED: dict[str, Any] = {
    "temperature": 0.25,
    "seed": 7,
    "stop": ["END"],
    "reasoning": "none",
    "max_output_tokens": 2000,
}


def flat(body: Any) -> dict[str, Any]:
    """The settings of a body, wherever the service keeps them."""
    inside = ("options", "generationConfig", "inferenceConfig")
    return body | {key: value for name in inside for key, value in body.get(name, {}).items()}


async def body_of(provider: str, **settings: Any) -> dict[str, Any]:
    async with ModelServer(lambda _: "ok") as server:
        base_url = server.base_url(provider)
        config = ModelConfig(provider=provider, name="m", base_url=base_url, reasoning="high")
        adapter = ProviderRegistry().create(config)
        request = ModelRequest(model="m", messages=[HELLO], **{**ASKED, **settings})
        async for _ in adapter.stream(request):
            pass
        await adapter.close()
    return flat(orjson.loads(server.requests[0].raw))


@together(
    ("provider", "expected"),
    [
        (
            "openai",
            {
                "temperature": 0.25,
                "seed": 7,
                "stop": ["END"],
                "reasoning_effort": "none",
                "max_tokens": 2000,
            },
        ),
        (
            "anthropic",
            {
                "temperature": 0.25,
                "stop_sequences": ["END"],
                "thinking": {"type": "disabled"},
                "max_tokens": 2000,
            },
        ),
        (
            "gemini",
            {
                "temperature": 0.25,
                "seed": 7,
                "stopSequences": ["END"],
                "thinkingConfig": {"includeThoughts": False, "thinkingLevel": "minimal"},
                "maxOutputTokens": 2000,
            },
        ),
        (
            "ollama",
            {
                "temperature": 0.25,
                "seed": 7,
                "stop": ["END"],
                "think": False,
                "num_predict": 2000,
            },
        ),
    ],
)
async def test_a_request_says_what_the_service_has(provider: str, expected: dict[str, Any]) -> None:
    body = await body_of(provider)
    assert {key: body.get(key) for key in expected} == expected
    assert ("seed" in body) is ("seed" in expected)


async def test_responses_has_no_seed_and_refuses_stop_texts() -> None:
    async with ModelServer(lambda _: "ok") as server:
        adapter = ProviderRegistry().create(ModelConfig(name="m", **server.settings("responses")))
        request = ModelRequest(model="m", messages=[HELLO], seed=7, temperature=0.5)
        async for _ in adapter.stream(request):
            pass
        with pytest.raises(ProviderError) as caught:
            async for _ in adapter.stream(request.model_copy(update={"stop": ["END"]})):
                pass
        await adapter.close()
    assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY
    (body,) = [orjson.loads(each.raw) for each in server.requests]
    assert "seed" not in body
    assert body["temperature"] == 0.5


async def test_mistral_has_another_word_for_a_seed() -> None:
    async with ModelServer(lambda _: "ok") as server:
        config = ModelConfig.model_validate(
            {
                "provider": "openai",
                "name": "m",
                "base_url": server.base_url("openai"),
                "compat": {"server": "mistral"},
            }
        )
        adapter = ProviderRegistry().create(config)
        async for _ in adapter.stream(ModelRequest(model="m", messages=[HELLO], seed=7)):
            pass
        await adapter.close()
    body = orjson.loads(server.requests[0].raw)
    assert body["random_seed"] == 7
    assert "seed" not in body


async def test_a_seed_that_is_refused_is_left_out() -> None:
    said = {"message": "Unsupported parameter: 'seed'.", "param": "seed"}

    def reply(received: Received) -> Any:
        has_seed = "seed" in orjson.loads(received.raw)
        return Status(400, orjson.dumps({"error": said})) if has_seed else "ok"

    async with ModelServer(reply) as server:
        config = ModelConfig(provider="openai", name="m", base_url=server.base_url("openai"))
        adapter = ProviderRegistry().create(config)
        request = ModelRequest(model="m", messages=[HELLO], seed=7)
        events = [event async for event in adapter.stream(request)]
        await adapter.close()
    assert not isinstance(events[-1], ModelFailed)
    assert ["seed" in orjson.loads(each.raw) for each in server.requests] == [True, False]

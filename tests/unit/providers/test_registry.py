import asyncio
import sys

import pytest

from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.scripted import ScriptedProvider


def test_c1_a_registered_factory_gets_the_resolved_model_configuration() -> None:
    seen: list[ModelConfig] = []
    fake = ScriptedProvider(["hi"])

    def factory(config: ModelConfig) -> ScriptedProvider:
        seen.append(config)
        return fake

    registry = ProviderRegistry()
    registry.register("custom", factory)
    config = ModelConfig(provider="custom", name="m", context_window=1234)

    assert registry.create(config) is fake
    assert seen == [config]


@pytest.mark.parametrize("key", ["openai", "custom"])
def test_a_key_cannot_be_registered_twice(key: str) -> None:
    registry = ProviderRegistry()
    registry.register("custom", lambda _: ScriptedProvider([]))

    with pytest.raises(ConfigError, match=key):
        registry.register(key, lambda _: ScriptedProvider([]))


def test_an_unknown_key_is_refused_with_the_known_ones() -> None:
    registry = ProviderRegistry()

    with pytest.raises(ConfigError) as caught:
        registry.create(ModelConfig(provider="opneai", name="m"))

    assert caught.value.code is ErrorCode.CONFIG_ERROR
    assert "'opneai'" in caught.value.message
    assert ", ".join(registry.keys) in caught.value.message
    assert caught.value.details == {"provider": "opneai", "known": registry.keys}


def test_registries_do_not_share_what_was_registered() -> None:
    ProviderRegistry().register("custom", lambda _: ScriptedProvider([]))

    assert "custom" not in ProviderRegistry().keys


async def test_the_http_client_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys; sys.path.insert(0, 'src'); import agent_core.providers.base as r; "
        "r.ProviderRegistry(); sys.exit('httptools' in sys.modules)"
    )
    python = await asyncio.create_subprocess_exec(sys.executable, "-c", code)

    assert await python.wait() == 0

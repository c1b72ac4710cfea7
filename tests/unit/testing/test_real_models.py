"""Real models are refused, before anything is sent, by every adapter in every package."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agcore.llm import AdapterProvider, ChatMessage, ChatRequest, LlmError
from agent_core import AgentRuntime, ArgumentError, ConfigError, ModelConfig, RunStatus
from agent_core.providers.base import ALLOW_REAL_MODELS, ProviderRegistry
from agent_core.providers.local import Engine, LocalProvider
from agent_core.testing import ScriptedProvider, allow_real_models
from agent_core.types import ModelMessage, ModelRequest, Role, TextBlock
from isolation import Home
from kgent import KgentError, load_config
from kgent.engine.core import CoreAgentEngine
from kgent.engine.pydantic_ai import build_model
from kgent_runs import a_run, profile
from model_server import ModelServer
from tables import together

HELLO = ModelRequest(
    model="m", messages=[ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])]
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with allow_real_models(True):
        yield


async def refusal(settings: dict[str, Any]) -> str:
    adapter = ProviderRegistry().create(ModelConfig(name="m", **settings))
    with pytest.raises(ConfigError) as caught:
        async for _ in adapter.stream(HELLO):
            pass
    await adapter.close()
    return caught.value.message


@together("protocol", ["openai", "responses", "anthropic", "ollama", "gemini", "bedrock"])
async def test_an_adapter_of_a_service_sends_nothing(protocol: str) -> None:
    async with ModelServer(lambda _: "hi") as server:
        with allow_real_models(False):
            message = await refusal(server.settings(protocol))
        assert server.connections == 0
    assert ALLOW_REAL_MODELS in message
    assert "allow_real_models(True)" in message


async def test_a_local_model_is_not_loaded() -> None:
    loaded: list[str] = []

    def load() -> Engine:
        loaded.append("model")
        raise AssertionError

    provider = LocalProvider(ModelConfig(provider="local", name="m"), load)
    with allow_real_models(False), pytest.raises(ConfigError, match="real one"):
        _ = [event async for event in provider.stream(HELLO)]
    await provider.close()
    assert not loaded


async def test_a_run_that_asks_a_real_model_fails_and_a_scripted_one_does_not(
    home: Home, project: Path
) -> None:
    home.write_config('[model]\nprovider = "ollama"\nname = "m"\nbase_url = "http://127.0.0.1:9"\n')
    async with AgentRuntime(project, home_dir=home.path) as runtime:
        with allow_real_models(False):
            handle = await runtime.start("hello")
            assert await handle.wait() is RunStatus.FAILED
        assert handle.error is not None
        assert handle.error.code == "config_error"
    home.write_config('[model]\nprovider = "mine"\nname = "m"\n')
    async with AgentRuntime(project, home_dir=home.path) as runtime:
        runtime.register_provider("mine", lambda _: ScriptedProvider(["hi"]))
        with allow_real_models(False):
            handle = await runtime.start("hello")
            assert await handle.wait() is RunStatus.COMPLETED


async def test_the_toolkit_asks_none_either() -> None:
    async with ModelServer(lambda _: "hi") as server:
        config = ModelConfig(name="m", **server.settings("openai"))
        async with AdapterProvider.open(config) as provider:
            asked = ChatRequest(messages=(ChatMessage.user_text("Hi"),))
            with allow_real_models(False), pytest.raises(LlmError, match="real one"):
                await provider.chat(asked)
            assert server.connections == 0
            assert (await provider.chat(asked)).text == "hi"


async def test_the_other_engine_of_profiles_asks_none_either(tmp_path: Path) -> None:
    config = load_config(
        profile(
            tmp_path, runtime={"engine": "pydantic_ai"}, model={"provider": "openai", "name": "m"}
        )
    )
    async with httpx2.AsyncClient() as client:
        with allow_real_models(False), pytest.raises(KgentError, match="real one"):
            build_model(config, client)


def test_a_profile_is_blocked_before_its_service_is_asked(tmp_path: Path) -> None:
    model = {"provider": "openai", "name": "m", "base_url": "http://127.0.0.1:9/v1"}
    with allow_real_models(False):
        result = a_run(tmp_path, engine=CoreAgentEngine(), runtime={"engine": "core"}, model=model)
    assert result.error is not None
    assert "real one" in result.error.message


def test_a_plain_call_stays_and_a_context_manager_restores() -> None:
    with allow_real_models(True):
        allow_real_models(False)
        assert os.environ[ALLOW_REAL_MODELS] == "0"
        with allow_real_models(True), allow_real_models(False):
            assert os.environ[ALLOW_REAL_MODELS] == "0"
        assert os.environ[ALLOW_REAL_MODELS] == "0"
    assert os.environ[ALLOW_REAL_MODELS] == "1"  # the fixture's


@together(
    ("value", "is_refused"),
    [("0", True), ("false", True), ("no", True), ("never", True), ("", False), ("TRUE", False)],
)
async def test_the_variable_may_be_set_from_outside(
    value: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_REAL_MODELS, value)
    async with ModelServer(lambda _: "hi") as server:
        config = ModelConfig(name="m", **server.settings("openai"))
        adapter = ProviderRegistry().create(config)
        if is_refused:
            with pytest.raises(ConfigError):
                _ = [event async for event in adapter.stream(HELLO)]
        else:
            assert [event async for event in adapter.stream(HELLO)]
        await adapter.close()


def test_processes_that_are_started_meanwhile_ask_none_either(home: Home, project: Path) -> None:
    home.write_config('[model]\nprovider = "ollama"\nname = "m"\nbase_url = "http://127.0.0.1:9"\n')
    with allow_real_models(False):
        done = subprocess.run(  # noqa: S603 - our own program, in our own interpreter
            [sys.executable, "-m", "agent_core.cli", "run", "--path", str(project), "hello"],
            env=home.env(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "real one" in done.stderr


def test_whether_real_models_are_allowed_is_said_with_a_bool() -> None:
    before = os.environ.get(ALLOW_REAL_MODELS)
    wrong: Any = "no"
    with pytest.raises(ArgumentError, match="allowed must be True or False, not a str"):
        allow_real_models(wrong)
    assert os.environ.get(ALLOW_REAL_MODELS) == before

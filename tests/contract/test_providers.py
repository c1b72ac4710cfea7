"""Every adapter of the package, and one from outside, under the contract that all must keep."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar
from unittest import SkipTest

import pytest

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.contract import ProviderContract
from agent_core.providers.scripted import Piece, Reply, ScriptedProvider
from agent_core.testing import function_model
from agent_core.types import ModelCompleted, ModelEvent, ModelFailed, ModelRequest, Usage
from model_server import ModelServer
from tables import together

Script = Sequence[str | Reply]


class TestScripted(ProviderContract):
    provider = "scripted"

    @asynccontextmanager
    async def open(self, script: Script) -> AsyncGenerator[ProviderAdapter]:
        adapter = ScriptedProvider(script)
        yield adapter
        await adapter.close()


class TestFunction(ProviderContract):
    provider = "function"

    @asynccontextmanager
    async def open(self, script: Script) -> AsyncGenerator[ProviderAdapter]:
        replies = iter(script)

        async def answer(request: ModelRequest) -> AsyncIterator[Piece]:
            yield next(replies)

        yield function_model(answer)


class OverHttp(ProviderContract):
    protocol: ClassVar[str]

    @asynccontextmanager
    async def open(self, script: Script) -> AsyncGenerator[ProviderAdapter]:
        async with ModelServer(script) as server:
            config = ModelConfig(
                name="m", retry=RetryConfig(max_attempts=1), **server.settings(self.protocol)
            )
            adapter = ProviderRegistry().create(config)
            yield adapter
            await adapter.close()


class TestOpenAI(OverHttp):
    provider = protocol = "openai"


class TestResponses(OverHttp):
    provider, protocol = "openai", "responses"


class TestAnthropic(OverHttp):
    provider = protocol = "anthropic"


class TestOllama(OverHttp):
    provider = protocol = "ollama"


class TestGemini(OverHttp):
    provider = protocol = "gemini"


class TestBedrock(OverHttp):
    provider = protocol = "bedrock"


class WithoutTools:
    """An adapter as a program may bring it along: its service knows text only."""

    def __init__(self, script: Script) -> None:
        self._service = ScriptedProvider(script, provider="mine")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if request.tools:
            raise ProviderError(ErrorCode.UNSUPPORTED_CAPABILITY, "mine takes no tools")
        async for event in self._service.stream(request):
            yield event

    async def close(self) -> None:
        await self._service.close()


class TestWithoutTools(ProviderContract):
    provider = "mine"
    takes_tools = False

    @asynccontextmanager
    async def open(self, script: Script) -> AsyncGenerator[ProviderAdapter]:
        adapter = WithoutTools(script)
        yield adapter
        await adapter.close()


class Broken(WithoutTools):
    """It shows its text and keeps it out of its reply, and hides failures."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        async for event in self._service.stream(request):
            match event:
                case ModelCompleted():
                    yield event.model_copy(
                        update={"content": [], "tool_calls": [], "usage": Usage()}
                    )
                case ModelFailed():
                    yield ModelCompleted(raw_stop_reason="stop")
                case _:
                    yield event


class OfBroken(ProviderContract):
    provider = "mine"

    @asynccontextmanager
    async def open(self, script: Script) -> AsyncGenerator[ProviderAdapter]:
        yield Broken(script)


class OfBrokenWithoutTools(OfBroken):
    takes_tools = False


@together(
    "name",
    [
        "test_text_streams_between_started_and_completed",
        "test_usage_counts_the_whole_prompt",
        "test_a_call_keeps_its_name_and_arguments",
        "test_arguments_that_are_no_object_do_not_fail_the_reply",
        "test_a_refusal_is_one_failure_with_its_code",
        "test_a_failure_in_the_middle_keeps_what_was_said",
    ],
)
def test_a_broken_adapter_does_not_keep_the_contract(name: str) -> None:
    with pytest.raises(AssertionError):
        getattr(OfBroken(), name)()


def test_tools_that_are_taken_and_ignored_are_no_refusal() -> None:
    with pytest.raises(AssertionError, match="the refusal of tools"):
        OfBrokenWithoutTools().test_tools_that_cannot_be_taken_are_refused()
    with pytest.raises(SkipTest):
        OfBroken().test_tools_that_cannot_be_taken_are_refused()

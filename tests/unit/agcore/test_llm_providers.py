"""Providers: the engine's adapters behind the toolkit's protocol, the mock, and the registry."""

import pytest

from agcore import Agent
from agcore.llm import (
    AdapterProvider,
    ChatChunk,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    FinishReason,
    LlmCycle,
    LlmError,
    MockProvider,
    ModelConfig,
    ProviderRegistry,
    ToolDefinition,
    Usage,
    tool_call_reply,
)
from agcore.llm.calls import ProviderModel
from agent_core.errors import ErrorCode
from agent_core.providers.scripted import Fails, Says, ScriptedProvider, calls
from agent_core.types import (
    ModelCompleted,
    ModelFailed,
    ModelRequest,
    SystemBlock,
    Usage as CoreUsage,
)
from tables import together


def request(*messages: ChatMessage) -> ChatRequest:
    return ChatRequest(messages=messages or (ChatMessage.user_text("Hi"),))


async def test_an_adapter_answers_with_text_usage_and_a_reason() -> None:
    usage = CoreUsage(input_tokens=7, output_tokens=3, total_tokens=10)
    provider = AdapterProvider(ScriptedProvider([Says(text="Hello.", usage=usage)]), "x")
    response = await provider.chat(request())
    assert response.text == "Hello."
    assert response.usage == Usage.from_input_output(7, 3)
    assert response.stop_reason is FinishReason.STOP


async def test_an_adapters_stream_ends_with_the_whole_reply() -> None:
    provider = AdapterProvider(ScriptedProvider([Says(text="abcdef", chunks=2)]), "x")
    pieces = [piece async for piece in provider.stream(request())]
    assert pieces[:2] == [ChatChunk(text="abc"), ChatChunk(text="def")]
    assert isinstance(pieces[2], ChatResponse)
    assert pieces[2].text == "abcdef"


async def test_an_adapter_gets_system_text_apart_and_answers_together() -> None:
    engine = ScriptedProvider([calls("echo", n=1)])
    reply = await AdapterProvider(engine, "x").chat(
        request(
            ChatMessage.system_text("Base."),
            ChatMessage.user_text("Go"),
            tool_call_reply("a").message,
            ChatMessage.tool_text("call_1", "one"),
            ChatMessage.tool_text("call_2", "two"),
            ChatMessage.developer_text("Also this."),
        )
    )
    sent = engine.requests[0]
    assert [block.content for block in sent.system] == ["Base.", "Also this."]
    assert [message.role.value for message in sent.messages] == ["user", "assistant", "tool"]
    assert len(sent.messages[2].content) == 2
    assert reply.tool_calls[0].arguments == {"n": 1}
    assert reply.stop_reason is FinishReason.TOOL_CALLS


async def test_a_conversation_is_the_same_objects_to_the_engine_from_turn_to_turn() -> None:
    engine = ScriptedProvider(["one", "two"])
    cycle = LlmCycle(AdapterProvider(engine, "x"))
    await cycle.submit("first")
    await cycle.submit("second")
    assert engine.requests[1].messages[0] is engine.requests[0].messages[0]


@together(
    ("failure", "kind"),
    [
        (Fails(code=ErrorCode.PROVIDER_AUTH_FAILED), LlmError.Authentication),
        (Fails(code=ErrorCode.PROVIDER_RATE_LIMITED), LlmError.RateLimit),
        (Fails(code=ErrorCode.PROVIDER_TIMEOUT), LlmError.Timeout),
        (Fails(code=ErrorCode.PROMPT_TOO_LONG), LlmError.ContextLength),
        (Fails(details={"status": 503}), LlmError.Request),
        (Fails(retryable=True), LlmError.Stream),
        (Fails(), LlmError.Other),
    ],
)
async def test_every_failure_of_an_adapter_has_its_kind(
    failure: Fails, kind: type[LlmError]
) -> None:
    with pytest.raises(LlmError) as caught:
        await AdapterProvider(ScriptedProvider([failure]), "x").chat(request())
    assert type(caught.value) is kind


async def test_what_the_service_asked_for_is_passed_on() -> None:
    failure = Fails(
        code=ErrorCode.PROVIDER_RATE_LIMITED, details={"status": 429, "retry_after_s": 7.5}
    )
    with pytest.raises(LlmError.RateLimit) as caught:
        await AdapterProvider(ScriptedProvider([failure]), "x").chat(request())
    assert caught.value.retry_after_s == 7.5


async def test_a_provider_as_the_model_of_the_engine_passes_on_what_the_service_asked_for() -> None:
    provider = MockProvider([LlmError.RateLimit("slow down", retry_after_s=7.5), "Hello."])
    model = Agent("a", "Be short.", model=provider).engine_agent.model
    assert isinstance(model, ProviderModel)
    block = SystemBlock(block_id="a", source="a", content="Be short.")
    asked = ModelRequest(model="x", system=[block], messages=[], temperature=0.5, stop=["END"])
    *_, failed = [event async for event in model.stream(asked)]
    assert isinstance(failed, ModelFailed)
    assert failed.error.retryable
    assert failed.error.details["retry_after_s"] == 7.5
    *_, completed = [event async for event in model.stream(asked)]
    assert isinstance(completed, ModelCompleted)
    seen = provider.requests[1]
    assert [message.text for message in seen.messages] == ["Be short."]
    assert (seen.model, seen.temperature, seen.stop) == ("x", 0.5, ["END"])


async def test_a_key_that_is_missing_is_an_authentication_error() -> None:
    config = ModelConfig(provider="openai", name="x", api_key_env="AGCORE_NO_SUCH_KEY")
    async with AdapterProvider.open(config) as provider:
        with pytest.raises(LlmError.Authentication, match="AGCORE_NO_SUCH_KEY"):
            await provider.chat(request())


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(LlmError.Other, match="'nobody'"):
        AdapterProvider.open(ModelConfig(provider="nobody", name="x"))


async def test_a_tool_the_engine_does_not_take_is_an_error_of_ours() -> None:
    engine = ScriptedProvider(["never"], takes_tools=False)
    offered = ChatRequest(
        messages=[ChatMessage.user_text("Hi")],
        tools=[ToolDefinition(name="echo", description="")],
    )
    with pytest.raises(LlmError.Other, match="does not take tools"):
        await AdapterProvider(engine, "x").chat(offered)


async def test_a_mock_says_when_its_script_is_used_up() -> None:
    provider = MockProvider(["one"])
    await provider.chat(request())
    with pytest.raises(LlmError.Other, match="used up"):
        await provider.chat(request())


def test_phase0_the_first_provider_is_the_default_until_another_is_chosen() -> None:
    registry, one, two = ProviderRegistry(), MockProvider(), MockProvider()
    assert registry.default() is None
    registry.register("one", one)
    assert registry.default() is one
    registry.register("two", two, default=True)
    assert registry.default() is two
    assert registry.get("one") is one
    assert registry.get("three") is None
    assert registry.names() == ["one", "two"]
    with pytest.raises(LlmError):
        registry.register("one", two)


@together(
    ("error", "recoverable"),
    [
        (LlmError.RateLimit("x"), True),
        (LlmError.Timeout("x"), True),
        (LlmError.Stream("x"), True),
        (LlmError.Request("x", status=500), False),
        (LlmError.Authentication("x"), False),
        (LlmError.ContextLength("x"), False),
        (LlmError.Other("x"), False),
    ],
)
def test_phase0_recoverable_is_what_passes_by_itself(error: LlmError, recoverable: bool) -> None:
    assert error.is_recoverable() is recoverable

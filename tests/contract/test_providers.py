"""What core may expect of every provider, checked against the fake and the three real adapters."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import cast

import pytest

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.scripted import (
    Calls,
    Fails,
    Hangs,
    Reply,
    Says,
    ScriptedCall,
    ScriptedProvider,
    calls,
)
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelReasoningDelta,
    ModelRequest,
    ModelStarted,
    ModelTextDelta,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolCallDelta,
    ToolDefinition,
    Usage,
)
from model_server import ModelServer

Script = Sequence[str | Reply]
Open = Callable[[Script], AbstractAsyncContextManager[ProviderAdapter]]
HTTP = ("openai", "responses", "anthropic", "ollama", "gemini", "bedrock")
TOOLS = [ToolDefinition(name="code.list_dir", description="List a directory.")]


@dataclass(frozen=True)
class Kind:
    key: str
    open: Open

    @property
    def provider(self) -> str:
        return "openai" if self.key == "responses" else self.key


@asynccontextmanager
async def scripted(script: Script) -> AsyncGenerator[ProviderAdapter]:
    provider = ScriptedProvider(script)
    yield provider
    await provider.close()


def over_http(key: str) -> Open:
    @asynccontextmanager
    async def open_adapter(script: Script) -> AsyncGenerator[ProviderAdapter]:
        async with ModelServer(script) as server:
            config = ModelConfig(
                name="m", retry=RetryConfig(max_attempts=1), **server.settings(key)
            )
            provider = ProviderRegistry().create(config)
            yield provider
            await provider.close()

    return open_adapter


KINDS = [Kind("scripted", scripted), *(Kind(key, over_http(key)) for key in HTTP)]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.key)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def asked(text: str = "hello", *, tools: Sequence[ToolDefinition] = TOOLS) -> ModelRequest:
    message = ModelMessage(role=Role.USER, content=[TextBlock(text=text)])
    return ModelRequest(model="m", messages=[message], tools=list(tools))


async def played(kind: Kind, *script: str | Reply) -> list[ModelEvent]:
    async with kind.open(script) as provider:
        return [event async for event in provider.stream(asked())]


def completed(events: Sequence[ModelEvent]) -> ModelCompleted:
    last = events[-1]
    assert isinstance(last, ModelCompleted), last
    return last


def failed(events: Sequence[ModelEvent]) -> ModelFailed:
    last = events[-1]
    assert isinstance(last, ModelFailed), last
    return last


def shown(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ModelTextDelta))


async def test_text_streams_between_started_and_completed(kind: Kind) -> None:
    events = await played(kind, Says(text="Grüße, 世界 🌍!", chunks=5))

    assert events[0] == ModelStarted(provider=kind.provider, model="m")
    assert shown(events) == "Grüße, 世界 🌍!"
    reply = completed(events)
    assert reply.content == [TextBlock(text="Grüße, 世界 🌍!")]
    assert (reply.tool_calls, reply.stop_reason) == ([], StopReason.END_TURN)
    assert [type(event) for event in events].count(ModelCompleted) == 1


async def test_usage_counts_the_whole_prompt(kind: Kind) -> None:
    usage = Usage(input_tokens=11, output_tokens=7, total_tokens=18)

    reply = completed(await played(kind, Says(text="hi", usage=usage)))

    assert reply.usage.model_copy(update={"raw_usage": {}}) == usage


async def test_c3_c4_a_call_keeps_its_name_and_arguments(kind: Kind) -> None:
    events = await played(kind, calls("code.list_dir", path="src", depth=2, all=True))

    [call] = completed(events).tool_calls
    assert call.name == "code.list_dir"
    assert call.arguments == {"path": "src", "depth": 2, "all": True}
    assert completed(events).stop_reason is StopReason.TOOL_USE
    [block] = completed(events).content
    assert isinstance(block, ToolCallBlock)
    assert block.tool_call_id == call.tool_call_id
    fragments = [event for event in events if isinstance(event, ToolCallDelta)]
    assert {event.tool_call_id for event in fragments} == {call.tool_call_id}
    joined = "".join(event.arguments_fragment for event in fragments)
    assert joined == '{"all":true,"depth":2,"path":"src"}'


async def test_text_reasoning_and_calls_stand_in_order(kind: Kind) -> None:
    script = Calls(
        reasoning="I should look.",
        text="Let me look.",
        calls=[
            ScriptedCall(name="code.list_dir", arguments={"path": "a"}, tool_call_id="one"),
            ScriptedCall(name="code.list_dir", arguments={"path": "b"}, tool_call_id="two"),
        ],
    )

    events = await played(kind, script)

    reasoning, text, *blocks = completed(events).content
    assert isinstance(reasoning, ReasoningBlock)
    assert reasoning.text == "I should look."
    assert reasoning.metadata["provider"] == kind.provider
    assert text == TextBlock(text="Let me look.")
    assert [block.type for block in blocks] == ["tool_call", "tool_call"]
    assert [call.tool_call_id for call in completed(events).tool_calls] == ["one", "two"]
    thought = [event.text for event in events if isinstance(event, ModelReasoningDelta)]
    assert "".join(thought) == "I should look."


async def test_ids_that_are_missing_unsafe_or_taken_are_replaced(kind: Kind) -> None:
    ids = ["same", "same", "not safe!", "x" * 10_000]
    script = Calls(calls=[ScriptedCall(name="code.list_dir", tool_call_id=raw) for raw in ids])

    found = completed(await played(kind, script)).tool_calls

    assert found[0].tool_call_id == "same"
    assert len({call.tool_call_id for call in found}) == 4
    assert found[1].metadata["raw_tool_call_id"] == "same"
    assert found[2].metadata["raw_tool_call_id"] == "not safe!"
    assert all(len(call.tool_call_id) <= 128 for call in found)


async def test_an_id_of_an_earlier_turn_is_not_used_again(kind: Kind) -> None:
    again = Calls(calls=[ScriptedCall(name="code.list_dir", tool_call_id="call_0")])
    call = ToolCallBlock(tool_call_id="call_0", name="code.list_dir")
    before = ModelMessage(role=Role.ASSISTANT, content=[call])
    request = asked().model_copy(update={"messages": [before]})

    async with kind.open([again]) as provider:
        events = [event async for event in provider.stream(request)]

    assert completed(events).tool_calls[0].tool_call_id != "call_0"


@pytest.mark.parametrize(
    "raw",
    ['{"path": "a', "[1, 2]", "nothing", "[" * 100_000, '{"a": NaN}', "9" * 5000, '"text"'],
    ids=["truncated", "array", "prose", "brackets", "nan", "digits", "string"],
)
async def test_arguments_that_are_no_object_do_not_fail_the_reply(kind: Kind, raw: str) -> None:
    script = Calls(calls=[ScriptedCall(name="code.list_dir", arguments=raw)])

    [call] = completed(await played(kind, script)).tool_calls

    assert call.arguments == {}
    assert call.metadata["invalid_arguments"] == raw[:10_000]


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ("", {}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"n": 9223372036854775808}', {"n": 2**63}),
        ('{"s": "\\ud800 \\u0000"}', {"s": "\ufffd \0"}),
        ('{"s": "\\ud83d\\ude00"}', {"s": "😀"}),
    ],
)
async def test_strange_but_valid_arguments_are_read(
    kind: Kind, raw: str, arguments: dict[str, object]
) -> None:
    script = Calls(calls=[ScriptedCall(name="code.list_dir", arguments=raw)])

    [call] = completed(await played(kind, script)).tool_calls

    assert call.arguments == arguments
    assert "invalid_arguments" not in call.metadata


async def test_a_tool_nobody_offered_keeps_a_readable_name(kind: Kind) -> None:
    [call] = completed(await played(kind, calls("code.fly_away"))).tool_calls

    assert call.name == "code.fly_away"


async def test_a_call_cut_off_before_its_arguments_is_not_a_call_without_any(kind: Kind) -> None:
    cut = Calls(
        calls=[ScriptedCall(name="code.list_dir", arguments="")],
        stop_reason=StopReason.MAX_TOKENS,
    )

    reply = completed(await played(kind, cut))

    assert reply.stop_reason is StopReason.MAX_TOKENS
    assert "invalid_arguments" in reply.tool_calls[0].metadata


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PROVIDER_AUTH_FAILED,
        ErrorCode.PROVIDER_RATE_LIMITED,
        ErrorCode.PROVIDER_ERROR,
        ErrorCode.PROMPT_TOO_LONG,
        ErrorCode.UNSUPPORTED_CAPABILITY,
    ],
)
async def test_a_refusal_is_one_failure_with_its_code(kind: Kind, code: ErrorCode) -> None:
    events = await played(kind, Fails(code=code, message="no"))

    assert len(events) == 2
    assert failed(events).error.code is code
    assert failed(events).error.type == "ProviderError"


async def test_a_failure_in_the_middle_keeps_what_was_said(kind: Kind) -> None:
    events = await played(kind, Fails(text="the first half", message="out of luck"))

    assert shown(events) == "the first half"
    assert failed(events).error.code is ErrorCode.PROVIDER_ERROR
    assert "out of luck" in failed(events).error.message


async def test_nothing_follows_after_the_stream_is_closed(kind: Kind) -> None:
    async with kind.open([Hangs(text="so far")]) as provider:
        events: list[ModelEvent] = []
        stream = cast("AsyncGenerator[ModelEvent]", provider.stream(asked()))
        async with aclosing(stream):
            async for event in stream:
                events.append(event)
                if shown(events) == "so far":
                    break

        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_cancelling_ends_a_stream_that_hangs(kind: Kind) -> None:
    async with kind.open([Hangs(text="so far")]) as provider:
        arrived = asyncio.Event()

        async def consume() -> None:
            async for event in provider.stream(asked()):
                if isinstance(event, ModelTextDelta):
                    arrived.set()

        task = asyncio.create_task(consume())
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 1)


async def test_many_streams_at_once_do_not_mix(kind: Kind) -> None:
    async with kind.open([f"reply {number}" for number in range(20)]) as provider:

        async def ask() -> str:
            return shown([event async for event in provider.stream(asked())])

        texts = await asyncio.gather(*(ask() for _ in range(20)))

    assert sorted(texts) == sorted(f"reply {number}" for number in range(20))


async def test_closing_twice_is_harmless(kind: Kind) -> None:
    async with kind.open(["hi"]) as provider:
        await provider.close()
        await provider.close()

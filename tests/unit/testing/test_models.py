"""Scripted and function models: what they take, what they count, and when a script is complete."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agent_core import (
    AgentCoreError,
    ErrorCode,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelReasoningDelta,
    ModelRequest,
    ModelRetry,
    ModelTextDelta,
    ProviderError,
    Role,
    StopReason,
    SystemBlock,
    TextBlock,
    ToolCall,
    ToolDefinition,
    Usage,
)
from agent_core.testing import (
    Answer,
    Hangs,
    Pauses,
    Piece,
    Says,
    ScriptedCall,
    ScriptedProvider,
    calls,
    function_model,
)
from agent_core.types import ErrorPayload
from tables import together

GONE = ProviderError(ErrorCode.PROVIDER_RATE_LIMITED, "slow down", retryable=True)


def request(text: str = "hello", **more: object) -> ModelRequest:
    asked = ModelMessage(role=Role.USER, content=[TextBlock(text=text)])
    return ModelRequest.model_validate({"model": "m", "messages": [asked], **more})


async def events(model: ScriptedProvider, text: str = "hello") -> list[ModelEvent]:
    return [event async for event in model.stream(request(text))]


async def reply(model: ScriptedProvider, text: str = "hello") -> ModelCompleted:
    completed = (await events(model, text))[-1]
    assert isinstance(completed, ModelCompleted), completed
    return completed


def text_of(completed: ModelCompleted) -> str:
    return "".join(block.text for block in completed.content if isinstance(block, TextBlock))


async def test_usage_is_estimated_where_the_script_has_none() -> None:
    model = ScriptedProvider(["an answer of some words", calls("f"), "again"])

    short = (await reply(model)).usage
    call = (await reply(model)).usage
    long = (await reply(model, "hello " * 100)).usage

    for usage in (short, call, long):
        assert usage.input_tokens > 0
        assert usage.output_tokens > 0
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert long.input_tokens > short.input_tokens + 100


async def test_usage_counts_the_system_prompt_and_the_tools() -> None:
    model = ScriptedProvider(lambda _: "x")
    plain = request()
    system = request(
        system=[SystemBlock(block_id="a", source="s", content="rule " * 40)],
        tools=[ToolDefinition(name="f", description="does it " * 40)],
    )
    costs: list[int] = []
    for asked in (plain, system):
        *_, completed = [event async for event in model.stream(asked)]
        assert isinstance(completed, ModelCompleted)
        costs.append(completed.usage.input_tokens)
    assert costs[1] >= costs[0] + 100


async def test_usage_that_is_given_is_what_is_reported_also_if_it_is_nothing() -> None:
    given = Usage(input_tokens=7, output_tokens=2, total_tokens=9)
    model = ScriptedProvider([Says(text="x", usage=given), Says(text="x", usage=Usage())])
    assert (await reply(model)).usage == given
    assert (await reply(model)).usage == Usage()


ANSWERS: list[Answer] = [
    lambda _: "one two",
    lambda _: ["one", " two"],
    lambda _: [ModelTextDelta(text="one "), "two"],
    lambda _: Says(text="one two"),
    lambda _: ModelCompleted(content=[TextBlock(text="one two")], raw_stop_reason="x"),
]


def of_two(asked: ModelRequest, other: object) -> str:
    return f"{asked.model} {other}"


NO_ANSWERS: list[Any] = [7, lambda: "x", of_two]


@together("answer", ANSWERS)
async def test_a_function_may_return_text_its_pieces_or_events(answer: Answer) -> None:
    assert text_of(await reply(function_model(answer))) == "one two"


async def test_an_async_function_and_both_kinds_of_generators_answer() -> None:
    async def returns(asked: ModelRequest) -> str:
        await asyncio.sleep(0)
        return asked.model

    async def yields(asked: ModelRequest) -> AsyncIterator[Piece]:
        yield ModelReasoningDelta(text="hm")
        yield "one"
        await asyncio.sleep(0)
        yield " two"
        yield calls("look", at=asked.model)

    def gives(asked: ModelRequest) -> Iterator[str]:
        yield from ("a", asked.model)

    assert text_of(await reply(function_model(returns))) == "m"
    assert text_of(await reply(function_model(gives))) == "am"
    seen = await events(function_model(yields))
    assert [e.text for e in seen if isinstance(e, ModelTextDelta)] == ["one", " two"]
    completed = seen[-1]
    assert isinstance(completed, ModelCompleted)
    assert [block.type for block in completed.content] == ["reasoning", "text", "tool_call"]
    assert completed.stop_reason is StopReason.TOOL_USE


async def test_a_function_may_return_several_tool_calls() -> None:
    def answer(asked: ModelRequest) -> list[ToolCall | ScriptedCall]:
        one = ToolCall(tool_call_id="c1", name="a", arguments={"x": 1})
        return [one, ScriptedCall(name="b", arguments='{"broken')]

    completed = await reply(function_model(answer))
    one, two = completed.tool_calls
    assert (one.tool_call_id, one.name, one.arguments) == ("c1", "a", {"x": 1})
    assert two.metadata["invalid_arguments"] == '{"broken'
    assert completed.stop_reason is StopReason.TOOL_USE


async def test_an_error_given_or_raised_is_a_call_that_fails() -> None:
    def raises(asked: ModelRequest) -> str:
        raise GONE

    async def breaks_off(asked: ModelRequest) -> AsyncIterator[Piece]:
        yield "half"
        yield GONE

    for model in (ScriptedProvider([GONE]), function_model(raises), function_model(breaks_off)):
        failed = (await events(model))[-1]
        assert failed == ModelFailed(error=ErrorPayload.of(GONE))
        model.assert_complete()


async def test_events_of_a_function_are_passed_on() -> None:
    again = ModelRetry(attempt=1, delay_ms=0, error=ErrorPayload.of(GONE))
    seen = await events(ScriptedProvider([[again, Pauses(seconds=0), "late"]]))
    assert again in seen
    assert text_of(seen[-1]) == "late"  # type: ignore[arg-type]


async def test_replies_can_be_added_and_a_single_text_is_one_reply() -> None:
    model = ScriptedProvider("whole")
    model.add("second", lambda asked: f"{len(model.requests)} requests")
    assert [text_of(await reply(model)) for _ in range(3)] == ["whole", "second", "3 requests"]
    model.assert_complete()


async def test_a_script_that_was_too_short_is_not_complete() -> None:
    model = ScriptedProvider(["one"])
    await events(model)
    model.assert_complete()
    await events(model)
    with pytest.raises(AssertionError, match="called 2 times, 1 more than 1 scripted reply can"):
        model.assert_complete()


async def test_what_a_function_asserts_is_raised_again_by_the_test() -> None:
    def answer(asked: ModelRequest) -> str:
        assert asked.tools, "no tools were offered"
        return "x"

    model = function_model(answer)
    failed = (await events(model))[-1]
    assert isinstance(failed, ModelFailed)
    assert "no tools were offered" in failed.error.message
    with pytest.raises(AssertionError, match="no tools were offered"):
        model.assert_complete()


async def test_a_reply_of_another_kind_is_named() -> None:
    model = function_model(lambda _: None)  # type: ignore[arg-type, return-value]
    failed = (await events(model))[-1]
    assert isinstance(failed, ModelFailed)
    assert "a scripted reply was None" in failed.error.message
    with pytest.raises(AssertionError, match="was None"):
        model.assert_complete()


@together("wrong", NO_ANSWERS)
def test_a_function_that_cannot_be_called_with_a_request_is_refused(wrong: Any) -> None:
    with pytest.raises(AgentCoreError, match=r"answer must be a function of \(request\)") as caught:
        function_model(wrong)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_a_call_that_is_cancelled_in_a_list_of_pieces_ends() -> None:
    stream = ScriptedProvider([["so", Hangs(text=" far")]]).stream(request())
    assert [await anext(stream) for _ in range(3)][1:] == [
        ModelTextDelta(text="so"),
        ModelTextDelta(text=" far"),
    ]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.02)

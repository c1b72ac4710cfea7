"""Output functions: the output of a run is what a function returns for the model's answer."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import pytest
from pydantic import BaseModel, Field

import agcore
from agcore.llm import MockProvider
from agent_core import (
    Agent,
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    RunError,
    RunOptions,
    RunResult,
    ToolContext,
    ToolRetry,
)
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import RunStatus
from isolation import Home
from runtimes import CONFIG, runtime
from tables import together

FINAL = "final_answer"


@dataclass
class Receipt:
    """What a refund leaves; nothing that JSON could hold."""

    amount: float
    thread: bool = False


class Address(BaseModel):
    """Where something goes."""

    street: str


def refund(
    amount: float, reason: str = "none", note: str = Field("plain", max_length=9)
) -> Receipt:
    """Refund an order.

    Args:
        amount: in euros.
    """
    assert (reason, note) == ("none", "plain")
    if amount > 100:
        raise ToolRetry("at most 100 euros")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return Receipt(amount, thread=True)
    return Receipt(amount)


async def send(address: Address, context: ToolContext[list[str]]) -> int:
    """Send the parcel."""
    context.deps.append(address.street)
    context.progress("sending")
    return len(context.deps)


async def test_the_output_is_what_the_function_returns(tmp_path: Path) -> None:
    provider = ScriptedProvider(['{"amount": 7}'])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", output_type=refund)
        (run,) = (await made.replay_run(result.run_id)).runs
    assert_type(result, RunResult[Receipt])
    assert result.output == Receipt(7, thread=True)
    assert result.text == '{"amount": 7}'
    assert run.options is not None
    assert run.options.needs_caller == ["output_type"]
    asked = provider.requests[0].output
    assert asked is not None
    assert asked.output_schema["properties"]["amount"]["description"] == "in euros."
    assert asked.output_schema["required"] == ["amount"]
    assert (asked.name, asked.description) == ("refund", "Refund an order.")


async def test_it_may_take_the_context_and_be_async(tmp_path: Path) -> None:
    answer = calls(FINAL, address={"street": "Main"})
    shop = ["first"]
    provider = ScriptedProvider([answer])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", output_type=send, output_mode="tool", deps=shop)
    assert_type(result.output, int)
    assert (result.output, shop) == (2, ["first", "Main"])


async def test_dependencies_of_another_type_are_refused_at_start(tmp_path: Path) -> None:
    provider = ScriptedProvider([])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        with pytest.raises(AgentCoreError, match="output function send takes") as caught:
            await made.start("go", output_type=send, deps=7)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_arguments_and_the_function_send_the_model_back(tmp_path: Path) -> None:
    provider = ScriptedProvider(['{"amount": "much"}', '{"amount": 500}', '{"amount": 5}'])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", output_type=refund)
    assert result.output.amount == 5
    assert "$.amount" in str(provider.requests[1].messages[-1])
    assert "at most 100 euros" in str(provider.requests[2].messages[-1])


async def test_an_answer_that_it_keeps_refusing_fails_the_run(tmp_path: Path) -> None:
    provider = ScriptedProvider(['{"amount": 500}', '{"amount": 600}'])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        with pytest.raises(RunError, match="at most 100 euros") as caught:
            await made.run("go", output_type=refund, output_retries=1)
    assert caught.value.code is ErrorCode.OUTPUT_INVALID


async def test_one_that_breaks_is_named(tmp_path: Path) -> None:
    def broken(amount: int) -> int:
        return amount // 0

    async with AgentRuntime(
        tmp_path, model=ScriptedProvider(['{"amount": 1}']), persist=False
    ) as made:
        with pytest.raises(RunError, match="output function broken failed: ZeroDivision") as caught:
            await made.run("go", output_type=broken)
    assert caught.value.code is ErrorCode.INTERNAL_ERROR


def _anything(*args: int) -> int:
    return len(args)


@together("given", [_anything, [], [refund, refund], print])
async def test_one_that_cannot_be_filled_is_refused_at_start(tmp_path: Path, given: Any) -> None:
    provider = ScriptedProvider(["{}"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        with pytest.raises(AgentCoreError, match="output_type cannot be used") as caught:
            await made.start("go", output_type=given)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


@together(
    ("answer", "output"),
    [
        ('{"answer": {"refund": {"amount": 3}}}', Receipt(3, thread=True)),
        ('{"refund": {"amount": 3}}', Receipt(3, thread=True)),
        ('{"answer": {"street": "Main"}}', Address(street="Main")),
        ("No refund, sorry.", "No refund, sorry."),
    ],
)
async def test_the_model_chooses_one_of_several(tmp_path: Path, answer: str, output: Any) -> None:
    provider = ScriptedProvider([answer])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", output_type=[refund, Address, str])
    assert_type(result.output, Receipt | Address | str)
    assert result.output == output


async def test_validators_get_what_it_returns(tmp_path: Path) -> None:
    def double(receipt: Receipt) -> float:
        return receipt.amount * 2

    async with AgentRuntime(
        tmp_path, model=ScriptedProvider(['{"amount": 7}']), persist=False
    ) as made:
        output: Any = (await made.run("go", output_type=refund, output_validators=[double])).output
    assert output == 14


async def test_a_part_of_its_arguments_is_no_partial_output(tmp_path: Path) -> None:
    async with AgentRuntime(
        tmp_path, model=ScriptedProvider(['{"amount": 7}']), persist=False
    ) as made:
        handle = await made.start("go", output_type=refund)
        assert [each async for each in handle.partial_output()] == [Receipt(7, thread=True)]
        handle = await made.start("go", output_type=[refund, Address])
        assert [each async for each in handle.partial_output()] == []
        assert await handle.wait() is RunStatus.FAILED


async def test_types_beside_it_arrive_in_parts(tmp_path: Path) -> None:
    def keep(one: int) -> int:
        return one

    script = ['{"answer": ["a", "b", "c"]}']
    async with AgentRuntime(tmp_path, model=ScriptedProvider(script), persist=False) as made:
        handle = await made.start("go", output_type=[keep, list[str]])
        seen = [each async for each in handle.partial_output()]
    assert seen[-1] == ["a", "b", "c"]


async def test_an_agent_may_have_one(tmp_path: Path) -> None:
    till = Agent("till", "You refund.", tools=(), output_type=refund)
    assert_type(till, Agent[Receipt])
    start = calls("agent.create_sub_agent", agent_definition_id="till", task="go")
    provider = ScriptedProvider(
        [start, '{"amount": 500}', '{"amount": 8}', "done", '{"amount": 9}']
    )
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        parent = await made.run("go", agents=[till])
        assert parent.output == "done"
        alone = await made.run("go", agent=till)
    assert_type(alone.output, Receipt)
    assert alone.output == Receipt(9, thread=True)
    assert "'amount': 8" in str(provider.requests[3].messages[-1])


async def test_an_agent_with_one_may_be_a_tool(tmp_path: Path) -> None:
    async def length(text: str) -> int:
        return len(text)

    measure = Agent("measure", "You measure.", tools=(), output_type=length)
    provider = ScriptedProvider([calls("measure", message="go"), '{"text": "four"}', "done"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        assert (await made.run("go", tools=[measure.as_tool()])).output == "done"
    (block,) = provider.requests[2].messages[-1].content
    assert "4" in str(block)


async def test_it_holds_in_the_toolkit() -> None:
    provider = MockProvider(['{"amount": 500}', '{"amount": 6}'])
    agent = agcore.Agent("till", model=provider, output_type=refund)
    result = await agent.run("go")
    assert_type(result.output, Receipt)
    assert result.output == Receipt(6, thread=True)


@pytest.mark.long
async def test_it_is_called_in_another_process_that_brings_it(home: Home, project: Path) -> None:
    def write(text: str) -> str:
        """Write a text."""
        return text

    script: list[Any] = [calls("write", text="a"), '{"amount": 4}']
    park = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
    async with runtime(home, project, script, config=park) as made:
        handle = await made.start("go", output_type=refund, tools=[write])
        assert await handle.wait() is RunStatus.WAITING
        (request,) = handle.pending_requests
    async with runtime(home, project, script[1:], config=park) as made:
        with pytest.raises(AgentCoreError, match="output_type=") as caught:
            await made.answer(request, "allow_once", tools=[write])
        assert caught.value.details["options"] == ["output_type"]
        again = await made.answer(request, "allow_once", tools=[write], output_type=refund)
        assert (await again.result()).output == Receipt(4, thread=True)
    async with runtime(home, project, config=park) as made:
        stored = await made.attach(again.run_id)
        assert (await stored.result()).output == {"amount": 4}


def test_options_have_the_type_of_what_it_returns() -> None:
    assert_type(RunOptions(output_type=send), RunOptions[int])
    assert_type(RunOptions(output_type=[send, Address]), RunOptions[int | Address])
    assert_type(agcore.Agent("a", output_type=send), agcore.Agent[None, int])

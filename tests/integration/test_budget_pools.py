"""Pools: runs of one process that spend from one budget at once."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from agcore import Agent
from agcore.agent import AgentError
from agent_core import (
    Agent as AgentValue,
    AgentCoreError,
    AgentRuntime,
    Budget,
    BudgetPool,
    ErrorCode,
    ModelRequest,
    RunError,
    RunStatus,
    Usage,
    tool,
)
from agent_core.providers.scripted import Calls, Says, ScriptedCall, ScriptedProvider, calls
from casts import Cast
from isolation import Home
from runtimes import CONFIG, runtime
from tables import together

PRICED = CONFIG + "[model.price]\ninput = 1.0\noutput = 10.0\n"


def says(text: str = "done", given: int = 100, taken: int = 50) -> Says:
    return Says(text=text, usage=Usage.from_input_output(given, taken))


@tool(permission="readonly")
def look() -> str:
    """Look."""
    return "seen"


async def test_runs_at_once_never_overshoot_a_pool_together(home: Home, project: Path) -> None:
    model = ScriptedProvider(lambda _: says())
    pool = BudgetPool(requests=5, output_tokens=100_000)
    async with runtime(home, project, model) as made:
        results = await asyncio.gather(
            *(made.run("go", budget=pool) for _ in range(12)), return_exceptions=True
        )
    failed = [each for each in results if isinstance(each, RunError)]
    assert len(failed) == 7
    assert {each.code for each in failed} == {ErrorCode.BUDGET_EXCEEDED}
    assert failed[0].details["scope"] == "pool"
    assert "the budget of the pool is spent: 5 of 5 requests" in failed[0].message
    assert len(model.requests) == 5
    assert (pool.spent.requests, pool.spent.output_tokens) == (5, 250)
    assert (pool.free.requests, pool.free.output_tokens) == (0, 99_750)
    assert pool.free.usd is None
    assert pool.limits == Budget(requests=5, output_tokens=100_000)


async def test_a_call_waits_for_what_others_have_reserved(home: Home, project: Path) -> None:
    """What the first call may cost is reserved, so the second one waits for its real cost."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def answer(_: ModelRequest) -> AsyncGenerator[str]:
        began.set()
        await may_end.wait()
        yield "done"

    model = ScriptedProvider(answer)
    pool = BudgetPool(output_tokens=4096 + 300)
    async with runtime(home, project, model) as made:
        first = await made.start("go", budget=pool)
        await began.wait()
        assert pool.reserved.output_tokens == 4096
        assert pool.free.output_tokens == 300
        second = await made.start("go", budget=pool)
        while len(model.requests) < 2:  # noqa: ASYNC110 - nothing tells of a reservation
            await asyncio.sleep(0.01)
        assert model.requests[1].max_output_tokens == 300  # what is left is enough for an answer
        third = await made.start("go", budget=pool)
        await asyncio.sleep(0)
        may_end.set()
        for handle in (first, second, third):
            assert await handle.wait() is RunStatus.COMPLETED
    assert pool.reserved.output_tokens == 0


async def test_dollars_and_children_count(home: Home, project: Path) -> None:
    played = Cast({
        "go": [
            calls("agent.create_sub_agent", task="help", allowed_tools=[]),
            "done",
        ],
        "help": ["helped"],
    })  # fmt: skip
    pool = BudgetPool(usd=1.0)
    async with runtime(home, project, played, config=PRICED) as made:
        result = await made.run("go", budget=pool)
    assert result.cost is not None
    assert pool.spent.usd is not None
    assert pool.spent.requests == 3
    assert pool.spent.usd > result.cost


async def test_calls_of_tools_count_and_the_session_stays_usable(home: Home, project: Path) -> None:
    both = Calls(calls=[ScriptedCall(name="look"), ScriptedCall(name="look")])
    model = ScriptedProvider([both, both, "done", "again"])
    pool = BudgetPool(tool_calls=3)
    async with runtime(home, project, model) as made:
        made.register_tool(look)
        with pytest.raises(RunError) as caught:
            await made.run("go", session_id="s1", budget=pool)
        assert caught.value.details["limit"] == "tool_calls"
        assert pool.spent.tool_calls == 3
        assert (await made.run("go", session_id="s1")).text == "done"


async def test_a_pool_and_the_budget_of_a_session_both_hold(home: Home, project: Path) -> None:
    model = ScriptedProvider(lambda _: says())
    pool = BudgetPool(requests=10)
    config = f"{CONFIG}\n[budget]\nrequests = 2\n"
    async with runtime(home, project, model, config=config) as made:
        for _ in range(2):
            await made.run("go", session_id="s1", budget=pool)
        with pytest.raises(RunError) as caught:
            await made.run("go", session_id="s1", budget=pool)
        assert caught.value.details["scope"] == "session"
        assert (pool.spent.requests, pool.reserved.requests) == (2, 0)
        await made.run("go", session_id="s2", budget=pool)
    assert pool.spent.requests == 3


async def test_time_that_is_over_ends_every_run_of_a_pool(home: Home, project: Path) -> None:
    async def answer(_: ModelRequest) -> AsyncGenerator[str]:
        await asyncio.Event().wait()
        yield "never"

    pool = BudgetPool(wall_s=0.2)
    async with runtime(home, project, ScriptedProvider(answer)) as made:
        handles = [await made.start("go", budget=pool) for _ in range(3)]
        for handle in handles:
            assert await handle.wait() is RunStatus.FAILED
            assert handle.error is not None
            assert handle.error.details["limit"] == "wall_s"
            assert "the time of the pool is up" in handle.error.message
        with pytest.raises(RunError, match="the time of the pool is up"):
            await made.run("go", budget=pool)


async def test_a_run_that_waits_for_an_answer_stays_in_its_pool(home: Home, project: Path) -> None:
    config = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
    write = calls("code.write_file", path="a.txt", content="a")
    pool = BudgetPool(requests=5)
    async with runtime(home, project, [write, "done"], config=config) as made:
        result = await made.run("go", budget=pool)
        handle = await made.answer(result.pending_requests[0], "allow_once")
        assert await handle.wait() is RunStatus.COMPLETED
    assert pool.spent.requests == 2
    write = calls("code.write_file", path="b.txt", content="b")
    async with runtime(home, project, [write, "done"], config=config) as made:
        result = await made.run("go", budget=pool, session_id="s2")
    async with runtime(home, project, ["done"], config=config) as made:
        (request_id,) = result.pending_requests
        with pytest.raises(AgentCoreError, match="budget"):
            await made.answer(request_id, "allow_once")
        again = BudgetPool(requests=1)
        handle = await made.answer(request_id, "allow_once", budget=again)
        assert await handle.wait() is RunStatus.COMPLETED
    assert again.spent.requests == 1


@pytest.mark.long
def test_threads_and_runtimes_share_a_pool() -> None:
    pool = BudgetPool(requests=3)
    model = ScriptedProvider(lambda _: says())

    def work(_: int) -> RunStatus:
        own = AgentRuntime(model=model, persist=False)
        try:
            return own.run_sync("go", budget=pool).status
        except RunError as error:
            return error.result.status

    with ThreadPoolExecutor(5) as threads:
        results = list(threads.map(work, range(5)))
    assert sorted(results) == ["completed"] * 3 + ["failed"] * 2
    assert pool.spent.requests == 3


async def test_an_agent_of_the_toolkit_draws_from_a_pool() -> None:
    pool = BudgetPool(requests=3)
    agent = Agent("a", "Answer.", model=ScriptedProvider(lambda _: says()))
    done = await asyncio.gather(
        *(agent.run("go", budget=pool) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(each, Exception) for each in done) == 2
    assert pool.spent.requests == 3


@together(
    ("limits", "words"),
    [
        ({}, "needs a limit"),
        ({"euros": 1}, "euros"),
        ({"requests": -1}, "requests"),
        ({"usd": "1"}, "usd"),
    ],
)
def test_a_pool_has_the_limits_of_a_budget(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentCoreError, match=words) as caught:
        BudgetPool(**limits)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_type_checkers_know_the_limits_of_a_budget() -> None:
    for function in (BudgetPool.__init__, BudgetPool.share):
        (known,) = get_args(get_type_hints(function)["limits"])
        assert known.__annotations__.keys() == Budget.model_fields.keys()


async def test_a_share_limits_its_run_and_the_pool_all_of_them(tmp_path: Path) -> None:
    pool = BudgetPool(requests=3)
    loop = [calls("look")] * 9
    async with AgentRuntime(
        tmp_path, model=ScriptedProvider(loop), persist=False, tools=[look]
    ) as made:
        with pytest.raises(RunError) as first:
            await made.run("go", budget=pool.share(requests=2))
        assert first.value.details["scope"] == "run"
        (stored,) = (await made.replay_run(first.value.result.run_id)).runs
        with pytest.raises(RunError) as second:
            await made.run("go", budget=pool.share(requests=2))
    assert second.value.details["scope"] == "pool"
    assert pool.spent.requests == 3
    assert stored.options is not None
    assert stored.options.budget == Budget(requests=2)
    assert stored.options.needs_caller == ["budget"]


async def test_each_run_of_a_share_has_its_own_limit(tmp_path: Path) -> None:
    share = BudgetPool(requests=10).share(requests=1)
    async with AgentRuntime(tmp_path, model=ScriptedProvider(["a", "b"]), persist=False) as made:
        texts = [(await made.run("go", budget=share)).text for _ in range(2)]
    assert texts == ["a", "b"]
    assert share.pool.spent.requests == 2
    assert repr(share) == "BudgetPool(requests=10).share(requests=1)"


async def test_an_agents_own_limit_holds_beside_a_pool(tmp_path: Path) -> None:
    pool = BudgetPool(requests=9)
    agent = AgentValue("a", tools=[look], budget=Budget(requests=1))
    model = ScriptedProvider([calls("look"), "done"])
    async with AgentRuntime(tmp_path, model=model, persist=False) as made:
        with pytest.raises(RunError) as caught:
            await made.run("go", agent=agent, budget=pool)
    assert caught.value.details["scope"] == "run"
    assert pool.spent.requests == 1


async def test_a_share_is_given_again_as_its_pool(home: Home, project: Path) -> None:
    @tool
    def change() -> str:
        """Change."""
        return "changed"

    config = CONFIG + '[permissions]\nunattended = "park"\n'
    script: list[Any] = [calls("change"), calls("change"), "done"]
    async with runtime(home, project, script, config=config) as made:
        handle = await made.start(
            "go", tools=[change], budget=BudgetPool(requests=9).share(requests=1)
        )
        assert await handle.wait() is RunStatus.WAITING
        (request,) = handle.pending_requests
    pool = BudgetPool(requests=9)
    async with runtime(home, project, script[1:], config=config) as made:
        again = await made.answer(request, "allow_once", tools=[change], budget=pool)
        with pytest.raises(RunError) as caught:
            await again.result()
    assert caught.value.details["scope"] == "run"
    assert pool.spent.requests == 0


async def test_a_share_in_the_toolkit() -> None:
    pool = BudgetPool(requests=9)
    model = ScriptedProvider([calls("look"), "done"])
    with pytest.raises(AgentError) as caught:
        await Agent("a", model=model, tools=[look]).run("go", budget=pool.share(requests=1))
    assert "budget" in str(caught.value)
    assert pool.spent.requests == 1


def test_a_share_limits_something() -> None:
    pool = BudgetPool(requests=9)
    wrong: list[dict[str, Any]] = [{}, {"reqests": 1}, {"requests": "x"}]
    for each in wrong:
        with pytest.raises(AgentCoreError) as caught:
            pool.share(**each)
        assert caught.value.code is ErrorCode.VALIDATION_ERROR

"""Model calls without a reply count at their estimate, in usage, cost and budget alike."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentRuntime,
    Budget,
    GuardStop,
    RunError,
    RunHandle,
    RunOptions,
    RunResult,
    on_answer,
)
from agent_core.providers.scripted import Fails, Hangs, Says, ScriptedProvider, calls
from agent_core.types import EventType, ModelRequest, RunStatus, RuntimeEvent, Usage
from isolation import Home
from memories import WISH, split, until_scanned
from model_server import ModelServer, Sends, Status
from runtimes import CONFIG, collect, runtime
from sweeps import kept

PRICED = CONFIG + "[model.price]\ninput = 1.0\noutput = 10.0\n"
HALF = "word " * 100
HALF_TOKENS = 125
AMPLE = Budget(total_tokens=10**7)
EXACT = Usage.from_input_output(1000, 50)


async def cancel_in_the_middle(made: AgentRuntime, **options: Any) -> RunHandle:
    """Cancel a run once the text of its model has begun to arrive."""
    handle = await made.start("hello", session_id="s1", options=RunOptions(**options))
    async for event in handle.events():
        if event.event_type is EventType.MODEL_TEXT_DELTA:
            break
    await handle.cancel()
    return handle


def usages(events: list[RuntimeEvent], kind: EventType) -> list[Usage]:
    found = [event.payload for event in events if event.event_type is kind]
    return [Usage.model_validate(payload.get("usage", {})) for payload in found]


async def stored_usages(made: AgentRuntime) -> list[Usage]:
    """The usage of session `s1` in each place that shows it."""
    replayed = await made.replay_session("s1")
    (run,) = replayed.runs
    (summary,) = await made.session_summaries()
    found = [run.usage, summary.usage]
    found += [row.usage for by in ("all", "session") for row in await made.costs(by)]
    for kind in (EventType.RUN_CANCELLED, EventType.RUN_FAILED):
        found += usages(list(replayed.events), kind)
    return found


def rounded(usage: Usage) -> Usage:
    cost = None if usage.cost is None else round(usage.cost, 9)
    return usage.model_copy(update={"cost": cost})


@pytest.mark.parametrize(
    "budget", kept([None, AMPLE], AMPLE), ids=kept(["no budget", "budget"], "budget")
)
@pytest.mark.parametrize("config", [CONFIG, PRICED], ids=["no price", "price"])
async def test_a_cancelled_call_counts_everywhere_alike(
    home: Home, project: Path, config: str, budget: Budget | None
) -> None:
    async with runtime(home, project, [Hangs(text=HALF)], config=config) as made:
        handle = await cancel_in_the_middle(made, budget=budget)
        usage = handle.usage
        shown = await stored_usages(made)
        budgets = (await made.replay_session("s1")).budgets
    assert handle.status is RunStatus.CANCELLED
    assert usage.is_estimated
    assert usage.output_tokens == HALF_TOKENS
    assert usage.input_tokens > 1000
    assert usage.total_tokens == usage.input_tokens + HALF_TOKENS
    if config is PRICED:
        assert usage.cost == pytest.approx((usage.input_tokens + 10 * HALF_TOKENS) / 10**6)
    else:
        assert usage.cost is None
    assert [rounded(each) for each in shown] == [rounded(usage)] * 5
    for use in budgets:
        assert use.spent["total_tokens"] == usage.total_tokens
        assert use.spent["output_tokens"] == usage.output_tokens


async def test_a_call_stopped_by_the_time_of_its_budget_counts(home: Home, project: Path) -> None:
    async with runtime(home, project, [Hangs(text=HALF)], config=PRICED) as made:
        with pytest.raises(RunError) as failed:
            await made.run("hello", session_id="s1", budget=Budget(wall_s=0.3, usd=1))
        usage = failed.value.result.usage
        (use,) = (await made.replay_session("s1")).budgets
    assert usage.is_estimated
    assert usage.output_tokens == HALF_TOKENS
    assert use.spent["total_tokens"] == usage.total_tokens
    assert use.spent["usd"] == pytest.approx(usage.cost)


@pytest.mark.parametrize("config", [CONFIG, PRICED], ids=["no price", "price"])
async def test_a_broken_stream_counts_and_its_event_shows_it(
    home: Home, project: Path, config: str
) -> None:
    script = [Fails(text=HALF)]
    async with runtime(home, project, script, config=config) as made:
        handle = await made.start("hello", session_id="s1")
        events = await collect(handle)
        shown = await stored_usages(made)
    usage = handle.usage
    assert usage.is_estimated
    assert usage.output_tokens == HALF_TOKENS
    assert (usage.cost is None) == (config is CONFIG)
    assert usages(events, EventType.MODEL_FAILED) == [usage]
    assert [rounded(each) for each in shown] == [rounded(usage)] * 5


async def test_a_call_that_ends_in_a_reply_is_not_flagged(home: Home, project: Path) -> None:
    script = [Says(text="done", usage=EXACT)]
    async with runtime(home, project, script, config=PRICED) as made:
        result = await made.run("hello")
    assert not result.usage.is_estimated
    assert result.usage.total_tokens == EXACT.total_tokens


SERVED = """
[model]
provider = "openai"
name = "m"
base_url = "{url}"
context_window = 32000
price = {{ input = 1.0, output = 10.0 }}
retry = {{ max_attempts = 3, initial_backoff_ms = {backoff}, max_backoff_ms = {backoff} }}
"""
GONE = Sends([b""])


async def run_served(
    home: Home, project: Path, script: list[Any], **options: Any
) -> tuple[RunResult, list[RuntimeEvent], list[Any]]:
    home.write_config("")
    async with ModelServer(script) as server:
        home.write_config(SERVED.format(url=server.base_url("openai"), backoff=1))
        async with AgentRuntime(project, home_dir=home.path) as made:
            handle = await made.start("hello", session_id="s1", options=RunOptions(**options))
            events = await collect(handle)
            budgets = (await made.replay_session("s1")).budgets
            return await handle.result(), events, list(budgets)


@pytest.mark.parametrize("budget", [None, AMPLE], ids=["no budget", "budget"])
async def test_an_attempt_that_broke_counts_beside_the_one_that_was_answered(
    home: Home, project: Path, budget: Budget | None
) -> None:
    script = [GONE, Says(text="done", usage=EXACT)]
    result, events, budgets = await run_served(home, project, script, budget=budget)
    (retried,) = usages(events, EventType.MODEL_RETRY)
    (completed,) = usages(events, EventType.MODEL_COMPLETED)
    assert retried.is_estimated
    assert retried.input_tokens > 100
    assert not completed.is_estimated
    assert result.usage == retried.plus(completed)
    for use in budgets:
        assert use.spent["total_tokens"] == result.usage.total_tokens


async def test_an_attempt_that_was_refused_costs_nothing(home: Home, project: Path) -> None:
    script = [Status(429), Status(500), Says(text="done", usage=EXACT)]
    result, events, _ = await run_served(home, project, script)
    assert usages(events, EventType.MODEL_RETRY) == [Usage(), Usage()]
    assert not result.usage.is_estimated
    assert result.usage.total_tokens == EXACT.total_tokens


@pytest.mark.parametrize("budget", [None, AMPLE], ids=["no budget", "budget"])
async def test_nothing_is_counted_for_an_attempt_that_was_not_sent(
    home: Home, project: Path, budget: Budget | None
) -> None:
    home.write_config("")
    async with ModelServer([Status(503)] * 3) as server:
        home.write_config(SERVED.format(url=server.base_url("openai"), backoff=60_000))
        async with AgentRuntime(project, home_dir=home.path) as made:
            handle = await made.start("hello", "s1", options=RunOptions(budget=budget))
            async for event in handle.events():
                if event.event_type is EventType.MODEL_RETRY:
                    break
            await handle.cancel()
            budgets = (await made.replay_session("s1")).budgets
    assert handle.status is RunStatus.CANCELLED
    assert handle.usage == Usage()
    assert [use.spent.get("total_tokens", 0) for use in budgets] == [0] * len(budgets)


@pytest.mark.parametrize("budget", [None, AMPLE], ids=["no budget", "budget"])
async def test_a_model_that_a_fallback_replaces_counts_at_its_own_price(
    home: Home, project: Path, budget: Budget | None
) -> None:
    home.write_config("")
    async with ModelServer([GONE]) as first, ModelServer([Says(text="two", usage=EXACT)]) as second:
        one = SERVED.replace("max_attempts = 3", "max_attempts = 1")
        other = one.replace("[model]", "[[model_fallbacks]]").replace('"m"', '"other"')
        other = other.replace("input = 1.0", "input = 2.0")
        config = one.format(url=first.base_url("openai"), backoff=1)
        home.write_config(config + other.format(url=second.base_url("openai"), backoff=1))
        async with AgentRuntime(project, home_dir=home.path) as made:
            handle = await made.start("hello", "s1", options=RunOptions(budget=budget))
            events = await collect(handle)
            budgets = (await made.replay_session("s1")).budgets
    (lost,) = usages(events, EventType.MODEL_RETRY)
    assert handle.status is RunStatus.COMPLETED
    cost = lost.input_tokens / 10**6
    assert lost.cost == pytest.approx(cost)
    assert handle.usage.is_estimated
    assert handle.usage.cost == pytest.approx(cost + (2 * 1000 + 10 * 50) / 10**6)
    for use in budgets:
        assert use.spent["total_tokens"] == handle.usage.total_tokens


@pytest.mark.parametrize("config", [CONFIG, PRICED], ids=["no price", "price"])
async def test_a_reply_that_a_guard_stops_counts_as_reported(
    home: Home, project: Path, config: str
) -> None:
    @on_answer
    async def stop(_: str) -> None:
        raise GuardStop("no")

    script = [Says(text="secret", usage=EXACT)]
    async with runtime(home, project, script, config=config) as made:
        with pytest.raises(RunError) as failed:
            await made.run("hello", guards=[stop])
    usage = failed.value.result.usage
    assert (usage.input_tokens, usage.output_tokens) == (1000, 50)
    assert not usage.is_estimated


async def test_a_reply_that_the_model_gave_up_counts_as_reported(home: Home, project: Path) -> None:
    script = [Says(text="half", usage=EXACT, stop_reason="error")]
    async with runtime(home, project, script, config=PRICED) as made:
        with pytest.raises(RunError) as failed:
            await made.run("hello")
    assert failed.value.result.usage.total_tokens == EXACT.total_tokens
    assert not failed.value.result.usage.is_estimated


class Half:
    """Answers with half a reply, and then never again."""

    def __init__(self) -> None:
        self.has_arrived = asyncio.Event()

    async def answer(self) -> AsyncGenerator[str]:
        yield HALF
        self.has_arrived.set()
        await asyncio.Event().wait()


async def test_a_cancelled_child_counts_in_its_own_run(home: Home, project: Path) -> None:
    half = Half()

    def answer(request: ModelRequest) -> Any:
        is_child = "agent.create_sub_agent" not in [each.name for each in request.tools]
        return half.answer() if is_child else calls("agent.create_sub_agent", task="work")

    async with runtime(home, project, ScriptedProvider(answer), config=PRICED) as made:
        handle = await made.start("hello", session_id="s1")
        await asyncio.wait_for(half.has_arrived.wait(), timeout=20)
        await handle.cancel()
        replayed = await made.replay_session("s1")
        (total,) = await made.costs("all")
    (child,) = usages(list(replayed.events), EventType.CHILD_AGENT_CANCELLED)
    assert child.is_estimated
    assert child.output_tokens == HALF_TOKENS
    assert not handle.usage.is_estimated
    assert rounded(total.usage) == rounded(handle.usage.plus(child))


async def test_a_summary_that_is_cut_off_counts(home: Home, project: Path) -> None:
    half = Half()

    def answer(request: ModelRequest) -> Any:
        return half.answer() if request.metadata.get("purpose") == "compact" else "blah " * 400

    config = PRICED + "\n[compact]\nkeep_recent_tokens = 400\n"
    async with runtime(home, project, ScriptedProvider(answer), config=config) as made:
        for _ in range(3):
            await made.run("go", session_id="s1")
        before = (await made.costs("all"))[0].usage
        handle = await made.compact_session("s1")
        await asyncio.wait_for(half.has_arrived.wait(), timeout=20)
        await handle.cancel()
        (after,) = await made.costs("all")
    assert after.usage.is_estimated
    assert after.usage.output_tokens == before.output_tokens + HALF_TOKENS


VICTIM = """
import asyncio, os, sys
from agent_core import AgentRuntime, Budget, RunOptions, tool
from agent_core.providers.scripted import Hangs, ScriptedProvider, calls
from agent_core.types import Usage

@tool(permission="readonly")
async def note(text: str) -> str:
    "Notes a text."
    return "noted " + text

async def main():
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_tool(note)
    exact = Usage.from_input_output(1000, 50)
    again = calls("note", text="one").model_copy(update={"usage": exact})
    script = [again] * int(sys.argv[3])
    provider = ScriptedProvider([*script, Hangs(text="half of an answer")])
    runtime.register_provider("custom", lambda model: provider)
    async with runtime:
        budget = Budget(total_tokens=10**7) if sys.argv[4] == "budget" else None
        handle = await runtime.start("go", session_id="s1", options=RunOptions(budget=budget))
        async for event in handle.events():
            if event.event_type == "model_text_delta":
                os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.parametrize("budget", kept(["no budget", "budget"], "budget"))
@pytest.mark.parametrize("replies", kept([0, 2], 2))
async def test_a_killed_run_counts_its_replies_and_the_call_under_way(
    home: Home, project: Path, replies: int, budget: str
) -> None:
    home.write_config(PRICED)
    victim = home.write("victim.py", VICTIM)
    arguments = [str(victim), str(home.path), str(project), str(replies), budget]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, *arguments], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    async with runtime(home, project, [Says(text="back", usage=EXACT)], config=PRICED) as made:
        await made.run("hello", session_id="s1")
        replayed = await made.replay_session("s1")
        (total,) = await made.costs("all")
        (summary,) = await made.session_summaries()
    killed, later = replayed.runs
    usage = killed.usage
    lost = usage.input_tokens - 1000 * replies
    assert usage.is_estimated
    assert lost > 100
    assert usage.output_tokens == 50 * replies
    assert usage.cost == pytest.approx((lost + (1000 + 10 * 50) * replies) / 10**6)
    assert killed.turn_count == replies + 1
    assert usages(list(replayed.events), EventType.RUN_FAILED) == [usage]
    assert rounded(total.usage) == rounded(usage.plus(later.usage)) == rounded(summary.usage)


@pytest.mark.parametrize("budget", [None, AMPLE], ids=["no budget", "budget"])
async def test_a_call_cancelled_before_its_first_chunk_counts_its_prompt(
    home: Home, project: Path, budget: Budget | None
) -> None:
    home.write_config("")
    async with ModelServer([Hangs()]) as server:
        home.write_config(SERVED.format(url=server.base_url("openai"), backoff=1))
        async with AgentRuntime(project, home_dir=home.path) as made:
            handle = await made.start("hello", "s1", options=RunOptions(budget=budget))
            while not server.requests:  # noqa: ASYNC110 - the server counts them
                await asyncio.sleep(0.01)
            await handle.cancel()
            shown = await stored_usages(made)
            budgets = (await made.replay_session("s1")).budgets
    usage = handle.usage
    assert usage.is_estimated
    assert usage.output_tokens == 0
    assert usage.cost == pytest.approx(usage.input_tokens / 10**6)
    assert [rounded(each) for each in shown] == [rounded(usage)] * 5
    assert [use.spent["total_tokens"] for use in budgets] == [usage.total_tokens] * len(budgets)


@pytest.mark.parametrize("budget", [None, AMPLE], ids=["no budget", "budget"])
async def test_a_service_that_cannot_be_reached_costs_nothing(
    home: Home, project: Path, budget: Budget | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    home.write_config(SERVED.format(url=f"http://127.0.0.1:{port}/v1", backoff=1))
    async with AgentRuntime(project, home_dir=home.path) as made:
        handle = await made.start("hello", "s1", options=RunOptions(budget=budget))
        await handle.wait()
        budgets = (await made.replay_session("s1")).budgets
    assert handle.status is RunStatus.FAILED
    assert handle.usage == Usage()
    assert [use.spent.get("total_tokens", 0) for use in budgets] == [0] * len(budgets)
    assert [use.spent["requests"] for use in budgets] == [3] * len(budgets)


async def test_an_extraction_of_memories_that_breaks_off_counts(home: Home, project: Path) -> None:
    provider = split("Yes.", memory_extraction=Fails(text=HALF))
    config = f"{PRICED}\n[memory]\nenabled = true\n"
    async with runtime(home, project, provider, config=config) as made:
        await made.run(WISH, session_id="s1")
        (event,) = await until_scanned(made)
        session = (await made.replay_session("s1")).session
        (total,) = await made.costs("all")
    assert event.event_type is EventType.MEMORY_EXTRACTION_FAILED
    usage = Usage.model_validate(event.payload["usage"])
    assert usage.is_estimated
    assert usage.output_tokens == HALF_TOKENS
    assert usage.cost is not None
    assert Usage.model_validate(session.metadata["background_usage"]["memory_extraction"]) == usage
    assert total.usage.is_estimated
    assert total.usage.output_tokens > HALF_TOKENS

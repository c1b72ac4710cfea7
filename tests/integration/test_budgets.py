"""Budgets of runs and sessions: what is reserved and settled, and how a run ends without one."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentRuntime,
    Budget,
    BudgetPool,
    PermissionDecision,
    PermissionRequest,
    RunError,
    RunOptions,
    ToolContext,
    tool,
)
from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import Calls, Fails, Hangs, Says, ScriptedCall, ScriptedProvider
from agent_core.types import EventType, ModelRequest, ReplayResult, RunStatus, Usage
from isolation import Home
from model_server import ModelServer, Status
from runtimes import CONFIG, Asked, collect, runtime
from sweeps import sampled

PRICED = CONFIG + "[model.price]\ninput = 1.0\noutput = 10.0\n"


def says(text: str, given: int, taken: int) -> Says:
    return Says(text=text, usage=Usage.from_input_output(given, taken))


def calls(*names: str, given: int = 100, taken: int = 10) -> Calls:
    usage = Usage.from_input_output(given, taken)
    return Calls(calls=[ScriptedCall(name=name) for name in names], usage=usage)


@tool(permission="readonly")
def look() -> str:
    """Look."""
    return "seen"


def looking(home: Home, project: Path, script: Any, **settings: Any) -> AgentRuntime:
    """A runtime with the tool `look`."""
    made = runtime(home, project, script, **settings)
    made.register_tool(look)
    return made


async def refused(made: AgentRuntime, budget: Budget, **fields: Any) -> RunError:
    with pytest.raises(RunError) as failed:
        await made.run("hello", budget=budget, **fields)
    assert failed.value.code is ErrorCode.BUDGET_EXCEEDED
    assert failed.value.result.status is RunStatus.FAILED
    return failed.value


async def replayed(made: AgentRuntime, session_id: str) -> ReplayResult:
    return await made.replay_session(session_id)


async def test_a_run_within_its_budget_is_priced_and_its_use_is_replayed(
    home: Home, project: Path
) -> None:
    script = [says("done", 1000, 50)]
    async with runtime(home, project, script, config=PRICED) as made:
        result = await made.run("hello", budget=Budget(usd=1, requests=3))
        run = (await replayed(made, result.session_id)).runs[0]
        (use,) = (await replayed(made, result.session_id)).budgets

    assert result.cost == result.usage.cost == pytest.approx(0.0015)
    assert run.usage.cost == pytest.approx(0.0015)
    assert (use.kind, use.scope_id) == ("run", result.run_id)
    assert use.limits == {"usd": 1.0, "requests": 3}
    assert use.spent == {
        "requests": 1,
        "input_tokens": 1000,
        "output_tokens": 50,
        "total_tokens": 1050,
        "usd": 0.0015,
    }
    assert use.reserved == {}
    assert list(use.by_agent.values()) == [use.spent]


async def test_the_closing_events_show_the_cost(home: Home, project: Path) -> None:
    async with runtime(home, project, [says("done", 1000, 50)], config=PRICED) as made:
        handle = await made.start("hello")
        events = await collect(handle)
    shown = {event.event_type: event.payload.get("usage", {}) for event in events}
    assert shown[EventType.MODEL_COMPLETED]["cost"] == pytest.approx(0.0015)
    assert shown[EventType.RUN_COMPLETED]["cost"] == pytest.approx(0.0015)


async def test_without_any_budget_nothing_of_it_is_stored(home: Home, project: Path) -> None:
    async with runtime(home, project, [says("done", 1000, 50)]) as made:
        result = await made.run("hello")
        assert (await replayed(made, result.session_id)).budgets == []
    assert result.cost is None  # unknown, and never 0


@pytest.mark.parametrize(
    ("budget", "limit"),
    sampled(
        [
            (Budget(requests=1), "requests"),
            (Budget(input_tokens=8100), "input_tokens"),
            (Budget(output_tokens=300), "output_tokens"),
            (Budget(total_tokens=8500), "total_tokens"),
            (Budget(usd=0.012), "usd"),
        ],
        keep=3,
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_spent_budget_ends_the_run_and_leaves_the_session_usable(
    home: Home, project: Path, budget: Budget, limit: str
) -> None:
    script = [calls("look", given=8000, taken=150), "never", "again"]
    provider = ScriptedProvider(script)
    async with looking(home, project, provider, config=PRICED) as made:
        error = await refused(made, budget, session_id="s1")
        assert len(provider.requests) == 1
        page = await replayed(made, "s1")
        assert [result.is_error for node in page.nodes for result in node.results] == [False]
        again = await made.run("go on", session_id="s1")

    assert again.text == "never"
    details = error.details
    assert (details["limit"], details["scope"], details["scope_id"]) == (
        limit,
        "run",
        error.result.run_id,
    )
    assert details["spent"]["requests"] == 1
    (spent,) = details["by_agent"].values()
    assert spent == details["spent"]
    assert limit in error.message
    assert error.result.usage.total_tokens == 8150


async def test_nearly_spent_the_longest_answer_shrinks_before_a_call_is_refused(
    home: Home, project: Path
) -> None:
    provider = ScriptedProvider([calls("look", given=10, taken=600), says("done", 10, 100)])
    async with looking(home, project, provider) as made:
        await made.run("hello", budget=Budget(output_tokens=900))
    assert [request.max_output_tokens for request in provider.requests] == [900, 300]


async def test_a_model_with_a_short_limit_is_asked_below_the_floor(
    home: Home, project: Path
) -> None:
    config = CONFIG + "max_output_tokens = 100\n"
    provider = ScriptedProvider([says("done", 10, 100)])
    async with runtime(home, project, provider, config=config) as made:
        await made.run("hello", budget=Budget(output_tokens=100))
        await refused(made, Budget(output_tokens=99))
    assert [request.max_output_tokens for request in provider.requests] == [100]


async def test_calls_of_tools_within_the_budget_are_made_and_the_next_ends_the_run(
    home: Home, project: Path
) -> None:
    script = [calls("look", "look", "look"), "never"]
    async with looking(home, project, script) as made:
        error = await refused(made, Budget(tool_calls=2), session_id="s1")
        page = await replayed(made, "s1")
        assert (await made.run("go on", session_id="s1")).text == "never"
    results = [result for node in page.nodes for result in node.results]
    codes = [result.error.code for result in results if result.error]
    assert (len(results), codes) == (3, [ErrorCode.BUDGET_EXCEEDED])
    assert error.details["limit"] == "tool_calls"
    assert error.details["spent"]["tool_calls"] == 2


async def test_the_last_call_of_a_tool_is_followed_by_an_answer(home: Home, project: Path) -> None:
    async with looking(home, project, [calls("look"), "done"]) as made:
        assert (await made.run("hello", budget=Budget(tool_calls=1))).text == "done"


async def test_missing_usage_is_settled_at_the_estimate_and_flagged(
    home: Home, project: Path
) -> None:
    answer = "word " * 400
    script = [Says(text=answer, usage=Usage())]
    async with runtime(home, project, script, config=PRICED) as made:
        result = await made.run("hello", budget=Budget(usd=1))
        (use,) = (await replayed(made, result.session_id)).budgets
    assert result.usage.is_estimated
    assert result.usage.output_tokens >= 400
    assert result.usage.input_tokens > 100
    assert result.cost is not None
    assert use.spent["total_tokens"] == result.usage.total_tokens
    assert use.spent["usd"] == pytest.approx(result.cost)


@pytest.mark.parametrize(
    ("reported", "given", "taken"),
    sampled(
        [
            (Usage(total_tokens=5000), 4496, 504),
            (Usage(output_tokens=15), None, 15),
            (Usage(input_tokens=100, total_tokens=100), 100, 504),
            (Usage(input_tokens=100, total_tokens=700), 100, 600),
            (Usage(input_tokens=-5, output_tokens=-5, total_tokens=-10), None, 504),
        ],
        keep=3,
    ),
    ids=sampled(["total", "output", "input", "input and total", "negative"], keep=3),
)
async def test_what_a_service_leaves_out_of_its_usage_is_never_free(
    home: Home, project: Path, reported: Usage, given: int | None, taken: int
) -> None:
    script = [Says(text="word " * 400, usage=reported)] * 2
    async with runtime(home, project, script, config=PRICED) as made:
        result = await made.run("hello", budget=Budget(usd=1))
        (use,) = (await replayed(made, result.session_id)).budgets
        without = await made.run("hello")
    usage = result.usage
    assert usage.is_estimated
    assert usage.output_tokens == taken
    assert usage.input_tokens == given if given else usage.input_tokens > 1000
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert use.spent["total_tokens"] == usage.total_tokens
    assert use.spent["usd"] == pytest.approx((usage.input_tokens + 10 * taken) / 10**6)
    assert (without.cost, without.usage.is_estimated) == (None, True)


async def test_a_cancelled_call_is_settled_with_its_prompt_and_what_had_arrived(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, [Hangs(text="word " * 100)]) as made:
        handle = await made.start("hello", options=RunOptions(budget=Budget(total_tokens=10**6)))
        async for event in handle.events():
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                break
        await handle.cancel()
        (use,) = (await replayed(made, handle.session_id)).budgets
    assert use.reserved == {}
    assert use.spent["requests"] == 1
    assert use.spent["output_tokens"] == 125
    assert use.spent["input_tokens"] > 100


async def test_a_broken_stream_is_settled_at_what_is_known(home: Home, project: Path) -> None:
    async with runtime(home, project, [Fails(text="word " * 100)]) as made:
        with pytest.raises(RunError):
            await made.run("hello", session_id="s1", budget=Budget(total_tokens=10**6))
        (use,) = (await replayed(made, "s1")).budgets
    assert use.spent["output_tokens"] == 125
    assert use.reserved == {}


VICTIM = """
import asyncio, sys
from agent_core import AgentRuntime, Budget, EventType
from agent_core.providers.scripted import Hangs, ScriptedProvider

async def main():
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_provider("custom", lambda model: ScriptedProvider([Hangs(text="so far")]))
    async with runtime:
        handle = await runtime.start("go", session_id="s1", budget=Budget(requests=5))
        async for event in handle.events(debug=True):
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                print("asked", flush=True)

asyncio.run(main())
"""

SERVED = """
[model]
provider = "openai"
name = "{name}"
base_url = "{url}"
context_window = 32000
retry = {{ max_attempts = 3, initial_backoff_ms = 1, max_backoff_ms = 1 }}
"""


async def test_every_attempt_is_a_request_and_refused_ones_cost_no_tokens(
    home: Home, project: Path
) -> None:
    home.write_config("")
    async with ModelServer([Status(500), Status(429), says("done", 1000, 50)]) as server:
        home.write_config(SERVED.format(name="m", url=server.base_url("openai")))
        async with AgentRuntime(project, home_dir=home.path) as made:
            await made.run("hello", session_id="s1", budget=Budget(requests=3))
            (use,) = (await replayed(made, "s1")).budgets
    assert use.spent["requests"] == 3
    assert use.spent["total_tokens"] == 1050


async def test_a_retry_beyond_the_budget_is_not_sent(home: Home, project: Path) -> None:
    async with ModelServer([Status(500), Status(500), "never"]) as server:
        home.write_config(SERVED.format(name="m", url=server.base_url("openai")))
        async with AgentRuntime(project, home_dir=home.path) as made:
            error = await refused(made, Budget(requests=2))
        assert len(server.requests) == 2
    assert error.details["spent"]["requests"] == 2


async def test_a_fallback_model_is_a_request_of_its_own_at_its_own_price(
    home: Home, project: Path
) -> None:
    async with ModelServer([Status(503), says("done", 1000, 50)]) as server:
        url = server.base_url("openai")
        one = SERVED.replace("max_attempts = 3", "max_attempts = 1")
        fallback = f"""
[[model_fallbacks]]
provider = "openai"
name = "other"
base_url = "{url}"
context_window = 32000
price = {{ input = 3.0, output = 0.0 }}
"""
        home.write_config(one.format(name="m", url=url) + fallback)
        async with AgentRuntime(project, home_dir=home.path) as made:
            result = await made.run("hello", session_id="s1", budget=Budget(requests=2, usd=1))
            (use,) = (await replayed(made, "s1")).budgets
    assert use.spent["requests"] == 2
    assert result.cost == use.spent["usd"] == pytest.approx(0.003)


async def test_a_listed_model_costs_what_the_price_lists_say(home: Home, project: Path) -> None:
    script = [says("done", 1000, 100), says("done", 1000, 100)]
    listed = CONFIG.replace('name = "script"', 'name = "gpt-4o"')
    async with runtime(home, project, script, config=listed) as made:
        without = await made.run("hello")
        within = await made.run("hello", budget=Budget(usd=1))
    assert without.cost == within.cost == pytest.approx(0.0035)


async def test_a_price_that_is_not_known_is_ignored_and_told_or_refused(
    home: Home, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = [says("done", 1000, 100)] * 5
    async with runtime(home, project, script) as made:
        plain = await made.start("hello", budget=Budget(requests=1), tools=())
        assert plain.warnings == []
        pool = BudgetPool(usd=0.01)
        for budget in (Budget(usd=0.01), pool, BudgetPool(requests=9).share(usd=0.01)):
            handle = await made.start("hello", budget=budget, tools=())
            (warning,) = handle.warnings
            assert "the price of custom:script is not known" in warning
            assert "[model.price]" in warning
            assert (await handle.result()).cost is None
        assert [each.getMessage() for each in caplog.records].count(warning) == 1
    limited = CONFIG + "[budget]\nusd = 1.0\n"
    async with runtime(home, project, script[:1], config=limited) as made:
        assert (await made.start("hello", tools=())).warnings == [warning]
    config = CONFIG + '[budget]\non_unknown_price = "refuse"\n'
    provider = ScriptedProvider(["never"])
    async with runtime(home, project, provider, config=config) as made:
        error = await refused(made, Budget(usd=0.01))
    assert provider.requests == []
    assert error.details["reason"] == "unknown_price"
    assert "[model.price]" in error.message


async def test_a_session_has_one_budget_over_all_its_runs(home: Home, project: Path) -> None:
    script = [says("one", 100, 50), says("two", 100, 50), "never", "other"]
    config = CONFIG + "[budget]\nrequests = 2\n"
    async with runtime(home, project, script, config=config) as made:
        await made.run("one", session_id="s1")
    async with runtime(home, project, script[1:], config=config) as made:
        await made.run("two", session_id="s1", budget=Budget(requests=5))
        error = await refused(made, Budget(requests=5), session_id="s1")
        assert (await made.run("else", session_id="s2")).text == "never"
        kinds = {use.kind: use for use in (await replayed(made, "s1")).budgets}
    assert error.details["scope"] == "session"
    assert kinds["session"].spent["requests"] == 2
    assert kinds["run"].spent["requests"] == 1


def hires(*tasks: str, **more: Any) -> Calls:
    hired = [
        ScriptedCall(name="agent.create_sub_agent", arguments={"task": task, **more})
        for task in tasks
    ]
    return Calls(calls=hired, usage=Usage.from_input_output(100, 10))


def answers(**by_task: Any) -> ScriptedProvider:
    """A model that gives the parent its replies in turn, and each child those of its task."""

    def answer(request: ModelRequest) -> Any:
        text = request.messages[0].model_dump_json()
        replies = next((by_task[task] for task in by_task if f"do {task}" in text), by_task["run"])
        return replies.pop(0)

    return ScriptedProvider(answer)


async def test_a_child_is_paid_by_the_run_out_of_its_share(home: Home, project: Path) -> None:
    model = answers(run=[hires("do this"), "done"], this=[says("child done", 100, 50)])
    async with runtime(home, project, model) as made:
        result = await made.run("hello", session_id="s1", budget=Budget(total_tokens=40_000))
        uses = {use.kind: use for use in (await replayed(made, "s1")).budgets}
        (child,) = [r for r in await runs_of(made, "s1") if r.parent_run_id]
        (share,) = (await made.replay_run(child.run_id)).budgets
    assert result.text == "done"
    assert uses["run"].spent["requests"] == 3
    assert len(uses["run"].by_agent) == 2
    assert uses["run"].by_agent[child.agent_id] == share.spent
    assert share.limits == {"total_tokens": (40_000 - 110) // 2}
    assert share.spent["total_tokens"] == 150


async def runs_of(made: AgentRuntime, session_id: str) -> list[Any]:
    events = (await made.replay_session(session_id)).events
    children = [e.payload["child_run_id"] for e in events if e.event_type == "child_agent_created"]
    return [(await made.replay_run(child)).runs[0] for child in children]


async def test_a_child_that_has_spent_its_share_fails_and_the_parent_goes_on(
    home: Home, project: Path
) -> None:
    model = answers(
        run=[hires("do this", budget={"requests": 1}), "done"], this=[calls("look"), "never"]
    )
    async with looking(home, project, model) as made:
        result = await made.run("hello", session_id="s1", budget=Budget(requests=10))
        page = await replayed(made, "s1")
    assert result.text == "done"
    (report,) = [result for node in page.nodes for result in node.results]
    assert report.error is not None
    assert report.error.code is ErrorCode.BUDGET_EXCEEDED
    assert report.error.details["scope"] == "child"
    assert report.error.details["limits"]["requests"] == 1


@pytest.mark.parametrize("share", [{"wall_s": 30}, {"requests": 5}])
async def test_time_that_a_person_takes_is_not_taken_from_a_childs_budget(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch, share: dict[str, Any]
) -> None:
    loop = asyncio.get_running_loop()
    passed, time = [0.0], loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + passed[0])

    class Slow(Asked):
        async def __call__(self, request: PermissionRequest) -> PermissionDecision:
            passed[0] += 100
            await asyncio.sleep(0.05)
            return await super().__call__(request)

    write = ScriptedCall(name="code.write_file", arguments={"path": "a.txt", "content": "x"})
    model = answers(
        run=[hires("do this", budget=share), "done"],
        this=[Calls(calls=[write]), "written"],
    )
    async with runtime(home, project, model, permission_callback=Slow("allow_once")) as made:
        await made.run("hello", session_id="s1", budget=Budget(requests=10))
        (child,) = await runs_of(made, "s1")
    assert child.status is RunStatus.COMPLETED


async def test_a_child_whose_time_is_over_fails_and_the_parent_goes_on(
    home: Home, project: Path
) -> None:
    model = answers(
        run=[hires("do this", budget={"wall_s": 0.3}), "done"], this=[Hangs(text="so far")]
    )
    async with runtime(home, project, model) as made:
        result = await made.run("hello", session_id="s1", budget=Budget(requests=10))
        page = await replayed(made, "s1")
        (child,) = await runs_of(made, "s1")
        (use,) = page.budgets[:1]
    assert result.text == "done"
    assert child.status is RunStatus.FAILED
    (report,) = [result for node in page.nodes for result in node.results]
    assert report.error is not None
    assert report.error.code is ErrorCode.BUDGET_EXCEEDED
    assert (report.error.details["scope"], report.error.details["limit"]) == ("child", "wall_s")
    assert (use.spent["requests"], use.reserved) == (3, {})


async def test_a_child_is_offered_a_budget_where_there_is_one(home: Home, project: Path) -> None:
    provider = ScriptedProvider(["one", "two"])
    async with runtime(home, project, provider) as made:
        await made.run("hello")
        await made.run("hello", budget=Budget(requests=10))
    shown = [
        next(tool for tool in request.tools if tool.name == "agent.create_sub_agent")
        for request in provider.requests
    ]
    assert ["budget" in tool.input_schema["properties"] for tool in shown] == [False, True]
    assert shown[0].description == shown[1].description


async def test_children_at_the_same_time_never_overshoot_together(
    home: Home, project: Path
) -> None:
    def whole(request: ModelRequest) -> Says:
        return says("as long as it may be", 10, request.max_output_tokens or 0)

    names = ["red", "green", "blue", "white"]
    model = answers(
        run=[hires(*(f"do {name}" for name in names)), "done", "done"],
        **{name: [whole] for name in names},
    )
    async with runtime(home, project, model) as made:
        handle = await made.start("hello", session_id="s1", budget=Budget(output_tokens=5000))
        await handle.wait()
        (use,) = [u for u in (await replayed(made, "s1")).budgets if u.kind == "run"]
    assert use.spent["output_tokens"] <= 5000
    assert use.spent["requests"] >= 4
    assert use.reserved == {}


async def test_a_process_that_died_leaves_its_reservation_settled_in_full(
    home: Home, project: Path
) -> None:
    home.write_config(CONFIG + "[budget]\ntotal_tokens = 100000\n")
    script = home.write("victim.py", VICTIM)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(home.path), str(project), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).strip() == b"asked"
    process.kill()
    await process.wait()
    config = CONFIG + "[budget]\ntotal_tokens = 100000\n"
    async with runtime(home, project, [says("back", 10, 10)], config=config) as made:
        (before,) = [u for u in (await replayed(made, "s1")).budgets if u.kind == "session"]
        await made.run("go on", session_id="s1")
        (after,) = [u for u in (await replayed(made, "s1")).budgets if u.kind == "session"]
    assert before.reserved == after.reserved == {}
    assert before.spent["requests"] == 1
    assert before.spent["output_tokens"] == 4096
    assert before.spent["total_tokens"] == before.spent["input_tokens"] + 4096
    assert after.spent["total_tokens"] == before.spent["total_tokens"] + 20


async def test_time_that_is_over_stops_a_tool_in_the_middle(home: Home, project: Path) -> None:
    stopped = asyncio.Event()

    @tool(permission="readonly")
    async def wait(context: ToolContext) -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    made = runtime(home, project, [calls("wait"), "again"])
    made.register_tool(wait)
    async with made:
        error = await refused(made, Budget(wall_s=0.3), session_id="s1")
        assert stopped.is_set()
        page = await replayed(made, "s1")
        assert len([result for node in page.nodes for result in node.results]) == 1
        assert (await made.run("go on", session_id="s1")).text == "again"
    assert error.details["limit"] == "wall_s"
    assert page.runs[0].status is RunStatus.FAILED


async def test_time_that_is_over_ends_the_processes_of_a_command(home: Home, project: Path) -> None:
    command = "echo $$ > pid; exec sleep 600"
    arguments = {"argv": ["sh", "-c", command]}
    script = [Calls(calls=[ScriptedCall(name="code.run_command", arguments=arguments)])]
    made = runtime(home, project, script, permission_callback=Asked("allow_once"))
    async with made:
        await refused(made, Budget(wall_s=1.5))
    pid = int((project / "pid").read_text(encoding="utf-8"))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_time_that_is_over_ends_the_children(home: Home, project: Path) -> None:
    model = answers(run=[hires("do this")], this=[Hangs(text="so far")])
    async with runtime(home, project, model) as made:
        await refused(made, Budget(wall_s=0.5, requests=9), session_id="s1")
        (child,) = await runs_of(made, "s1")
        (use,) = [use for use in (await replayed(made, "s1")).budgets if use.kind == "run"]
    assert child.status is RunStatus.CANCELLED
    assert use.spent["requests"] == 2
    assert use.reserved == {}


async def test_budgets_hold_in_memory_as_well() -> None:
    model = ScriptedProvider([says("one", 100, 10), "never"])
    config = {"model": {"provider": "x", "name": "x"}, "budget": {"requests": 1}}
    made = AgentRuntime(config=config, persist=False)

    def factory(_: ModelConfig) -> ProviderAdapter:
        return model

    made.register_provider("x", factory)
    async with made:
        await made.run("one", session_id="s1")
        with pytest.raises(RunError) as failed:
            await made.run("two", session_id="s1")
    assert failed.value.code is ErrorCode.BUDGET_EXCEEDED


async def test_time_that_is_over_breaks_off_a_model_call(home: Home, project: Path) -> None:
    async with runtime(home, project, [Hangs(text="so far")]) as made:
        error = await refused(made, Budget(wall_s=0.3, requests=5), session_id="s1")
        (use,) = (await replayed(made, "s1")).budgets
    assert error.details["limit"] == "wall_s"
    assert use.spent["requests"] == 1
    assert use.reserved == {}


async def test_the_time_of_a_session_is_that_of_its_runs(home: Home, project: Path) -> None:
    config = CONFIG + "[budget]\nwall_s = 0.5\n"
    script: Sequence[Any] = [Hangs(), "never"]
    async with runtime(home, project, script, config=config) as made:
        with pytest.raises(RunError):
            await made.run("one", session_id="s1")
        with pytest.raises(RunError) as failed:
            await made.run("two", session_id="s1")
    assert failed.value.code is ErrorCode.BUDGET_EXCEEDED
    assert failed.value.details["scope"] == "session"
    assert failed.value.details["spent"]["wall_s"] >= 0.5


async def test_a_budget_of_nothing_asks_nothing(home: Home, project: Path) -> None:
    provider = ScriptedProvider(["never"])
    async with runtime(home, project, provider) as made:
        for budget in (Budget(requests=0), Budget(total_tokens=0), Budget(input_tokens=1)):
            await refused(made, budget)
    assert provider.requests == []

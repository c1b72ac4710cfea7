"""Runs that are started inside runs: they need no place, and belong to the outer run."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    Budget,
    Decision,
    ErrorCode,
    GuardContext,
    ModelRequest,
    PermissionDecision,
    PermissionRequest,
    RunError,
    RunHandle,
    RunStatus,
    StorageError,
    on_message,
    tool,
)
from agent_core.providers.scripted import Hangs, ScriptedProvider, calls
from agent_core.storage.store import SessionStore
from agent_core.telemetry.spans import Telemetry
from agent_core.testing import ScriptedRuntime
from isolation import Home
from sweeps import is_whole, kept

LIMIT_S = 20.0
"""A run that waits for its own place would wait forever."""


def words(request: ModelRequest) -> str:
    """The text of the last message."""
    content = request.messages[-1].content
    return "".join(getattr(block, "text", "") for block in content)


def model(request: ModelRequest) -> Any:
    """Calls the tool that the message names, once; hangs if the message says so."""
    said = words(request)
    if said == "hang":
        return Hangs()
    name, _, rest = said.partition(" ")
    if name in {tool.name for tool in request.tools}:
        return calls(name, text=rest)
    return f"said {said}" if said else "done"


def runtime(most: int = 1, **options: Any) -> ScriptedRuntime:
    config = {"runtime": {"max_concurrent_runs": most, "cancel_timeout_ms": 5000}}
    return ScriptedRuntime(model, config=config, **options)


def tool_of(name: str, work: Callable[[str], Awaitable[str]]) -> Any:
    @tool(name=name, permission="readonly")
    async def made(text: str) -> str:
        """Do some work."""
        return await work(text)

    return made


async def in_time(work: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(work, LIMIT_S)


async def refusal(work: Awaitable[Any]) -> AgentCoreError:
    with pytest.raises(AgentCoreError) as refused:
        await work
    return refused.value


async def test_a_tool_awaits_a_run_while_its_own_run_has_the_last_place() -> None:
    async with runtime() as made:

        async def ask(text: str) -> str:
            return (await made.run(text)).text

        result = await in_time(made.run("ask hello", tools=[tool_of("ask", ask)], events=True))
        nested = [one for one in await made.list_sessions() if one.title == "hello"]
    assert result.status is RunStatus.COMPLETED
    assert len(nested) == 1


@pytest.mark.long
async def test_runs_are_nested_to_any_depth_and_beside_each_other() -> None:
    asked: list[str] = []
    async with runtime(2) as made:

        async def ask(text: str) -> str:
            asked.append(text)
            both = [made.run(text, tools=[again]), made.run("hello")]
            return " ".join(result.text for result in await asyncio.gather(*both))

        again = tool_of("ask", ask)
        beside = 4 if is_whole() else 2
        outer = [made.run("ask ask ask end", tools=[again]) for _ in range(beside)]
        results = await in_time(asyncio.gather(*outer))
    assert [result.status for result in results] == [RunStatus.COMPLETED] * beside
    assert len(asked) == 3 * beside


@pytest.mark.sweep
async def test_handles_of_runs_started_inside_can_be_awaited_later() -> None:
    async with runtime() as made:

        async def ask(text: str) -> str:
            handles = [await made.start(text) for _ in range(3)]
            return " ".join([(await handle.result()).text for handle in handles])

        result = await in_time(made.run("ask hello", tools=[tool_of("ask", ask)]))
    assert result.status is RunStatus.COMPLETED


@pytest.mark.sweep
async def test_guards_callbacks_and_adapters_may_await_a_run() -> None:
    asked: list[str] = []

    async def allow(request: PermissionRequest) -> PermissionDecision:
        asked.append((await made.run("from a callback")).text)
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    @on_message
    async def look(message: str, context: GuardContext) -> None:
        asked.append((await made.run("from a guard")).text)

    async def adapter(request: ModelRequest) -> Any:
        if words(request).startswith("write"):
            asked.append((await made.run("from an adapter")).text)
        return model(request)

    @tool(name="write")
    def write(text: str) -> str:
        """Write something."""
        return text

    async with runtime(permission_callback=allow) as made:
        given: dict[str, Any] = {"tools": [write], "guards": [look]}
        asked_model = ScriptedProvider(adapter)
        result = await in_time(made.run("write it", model=asked_model, **given))
    assert result.status is RunStatus.COMPLETED
    assert asked == [f"said from {who}" for who in ("a guard", "an adapter", "a callback")]


async def test_the_session_of_an_outer_run_is_refused_at_once() -> None:
    errors: list[AgentCoreError] = []
    async with runtime() as made:

        async def inner(text: str) -> str:
            errors.append(await refusal(made.run(text, "s1")))
            errors.append(await refusal(made.run(text, "s2")))
            return "refused"

        async def ask(text: str) -> str:
            errors.append(await refusal(made.start(text, "s1")))
            errors.append(await refusal(made.compact_session("s1")))
            async with made.session("s1") as session:
                errors.append(await refusal(session.run(text)))
            result = await made.run("inner x", "s2", tools=[tool_of("inner", inner)])
            return result.text

        result = await in_time(made.run("ask x", "s1", tools=[tool_of("ask", ask)]))
        again = await made.run("hello", "s1")
        assert [len(await made.session_runs(each)) for each in ("s1", "s2")] == [2, 1]
    assert [error.code for error in errors] == [ErrorCode.SESSION_ACTIVE] * 5
    assert all(isinstance(error, StorageError) for error in errors)
    assert result.run_id in str(errors[0])
    assert "another session" in str(errors[0])
    assert errors[0].details == {"session_id": "s1", "run_id": result.run_id}
    assert again.status is RunStatus.COMPLETED


async def test_two_runs_that_would_wait_for_each_others_sessions_do_not() -> None:
    both = asyncio.Barrier(2)
    async with runtime(8) as made:

        async def cross(text: str) -> str:
            await both.wait()
            return (await made.run("hello", text)).text

        crossing = tool_of("cross", cross)
        results = await in_time(
            asyncio.gather(
                made.run("cross s2", "s1", tools=[crossing]),
                made.run("cross s1", "s2", tools=[crossing]),
            )
        )
        runs = [await made.session_runs(each) for each in ("s1", "s2")]
    assert [result.status for result in results] == [RunStatus.COMPLETED] * 2
    assert sorted(map(len, runs)) == [1, 2]  # one was refused, the other had its turn


@pytest.mark.sweep
async def test_a_run_in_front_of_a_nested_one_does_not_wait_for_the_place_of_the_outer() -> None:
    async with runtime() as made:
        before: list[RunHandle[Any]] = []

        async def ask(text: str) -> str:
            before.append(await started_outside(made, "hello", "s2"))
            assert before[0].status is RunStatus.QUEUED
            return (await made.run(text, "s2")).text

        result = await in_time(made.run("ask x", "s1", tools=[tool_of("ask", ask)]))
        assert await in_time(before[0].wait()) is RunStatus.COMPLETED
    assert result.status is RunStatus.COMPLETED


async def started_outside(made: AgentRuntime, text: str, session_id: str) -> RunHandle[Any]:
    """Start a run as another task would, which works for no run."""
    from contextvars import Context  # noqa: PLC0415

    start = made.start(text, session_id)
    return await asyncio.get_running_loop().create_task(start, context=Context())


@pytest.mark.parametrize("is_awaited", kept([True, False], True))
async def test_cancelling_a_run_cancels_what_was_started_inside(is_awaited: bool) -> None:
    begun = asyncio.Event()
    inner: list[RunHandle[Any]] = []
    async with runtime() as made:

        async def deeper(text: str) -> str:
            inner.append(await made.start(text))
            begun.set()
            await inner[-1].wait()
            return "ended"

        async def ask(text: str) -> str:
            inner.append(await made.start(f"deeper {text}", tools=[tool_of("deeper", deeper)]))
            if is_awaited:
                await inner[0].wait()
            else:
                await asyncio.Event().wait()
            return "ended"

        outer = await made.start("ask hang", tools=[tool_of("ask", ask)])
        await in_time(begun.wait())
        await in_time(outer.cancel())
        statuses = [await in_time(handle.wait()) for handle in [outer, *inner]]
    assert statuses == [RunStatus.CANCELLED] * 3


async def test_a_run_that_is_being_cancelled_starts_no_other() -> None:
    errors: list[AgentCoreError] = []
    begun = asyncio.Event()
    async with runtime() as made:

        async def ask(text: str) -> str:
            begun.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            errors.append(await refusal(made.run(text)))
            return "too late"

        outer = await made.start("ask hello", tools=[tool_of("ask", ask)])
        await in_time(begun.wait())
        await in_time(outer.cancel())
        assert len(await made.list_sessions()) == 1
    assert [error.code for error in errors] == [ErrorCode.CANCELLED]


@pytest.mark.sweep
async def test_a_run_that_is_being_opened_when_the_outer_one_is_cancelled_never_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, go = asyncio.Event(), asyncio.Event()
    inner: list[asyncio.Task[RunHandle[Any]]] = []
    open_run = SessionStore.open_run

    async def open_late(store: SessionStore, *opening: Any) -> Any:
        if inner:
            asked.set()
            await go.wait()
        return await open_run(store, *opening)

    monkeypatch.setattr(SessionStore, "open_run", open_late)
    said: list[str] = []

    def heard(request: ModelRequest) -> Any:
        said.append(words(request))
        return model(request)

    async with ScriptedRuntime(heard) as made:

        async def ask(text: str) -> str:
            inner.append(asyncio.create_task(made.start(text)))
            await asyncio.Event().wait()
            return "never"

        outer = await made.start("ask hang", tools=[tool_of("ask", ask)])
        await in_time(asked.wait())
        assert (await in_time(outer.cancel())).status is RunStatus.CANCELLED
        go.set()
        handle = await in_time(inner[0])
        assert await in_time(handle.wait()) is RunStatus.CANCELLED
        assert (await in_time(made.run("hello"))).text == "said hello"
    assert said == ["ask hang", "hello"]


@pytest.mark.sweep
async def test_a_run_that_outlasts_the_outer_one_has_its_place() -> None:
    inner: list[RunHandle[Any]] = []
    async with runtime() as made:

        async def ask(text: str) -> str:
            inner.append(await made.start(text))
            return "started"

        outer = await in_time(made.run("ask hang", tools=[tool_of("ask", ask)]))
        later = await made.start("hello")
        assert (inner[0].status, later.status) == (RunStatus.RUNNING, RunStatus.QUEUED)
        await inner[0].cancel()
        assert await in_time(later.wait()) is RunStatus.COMPLETED
    assert outer.status is RunStatus.COMPLETED


@pytest.mark.sweep
async def test_what_has_inherited_the_variables_of_an_ended_run_is_outside() -> None:
    go, done = asyncio.Event(), list[asyncio.Task[Any]]()
    async with runtime() as made:

        async def later() -> Any:
            await go.wait()
            return await made.run("hello", "s1")

        async def ask(text: str) -> str:
            done.append(asyncio.create_task(later()))
            return text

        await in_time(made.run("ask x", "s1", tools=[tool_of("ask", ask)]))
        occupying = await made.start("hang", "s2")
        go.set()
        while not made_queued(await made.session_runs("s1")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await occupying.cancel()
        assert (await in_time(done[0])).status is RunStatus.COMPLETED


def made_queued(runs: list[Any]) -> bool:
    return any(run.status is RunStatus.QUEUED for run in runs)


async def test_the_budget_of_the_outer_run_pays_too() -> None:
    errors: list[AgentCoreError] = []
    async with runtime() as made:

        async def ask(text: str) -> str:
            await made.run(text)
            await made.run(text, budget=Budget(requests=1))
            errors.append(await refusal(made.run(text)))
            return "spent"

        budget = Budget(requests=3)
        failed = await refusal(
            in_time(made.run("ask hello", "s1", tools=[tool_of("ask", ask)], budget=budget))
        )
        (use,) = (await made.replay_session("s1")).budgets
    assert [error.code for error in errors] == [ErrorCode.BUDGET_EXCEEDED]
    assert "budget of the run" in str(errors[0])
    assert failed.code is ErrorCode.BUDGET_EXCEEDED  # nothing is left for its own next turn
    assert use.spent["requests"] == 3
    assert len(use.by_agent) == 3
    assert use.reserved == {}


@pytest.mark.sweep
async def test_each_session_pays_for_its_own_runs() -> None:
    config = {"runtime": {"max_concurrent_runs": 1}, "budget": {"requests": 5}}
    async with ScriptedRuntime(model, config=config) as made:

        async def ask(text: str) -> str:
            await made.run(text, "s2")
            return "done"

        await in_time(made.run("ask hello", "s1", tools=[tool_of("ask", ask)]))
        first, second = [(await made.replay_session(each)).budgets for each in ("s1", "s2")]
        await made.delete_session("s2")
        assert (await made.replay_session("s1")).budgets == first
    assert [use.spent["requests"] for use in first] == [3]
    assert [use.spent["requests"] for use in second] == [1]


@pytest.mark.sweep
async def test_time_that_a_person_takes_in_a_nested_run_is_not_the_outer_runs() -> None:
    async def allow(request: PermissionRequest) -> PermissionDecision:
        await asyncio.sleep(3.2)
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    @tool(name="write")
    def write(text: str) -> str:
        """Write something."""
        return text

    async with runtime(permission_callback=allow) as made:

        async def ask(text: str) -> str:
            return (await made.run(text, tools=[write])).text

        given: Any = {"tools": [tool_of("ask", ask)], "budget": Budget(wall_s=3)}
        result = await in_time(made.run("ask write it", **given))
    assert result.status is RunStatus.COMPLETED


@pytest.mark.sweep
async def test_a_question_in_a_nested_run_may_be_answered_after_the_outer_run_has_ended() -> None:
    asked, answered = asyncio.Event(), asyncio.Event()
    inner: list[RunHandle[Any]] = []

    async def allow(request: PermissionRequest) -> PermissionDecision:
        asked.set()
        await answered.wait()
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    written: list[str] = []

    @tool(name="write")
    def write(text: str) -> str:
        """Write something."""
        written.append(text)
        return text

    async with runtime(permission_callback=allow) as made:

        async def ask(text: str) -> str:
            inner.append(await made.start(text, tools=[write]))
            await asked.wait()
            return "asked"

        given: Any = {"tools": [tool_of("ask", ask)], "budget": Budget(wall_s=60)}
        outer = await in_time(made.run("ask write it", **given))
        answered.set()
        assert await in_time(inner[0].wait()) is RunStatus.COMPLETED
    assert outer.status is RunStatus.COMPLETED
    assert written == ["it"]


@pytest.mark.sweep
async def test_a_child_pays_for_the_run_that_its_tool_starts() -> None:
    def asked(request: ModelRequest) -> Any:
        said = words(request)
        if said == "delegate":
            return calls("agent.create_sub_agent", task="ask hello")
        return calls("ask", text="hello") if "ask hello" in said else model(request)

    async with ScriptedRuntime(asked, config={"runtime": {"max_concurrent_runs": 1}}) as made:

        async def ask(text: str) -> str:
            return (await made.run(text)).text

        made.register_tool(tool_of("ask", ask))
        result = await in_time(made.run("delegate", "s1", budget=Budget(requests=20)))
        runs = await made.session_runs("s1")
        services = await made._home.services()
        run, child = await services.store.budget_uses([run.run_id for run in runs])
    assert result.status is RunStatus.COMPLETED
    assert (run.kind, run.spent["requests"]) == ("run", 5)
    assert (child.kind, child.spent["requests"]) == ("child", 3)


async def test_the_spans_of_a_nested_run_are_below_the_call_that_started_it() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with runtime(telemetry=Telemetry(provider)) as made:

        async def ask(text: str) -> str:
            return (await made.run(text)).text

        await in_time(made.run("ask hello", tools=[tool_of("ask", ask)]))
    spans = exporter.get_finished_spans()
    (call,) = [span.context for span in spans if span.name == "execute_tool ask"]
    assert call is not None
    below = [each.name for each in spans if each.parent and each.parent.span_id == call.span_id]
    assert below == ["invoke_agent main"]


@pytest.mark.sweep
async def test_runtimes_may_be_nested_in_each_other() -> None:
    refused: list[AgentCoreError] = []
    async with runtime() as first, runtime() as second:

        async def back(text: str) -> str:
            refused.append(await refusal(first.run(text, "s1")))
            return (await first.run(text, "s2")).text

        async def there(text: str) -> str:
            return (await second.run(text, "s1", tools=[tool_of("back", back)])).text

        result = await in_time(first.run("there back hello", "s1", tools=[tool_of("there", there)]))
    assert result.status is RunStatus.COMPLETED
    assert [error.code for error in refused] == [ErrorCode.SESSION_ACTIVE]


@pytest.mark.sweep
async def test_an_answer_given_inside_a_run_lets_the_other_run_continue() -> None:
    @tool(name="write")
    def write(text: str) -> str:
        """Write something."""
        return text

    config = {"runtime": {"max_concurrent_runs": 1}, "permissions": {"unattended": "park"}}
    async with ScriptedRuntime(model, config=config) as made:
        made.register_tool(write)

        async def ask(text: str) -> str:
            handle = await made.answer(parked.pending_requests[0], "allow_once")
            return (await handle.result()).text

        parked = await made.run("write it", "s1")
        assert parked.status is RunStatus.WAITING
        result = await in_time(made.run("ask x", "s2", tools=[tool_of("ask", ask)]))
        assert [run.status for run in await made.session_runs("s1")] == [RunStatus.COMPLETED]
    assert result.status is RunStatus.COMPLETED


@pytest.mark.sweep
async def test_a_nested_run_that_waits_for_an_answer_goes_on_without_a_place() -> None:
    @tool(name="write")
    def write(text: str) -> str:
        """Write something."""
        return text

    config = {"runtime": {"max_concurrent_runs": 1}, "permissions": {"unattended": "park"}}
    parked, answered = asyncio.Event(), asyncio.Event()
    async with ScriptedRuntime(model, config=config) as made:
        made.register_tool(write)

        async def ask(text: str) -> str:
            handle = await made.start(text)
            assert await handle.wait() is RunStatus.WAITING
            parked.set()
            await answered.wait()
            await handle.wait()
            return handle.result_text or ""

        outer = await made.start("ask write it", tools=[tool_of("ask", ask)])
        await in_time(parked.wait())
        (question,) = await made.approvals()
        await made.answer(question.request_id, "allow_once")
        answered.set()
        assert await in_time(outer.wait()) is RunStatus.COMPLETED


async def test_a_failing_start_leaves_nothing_behind() -> None:
    async with runtime() as made:

        async def ask(text: str) -> str:
            errors.append(await refusal(made.run(text, "s2", tools=["no.such_tool"])))
            return (await made.run(text, "s2")).text

        errors: list[AgentCoreError] = []
        result = await in_time(made.run("ask hello", tools=[tool_of("ask", ask)]))
        assert len(await made.session_runs("s2")) == 1
    assert result.status is RunStatus.COMPLETED
    assert [error.code for error in errors] == [ErrorCode.VALIDATION_ERROR]


@pytest.mark.sweep
async def test_a_run_of_this_process_is_nested_in_a_shared_database_too(
    home: Home, project: Path, database_url: str
) -> None:
    config = {"model": {"provider": "custom", "name": "m"}, "runtime": {"max_concurrent_runs": 1}}
    options: dict[str, Any] = {"home_dir": home.path, "database_url": database_url}
    async with AgentRuntime(
        project, config=config, model=ScriptedProvider(model), **options
    ) as made:
        errors: list[AgentCoreError] = []

        async def ask(text: str) -> str:
            errors.append(await refusal(made.run(text, "s1", here=True)))
            errors.append(await refusal(made.start(text, "s1")))
            return (await made.run(text, here=True)).text

        given: dict[str, Any] = {"tools": [tool_of("ask", ask)], "budget": Budget(requests=9)}
        result = await in_time(made.run("ask hello", "s1", here=True, **given))
        (use,) = (await made.replay_session("s1")).budgets
    assert result.status is RunStatus.COMPLETED
    assert [error.code for error in errors] == [ErrorCode.SESSION_ACTIVE] * 2
    assert use.spent["requests"] == 3


async def test_a_failed_nested_run_is_an_error_of_the_tool() -> None:
    async with runtime() as made:

        async def ask(text: str) -> str:
            with pytest.raises(RunError):
                await made.run(text, max_turns=1, tools=[tool_of("more", ask)])
            return "it failed"

        result = await in_time(made.run("ask more x", tools=[tool_of("ask", ask)]))
    assert result.status is RunStatus.COMPLETED

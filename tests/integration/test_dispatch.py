"""Who carries a run out: a worker, or the process that starts it, when it is its turn."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, AgentRuntime, ErrorCode, RunHandle, RunStatus, StorageError
from agent_core.config.models import ModelConfig
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import Hangs, ScriptedProvider
from agent_core.runtime.dispatch import Dispatcher
from agent_core.runtime.services import Services
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.types import EventType, RuntimeEvent
from agent_core.types.lanes import Lane, own_place
from isolation import Home
from runtimes import CONFIG
from sweeps import sampled
from takeovers import services_of

LANE = Lane(queue="default", place=own_place())


@pytest.fixture
def make(home: Home, project: Path, database_url: str) -> Callable[..., AgentRuntime]:
    """Makes a runtime on the database, whose model plays a script; without one it has none."""
    home.write_config(CONFIG)

    def made(*script: Any, **options: Any) -> AgentRuntime:
        runtime = AgentRuntime(project, home_dir=home.path, database_url=database_url, **options)
        provider = ScriptedProvider(script)

        def factory(model: ModelConfig) -> ProviderAdapter:
            return provider

        if script:
            runtime.register_provider("custom", factory)
        return runtime

    return made


async def work(services: Services) -> None:
    """Carry out the next run, as a worker does."""
    assert isinstance(services.store, PostgresSessionStore)
    queue = services.store.queue(lease_s=30)
    job = await queue.fetch_next(LANE.__eq__)
    assert job is not None
    queued = await services.store.run(job.run_id)
    assert queued is not None
    run = await services.runs.pipeline.take(queued)
    assert run is not None
    await run.ended.wait()
    await queue.finish(job)


def types_of(events: list[RuntimeEvent]) -> list[EventType]:
    assert [event.run_seq for event in events if event.run_seq] == list(
        range(1, len([event for event in events if event.run_seq]) + 1)
    )
    return [event.event_type for event in events]


async def test_a_run_is_recorded_and_queued_and_a_worker_takes_it(
    make: Callable[..., AgentRuntime], home: Home, project: Path, database_url: str
) -> None:
    async with (
        make() as caller,  # it has not even the provider
        services_of(home.path, project, ["done"], database_url=database_url) as services,
    ):
        handle = await caller.start("go", "s1", max_turns=3)
        assert handle.status is RunStatus.QUEUED
        (warning,) = handle.warnings
        assert "soong-agent worker" in warning
        assert LANE.place in warning
        watching = asyncio.create_task(collect(handle))
        await work(services)
        result = await handle.result()
        types = types_of(await watching)
    assert (result.text, result.status) == ("done", RunStatus.COMPLETED)
    assert types[:2] == [EventType.RUN_QUEUED, EventType.RUN_WITHOUT_WORKER]
    assert types[-1] is EventType.RUN_COMPLETED


async def collect(handle: Any) -> list[RuntimeEvent]:
    return [event async for event in handle.events()]


@pytest.mark.sweep
async def test_a_run_of_this_process_comes_after_what_is_queued_before_it(
    make: Callable[..., AgentRuntime], home: Home, project: Path, database_url: str
) -> None:
    async with (
        make("mine", "mine too") as caller,
        services_of(home.path, project, ["theirs"], database_url=database_url) as services,
    ):
        first = await caller.start("one", "s1")
        second = asyncio.create_task(caller.start("two", "s1", here=True))
        elsewhere = await caller.run("three", "s2", here=True, events=True)
        assert elsewhere.text == "mine"
        assert elsewhere.events is not None
        assert types_of(elsewhere.events)[0] is EventType.RUN_QUEUED
        assert not second.done()
        await work(services)
        result = await (await second).result()
        assert result.text == "mine too"
        assert (await first.result()).text == "theirs"
        runs = (await caller.replay_session("s1")).runs
        types = types_of(await collect(await caller.attach(result.run_id)))
    assert [run.status for run in runs] == [RunStatus.COMPLETED] * 2
    assert types[0] is EventType.RUN_QUEUED
    assert types[-1] is EventType.RUN_COMPLETED


async def test_a_run_of_this_process_is_given_up_when_its_turn_does_not_come(
    make: Callable[..., AgentRuntime], home: Home, project: Path, database_url: str
) -> None:
    async with (
        make("mine") as caller,
        services_of(home.path, project, ["theirs"], database_url=database_url) as services,
    ):
        await caller.start("one", "s1")
        with pytest.raises(StorageError) as refused:
            await caller.start("two", "s1", here=True, queue_timeout_s=0.3)
        assert refused.value.code is ErrorCode.SESSION_ACTIVE
        waiting = asyncio.create_task(caller.start("three", "s1", here=True))
        await asyncio.sleep(0.3)
        waiting.cancel()
        await asyncio.wait([waiting])
        await work(services)
        runs = (await caller.replay_session("s1")).runs
        assert [run.status for run in runs] == ["completed", "cancelled", "cancelled"]
        assert (await caller.run("four", "s1", here=True)).text == "mine"


async def test_runs_of_one_process_in_one_session_follow_each_other(
    make: Callable[..., AgentRuntime],
) -> None:
    async with make("one", "two", "three") as caller, caller.session("s1") as session:
        results = await asyncio.gather(*(session.run(str(n), here=True) for n in range(3)))
        assert {result.text for result in results} == {"one", "two", "three"}
        compacting = await caller.compact_session("s1")
        await compacting.wait()
        undone = await caller.undo("s1")
        assert undone.session.session_id == "s1"
        await caller.delete_session("s1")


async def test_a_session_whose_run_waits_for_a_worker_is_not_deleted(
    make: Callable[..., AgentRuntime],
) -> None:
    async with make() as caller:
        handle = await caller.start("one", "s1")
        with pytest.raises(StorageError, match="has a run that waits for its turn") as caught:
            await caller.delete_session("s1")
        assert caught.value.code is ErrorCode.SESSION_ACTIVE
        await handle.cancel()
        await caller.delete_session("s1")


async def test_a_cancelled_run_of_this_process_frees_its_session(
    make: Callable[..., AgentRuntime],
) -> None:
    async with make(Hangs(text="hm "), "free") as caller:
        handle = await caller.start("one", "s1", here=True)
        async for event in handle.events():
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                break
        await handle.cancel()
        assert (await caller.run("two", "s1", here=True, queue_timeout_s=10)).text == "free"


async def test_a_start_that_is_cancelled_right_after_its_turn_came_frees_its_session(
    make: Callable[..., AgentRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    starting: asyncio.Task[RunHandle] | None = None

    async def sweep(_: Dispatcher) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if starting is not None:
                starting.cancel()
            raise

    async with make("one", "free") as caller:
        with monkeypatch.context() as patch:
            patch.setattr(Dispatcher, "_sweep", sweep)
            starting = asyncio.create_task(caller.start("one", "s1", here=True))
            with pytest.raises(asyncio.CancelledError):
                await starting
        assert (await caller.run("two", "s1", here=True, queue_timeout_s=10)).text


async def test_what_only_this_process_has_is_refused_where_a_worker_takes_the_run(
    make: Callable[..., AgentRuntime],
) -> None:
    async def shout(text: str) -> str:
        """Say it aloud."""
        return text.upper()

    async with make("done", "done") as caller:
        fields: list[tuple[str, Any]] = [("deps", object()), ("tools", [shout])]
        for name, value in fields:
            with pytest.raises(AgentCoreError) as refused:
                await caller.start("go", "s1", **{name: value})
            assert refused.value.code is ErrorCode.VALIDATION_ERROR
            assert name in refused.value.message
            assert "here=True" in refused.value.message
            assert (await caller.run("go", here=True, **{name: value})).text == "done"
        assert await caller.list_sessions() != []


MALFORMED: dict[str, list[Any]] = {
    "place": ["here", "host:", "host:a b", "snapshot/x", 3],
    "tenant": ["", "a/b", "x" * 41, "a b", 3],
    "queue": ["", "a/b", "x" * 25, "a.b", 3],
    "queue_timeout_s": [-1, float("nan"), float("inf"), True, "3"],
    "questions_wait": [1, "yes"],
    "here": [1, "yes"],
}


@pytest.mark.parametrize("name", sampled(MALFORMED, keep=3))
async def test_a_malformed_placement_is_refused_and_named(
    make: Callable[..., AgentRuntime], name: str
) -> None:
    async with make("done") as caller:
        for value in MALFORMED[name]:
            with pytest.raises(AgentCoreError) as refused:
                await caller.start("go", "s1", **{name: value})
            assert refused.value.code is ErrorCode.VALIDATION_ERROR
            assert name in refused.value.message
        assert await caller.list_sessions() == []


@pytest.mark.parametrize(
    "given",
    [
        {"queue_timeout_s": 3},
        {"queue_timeout_s": 3, "here": False},
        {"queue": "slow", "here": True},
    ],
    ids=str,
)
async def test_options_of_a_placement_that_have_no_effect_together_are_refused(
    make: Callable[..., AgentRuntime], given: dict[str, Any]
) -> None:
    async with make("done") as caller:
        with pytest.raises(AgentCoreError) as refused:
            await caller.start("go", "s1", **given)
        assert refused.value.code is ErrorCode.VALIDATION_ERROR
        assert refused.value.message.startswith(f"{next(iter(given))} ")
        assert "here=True" in refused.value.message
        assert await caller.list_sessions() == []


async def test_a_runtime_of_one_tenant_starts_no_run_of_another(
    make: Callable[..., AgentRuntime],
) -> None:
    async with make("done", tenant="acme") as caller:
        with pytest.raises(AgentCoreError) as refused:
            await caller.start("go", "s1", tenant="other")
        assert "acme" in refused.value.message
        handle = await caller.start("go", "s1")
        (session,) = await caller.list_sessions()
        assert session.tenant == "acme"
        run = (await caller.replay_session("s1")).runs[0]
        assert run.lane == f"default/{own_place()}/acme/1"
        await handle.cancel()


@pytest.mark.parametrize("persist", [True, False])
async def test_on_one_machine_only_here_may_be_said(
    home: Home, project: Path, persist: bool
) -> None:
    home.write_config(CONFIG)
    runtime = AgentRuntime(project, home_dir=home.path, persist=persist)
    runtime.register_provider("custom", lambda model: ScriptedProvider(["done"]))
    async with runtime:
        refused: dict[str, Any] = {
            "here": False,
            "place": "snapshot",
            "tenant": "acme",
            "queue": "default",
            "queue_timeout_s": 3,
            "questions_wait": True,
        }
        for name, value in refused.items():
            with pytest.raises(AgentCoreError) as error:
                await runtime.start("go", "s1", **{name: value})
            assert error.value.code is ErrorCode.VALIDATION_ERROR
            assert name in error.value.message
        assert (await runtime.run("go", "s1", here=True)).text == "done"

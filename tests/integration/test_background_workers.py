"""Workers that are sent without waiting: their results, their limits, and how they are stopped."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, ErrorCode, EventType, ModelRequest, RunHandle, RunStatus, tool
from agent_core.providers.scripted import Calls, Hangs, calls
from casts import Cast, Line, data_of, last_answers, results, together
from isolation import Home
from runtimes import CONFIG, runtime
from sweeps import kept, sampled

POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
worker_id = "anna"
agent_definition_id = "default_worker_agent"
[[agents.worker_pools.workers]]
worker_id = "bert"
agent_definition_id = "default_worker_agent"
"""
STEPS = [{"step_id": "s1"}, {"step_id": "s2"}]
CREATE = calls("agent.task_create", task_id="t1", wal_name="work", steps=STEPS)
CLAIM = calls("agent.task_claim_step", task_id="t1", step_id="s1")
DONE = calls(
    "agent.task_update_step", task_id="t1", step_id="s1", status="completed", result_summary="ok"
)
WAIT = calls("agent.wait_workers")
LIST = calls("agent.list_workers")
SIGNAL = calls("signal")
MEET = calls("meet")


def send(instruction: str = "work", **more: Any) -> Calls:
    return calls(
        "agent.dispatch_worker",
        **{"task_id": "t1", "instruction": instruction, "wait": False, "allowed_tools": ["signal"]}
        | more,
    )


class Bench:
    """An orchestrator `go` and its workers; `meet` waits until a worker has called `signal`."""

    def __init__(self, home: Home, project: Path, parts: dict[str, list[Line]]) -> None:
        self.project = project
        self.played = Cast(parts)
        self.signalled = asyncio.Event()
        self.home = home

    def opened(self, config: str = "") -> AgentRuntime:
        made = runtime(self.home, self.project, self.played, config=CONFIG + config + POOL)

        @tool(permission="readonly")
        async def signal() -> str:
            """Tell the orchestrator that it may go on."""
            self.signalled.set()
            return "signalled"

        @tool(permission="readonly")
        async def meet() -> str:
            """Wait for the worker."""
            await self.signalled.wait()
            return "met"

        @tool(permission="readonly")
        async def rest() -> str:
            """Wait until the worker has ended."""
            await asyncio.sleep(0.3)
            return "rested"

        made.register_tool(signal)
        made.register_tool(rest)
        made.register_tool(meet)
        return made

    def log(self) -> list[str]:
        path = self.project / ".soong-agent" / "tasks" / "s1" / "work.wal.jsonl"
        return path.read_text(encoding="utf-8").splitlines()


async def go(made: AgentRuntime) -> RunHandle:
    async with asyncio.timeout(50):
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await handle.wait()
    assert handle.status is RunStatus.COMPLETED, handle.error
    return handle


async def answers(made: AgentRuntime, name: str) -> list[Any]:
    return [data_of(result) for result in results(await made.replay_session("s1"), name)]


async def test_a_worker_is_sent_seen_at_work_and_its_result_collected(
    home: Home, project: Path
) -> None:
    signalled: list[asyncio.Event] = []

    def release(_: ModelRequest) -> Calls:
        signalled[0].set()
        return WAIT

    parts: dict[str, list[Line]] = {
        "go": [CREATE, send(allowed_tools=["meet"]), LIST,
               calls("agent.wait_workers", timeout_ms=0), release, WAIT, "done"],
        "work": [CLAIM, MEET, DONE, "It is done."],
    }  # fmt: skip
    bench = Bench(home, project, parts)
    signalled.append(bench.signalled)
    async with bench.opened() as made:
        await go(made)
        (handle,) = await answers(made, "agent.dispatch_worker")
        (listed,) = await answers(made, "agent.list_workers")
        early, late, empty = await answers(made, "agent.wait_workers")
        replay = await made.replay_session("s1")
    assert handle.keys() == {
        "worker_agent_id", "child_run_id", "stream_id", "selection_reason", "status",
    }  # fmt: skip
    assert (handle["status"], handle["selection_reason"]) == ("running", "first_idle")
    busy, idle = listed["workers"]
    assert (busy["status"], busy["current_run_id"]) == ("busy", handle["child_run_id"])
    assert idle["status"] == "idle"
    assert early == {"workers": [handle], "running_run_ids": [handle["child_run_id"]]}
    (result,) = late["workers"]
    assert result["child_run_id"] == handle["child_run_id"]
    assert (result["status"], result["step_status"]) == ("completed", "completed")
    assert (result["claim_lost"], result["step_result_summary"]) == (False, "ok")
    assert result["worker_result"]["summary"] == "It is done."
    assert empty == {"workers": [], "running_run_ids": []}
    kinds = [event.event_type for event in replay.events]
    assert EventType.CHILD_AGENT_COMPLETED in kinds


async def test_a_result_can_be_asked_for_again_by_its_run(home: Home, project: Path) -> None:
    def again(request: ModelRequest) -> Calls:
        run_id = last_answers(request)[-1]["workers"][0]["child_run_id"]
        return calls("agent.wait_workers", run_ids=[run_id, run_id])

    parts: dict[str, list[Line]] = {"go": [CREATE, send(), WAIT, again, "done"], "work": ["idle"]}
    async with Bench(home, project, parts).opened() as made:
        await go(made)
        first, second = await answers(made, "agent.wait_workers")
    assert first == second
    assert first["workers"][0]["no_step_claimed"] is True


async def test_a_result_that_was_not_collected_is_listed(home: Home, project: Path) -> None:
    parts: dict[str, list[Line]] = {
        "go": [CREATE, send(), calls("rest"), LIST, WAIT, LIST, "done"],
        "work": [SIGNAL, "bye"],
    }
    async with Bench(home, project, parts).opened() as made:
        await go(made)
        (handle,) = await answers(made, "agent.dispatch_worker")
        before, after = await answers(made, "agent.list_workers")
    assert before["workers"][0]["uncollected_run_ids"] == [handle["child_run_id"]]
    assert "uncollected_run_ids" not in after["workers"][0]


@pytest.mark.parametrize("run_ids", [[], ["run_nobody"]])
async def test_unknown_runs_cannot_be_waited_for(
    home: Home, project: Path, run_ids: list[str]
) -> None:
    parts: dict[str, list[Line]] = {"go": [calls("agent.wait_workers", run_ids=run_ids), "done"]}
    async with Bench(home, project, parts).opened() as made:
        await go(made)
        (result,) = results(await made.replay_session("s1"), "agent.wait_workers")
    assert result.error is not None
    assert result.error.code is ErrorCode.VALIDATION_ERROR
    assert result.error.details["unknown_run_ids"] == run_ids


@pytest.mark.parametrize("end", sampled(["fail", "cancel"], keep=1))
@pytest.mark.parametrize("has_claimed", kept([True, False], False))
@pytest.mark.parametrize("same_turn", [True, False])
async def test_a_task_end_reaches_its_live_workers_first(
    home: Home, project: Path, end: str, has_claimed: bool, same_turn: bool
) -> None:
    ending = calls(f"agent.task_{end}", task_id="t1", reason="enough")
    last = [together(WAIT, ending)] if same_turn else [ending, WAIT]
    parts: dict[str, list[Line]] = {
        "go": [CREATE, send(), MEET, *last, "done"],
        "work": [*([CLAIM] if has_claimed else []), SIGNAL, Hangs()],
    }
    bench = Bench(home, project, parts)
    async with bench.opened() as made:
        await go(made)
        (collected,) = await answers(made, "agent.wait_workers")
        (ended,) = results(await made.replay_session("s1"), f"agent.task_{end}")
        replay = await made.replay_session("s1")
    assert not ended.is_error
    (worker,) = collected["workers"]
    assert worker["status"] == "cancelled"
    assert worker["error"]["details"]["reason"] == "task_ended"
    status = {"fail": "failed", "cancel": "cancelled"}[end]
    if has_claimed:
        assert (worker["claim_lost"], worker["step_status"]) == (True, status)
    assert f'"event_type":"task_{status}"' in bench.log()[-1]
    assert '"reason":"cancelled"' not in "".join(bench.log())
    kinds = [event.event_type for event in replay.events]
    assert kinds.count(EventType.CHILD_AGENT_CANCELLED) == 1


def finishes(_: RunHandle) -> None:
    """The orchestrator comes to its end by itself."""


def is_cancelled(handle: RunHandle) -> None:
    asyncio.get_running_loop().create_task(handle.cancel())


@pytest.mark.long
@pytest.mark.parametrize("end", [finishes, is_cancelled])
async def test_workers_end_with_their_orchestrator_and_are_recorded(
    home: Home, project: Path, end: Callable[[RunHandle], None]
) -> None:
    last: Line = "done" if end is finishes else Hangs()
    parts: dict[str, list[Line]] = {
        "go": [CREATE, send(), MEET, last],
        "work": [CLAIM, SIGNAL, Hangs()],
    }
    bench = Bench(home, project, parts)
    async with bench.opened() as made, asyncio.timeout(50):
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await bench.signalled.wait()
        await bench.played.called(6)
        end(handle)
        await handle.wait()
        replay = await made.replay_session("s1")
        (sent,) = await answers(made, "agent.dispatch_worker")
        child = await handle.inspect_child(sent["child_run_id"])
    assert child.run.status is RunStatus.CANCELLED
    assert handle.status is (RunStatus.COMPLETED if end is finishes else RunStatus.CANCELLED)
    asked = [
        event.payload["reason"]
        for event in replay.events
        if event.event_type is EventType.CHILD_AGENT_CANCEL_REQUESTED
    ]
    assert asked == ["parent_ended" if end is finishes else "parent_cancelled"]
    assert '"reason":"cancelled"' in bench.log()[-1]
    assert child.agent.result is not None
    assert child.agent.result["status"] == "cancelled"


async def test_a_worker_that_does_not_stop_is_left_behind_and_its_place_stays_taken(
    home: Home, project: Path
) -> None:
    let_go = asyncio.Event()

    @tool(permission="readonly")
    async def cling() -> str:
        """Do not stop when asked."""
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()
        return "late"

    parts: dict[str, list[Line]] = {
        "go": [CREATE, send(allowed_tools=["signal", "cling"]), MEET, "done"],
        "again": [LIST, "done"],
        "work": [CLAIM, together(SIGNAL, calls("cling")), "late"],
    }
    bench = Bench(home, project, parts)
    made = bench.opened("[agents]\nchild_cancel_timeout_ms = 100\n")
    made.register_tool(cling)
    async with made, asyncio.timeout(50):
        await go(made)
        second = await made.start("again", session_id="s1", mode="orchestrator")
        await second.wait()
        replay = await made.replay_session("s1")
        (listed,) = await answers(made, "agent.list_workers")
        let_go.set()
    kinds = [event.event_type for event in replay.events]
    assert kinds.count(EventType.CHILD_AGENT_CANCEL_TIMEOUT) == 1
    assert second.status is RunStatus.COMPLETED
    assert [worker["status"] for worker in listed["workers"]] == ["busy", "idle"]


@pytest.mark.long
async def test_workers_that_do_not_stop_hold_a_cancelled_run_up_only_once(
    home: Home, project: Path
) -> None:
    let_go, clinging = asyncio.Event(), asyncio.Semaphore(0)

    @tool(permission="readonly")
    async def cling() -> str:
        """Do not stop when asked."""
        clinging.release()
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()
        return "late"

    parts: dict[str, list[Line]] = {
        "go": [
            CREATE,
            send(allowed_tools=["cling"]),
            send(allowed_tools=["cling"], wait=True),
            "done",
        ],
        "work": [calls("cling"), "late"],
    }
    made = Bench(home, project, parts).opened("[agents]\nchild_cancel_timeout_ms = 3000\n")
    made.register_tool(cling)
    async with made, asyncio.timeout(50):
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await clinging.acquire()
        await clinging.acquire()
        started = time.monotonic()
        await handle.cancel()
        await handle.wait()
        took = time.monotonic() - started
        replay = await made.replay_session("s1")
        let_go.set()
    assert handle.status is RunStatus.CANCELLED
    assert 2.9 < took < 5.9
    kinds = [event.event_type for event in replay.events]
    assert kinds.count(EventType.CHILD_AGENT_CANCEL_TIMEOUT) == 2


async def test_background_workers_count_among_the_children_of_a_run(
    home: Home, project: Path
) -> None:
    parts: dict[str, list[Line]] = {
        "go": [CREATE, send(), send(), "done"],
        "work": [Hangs()],
    }
    async with Bench(home, project, parts).opened("[agents]\nmax_children_per_run = 1\n") as made:
        await go(made)
        _, refused = results(await made.replay_session("s1"), "agent.dispatch_worker")
    assert refused.error is not None
    assert refused.error.code is ErrorCode.CHILD_AGENT_LIMIT_EXCEEDED


async def test_several_are_sent_and_waited_for_in_one_turn(home: Home, project: Path) -> None:
    parts: dict[str, list[Line]] = {
        "go": [CREATE, together(send("work"), send("work"), WAIT), "done"],
        "work": [SIGNAL, "bye"],
    }
    async with Bench(home, project, parts).opened() as made:
        await go(made)
        (collected,) = await answers(made, "agent.wait_workers")
    assert [worker["status"] for worker in collected["workers"]] == ["completed"] * 2

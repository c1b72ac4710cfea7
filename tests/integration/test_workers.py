"""Workers in a whole runtime: who is sent, what they may touch, and how their steps end."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentRuntime,
    ConfigError,
    ErrorCode,
    EventType,
    InspectResult,
    ModelRequest,
    RunHandle,
    RunStatus,
    tool,
)
from agent_core.providers.scripted import Calls, Fails, Hangs, calls
from casts import Cast, Line, data_of, last_answers, results, system_of, text_of, together
from isolation import Home
from runtimes import CONFIG, Asked, runtime
from sweeps import sampled

POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
worker_id = "anna"
agent_definition_id = "default_worker_agent"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""
STEPS = [{"step_id": "s1"}, {"step_id": "s2"}]
CREATE = calls("agent.task_create", task_id="t1", wal_name="work", title="T", steps=STEPS)
CLAIM = calls("agent.task_claim_step", task_id="t1", step_id="s1")
DONE = calls(
    "agent.task_update_step", task_id="t1", step_id="s1", status="completed", result_summary="ok"
)


def dispatch(instruction: str = "work", **more: Any) -> Calls:
    return calls("agent.dispatch_worker", task_id="t1", instruction=instruction, **more)


def lead(*lines: Line) -> list[Line]:
    """An orchestrator that makes the Task, and then this."""
    return [CREATE, *lines, "done"]


def pool_of(count: int) -> str:
    worker = '[[agents.worker_pools.workers]]\nagent_definition_id = "default_worker_agent"\n'
    return f'{CONFIG}[[agents.worker_pools]]\npool_id = "builders"\n{worker * count}'


def opened(home: Home, project: Path, played: Cast, *, config: str = CONFIG + POOL) -> AgentRuntime:
    return runtime(home, project, played, config=config, permission_callback=Asked("allow_once"))


async def go(made: AgentRuntime, text: str = "go") -> RunHandle:
    handle = await made.start(text, session_id="s1", mode="orchestrator")
    await handle.wait()
    assert handle.status is RunStatus.COMPLETED, handle.error
    return handle


async def dispatches(made: AgentRuntime) -> list[Any]:
    found = results(await made.replay_session("s1"), "agent.dispatch_worker")
    return [data_of(result) for result in found]


async def refusal(made: AgentRuntime, handle: RunHandle, name: str) -> Any:
    """The error of the last call of a tool."""
    result = results(await made.replay_run(handle.run_id), name)[-1]
    assert result.error is not None
    return result.error


async def inspected(made: AgentRuntime, handle: RunHandle) -> list[InspectResult]:
    replay = await made.replay_run(handle.run_id)
    sent = [e for e in replay.events if e.event_type is EventType.WORKER_DISPATCHED]
    return [await handle.inspect_child(event.payload["child_run_id"]) for event in sent]


def log_of(project: Path) -> list[dict[str, Any]]:
    """The Task's log."""
    (log,) = (project / ".soong-agent" / "tasks" / "s1").glob("*.wal.jsonl")
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def lines(project: Path) -> list[str]:
    """The Task's log, as event types."""
    return [line["event_type"] for line in log_of(project)]


def last_line(project: Path, event_type: str) -> dict[str, Any]:
    return [line for line in log_of(project) if line["event_type"] == event_type][-1]


@pytest.mark.sweep
async def test_j2_a_pool_may_name_one_definition_twice_and_both_can_be_sent(
    home: Home, project: Path
) -> None:
    meeting = asyncio.Barrier(2)

    @tool(permission="readonly")
    async def meet() -> str:
        """Wait for the other."""
        await meeting.wait()
        return "met"

    # A worker reads by default; a dispatch may add a tool by name.
    sent = dispatch("work", allowed_tools=["meet"])
    played = Cast({"go": lead(together(sent, sent)), "work": [calls("meet"), "done"]})
    made = opened(home, project, played)
    made.register_tool(meet)
    async with made, asyncio.timeout(50):
        handle = await go(made)
        first, second = await dispatches(made)
        workers = await inspected(made, handle)
    assert first["worker_agent_id"] != second["worker_agent_id"]
    ids = sorted(worker.agent.metadata["worker_id"] for worker in workers)
    assert ids == ["anna", "builders-2-default_worker_agent"]
    assert {worker.agent.metadata["purpose"] for worker in workers} == {"worker"}
    assert {worker.agent.agent_type for worker in workers} == {"sub"}
    assert {worker.agent.parent_agent_id for worker in workers} == {handle.agent_id}


async def test_j3_two_workers_of_a_pool_with_one_id_are_a_config_error(
    home: Home, project: Path
) -> None:
    named = '[[agents.worker_pools.workers]]\nworker_id = "anna"\nagent_definition_id = "x"\n'
    config = f'{CONFIG}[[agents.worker_pools]]\npool_id = "p"\n{named}{named}'
    with pytest.raises(ConfigError, match="anna"):
        async with runtime(home, project, [], config=config):
            pass


async def test_j4_workers_are_listed_with_what_they_do_and_nothing_they_did(
    home: Home, project: Path
) -> None:
    played = Cast({
        "go": lead(dispatch(), calls("agent.list_workers"), calls("agent.list_workers",
                   worker_pool_id="nobody")),
        "work": ["nothing to do"],
    })  # fmt: skip
    async with opened(home, project, played) as made:
        await go(made)
        listed, unknown = results(await made.replay_session("s1"), "agent.list_workers")
    first, second = data_of(listed)["workers"]
    assert first.keys() == {
        "worker_agent_id",
        "worker_id",
        "agent_definition_id",
        "name",
        "description",
        "worker_pool_id",
        "status",
        "suggested_tools",
        "tags",
    }
    assert (first["worker_id"], first["status"]) == ("anna", "idle")
    assert second["worker_id"] == "builders-2-default_worker_agent"
    assert unknown.error is not None
    assert unknown.error.code is ErrorCode.WORKER_NOT_AVAILABLE


async def test_j5_the_first_idle_worker_goes_and_its_id_outlives_the_process(
    home: Home, project: Path
) -> None:
    played = Cast({"go": lead(dispatch()), "again": [dispatch(), "done"], "work": ["nothing"]})
    async with opened(home, project, played) as made:
        await go(made)
        (first,) = await dispatches(made)
    async with opened(home, project, Cast(played.parts)) as made:
        handle = await go(made, "again")
        second = (await dispatches(made))[-1]
        (worker,) = await inspected(made, handle)
        path = await made.get_node_path(worker.nodes[-1].node_id)
    assert first["selection_reason"] == "first_idle"
    assert first["worker_agent_id"] == second["worker_agent_id"]
    assert first["child_run_id"] != second["child_run_id"]
    assert worker.agent.metadata["worker_id"] == "anna"
    # A new branch of the same tree: the root is shared, the dispatch before is not there.
    assert [node.role for node in path] == ["user", "user", "assistant"]
    assert "anna" in path[0].text
    assert path[0].run_id != worker.run.run_id
    assert {node.run_id for node in path[1:]} == {worker.run.run_id}


async def test_j6_allowed_steps_are_a_hard_limit(home: Home, project: Path) -> None:
    asked: list[Any] = []

    def remembers(request: ModelRequest) -> Calls:
        asked.append(last_answers(request)[-1])
        return CLAIM

    other = calls("agent.task_claim_step", task_id="t1", step_id="s2")
    played = Cast({
        "go": lead(dispatch(allowed_step_ids=["s2", "s2"])),
        "work": [calls("agent.task_query_steps", task_id="t1"), remembers, other, "done"],
    })  # fmt: skip
    async with opened(home, project, played) as made:
        handle = await go(made)
        (worker,) = await inspected(made, handle)
        (answer,) = await dispatches(made)
    refused, claimed = results_of(worker, "agent.task_claim_step")
    assert [step["step_id"] for step in asked[0]["steps"]] == ["s2"]
    assert refused.error.code is ErrorCode.PERMISSION_DENIED
    assert data_of(claimed)["claimed"]
    assert answer["claimed_step_id"] == "s2"


def results_of(worker: InspectResult, name: str) -> list[Any]:
    found = {result.tool_call_id: result for node in worker.nodes for result in node.results}
    made = (call for node in worker.nodes for call in node.calls if call.name == name)
    return [found[call.tool_call_id] for call in made]


@pytest.mark.parametrize("step_ids", [[], ["s1", "unknown"]])
async def test_j7_no_step_or_an_unknown_one_starts_no_worker(
    home: Home, project: Path, step_ids: Sequence[str]
) -> None:
    played = Cast({"go": lead(dispatch(allowed_step_ids=step_ids)), "work": ["never"]})
    async with opened(home, project, played) as made:
        handle = await go(made)
        error = await refusal(made, handle, "agent.dispatch_worker")
        replay = await made.replay_session("s1")
    assert error.code is ErrorCode.VALIDATION_ERROR
    kinds = [event.event_type for event in replay.events]
    assert EventType.WORKER_DISPATCH_FAILED in kinds
    assert EventType.WORKER_DISPATCHED not in kinds
    assert played.requests_of("work") == []


async def test_j8_a_worker_without_a_ready_step_succeeds_and_writes_nothing(
    home: Home, project: Path
) -> None:
    waiting = [{"step_id": "s1"}, {"step_id": "s2", "depends_on_step_ids": ["s1"]}]
    create = calls("agent.task_create", task_id="t1", wal_name="w", title="T", steps=waiting)
    query = calls("agent.task_query_steps", task_id="t1", statuses=["ready"])
    played = Cast({
        "go": [create, dispatch(allowed_step_ids=["s2"]), "done"],
        "work": [query, "nothing is ready"],
    })  # fmt: skip
    async with opened(home, project, played) as made:
        await go(made)
        (answer,) = await dispatches(made)
        (result,) = results(await made.replay_session("s1"), "agent.dispatch_worker")
    assert not result.is_error
    assert answer["no_step_claimed"] is True
    assert "claimed_step_id" not in answer
    assert answer["worker_result"]["summary"] == "nothing is ready"
    assert answer["stream_id"] == answer["child_run_id"]
    assert lines(project) == ["task_created", "task_step_ready", "task_running"]


async def test_j9_a_worker_claims_one_step_only(home: Home, project: Path) -> None:
    second = calls("agent.task_claim_step", task_id="t1", step_id="s2")
    played = Cast({"go": lead(dispatch()), "work": [CLAIM, second, DONE, "done"]})
    async with opened(home, project, played) as made:
        handle = await go(made)
        (worker,) = await inspected(made, handle)
    _, refused = results_of(worker, "agent.task_claim_step")
    assert refused.error.code is ErrorCode.STEP_ALREADY_CLAIMED_BY_RUN


async def test_j10_where_words_and_step_differ_the_step_holds(home: Home, project: Path) -> None:
    failed = calls(
        "agent.task_update_step", task_id="t1", step_id="s1", status="failed", reason="no way"
    )
    played = Cast({"go": lead(dispatch()), "work": [CLAIM, failed, "It is all done!"]})
    async with opened(home, project, played) as made:
        await go(made)
        (answer,) = await dispatches(made)
    assert answer["step_status"] == "failed"
    assert answer["claimed_step_id"] == "s1"
    assert answer["worker_result"]["summary"] == "It is all done!"
    assert answer["worker_result"]["step_id"] == "s1"


async def test_a_completed_step_is_told_with_its_result(home: Home, project: Path) -> None:
    played = Cast({"go": lead(dispatch()), "work": [CLAIM, DONE, "done"]})
    async with opened(home, project, played) as made:
        await go(made)
        (answer,) = await dispatches(made)
    assert (answer["step_status"], answer["step_result_summary"]) == ("completed", "ok")
    assert answer["no_step_claimed"] is False


@pytest.mark.long
@pytest.mark.parametrize(
    ("ending", "reason", "code"),
    sampled(
        [
            ("forgotten", "worker_finished_without_step_terminal", None),
            (Fails(message="no luck"), "worker_failed", "provider_error"),
            (Hangs(), "timeout", "timeout"),
        ],
        keep=2,
    ),
)
async def test_k10_a_step_left_open_fails_and_says_why(
    home: Home, project: Path, ending: Line, reason: str, code: str | None
) -> None:
    limit: dict[str, Any] = {"timeout_ms": 1500} if isinstance(ending, Hangs) else {}
    played = Cast({"go": lead(dispatch(**limit)), "work": [CLAIM, ending]})
    async with opened(home, project, played) as made:
        handle = await go(made)
        (answer,) = await dispatches(made)
        (result,) = results(await made.replay_session("s1"), "agent.dispatch_worker")
        (worker,) = await inspected(made, handle)
    assert answer["step_status"] == "failed"
    assert last_line(project, "task_step_failed")["payload"]["reason"] == reason
    assert (result.error.code if result.error else None) == code
    kinds = [event.event_type for event in worker.events]
    assert kinds.index(EventType.TASK_STEP_FAILED) < len(kinds) - 1
    assert kinds[-1] in {EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_CANCELLED}


async def test_k10_cancelling_the_orchestrator_fails_the_steps_of_its_workers(
    home: Home, project: Path
) -> None:
    played = Cast({"go": lead(dispatch()), "work": [CLAIM, Hangs()]})
    async with opened(home, project, played) as made:
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await played.called(4)
        await handle.cancel()
    assert handle.status is RunStatus.CANCELLED
    assert last_line(project, "task_step_failed")["payload"]["reason"] == "cancelled"


async def test_a_busy_worker_and_a_busy_pool_are_told_apart(home: Home, project: Path) -> None:
    def names_the_first(request: ModelRequest) -> Calls:
        agent_id = last_answers(request)[-1]["workers"][0]["worker_agent_id"]
        named = dispatch(worker_agent_id=agent_id)
        return together(named, named, dispatch(), dispatch())

    played = Cast({
        "go": lead(calls("agent.list_workers"), names_the_first),
        "work": ["done"],
    })  # fmt: skip
    async with opened(home, project, played) as made:
        await go(made)
        found = results(await made.replay_session("s1"), "agent.dispatch_worker")
    codes = [result.error.code if result.error else None for result in found]
    assert codes == [None, ErrorCode.WORKER_BUSY, None, ErrorCode.WORKER_POOL_BUSY]
    assert data_of(found[0])["selection_reason"] == "named"


@pytest.mark.parametrize(
    ("arguments", "code"),
    sampled(
        [
            ({"worker_pool_id": "nobody"}, ErrorCode.WORKER_NOT_AVAILABLE),
            ({"worker_agent_id": "agent_of_nobody"}, ErrorCode.WORKER_NOT_AVAILABLE),
            ({"allowed_tools": ["code.telepathy"]}, ErrorCode.VALIDATION_ERROR),
            ({"allowed_tools": ["agent.create_sub_agent"]}, ErrorCode.VALIDATION_ERROR),
            ({"expected_output_schema": {"type": 1}}, ErrorCode.VALIDATION_ERROR),
            ({"allowed_step_ids": ["elsewhere"]}, ErrorCode.WORKER_NOT_AVAILABLE),
        ],
        keep=3,
    ),
)
async def test_a_dispatch_that_cannot_be_sends_nobody_and_takes_nobody(
    home: Home, project: Path, arguments: dict[str, Any], code: ErrorCode
) -> None:
    steps = [*STEPS, {"step_id": "elsewhere", "worker_pool_id": "another_pool"}]
    create = calls("agent.task_create", task_id="t1", wal_name="w", title="T", steps=steps)
    played = Cast({
        "go": [create, dispatch(**arguments), calls("agent.list_workers"), "done"],
        "work": ["never"],
    })  # fmt: skip
    async with opened(home, project, played) as made:
        handle = await go(made)
        error = await refusal(made, handle, "agent.dispatch_worker")
        (listed,) = results(await made.replay_session("s1"), "agent.list_workers")
    assert error.code is code
    assert {worker["status"] for worker in data_of(listed)["workers"]} == {"idle"}
    assert played.requests_of("work") == []


@pytest.mark.parametrize("state", sampled(["blocked", "cancelled", "missing"], keep=1))
async def test_a_task_that_is_blocked_or_over_gets_no_worker(
    home: Home, project: Path, state: str
) -> None:
    block = {"op": "update_task", "status": "blocked"}
    end = {
        "blocked": calls("agent.task_update", task_id="t1", operations=[block]),
        "cancelled": calls("agent.task_cancel", task_id="t1"),
        "missing": calls("agent.task_list"),
    }[state]
    played = Cast({"go": [*([CREATE] if state != "missing" else []), end, dispatch(), "done"]})
    async with opened(home, project, played) as made:
        handle = await go(made)
        error = await refusal(made, handle, "agent.dispatch_worker")
    expected = "task_not_found" if state == "missing" else "task_not_dispatchable"
    assert error.code == expected


CEILING = f"""{CONFIG}
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
worker_id = "reader"
agent_definition_id = "default_worker_agent"
allowed_tools = ["code.read_file"]
[[agents.worker_pools.workers]]
worker_id = "writer"
agent_definition_id = "default_worker_agent"
allowed_tools = ["code.read_file", "code.write_file"]
"""
TASK_TOOLS = {f"agent.task_{name}" for name in ("get", "query_steps", "update_step", "claim_step")}


async def test_a_workers_list_is_its_set_and_its_ceiling(home: Home, project: Path) -> None:
    played = Cast({
        "go": lead(dispatch(), dispatch(allowed_tools=["code.write_file"]),
                   dispatch(allowed_tools=["code.edit_file"])),
        "work": ["done"],
    })  # fmt: skip
    async with opened(home, project, played, config=CEILING) as made:
        handle = await go(made)
        workers = await inspected(made, handle)
        error = await refusal(made, handle, "agent.dispatch_worker")
    assert [each.agent.metadata["worker_id"] for each in workers] == ["reader", "writer"]
    first, second = played.requests_of("work")
    assert {each.name for each in first.tools} == {"code.read_file", *TASK_TOOLS}
    assert {each.name for each in second.tools} == {"code.write_file", *TASK_TOOLS}
    assert error.code is ErrorCode.VALIDATION_ERROR


async def test_a_worker_without_a_list_reads_and_gets_what_its_dispatch_adds(
    home: Home, project: Path
) -> None:
    played = Cast({
        "go": lead(dispatch(), dispatch(allowed_tools=["code.write_file"])),
        "work": ["done"],
    })  # fmt: skip
    async with opened(home, project, played) as made:
        await go(made)
    first, second = played.requests_of("work")
    readers = {"code.read_file", "code.list_dir", "code.search"}
    plain = {each.name for each in first.tools if each.name.startswith("code.")}
    assert plain == readers
    added = {each.name for each in second.tools if each.name.startswith("code.")}
    assert added == {*readers, "code.write_file"}


async def test_a_worker_is_told_its_task_and_what_it_is(home: Home, project: Path) -> None:
    played = Cast({
        "go": lead(dispatch("work", context="it is late", allowed_step_ids=["s1"])),
        "work": ["done"],
    })  # fmt: skip
    async with opened(home, project, played) as made:
        await go(made)
    (request,) = played.requests_of("work")
    words = text_of(request.messages[-1])
    assert "t1" in words
    assert "s1" in words
    assert "it is late" in words
    assert "You are a worker." in system_of(request)
    assert not any("<task_board>" in text_of(message) for message in request.messages)


async def test_a_worker_sees_its_part_of_the_board_once_it_uses_a_task_tool(
    home: Home, project: Path
) -> None:
    played = Cast({"go": lead(dispatch(allowed_step_ids=["s1"])), "work": [CLAIM, DONE, "done"]})
    async with opened(home, project, played) as made:
        await go(made)
    _, second, _ = played.requests_of("work")
    board = text_of(second.messages[-1])
    assert "<task_board>" in board
    assert "t1/s1" in board
    assert "t1/s2" not in board


async def test_a_worker_whose_claim_is_gone_edits_nothing_any_more(
    home: Home, project: Path
) -> None:
    write = calls("code.write_file", path="a.txt", content="x")
    before = calls("code.write_file", path="b.txt", content="x")
    look = calls("agent.task_get", task_id="t1")
    read = calls("code.list_dir", path=".")

    async def look_late(_: ModelRequest) -> Any:
        await asyncio.sleep(0.4)  # longer than the lease, which a model request does not renew
        return look

    config = f"{CONFIG}{POOL}[task]\nstep_lease_timeout_ms = 200\n"
    tools = ["code.write_file"]
    played = Cast({
        "go": lead(dispatch(allowed_tools=tools)),
        "work": [CLAIM, before, look_late, write, read, DONE, "sorry"],
    })  # fmt: skip
    made = opened(home, project, played, config=config)
    async with made:
        handle = await go(made)
        (worker,) = await inspected(made, handle)
        (answer,) = await dispatches(made)
    _, refused = results_of(worker, "code.write_file")
    assert refused.error.code is ErrorCode.PERMISSION_DENIED
    assert refused.error.details["reason"] == "claim_lost"
    (late,) = results_of(worker, "agent.task_update_step")
    assert late.error.code is ErrorCode.PERMISSION_DENIED
    assert not results_of(worker, "code.list_dir")[0].is_error
    assert (project / "b.txt").exists(), "while the claim held, it could write"
    assert not (project / "a.txt").exists()
    assert answer["step_status"] == "ready", "the step is free again, not failed"


@pytest.mark.parametrize(("end", "status"), [("fail", "failed"), ("cancel", "cancelled")])
async def test_k15_k16_ending_a_task_stops_the_worker_that_is_still_at_it(
    home: Home, project: Path, end: str, status: str
) -> None:
    stopped = asyncio.Event()

    @tool(permission="readonly")
    async def cling() -> str:
        """Do not let go at the first request."""
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "late"

    # The dispatch gives up on its worker, which goes on for a while; then the Task ends.
    config = CONFIG + "[agents]\nchild_cancel_timeout_ms = 100\n" + POOL
    ending = calls(f"agent.task_{end}", task_id="t1", reason="enough")
    steps = [*STEPS, {"step_id": "s3", "depends_on_step_ids": ["s2"]}]
    create = calls("agent.task_create", task_id="t1", wal_name="w", title="T", steps=steps)
    played = Cast({
        "go": [create, dispatch(timeout_ms=1500, allowed_tools=["cling"]), ending, "done"],
        "work": [CLAIM, calls("cling"), "done"],
    })  # fmt: skip
    made = opened(home, project, played, config=config)
    made.register_tool(cling)
    async with made:
        await go(made)
        replay = await made.replay_session("s1")
    assert stopped.is_set()
    kinds = [event.event_type for event in replay.events]
    assert kinds.count(EventType.CHILD_AGENT_CANCEL_TIMEOUT) == 1, "the second request is heard"
    written = lines(project)
    assert written[-1] == f"task_{status}"
    assert written.count(f"task_step_{status}") == 3
    assert last_line(project, f"task_step_{status}")["payload"]["reason"] == f"task_{status}"


@pytest.mark.sweep
async def test_three_pools_worth_of_workers_share_the_steps_without_a_clash(
    home: Home, project: Path
) -> None:
    steps = [{"step_id": f"s{n}"} for n in range(4)]
    create = calls("agent.task_create", task_id="t1", wal_name="w", title="T", steps=steps)

    def claims_first(request: ModelRequest) -> Calls:
        (answer,) = last_answers(request)
        found = answer["steps"]
        return calls("agent.task_claim_step", task_id="t1", step_id=found[0]["step_id"])

    def goes_on(request: ModelRequest) -> Calls | str:
        answer = last_answers(request)[-1]
        if not answer["claimed"]:
            return "somebody was faster"
        step_id = answer["step"]["step_id"]
        return calls("agent.task_update_step", task_id="t1", step_id=step_id, status="completed")

    query = calls("agent.task_query_steps", task_id="t1", statuses=["ready"])
    played = Cast({
        "go": [create, together(*(dispatch() for _ in range(4))), "done"],
        "work": [query, claims_first, goes_on, "done"],
    })  # fmt: skip
    async with opened(home, project, played, config=pool_of(4)) as made:
        await go(made)
        answers = await dispatches(made)
    claimed = [answer["claimed_step_id"] for answer in answers if not answer["no_step_claimed"]]
    assert len(claimed) == len(set(claimed)) >= 1
    assert lines(project).count("task_step_claimed") == len(claimed)
    assert lines(project).count("task_step_completed") == len(claimed)

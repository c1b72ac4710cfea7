"""A worker that has lost its claim changes nothing more, and answers for nobody but itself."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    ErrorCode,
    InspectResult,
    PermissionDecision,
    PermissionRequest,
    RunStatus,
    tool,
)
from agent_core.providers.scripted import Calls, Fails, Hangs, calls
from agent_core.types import Decision, ErrorPayload, ModelRequest
from casts import Cast, Line, data_of, last_answers, results, together
from isolation import Home
from runtimes import CONFIG, Asked, runtime
from sweeps import kept, sampled

POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
[task]
step_lease_timeout_ms = 300
"""
CREATE = calls("agent.task_create", task_id="t1", wal_name="work", steps=[{"step_id": "s1"}])
CLAIM = calls("agent.task_claim_step", task_id="t1", step_id="s1")


def update(**fields: Any) -> Calls:
    return calls("agent.task_update_step", task_id="t1", step_id="s1", **fields)


def dispatch(instruction: str, *tools: str) -> Calls:
    return calls(
        "agent.dispatch_worker", task_id="t1", instruction=instruction, allowed_tools=list(tools)
    )


class AnswersLate(Asked):
    """Allows everything, but only once `until` has happened."""

    def __init__(self, until: asyncio.Event) -> None:
        super().__init__("allow_once")
        self.until = until

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.requests.append(request)
        await self.until.wait()
        return PermissionDecision(decision=Decision.ALLOW_ONCE)


class Race:
    """Two workers and one step: the second one claims it when a lease of the first would be over.

    `publish` waits for the second worker, `answer_late` lets a model do so.
    """

    def __init__(self, *, lease_s: float = 0.3) -> None:
        self.lease_s = lease_s
        self.claimed = asyncio.Event()
        self.over = asyncio.Event()
        self.written: list[str] = []

    @property
    def tools(self) -> list[Any]:
        @tool(permission="readonly")
        async def say_claimed() -> str:
            """Let the other go on, once the lease is over."""
            self.claimed.set()
            return "said"

        @tool(permission="readonly")
        async def until_claimed() -> str:
            """Wait for the other's claim, and for more than its lease."""
            await self.claimed.wait()
            await asyncio.sleep(self.lease_s * 1.3)
            return "now"

        @tool(permission="readonly")
        async def until_over() -> str:
            """Wait until the other has finished."""
            await self.over.wait()
            return "over"

        @tool(permission="readonly")
        async def say_over() -> str:
            """Let the other go on."""
            self.over.set()
            return "said"

        @tool(permission="write")
        async def publish(text: str) -> str:
            """Change the world."""
            self.written.append(text)
            return "published"

        @tool(permission="readonly", tags={"dangerous"})
        async def meddle(text: str) -> str:
            """Claim to read, and not only that."""
            self.written.append(text)
            return "done"

        return [say_claimed, until_claimed, until_over, say_over, publish, meddle]

    def answer_late(self, reply: Calls) -> Line:
        """Return a model that takes longer than the lease."""

        async def answer(_: ModelRequest) -> Any:
            await self.over.wait()
            return reply

        return answer


WRITES = [
    calls("code.write_file", path="late.txt", content="x"),
    calls("code.run_command", argv=["touch", "late.txt"]),
    calls("publish", text="x"),
    calls("meddle", text="x"),
]


@pytest.mark.parametrize("write", sampled(WRITES, keep=1), ids=lambda write: write.calls[0].name)
async def test_a_stale_worker_changes_nothing_and_reports_only_what_it_did(
    home: Home, project: Path, write: Calls
) -> None:
    race = Race()
    name = write.calls[0].name
    late = update(status="completed", result_summary="mine")
    slow: list[Line] = [CLAIM, update(result_summary="half"), calls("say_claimed")]
    slow += [race.answer_late(write), late, "I did half of it."]
    fast: list[Line] = [
        calls("until_claimed"),
        CLAIM,
        update(status="completed", result_summary="theirs"),
        calls("say_over"),
        "It is done.",
    ]
    both = together(
        dispatch("slow", "say_claimed", name),
        dispatch("fast", "until_claimed", "say_over"),
    )
    played = Cast({"go": [CREATE, both, "done"], "slow": slow, "fast": fast})
    callback = Asked("allow_once")
    made = runtime(home, project, played, config=CONFIG + POOL, permission_callback=callback)
    for each in race.tools:
        made.register_tool(each)
    async with made, asyncio.timeout(50):
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await handle.wait()
        first, second = results(await made.replay_session("s1"), "agent.dispatch_worker")
        worker = await handle.inspect_child(data_of(first)["child_run_id"])
    refused = last_error(worker, name)
    assert refused.code is ErrorCode.PERMISSION_DENIED
    assert refused.details["reason"] == "claim_lost"
    assert refused.details["claimed_by_run_id"] == data_of(second)["child_run_id"]
    assert last_error(worker, "agent.task_update_step").code is ErrorCode.PERMISSION_DENIED
    assert race.written == []
    assert not (project / "late.txt").exists()
    assert callback.requests == []
    assert not first.is_error
    assert_speaks_for_itself(data_of(first))
    done = data_of(second)
    assert (done["claim_lost"], done["step_status"]) == (False, "completed")
    assert done["step_result_summary"] == "theirs"


@pytest.mark.long
@pytest.mark.parametrize("waits_for", ["a person", "a tool"])
async def test_open_work_keeps_a_claim_for_longer_than_its_lease(
    home: Home, project: Path, waits_for: str
) -> None:
    race = Race(lease_s=1)
    work = calls("publish", text="x") if waits_for == "a person" else calls("until_over")
    done = update(status="completed", result_summary="mine")
    slow: list[Line] = [CLAIM, together(calls("say_claimed"), work), done, "Done."]
    fast: list[Line] = [calls("until_claimed"), CLAIM, calls("say_over"), "Too late."]
    both = together(
        dispatch("slow", "say_claimed", work.calls[0].name),
        dispatch("fast", "until_claimed", "say_over"),
    )
    played = Cast({"go": [CREATE, both, "done"], "slow": slow, "fast": fast})
    callback = AnswersLate(race.over)
    config = CONFIG + POOL.replace("300", "1000")  # a busy machine needs some time for its model
    made = runtime(home, project, played, config=config, permission_callback=callback)
    for each in race.tools:
        made.register_tool(each)
    async with made, asyncio.timeout(50):
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await handle.wait()
        first, second = results(await made.replay_session("s1"), "agent.dispatch_worker")
        late = await handle.inspect_child(data_of(second)["child_run_id"])
    assert (data_of(first)["claim_lost"], data_of(first)["step_status"]) == (False, "completed")
    assert race.written == (["x"] if waits_for == "a person" else [])
    answer = last_error(late, "agent.task_claim_step")
    assert answer.code is ErrorCode.STEP_ALREADY_CLAIMED
    assert answer.details["claimed_by_run_id"] == data_of(first)["child_run_id"]
    log = (project / ".soong-agent/tasks/s1/work.wal.jsonl").read_text(encoding="utf-8")
    assert "task_step_lease_expired" not in log
    lines = [json.loads(line) for line in log.splitlines()]
    leases = [line for line in lines if "lease_expires_at" in line["payload"]]
    assert len(leases) > 2, "other processes see that it continues"


class AnswersSomeTime(Asked):
    """Allows everything, some of it after several leases."""

    def __init__(self) -> None:
        super().__init__("allow_once")
        self.waits = iter([2.1, 0.1, 1.3, 1.2])

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        await asyncio.sleep(next(self.waits))
        return await super().__call__(request)


@pytest.mark.long
async def test_workers_that_wait_for_a_person_for_several_leases_do_each_step_once(
    home: Home, project: Path
) -> None:
    done: list[str] = []

    @tool(permission="write")
    async def publish(text: str) -> str:
        """Change the world."""
        done.append(text)
        return "published"

    def claim(request: ModelRequest) -> Any:
        steps = last_answers(request)[-1]["steps"]
        if not steps:
            return "Nothing is left."
        return calls("agent.task_claim_step", task_id="t1", step_id=steps[0]["step_id"])

    def work(request: ModelRequest) -> Any:
        answer = last_answers(request)[-1]
        if not answer["claimed"]:
            return "Somebody was faster."
        return calls("publish", text=answer["step"]["step_id"])

    def finish(_: ModelRequest) -> Any:
        return calls("agent.task_get", task_id="t1")

    def complete(request: ModelRequest) -> Any:
        run_id = request.metadata["run_id"]
        steps = last_answers(request)[-1]["steps"]
        mine = next(each["step_id"] for each in steps if each.get("claimed_by_run_id") == run_id)
        return calls("agent.task_update_step", task_id="t1", step_id=mine, status="completed")

    steps = [{"step_id": f"s{number}"} for number in range(4)]
    create = calls("agent.task_create", task_id="t1", wal_name="work", steps=steps)
    round_ = together(*[dispatch("work", "publish")] * 4)
    query = calls("agent.task_query_steps", task_id="t1", statuses=["ready"])
    played = Cast({
        "go": [create, *[round_] * 4, "done"],
        "work": [query, claim, work, finish, complete, "Done."],
    })  # fmt: skip
    worker = '[[agents.worker_pools.workers]]\nagent_definition_id = "default_worker_agent"\n'
    config = CONFIG + POOL.replace("300", "1000").replace("[task]", worker * 2 + "[task]")
    callback = AnswersSomeTime()
    made = runtime(home, project, played, config=config, permission_callback=callback)
    made.register_tool(publish)
    async with made, asyncio.timeout(100):
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await handle.wait()
    assert handle.status is RunStatus.COMPLETED
    assert sorted(done) == ["s0", "s1", "s2", "s3"]
    log = (project / ".soong-agent/tasks/s1/work.wal.jsonl").read_text(encoding="utf-8")
    assert log.count('"task_step_completed"') == 4
    assert "task_step_lease_expired" not in log


def last_error(worker: InspectResult, name: str) -> ErrorPayload:
    """The error of a run's last call of a tool."""
    ids = [call.tool_call_id for node in worker.nodes for call in node.calls if call.name == name]
    found = [r for node in worker.nodes for r in node.results if r.tool_call_id == ids[-1]]
    assert found[0].error is not None
    return found[0].error


def assert_speaks_for_itself(answer: dict[str, Any]) -> None:
    assert answer["claim_lost"] is True
    assert answer["claimed_step_id"] == "s1"
    assert answer["no_step_claimed"] is False
    assert answer["worker_result"]["summary"] == "I did half of it."
    assert not answer.keys() & {"step_status", "step_result_summary"}
    assert "theirs" not in str(answer)


async def test_a_worker_whose_model_failed_ends_its_step_with_the_error(
    home: Home, project: Path
) -> None:
    behind = {"step_id": "s2", "depends_on_step_ids": ["s1"]}
    steps = [{"step_id": "s1"}, behind]
    create = calls("agent.task_create", task_id="t1", wal_name="work", steps=steps)
    played = Cast({
        "go": [create, dispatch("work"), "done"],
        "work": [CLAIM, update(result_summary="half"), Fails(message="no luck")],
    })  # fmt: skip
    async with runtime(home, project, played, config=CONFIG + POOL) as made:
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await handle.wait()
        (result,) = results(await made.replay_session("s1"), "agent.dispatch_worker")
    answer = data_of(result)
    assert handle.status is RunStatus.COMPLETED
    assert (answer["step_status"], answer["claim_lost"]) == ("failed", False)
    assert answer["stranded_step_ids"] == ["s2"]
    assert answer["step_result_summary"] == "half\n\nprovider_error: no luck"
    log = (project / ".soong-agent/tasks/s1/work.wal.jsonl").read_text(encoding="utf-8")
    assert '"reason":"worker_failed"' in log.splitlines()[-1]


@pytest.mark.parametrize("end", kept(["fail", "cancel"], "fail"))
@pytest.mark.parametrize("has_claimed", [True, False])
async def test_a_task_ends_although_a_dispatch_of_the_same_turn_is_awaited(
    home: Home, project: Path, end: str, has_claimed: bool
) -> None:
    ending = calls(f"agent.task_{end}", task_id="t1", reason="enough")
    work: list[Line] = [*([CLAIM] if has_claimed else []), Hangs()]
    played = Cast({"go": [CREATE, together(dispatch("work"), ending), "done"], "work": work})
    async with (
        runtime(home, project, played, config=CONFIG + POOL) as made,
        asyncio.timeout(50),
    ):
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await handle.wait()
        replay = await made.replay_session("s1")
    assert handle.status is RunStatus.COMPLETED
    (sent,) = results(replay, "agent.dispatch_worker")
    (ended,) = results(replay, f"agent.task_{end}")
    assert not ended.is_error
    assert sent.error is not None
    assert sent.error.code in {ErrorCode.CANCELLED, ErrorCode.TASK_NOT_DISPATCHABLE}
    assert {run.status for run in replay.runs} <= {RunStatus.COMPLETED, RunStatus.CANCELLED}


async def test_two_tasks_end_in_the_turn_that_dispatches_to_both(home: Home, project: Path) -> None:
    def of(task_id: str) -> list[Calls]:
        steps = [{"step_id": "s1"}]
        return [
            calls("agent.task_create", task_id=task_id, wal_name=task_id, steps=steps),
            calls("agent.dispatch_worker", task_id=task_id, instruction="work"),
            calls("agent.task_cancel", task_id=task_id),
        ]

    first, second = of("t1"), of("t2")
    turn = together(*(call for pair in zip(first, second, strict=True) for call in pair))
    played = Cast({"go": [turn, "done"], "work": [Hangs()]})
    async with runtime(home, project, played, config=CONFIG + POOL) as made, asyncio.timeout(50):
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await handle.wait()
        replay = await made.replay_session("s1")
    assert [each.is_error for each in results(replay, "agent.task_cancel")] == [False, False]
    assert [each.is_error for each in results(replay, "agent.dispatch_worker")] == [True, True]

"""`runtime.tasks`: a program creates Tasks, reads them, follows them and reports on steps."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    EventType,
    TaskDocument,
    TaskEvent,
    TaskStepStatus,
    ToolPermission,
    tool,
)
from agent_core.errors import StorageError, TaskError
from agent_core.providers.scripted import calls
from casts import Cast
from isolation import Home, program_file
from runtimes import CONFIG, ask, runtime

STEPS = [
    {"step_id": "build", "title": "Build it"},
    {"step_id": "check", "depends_on_step_ids": ["build"]},
]
POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""


async def create(made: AgentRuntime, session_id: str = "s1", task_id: str = "release") -> None:
    await made.tasks.create(session_id, task_id=task_id, title="Release", steps=STEPS)


def states(task: TaskDocument) -> dict[str, str]:
    return {step.step_id: step.status.value for step in task.steps}


async def test_a_program_makes_a_task_works_on_its_steps_and_completes_it(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, []) as made:
        task = await made.tasks.create("s1", task_id="release", title="Release", steps=STEPS)
        assert (task.task_id, task.status, task.root_step_ids) == ("release", "running", ("build",))
        assert states(task) == {"build": "ready", "check": "pending"}
        assert task.wal_path.endswith("/tasks/s1/release.wal.jsonl")
        task = await made.tasks.update_step("s1", "release", "build", status="running")
        [build, _] = task.steps
        assert (build.status, build.claimed_by_agent_id) == ("running", "program")
        assert build.lease_expires_at is not None
        task = await made.tasks.update_step(
            "s1", "release", "build", status="completed", result_summary="built"
        )
        assert states(task) == {"build": "completed", "check": "ready"}
        assert task.steps[0].result_summary == "built"
        await made.tasks.update_step("s1", "release", "check", status="completed")
        task = await made.tasks.complete("s1", "release", result_summary="out")
        assert task.status == "completed"
        assert await made.tasks.list("s1") == []
        assert await made.tasks.list("s1", include_terminal=True) == [task]
        assert await made.tasks.get("s1", "release") == task
        events = await made.tasks.events("s1", "release")
        session = await made.replay_session("s1")
    kinds = [event.event_type for event in events]
    assert kinds[0] == "task_created"
    assert kinds[-1] == "task_completed"
    assert [event.wal_seq for event in events] == [*range(1, len(events) + 1)]
    assert {event.actor_agent_id for event in events} == {"program"}
    noted = [each.payload["wal_event_id"] for each in session.events]
    assert noted == [event.event_id for event in events]


async def test_what_a_program_makes_is_there_for_an_orchestrator_and_the_other_way_round(
    home: Home, project: Path
) -> None:
    look = calls("agent.task_get", task_id="release", include_terminal_steps=True)
    more = calls("agent.task_create", task_id="more", wal_name="more", title="More", steps=[])
    cast = Cast({"hello": ["hi"], "go": [look, more, "done"]})
    async with runtime(home, project, cast, config=CONFIG + POOL) as made:
        await ask(made, "hello", session_id="s1")
        await create(made)
        await made.tasks.update_step("s1", "release", "build", status="completed")
        result = await made.run("go", "s1", "orchestrator", events=True)
        assert result.text == "done"
        assert [task.task_id for task in await made.tasks.list("s1")] == ["more", "release"]
    assert EventType.TOOL_FAILED not in {each.event_type for each in result.events or []}


async def test_the_board_of_a_running_orchestrator_sees_the_changes_of_a_program(
    home: Home, project: Path
) -> None:
    new = calls("agent.task_create", task_id="release", wal_name="release", title="R", steps=STEPS)
    wait = calls("pause")
    look = calls("agent.task_complete", task_id="release")
    cast = Cast({"go": [new, wait, look, "done"]})
    reached, resume = asyncio.Event(), asyncio.Event()

    async def pause() -> str:
        """Wait for the test."""
        reached.set()
        await resume.wait()
        return "resumed"

    async with runtime(home, project, cast, config=CONFIG + POOL) as made:
        made.register_tool(tool(name="pause", permission=ToolPermission.READONLY)(pause))
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await reached.wait()
        for step in ("build", "check"):
            await made.tasks.update_step("s1", "release", step, status="completed")
        resume.set()
        await handle.wait()
        task = await made.tasks.get("s1", "release")
    assert task.status == "completed"


async def test_events_are_followed_until_the_task_ends(home: Home, project: Path) -> None:
    async with runtime(home, project, []) as made:
        await create(made)
        seen: list[TaskEvent] = []
        is_begun = asyncio.Event()

        async def follow() -> None:
            async for event in made.tasks.events("s1", "release"):
                seen.append(event)
                is_begun.set()

        following = asyncio.create_task(follow())
        await is_begun.wait()
        await made.tasks.update_step("s1", "release", "build", status="failed", reason="broken")
        await made.tasks.fail("s1", "release", reason="it is broken")
        await asyncio.wait_for(following, 60)
    assert [event.event_type for event in seen][-1] == "task_failed"
    assert len(seen) == seen[-1].wal_seq


async def test_the_graph_can_be_changed_and_a_task_cancelled(home: Home, project: Path) -> None:
    async with runtime(home, project, []) as made:
        await create(made)
        await made.tasks.update_step("s1", "release", "build", status="failed", reason="broken")
        task = await made.tasks.update(
            "s1",
            "release",
            [
                {"op": "reopen_step", "step_id": "build"},
                {"op": "add_step", "step": {"step_id": "ship", "depends_on_step_ids": ["check"]}},
            ],
        )
        assert states(task) == {"build": "ready", "check": "pending", "ship": "pending"}
        await made.tasks.update_step("s1", "release", "build", status="cancelled")
        task = await made.tasks.cancel("s1", "release", reason="no longer wanted")
    assert task.status == "cancelled"
    assert set(states(task).values()) == {"cancelled"}


async def test_a_claim_whose_lease_is_over_is_ready_again(home: Home, project: Path) -> None:
    config = f"{CONFIG}\n[task]\nstep_lease_timeout_ms = 1\n"
    async with runtime(home, project, [], config=config) as made:
        await create(made)
        await made.tasks.update_step("s1", "release", "build", status="running")
        await asyncio.sleep(0.05)
        task = await made.tasks.get("s1", "release")
        assert states(task)["build"] == "ready"
        lines = await made.tasks.events("s1", "release")
        assert lines[-1].event_type == "task_step_started", "reading writes nothing"
        task = await made.tasks.update_step("s1", "release", "build", status="completed")
        assert states(task)["build"] == "completed"


async def test_refusals_have_the_codes_of_the_tools(home: Home, project: Path) -> None:
    async with runtime(home, project, []) as made:
        with pytest.raises(StorageError) as unknown:
            await made.tasks.get("s1", "release")
        assert unknown.value.code is ErrorCode.SESSION_NOT_FOUND
        await create(made)
        for code, call in {
            ErrorCode.TASK_NOT_FOUND: made.tasks.get("s1", "other"),
            ErrorCode.STEP_NOT_READY: made.tasks.update_step(
                "s1", "release", "check", status="running"
            ),
            ErrorCode.STEP_NOT_FOUND: made.tasks.update_step(
                "s1", "release", "nothing", status="running"
            ),
            ErrorCode.TASK_NOT_COMPLETABLE: made.tasks.complete("s1", "release"),
            ErrorCode.PATH_CONFLICT: made.tasks.create(
                "s1", task_id="b", title="B", steps=[], wal_name="release"
            ),
            ErrorCode.DEPENDENCY_CYCLE: made.tasks.create(
                "s1",
                task_id="c",
                title="C",
                steps=[
                    {"step_id": "a", "depends_on_step_ids": ["b"]},
                    {"step_id": "b", "depends_on_step_ids": ["a"]},
                ],
            ),
        }.items():
            with pytest.raises(TaskError) as refused:
                await call
            assert refused.value.code is code
            assert "agent.task" not in refused.value.message, "a program has methods"
        for call in (
            made.tasks.create("s1", task_id="release", title="Again", steps=[]),
            made.tasks.create("s1", task_id="No such id", title="D", steps=[]),
            made.tasks.create("s1", task_id="d", title="D", steps=[{"id": "x"}]),
            made.tasks.create("not an id", task_id="d", title="D", steps=[]),
            made.tasks.create("s1", task_id="d", title="D", steps="abc"),  # type: ignore[arg-type]
            made.tasks.create("s1", task_id="d", title="D", steps=["a"]),  # type: ignore[list-item]
            made.tasks.create("s1", task_id="d", title="D", steps={"step_id": "a"}),  # type: ignore[arg-type]
            made.tasks.update("s1", "release", [{"op": "fly"}]),
            made.tasks.update("s1", "release", None),  # type: ignore[arg-type]
            made.tasks.update("s1", "release", "fly"),  # type: ignore[arg-type]
            made.tasks.update_step("s1", "release", "build", status=TaskStepStatus.READY),
        ):
            with pytest.raises(AgentCoreError) as invalid:
                await call
            assert invalid.value.code is ErrorCode.VALIDATION_ERROR
        with pytest.raises(AgentCoreError, match="task_id must be a text, not None"):
            await made.tasks.get("s1", None)  # type: ignore[arg-type]
        await made.tasks.cancel("s1", "release")
        with pytest.raises(TaskError) as over:
            await made.tasks.update_step("s1", "release", "build", status="running")
        assert over.value.code is ErrorCode.TASK_TERMINAL


async def test_a_task_stays_with_its_session(home: Home, project: Path) -> None:
    async with runtime(home, project, []) as made:
        await create(made)
        await made.delete_session("s1")
        with pytest.raises(StorageError):
            await made.tasks.list("s1")
        await create(made, task_id="another")
        assert [each.task_id for each in await made.tasks.list("s1")] == ["another"]
        forked = await made.tasks.create("s2", task_id="release", title="Other", steps=[])
        assert forked.status == "pending"
        assert [each.title for each in await made.tasks.list("s2")] == ["Other"]


async def test_without_a_disk_tasks_are_kept_in_memory(project: Path) -> None:
    async with AgentRuntime(project_dir=project, model="openai:m", persist=False) as made:
        await create(made)
        await made.tasks.update_step("s1", "release", "build", status="completed")
        assert states(await made.tasks.get("s1", "release"))["build"] == "completed"
    assert not (project / ".soong-agent").exists()


OTHER = """
import asyncio, sys
from agent_core import AgentRuntime

async def main(home, project):
    async with AgentRuntime(project_dir=project, home_dir=home) as made:
        task = await made.tasks.get("s1", "release")
        print(task.steps[0].status.value, flush=True)
        try:
            await made.tasks.update_step("s1", "release", "check", status="completed")
        except Exception as error:
            print(error.code.value, error.retryable, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_another_process_reads_a_task_and_may_change_it_only_while_nobody_works_on_it(
    home: Home, project: Path
) -> None:
    reached, resume = asyncio.Event(), asyncio.Event()

    async def pause() -> str:
        """Wait for the test."""
        reached.set()
        await resume.wait()
        return "resumed"

    async def other() -> list[str]:
        command = [sys.executable, program_file(OTHER), str(home.path), str(project)]
        ended = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=True
        )
        return ended.stdout.splitlines()

    cast = Cast({"go": [calls("pause"), "done"]})
    async with runtime(home, project, cast, config=CONFIG + POOL) as made:
        made.register_tool(tool(name="pause", permission=ToolPermission.READONLY)(pause))
        await create(made)
        await made.tasks.update_step("s1", "release", "build", status="completed")
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await reached.wait()
        assert await other() == ["completed", "task_wal_unavailable True"]
        resume.set()
        await handle.wait()
        assert await other() == ["completed"]
        task = await made.tasks.get("s1", "release")
    assert states(task) == {"build": "completed", "check": "completed"}

"""A Task log belongs to its session: undo elsewhere leaves it alone, and a fork has its own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, RunStatus
from agent_core.providers.scripted import Calls, calls
from agent_core.tasks.log_store import read_stored_tasks
from agent_core.types import ModelRequest
from casts import Cast, Line, data_of, results
from isolation import Home
from runtimes import CONFIG, Asked, runtime
from sweeps import kept

POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
[workspace]
snapshots = "turn"
"""
LOOK = calls("agent.task_get", task_id="t1")


def create(task_id: str) -> Calls:
    steps = [{"step_id": "s1"}]
    return calls("agent.task_create", task_id=task_id, wal_name=task_id, title="A", steps=steps)


def rename(title: str) -> Calls:
    operations = [{"op": "update_task", "title": title}]
    return calls("agent.task_update", task_id="t1", operations=operations)


def write(path: str) -> Calls:
    return calls("code.write_file", path=path, content="x")


def opened(home: Home, project: Path, parts: dict[str, list[Line]]) -> AgentRuntime:
    callback = Asked("allow_once")
    return runtime(home, project, Cast(parts), config=CONFIG + POOL, permission_callback=callback)


async def lead(made: AgentRuntime, text: str, session_id: str) -> Any:
    handle = await made.start(text, session_id=session_id, mode="orchestrator")
    await handle.wait()
    assert handle.status is RunStatus.COMPLETED, handle.error
    return await made.replay_run(handle.run_id)


async def titles(made: AgentRuntime, text: str, session_id: str) -> list[str]:
    """Return the titles that the run's calls of `agent.task_get` have seen."""
    replay = await lead(made, text, session_id)
    return [data_of(result)["title"] for result in results(replay, "agent.task_get")]


def log_of(project: Path, session_id: str, name: str = "t1") -> Path:
    return project / ".soong-agent" / "tasks" / session_id / f"{name}.wal.jsonl"


@pytest.mark.parametrize("force", kept([False, True], True))
async def test_an_undo_elsewhere_neither_compares_nor_restores_a_task_log(
    home: Home, project: Path, force: bool
) -> None:
    planned = asyncio.Event()
    begun = asyncio.Event()

    async def write_late(_: ModelRequest) -> Any:
        begun.set()
        await planned.wait()
        return write("b.txt")

    parts: dict[str, list[Line]] = {
        "plan": [create("t1"), "planned"],
        "more": [rename("B"), "more"],
        "edit": [write("a.txt"), write_late, "edited"],
    }
    async with opened(home, project, parts) as made, asyncio.timeout(50):
        editing = await made.start("edit", session_id="edits")
        await begun.wait()
        await lead(made, "plan", "lead")
        planned.set()
        await editing.wait()
        await lead(made, "more", "lead")
        before = log_of(project, "lead").read_bytes()
        undone = await made.undo("edits", force=force)
        assert undone.refused == []
        assert not (project / "b.txt").exists()
        assert log_of(project, "lead").read_bytes() == before
        again = await made.redo("edits", force=force)
        assert again.refused == []
        assert (project / "b.txt").exists()
        assert log_of(project, "lead").read_bytes() == before


async def test_an_undo_takes_the_task_log_of_its_own_session_back(
    home: Home, project: Path
) -> None:
    parts: dict[str, list[Line]] = {
        "plan": [create("t1"), "planned"],
        "more": [rename("B"), "more"],
        "look": [LOOK, "seen"],
    }
    async with opened(home, project, parts) as made:
        await lead(made, "plan", "lead")
        await lead(made, "more", "lead")
        await made.undo("lead")
        assert await titles(made, "look", "lead") == ["A"]


@pytest.mark.parametrize("place", kept(["same folder", "copy"], "copy"))
async def test_a_fork_has_its_own_copy_of_the_tasks(
    home: Home, project: Path, tmp_path: Path, place: str
) -> None:
    parts: dict[str, list[Line]] = {
        "plan": [create("t1"), "planned"],
        "more": [rename("B"), "more"],
        "look": [LOOK, "seen"],
        "mine": [rename("C"), LOOK, "mine"],
    }
    into = None if place == "same folder" else tmp_path / "copy"
    folder = into or project
    async with opened(home, project, parts) as made:
        first = await lead(made, "plan", "lead")
        await lead(made, "more", "lead")
        before = log_of(project, "lead").read_bytes()
        fork = (await made.fork("lead", into=into)).session_id
        early = (await made.fork("lead", first.nodes[-1].node_id)).session_id
        assert log_of(folder, fork).is_file()
        if into is None:
            assert await titles(made, "look", fork) == ["B"]
            assert await titles(made, "mine", fork) == ["C"]
        assert await titles(made, "look", early) == ["A"], "as it was at the node"
        assert log_of(project, "lead").read_bytes() == before
    if into is not None:
        assert not log_of(into, "lead").exists(), "the copy is the fork's"
        async with opened(home, into, parts) as made:
            assert await titles(made, "look", fork) == ["B"]


async def test_a_fork_in_memory_has_its_own_tasks_too(home: Home, project: Path) -> None:
    parts: dict[str, list[Line]] = {
        "plan": [create("t1"), "planned"],
        "mine": [rename("C"), "mine"],
        "look": [LOOK, "seen"],
    }
    home.write_config(CONFIG + POOL.partition("[workspace]")[0])
    made = AgentRuntime(project_dir=project, home_dir=home.path, persist=False)
    cast = Cast(parts)
    made.register_provider("custom", lambda _: cast)
    async with made:
        await lead(made, "plan", "lead")
        fork = (await made.fork("lead")).session_id
        await lead(made, "mine", fork)
        assert await titles(made, "look", fork) == ["C"]
        assert await titles(made, "look", "lead") == ["A"]


async def test_a_damaged_log_stays_behind_and_the_session_is_forked(
    home: Home, project: Path
) -> None:
    parts: dict[str, list[Line]] = {"plan": [create("t1"), "planned"], "look": [LOOK, "seen"]}
    async with opened(home, project, parts) as made:
        await lead(made, "plan", "lead")
        elsewhere = log_of(project, "lead").rename(project / "elsewhere")
        log_of(project, "lead").symlink_to(elsewhere)
        forked = await made.fork("lead")
        assert "The fork lacks a Task" in forked.remarks[0]
        assert "t1.wal.jsonl" in forked.remarks[0]


@pytest.mark.sweep
@pytest.mark.parametrize("how", kept(["deleted", "database lost"], "deleted"))
async def test_a_session_under_an_earlier_id_begins_without_tasks(
    home: Home, project: Path, how: str
) -> None:
    listing = calls("agent.task_list")
    parts: dict[str, list[Line]] = {
        "plan": [create("t1"), create("t2"), "planned"],
        "again": [listing, LOOK, create("t1"), listing, "planned again"],
        "go on": [LOOK, "went on"],
        "look": [listing, "looked"],
    }
    async with opened(home, project, parts) as made:
        await lead(made, "plan", "s1")
        if how == "deleted":
            await made.delete_session("s1")
    if how == "database lost":
        (home.path / "sessions.sqlite").unlink()
    before = log_of(project, "s1").read_bytes()
    async with opened(home, project, parts) as made:
        again = await lead(made, "again", "s1")
        first, second = (data_of(each)["tasks"] for each in results(again, "agent.task_list"))
        assert first == []
        assert [task["task_id"] for task in second] == ["t1"]
        (missing,) = results(again, "agent.task_get")
        assert missing.is_error
        assert [log_of(project, "s1").read_bytes(), await titles(made, "go on", "s1")] == [
            before,
            ["A"],
        ]
        assert log_of(project, "s1", "t1-2").exists()
        fork = (await made.fork("s1")).session.session_id
        looked = await lead(made, "look", fork)
        (tasks,) = (data_of(each)["tasks"] for each in results(looked, "agent.task_list"))
        assert [task["task_id"] for task in tasks] == ["t1"]
        runs = {run.run_id for run in await made.session_runs("s1")}
    stored, problems = read_stored_tasks(
        project / ".soong-agent" / "tasks", project_dir=project, session_id="s1", runs=runs
    )
    assert [each.dag.task.created_by_run_id in runs for each in stored] == [True]
    assert not problems

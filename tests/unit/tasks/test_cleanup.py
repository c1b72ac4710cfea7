"""Removing the logs of Tasks that are over."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent_core.errors import AgentCoreError
from agent_core.tasks.log_store import cleanup_ended_tasks
from agent_core.tasks.model import TaskStatus
from agent_core.types import CleanupResult
from task_boards import START, Desk, created, desk_in, step


def cleaned(
    project: Path,
    *,
    dry_run: bool = False,
    statuses: tuple[TaskStatus, ...] = (TaskStatus.COMPLETED,),
    older_than: datetime | None = None,
) -> CleanupResult:
    return cleanup_ended_tasks(
        project / ".soong-agent" / "tasks",
        project_dir=project,
        statuses=statuses,
        older_than=older_than,
        dry_run=dry_run,
    )


async def one_of_each(desk: Desk) -> None:
    for end in ("complete", "fail", "cancel", None):
        orchestrator = await created(desk, step("s1", required=False), task_id=str(end).lower())
        if end:
            await orchestrator.call(end, task_id=end)


def names(paths: list[str]) -> list[str]:
    return [Path(path).name.partition(".")[0] for path in paths]


async def test_only_completed_tasks_go_by_themselves(project: Path) -> None:
    async with desk_in(project) as desk:
        await one_of_each(desk)
        (desk.folder / "broken.wal.jsonl").write_bytes(b"nothing\n")
        size = (desk.folder / "complete.wal.jsonl").stat().st_size
        dry = cleaned(project, dry_run=True)
        assert (names(dry.candidates), dry.deleted, dry.freed_bytes) == (["complete"], [], size)
        done = cleaned(project)
        assert (names(done.deleted), done.freed_bytes) == (["complete"], size)
        assert cleaned(project).candidates == []
        rest = cleaned(project, statuses=(TaskStatus.FAILED, TaskStatus.CANCELLED))
        assert names(rest.deleted) == ["cancel", "fail"]
        left = sorted(path.name for path in desk.folder.iterdir())
        assert left == ["broken.wal.jsonl", "none.wal.jsonl"]


async def test_young_tasks_stay(project: Path) -> None:
    async with desk_in(project) as desk:
        await one_of_each(desk)
    assert cleaned(project, older_than=START).candidates == []
    assert names(cleaned(project, older_than=START + timedelta(days=1)).deleted) == ["complete"]


def test_an_age_needs_a_time_zone(project: Path) -> None:
    with pytest.raises(AgentCoreError, match="time zone"):
        cleaned(project, older_than=datetime.now(UTC).replace(tzinfo=None))


def test_a_project_without_tasks_has_nothing_to_clean(project: Path) -> None:
    assert cleaned(project).candidates == []


async def test_linked_folders_are_left_alone(project: Path, tmp_path: Path) -> None:
    async with desk_in(project) as desk:
        await one_of_each(desk)
    desk.folder.rename(tmp_path / "elsewhere")
    desk.folder.symlink_to(tmp_path / "elsewhere")
    assert cleaned(project).candidates == []

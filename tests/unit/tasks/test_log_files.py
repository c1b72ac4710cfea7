"""Logs as files: repaired once, locked, full disks, links, and hands that edit them."""

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent_core.errors import ErrorCode, ToolError
from agent_core.types import EventLevel
from task_boards import SESSION, created, desk_in, statuses, step

HOLDER = """
import fcntl, sys
log = open(sys.argv[1], "r+b")
fcntl.flock(log, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another_process(path: Path) -> Generator[None]:
    with subprocess.Popen(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.kill()


@contextmanager
def files_no_larger_than(size: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def moved_to(folder: Path, place: Path) -> Path:
    return folder.rename(place)


async def a_log(project: Path) -> Path:
    async with desk_in(project) as desk:
        await created(desk, step("s1"), step("s2", "s1"))
        return desk.folder / "work.wal.jsonl"


@pytest.mark.parametrize("tail", [b'{"wal_seq":4,"sess', b"\0" * 600, b"\n", b"last"])
async def test_r2_a_bad_tail_is_reported_and_repaired_once(project: Path, tail: bytes) -> None:
    path = await a_log(project)
    good = path.read_bytes()
    path.write_bytes(good + tail)
    async with desk_in(project) as desk:
        ((event, payload, level),) = desk.notes.events
        assert (event.value, payload["dropped_bytes"]) == ("task_wal_replayed", len(tail))
        assert level is EventLevel.WARNING
        assert path.read_bytes() == good + tail
        await desk.worker("run_a").call("claim_step", task_id="t1", step_id="s1")
        assert path.read_bytes().startswith(good + b'{"wal_seq":4,')
        assert [line["wal_seq"] for line in desk.lines()] == [1, 2, 3, 4]
    async with desk_in(project) as desk:
        ((_, payload, level),) = desk.notes.events
        assert "dropped_bytes" not in payload
        assert level is EventLevel.DEBUG


async def test_r2_what_a_torn_write_left_undone_is_done_at_resume(project: Path) -> None:
    async with desk_in(project) as desk:
        await created(desk, step("s1"), step("s2", "s1"))
        worker = desk.worker("run_a")
        await worker.call("claim_step", task_id="t1", step_id="s1")
        await worker.call("update_step", task_id="t1", step_id="s1", status="completed")
        path = desk.folder / "work.wal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    async with desk_in(project) as desk:
        assert desk.types()[-2:] == ["task_step_completed", "task_step_ready"]
        assert statuses(await desk.orchestrator().call("get", task_id="t1")) == {"s2": "ready"}


async def test_r2_damage_isolates_its_task(project: Path) -> None:
    path = await a_log(project)
    async with desk_in(project) as desk:
        await created(desk, step("s1"), task_id="t2")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"not json\n" + b"".join(lines[2:]))
    damaged = path.read_bytes()
    async with desk_in(project) as desk:
        assert "task_wal_failed" in desk.notes.types
        orchestrator = desk.orchestrator()
        with pytest.raises(ToolError) as refused:
            await orchestrator.call("get", task_id="t1")
        assert refused.value.code is ErrorCode.TASK_WAL_UNAVAILABLE
        assert refused.value.details["line"] == 2
        assert str(path) in refused.value.message
        assert statuses(await orchestrator.call("get", task_id="t2")) == {"s1": "ready"}
        listed = (await orchestrator.call("list"))["tasks"]
        assert [(task["task_id"], task["status"]) for task in listed] == [
            ("t2", "running"),
            ("t1", "unavailable"),
        ]
        with pytest.raises(ToolError) as refused:
            await orchestrator.call("create", task_id="t1", wal_name="again", steps=[])
        assert refused.value.code is ErrorCode.TASK_WAL_UNAVAILABLE
        assert path.read_bytes() == damaged

        path.write_bytes(b"".join(lines))  # it is mended
        assert statuses(await orchestrator.call("get", task_id="t1"))["s1"] == "ready"


async def test_r2_a_task_that_never_came_to_be_leaves_nothing(project: Path) -> None:
    path = await a_log(project)
    path.write_bytes(path.read_bytes()[:100])
    async with desk_in(project) as desk:
        assert desk.notes.types == ["task_wal_failed"]
        assert not path.exists()
        await created(desk, step("s1"))
        assert statuses(await desk.orchestrator().call("get", task_id="t1")) == {"s1": "ready"}


async def test_two_processes_never_append_to_one_log(project: Path) -> None:
    path = await a_log(project)
    with held_by_another_process(path):
        async with desk_in(project) as desk:
            with pytest.raises(ToolError, match="another process") as refused:
                await desk.worker("run_a").call("claim_step", task_id="t1", step_id="s1")
            assert refused.value.code is ErrorCode.TASK_WAL_UNAVAILABLE
            assert refused.value.retryable
    async with desk_in(project) as first, desk_in(project) as second:
        await first.worker("run_a").call("claim_step", task_id="t1", step_id="s1")
        report = {"task_id": "t1", "step_id": "s1", "status": "completed"}
        for refused_call in (
            second.worker("run_b").call("claim_step", task_id="t1", step_id="s1"),
            second.worker("run_a").call("update_step", **report),
            second.orchestrator().call("update_step", **report),
            second.orchestrator().call("cancel", task_id="t1"),
        ):
            with pytest.raises(ToolError, match="another process"):
                await refused_call
        await first.worker("run_a").call("update_step", **report)
        assert first.types()[-2:] == ["task_step_completed", "task_step_ready"]


async def test_a_log_is_there_again_when_the_other_process_is_gone(project: Path) -> None:
    path = await a_log(project)
    with held_by_another_process(path):
        opened = desk_in(project)
        desk = await opened.__aenter__()
    await desk.worker("run_a").call("claim_step", task_id="t1", step_id="s1")
    await opened.__aexit__(None, None, None)


@pytest.mark.parametrize("room", [0, 1, 100, 500])
async def test_r3_a_full_disk_changes_nothing(project: Path, room: int) -> None:
    async with desk_in(project) as desk:
        orchestrator = await created(desk, step("s1"))
        path = desk.folder / "work.wal.jsonl"
        before = path.read_bytes()
        big = {"op": "update_task", "summary": "x" * 2000}
        with files_no_larger_than(len(before) + room), pytest.raises(ToolError) as refused:
            await orchestrator.call("update", task_id="t1", operations=[big])
        assert refused.value.code is ErrorCode.TASK_WAL_UNAVAILABLE
        assert path.read_bytes() == before
        assert (await orchestrator.call("get", task_id="t1"))["summary"] == ""
        assert desk.notes.types[-1] == "task_wal_failed"
        await orchestrator.call("update", task_id="t1", operations=[big])
        assert [line["wal_seq"] for line in desk.lines()] == [1, 2, 3, 4]


async def test_r3_a_task_that_could_not_be_written_does_not_exist(project: Path) -> None:
    async with desk_in(project) as desk:
        with files_no_larger_than(50), pytest.raises(ToolError) as refused:
            await created(desk, step("s1"))
        assert refused.value.code is ErrorCode.TASK_WAL_UNAVAILABLE
        assert names_in(desk.folder) == []
        await created(desk, step("s1"))


async def test_r3_an_expired_lease_that_cannot_be_written_stops_no_look(
    project: Path,
) -> None:
    async with desk_in(project) as desk:
        orchestrator = await created(desk, step("s1"))
        await desk.worker("run_a").call("claim_step", task_id="t1", step_id="s1")
        desk.clock.pass_(301)
        with files_no_larger_than(10):
            answer = await orchestrator.call("get", task_id="t1")
        assert statuses(answer) == {"s1": "claimed"}
        assert statuses(await orchestrator.call("get", task_id="t1")) == {"s1": "ready"}


async def test_a_log_edited_under_an_open_task_is_read_again(project: Path) -> None:
    async with desk_in(project) as desk:
        orchestrator = await created(desk, step("s1"))
        path = desk.folder / "work.wal.jsonl"
        mine = json.loads(path.read_bytes().splitlines()[-1]) | {
            "wal_seq": 4,
            "event_type": "task_updated",
            "payload": {"operations": [{"op": "update_task", "title": "by hand"}]},
        }
        with path.open("ab") as log:
            log.write(json.dumps(mine).encode() + b"\n")
        change = {"op": "update_task", "summary": "by tool"}
        with pytest.raises(ToolError, match="read again") as refused:
            await orchestrator.call("update", task_id="t1", operations=[change])
        assert refused.value.retryable
        answer = await orchestrator.call("update", task_id="t1", operations=[change])
        assert (answer["task"]["title"], answer["task"]["summary"]) == ("by hand", "by tool")


async def test_a_log_that_is_read_again_keeps_its_claims(project: Path) -> None:
    async with desk_in(project) as desk:
        orchestrator = await created(desk, step("s1"))
        worker = desk.worker("run_a")
        await worker.call("claim_step", task_id="t1", step_id="s1")
        path = desk.folder / "work.wal.jsonl"
        with path.open("ab") as log:
            log.write(b"{torn")
        with pytest.raises(ToolError, match="read again"):
            await worker.call("update_step", task_id="t1", step_id="s1")
        assert statuses(await orchestrator.call("get", task_id="t1")) == {"s1": "claimed"}
        desk.clock.pass_(299)
        await worker.call("update_step", task_id="t1", step_id="s1", status="completed")


async def test_a_log_that_was_deleted_takes_no_line(project: Path) -> None:
    async with desk_in(project) as desk:
        orchestrator = await created(desk, step("s1"))
        (desk.folder / "work.wal.jsonl").unlink()
        with pytest.raises(ToolError) as refused:
            await orchestrator.call("complete", task_id="t1")
        assert refused.value.code is ErrorCode.TASK_NOT_COMPLETABLE
        with pytest.raises(ToolError) as refused:
            await orchestrator.call("cancel", task_id="t1")
        assert refused.value.code is ErrorCode.TASK_WAL_UNAVAILABLE
        with pytest.raises(ToolError) as refused:
            await orchestrator.call("get", task_id="t1")
        assert refused.value.code is ErrorCode.TASK_NOT_FOUND


@pytest.mark.parametrize(
    "part", [".soong-agent", ".soong-agent/tasks", f".soong-agent/tasks/{SESSION}"]
)
async def test_a_linked_folder_of_the_project_is_not_entered(
    project: Path, tmp_path: Path, part: str
) -> None:
    link = project / part
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path)
    async with desk_in(project) as desk:
        with pytest.raises(ToolError) as refused:
            await created(desk, step("s1"))
    assert refused.value.code is ErrorCode.TASK_WAL_UNAVAILABLE
    assert names_in(tmp_path) == []


async def test_a_log_that_is_a_link_or_a_pipe_is_not_opened(project: Path, tmp_path: Path) -> None:
    path = await a_log(project)
    outside = tmp_path / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    os.mkfifo(path.with_name("pipe.wal.jsonl"))
    before = outside.read_bytes()
    async with desk_in(project) as desk:
        assert desk.notes.types == ["task_wal_failed", "task_wal_failed"]
        with pytest.raises(ToolError) as refused:
            await desk.orchestrator().call("create", task_id="t2", wal_name="work", steps=[])
        assert refused.value.code is ErrorCode.PATH_CONFLICT
    assert outside.read_bytes() == before


@pytest.mark.parametrize(
    "name", ["../work", "a/b", "Work", "", "x" * 81, "work.wal", "wörk", "a\n"]
)
async def test_a_log_has_a_harmless_name(project: Path, name: str) -> None:
    async with desk_in(project) as desk:
        with pytest.raises(ToolError) as refused:
            await desk.orchestrator().call("create", task_id="t1", wal_name=name, steps=[])
        assert refused.value.code is ErrorCode.VALIDATION_ERROR
        assert refused.value.details["path"] == "$.wal_name"
    assert names_in(project) == []


@pytest.mark.parametrize("task_id", ["", "T1", "a b", "x" * 65, "t1\n", "../t"])
async def test_ids_are_checked_before_anything_is_made(project: Path, task_id: str) -> None:
    async with desk_in(project) as desk:
        with pytest.raises(ToolError) as refused:
            await desk.orchestrator().call("create", task_id=task_id, wal_name="w", steps=[])
        assert refused.value.code is ErrorCode.VALIDATION_ERROR
    assert names_in(project) == []


async def test_two_active_logs_of_one_task_are_not_mixed_up(project: Path) -> None:
    path = await a_log(project)
    path.with_name("zopy.wal.jsonl").write_bytes(path.read_bytes())
    async with desk_in(project) as desk:
        assert desk.notes.types == ["task_wal_replayed", "task_wal_failed"]
        await desk.worker("run_a").call("claim_step", task_id="t1", step_id="s1")
        assert desk.types()[-1] == "task_step_claimed"
        assert len(desk.lines("zopy")) == 3


async def test_an_ended_log_is_read_and_never_written(project: Path) -> None:
    async with desk_in(project) as desk:
        orchestrator = await created(desk, step("s1"))
        await orchestrator.call("cancel", task_id="t1")
        path = desk.folder / "work.wal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"torn')
    path.chmod(0o400)
    before = path.read_bytes()
    async with desk_in(project) as desk:
        answer = await desk.orchestrator().call("get", task_id="t1", include_terminal_steps=True)
        assert answer["status"] == "cancelled"
        assert statuses(answer) == {"s1": "cancelled"}
    assert path.read_bytes() == before


async def an_ended_log(project: Path) -> Path:
    async with desk_in(project) as desk:
        await created(desk, step("s1"))
        worker = desk.worker("run_a")
        await worker.call("claim_step", task_id="t1", step_id="s1")
        await worker.call("update_step", task_id="t1", step_id="s1", status="completed")
        await desk.orchestrator().call("complete", task_id="t1", result_summary="done")
        return desk.folder / "work.wal.jsonl"


def as_saved_by_an_editor(log: bytes) -> list[bytes]:
    return [
        log[:-1],
        log[:-1] + b"  ",
        log + b"\n\n",
        log.replace(b"\n", b"\r\n"),
        log[:-1].replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + log,
        b"\xef\xbb\xbf" + log[:-1],
        log + b"torn",
        log[:-1] + b"\0" * 4096,
    ]


@pytest.mark.long
@pytest.mark.parametrize("kind", range(9))
async def test_a_finished_task_stays_finished_however_its_log_was_saved(
    project: Path, kind: int
) -> None:
    path = await an_ended_log(project)
    saved = as_saved_by_an_editor(path.read_bytes())[kind]
    path.write_bytes(saved)
    async with desk_in(project) as desk:
        orchestrator, late = desk.orchestrator(), desk.worker("run_a")
        assert (await orchestrator.call("list"))["tasks"] == []
        answer = await orchestrator.call("get", task_id="t1", include_terminal_steps=True)
        assert (answer["status"], statuses(answer)) == ("completed", {"s1": "completed"})
        for call in (
            late.call("update_step", task_id="t1", step_id="s1", status="failed"),
            orchestrator.call("cancel", task_id="t1"),
            orchestrator.call("update", task_id="t1", operations=[{"op": "update_task"}]),
        ):
            with pytest.raises(ToolError) as refused:
                await call
            assert refused.value.code is ErrorCode.TASK_TERMINAL
    assert path.read_bytes() == saved


@pytest.mark.parametrize("kind", range(9))
async def test_an_active_log_goes_on_however_it_was_saved(project: Path, kind: int) -> None:
    path = await a_log(project)
    path.write_bytes(as_saved_by_an_editor(path.read_bytes())[kind])
    for number, status in enumerate(("running", "completed")):
        async with desk_in(project) as desk:
            worker = desk.worker("run_a")
            if number == 0:
                await worker.call("claim_step", task_id="t1", step_id="s1")
            await worker.call("update_step", task_id="t1", step_id="s1", status=status)
    async with desk_in(project) as desk:
        answer = await desk.orchestrator().call("get", task_id="t1", include_terminal_steps=True)
        assert statuses(answer) == {"s1": "completed", "s2": "ready"}
        replayed = desk.notes.events[0][1]
        assert (replayed["lines"], replayed.get("dropped_bytes")) == (7, None)
    assert path.read_bytes().endswith(b"}\n")


async def test_the_newline_that_is_missing_comes_with_the_next_line_or_not_at_all(
    project: Path,
) -> None:
    path = await a_log(project)
    saved = path.read_bytes()[:-1]
    path.write_bytes(saved)
    async with desk_in(project) as desk:
        worker = desk.worker("run_a")
        with files_no_larger_than(len(saved) + 50), pytest.raises(ToolError):
            await worker.call("claim_step", task_id="t1", step_id="s1")
        assert path.read_bytes() == saved
        await worker.call("claim_step", task_id="t1", step_id="s1")
        assert path.read_bytes().startswith(saved + b'\n{"wal_seq":4,')


async def test_damage_in_the_last_line_isolates_its_task_and_keeps_its_file(project: Path) -> None:
    path = await an_ended_log(project)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30] + b"~" + whole[-29:])
    damaged = path.read_bytes()
    async with desk_in(project) as desk:
        for name in ("get", "complete"):
            with pytest.raises(ToolError, match="line 6") as refused:
                await desk.orchestrator().call(name, task_id="t1")
            assert refused.value.code is ErrorCode.TASK_WAL_UNAVAILABLE
            assert refused.value.details["line"] == 6
    assert path.read_bytes() == damaged


async def test_a_log_of_another_session_is_not_taken_for_its_own(project: Path) -> None:
    path = await a_log(project)
    path.write_bytes(path.read_bytes().replace(SESSION.encode(), b"sess_9"))
    async with desk_in(project) as desk:
        with pytest.raises(ToolError, match="session sess_9") as refused:
            await desk.orchestrator().call("get", task_id="t1")
        assert refused.value.code is ErrorCode.TASK_WAL_UNAVAILABLE


async def test_a_moved_project_keeps_its_tasks(project: Path, tmp_path: Path) -> None:
    await a_log(project)
    moved = moved_to(project, tmp_path / "elsewhere")
    async with desk_in(moved) as desk:
        answer = await desk.orchestrator().call("get", task_id="t1")
        assert answer["wal_path"] == str(desk.folder / "work.wal.jsonl")


async def test_a_write_goes_on_when_its_caller_is_gone(project: Path) -> None:
    async with desk_in(project) as desk:
        await created(desk, *[step(f"s{n}") for n in range(20)])
        for number in range(20):
            worker = desk.worker(f"run_{number}")
            claim = worker.call("claim_step", task_id="t1", step_id=f"s{number}")
            running = asyncio.create_task(claim)
            for _ in range(number):
                await asyncio.sleep(0)
            running.cancel()
            with suppress(asyncio.CancelledError):  # some are through by then
                await running
        live = await desk.orchestrator().call("get", task_id="t1")
    async with desk_in(project) as desk:
        assert await desk.orchestrator().call("get", task_id="t1") == live

"""Runs in the place `snapshot`, carried out by workers with homes of their own: other machines."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_core import AgentCoreError, AgentRuntime, ErrorCode, RunStatus
from agent_core.providers.scripted import Calls, Hangs, calls
from isolation import Home, fresh_folder
from model_server import Answer, ModelServer, Reply
from worker_processes import URL_VARIABLE, Workers, workers, write_config

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def crew(home: Home, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    with workers(home, database_url) as made:
        yield made


@pytest.fixture
def machines(home: Home) -> list[Home]:
    """The caller's home, and two of workers."""
    return [home, *(Home(fresh_folder("home", f"machine-{name}")) for name in "ab")]


def writes(path: str, content: str) -> Calls:
    return calls("code.write_file", path=path, content=content, overwrite=True)


async def until_asked(server: ModelServer, number: int) -> None:
    while len(server.requests) < number:  # noqa: ASYNC110 - the server is in a thread
        await asyncio.sleep(0.02)


@pytest.mark.sweep
async def test_a_dead_workers_run_goes_on_elsewhere_from_its_last_snapshot(
    machines: list[Home], project: Path, crew: Workers, tmp_path: Path
) -> None:
    (project / "a.txt").write_text("as it was\n")
    script: list[Reply | Answer] = [
        writes("a.txt", "after the first turn\n"),
        Hangs(),
        writes("b.txt", "after the takeover\n"),
        "done",
        writes("c.txt", "of the next run\n"),
        "done again",
    ]
    with ModelServer.in_thread(script) as server:
        for home in machines:
            write_config(home, server)
        caller, one, other = machines
        async with AgentRuntime(project_dir=project, home_dir=caller.path) as runtime:
            first = await asyncio.to_thread(crew.start, "--places", "snapshot", home=one)
            handle = await runtime.start(
                "go", "s1", place="snapshot", permission_mode="accept-edits"
            )
            await until_asked(server, 2)
            folder = one.path / "workspaces" / "s1"
            (folder / "stray.txt").write_text("of no snapshot\n")
            while not await _is_recorded(runtime):  # noqa: ASYNC110 - by another process
                await asyncio.sleep(0.05)
            first.signal(signal.SIGKILL)
            await asyncio.to_thread(crew.start, "--places", "snapshot", home=other)
            assert await handle.wait() is RunStatus.COMPLETED
            assert (await runtime.attach(handle.run_id)).result_text == "done"
            folder = other.path / "workspaces" / "s1"
            assert {path.name: path.read_text() for path in folder.iterdir()} == {
                "a.txt": "after the first turn\n",
                "b.txt": "after the takeover\n",
            }
            again = await runtime.start("again", "s1", permission_mode="accept-edits")
            assert await again.wait() is RunStatus.COMPLETED
            assert (project / "a.txt").read_text() == "as it was\n"
            await runtime.fork("s1", into=tmp_path / "result")
            assert sorted(path.name for path in (tmp_path / "result").iterdir()) == [
                "a.txt",
                "b.txt",
                "c.txt",
            ]
            undone = await runtime.undo("s1")
            assert undone.deleted == ["c.txt"]


@pytest.mark.sweep
async def test_two_machines_undo_at_once_and_keep_what_git_tracked_on_a_third(
    machines: list[Home], project: Path, crew: Workers, tmp_path: Path
) -> None:
    (project / "dist").mkdir()
    (project / "dist" / "z").write_text("tracked\n")
    for words in (["init", "-q"], ["add", "-f", "dist"]):
        subprocess.run(["git", *words], cwd=project, check=True)  # noqa: S603, S607, ASYNC221
    script: list[Reply | Answer] = []
    for name in ("dist/z", "b.txt", "c.txt"):
        script += [writes(name, f"new {name}\n"), f"wrote {name}"]
    with ModelServer.in_thread(script) as server:
        for home in machines:
            write_config(home, server)
        caller, worker, other = machines
        async with (
            AgentRuntime(project_dir=project, home_dir=caller.path) as one,
            AgentRuntime(project_dir=project, home_dir=other.path) as two,
        ):
            await asyncio.to_thread(crew.start, "--places", "snapshot", home=worker)
            for number in range(3):
                place = None if number else "snapshot"
                handle = await one.start(
                    f"message {number}", "s1", place=place, permission_mode="accept-edits"
                )
                assert await handle.wait() is RunStatus.COMPLETED
            undone = await asyncio.gather(one.undo("s1"), two.undo("s1"))
            assert sorted(str(each.message) for each in undone) == ["message 1", "message 2"]
            await one.fork("s1", into=tmp_path / "left")
            assert files_in(tmp_path / "left") == {"dist/z": "new dist/z\n"}
            assert (await two.undo("s1")).restored == ["dist/z"]
            with pytest.raises(AgentCoreError, match="nothing to undo"):
                await one.undo("s1")
            redone = await asyncio.gather(one.redo("s1"), two.redo("s1"), one.redo("s1"))
            assert len({each.node_id for each in redone}) == 3
            await two.fork("s1", into=tmp_path / "right")
            assert files_in(tmp_path / "right") == {
                name: f"new {name}\n" for name in ("dist/z", "b.txt", "c.txt")
            }


def files_in(folder: Path) -> dict[str, str]:
    """The files in a folder by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def _is_recorded(runtime: AgentRuntime) -> bool:
    services = await runtime._home.services()
    state = await services.store.workspace_state("s1", "snapshot:s1")
    changes = [
        await services.store.changes_of(run.run_id, "snapshot:s1")
        for run in await services.store.runs("s1")
    ]
    spans = [span for each in changes if each for span in each.spans]
    return state.snapshot_id is not None and any(begin != end for begin, end in spans)


async def test_a_run_here_is_not_at_another_place(
    machines: list[Home], project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread(["done"]) as server:
        write_config(machines[0], server)
        async with AgentRuntime(project_dir=project, home_dir=machines[0].path) as runtime:
            for place in ("snapshot", "host:elsewhere"):
                with pytest.raises(AgentCoreError) as raised:
                    await runtime.start("go", "s1", place=place, here=True)
                assert raised.value.code is ErrorCode.VALIDATION_ERROR
            await runtime.start("go", "s1", place="snapshot")
            with pytest.raises(AgentCoreError) as raised:
                await runtime.start("go", "s1", here=True)
            assert raised.value.code is ErrorCode.SESSION_ELSEWHERE

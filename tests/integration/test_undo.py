"""A message is taken back with what was done about it: through whole runtimes and real files."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    EventType,
    RunStatus,
    ToolContext,
    tool,
)
from agent_core.errors import StorageError
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import new_id
from casts import Cast
from isolation import Home
from judging import machine_is_ahead
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import is_whole, kept, sampled

ON = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n\n[memory]\nenabled = false\n'


def writes(path: str, content: str) -> Any:
    return calls("code.write_file", path=path, content=content, overwrite=True)


def runs(script: str) -> Any:
    return calls("code.run_command", argv=["sh", "-c", script])


def recorded(home: Home, project: Path, *script: Any, config: str = ON) -> AgentRuntime:
    answers = Asked("allow_once")
    return runtime(home, project, script, config=config, permission_callback=answers)


def files_in(folder: Path) -> dict[str, bytes | str | None]:
    """Everything there is in a folder, by path; what is in git's own folder aside."""
    found: dict[str, bytes | str | None] = {}
    for above, folders, names in os.walk(folder):
        if ".git" in folders and Path(above) == folder:
            folders.remove(".git")
        for name in (*folders, *names):
            path = Path(above, name)
            key = str(path.relative_to(folder))
            if path.is_symlink():
                found[key] = str(path.readlink())
            else:
                found[key] = None if path.is_dir() else path.read_bytes()
    return found


def a_repository(project: Path) -> Path:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (project / ".gitignore").write_text("*.log\n")
    (project / "kept.txt").write_text("kept\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], cwd=project, check=True)  # noqa: S603 - fixed words
    return project


def a_folder_in_a_repository(project: Path) -> Path:
    inner = a_repository(project) / "inner"
    inner.mkdir()
    (inner / "untracked.txt").write_text("untracked\n")
    return inner


def no_repository(project: Path) -> Path:
    (project / "kept.txt").write_text("kept\n")
    return project


def snapshots_in(home: Home) -> list[Path]:
    return list((home.path / "snapshots").rglob("snap_*"))


@pytest.mark.long
@pytest.mark.parametrize(
    "prepare",
    kept([a_repository, a_folder_in_a_repository, no_repository], a_repository, no_repository),
)
async def test_undo_takes_back_what_a_run_did_and_redo_brings_it_back(
    home: Home, project: Path, prepare: Callable[[Path], Path]
) -> None:
    folder = prepare(project)
    (folder / "old.log").write_text("ignored by git\n")
    (folder / "empty").mkdir()
    before = files_in(folder)
    script = "rm old.log; rmdir empty; mkdir -p new/deep; echo x > new/deep/x.log; ln -s x new/link"
    made = recorded(home, folder, writes("a.txt", "one\n"), runs(script), "done")
    async with made:
        await ask(made)
        after = files_in(folder)
        undone = await made.undo("s1")
        assert files_in(folder) == before
        assert undone.node_id is None
        assert "a.txt" in undone.deleted
        assert "old.log" in undone.restored
        redone = await made.redo("s1")
        assert files_in(folder) == after
        assert redone.node_id == redone.session.active_node_id


async def test_several_undos_in_a_row_and_as_many_redos(home: Home, project: Path) -> None:
    script = [reply for n in range(3) for reply in (writes("a.txt", f"{n}\n"), f"wrote {n}")]
    made = recorded(home, project, *script)
    states = [files_in(project)]
    async with made:
        for n in range(3):
            await ask(made, f"message {n}")
            states.append(files_in(project))
        for n, state in reversed([*enumerate(states[:-1])]):
            undone = await made.undo("s1")
            assert undone.message == f"message {n}"
            assert files_in(project) == state
        with pytest.raises(AgentCoreError, match="nothing to undo"):
            await made.undo("s1")
        for state in states[1:]:
            await made.redo("s1")
            assert files_in(project) == state
        with pytest.raises(AgentCoreError, match="nothing was undone since the last message, redo"):
            await made.redo("s1")


async def test_undo_and_redo_are_possible_where_the_state_says_so(
    home: Home, project: Path
) -> None:
    async with recorded(home, project, "one", "two", "three") as made:
        with pytest.raises(AgentCoreError) as unknown:
            await made.undo_state("s1")
        assert unknown.value.code is ErrorCode.SESSION_NOT_FOUND
        session = made.session("s1")

        async def is_possible() -> tuple[bool, bool]:
            state = await session.undo_state()
            return state.can_undo, state.can_redo

        async def end() -> str:
            return (await made.replay_session("s1")).session.active_node_id or ""

        await ask(made, "1")
        first = await end()
        await ask(made, "2")
        last = await end()
        assert await is_possible() == (True, False)
        await made.undo("s1")
        assert await is_possible() == (True, True)
        await made.switch_node("s1", last)  # another branch than where it was undone
        assert await is_possible() == (True, False)
        with pytest.raises(AgentCoreError, match="nothing to redo"):
            await made.redo("s1")
        await made.switch_node("s1", first)
        assert await is_possible() == (True, True)
        await made.redo("s1")
        assert await is_possible() == (True, False)
        await made.undo("s1")
        await made.undo("s1")
        assert await is_possible() == (False, True)
        with pytest.raises(AgentCoreError, match="nothing to undo"):
            await made.undo("s1")
        await ask(made, "3")
        assert await is_possible() == (True, False)


async def test_a_new_message_ends_redo_and_its_nodes_stay_reachable(
    home: Home, project: Path
) -> None:
    script = [writes("a.txt", "a"), "first", writes("b.txt", "b"), "second"]
    provider = ScriptedProvider(script)
    answers = Asked("allow_once")
    made = runtime(home, project, provider, config=ON, permission_callback=answers)
    async with made:
        await ask(made)
        session = (await made.list_sessions())[0]
        first = str(session.active_node_id)
        await made.undo("s1")
        await ask(made, "something else")
        said = [message.role for message in provider.requests[-2].messages]
        assert said == ["user"], "what was undone is not sent"
        with pytest.raises(AgentCoreError, match="nothing to redo"):
            await made.redo("s1")
        assert set(files_in(project)) == {"b.txt"}
        result = await made.switch_node("s1", first, restore_files=True)
        assert set(files_in(project)) == {"a.txt"}
        assert (result.restored, result.deleted) == (["a.txt"], ["b.txt"])


async def test_what_others_have_changed_is_refused_and_kept_elsewhere(
    home: Home, project: Path
) -> None:
    made = recorded(home, project, writes("a.txt", "agent"), "done")
    async with made:
        await ask(made)
        (project / "mine.txt").write_text("mine")
        (project / "a.txt").write_text("changed by hand")
        before = files_in(project)
        with pytest.raises(AgentCoreError) as refused:
            await made.undo("s1")
        assert refused.value.code is ErrorCode.PATH_CONFLICT
        assert refused.value.details["paths"] == ["a.txt"]
        assert files_in(project) == before
        assert (await made.list_sessions())[0].active_node_id is not None
        await made.undo("s1", force=True)
        assert files_in(project) == {"mine.txt": b"mine"}
        await made.redo("s1")
        assert files_in(project) == before


async def test_what_a_user_changed_between_two_messages_is_left_alone(
    home: Home, project: Path
) -> None:
    made = recorded(home, project, writes("a.txt", "a"), "first", writes("b.txt", "b"), "second")
    async with made:
        await ask(made)
        (project / "mine.txt").write_text("mine")
        await ask(made)
        await made.undo("s1")
        assert set(files_in(project)) == {"a.txt", "mine.txt"}
        await made.undo("s1")
        assert set(files_in(project)) == {"mine.txt"}


async def test_reads_name_no_snapshot(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("a")
    made = recorded(home, project, calls("code.read_file", path="a.txt"), "read")
    async with made:
        await ask(made)
        undone = await made.undo("s1")
        assert (undone.restored, undone.snapshot_before, undone.remarks) == ([], None, [])
        assert (await made.redo("s1")).node_id is not None


async def test_without_snapshots_only_the_conversation_is_taken_back(
    home: Home, project: Path
) -> None:
    made = recorded(home, project, writes("a.txt", "a"), "done", config=CONFIG)
    async with made:
        await ask(made)
        undone = await made.undo("s1")
        assert undone.node_id is None
        assert "snapshots is off" in undone.remarks[0]
        assert (project / "a.txt").exists()
        with pytest.raises(AgentCoreError, match="nothing to undo"):
            await made.undo("s1")
        assert (await made.redo("s1")).node_id is not None


async def test_a_project_of_too_many_files_says_so_once_and_at_undo(
    home: Home, project: Path
) -> None:
    for name in "abc":
        (project / name).write_text(name)
    script = [writes("d", "d"), writes("e", "e"), "done"]
    made = recorded(
        home, project, *script, config=f"{ON}".replace("[memory]", "max_files = 2\n\n[memory]")
    )
    async with made:
        handle = await ask(made)
        history = await made.replay_run(handle.run_id)
        said = [e for e in history.events if e.payload.get("reason") == "no_snapshot"]
        assert len(said) == 1
        undone = await made.undo("s1")
        assert "more than 2 files" in undone.remarks[0]
        assert (project / "d").exists()


async def test_a_run_without_tools_that_change_something_pays_nothing(
    home: Home, project: Path
) -> None:
    reads = calls("code.read_file", path="a.txt")
    made = recorded(home, project, reads, "read")
    async with made:
        await made.run("hello", "s1", tools=["code.read_file", "code.list_dir"])
    assert not (home.path / "snapshots").exists()


@pytest.mark.parametrize(
    "tool", kept(["agent.create_sub_agent", "agent.fork_agent"], "agent.create_sub_agent")
)
async def test_what_a_child_changes_is_its_parents(home: Home, project: Path, tool: str) -> None:
    parts = {
        "go": [calls(tool, task="make it"), "done"],
        "make it": [writes("child.txt", "child"), runs("echo more >> more.log"), "made"],
    }
    answers = Asked("allow_once")
    made = runtime(home, project, Cast(parts), config=ON, permission_callback=answers)
    before = files_in(project)
    async with made:
        await ask(made, "go")
        after = files_in(project)
        assert set(after) == {"child.txt", "more.log"}
        await made.undo("s1")
        assert files_in(project) == before
        await made.redo("s1")
        assert files_in(project) == after


async def test_a_cancelled_run_is_undone_as_far_as_it_came(home: Home, project: Path) -> None:
    script = [writes("a.txt", "a"), runs("echo begun > b.txt; sleep 60")]
    made = recorded(home, project, *script)
    async with made:
        handle = await made.start("go", session_id="s1")
        async with asyncio.timeout(20):
            while not (project / "b.txt").exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
        await handle.cancel()
        undone = await made.undo("s1")
        assert sorted(undone.deleted) == ["a.txt", "b.txt"]
        assert files_in(project) == {}
        await made.redo("s1")
        assert set(files_in(project)) == {"a.txt", "b.txt"}


async def test_files_are_not_restored_while_a_run_works_in_the_project(
    home: Home, project: Path
) -> None:
    made = recorded(home, project, writes("a.txt", "a"), "done", runs("sleep 60"))
    async with made:
        await ask(made)
        other = await made.start("go", session_id="s2")
        async for event in other.events():
            if event.event_type is EventType.TOOL_STARTED:
                break
        with pytest.raises(AgentCoreError) as refused:
            await made.undo("s1")
        assert refused.value.code is ErrorCode.SESSION_ACTIVE
        assert (project / "a.txt").exists()
        await other.cancel()
        await made.undo("s1")
        assert not (project / "a.txt").exists()


async def test_what_was_read_before_an_undo_counts_as_not_read(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    edit = calls("code.edit_file", path="a.txt", edits=[{"old": "old", "new": "new"}])
    read = calls("code.read_file", path="a.txt")
    made = recorded(home, project, read, "read", edit, "edited", edit, "edited again")
    async with made:
        await ask(made)
        await ask(made)
        await made.undo("s1")
        assert (project / "a.txt").read_text() == "old\n"
        handle = await ask(made)
        assert (project / "a.txt").read_text() == "new\n"
        assert handle.result_text == "edited again"


async def test_a_plain_switch_leaves_the_files_and_the_next_run_starts_from_them(
    home: Home, project: Path
) -> None:
    script = ["hello", writes("a.txt", "a"), "wrote a", writes("b.txt", "b"), "wrote b"]
    made = recorded(home, project, *script)
    async with made:
        await ask(made)
        first = str((await made.list_sessions())[0].active_node_id)
        await ask(made)
        second = str((await made.list_sessions())[0].active_node_id)
        assert (await made.switch_node("s1", first)).active_node_id == first
        await ask(made)
        assert set(files_in(project)) == {"a.txt", "b.txt"}
        await made.undo("s1")
        assert set(files_in(project)) == {"a.txt"}
        await made.switch_node("s1", second, restore_files=True)
        assert set(files_in(project)) == {"a.txt"}
        await made.switch_node("s1", first, restore_files=True)
        assert files_in(project) == {}


async def test_git_itself_is_left_alone_and_what_differs_is_said(home: Home, project: Path) -> None:
    a_repository(project)
    commit = "git add a.txt; git -c user.name=a -c user.email=a@example.org commit -qm second"
    made = recorded(home, project, writes("a.txt", "a"), runs(commit), "done")
    async with made:
        await ask(made)
        head = (project / ".git" / "logs" / "HEAD").read_bytes()
        undone = await made.undo("s1")
        assert (project / ".git" / "logs" / "HEAD").read_bytes() == head
        assert not (project / "a.txt").exists()
        assert any(line.startswith("HEAD: was") for line in undone.git)


async def test_the_snapshots_of_a_deleted_session_are_swept(home: Home, project: Path) -> None:
    script = [writes("a.txt", "a" * 100), "first", writes("b.txt", "b" * 100), "second"]
    made = recorded(home, project, *script)
    async with made:
        await ask(made, session_id="one")
        await ask(made, session_id="two")
        kept = set(snapshots_in(home))
        await made.delete_session("one")
        left = set(snapshots_in(home))
        assert left < kept
        await made.undo("two")
        assert set(files_in(project)) == {"a.txt"}
        await made.delete_session("two")
        assert not snapshots_in(home)


async def test_snapshots_are_kept_as_long_as_the_settings_say(home: Home, project: Path) -> None:
    async with recorded(home, project, writes("a.txt", "a"), "done") as made:
        await ask(made)
    assert snapshots_in(home)
    database = sqlite3.connect(home.path / "sessions.sqlite")
    with database:
        database.execute("UPDATE sessions SET updated_at = '2020-01-01T00:00:00.000000+00:00'")
    database.close()
    for is_sure in (False, True):  # of the clock, which is years past the last use
        async with recorded(home, project) as made:
            pass
        assert bool(snapshots_in(home)) is not is_sure
    async with recorded(home, project) as made:
        undone = await made.undo("s1")
        assert undone.node_id is None
        assert "snapshots have been deleted" in undone.remarks[0]
        assert (project / "a.txt").exists()


async def test_a_start_with_a_wrong_clock_keeps_sessions_and_snapshots(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = f"{ON}\n[store]\nkeep_days = 30\n"
    async with recorded(home, project, writes("a.txt", "a"), "done", config=config) as made:
        await ask(made)
    kept = snapshots_in(home)

    async def start(years: int) -> set[str]:
        with monkeypatch.context() as wrong:
            machine_is_ahead(wrong, timedelta(days=365 * years))
            async with recorded(home, project, config=config) as made:
                return {each.session_id for each in await made.list_sessions()}

    for years in (20, 0, 20, 0, -20, 0):  # a right start in between makes the next one doubt
        assert await start(years) == {"s1"}
        assert snapshots_in(home) == kept
    await start(20)
    await start(20)
    assert not snapshots_in(home)


@pytest.mark.parametrize("is_original_used", sampled([False, True], keep=1))
async def test_a_fork_in_the_same_folder_keeps_snapshots_no_longer_than_its_original(
    home: Home, project: Path, is_original_used: bool
) -> None:
    async with recorded(home, project, writes("a.txt", "a"), "done") as made:
        await ask(made)
        fork = (await made.fork("s1")).session.session_id
    database = sqlite3.connect(home.path / "sessions.sqlite")
    with database:
        old = "2020-01-01T00:00:00.000000+00:00"
        unused = (fork,) if is_original_used else (fork, "s1")
        for session_id in unused:
            row = (old, session_id)
            database.execute("UPDATE sessions SET updated_at = ? WHERE session_id = ?", row)
    database.close()
    for _ in range(2):  # the first one doubts its clock
        async with recorded(home, project) as made:
            pass
    assert bool(snapshots_in(home)) is is_original_used
    async with recorded(home, project) as made:
        undone = await made.undo(fork)
        assert undone.deleted == (["a.txt"] if is_original_used else [])
        assert undone.remarks or is_original_used


async def test_two_sessions_take_back_their_own(home: Home, project: Path) -> None:
    script = [writes("a.txt", "a"), "first", writes("b.txt", "b"), "second"]
    made = recorded(home, project, *script)
    async with made:
        await ask(made, session_id="one")
        await ask(made, session_id="two")
        await made.undo("one")
        assert set(files_in(project)) == {"b.txt"}
        await made.undo("two")
        assert files_in(project) == {}


async def test_a_run_that_waited_is_taken_back_without_what_was_changed_meanwhile(
    home: Home, project: Path
) -> None:
    park = f'{ON}\n[permissions]\nunattended = "park"\n'
    (project / "a.txt").write_text("before")
    script = [writes("a.txt", "a"), writes("b.txt", "b"), "done"]
    async with runtime(home, project, script, config=park) as made:
        handle = await made.start("go", session_id="s1")
        assert await handle.wait() is RunStatus.WAITING
        with pytest.raises(AgentCoreError, match="waits for an answer"):
            await made.undo("s1")
        (question,) = await made.approvals()
        again = await made.answer(question.request_id, "allow_once")
        assert await again.wait() is RunStatus.WAITING
        (project / "mine.txt").write_text("mine")
        (question,) = await made.approvals()
        last = await made.answer(question.request_id, "allow_once")
        assert await last.wait() is RunStatus.COMPLETED
        after = files_in(project)
        assert set(after) == {"a.txt", "b.txt", "mine.txt"}
        await made.undo("s1")
        assert files_in(project) == {"a.txt": b"before", "mine.txt": b"mine"}
        await made.redo("s1")
        assert files_in(project) == after


async def test_another_process_waits_and_refuses_alike(home: Home, project: Path) -> None:
    """A run of another process in the same project keeps the files from being restored."""
    made = recorded(home, project, writes("a.txt", "a"), "done", runs("sleep 60"))
    async with made, recorded(home, project) as other:
        await ask(made)
        handle = await made.start("go", session_id="s2")
        async for event in handle.events():
            if event.event_type is EventType.TOOL_STARTED:
                break
        with pytest.raises(AgentCoreError) as refused:
            await other.undo("s1")
        assert refused.value.code is ErrorCode.SESSION_ACTIVE
        await handle.cancel()
        undone = await other.undo("s1")
        assert undone.deleted == ["a.txt"]


async def test_the_changes_of_a_programs_tool_are_taken_back(home: Home, project: Path) -> None:
    @tool(permission="write")
    async def own(context: ToolContext) -> str:
        """Write a file from a program's tool."""
        (context.project / "own.txt").write_text("own")
        return "ok"

    made = recorded(home, project, calls("own"), "done")
    made.register_tool(own)
    async with made:
        await ask(made)
        assert set(files_in(project)) == {"own.txt"}
        await made.undo("s1")
        assert files_in(project) == {}


NAMES = st.sampled_from(["a", "b", "d/e", "d/f", "g"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.sampled_from(["1", "2"])),
        st.tuples(st.just("remove"), NAMES, st.just("")),
        st.tuples(st.just("link"), NAMES, st.just("x")),
        st.tuples(st.just("folder"), NAMES, st.just("")),
        st.tuples(st.just("mode"), NAMES, st.sampled_from(["600", "755"])),
    ),
    max_size=4,
)
SHELL = {
    "write": "rm -rf {0}; mkdir -p $(dirname {0}); printf {1} > {0}",
    "remove": "rm -rf {0}",
    "link": "rm -rf {0}; mkdir -p $(dirname {0}); ln -s {1} {0}",
    "folder": "rm -rf {0}; mkdir -p {0}",
    "mode": "[ ! -e {0} ] || [ -L {0} ] || chmod {1} {0}",
}


@pytest.mark.long
@settings(
    max_examples=8 if is_whole() else 2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(turns=st.lists(STEPS, min_size=1, max_size=3))
def test_undo_equals_before_and_redo_equals_after(
    home: Home, project: Path, turns: list[list[tuple[str, str, str]]]
) -> None:
    """Runs of random commands are taken back one by one, and done again one by one."""
    session_id = new_id("sess")
    commands = ["; ".join(SHELL[kind].format(*rest) for kind, *rest in steps) for steps in turns]
    script = [each for command in commands for each in (runs(f"{command}; true"), "done")]

    async def check() -> None:
        async with recorded(home, project, *script) as made:
            states = [state_of(project)]
            for _ in turns:
                await ask(made, session_id=session_id)
                states.append(state_of(project))
            for state in reversed(states[:-1]):
                await made.undo(session_id)
                assert state_of(project) == state
            for state in states[1:]:
                await made.redo(session_id)
                assert state_of(project) == state

    asyncio.run(check())


def state_of(folder: Path) -> dict[str, tuple[int, Any]]:
    """What `files_in` finds, with the rights."""
    return {
        path: ((folder / path).lstat().st_mode, content)
        for path, content in files_in(folder).items()
    }


async def test_a_run_that_begins_during_an_undo_keeps_it_from_being_made(
    home: Home, project: Path
) -> None:
    """Whichever is first, files and conversation agree afterwards."""
    script = [writes("a.txt", "a"), "first", "second"]
    made = recorded(home, project, *script)
    async with made:
        await ask(made)
        undoing = asyncio.create_task(made.undo("s1"))
        await asyncio.sleep(0)
        handle = await made.start("again", session_id="s1")
        done = (await asyncio.gather(undoing, return_exceptions=True))[0]
        await handle.wait()
        active = (await made.list_sessions())[0].active_node_id
        said = [node.text for node in await made.get_node_path(active)] if active else []
        assert (project / "a.txt").exists() is ("first" in said)
        assert isinstance(done, AgentCoreError) is ("second" in said and "first" in said)


async def test_names_that_are_no_utf8_are_shown_and_restored(home: Home, project: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (project / name).write_text("before")
    made = recorded(home, project, runs("rm caf*; printf x > $(printf 'n\\377w')"), "done")
    async with made:
        await ask(made)
        undone = await made.undo("s1")
        assert undone.restored == ["caf\\xe9.txt"]
        assert undone.deleted == ["n\\xffw"]
        assert (project / name).read_text() == "before"


async def test_what_sessions_change_at_the_same_time_is_refused(home: Home, project: Path) -> None:
    wait = "echo a > a.txt; touch begun; while [ ! -e go ]; do sleep 0.02; done; rm go begun"
    first = recorded(home, project, runs(wait), "done")
    second = recorded(home, project, writes("b.txt", "b"), "done")
    async with first, second:
        handle = await first.start("go", session_id="one")
        async with asyncio.timeout(20):
            while not (project / "begun").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.02)
        await ask(second, session_id="two")
        (project / "go").touch()
        await handle.wait()
        for session_id in ("one", "two"):
            with pytest.raises(AgentCoreError) as refused:
                await first.undo(session_id)
            assert "b.txt" in refused.value.details["paths"]
            assert set(files_in(project)) == {"a.txt", "b.txt"}
        await first.undo("one", force=True)
        assert not (project / "a.txt").exists()
        await first.redo("one")
        assert set(files_in(project)) == {"a.txt", "b.txt"}


async def test_a_fork_goes_on_without_the_session_it_comes_from(home: Home, project: Path) -> None:
    a_repository(project)
    script = [writes("a.txt", "a"), "first", writes("b.txt", "b"), "second", "third"]
    made = recorded(home, project, *script)
    copy = project.with_name(f"{project.name}-fork") / "deep" / "copy"
    async with made:
        await ask(made)
        first = str((await made.list_sessions())[0].active_node_id)
        await ask(made)
        (project / "mine.txt").write_text("mine")
        forked = await made.fork("s1", first, into=copy)
        assert forked.session.parent_session_id == "s1"
        assert set(files_in(copy)) == {".gitignore", "kept.txt", "a.txt"}
        assert (copy / ".git" / "HEAD").exists()
        with pytest.raises(AgentCoreError, match="is not empty"):
            await made.fork("s1", into=copy)
        with pytest.raises(AgentCoreError, match="copied into itself"):
            await made.fork("s1", into=project / "inner")
        with pytest.raises(AgentCoreError, match="cannot be made"):
            await made.fork("s1", into=project.parent / "none" / ("x" * 300) / "y")
        await made.delete_session("s1")
        said = [node.text for node in await made.get_node_path(str(forked.node_id))]
        assert said[0] == "hello"
        assert said[-1] == "first"
        history = await made.replay_session(forked.session_id)
        assert [node.text for node in history.nodes] == said
    async with recorded(home, copy, "fine") as there:
        handle = await ask(there, session_id=forked.session_id)
        assert handle.result_text == "fine"
        await there.undo(forked.session_id)
        await there.undo(forked.session_id)
        assert set(files_in(copy)) == {".gitignore", "kept.txt"}


async def test_a_message_of_the_user_names_the_state_before_its_run(
    home: Home, project: Path
) -> None:
    made = recorded(home, project, writes("a.txt", "a"), "first")
    async with made:
        await ask(made)
        history = await made.replay_session("s1")
        asked, *_, answered = history.nodes
        await made.switch_node("s1", asked.node_id, restore_files=True)
        assert files_in(project) == {}
        await made.switch_node("s1", answered.node_id, restore_files=True)
        assert set(files_in(project)) == {"a.txt"}
        found = await made.diff_workspace(asked.node_id, answered.node_id)
        assert [(change.path, change.kind) for change in found.changes] == [("a.txt", "added")]


async def test_one_recorded_file_is_read_as_it_was(home: Home, project: Path) -> None:
    odd = b"\xff\0 old"
    (project / "a.txt").write_bytes(odd)
    (project / "sub").mkdir()
    (project / "link").symlink_to("a.txt")
    async with recorded(
        home, project, writes("a.txt", "new"), writes("sub/b.txt", "b"), "x"
    ) as made:
        await ask(made)
        first, *_, last = (await made.replay_session("s1")).nodes
        (project / "a.txt").write_text("newer")
        diff = await made.diff_workspace(first.node_id, last.node_id)
        assert await made.file_at(first.node_id, "a.txt") == odd
        assert await made.file_at(last.node_id, "a.txt") == b"new"
        assert await made.file_at(last.node_id, str(project / "sub" / "b.txt")) == b"b"
        assert await made.file_at(diff.after, "./sub//b.txt") == b"b"
        for path in (
            "none",
            "sub",
            "link",
            "link/x",
            "../a.txt",
            "sub/../a.txt",
            "/etc/passwd",
            ".",
        ):
            with pytest.raises(StorageError) as refused:
                await made.file_at(last.node_id, path)
            assert refused.value.code is ErrorCode.FILE_NOT_FOUND, path
        with pytest.raises(StorageError) as refused:
            await made.file_at("node_none", "a.txt")
        for odd_id, odd_path in ((None, "a.txt"), (first.node_id, None)):
            with pytest.raises(AgentCoreError, match="must be a text, not None"):
                await made.file_at(odd_id, odd_path)  # type: ignore[arg-type]
        assert refused.value.code is ErrorCode.NODE_NOT_FOUND
        with pytest.raises(StorageError):
            await made.file_at("snap_none", "a.txt")


async def test_what_no_snapshot_holds_is_named_and_never_destroyed(
    home: Home, project: Path
) -> None:
    (project / "grows.txt").write_text("small")
    (project / "large.bin").write_bytes(b"l" * 200)
    config = ON.replace("[memory]", "max_file_bytes = 100\n\n[memory]")
    script = (
        "printf '%0200d' 1 > grows.txt; mkdir build; touch build/out; mkfifo pipe; rm large.bin"
    )
    made = recorded(home, project, runs(script), "done", config=config)
    async with made:
        await ask(made)
        with pytest.raises(AgentCoreError) as refused:
            await made.undo("s1")
        assert refused.value.details["paths"] == ["grows.txt"]
        undone = await made.undo("s1", force=True)
        assert (project / "grows.txt").read_text() == "small"
        assert len(undone.moved_aside) == 1
        aside = undone.moved_aside[0].partition(" -> ")[2]
        assert len((project / aside).read_text()) == 200
        assert (project / "build" / "out").exists()
        named = {"build (excluded)", "pipe (fifo)", "large.bin (too_large)"}
        assert named <= set(undone.left_out)
        assert "large.bin" in undone.remarks[0]


async def test_the_changes_of_a_declarative_tool_are_taken_back(home: Home, project: Path) -> None:
    script = "import pathlib, sys; pathlib.Path('notes.txt').write_text(sys.argv[1])"
    described = {
        "name": "notes.add",
        "description": "Add a note.",
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
        "permission": "write",
        "command_type": "exec",
        "command": sys.executable,
        "args": ["-c", script, "{{args.text}}"],
    }
    home.write("tools/notes.json", json.dumps(described))
    (project / "notes.txt").write_text("before")
    async with recorded(home, project, calls("notes.add", text="after"), "done") as made:
        await ask(made)
        assert (project / "notes.txt").read_text() == "after"
        await made.undo("s1")
        assert (project / "notes.txt").read_text() == "before"
        await made.redo("s1")
        assert (project / "notes.txt").read_text() == "after"


async def test_the_changes_of_an_mcp_server_are_taken_back(home: Home, project: Path) -> None:
    diary = project / "diary"
    server = {
        "command": sys.executable,
        "args": [str(Path(__file__).parents[1] / "mcp_servers" / "plain.py")],
        "env": {"PLAIN_DIARY": str(diary)},
    }
    home.write("mcp.json", json.dumps({"mcpServers": {"shop": server}}))
    async with recorded(home, project, calls("mcp.shop.write"), "done") as made:
        await ask(made)
        assert "call write" in diary.read_text()
        await made.undo("s1")
        assert "call write" not in (diary.read_text() if diary.exists() else "")
        await made.redo("s1")
        assert "call write" in diary.read_text()


async def test_an_undo_that_is_cancelled_leaves_files_and_conversation_together(
    home: Home, project: Path
) -> None:
    async with recorded(home, project, runs("seq 200 | xargs touch"), "done") as made:
        await ask(made)
        for number in range(0, 20, 1 if is_whole() else 5):
            undoing = asyncio.create_task(made.undo("s1"))
            await asyncio.sleep(number * 0.02)
            is_early = undoing.cancel()
            await asyncio.wait([undoing])
            is_undone = (await made.list_sessions())[0].active_node_id is None
            assert is_undone is (files_in(project) == {})
            if is_undone:
                await made.redo("s1")
            if not is_early:
                break


async def test_a_sweep_leaves_what_an_undo_is_about_to_use(home: Home, project: Path) -> None:
    """Whatever moment of an undo another process sweeps in, in another project."""
    elsewhere = project.with_name(f"{project.name}-elsewhere")
    elsewhere.mkdir()
    made = recorded(home, project, writes("a.txt", "a"), "done")
    async with made, recorded(home, elsewhere, *["hello"] * 500) as other:
        await ask(made)
        is_done = asyncio.Event()

        async def sweep() -> None:
            while not is_done.is_set():
                await ask(other, session_id="other")
                await other.delete_session("other")

        sweeping = asyncio.create_task(sweep())
        for number in range(6 if is_whole() else 3):
            (project / "mine.txt").write_text(f"{number}")
            await made.undo("s1")
            await made.redo("s1")
        is_done.set()
        await sweeping
        assert set(files_in(project)) == {"a.txt", "mine.txt"}


async def test_a_project_that_was_moved_is_named(home: Home, project: Path) -> None:
    async with recorded(home, project, writes("a.txt", "a"), "done") as made:
        await ask(made)
        moved = project.rename(f"{project}-moved")
        with pytest.raises(AgentCoreError, match="no longer exists; move it back"):
            await made.undo("s1")
        moved.rename(project)
        await made.undo("s1")
        assert files_in(project) == {}


@pytest.mark.sweep
async def test_a_difference_is_shown_as_text_in_any_encoding(home: Home, project: Path) -> None:
    line = "请检查这个单位是否正确。\r\n"
    (project / "a.txt").write_bytes(line.encode("gb18030"))
    (project / "b.txt").write_bytes(line.encode("gb18030"))
    script = (
        "printf '\\304\\352\\301\\344\\272\\315\\265\\330\\326\\267\\r\\n' >> a.txt;"
        " iconv -f gb18030 -t utf-8 b.txt > c; mv c b.txt"
    )
    made = recorded(home, project, runs(script), "done")
    async with made:
        await ask(made)
        asked, *_, answered = (await made.replay_session("s1")).nodes
        found = await made.diff_workspace(asked.node_id, answered.node_id)
    (added, converted) = found.changes
    assert "\n+年龄和地址\r\n" in (added.diff or "")
    assert (converted.path, converted.note) == ("b.txt", "encoding: gb18030 -> utf-8")


@pytest.mark.long
async def test_the_changes_of_a_session_are_those_of_its_runs(home: Home, project: Path) -> None:
    (project / "kept.txt").write_text("one\n")
    made = recorded(
        home,
        project,
        *(writes("kept.txt", "two\n"), "first"),
        *(writes("kept.txt", "three\n"), runs("echo new > made.txt; touch gone.txt"), "second"),
        *(runs("rm gone.txt"), "third"),
        *(writes("undone.txt", "no"), "fourth"),
    )
    async with made:
        with pytest.raises(AgentCoreError, match="s1"):
            await made.diff_session("s1")
        await ask(made)
        (project / "theirs.txt").write_text("mine")
        for _ in range(3):
            await ask(made)
        await made.undo("s1")
        found = await made.diff_session("s1")
        assert found is not None
        assert [(each.path, each.kind) for each in found.changes] == [
            ("kept.txt", "modified"),
            ("made.txt", "added"),
        ]
        assert "-one\n+three\n" in (found.changes[0].diff or "")


async def test_a_session_without_snapshots_has_no_recorded_changes(
    home: Home, project: Path
) -> None:
    made = recorded(home, project, writes("a.txt", "a"), "done", config=CONFIG)
    async with made:
        await ask(made)
        assert await made.diff_session("s1") is None

"""The files changed so far that a compaction names are those that changed, whatever did it."""

from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, RunStatus, tool
from agent_core.providers.scripted import Calls, ScriptedProvider, calls
from agent_core.runtime.changed_files import MOST_FILES, find_changed_since, fold_files
from agent_core.storage.store import SessionStore
from agent_core.types import NodeType
from confined_work import git
from isolation import Home
from runtimes import Asked, ask, runtime
from summarising import model
from sweeps import kept

CONFIG = """
[model]
provider = "custom"
name = "script"
context_window = 16384

[compact]
keep_recent_tokens = 200

[memory]
enabled = false

[workspace]
snapshots = "{snapshots}"
"""
SNAPSHOTS = pytest.mark.parametrize("snapshots", kept(["turn", "off"], "turn"))


def shell(script: str) -> Calls:
    return calls("code.run_command", argv=["sh", "-c", script])


def opened(
    home: Home, project: Path, provider: ScriptedProvider, *, snapshots: str
) -> AgentRuntime:
    config = CONFIG.format(snapshots=snapshots)
    asked = Asked("allow_once")
    return runtime(home, project, provider, config=config, permission_callback=asked)


async def compacted(made: AgentRuntime) -> dict[str, Any]:
    """Summarise the session, and return the details of the compaction."""
    for number in range(4):
        await ask(made, f"question {number}")
    handle = await made.compact_session("s1")
    await handle.wait()
    assert handle.status is RunStatus.COMPLETED, handle.error
    page = await made.replay_session("s1")
    return [n for n in page.nodes if n.node_type is NodeType.COMPACTION][-1].metadata["details"]


@SNAPSHOTS
async def test_what_commands_changed_is_named_after_every_compaction(
    home: Home, project: Path, snapshots: str
) -> None:
    (project / "there.txt").write_text("1")
    (project / "same.txt").write_text("1")
    first = [shell("echo 2 > there.txt; mkdir deep; echo 1 > deep/new.txt"), "done"]
    async with opened(home, project, model(*first), snapshots=snapshots) as made:
        await ask(made, "go")
        kept = (await compacted(made))["kept"]["files_changed"]
        assert sorted(kept) == ["deep/new.txt", "there.txt"]
    then = [shell("mv deep/new.txt moved.txt"), "moved"]
    async with opened(home, project, model(*then), snapshots=snapshots) as made:
        await ask(made, "move it")
        details = await compacted(made)
    assert sorted(details["kept"]["files_changed"]) == ["deep/new.txt", "moved.txt", "there.txt"]
    assert sorted(details["changed_files"]) == ["deep/new.txt", "moved.txt", "there.txt"]


@pytest.mark.sweep
@SNAPSHOTS
async def test_a_tracked_file_that_a_command_deleted_is_named(
    home: Home, project: Path, snapshots: str
) -> None:
    for name in ("old/gone.txt", "stays.txt"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("1")
    for words in (["init", "-q"], ["add", "."]):
        git(project, *words)
    provider = model(shell("rm -r old"), "done")
    async with opened(home, project, provider, snapshots=snapshots) as made:
        await ask(made, "go")
        assert (await compacted(made))["kept"]["files_changed"] == ["old/gone.txt"]


@pytest.mark.long
@SNAPSHOTS
async def test_what_a_program_s_tool_and_a_child_changed_is_named(
    home: Home, project: Path, snapshots: str
) -> None:
    @tool(permission="write")
    def stamp(name: str) -> str:
        """Write a stamp."""
        (project / name).write_text("stamped")
        return "stamped"

    task = {"task": "write child.txt"}
    writes = calls("code.write_file", path="child.txt", content="1\n")
    lines = [
        calls("stamp", name="mine.txt"),
        calls("agent.create_sub_agent", **task),
        writes,
        "written",
        "all done",
    ]
    async with opened(home, project, model(*lines), snapshots=snapshots) as made:
        made.register_tool(stamp)
        await ask(made, "go")
        kept = (await compacted(made))["kept"]["files_changed"]
    assert sorted(kept) == ["child.txt", "mine.txt"]


@pytest.mark.sweep
async def test_a_file_is_named_once_however_a_tool_was_told_of_it(
    home: Home, project: Path
) -> None:
    lines = [
        calls("code.write_file", path=path, content="1\n", overwrite=True)
        for path in ("a.txt", "./a.txt", f"{project}/a.txt")
    ]
    async with opened(home, project, model(*lines, "done"), snapshots="turn") as made:
        await ask(made, "go")
        assert (await compacted(made))["kept"]["files_changed"] == ["a.txt"]


@pytest.mark.sweep
async def test_earlier_runs_are_not_looked_at_again(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    changes_of = SessionStore.changes_of

    async def counted(self: SessionStore, run_id: str, folder: str) -> Any:
        looked_at.append(run_id)
        return await changes_of(self, run_id, folder)

    lines = [line for n in range(3) for line in (shell(f"echo {n} > {n}.txt"), "done")]
    async with opened(home, project, model(*lines), snapshots="turn") as made:
        for number in range(3):
            await ask(made, f"go {number}")
        monkeypatch.setattr(SessionStore, "changes_of", counted)
        await compacted(made)
        looked_at.clear()
        details = await compacted(made)
    assert len(set(looked_at)) <= 6  # the four questions, and the two summaries
    assert sorted(details["kept"]["files_changed"]) == ["0.txt", "1.txt", "2.txt"]


@pytest.mark.sweep
async def test_thousands_of_files_are_named_by_their_folders(home: Home, project: Path) -> None:
    script = "mkdir -p gen/a gen/b; cd gen; for n in $(seq 1500); do : > a/$n; : > b/$n; done"
    provider = model(shell(f"{script}; : > ../last"), "done")
    async with opened(home, project, provider, snapshots="turn") as made:
        await ask(made, "go")
        details = await compacted(made)
    assert sorted(details["changed_files"]) == ["gen/a/", "gen/b/", "last"]


def test_folding_is_bounded_and_keeps_every_place() -> None:
    paths = [f"a/{n % 400}/{n}" for n in range(5000)] + ["b/c", "top"]
    folded = fold_files(paths)
    assert len(folded) <= MOST_FILES
    assert {"b/c", "top"} <= set(folded)
    assert all(any(path.startswith(name) for name in folded) for path in paths)
    assert fold_files(["a/", "a/b", "c", "c"]) == ["a/", "c"]
    assert len(fold_files(str(n) for n in range(5000))) == MOST_FILES


def test_a_walk_enters_no_excluded_folder(project: Path) -> None:
    for name in ("node_modules/x.js", ".git/index", "src/x.py"):
        (project / name).parent.mkdir()
        (project / name).write_text("1")
    assert find_changed_since(project, 0, exclude=["node_modules"]) == ["src/x.py"]

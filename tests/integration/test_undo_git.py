"""Tracked files are undone, whatever a run does to the index, to repositories and to rights."""

import asyncio
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agent_core import AgentCoreError, AgentRuntime, ErrorCode
from agent_core.providers.scripted import calls
from agent_core.types import new_id
from isolation import Home
from rights import as_anyone
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import is_whole, kept, sampled

ON = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n\n[memory]\nenabled = false\n'
GIT = "git -c user.name=a -c user.email=a@example.org -c protocol.file.allow=always"


def with_git(script: str) -> str:
    """The script with options for each `git` in it."""
    return re.sub(r"(?<![./\w-])git ", f"{GIT} ", script)


def runs(script: str) -> Any:
    return calls("code.run_command", argv=["sh", "-ec", with_git(script)])


def recorded(home: Home, project: Path, *script: Any) -> AgentRuntime:
    return runtime(home, project, script, config=ON, permission_callback=Asked("allow_once"))


def shell(folder: Path, script: str) -> None:
    command = ["sh", "-ec", with_git(script)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)  # noqa: S603


def state_of(folder: Path) -> dict[str, tuple[int, Any]]:
    """Everything in a folder but its own `.git`: rights, and contents or where a link leads."""
    found: dict[str, tuple[int, Any]] = {}
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if inner.parts[0] == ".git":
            continue
        content = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        found[str(inner)] = (path.lstat().st_mode, content)
    return found


BEGIN = """
git init -q -b main .
mkdir -p src build/deep dist target
echo src > src/a.c; echo built > build/x; echo deep > build/deep/y; chmod 755 build/x
ln -s x build/link
echo dist > dist/z; echo target > target/t
git add -f .; git commit -qm first
git checkout -q -b side; git rm -rqf build dist; git commit -qm side; git checkout -q main
"""
SUBMODULE = f"""
other=$(mktemp -d ../lib-XXXXXXXX); other=$(cd $other && pwd)
git init -q -b main $other
mkdir -p $other/dist $other/src; echo one > $other/dist/one; echo s > $other/src/s
git -C $other add -f .; git -C $other commit -qm lib
{BEGIN}
git submodule add -q $other lib; git commit -qm lib
"""
IN_BUILD = SUBMODULE.replace(" lib; git commit", " build/lib; git commit")
NESTED = f"""
{BEGIN}
mkdir -p inner/dist inner/build; git init -q -b main inner
echo one > inner/dist/one; echo two > inner/build/two; echo no > inner/dist/no
git -C inner add -f dist/one build; git -C inner commit -qm inner
git -C inner branch build
"""
WORKTREE = f"""
{BEGIN}
git worktree add -q wt side
mkdir -p wt/dist; echo w > wt/dist/w; git -C wt add -f dist/w; git -C wt commit -qm w
"""
OWN = f"""
{BEGIN}
git init -q -b main build/own; echo o > build/own/o
git -C build/own add .; git -C build/own commit -qm own
"""
WHOLLY_OWN = f"""
{BEGIN}
rm -rf dist; git init -q dist; echo o > dist/o
git -C dist add .; git -C dist commit -qm own
"""
IGNORES = """
echo build/ > .gitignore
git rm -rq --cached build; git add .; git commit -qm i
echo more >> build/x
"""
TEARS = """
echo more >> dist/z
head -c 300 .git/index > .git/i; mv .git/i .git/index
rm -r build
"""
AGES = r"""
rm build/x
printf '\000\000\000\011' | dd of=.git/index bs=1 seek=4 conv=notrunc 2>/dev/null
"""

STOPS: dict[str, tuple[str, str]] = {
    "removed by git": (BEGIN, "git rm -rq build"),
    "removed and committed": (BEGIN, "rm -rf build dist; git commit -qam gone"),
    "removed and committed, and built again": (
        BEGIN,
        "rm -rf build; git commit -qam gone; mkdir build; echo new > build/x",
    ),
    "no longer tracked": (BEGIN, "git rm -rq --cached build; touch made"),
    "no longer tracked, and changed": (
        BEGIN,
        "git rm -rq --cached build; echo more >> build/x; chmod 600 build/x; rm build/deep/y",
    ),
    "ignored from now on": (BEGIN, IGNORES),
    "another branch": (BEGIN, "git checkout -q side"),
    "another branch, with a build": (BEGIN, "git checkout -q side; mkdir build; echo b > build/x"),
    "the index is deleted": (BEGIN, "rm -rf build/x; echo more >> dist/z; rm .git/index"),
    "the index is garbage": (BEGIN, "rm build/x; echo more >> dist/z; echo no > .git/index"),
    "the index is torn": (BEGIN, TEARS),
    "the index is of an unknown version": (BEGIN, AGES),
    "the index is split": (BEGIN, "git update-index --split-index; git rm -rq build"),
    "the index is split before": (
        f"{BEGIN}\ngit update-index --split-index; echo more >> dist/z; git add -u",
        "git rm -qf dist/z; rm -r build",
    ),
    "the index is of version 4": (
        f"{BEGIN}\ngit update-index --index-version 4",
        "echo more >> build/x; git rm -q dist/z",
    ),
    "the index knows a monitor": (
        f"{BEGIN}\ngit update-index --fsmonitor-valid src/a.c || true",
        "git rm -rq build",
    ),
    "a sparse index": (
        BEGIN,
        "git sparse-checkout init --cone --sparse-index; git sparse-checkout set src",
    ),
    "no repository any more": (BEGIN, "rm -rf build dist/z .git"),
    "SHA-256": (
        BEGIN.replace("init -q", "init -q --object-format=sha256"),
        "git rm -rq build; echo more >> dist/z",
    ),
    "a submodule": (SUBMODULE, "rm lib/dist/one; echo s >> lib/src/s"),
    "a submodule that stops tracking": (SUBMODULE, "git -C lib rm -rq dist"),
    "a submodule is given up": (SUBMODULE, "git submodule deinit -q -f lib"),
    "a submodule is removed": (SUBMODULE, "git rm -rqf lib; git commit -qm gone"),
    "a submodule in an excluded folder": (IN_BUILD, "rm -rf build"),
    "a nested repository": (NESTED, "rm -r inner/dist/one inner/build"),
    "a nested repository that stops tracking": (
        NESTED,
        "git -C inner rm -rq build; git -C inner commit -qm gone; echo more >> inner/dist/one",
    ),
    "a nested repository is removed": (
        NESTED.replace("echo no > inner/dist/no", "true"),
        "rm -rf inner",
    ),
    "branches of a nested repository": (NESTED, "git -C inner branch -q -D build"),
    "a repository in an excluded folder": (OWN, "rm -rf build/own"),
    "an excluded folder is a repository": (WHOLLY_OWN, "rm -rf dist"),
    "a work tree": (WORKTREE, "rm wt/dist/w; echo more >> src/a.c"),
    "a work tree is removed": (WORKTREE, "git worktree remove --force wt"),
}


@pytest.mark.parametrize(
    "name",
    kept(
        STOPS,
        "another branch",
        "the index is torn",
        "no repository any more",
        "a submodule",
        "a nested repository",
    ),
)
async def test_what_was_recorded_is_undone(home: Home, project: Path, name: str) -> None:
    prepare, script = STOPS[name]
    shell(project, prepare)
    before = state_of(project)
    async with recorded(
        home, project, runs(script), "done", runs("echo later > later.txt"), "done"
    ) as made:
        await ask(made)
        after = state_of(project)
        assert after != before
        await ask(made)
        await made.undo("s1")
        assert state_of(project) == after
        undone = await made.undo("s1")
        assert (state_of(project), undone.refused) == (before, [])
        redone = await made.redo("s1")
        assert (state_of(project), redone.refused) == (after, [])
        await made.undo("s1")
        assert state_of(project) == before


CLOSES = {
    "a folder": "chmod 000 d",
    "a folder and all in it": "chmod -R 000 d",
    "a file": "chmod 000 d/a",
    "a folder that cannot be searched": "chmod 644 d",
    "a folder that cannot be listed": "chmod 311 d",
    "a folder that cannot be changed": "rm d/a; chmod 555 d",
    "a folder in a folder": "chmod 000 d/e; chmod 000 d",
    "a folder that was changed before": "rm d/e/b; echo n > d/e/n; chmod 000 d/e d",
    "a file that was changed before": "echo more >> d/a; chmod 000 d/a",
    "a new folder": "mkdir n; echo n > n/n; chmod 000 n/n n",
    "a new file": "echo n > n; chmod 000 n",
    "a folder in the place of a file": "rm f; mkdir f; echo n > f/n; chmod 000 f",
    "a file in the place of a folder": "rm -r d; echo d > d; chmod 000 d",
    "the project": "echo more >> d/a; chmod 000 .",
    "the rights of the project": "chmod 700 .",
    "a project that cannot be changed": "rm d/a; chmod 555 .",
    "old times": "echo two > d/a; touch -d 1970-01-01 d/a; chmod 000 d/a",
}


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(CLOSES, keep=3))
async def test_rights_that_a_run_took_away_come_back(home: Home, project: Path, name: str) -> None:
    """With the rights of any user: the superuser may read everything."""
    (project / "d" / "e").mkdir(parents=True)
    for path in ("d/a", "d/e/b", "f"):
        (project / path).write_text(f"{path}\n")
    project.chmod(0o755)
    before = state_of(project), project.stat().st_mode
    with as_anyone():
        async with recorded(home, project, runs(CLOSES[name]), "done") as made:
            await ask(made)
            undone = await made.undo("s1")
            assert (state_of(project), project.stat().st_mode) == before
            assert undone.refused == []
            await made.redo("s1")
            for path in sorted(project.rglob("*")):
                assert ".tmp" not in path.name
            await made.undo("s1")
            assert (state_of(project), project.stat().st_mode) == before


async def test_what_was_closed_before_the_run_stays_closed(home: Home, project: Path) -> None:
    (project / "d").mkdir()
    (project / "d" / "a").write_text("a")
    (project / "secret").mkdir(mode=0)
    with as_anyone():
        async with recorded(home, project, runs("rm d/a; chmod 000 ."), "done") as made:
            await ask(made)
            undone = await made.undo("s1")
            assert (project / "d" / "a").read_text() == "a"
            assert (project / "secret").stat().st_mode & 0o777 == 0
            assert "secret (unreadable)" in undone.left_out
            assert not [line for line in undone.left_out if "closed" in line]
            snapshot = str(undone.snapshot_before)
            found = await made.diff_workspace(snapshot, snapshot)
            assert "secret (unreadable)" in found.left_out


async def test_what_belongs_to_others_is_refused_for_what_it_is(home: Home, project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs the superuser, to give files away")
    (project / "d").mkdir()
    (project / "d" / "a").write_text("a")
    with as_anyone():
        async with recorded(home, project, runs("echo b > d/a; chmod 000 d"), "done") as made:
            await ask(made)
            os.chown(project / "d", 65534, 65534)
            before = os.lstat(project / "d")
            with pytest.raises(AgentCoreError) as refused:
                await made.undo("s1")
            assert refused.value.code is ErrorCode.PATH_CONFLICT
            assert "nothing was restored. Not permitted: d" in refused.value.message
            assert refused.value.details["reasons"]["d/a"] == "not permitted"
            assert os.lstat(project / "d") == before
            os.chown(project / "d", 0, 0)
            await made.undo("s1")
            assert (project / "d" / "a").read_text() == "a"


@pytest.mark.long
@pytest.mark.parametrize("is_changed", sampled([False, True], keep=1))
async def test_a_file_that_a_run_begins_to_track_is_left_alone(
    home: Home, project: Path, is_changed: bool
) -> None:
    """No snapshot from before it holds it, so it might be the user's."""
    shell(project, f"{BEGIN}\necho mine > build/mine; mkdir venv; echo v > venv/v")
    before = state_of(project)
    change = "echo more >> build/mine;" if is_changed else ""
    script = f"{change} git add -f build/mine venv; git commit -qm tracked; touch made"
    async with recorded(home, project, runs(script), "done") as made:
        await ask(made)
        undone = await made.undo("s1")
        after = state_of(project)
        mine = after.pop("build/mine"), before.pop("build/mine")
        assert after == before
        assert (mine[0] == mine[1]) is not is_changed
        assert any("build/mine" in remark for remark in undone.remarks)
        await made.redo("s1")
        assert (project / "made").exists()


async def test_settings_of_today_do_not_decide_what_is_undone(home: Home, project: Path) -> None:
    (project / "out").mkdir()
    (project / "out" / "a").write_text("a")
    (project / "out" / "large").write_text("l" * 5000)
    (project / "b").write_text("b" * 5000)
    before = state_of(project)
    script = "echo more >> out/a; rm b out/large; echo new > out/new"
    async with recorded(home, project, runs(script), "done") as made:
        await ask(made)
        after = state_of(project)
    narrow = ON.replace("[memory]", 'exclude = ["out", "build"]\nmax_file_bytes = 1000\n\n[memory]')
    made = runtime(home, project, (), config=narrow, permission_callback=Asked("allow_once"))
    async with made:
        undone = await made.undo("s1")
        assert (state_of(project), undone.refused) == (before, [])
        redone = await made.redo("s1")
        assert (state_of(project), redone.refused) == (after, [])


HOSTILE = {
    "a pipe as the index": "rm -f inner/.git/index; mkfifo inner/.git/index",
    "a pipe as HEAD": "rm inner/.git/HEAD; mkfifo inner/.git/HEAD",
    "a pipe for a pack": (
        "git -C inner gc -q; for x in inner/.git/objects/pack/*; do rm -f $x; mkfifo $x; done"
    ),
    "a repository that is elsewhere": "rm -rf inner/.git; echo 'gitdir: /dev' > inner/.git",
    "a link to itself": "rm -rf inner/.git; ln -s .git inner/.git",
    "a repository that is the project's own": (
        "rm -rf inner/.git; echo 'gitdir: ../.git' > inner/.git"
    ),
    "an endless index": "rm -f .git/index; ln -s /dev/zero .git/index",
    "a closed repository": "chmod 000 .git inner/.git",
    "a program as a monitor": (
        "git config core.fsmonitor 'touch ../pwned; false';"
        " git -C inner config core.fsmonitor 'touch ../../pwned; false'"
    ),
}


@pytest.mark.parametrize("name", sampled(HOSTILE, keep=2))
async def test_a_repository_can_run_and_block_nothing(home: Home, project: Path, name: str) -> None:
    folder = project / "work"
    folder.mkdir()
    is_closed = name == "a closed repository"
    shell(folder, NESTED if is_closed else f"{NESTED}\n{HOSTILE[name]}")
    before = state_of(folder)
    script = "echo more >> src/a.c; echo more >> dist/z; echo more >> inner/dist/one"
    script = f"{HOSTILE[name]}; {script}" if is_closed else script
    with as_anyone():
        async with recorded(home, folder, runs(script), "done") as made:
            await ask(made)
            await made.undo("s1")
    after = state_of(folder)
    assert after["src/a.c"] == before["src/a.c"]
    if name != "an endless index":
        assert after["dist/z"] == before["dist/z"]
    assert not (project / "pwned").exists()


ALL = f"""
{SUBMODULE}
mkdir -p inner/dist inner/src; git init -q -b main inner
echo one > inner/dist/one; echo s > inner/src/s
git -C inner add -f dist src; git -C inner commit -qm inner
git worktree add -q -b wt wt side; mkdir -p wt/dist; echo w > wt/dist/w
git -C wt add -f dist/w; git -C wt commit -qm w
"""
TRACKED = ("src/a.c", "build/x", "build/deep/y", "dist/z", "target/t")
INNER = ("lib/dist/one", "lib/src/s", "inner/dist/one", "inner/src/s", "wt/dist/w", "wt/src/a.c")
COMMANDS = (
    "git add -u",
    "git add -f -- build dist target src",
    "git commit -qam next",
    "git reset -q --hard",
    "git reset -q",
    "git reset -q --hard HEAD~1",
    "git checkout -q side",
    "git checkout -q main",
    "git checkout -q --detach",
    "git stash -q",
    "git stash pop -q",
    "git rm -rq --cached build",
    "git rm -rqf dist",
    "git mv build moved",
    "git mv moved build",
    "git merge -q side",
    "git cherry-pick side",
    "git update-index --split-index",
    "git update-index --no-split-index",
    "git update-index --index-version 4",
    "git sparse-checkout init --cone --sparse-index",
    "git sparse-checkout set src",
    "git sparse-checkout disable",
    "git submodule deinit -q -f lib",
    "git submodule update -q --init lib",
    "git rm -qf lib",
    "git worktree remove --force wt",
    "git -C inner rm -rq --cached dist",
    "git -C inner reset -q --hard",
    "git -C lib rm -rq dist",
    "git -C lib checkout -q -f",
    "git gc -q",
    "git branch -q build",
    "git -C inner branch -q build",
    "rm -f .git/index",
    "echo no > .git/index",
    "echo no > inner/.git/index",
    "rm -rf inner",
    "rm -rf build",
    "rm -rf wt",
    "rm -rf lib",
)
EDITS = (
    "if [ -d $(dirname {0}) ] && [ ! -d {0} ]; then echo more >> {0}; fi",
    "rm -rf {0}",
    "chmod 600 {0}",
    "rm -rf {0}; ln -s a {0}",
    "rm -rf {0}; mkdir {0}",
)
CHANGES = st.one_of(
    st.sampled_from(COMMANDS),
    st.builds(str.format, st.sampled_from(EDITS), st.sampled_from(TRACKED + INNER)),
)


@pytest.mark.long
@settings(
    max_examples=int(os.environ.get("UNDO_EXAMPLES", "6" if is_whole() else "2")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(turns=st.lists(st.lists(CHANGES, min_size=1, max_size=6), min_size=1, max_size=3))
@pytest.mark.timeout(1800)
def test_whatever_git_does_is_undone_and_redone(
    home: Home, project: Path, turns: list[list[str]]
) -> None:
    """Runs of random git commands, compared byte for byte with their modes."""
    session_id = new_id("sess")
    folder = project / session_id
    folder.mkdir()
    shell(folder, ALL)
    scripts = ["; ".join(steps) for steps in turns]
    replies = [each for script in scripts for each in (runs(f"set +e; {script}; true"), "done")]

    async def check() -> None:
        async with recorded(home, folder, *replies) as made:
            states = [state_of(folder)]
            for _ in turns:
                await ask(made, session_id=session_id)
                states.append(state_of(folder))
            for state in reversed(states[:-1]):
                undone = await made.undo(session_id)
                assert (state_of(folder), undone.refused) == (state, [])
            for state in states[1:]:
                redone = await made.redo(session_id)
                assert (state_of(folder), redone.refused) == (state, [])

    asyncio.run(check())

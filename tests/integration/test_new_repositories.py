"""Repositories that a command made execute nothing when the user's Git looks at them."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_core.process.confinement import probe
from agent_core.process.repository_watch import RepositoryWatch
from confined_work import AUTHOR, ON, git, run_all, run_asked
from isolation import Home
from runtimes import CONFIG
from sweeps import kept, sampled

pytestmark = pytest.mark.skipif(
    not (probe().landlock and probe().seccomp and probe().namespaces),
    reason="the kernel has no Landlock, no seccomp or no user namespaces",
)

AS = " ".join(AUTHOR)
MAKE = f"git init -q x; git -C x {AS} commit -q --allow-empty -m one; "
LINK = (
    "git update-index --add --cacheinfo 160000,$(git -C x rev-parse HEAD),x;"
    " touch -d '2001-01-01' x/.git/index 2>/dev/null; true"
)
RUN = "$PWD/run.sh"
LAID_OUT = (
    "mkdir -p $P/objects $P/refs worktree; echo ref: refs/heads/main > $P/HEAD;"
    " printf '[core]\\nrepositoryformatversion=0\\nbare=false\\nworktree=%s\\nfsmonitor=%s\\n'"
    f' "$PWD/worktree" "{RUN}" > $P/config'
)
MONITOR = f"git -C x config core.fsmonitor {RUN}; "


@pytest.fixture
def root(project: Path) -> Path:
    """A repository with a script that leaves a mark where it is executed."""
    git(project, "init", "-q", "-b", "main")
    (project / "run.sh").write_text(f"#!/bin/sh\necho >> {project}/executed\n", encoding="utf-8")
    (project / "run.sh").chmod(0o755)
    (project / "a").write_text("a\n", encoding="utf-8")
    git(project, "add", ".")
    git(project, "commit", "-qm", "one")
    return project


def look_at(root: Path) -> None:
    """Do what users and their editors do everywhere: look at what has changed, and commit."""
    found = [path.parent for path in root.rglob(".git") if path.parent != root]
    for folder in (root, root / "sub", *found):
        for line in (["status"], ["diff"], ["add", "-A"], ["commit", "-qm", "x", "--allow-empty"]):
            argv = ["git", "-C", str(folder), *AUTHOR, *line]
            subprocess.run(argv, check=False, capture_output=True)  # noqa: S603


ATTACKS = {
    "a monitor": MAKE + MONITOR,
    "a monitor in one line": MAKE + f'echo "[core] fsmonitor = {RUN}" >> x/.git/config; ',
    "a quoted monitor": MAKE + f"printf '[core]\\nfsmonitor = \"%s\"\\n' {RUN} >> x/.git/config; ",
    "a continued line": MAKE
    + f"printf '[user]\\nname = a\\\\\\nb\\n[core]\\nfsmonitor = %s\\n' {RUN} >> x/.git/config; ",
    "upper case": MAKE + f"printf '[CORE]\\nFSMonitor = %s\\n' {RUN} >> x/.git/config; ",
    "an included file": MAKE
    + f"printf '[core]\\nfsmonitor = %s\\n' {RUN} > more; git -C x config include.path $PWD/more; ",
    "a filter": MAKE + f"git -C x config filter.f.clean {RUN};"
    " echo '* filter=f' > x/.gitattributes; touch x/n; ",
    "another command for LFS": MAKE + f"git -C x config filter.lfs.clean {RUN};"
    " echo '* filter=lfs' > x/.gitattributes; echo > x/n; ",
    "a hook": MAKE + "cp run.sh x/.git/hooks/pre-commit; ",
    "a folder of hooks": MAKE + "git -C x config core.hooksPath ..; cp run.sh pre-commit; ",
    "settings of the working tree": MAKE
    + "git -C x config extensions.worktreeConfig true;"
    + f" git -C x config --worktree core.fsmonitor {RUN}; ",
    "another repository's settings": MAKE + f"git init -q y; git -C y config core.fsmonitor {RUN};"
    " echo ../../y/.git > x/.git/commondir; ",
    "a file that names a folder": MAKE
    + MONITOR
    + "mv x/.git data; echo gitdir: ../data > x/.git; ",
    "a link": MAKE + MONITOR + "mv x/.git data; ln -s ../data x/.git; ",
    "settings behind a link": MAKE + MONITOR + "mv x/.git/config c; ln -s ../../c x/.git/config; ",
    "a repository among modules": MAKE
    + MONITOR
    + "mkdir -p .git/modules; mv x/.git .git/modules/x; echo gitdir: ../.git/modules/x > x/.git; ",
    "deep among dependencies": MAKE
    + MONITOR
    + "mkdir -p node_modules/a/b; cp -r x node_modules/a/b/x; ",
    "in a folder that looks like a repository": MAKE
    + MONITOR
    + "mkdir -p bare/objects; echo ref: refs/heads/main > bare/HEAD; cp -r x bare/objects/x; ",
    "a name that ends with a blank": MAKE
    + MONITOR
    + "mv x/.git '.git/logs/data '; printf 'gitdir: ../.git/logs/data ' > x/.git; ",
    "a name of two lines": MAKE
    + MONITOR
    + "mv x/.git \".git/logs/data$(printf '\\nmore')\";"
    + " printf 'gitdir: ../.git/logs/data\\nmore' > x/.git; ",
    "settings behind a second line": MAKE
    + f"P=.git/objects/evil; {LAID_OUT}; git worktree add -q tree -b tree;"
    + " mkdir \".git/worktrees/..$(printf '\\nmore')\";"
    + " printf '../..\\nmore/../../objects/evil' > .git/worktrees/tree/commondir; ",
    "a link into the repository": MAKE + f"P=.git/evil; {LAID_OUT}; ln -s .git/evil sub; ",
    "a link to a part of one among objects": MAKE
    + f"P=.git/objects/evil; {LAID_OUT}; ln -s .git/objects/evil/refs sub; ",
    "settings that cannot be read": MAKE + MONITOR + "chmod 0 x/.git/config; ",
    "a folder that cannot be written to": MAKE + MONITOR + "chmod 555 x/.git; ",
}


@pytest.mark.parametrize("attack", sampled(ATTACKS, keep=6))
async def test_a_new_repository_that_executes_something_is_disabled(
    home: Home, root: Path, attack: str
) -> None:
    (answer,), shown = await run_all(home, root, ATTACKS[attack] + LINK)
    assert answer["exit_code"] == 0, answer
    look_at(root)
    assert not (root / "executed").exists()
    assert answer["disabled_repositories"], answer
    assert any(text.startswith("repository disabled: ") for text in shown)


@pytest.mark.parametrize("attack", sampled(ATTACKS, keep=1))
async def test_it_is_executed_where_nothing_is_disabled(root: Path, attack: str) -> None:
    script = f"cd {root}; {ATTACKS[attack]}{LINK}"
    await asyncio.to_thread(subprocess.run, ["sh", "-c", script], check=True)
    look_at(root)
    assert (root / "executed").exists()


@pytest.mark.parametrize(
    "config", sampled([CONFIG, ON], keep=1), ids=sampled(["off", "outside"], keep=1)
)
async def test_after_a_command_that_was_allowed_without_a_sandbox_too(
    home: Home, root: Path, config: str
) -> None:
    more = {"outside_sandbox": True} if config == ON else {}
    (answer,), _ = await run_all(home, root, MAKE + MONITOR + LINK, config=config, **more)
    look_at(root)
    assert not (root / "executed").exists()
    assert answer["disabled_repositories"]


async def test_hooks_that_the_user_looks_for_in_every_tree_are_disabled(
    home: Home, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\nhooksPath = checks\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    script = (
        MAKE + "mkdir x/checks; cp run.sh x/checks/pre-commit; cp run.sh x/checks/tool; " + LINK
    )
    (answer,), _ = await run_all(home, root, script)
    look_at(root)
    assert not (root / "executed").exists()
    assert len(answer["disabled_repositories"]) == 1
    assert (root / "x/checks/tool").exists()


async def test_a_repository_that_was_there_is_what_it_was(home: Home, root: Path) -> None:
    git(root, "init", "-q", "x")
    git(root / "x", "commit", "-q", "--allow-empty", "-m", "one")
    before = (root / "x/.git/config").read_bytes()
    script = MONITOR + "cp run.sh x/.git/hooks/pre-commit; " + LINK
    (answer,), _ = await run_all(home, root, script)
    look_at(root)
    assert not (root / "executed").exists()
    assert (root / "x/.git/config").read_bytes() == before
    assert len(answer["disabled_repositories"]) == 2


async def test_ordinary_repositories_are_left_alone(home: Home, root: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(root), "origin")
    origin = tmp_path / "origin"
    local = "git -c protocol.file.allow=always"
    script = (
        f"git clone -q {origin} clone && git -C clone checkout -q -b topic origin/main"
        " && git -C clone remote add other ../x && git -C clone config user.email a@example.com"
        " && git -C clone config pull.rebase true && git -C clone config commit.gpgsign false"
        f" && git clone -q --bare {origin} bare.git && git worktree add -q tree -b tree"
        f" && git clone -q --separate-git-dir apart {origin} inner && git init -q empty"
        f" && mkdir sub && git init -q sub && cd sub && {local} submodule add -q {origin} m"
    )
    (answer,), shown = await run_all(home, root, script)
    assert answer["exit_code"] == 0 or "submodule" in answer["stderr"] + script, answer
    assert "disabled_repositories" not in answer, answer
    assert not [text for text in shown if "disabled" in text]
    assert not list(root.rglob("*.disabled"))


@pytest.mark.sweep
async def test_working_trees_and_clones_can_be_removed(
    home: Home, root: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "-q", str(root), "origin")
    git(root, "worktree", "add", "-q", "tree", "-b", "tree")
    git(root, "clone", "-q", str(tmp_path / "origin"), "clone")
    git(root, "clone", "-q", "--bare", str(tmp_path / "origin"), "bare.git")
    scripts = (
        "git worktree remove tree && git worktree add -q again tree && git worktree remove again",
        "rm -rf clone bare.git",
        f"git clone -q {tmp_path}/origin fresh && test -e fresh/a",
        "rm -rf fresh",
        f"git clone -q {tmp_path}/origin fresh",
        "git clean -ffdxq && git status --porcelain",
    )
    answers, _ = await run_all(home, root, *scripts)
    assert [answer["exit_code"] for answer in answers] == [0] * len(scripts), answers
    for name in ("tree", "again", "clone", "bare.git", "fresh"):
        assert not (root / name).exists()


@pytest.fixture
def nested(root: Path) -> Path:
    """A repository below the root with hooks and with settings that execute something."""
    nested = root / "x"
    git(root, "init", "-q", "x")
    hook = nested / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\n", encoding="utf-8")
    hook.chmod(0o755)
    for name in (".husky/pre-push", ".husky/_/husky.sh", "more"):
        (nested / name).parent.mkdir(parents=True, exist_ok=True)
        (nested / name).write_text("# mine\n", encoding="utf-8")
    git(nested, "add", ".")
    git(nested, "commit", "-qm", "one", "--no-verify")
    git(nested, "config", "core.hooksPath", ".husky")
    git(nested, "config", "include.path", "../more")
    git(nested, "config", "core.fsmonitor", "false")
    return nested


async def test_what_git_executed_for_another_repository_is_put_back(
    home: Home, root: Path, nested: Path
) -> None:
    names = (".git/hooks/pre-commit", ".husky/pre-push", ".husky/_/husky.sh", "more", ".git/config")
    before = [((nested / name).read_bytes(), (nested / name).stat().st_mode) for name in names]
    script = (
        f"cd x; for f in {' '.join(names)}; do rm $f; echo '[core] fsmonitor = {RUN}' > $f; done"
    )
    answers, _ = await run_all(home, root, script, "cp run.sh x/.husky/pre-commit")
    look_at(root)
    assert not (root / "executed").exists()
    after = [((nested / name).read_bytes(), (nested / name).stat().st_mode) for name in names]
    assert after == before
    assert [len(answer["disabled_repositories"]) for answer in answers] == [5, 1], answers
    assert not (nested / ".husky/pre-commit").exists()


@pytest.mark.parametrize(
    "script",
    kept(
        [
            "rm -rf x",
            pytest.param("git clean -ffdxq", marks=pytest.mark.sweep),
            "rm -rf x && git clone -q . x",
            pytest.param(
                "python3 -c 'import shutil; shutil.rmtree(\"x\")'", marks=pytest.mark.sweep
            ),
            pytest.param("mv x y && rm -rf y", marks=pytest.mark.sweep),
            "git -C x worktree add -q ../tree && git -C x worktree remove ../tree && rm -rf x",
            "cd x && git checkout -q -b more && git checkout -q -",
        ],
        "rm -rf x",
    ),
)
async def test_a_repository_with_hooks_can_be_removed(
    home: Home, root: Path, nested: Path, script: str
) -> None:
    (answer,), _ = await run_all(home, root, script)
    assert answer["exit_code"] == 0, answer
    assert "blocked_by_sandbox" not in answer
    assert "disabled_repositories" not in answer
    assert nested.exists() == ("clone" in script or "checkout" in script)
    assert not (root / "tree").exists()


async def test_git_replaces_tracked_hooks_of_another_repository(
    home: Home, root: Path, nested: Path
) -> None:
    git(nested, "checkout", "-qb", "other")
    (nested / ".husky/pre-push").write_text("# other\n", encoding="utf-8")
    (nested / ".husky/post-merge").write_text("# other\n", encoding="utf-8")
    git(nested, "add", ".")
    git(nested, "commit", "-qm", "two", "--no-verify")
    git(nested, "checkout", "-q", "-")
    config = ON + "ask_inside = false\n"
    script = "cd x && git checkout -q other"
    (answer,), _, asked = await run_asked(home, root, script, config=config)
    assert answer["exit_code"] == 0, answer
    assert "disabled_repositories" not in answer
    assert (nested / ".husky/post-merge").exists()
    assert f"Git can replace {nested}/.husky" in asked[0].metadata["sandbox"]


async def test_a_look_that_was_killed_is_made_up_for_by_the_next_start(
    home: Home, root: Path
) -> None:
    def write_script(*replies: object) -> None:
        home.write("replies.json", json.dumps(list(replies)))
        model = f'model = "scripted:{home.path}/replies.json"\n'
        home.write_config(model + '[sandbox]\nmode = "auto"\nask_inside = false\n')

    script = f"{MAKE}{MONITOR}{LINK}; touch made; sleep 60"
    call = {"name": "code.run_command", "arguments": {"argv": ["sh", "-c", script]}}
    write_script({"type": "calls", "calls": [call]}, "done")
    argv = [sys.executable, "-m", "agent_core.cli", "run", "--path", str(root), "go"]
    started = await asyncio.create_subprocess_exec(*argv, env=home.env())
    while not (root / "made").exists():
        assert started.returncode is None
        await asyncio.sleep(0.02)
    started.kill()
    await started.wait()
    assert "fsmonitor" in (root / "x/.git/config").read_text(encoding="utf-8")
    write_script("done")
    again = await asyncio.create_subprocess_exec(
        *argv, env=home.env(), stderr=asyncio.subprocess.PIPE
    )
    _, said = await again.communicate()
    assert again.returncode == 0
    look_at(root)
    assert not (root / "executed").exists()
    assert "x/.git/config was moved to" in said.decode()
    assert not (home.path / "unfinished").exists()


def test_what_one_of_two_programs_has_made_was_not_there_for_the_other(root: Path) -> None:
    watch = RepositoryWatch([root], home=None)
    first = watch.begin()
    git(root, "init", "-q", "x")
    git(root / "x", "config", "core.fsmonitor", "evil")
    second = watch.begin()
    assert len(watch.end(first, restores=True)) == 1
    (root / "x/.git/config.disabled").rename(root / "x/.git/config")
    assert len(watch.end(second, restores=True)) == 1
    assert not (root / "x/.git/config").exists()
    (root / "x/.git/config.disabled").rename(root / "x/.git/config")  # the user's choice
    assert watch.end(watch.begin(), restores=True) == []


def test_the_end_of_a_confined_program_puts_back_what_an_allowed_one_has_set(root: Path) -> None:
    watch = RepositoryWatch([root], home=None)
    before = (root / ".git/config").read_bytes()
    confined, allowed = watch.begin(), watch.begin()
    git(root, "config", "core.sshCommand", "mine")
    assert watch.end(allowed, restores=False) == []
    assert git(root, "config", "core.sshCommand") == "mine\n"
    (text,) = watch.end(confined, restores=True)
    assert "its former content was put back" in text
    assert (root / ".git/config").read_bytes() == before


@pytest.mark.sweep
def test_a_large_tree_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(500):
        folder = tmp_path / f"{number % 50}" / f"{number}"
        folder.mkdir(parents=True)
        for name in range(20):
            (folder / f"{name}").touch()
    watch = RepositoryWatch([tmp_path], home=None)
    watch.end(watch.begin(), restores=True)
    time.sleep(2.1)  # until the times of the folders tell them from later ones
    known = watch.begin()
    read: list[str] = []
    scandir = os.scandir

    def count(path: str) -> object:
        read.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    (tmp_path / "7/7/.git").mkdir()
    (tmp_path / "7/7/.git/config").write_text("[core]\nfsmonitor = x\n", encoding="utf-8")
    (disabled,) = watch.end(known, restores=True)
    assert disabled.startswith(f"{tmp_path}/7/7/.git/config was moved to ")
    assert read == [f"{tmp_path}/7/7"]

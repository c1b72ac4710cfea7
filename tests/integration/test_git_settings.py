"""Git writes its settings in the sandbox, and nothing that executes something gets into them."""

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_core.process.confinement import probe
from confined_work import AUTHOR, ON, git, run_all, start
from isolation import Home
from sweeps import sampled

pytestmark = pytest.mark.skipif(
    not (probe().landlock and probe().seccomp and probe().namespaces),
    reason="the kernel has no Landlock, no seccomp or no user namespaces",
)

LOCAL = "git -c protocol.file.allow=always"


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a clone and its origin, which tests copy."""
    folder = tmp_path_factory.mktemp("cloned")
    origin = folder / "origin"
    git(folder, "init", "-q", "-b", "main", "origin")
    (origin / "a").write_text("a\n", encoding="utf-8")
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "one")
    git(origin, "branch", "other")
    git(folder, "clone", "-q", str(origin), "clone")
    for sample in origin.rglob("*.sample"):
        sample.unlink()
    return folder


@pytest.fixture
def clone(cloned: Path, project: Path, tmp_path: Path) -> Path:
    """A clone whose origin has the branches `main` and `other`."""
    project.rmdir()
    start(["cp", "-a", str(cloned / "clone"), str(project)])
    start(["cp", "-a", str(cloned / "origin"), str(tmp_path)])
    settings = project / ".git/config"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace(str(cloned), str(tmp_path)), encoding="utf-8")
    return project


async def appears(file: Path) -> None:
    """Wait until a command has made a file."""
    while not file.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)


def setting(project: Path, name: str) -> str:
    return git(project, "config", "--local", "--default", "", name).strip()


WRITTEN = {
    "switch": ("git switch -q other", "branch.other.remote", "origin"),
    "rename": ("git branch -m new", "branch.new.remote", "origin"),
    "remote": ("git remote add more ../more", "remote.more.url", "../more"),
    "remote renamed": ("git remote rename origin up", "branch.main.remote", "up"),
    "config": ("git config pull.rebase true", "pull.rebase", "true"),
    "quoted": ("git config user.name 'a;b \"c\" #d'", "user.name", 'a;b "c" #d'),
    "pipe": ("git switch -q other 2>&1 | cat && ls", "branch.other.remote", "origin"),
    "with others": (
        "make=1; sh -c 'git switch -q other' && echo x > b",
        "branch.other.merge",
        "refs",
    ),
    "python": (
        "python3 -c \"import subprocess; subprocess.run(['git', 'switch', '-q', 'other'])\"",
        "branch.other.remote",
        "origin",
    ),
    "init": ("git init -q", "core.bare", "false"),
    "sparse": ("git sparse-checkout set b", "extensions.worktreeconfig", "true"),
    "worktree": ("git worktree add -q -b x tree origin/other", "branch.x.remote", "origin"),
    "submodule": (f"{LOCAL} submodule add -q ../origin m", "submodule.m.url", "/origin"),
}
ALSO_WRITTEN = {
    "checkout": ("git checkout -q other", "branch.other.merge", "refs/heads/other"),
    "checkout -b": ("git checkout -q -b x origin/other", "branch.x.merge", "refs/heads/other"),
    "upstream": ("git branch -u origin/other", "branch.main.merge", "refs/heads/other"),
    "no upstream": ("git branch --unset-upstream", "branch.main.merge", ""),
    "copy": ("git branch -c new", "branch.new.remote", "origin"),
    "remote gone": ("git remote remove origin", "remote.origin.url", ""),
    "address": ("git remote set-url origin https://example.org/a", "remote.origin.url", "https://"),
    "core": ("git config core.autocrlf input", "core.autocrlf", "input"),
    "user": ("git config user.email 'a b@example.org'", "user.email", "a b@example.org"),
    "fetch": ("git fetch -q --set-upstream origin other", "branch.main.merge", "refs/heads/other"),
    "pull": ("git pull -q --set-upstream origin other", "branch.main.merge", "refs/heads/other"),
    "deleted": ("git switch -q -c x && git branch -q -D main", "branch.main.remote", ""),
}


@pytest.mark.long
@pytest.mark.parametrize("case", sampled([*WRITTEN, *ALSO_WRITTEN], keep=2))
async def test_git_writes_settings_that_execute_nothing(home: Home, clone: Path, case: str) -> None:
    script, name, value = (WRITTEN | ALSO_WRITTEN)[case]
    (answer,), _ = await run_all(home, clone, script)
    assert answer["exit_code"] == 0, answer
    assert "blocked_by_sandbox" not in answer, answer
    assert "disabled_repositories" not in answer, answer
    found = setting(clone, name)
    assert value in found if value else not found
    assert not list((clone / ".git").glob("*.lock"))
    assert not list((clone / ".git").glob("*.disabled"))
    assert not list((clone / ".git").glob(".soong*"))
    assert not (clone / ".git/config").is_symlink()


KEYS = {  # whether a key executes something is decided in one place, which has tests of its own
    "monitor": "git config core.fsmonitor $PWD/run.sh",
    "hooks": "git config core.hooksPath hooks",
    "alias": "git config alias.x '!touch executed'",
    "pager": "git config core.pager ./run.sh",
    "editor": "git config core.editor ./run.sh",
    "sequence": "git config sequence.editor ./run.sh",
    "ssh": "git config core.sshCommand ./run.sh",
    "filter": "git config filter.x.clean ./run.sh",
    "converter": "git config diff.x.textconv ./run.sh",
    "differ": "git config diff.external ./run.sh",
    "signer": "git config gpg.program ./run.sh",
    "include": "git config include.path ../more",
    "include if": "git config 'includeIf.gitdir:**.path' ../more",
    "instead": "git config url.ext::x.insteadOf https://",
    "upload pack": "git config remote.origin.uploadpack ./run.sh",
    "receive pack": "git config remote.origin.receivepack ./run.sh",
    "protocol": "git config protocol.ext.allow always",
    "credentials": "git config credential.helper ./run.sh",
    "web credentials": "git config credential.https://x.helper '!./run.sh'",
    "helper": "git remote add x 'ext::sh -c x'",
    "helper of a branch": "git config branch.main.remote 'ext::sh -c x'",
    "vcs": "git config remote.origin.vcs x",
    "objects fetched on demand": "git config remote.origin.promisor true",
    "what Git refuses on other systems": "git config core.protectNTFS false",
    "merge driver": "git config merge.x.driver ./run.sh",
    "update": "git config submodule.m.update '!./run.sh'",
}
FORMS = {
    "worktree": "git config core.worktree /",
    "hooks of a hidden repository": "git init -q --bare .git/evil;"
    " git config remote.origin.pushurl .git/evil",
    "one line": "echo '[core] fsmonitor = ./run.sh' >> .git/config",
    "continued": "printf '[core]\\n eol = a\\\\\\nb\\n fsmonitor = ./run.sh\\n' >> .git/config",
    "quoted": "printf '[core]\\n\\tfsmonitor = \"./run.sh\"\\n' >> .git/config",
    "carriage return": "printf '[core]\\r\\n\\tfsmonitor = ./run.sh\\r\\n' >> .git/config",
    "unreadable": "printf '[core\\nx' >> .git/config",
    "large": "head -c 2000000 /dev/zero >> .git/config",
}


@pytest.mark.long
@pytest.mark.parametrize("case", sampled([*KEYS, *FORMS], keep=3))
async def test_settings_that_execute_something_are_left_out(
    home: Home, clone: Path, case: str
) -> None:
    (clone / "more").write_text("[core]\n\tfsmonitor = ./run.sh\n", encoding="utf-8")
    before = (clone / ".git/config").read_bytes()
    (answer,), shown = await run_all(
        home, clone, f"git config pull.ff only; {(KEYS | FORMS)[case]}"
    )
    (text,) = answer["disabled_repositories"]
    assert str(clone / ".git/config") in text
    assert any(each.endswith(text) for each in shown)
    after = (clone / ".git/config").read_bytes()
    is_whole = after == before
    if not is_whole:  # the harmless setting of the same command
        assert setting(clone, "pull.ff") == "only"
        git(clone, "config", "--unset", "pull.ff")
        settings = git(clone, "config", "--local", "--list")
        (clone / ".git/config").write_bytes(before)
        assert settings == git(clone, "config", "--local", "--list")


async def test_settings_that_cannot_be_written_are_kept_aside(home: Home, clone: Path) -> None:
    before = (clone / ".git/config").read_bytes()
    script = "git switch -q -c x origin/other; touch .git/config.lock"
    (answer,), _ = await run_all(home, clone, script)
    (text,) = answer["disabled_repositories"]
    assert "it cannot be written: File exists" in text
    assert (clone / ".git/config").read_bytes() == before
    aside = Path(text.partition(" ")[0])
    assert '[branch "x"]' in aside.read_text(encoding="utf-8")


async def test_nobody_else_sees_settings_before_they_are_judged(home: Home, clone: Path) -> None:
    before = (clone / ".git/config").read_bytes()
    seen: list[bytes] = []

    async def look() -> None:
        await appears(clone / "made")
        seen.append((clone / ".git/config").read_bytes())
        (clone / "looked").touch()

    looking = asyncio.create_task(look())
    script = (
        "git config core.fsmonitor ./run.sh; git config pull.ff only; touch made;"
        " while ! test -e looked; do sleep 0.02; done; git config core.fsmonitor"
    )
    (answer,), _ = await run_all(home, clone, script)
    await looking
    assert seen == [before]
    assert answer["stdout"] == "./run.sh\n"
    assert setting(clone, "pull.ff") == "only"
    assert not setting(clone, "core.fsmonitor")
    (aside,) = (clone / ".git").glob("config.disabled")
    assert "fsmonitor" in aside.read_text(encoding="utf-8")


@pytest.mark.sweep
async def test_settings_that_are_there_stay_and_can_be_removed(home: Home, clone: Path) -> None:
    git(clone, "config", "core.hooksPath", ".husky")
    git(clone, "config", "alias.st", "!git status")
    script = "git config --unset alias.st; git switch -q other"
    (answer,), _ = await run_all(home, clone, script)
    assert answer["exit_code"] == 0, answer
    assert "disabled_repositories" not in answer
    assert setting(clone, "core.hooksPath") == ".husky"
    assert not setting(clone, "alias.st")
    assert setting(clone, "branch.other.remote") == "origin"


async def test_what_the_user_sets_meanwhile_is_kept(home: Home, clone: Path) -> None:
    async def change() -> None:
        await appears(clone / "made")
        git(clone, "config", "remote.mine.url", "../mine")
        (clone / "changed").touch()

    changing = asyncio.create_task(change())
    script = (
        "git switch -q other; touch made; while ! test -e changed; do sleep 0.02; done;"
        " git remote add x ../x"
    )
    (answer,), _ = await run_all(home, clone, script)
    await changing
    assert answer["exit_code"] == 0, answer
    assert setting(clone, "remote.mine.url") == "../mine"
    assert setting(clone, "branch.other.remote") == "origin"


@pytest.mark.long
async def test_settings_of_a_further_working_tree_are_written(home: Home, clone: Path) -> None:
    (clone / "b").mkdir()
    (clone / "b/c").write_text("c\n", encoding="utf-8")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "two")
    answers, _ = await run_all(
        home,
        clone,
        "git sparse-checkout set b",
        "git sparse-checkout set --no-cone c",
        "git worktree add -q tree && git -C tree sparse-checkout set b",
        "git config --worktree core.fsmonitor ./run.sh; git config --worktree pull.ff only",
        "git -C tree config --worktree core.fsmonitor ./run.sh",
        "git sparse-checkout disable && test -e a",
    )
    assert [each["exit_code"] for each in answers] == [0] * len(answers), answers
    assert [bool(each.get("disabled_repositories")) for each in answers] == [
        *(False, False, False),
        *(True, True, False),
    ], answers
    assert git(clone, "config", "--worktree", "pull.ff").strip() == "only"
    assert not setting(clone, "core.fsmonitor")
    for folder in (clone, clone / "tree"):
        assert "fsmonitor" not in git(folder, "config", "--list")


COPYING = {
    "only copying": "cp -a . $TMPDIR/copy && cp -a $TMPDIR/copy copy",
    "cp": "make=1; mkdir copy && cp -a .git copy/",
    "cp of one system": "true; mkdir copy && cp -ax .git copy/",
    "tar": "mkdir copy && tar cf copy/t.tar .git && tar xf copy/t.tar -C copy",
    "tar of one system": "mkdir copy && tar c --one-file-system .git | tar x -C copy",
    "zip": "mkdir copy && zip -qry copy/t.zip .git && python3 -m zipfile -e copy/t.zip copy",
    "python": "python3 -c \"import shutil; shutil.copytree('.git', 'copy/.git', symlinks=True)\"",
    "script": "printf 'mkdir copy; cp -a .git copy' > run.sh; sh run.sh",
    "link": "mkdir copy && cp -a .git copy && test ! -L .git/config && test -f .git/config",
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", sampled(COPYING, keep=1))
async def test_a_copy_of_a_repository_has_its_settings(home: Home, clone: Path, case: str) -> None:
    (answer,), _ = await run_all(home, clone, f"git config pull.ff only; {COPYING[case]}")
    assert answer["exit_code"] == 0, answer
    copy = clone / "copy/.git/config"
    assert not copy.is_symlink()
    assert copy.read_bytes() == (clone / ".git/config").read_bytes()
    assert setting(clone, "pull.ff") == "only"


@pytest.mark.sweep
async def test_programs_that_only_copy_see_the_real_file(home: Home, clone: Path) -> None:
    (answer,), _ = await run_all(home, clone, COPYING["only copying"])
    assert answer["exit_code"] == 0, answer
    assert (clone / "copy/.git/config").read_bytes() == (clone / ".git/config").read_bytes()


RENAMING = {
    "move": "cp .git/config .git/x; echo '[pull]ff=only' >> .git/x; mv .git/x .git/config",
    "sed": "git config pull.ff true; sed -i s/true/only/ .git/config",
    "from below": "cd .git/refs; cp ../config ../x; echo '[pull]ff=only' >> ../x;"
    " mv ../x ../config",
    "absolute": 'cp .git/config .git/x; echo "[pull]ff=only" >> .git/x; mv "$PWD/.git/x"'
    ' "$PWD/.git/config"',
    "calls": "python3 -c \"import os; t = open('.git/config').read() + '[pull]\\nff = only\\n';"
    " d = os.open('.git', 0); open('.git/x', 'w').write(t);"
    " os.rename('x', 'config', src_dir_fd=d, dst_dir_fd=d)\"",
    "many": "for i in $(seq 60); do git config user.name n$i; done; git config pull.ff only;"
    ' test "$(git config user.name)" = n60',
    "at once": "for i in 1 2 3 4 5 6 7 8; do (for j in $(seq 9); do until git config a$i.x b;"
    " do :; done; git config --list > /dev/null || touch broken; done 2> /dev/null) & done; wait;"
    " test ! -e broken && for i in 1 2 3 4 5 6 7 8; do git config --unset a$i.x || exit 1; done;"
    " git config pull.ff only",
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", sampled(RENAMING, keep=1))
async def test_programs_replace_the_settings_as_git_does(
    home: Home, clone: Path, case: str
) -> None:
    (answer,), _ = await run_all(home, clone, RENAMING[case])
    assert answer["exit_code"] == 0, answer
    assert "disabled_repositories" not in answer, answer
    assert setting(clone, "pull.ff") == "only"
    assert not list((clone / ".git").glob("x")) + list((clone / ".git").glob("*.lock"))


REFUSED = {
    "link": "ln -s ../more .git/x; mv .git/x .git/config",
    "pipe": "mkfifo .git/x; mv .git/x .git/config",
    "folder": "mkdir .git/x; mv -T .git/x .git/config",
    "removed": "rm -f .git/config",
    "moved": "mv .git/config .git/x",
    "moved into it": "cp .git/config x; mv x .git/config",
    "exchanged": "touch .git/x; python3 -c \"import ctypes, os; d = os.open('.git', 0);"
    " e = ctypes.CDLL(None).renameat2(d, b'x', d, b'config', 2); raise SystemExit(e)\"",
}


@pytest.mark.parametrize("case", sampled(REFUSED, keep=1))
async def test_only_a_file_beside_the_settings_replaces_them(
    home: Home, clone: Path, case: str
) -> None:
    before = (clone / ".git/config").read_bytes()
    (answer,), _ = await run_all(home, clone, f"true; {REFUSED[case]}")
    assert answer["exit_code"] != 0, answer
    assert (clone / ".git/config").read_bytes() == before
    assert not (clone / ".git/config").is_symlink()


async def test_copies_cannot_be_reached_by_other_commands(
    home: Home, clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that all programs share for temporary files is writable here."""
    shared = tmp_path / "shared"  # that of the machine may hold any number of files
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))

    async def look() -> list[Path]:
        await appears(clone / "made")
        copies = [
            found
            for folder in (shared, clone / ".git")
            for found in folder.rglob("*")
            if found.is_file() and b"only-in-the-copy" in found.read_bytes()
        ]
        (clone / "looked").touch()
        return copies

    looking = asyncio.create_task(look())
    script = (
        "git config user.name only-in-the-copy; mv $(mktemp) made;"
        " while ! test -e looked; do sleep 0.02; done"
    )
    config = "[tools]\nallow_tmp_write = true\n" + ON
    (answer,), _ = await run_all(home, clone, script, config=config)
    assert answer["exit_code"] == 0, answer
    assert await looking == []
    assert setting(clone, "user.name") == "only-in-the-copy"
    assert not list(home.path.rglob("*.tmp"))


async def test_a_killed_command_leaves_the_settings_as_they_were(home: Home, clone: Path) -> None:
    before = (clone / ".git/config").read_bytes()
    script = "git config core.fsmonitor ./run.sh; git config pull.ff only; touch made; sleep 60"
    call = {"name": "code.run_command", "arguments": {"argv": ["sh", "-c", script]}}
    replies = [{"type": "calls", "calls": [call]}, "done"]
    home.write("replies.json", json.dumps(replies))
    model = f'model = "scripted:{home.path}/replies.json"\n'
    home.write_config(model + '[sandbox]\nmode = "auto"\nask_inside = false\n')
    argv = [sys.executable, "-m", "agent_core.cli", "run", "--path", str(clone), "go"]
    started = await asyncio.create_subprocess_exec(*argv, env=home.env())
    await appears(clone / "made")
    started.kill()
    await started.wait()
    assert (clone / ".git/config").read_bytes() == before
    assert not list((clone / ".git").glob("config?*"))


@pytest.mark.parametrize(
    "script",
    sampled(
        [
            f"git init -q && git add -A && git {' '.join(AUTHOR)} status",
            "git init -q -b trunk && git add -A && git commit --allow-empty -m one; git status",
            "git init -q .",
        ],
        keep=1,
    ),
)
async def test_a_project_becomes_a_repository(home: Home, project: Path, script: str) -> None:
    (project / "a").write_text("a", encoding="utf-8")
    (answer,), _ = await run_all(home, project, script)
    is_only_git = "-c" not in script
    assert (project / ".git/HEAD").exists() == is_only_git, answer
    assert "disabled_repositories" not in answer


@pytest.mark.parametrize(
    "script",
    sampled(
        [
            "git init -q --template=hooks",
            "git init -q; git config core.fsmonitor x",
            "git init -q; echo x > .git/config",
            "GIT_TEMPLATE_DIR=hooks git init -q",
        ],
        keep=1,
    ),
)
async def test_no_hooks_and_settings_come_with_it(home: Home, project: Path, script: str) -> None:
    (project / "hooks").mkdir()
    (answer,), _ = await run_all(home, project, script)
    assert not (project / ".git/config").exists(), answer


HALVES = {
    "switch": "git switch other",
    "checkout": "git checkout other",
    "new branch": "git checkout -b x origin/other",
    "branch": "git branch x origin/other",
    "rename": "git branch -m new",
    "upstream": "git branch --set-upstream-to=origin/other",
    "push": "git push -u origin main",
    "remote": "git remote add x ../x",
    "config": "git config pull.rebase true",
    "unset": "git config --unset remote.origin.url",
    "submodule": f"{LOCAL} submodule add ../origin m",
    "plain submodule": "git submodule add ../origin m",
    "sparse": "git sparse-checkout set b",
    "with others": "git switch other && make",
    "worktree": "git worktree add -b x tree origin/other",
    "lfs": "git lfs install --local",
}


@pytest.mark.parametrize("case", sampled(HALVES, keep=1))
async def test_what_git_would_do_by_halves_is_refused(home: Home, clone: Path, case: str) -> None:
    before = git(clone, "for-each-ref"), (clone / ".git/config").read_bytes()
    config = ON + 'protect = [".git/config", ".git/hooks"]\n'
    (answer,), _ = await run_all(home, clone, HALVES[case], config=config)
    assert answer["error"] is not None, answer
    assert answer["error"].code == "permission_denied"
    assert str(clone / ".git/") in answer["error"].message
    assert "outside_sandbox" in answer["error"].message
    assert (git(clone, "for-each-ref"), (clone / ".git/config").read_bytes()) == before
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "script",
    sampled(
        [
            "git switch -c new",
            "git checkout -q -b new && git switch -q main",
            "git config user.name || git config --list",
            "git branch more && git branch -a && git remote -v && git submodule status",
            "git checkout -- a && git checkout main",
            "git push -q || true",
        ],
        keep=1,
    ),
)
async def test_what_writes_no_settings_is_not_refused(home: Home, clone: Path, script: str) -> None:
    config = ON + 'protect = [".git/config", ".git/hooks"]\n'
    (answer,), _ = await run_all(home, clone, script, config=config)
    assert answer["error"] is None
    assert answer["exit_code"] == 0, answer


async def test_filters_without_their_hooks_are_refused_in_every_sandbox(
    home: Home, clone: Path
) -> None:
    (answer,), _ = await run_all(home, clone, "git lfs install --local")
    assert answer["error"].code == "permission_denied"
    assert f"{clone}/.git/hooks" in answer["error"].message


async def test_without_a_listener_nothing_is_done_by_halves(
    home: Home, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(probe(), renames=False)
    for module in ("sandbox", "confinement"):
        monkeypatch.setattr(f"agent_core.process.{module}.probe", lambda: found)
    before = (clone / ".git/config").read_bytes()
    scripts = ("git switch other", "true; echo x >> .git/config", "true; cp -a .git copy")
    answers, _ = await run_all(home, clone, *scripts)
    assert answers[0]["error"].code == "permission_denied"
    assert answers[1]["blocked_by_sandbox"] == [f"{clone}/.git/config"]
    assert (clone / "copy/config").read_bytes() == (clone / ".git/config").read_bytes() == before


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_with_bubblewrap_nothing_is_done_by_halves(
    home: Home, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(probe(), namespaces=False, bubblewrap=shutil.which("bwrap"))
    for module in ("sandbox", "confinement"):
        monkeypatch.setattr(f"agent_core.process.{module}.probe", lambda: found)
    scripts = ("git switch other", "git switch -c more", "echo x >> .git/config")
    before = (clone / ".git/config").read_bytes()
    answers, _ = await run_all(home, clone, *scripts)
    assert answers[0]["error"].code == "permission_denied"
    assert answers[1]["exit_code"] == 0, answers
    assert answers[2]["blocked_by_sandbox"] == [f"{clone}/.git/config"]
    assert (clone / ".git/config").read_bytes() == before

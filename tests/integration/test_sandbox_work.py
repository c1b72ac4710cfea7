"""The sandbox does not damage work: real Git and real programs, confined, through whole runs."""

import importlib.util
import os
import pwd
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_core.process.confinement import probe
from confined_work import AUTHOR, ON, git, run_all, run_asked
from isolation import Home
from sweeps import kept, sampled

FROM_FILES = ("-c", "protocol.file.allow=always")
pytestmark = pytest.mark.skipif(
    not (probe().landlock and probe().seccomp and probe().namespaces),
    reason="the kernel has no Landlock, no seccomp or no user namespaces",
)


@pytest.fixture
def branches(project: Path) -> Path:
    """A repository with a branch `feature` that changes a template and a certificate."""
    git(project, "init", "-q", "-b", "main")
    for name in (".env.example", "cert.pem", "test/key.key"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("main\n", encoding="utf-8")
    git(project, "add", ".")
    git(project, "commit", "-qm", "one")
    git(project, "checkout", "-qb", "feature")
    for name in (".env.example", "cert.pem", "test/key.key"):
        (project / name).write_text("feature\n", encoding="utf-8")
    git(project, "commit", "-qam", "two")
    git(project, "checkout", "-q", "main")
    return project


async def test_a_branch_switch_brings_every_file_of_the_branch(home: Home, branches: Path) -> None:
    (answer,), _ = await run_all(home, branches, "git checkout feature && git status --porcelain")
    assert answer["exit_code"] == 0, answer
    assert answer["stdout"] == ""
    for name in (".env.example", "cert.pem", "test/key.key"):
        assert (branches / name).read_text(encoding="utf-8") == "feature\n"


async def test_changes_are_stashed_and_come_back(home: Home, branches: Path) -> None:
    (branches / "cert.pem").write_text("mine\n", encoding="utf-8")
    (branches / ".env").write_text("untracked\n", encoding="utf-8")
    author = " ".join(AUTHOR)
    script = f"git {author} stash -u && git status --porcelain && cat cert.pem && git stash pop -q"
    (answer,), _ = await run_all(home, branches, script)
    assert answer["exit_code"] == 0, answer
    assert answer["stdout"].endswith("main\n")
    assert (branches / "cert.pem").read_text(encoding="utf-8") == "mine\n"
    assert (branches / ".env").read_text(encoding="utf-8") == "untracked\n"


@pytest.mark.sweep
async def test_untracked_files_are_cleaned_away(home: Home, branches: Path) -> None:
    for name in (".env", "build/server.key", ".env.local"):
        (branches / name).parent.mkdir(exist_ok=True)
        (branches / name).write_text("x\n", encoding="utf-8")
    (answer,), _ = await run_all(home, branches, "git clean -fdxq && git status --porcelain")
    assert answer["exit_code"] == 0, answer
    assert not (branches / "build").exists()
    assert not (branches / ".env").exists()


@pytest.mark.long
async def test_git_replaces_what_is_protected_and_tracked(home: Home, branches: Path) -> None:
    git(branches, "config", "core.hooksPath", ".husky")
    (branches / ".husky").mkdir()
    (branches / ".husky/pre-push").write_text("main\n", encoding="utf-8")
    git(branches, "add", ".")
    git(branches, "commit", "-qm", "hooks")
    git(branches, "checkout", "-q", "feature")
    (branches / "own.pem").write_text("untracked\n", encoding="utf-8")
    settings = '"*.pem", ".git/hooks", ".git/config"'
    config = ON + f"ask_inside = false\nprotect = [{settings}]\n"
    scripts = (
        "git checkout main && git checkout feature && git checkout main && git status --porcelain",
        "echo x > cert.pem; echo x > .husky/pre-push; echo x > own.pem; rm -f .git/config; true",
    )
    answers, _, asked = await run_asked(home, branches, *scripts, config=config)
    assert answers[0]["exit_code"] == 0, answers
    assert (branches / ".husky/pre-push").read_text(encoding="utf-8") == "main\n"
    assert (branches / "cert.pem").read_text(encoding="utf-8") == "main\n"
    assert (branches / "own.pem").read_text(encoding="utf-8") == "untracked\n"
    assert len(answers[1]["blocked_by_sandbox"]) == 4
    assert f"Git can replace {branches}/cert.pem" in asked[0].metadata["sandbox"]


@pytest.fixture
def hooked(branches: Path) -> Path:
    """The project with a hook that Git tracks, and a subfolder."""
    git(branches, "config", "core.hooksPath", ".husky")
    for name in (".husky/pre-push", "sub/a.txt"):
        (branches / name).parent.mkdir()
        (branches / name).write_text("main\n", encoding="utf-8")
    git(branches, "add", ".")
    git(branches, "commit", "-qm", "three")
    return branches


async def test_a_subfolder_gets_no_half_of_a_branch(home: Home, hooked: Path) -> None:
    refused = ("git switch feature", "git --no-pager stash -q", "git -c x.y=1 -C . merge feature")
    (hooked / "sub/a.txt").write_text("mine\n", encoding="utf-8")
    allowed = ("git switch -c topic", f"git {' '.join(AUTHOR)} commit -qam four", "git stash list")
    config = ON + "ask_inside = false\n"
    answers, _ = await run_all(home, hooked / "sub", *refused, *allowed, config=config)
    assert all("by halves" in each["error"].message for each in answers[:3]), answers
    assert all("outside_sandbox" in each["error"].message for each in answers[:3]), answers
    assert [each["exit_code"] for each in answers[3:]] == [0, 0, 0], answers
    assert (hooked / "cert.pem").read_text(encoding="utf-8") == "main\n"
    assert git(hooked, "status", "--porcelain", "--branch") == "## topic\n"


async def test_a_script_gets_no_half_of_a_branch(home: Home, hooked: Path) -> None:
    scripts = ("git switch feature && ls; python3 -c 1", "git switch feature")
    answers, _ = await run_all(home, hooked, *scripts, config=ON)
    assert ".husky, which other programs may not write" in answers[0]["error"].message
    assert "run it as a separate command" in answers[0]["error"].message
    assert answers[1]["exit_code"] == 0, answers
    assert (hooked / "cert.pem").read_text(encoding="utf-8") == "feature\n"


@pytest.mark.long
@pytest.mark.parametrize(
    "script",
    [
        "git rebase -x 'echo x > cert.pem' HEAD",
        pytest.param("git rebase --exe='echo x > cert.pem' HEAD", marks=pytest.mark.sweep),
        pytest.param(
            "git pull --upl='echo x > cert.pem; git-upload-pack' . feature", marks=pytest.mark.sweep
        ),
        "git -c core.pager=x checkout feature; echo x > cert.pem",
        pytest.param("git checkout feature; git apply patch", marks=pytest.mark.sweep),
        pytest.param("./git checkout feature", marks=pytest.mark.sweep),
    ],
)
async def test_nothing_else_replaces_what_is_protected_and_tracked(
    home: Home, branches: Path, script: str
) -> None:
    (branches / "git").write_text("#!/bin/sh\necho x > cert.pem\n", encoding="utf-8")
    (branches / "git").chmod(0o755)
    (branches / "patch").write_text(git(branches, "diff", "main", "feature"), encoding="utf-8")
    await run_all(home, branches, script, config=ON + 'protect = ["*.pem"]\n')
    assert (branches / "cert.pem").read_text(encoding="utf-8") == "main\n"


COMMIT = (
    f"echo new > new && git add new && git {' '.join(AUTHOR)} commit -qm made"
    f" && git stash list && git branch more && git branch -q -D more && git status --porcelain"
)


async def test_a_linked_working_tree_is_committed_to(
    home: Home, project: Path, tmp_path: Path
) -> None:
    main = tmp_path / "main"
    git(tmp_path, "init", "-q", "main")
    git(main, "commit", "-qm", "one", "--allow-empty")
    project.rmdir()
    git(main, "worktree", "add", "-q", str(project), "-b", "tree")
    (main / "file").write_text("old", encoding="utf-8")
    settings = (main / ".git/config").read_bytes()
    attack = (
        f"echo x > {main}/.git/hooks/pre-commit; echo x >> {main}/.git/config;"
        f" echo x > {main}/file; echo gitdir: x > .git; git config core.pager x;"
        f" rm -rf {main}/.git/hooks; true"
    )
    answers, _ = await run_all(home, project, COMMIT, attack)
    assert answers[0]["exit_code"] == 0, answers
    assert git(main, "log", "--format=%s", "tree").split() == ["made", "one"]
    assert (main / ".git/config").read_bytes() == settings
    assert (main / ".git/hooks").is_dir()
    assert not (main / ".git/hooks/pre-commit").exists()
    assert (main / "file").read_text(encoding="utf-8") == "old"
    assert git(project, "status", "--porcelain") == ""
    assert f"{main}/.git/hooks/pre-commit" in answers[1]["blocked_by_sandbox"]


@pytest.mark.parametrize(
    "is_tree", kept([False, True], False), ids=kept(["repository", "working tree"], "repository")
)
async def test_a_folder_of_a_repository_is_committed_to(
    home: Home, project: Path, is_tree: bool
) -> None:
    top = main = project / "top"
    git(project, "init", "-q", "top")
    git(main, "commit", "-qm", "one", "--allow-empty")
    if is_tree:
        top = project / "tree"
        git(main, "worktree", "add", "-q", str(top), "-b", "tree")
    inner = top / "deep" / "inner"
    inner.mkdir(parents=True)
    attack = f"echo x > ../beside; echo x > {main}/.git/hooks/pre-commit; true"
    answers, _ = await run_all(home, inner, COMMIT, attack)
    assert answers[0]["exit_code"] == 0, answers
    assert git(top, "log", "--format=%s", "--name-only").split() == [
        "made",
        "deep/inner/new",
        "one",
    ]
    assert not (top / "deep/beside").exists()
    assert not (main / ".git/hooks/pre-commit").exists()


@pytest.mark.long
async def test_a_submodule_is_committed_to(home: Home, project: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "origin")
    git(tmp_path / "origin", "commit", "-qm", "one", "--allow-empty")
    git(project, "init", "-q")
    git(project, *FROM_FILES, "submodule", "add", "-q", str(tmp_path / "origin"), "m")
    attack = "echo x > ../.git/modules/m/hooks/pre-commit; echo x > ../.git/HEAD; true"
    answers, _ = await run_all(home, project / "m", COMMIT, attack)
    assert answers[0]["exit_code"] == 0, answers
    assert git(project / "m", "log", "--format=%s").split() == ["made", "one"]
    assert not (project / ".git/modules/m/hooks/pre-commit").exists()
    assert (project / ".git/HEAD").read_text(encoding="utf-8") != "x\n"


@pytest.fixture
def modules(project: Path, tmp_path: Path) -> Path:
    """A project with a submodule `m`, whose origin has one commit more, and a branch `feature`."""
    origin = tmp_path / "origin"
    git(tmp_path, "init", "-q", "-b", "main", "origin")
    (origin / "a").write_text("one\n", encoding="utf-8")
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "one")
    git(project, "init", "-q", "-b", "main")
    git(project, *FROM_FILES, "submodule", "add", "-q", str(origin), "m")
    (project / "b").write_text("main\n", encoding="utf-8")
    git(project, "add", ".")
    git(project, "commit", "-qm", "one")
    git(project, "checkout", "-qb", "feature")
    (project / "b").write_text("feature\n", encoding="utf-8")
    git(project, "commit", "-qam", "two")
    git(project, "checkout", "-q", "main")
    (origin / "a").write_text("two\n", encoding="utf-8")
    git(origin, "commit", "-qam", "two")
    return project


@pytest.mark.sweep
async def test_submodules_are_updated(home: Home, modules: Path) -> None:
    answers, _ = await run_all(
        home,
        modules,
        "git -c protocol.file.allow=always submodule update --remote && cat m/a",
        "git submodule update && cat m/a",
        "git checkout --recurse-submodules feature && cat b && git status --short",
        "rm -rf m/.git m/a && git submodule update -f && cat m/a",
    )
    assert [each["exit_code"] for each in answers] == [0, 0, 0, 0], answers
    assert answers[0]["stdout"].endswith("two\n")
    assert answers[1]["stdout"].endswith("one\n")
    assert answers[2]["stdout"] == "feature\n"
    assert answers[3]["stdout"].endswith("one\n")
    assert all("disabled_repositories" not in each for each in answers)


@pytest.mark.long
async def test_settings_and_hooks_of_submodules_are_put_back(home: Home, modules: Path) -> None:
    inner = modules / ".git/modules/m"
    before = (inner / "config").read_text(encoding="utf-8")
    (modules / "evil").mkdir()
    answers, _ = await run_all(
        home,
        modules,
        "git -C m config core.fsmonitor 'touch ran; false'",
        "echo 'touch ran' > .git/modules/m/hooks/post-checkout;"
        " chmod +x .git/modules/m/hooks/post-checkout",
        "echo evil > .git/modules/m/commondir",
    )
    assert all(each["disabled_repositories"] for each in answers[:2]), answers
    assert (inner / "config").read_text(encoding="utf-8") == before
    assert not (inner / "hooks/post-checkout").exists()
    assert not (inner / "commondir").exists()
    git(modules, "status")
    assert not list(modules.rglob("ran"))


async def test_a_submodule_whose_settings_execute_something_gets_them_back(
    home: Home, modules: Path
) -> None:
    git(modules / "m", "config", "core.fsmonitor", "true")
    before = (modules / ".git/modules/m/config").read_bytes()
    answers, _ = await run_all(
        home, modules, "git -C m config core.pager x", "echo x > .git/modules/m/hooks/pre-commit"
    )
    assert all(each["disabled_repositories"] for each in answers), answers
    assert (modules / ".git/modules/m/config").read_bytes() == before
    assert not (modules / ".git/modules/m/hooks/pre-commit").exists()


async def test_a_file_that_names_somebody_elses_repository_opens_nothing(
    home: Home, project: Path, tmp_path: Path
) -> None:
    main = tmp_path / "main"
    git(tmp_path, "init", "-q", "main")
    git(main, "commit", "-qm", "one", "--allow-empty")
    git(main, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "tree")
    for named in (main / ".git", main / ".git/worktrees/tree"):
        (project / ".git").write_text(f"gitdir: {named}\n", encoding="utf-8")
        answers, _ = await run_all(home, project, f"echo x > {main}/.git/refs/heads/x")
        assert answers[-1]["exit_code"] != 0
        assert not (main / ".git/refs/heads/x").exists()


LOCAL_PACKAGE = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "certified"
version = "{version}"
"""


def write_wheel(folder: Path, version: str) -> Path:
    """Write a package that contains a certificate, as `pip` itself does."""
    wheel = folder / f"certified-{version}-py3-none-any.whl"
    info = f"certified-{version}.dist-info"
    files = {
        "certified/__init__.py": f"version = {version!r}\n",
        "certified/cacert.pem": f"{version}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: certified\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        lines = [f"{name},," for name in (*files, f"{info}/RECORD")]
        archive.writestr(f"{info}/RECORD", "\n".join(lines) + "\n")
    return wheel


def wheel_of_pip() -> Path:
    """Return the wheel that comes with Python, which unpacks faster than it installs itself."""
    wheels = sysconfig.get_config_var("WHEEL_PKG_DIR")
    places = [Path(wheels)] if wheels else []
    if found := importlib.util.find_spec("ensurepip"):
        places += [Path(each, "_bundled") for each in found.submodule_search_locations or ()]
    for wheel in (each for place in places for each in place.glob("pip-*.whl")):
        return wheel
    pytest.skip("there is no wheel of pip (Debian: apt-get install python3-venv)")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "protect",
    [
        pytest.param("", id="default", marks=pytest.mark.sweep),
        pytest.param('protect = ["*.pem"]\n', id="names"),
    ],
)
async def test_an_environment_is_upgraded_and_removed(
    home: Home, project: Path, protect: str
) -> None:
    old, new = write_wheel(project, "1"), write_wheel(project, "2")
    venv.create(project / ".venv", symlinks=True)
    (packages,) = project.glob(".venv/lib/*/site-packages")
    for wheel in (wheel_of_pip(), old):
        shutil.unpack_archive(wheel, packages, "zip")
    upgrade = f".venv/bin/python -m pip install -q --no-index -U {new.name}"
    check = '.venv/bin/python -c "import certified; print(certified.version)"'
    answers, _ = await run_all(
        home, project, f"{upgrade} && {check}", "rm -rf .venv", config=ON + protect
    )
    assert [answer["exit_code"] for answer in answers] == [0, 0], answers
    assert answers[0]["stdout"] == "2\n"
    assert not (project / ".venv").exists()


async def test_a_protected_name_is_not_meant_in_folders_of_dependencies(
    home: Home, project: Path
) -> None:
    config = ON + 'protect = ["*.pem"]\n'
    inside = ("node_modules/a/ca.pem", "env3/lib/ca.pem", "lib/site-packages/certifi/cacert.pem")
    for name in ("own.pem", *inside):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("old", encoding="utf-8")
    (project / "env3/pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")
    script = f"for i in own.pem {' '.join(inside)}; do printf new > $i; done"
    (answer,), _ = await run_all(home, project, script, config=config)
    assert answer["blocked_by_sandbox"] == [f"{project}/own.pem"]
    assert (project / "own.pem").read_text(encoding="utf-8") == "old"
    for name in inside:
        assert (project / name).read_text(encoding="utf-8") == "new"


MANAGER = """
from multiprocessing import Manager
if __name__ == "__main__":
    with Manager() as manager:
        print(manager.list([1]))
"""
FORK_SERVER = """
import multiprocessing
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=print)
    process.start()
    process.join()
"""
LISTEN = "require('net').createServer().listen(process.cwd() + '/socket')"
LISTEN_HERE = "require('net').createServer().listen('here.s')"
CONNECT = "require('net').connect('/run/socket')"
CONNECT_HERE = "require('net').connect('here.s')"


@pytest.mark.parametrize(
    ("name", "text", "program"),
    sampled(
        [
            ("manager.py", MANAGER, sys.executable),
            ("server.py", FORK_SERVER, sys.executable),
            ("listen.js", LISTEN, "node"),
            ("listen-here.js", LISTEN_HERE, "node"),
            ("connect.js", CONNECT, "node"),
            ("connect-here.js", CONNECT_HERE, "node"),
        ],
        keep=1,
    ),
)
async def test_a_socket_that_is_refused_names_the_rule(
    home: Home, project: Path, name: str, text: str, program: str
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    (project / name).write_text(text, encoding="utf-8")
    (answer,), _ = await run_all(home, project, f"{program} {name}")
    assert answer["exit_code"] != 0
    (blocked,) = answer["blocked_by_sandbox"]
    assert 'rule "sockets"' in blocked


TEMPORARY = """
public class T {
    public static void main(String[] given) throws Exception {
        System.out.println(java.io.File.createTempFile("some", null));
        System.out.println(java.nio.file.Files.createTempDirectory("some"));
    }
}
"""


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")
async def test_java_has_a_temporary_folder(home: Home, project: Path) -> None:
    (project / "T.java").write_text(TEMPORARY, encoding="utf-8")
    (answer,), _ = await run_all(home, project, 'echo "$TMPDIR"; java T.java')
    assert answer["exit_code"] == 0, answer
    folder, *made = answer["stdout"].split()
    assert len(made) == 2
    assert all(place.startswith(f"{folder}/") for place in made)


def write_npm_package(project: Path) -> None:
    package = project / "own-package"
    package.mkdir()
    (package / "package.json").write_text('{"name": "own-package", "version": "1.0.0"}')
    (project / "package.json").write_text('{"name": "project", "version": "1.0.0"}')
    with tarfile.open(project / "own-package.tgz", "w:gz") as archive:
        archive.add(package, "package")


INSTALL = "npm install --no-audit --no-fund ./own-package.tgz"


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_a_package_is_installed_with_a_cache_of_the_call(home: Home, project: Path) -> None:
    write_npm_package(project)
    (answer,), _ = await run_all(home, project, INSTALL, network=True)
    assert answer["exit_code"] == 0, answer
    assert "blocked_by_sandbox" not in answer
    assert (project / "node_modules/own-package/package.json").exists()


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_a_cache_that_is_listed_is_kept(home: Home, project: Path, tmp_path: Path) -> None:
    write_npm_package(project)
    (tmp_path / "cache").mkdir()
    config = ON + f'caches = ["{tmp_path}/cache"]\n'
    script = f"npm_config_cache={tmp_path}/cache {INSTALL}"
    (answer,), _ = await run_all(home, project, script, config=config, network=True)
    assert answer["exit_code"] == 0, answer
    assert (tmp_path / "cache/_cacache").is_dir()


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_a_cache_that_is_refused_is_named(home: Home, project: Path, tmp_path: Path) -> None:
    write_npm_package(project)
    script = f"npm_config_cache={tmp_path}/cache {INSTALL}"
    (answer,), _ = await run_all(home, project, script, network=True)
    assert answer["exit_code"] != 0
    assert any(each.startswith(f"{tmp_path}/cache") for each in answer["blocked_by_sandbox"])


@pytest.mark.sweep
async def test_a_cache_of_the_call_goes_with_it(home: Home, project: Path) -> None:
    variables = (
        *("npm_config_cache", "PIP_CACHE_DIR", "UV_CACHE_DIR", "YARN_CACHE_FOLDER"),
        *("BUN_INSTALL_CACHE_DIR", "COMPOSER_CACHE_DIR", "GOCACHE"),
    )
    write = 'test -n "$NAME" && mkdir -p "$NAME" && touch "$NAME/kept" && echo "$NAME"'
    script = " && ".join(write.replace("NAME", name) for name in variables)
    (answer,), _ = await run_all(home, project, script)
    assert answer["exit_code"] == 0, answer
    places = answer["stdout"].split()
    assert len(set(places)) == len(variables)
    assert not any(Path(place).exists() for place in places)


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("cargo") is None, reason="Cargo is not installed")
async def test_cargo_needs_its_cache_to_be_listed(
    home: Home, project: Path, tmp_path: Path
) -> None:
    needed = f'dep = {{ git = "file://{tmp_path}/dep" }}\n'
    for name, folder, more in (("own", project, needed), ("dep", tmp_path / "dep", "")):
        (folder / "src").mkdir(parents=True)
        (folder / "src/lib.rs").touch()
        text = f'[package]\nname = "{name}"\nversion = "0.1.0"\n[dependencies]\n{more}'
        (folder / "Cargo.toml").write_text(text, encoding="utf-8")
    git(tmp_path / "dep", "init", "-q")
    git(tmp_path / "dep", "add", ".")
    git(tmp_path / "dep", "commit", "-qm", "one")
    for name in ("git", "registry"):
        (tmp_path / "cargo" / name).mkdir(parents=True)
    toolchains = os.environ.get("RUSTUP_HOME") or f"{pwd.getpwuid(os.getuid()).pw_dir}/.rustup"
    script = f"RUSTUP_HOME={toolchains} CARGO_HOME={tmp_path}/cargo cargo build --quiet"
    (answer,), _ = await run_all(home, project, script, network=True)
    assert answer["exit_code"] != 0, answer
    assert [Path(path).parent for path in answer["blocked_by_sandbox"]] == [
        tmp_path / "cargo/git/db"
    ]
    config = ON + f'caches = ["{tmp_path}/cargo/git", "{tmp_path}/cargo/registry"]\n'
    answers, _ = await run_all(home, project, script, script, config=config, network=True)
    assert [each["exit_code"] for each in answers[-2:]] == [0, 0], answers


async def test_only_landlock_runs_unasked_and_puts_settings_back(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = replace(probe(), namespaces=False, network_namespace=False, bubblewrap=None)
    for module in ("confinement", "sandbox"):
        monkeypatch.setattr(f"agent_core.process.{module}.probe", lambda: only)
    git(project, "init", "-q")
    settings = (project / ".git/config").read_bytes()
    lines = "git config core.fsmonitor x; echo x > .git/hooks/pre-commit; touch ../beside; true"
    (project / "script").write_text(lines, encoding="utf-8")
    config = ON + "ask_inside = false\n"
    (answer,), _, asked = await run_asked(home, project, "sh script", config=config)
    assert asked == []
    assert (project / ".git/config").read_bytes() == settings
    assert not (project / ".git/hooks/pre-commit").exists()
    assert not (project.parent / "beside").exists()
    assert len(answer["disabled_repositories"]) == 2
    for more in ('protect = ["x"]\n', f'write = ["{project}", "{home.path.parent}"]\n'):
        _, _, asked = await run_asked(home, project, "true", config=config + more)
        assert len(asked) == 1


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("cd a/b && cat ../../top", marks=pytest.mark.sweep),
        "cd a/b && cat ../../top && cd ../..",
        pytest.param("cd a && cat in && cd .. && cat top", marks=pytest.mark.sweep),
        pytest.param("cd a && (cat in; ls ..) | sort", marks=pytest.mark.sweep),
        "cd a && echo x >> in && cd .. && cat top",
    ],
)
async def test_a_folder_that_a_script_enters_is_where_its_paths_start(
    home: Home, project: Path, script: str
) -> None:
    (project / "a/b").mkdir(parents=True)
    for name in ("top", "a/in"):
        (project / name).write_text("x\n", encoding="utf-8")
    quiet = f"{ON}ask_inside = false\n"
    (answer,), _, asked = await run_asked(home, project, script, config=quiet)
    assert answer["exit_code"] == 0, answer
    assert asked == []


@pytest.mark.sweep
async def test_a_refused_network_is_told_whatever_ends_the_pipe(home: Home, project: Path) -> None:
    pip = f"{sys.executable} {wheel_of_pip()}/pip"  # as an environment may be without it
    install = f"{pip} install --disable-pip-version-check nosuchproject"
    scripts = (
        f"PIP_RETRIES=1 {install} | tail -n 1",
        f"PIP_RETRIES=0 {install} 2>&1 | tail -n 1",
        "curl -sS https://example.org 2>&1 | cat; true",
        "echo 'ERROR: No matching distribution found for x' > log",
        "cat log",
    )
    answers, _ = await run_all(home, project, *scripts)
    assert [each["exit_code"] for each in answers] == [0] * len(answers), answers
    told = [each.get("blocked_by_sandbox") for each in answers]
    assert told == [["the network"]] * 3 + [None] * 2, answers


@pytest.mark.sweep
async def test_a_silent_failure_without_the_network_is_told(home: Home, project: Path) -> None:
    curl = "curl -s --max-time 5 https://example.org/x"
    scripts = (curl, f"{curl} | cat", f"{curl} -o page", "false", "curl --no-such-option", "true")
    answers, texts = await run_all(home, project, *scripts)
    told = ["no_network" in each for each in answers]
    assert told == [True, True, True, False, True, False], answers
    assert all("network = true asks for it" in each["no_network"] for each in answers[:3])
    assert "this command had no network" in str(texts)
    off = f'{ON}network = "off"\n'
    answers, _ = await run_all(home, project, curl, config=off)
    assert 'as [sandbox] network = "off"' in answers[-1]["no_network"]
    answers, _ = await run_all(home, project, "curl -s file:///no/such", network=True)
    assert "no_network" not in answers[-1]
    local = (
        "git init -q one && cd one && touch a && git add a",
        "git clone -q one two && git -C two fetch -q origin",
    )
    answers, _ = await run_all(home, project, *local)
    assert [each["exit_code"] for each in answers[-2:]] == [0, 0], answers
    assert all("no_network" not in each for each in answers[-2:]), answers


@pytest.mark.sweep
async def test_a_push_to_a_repository_elsewhere_names_it(
    home: Home, branches: Path, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare")
    git(branches, "remote", "add", "origin", str(tmp_path / "bare"))
    answers, _ = await run_all(
        home, branches, "git push -u origin main", "git push origin main | cat"
    )
    assert [each["blocked_by_sandbox"] for each in answers] == [[str(tmp_path / "bare")]] * 2
    assert git(branches, "config", "--default", "", "branch.main.remote").strip() == ""

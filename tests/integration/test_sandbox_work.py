"""The sandbox does not damage work: real Git and real programs, confined, through whole runs."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from agent_core.process.confinement import probe
from agent_core.providers.scripted import Calls, Says, ScriptedCall
from agent_core.types import EventType
from isolation import Home
from runtimes import CONFIG, Asked, collect, runtime

pytestmark = pytest.mark.skipif(
    not (probe().landlock and probe().seccomp and probe().namespaces),
    reason="the kernel has no Landlock, no seccomp or no user namespaces",
)

ON = CONFIG + '\n[sandbox]\nmode = "auto"\n'
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.com")


def git(folder: Path, *arguments: str) -> str:
    """Run Git outside of any sandbox, and return its output."""
    return start(["git", "-C", str(folder), *AUTHOR, *arguments])


def start(argv: list[str]) -> str:
    """Run a program outside of any sandbox, and return its output."""
    done = subprocess.run(argv, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout


async def run_all(
    home: Home, project: Path, *scripts: str, config: str = ON, **more: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run shell scripts as commands of one run; return their results, and what was shown."""
    calls: list[Calls | Says] = [
        Calls(
            calls=[
                ScriptedCall(
                    name="code.run_command", arguments={"argv": ["sh", "-c", script], **more}
                )
            ]
        )
        for script in scripts
    ]
    asked = Asked("allow_once")
    async with runtime(
        home, project, [*calls, Says(text="done")], config=config, permission_callback=asked
    ) as made:
        events = await collect(await made.start("go", session_id="s1"))
        session = (await made.list_sessions())[0]
        path = await made.get_node_path(session.active_node_id or "")
    answers = [
        {"error": result.error}
        | {k: v for b in result.content if b.type == "json" for k, v in b.data.items()}
        for node in path
        for result in node.results
    ]
    shown = [e.payload["text"] for e in events if e.event_type is EventType.TOOL_PROGRESS]
    return answers, shown


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


async def test_untracked_files_are_cleaned_away(home: Home, branches: Path) -> None:
    for name in (".env", "build/server.key", ".env.local"):
        (branches / name).parent.mkdir(exist_ok=True)
        (branches / name).write_text("x\n", encoding="utf-8")
    (answer,), _ = await run_all(home, branches, "git clean -fdxq && git status --porcelain")
    assert answer["exit_code"] == 0, answer
    assert not (branches / "build").exists()
    assert not (branches / ".env").exists()


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


@pytest.mark.parametrize("protect", ["", 'protect = ["*.pem"]\n'], ids=["default", "names"])
async def test_an_environment_is_upgraded_and_removed(
    home: Home, project: Path, protect: str
) -> None:
    old, new = write_wheel(project, "1"), write_wheel(project, "2")
    start([sys.executable, "-m", "venv", str(project / ".venv")])
    start([str(project / ".venv/bin/pip"), "install", "-q", "--no-index", str(old)])
    upgrade = f".venv/bin/pip install -q --no-index -U {new.name}"
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

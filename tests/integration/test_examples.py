"""The examples run as they stand, and their pages show what they print and hold."""

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from agent_core.context.skills import find_skills
from agent_core.process.confinement import probe
from agent_core.storage.sqlite import SqliteSessionStore
from isolation import program_file
from sweeps import sampled
from tables import together

ROOT = Path(__file__).parents[2]
SCRIPTS = {
    "skills": "use_skill.py",
    "hooks": "use_hooks.py",
    "tools": "own_tools.py",
    "permissions": "answer_requests.py",
    "sessions": "branch_and_resume.py",
    "typed-answers": "cities.py",
    "sandbox": "run_confined.py",
}
NEEDS_SANDBOX = pytest.mark.skipif(
    not (probe().landlock and probe().has_mounts and probe().seccomp),
    reason="this system cannot confine programs",
)
TOPICS = [
    pytest.param(topic, marks=NEEDS_SANDBOX if topic == "sandbox" else ()) for topic in SCRIPTS
]


def blocks(topic: str, language: str) -> list[str]:
    names = ("tools", "custom-tools") if topic == "tools" else (topic,)
    page = "\n".join((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in names)
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.S | re.M)


@pytest.mark.long
@pytest.mark.parametrize("topic", sampled(TOPICS, keep=2))
def test_an_example_prints_what_its_page_shows(topic: str) -> None:
    script = ROOT / "examples" / topic / SCRIPTS[topic]
    done = subprocess.run(  # noqa: S603 - our own script, in our own interpreter
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout in blocks(topic, "text")


@together("topic", SCRIPTS)
def test_the_code_on_a_page_stands_in_its_example(topic: str) -> None:
    files = (ROOT / "examples" / topic).rglob("*.py")
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert [block for block in blocks(topic, "python") if block not in code] == []


def test_the_hooks_on_the_page_are_those_of_the_example() -> None:
    home = ROOT / "examples" / "hooks" / "home"
    assert blocks("hooks", "json") == [(home / "hooks.json").read_text(encoding="utf-8")]


async def test_the_questions_on_the_page_about_sessions_are_ones_the_database_can_answer(
    tmp_path: Path,
) -> None:
    (questions,) = blocks("sessions", "sql")
    async with SqliteSessionStore.open(tmp_path / "sessions.sqlite"):
        database = sqlite3.connect(tmp_path / "sessions.sqlite")
        database.executescript(questions)
        tables = {
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        database.close()
    page = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.M)
    assert set(re.findall(r"\w+", " ".join(rows))) == tables


def test_the_command_on_the_page_is_the_one_of_the_example() -> None:
    files = (ROOT / "examples" / "tools" / "home" / "tools").iterdir()
    assert blocks("tools", "json") == [file.read_text(encoding="utf-8") for file in files]


def test_the_skill_on_the_page_is_the_one_of_the_example() -> None:
    (page,) = blocks("skills", "markdown")
    home = ROOT / "examples" / "skills" / "home"
    assert page in {skill.path.read_text(encoding="utf-8") for skill in find_skills(home).skills}


def demo(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Play the demo; it starts the commands beside its interpreter, which are copies here."""
    warm.write_command(folder)
    code = f"""import runpy, sys
sys.executable, sys.argv[0] = {str(folder / "python")!r}, "demo.py"
runpy.run_path({str(ROOT / "examples" / "demo.py")!r}, run_name="__main__")
"""
    return subprocess.run(  # noqa: S603 - our own script, in our own interpreter
        [sys.executable, program_file(code), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_demo_installs_the_package_alone_and_says_so(tmp_path: Path) -> None:
    make = ["make", "--dry-run", f"VENV={tmp_path}", f"PYTHON={sys.executable}"]
    tried = {
        target: subprocess.run(  # noqa: S603 - the Makefile of this repository
            [*make, target], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for target in ("demo", "test")
    }
    assert "[dev]" not in tried["demo"]
    assert "[dev]" in tried["test"]
    for recipe in tried.values():
        assert f"into {tmp_path}; only the first time" in recipe


@pytest.mark.sweep
def test_the_demo_tells_where_its_session_is_only_if_there_is_one(tmp_path: Path) -> None:
    played = demo(folder=tmp_path / "bin")
    assert played.returncode == 0, played.stderr
    assert "Changed on disk: " in played.stdout
    assert "The session is in " in played.stdout

    refused = demo("--home", str(tmp_path), folder=tmp_path / "bin")
    assert refused.returncode == 2
    assert "config.toml" in refused.stderr
    assert "changed" not in refused.stdout
    assert "The session is in " not in refused.stdout

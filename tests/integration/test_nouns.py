"""A command without an action lists, and says in a sentence that there is nothing."""

import os
import subprocess
from pathlib import Path

import pytest

from agent_core.cli.arguments import parse
from isolation import Home
from session_stories import SOONG
from sweeps import kept, sampled
from tables import together

NOTHING = {
    "sessions": "there are no sessions",
    "approvals": "there is no open question",
    "tasks": "there are no Tasks of",
    "memory": "nothing is remembered",
    "mcp": "there is no server in mcp.json",
    "skills": "there is no skill in",
}


def soong(home: Home, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own command
        [SOONG, *words],
        cwd=project,
        env={**os.environ, "SOONG_AGENT_HOME": str(home.path)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("noun", sampled(NOTHING, keep=2))
def test_an_empty_list_is_one_sentence(home: Home, project: Path, noun: str) -> None:
    done = soong(home, project, noun)
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(NOTHING[noun])
    if noun == "sessions":
        assert soong(home, project, noun, "du").stderr == done.stderr
    done = soong(home, project, noun, "--json")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("noun", kept(["sessions", "config", "cost", "doctor"], "sessions"))
def test_a_home_that_cannot_be_looked_into_is_named(home: Home, project: Path, noun: str) -> None:
    home.path.mkdir(parents=True, exist_ok=True)
    home.path.rmdir()
    home.path.write_text("not a folder")  # closed to the superuser as well
    done = soong(home, project, noun)
    assert done.returncode != 0
    assert f"the home {home.path} is not a folder" in " ".join((done.stdout + done.stderr).split())


@together("noun", [*NOTHING, "agents", "permissions", "config"])
def test_options_alone_belong_to_the_list(noun: str) -> None:
    action = "show" if noun == "config" else "list"
    assert parse([noun]).action == action
    assert parse([noun, action]).action == action
    if noun != "memory":
        assert parse([noun, "--path", "."]).path == "."
    for words in ([noun, "-h"], [noun, "--help"], [noun, "nothing"], [noun, "--no-such-option"]):
        with pytest.raises(SystemExit):
            parse(words)


def test_help_says_what_a_noun_alone_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["sessions", "--help"])
    assert "Without an action: list." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parse(["store"])
    assert "an action is missing" in capsys.readouterr().err


def test_memories_are_listed_as_json(home: Home, project: Path) -> None:
    folder = home.path / "memory" / "user"
    folder.mkdir(parents=True)
    (folder / "tea.md").write_text(
        "---\nid: mem_tea\ncategory: user\nsummary: Drinks tea.\n"
        "created_at: 2026-11-01T10:00:00+00:00\nupdated_at: 2026-11-01T10:00:00+00:00\n---\nTea.\n"
    )
    done = soong(home, project, "memory", "--json")
    assert done.stdout == (
        '{"memory_id": "mem_tea", "category": "user", "summary": "Drinks tea."}\n'
    ), done.stderr

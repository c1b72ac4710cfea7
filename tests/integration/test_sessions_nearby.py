"""A folder without sessions names those of the folders above and below it."""

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent_core import AgentRuntime
from agent_core.testing import ScriptedProvider
from in_process import carry_out
from isolation import Home

pytestmark = pytest.mark.timeout(120)


async def fill(folder: Path, home: Home, sessions: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model = ScriptedProvider(["done"] * sessions)
    async with AgentRuntime(folder, home_dir=home.path, model=model) as runtime:
        for _ in range(sessions):
            await runtime.run("go")


def said(home: Home, folder: Path, *words: str, code: int) -> str:
    done = carry_out(words, home.env(OPENAI_API_KEY="none"), folder)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_sessions_of_other_folders_are_named(home: Home, project: Path) -> None:
    here = project / "here"
    asyncio.run(fill(project, home, 2))
    asyncio.run(fill(here / "deep" / "down", home, 1))
    asyncio.run(fill(project / "here-too", home, 1))  # neither above nor below
    named = (
        f"; there are 2 sessions in {project}, 1 session in {here / 'deep' / 'down'}:"
        f" --path {project} chooses that folder"
    )
    listed = said(home, here, "sessions", "list", "--here", code=0)
    assert listed.strip() == f"there are no sessions of {here}{named}"
    assert said(home, here, "sessions", "--here", "--json", code=0) == ""
    missing = "no session of this project has an answer yet"
    model = ["--model", "openai:x@http://127.0.0.1:9/v1"]
    run = said(home, here, "run", "--continue", *model, "and?", code=2)
    assert f"{missing}{named}" in run
    assert f"no session of {here} has an answer yet{named}" in said(home, here, "undo", code=1)
    for words, of in (
        (["sessions", "list", "nowhere"], ""),
        (["sessions", "--here", "it"], f" of {here}"),
    ):
        assert said(home, here, *words, code=0).strip() == (
            f"no session{of} has these words in its title, project or id"
        )
    below = said(home, here / "deep", "sessions", "list", "--here", "--path", str(here), code=0)
    assert named in below


def test_folders_apart_are_not_named(home: Home, project: Path) -> None:
    asyncio.run(fill(project / "one", home, 1))
    two = project / "two"
    two.mkdir()
    listed = said(home, two, "sessions", "--here", code=0)
    assert listed.strip() == f"there are no sessions of {two}"


@pytest.mark.sweep
def test_many_folders_are_counted(home: Home, project: Path) -> None:
    for name in "abcdef":
        asyncio.run(fill(project / name, home, 1))
    listed = said(home, project, "sessions", "--here", code=0)
    assert f"there is 1 session in {project / 'f'}, 1 session in {project / 'e'}" in listed
    assert "more in 2 other folders" in listed


@pytest.mark.sweep
def test_very_many_folders_and_sessions_are_not_counted_to_the_last(
    home: Home, project: Path
) -> None:
    asyncio.run(fill(project, home, 1))
    here = project / "here"
    here.mkdir()
    with closing(sqlite3.connect(home.path / "sessions.sqlite")) as database, database:
        for number in range(1_000):
            for folder in (project, here / f"{number:03}"):
                database.execute(
                    """INSERT INTO sessions (session_id, cwd, status, metadata_json, created_at,
                        updated_at, epoch) SELECT hex(randomblob(8)), ?, status, metadata_json,
                        created_at, updated_at, epoch FROM sessions LIMIT 1""",
                    (str(folder),),
                )
    listed = said(home, here, "sessions", "--here", code=0)
    assert f"there are 1,000 or more sessions in {project}, 1 session in {here / '099'}," in listed
    assert "more in 96 or more other folders" in listed


def test_run_names_a_session_whose_folder_is_gone(home: Home, project: Path) -> None:
    asyncio.run(fill(project / "elsewhere" / "old", home, 1))
    asyncio.run(fill(project / "before", home, 1))
    asyncio.run(fill(project / "elsewhere" / "new", home, 1))
    (project / "before").rename(project / "after")
    (project / "elsewhere").rename(project / "moved")
    model = ["--model", "openai:x@http://127.0.0.1:9/v1"]
    run = said(home, project / "after", "run", "--continue", *model, "and?", code=2)
    told = re.search(r"session (\S+) works in (\S+), which is gone: (.*) continues it here", run)
    assert told is not None
    assert told[2] == str(project / "before")
    assert told[3] == f"--session-id {told[1]} --move-session"

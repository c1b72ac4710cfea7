"""The pages with many sessions, and with workers that carry the runs out."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agent_core import AgentRuntime
from agent_core.providers.scripted import calls
from consoles import console
from isolation import Home
from model_server import ModelServer
from runtimes import ask, runtime
from windows_of_pages import chromium, needs_chromium, window
from worker_processes import URL_VARIABLE, workers, write_config

ROOT = Path(__file__).parents[2]
pytestmark = [needs_chromium, pytest.mark.timeout(300)]

MANY = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
INSERT INTO sessions (session_id, cwd, status, metadata_json, created_at, updated_at, title,
                      use_number)
SELECT 'sess_many' || n, cwd, status, metadata_json, created_at, updated_at,
       'session number ' || n || '.', use_number + n
FROM sessions, numbers
WHERE session_id = 's1'
"""


@pytest.mark.sweep
async def test_one_of_ten_thousand_sessions_is_found(home: Home, project: Path) -> None:
    async with runtime(home, project, ["Hello."]) as made:
        await ask(made)
    with closing(sqlite3.connect(home.path / "sessions.sqlite")) as database:
        database.execute(MANY)
        database.commit()
    made = runtime(home, project, ["Hello."])
    async with (
        made,
        console(made) as address,
        chromium() as browser,
        window(browser, address) as one,
    ):
        await one.open("/")
        assert await one.page.locator("section[aria-labelledby=recent] li").count() == 30
        await one.page.get_by_role("link", name="Older sessions").click()
        await one.page.locator("#days").wait_for(state="detached")
        assert await one.page.locator("section[aria-labelledby=recent] li").count() == 30
        await one.page.get_by_role("searchbox").fill("number 7777.")
        await one.press("Search")
        found = one.page.locator("section[aria-labelledby=sessions] li")
        await found.first.wait_for()
        assert await found.count() == 1
        await found.get_by_role("link").click()
        await one.page.locator("h1", has_text="session number 7777.").wait_for()
        one.check()


@pytest.mark.sweep
async def test_a_worker_carries_a_run_out_that_a_page_follows(
    home: Home, project: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    script = [calls("code.write_file", path="a.txt", content="one\n"), "A worker says so."]
    async with ModelServer(script) as server:
        write_config(home, server, '[permissions]\nunattended = "park"\n')
        made = AgentRuntime(project_dir=project, home_dir=home.path)
        with workers(home, database_url) as staff:
            worker = await asyncio.to_thread(staff.start)
            async with (
                made,
                console(made) as address,
                chromium() as browser,
                window(browser, address) as one,
            ):
                await one.open("/")
                await one.send("write it")
                await one.shows("code.write_file asks for permission")
                await one.press("Allow once")
                await one.shows("A worker says so.")
                await one.page.locator("#status", has_text="completed").wait_for()
                assert (project / "a.txt").read_text() == "one\n"
                await one.open("/workers")
                await one.shows("alive")
                worker.process.kill()
                while not await one.page.get_by_text("dead", exact=True).is_visible():
                    await one.page.reload()
                one.check()


@pytest.mark.sweep
def test_the_pictures_of_the_console_are_made_by_real_runs(tmp_path: Path) -> None:
    script = [sys.executable, "docs/console_pictures.py", str(tmp_path)]
    subprocess.run(script, cwd=ROOT, check=True)  # noqa: S603 - our own
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {path.name for path in (ROOT / "docs" / "images").glob("console-*.png")}

"""Readers of a session with damaged rows give what can be read, and name what cannot."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import pytest

from agent_core.cli.chat.recap import Recap, read_recap
from agent_core.cli.command import execute
from agent_core.errors import AgentCoreError
from agent_core.history.reading import MessageEntry
from isolation import Home, fresh_folder
from runtimes import CONFIG, runtime
from sweeps import sampled

pytestmark = pytest.mark.timeout(60)

DAMAGE = {
    "a message that is no JSON": (
        """UPDATE nodes SET content_json = '[{"type":"text","text":"the second ans'
        WHERE content_json LIKE '%second answer%'""",
        "content is not JSON",
    ),
    "an unknown block": (
        """UPDATE nodes SET content_json = '[{"type":"text","text":"the second ans"},
        {"type":"hologram","x":1}]' WHERE content_json LIKE '%second answer%'""",
        "content is not valid",
    ),
    "a block without a type": (
        """UPDATE nodes SET content_json = '[{"type":"text","text":"the second ans"}, 3]'
        WHERE content_json LIKE '%second answer%'""",
        "content is not valid",
    ),
    "metadata that is no JSON": (
        "UPDATE nodes SET metadata_json = '{' WHERE content_json LIKE '%second answer%'",
        "metadata is not JSON",
    ),
    "an unknown role": (
        "UPDATE nodes SET role = 'oracle' WHERE content_json LIKE '%second answer%'",
        "role is not valid",
    ),
    "an unknown kind of node": (
        "UPDATE nodes SET node_type = 'dream' WHERE content_json LIKE '%second answer%'",
        "node_type is not valid",
    ),
    "a time": (
        "UPDATE nodes SET created_at = 'once' WHERE content_json LIKE '%second answer%'",
        "created_at is not valid",
    ),
    "an event that is no JSON": (
        """UPDATE events SET payload_json = 'x' WHERE node_id IN
        (SELECT node_id FROM nodes WHERE content_json LIKE '%second answer%')""",
        "payload is not JSON",
    ),
    "an unknown event": (
        """UPDATE events SET event_type = 'eclipse' WHERE node_id IN
        (SELECT node_id FROM nodes WHERE content_json LIKE '%second answer%')""",
        "event_type is not valid",
    ),
    "a run's usage": (
        """UPDATE runs SET usage_json = '[', options_json = '3'
        WHERE run_id IN (SELECT run_id FROM nodes WHERE content_json LIKE '%second answer%')""",
        "usage is not JSON",
    ),
    "a run's status": (
        """UPDATE runs SET status = 'odd' WHERE run_id IN (SELECT run_id FROM nodes
        WHERE content_json LIKE '%second answer%')""",
        "status is not valid",
    ),
    "the session": (
        "UPDATE sessions SET metadata_json = '[', created_at = 'once' WHERE session_id = 's1'",
        "metadata is not JSON",
    ),
    "the agent": ("UPDATE agents SET metadata_json = '[' WHERE session_id = 's1'", "metadata"),
    "a budget": ("UPDATE budgets SET limits_json = '['", ""),
}
OF_SQLITE = {
    "a missing message": (
        "PRAGMA foreign_keys = OFF; DELETE FROM nodes WHERE content_json LIKE '%second answer%'",
        "the row is missing",
    ),
    "a missing run": (
        """PRAGMA foreign_keys = OFF; DELETE FROM runs WHERE run_id IN (SELECT run_id FROM nodes
        WHERE content_json LIKE '%second answer%')""",
        "the row is missing",
    ),
    "a value that is no text": (
        """UPDATE nodes SET content_json = CAST(x'5bff' AS TEXT)
        WHERE content_json LIKE '%second answer%'""",
        "nodes",
    ),
    "a number in place of a text": (
        "UPDATE nodes SET content_json = 7 WHERE content_json LIKE '%second answer%'",
        "content is not valid",
    ),
}

ORDER = ("first", "second", "third")
Tell = Callable[..., tuple[int, str, str]]
SCHEMA: list[Any] = []
"""Of an exported session, once it was printed."""


async def hold(home: Home, project: Path, config: str = CONFIG) -> None:
    script = ["the first answer", "the second answer", "the third answer", "of another"]
    async with runtime(home, project, script, config=config) as made:
        for number, session_id in (*((each, "s1") for each in ORDER), ("other", "s2")):
            handle = await made.start(f"the {number} message", session_id=session_id, here=True)
            await handle.wait()


@pytest.fixture
def tell(home: Home, project: Path, capfd: pytest.CaptureFixture[str]) -> Tell:
    """Carry out a command, and return its exit code, its output and its errors."""

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = execute([*words])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run


def rows_of(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as rows:
        rows.text_factory = bytes
        tables = ("sessions", "agents", "runs", "nodes", "events")
        return [rows.execute(f"SELECT * FROM {table}").fetchall() for table in tables]  # noqa: S608


def examine(tell: Tell, problem: str, *, searches: bool = True) -> None:
    """Every reader gives what can be read, and names the rest."""
    code, out, err = tell("sessions", "show", "s1")
    assert code == 0, err
    assert "the first answer" in out
    assert "the third answer" in out
    assert problem in " ".join(err.split())
    code, out, err = tell("sessions", "tree", "s1")
    assert code == 0
    assert "the first message" in out
    code, out, err = tell("sessions", "list")
    assert code == 0
    assert "the other message" in out
    assert "the first message" in out
    for form in ("--html", "--markdown", "--jsonl"):
        code, out, err = tell("sessions", "export", "s1", form)
        assert code == bool(problem), form
        assert "the first answer" in out
        assert "the third answer" in out
        assert problem in out
        assert problem in " ".join(err.split())
    if problem:
        lines = [json.loads(line) for line in out.splitlines()]
        assert lines[-1]["type"] == "damage"
        if not SCHEMA:  # to check a schema takes longer than to use it
            SCHEMA.append(jsonschema.Draft202012Validator(json.loads(tell("schema", "session")[1])))
        SCHEMA[0].validate(lines[-1])
    if searches:
        code, out, err = tell("sessions", "search", "third answer")
        assert code == 0, err
        assert "the third answer" in out


@pytest.fixture(scope="module")
def held() -> tuple[Home, Path]:
    """A home with two sessions, and their project."""
    home, project = Home(fresh_folder("home", "held")), fresh_folder("project", "held")
    asyncio.run(hold(home, project))
    return home, project


@pytest.mark.parametrize("damage", sampled([*DAMAGE, *OF_SQLITE], keep=2))
def test_a_damaged_row_hides_no_other_one(
    home: Home, held: tuple[Home, Path], tell: Tell, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(held[0].path, home.path, dirs_exist_ok=True)
    monkeypatch.chdir(held[1])
    path, (sql, problem) = home.path / "sessions.sqlite", {**DAMAGE, **OF_SQLITE}[damage]
    with closing(sqlite3.connect(path)) as rows:
        rows.executescript(sql)
    before = rows_of(path)
    examine(tell, problem, searches=damage != "a value that is no text")
    _, found, _ = tell("doctor", "--json")
    (checked,) = [check for check in json.loads(found)["checks"] if check["name"] == "rows"]
    if problem not in checked["text"]:  # a row that is missing cannot be found by reading rows
        assert "missing" in problem, checked
    assert rows_of(path) == before, "a damaged row stays as it is"


@pytest.mark.sweep
@pytest.mark.parametrize("damage", sampled(DAMAGE, 1))
def test_a_damaged_row_of_a_server_hides_no_other_one(
    home: Home,
    project: Path,
    tell: Tell,
    damage: str,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("DAMAGED_DATABASE", database_url)
    config = f'{CONFIG}[store]\nurl_env = "DAMAGED_DATABASE"\n'
    asyncio.run(hold(home, project, config))
    sql, problem = DAMAGE[damage]
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.encode())
    examine(tell, problem)


@pytest.mark.parametrize("damage", ["metadata that is no JSON", "a message that is no JSON"])
def test_the_last_session_is_found_beside_damage(home: Home, project: Path, damage: str) -> None:
    async def find() -> tuple[str | None, str]:
        await hold(home, project)
        with closing(sqlite3.connect(home.path / "sessions.sqlite")) as rows:
            rows.executescript(DAMAGE[damage][0])
        async with runtime(home, project) as made:
            last = await made.last_session(project)
            with pytest.raises(AgentCoreError) as refused:
                await made.context_report("s1")
            return last, refused.value.message

    last, message = asyncio.run(find())
    assert last == "s2"
    assert "does not read as Node" in message, "no session continues over a damaged message"


def test_a_torn_page_costs_the_message_that_it_held(
    home: Home, project: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    long = "long " * 4_000  # its text has pages of its own

    async def talk() -> None:
        async with runtime(home, project, ["the first answer", long, "the third answer"]) as made:
            for number in ORDER:
                await made.run(f"the {number} message", session_id="s1")

    asyncio.run(talk())
    path = home.path / "sessions.sqlite"
    with closing(sqlite3.connect(path)) as rows:
        rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = rows.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    begin = data.index(b"long long long long") // size + 1
    at = data.index(b"long " * 100, begin * size) // size * size
    data[at : at + 4] = b"\xff\xff\xff\xf0"  # the number of the page that follows
    path.write_bytes(data)

    code, out, err = tell("sessions", "show", "s1")
    assert code == 0, err
    assert "the first answer" in out
    assert "the third answer" in out
    assert "its place in the file is damaged" in " ".join(err.split())
    assert path.read_bytes() == data


@pytest.mark.parametrize("damage", ["a message that is no JSON", "a missing message"])
def test_a_chat_shows_what_can_be_read_and_says_why_it_cannot_continue(
    home: Home, project: Path, damage: str
) -> None:
    async def resume() -> Recap:
        await hold(home, project)
        with closing(sqlite3.connect(home.path / "sessions.sqlite")) as rows:
            rows.executescript({**DAMAGE, **OF_SQLITE}[damage][0])
        async with runtime(home, project) as made:
            return await read_recap(made, "s1")

    recap = asyncio.run(resume())
    answers = [
        entry.node.text
        for each in recap.exchanges
        for entry in each.entries
        if isinstance(entry, MessageEntry)
    ]
    assert "the third answer" in answers
    assert recap.damaged
    assert (recap.report is None) == bool(recap.problem)

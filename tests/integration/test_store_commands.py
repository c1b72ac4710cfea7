"""`soong-agent store migrate` and `check`: databases made, brought up to date, and looked at."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from agent_core import AgentCoreError, AgentRuntime, ErrorCode, StorageError
from agent_core.installation import extra_command
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.storage.migrations import MIGRATIONS
from isolation import Home
from runtimes import CONFIG
from sweeps import kept
from zoo import SOONG, store

HERE = '[model]\nprovider = "ollama"\nname = "x"\n[store]\nurl_env = "THERE"\n'


def test_a_database_is_made_and_checked(
    home: Home, tmp_path: Path, empty_database_url: str
) -> None:
    home.write_config('[model]\nprovider = "ollama"\nname = "x"\n[store]\nurl_env = "THERE"\n')
    file, there = f"sqlite:{tmp_path}/x.sqlite", {"THERE": empty_database_url}
    made = store(home, "migrate", f"sqlite:{tmp_path}/y.sqlite").stdout
    assert f"now has tables of version {MIGRATIONS[-1].version}" in made
    for words in ([file], []):
        before = store(home, "check", *words, "--json", **there)
        assert before.returncode == 0, before.stderr
        assert "by the first run" in json.loads(before.stdout)["checks"][0]["text"]
        done = store(home, "migrate", *words, "--json", **there)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["before"] == 0
        assert "up to date" in store(home, "migrate", *words, **there).stdout
        after = store(home, "check", *words, **there)
        assert after.returncode == 0
        assert f"version {MIGRATIONS[-1].version}" in after.stdout
    assert not (home.path / "sessions.sqlite").exists()


def test_an_address_that_cannot_be_used_says_so_without_its_password(home: Home) -> None:
    home.write_config('[model]\nprovider = "ollama"\nname = "x"\n[store]\nurl_env = "THERE"\n')
    secret = "s3cr3t-word"  # noqa: S105
    url = f"postgresql://ann:{secret}@127.0.0.1:1/agents"
    for words, code in (
        (["check"], 1),
        (["check", "env:THERE"], 1),
        (["check", url], 1),
        (["migrate", url], 1),
        (["migrate", "mysql://x:s3cr3t-word@y/z"], 2),
        (["check", "env:NOT_THERE"], 2),
        (["check", "nothing"], 2),
        (["copy", "--from", url, "--to", "env:THERE"], 1),
        (["copy", "--from", url, "--to", "sqlite:x.sqlite"], 1),
        (["copy", "--from", "sqlite:/nowhere/x.sqlite", "--to", "env:THERE"], 1),
    ):
        done = store(home, *words, THERE=url)
        assert done.returncode == code, (words, done)
        assert done.stdout + done.stderr
        assert secret not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    done = store(home, "check")
    assert done.returncode == 2
    assert "THERE" in done.stderr


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_the_tables_of_the_queue_are_upgraded_when_that_is_asked_for(
    home: Home, database_url: str
) -> None:
    home.write_config(HERE)
    assert store(home, "migrate", THERE=database_url).returncode == 0
    assert "queue" not in store(home, "check", THERE=database_url).stdout
    execute(
        database_url,
        """COMMENT ON TABLE procrastinate_jobs IS '03.04.00_01';
        DROP FUNCTION procrastinate_trigger_function_status_events_update_v1 CASCADE""",
    )
    found = store(home, "check", THERE=database_url)
    assert found.returncode == 0
    assert "store migrate" in found.stdout
    assert store(home, "migrate", THERE=database_url).returncode == 0
    assert "store migrate" not in store(home, "check", THERE=database_url).stdout
    execute(
        database_url, "SELECT 'procrastinate_trigger_function_status_events_update_v1'::regproc"
    )


def test_a_missing_index_of_words_is_named_and_built(home: Home, database_url: str) -> None:
    home.write_config(HERE)
    execute(database_url, "DROP INDEX nodes_words")
    found = store(home, "check", "--json", THERE=database_url)
    assert found.returncode == 0
    (check,) = [each for each in json.loads(found.stdout)["checks"] if each["name"] == "search"]
    assert check["state"] == "remark"
    assert "store migrate" in check["cure"]
    assert store(home, "migrate", THERE=database_url).returncode == 0
    assert "search" not in store(home, "check", THERE=database_url).stdout


def test_what_keeps_runs_from_a_server_is_found(home: Home, database_url: str) -> None:
    home.write_config(HERE)
    server, _, name = database_url.rpartition("/")
    execute(database_url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    assert f"database {name}: it is read-only\n" in store(home, "check", THERE=database_url).stdout
    admin = f'BEGIN READ WRITE; ALTER DATABASE "{name}" RESET default_transaction_read_only'
    execute(database_url, f"{admin}; COMMIT")
    execute(database_url, f"CREATE ROLE r_{name} LOGIN PASSWORD 'x1y2z3w4'")
    guest = f"postgresql://r_{name}:x1y2z3w4@{server.rpartition('@')[2]}/{name}"
    found = store(home, "check", "--json", THERE=guest)
    assert found.returncode == 1
    (check,) = json.loads(found.stdout)["checks"]
    assert check["state"] == "broken"
    assert "no right to read and write agents, approvals, artifacts and " in check["text"]
    assert "grant them to this user" in check["cure"]
    assert "right to create" not in check["text"]
    assert "soong-agent store check" in shown_by(home, "workers", THERE=guest)
    wrong = store(home, "check", THERE=guest.replace("x1y2z3w4", "other-word"))
    assert wrong.returncode == 1
    assert "password" in wrong.stdout
    assert "other-word" not in wrong.stdout + wrong.stderr
    gone = store(home, "check", THERE=f"{database_url}_gone")
    assert gone.returncode == 1
    assert "does not exist" in gone.stdout
    execute(database_url, f"DROP OWNED BY r_{name}; DROP ROLE r_{name}")


@pytest.fixture
def make_database(database_url: str) -> Iterator[Callable[[str], str]]:
    """Makes databases beside the test's; what stands behind the name says how."""
    made: list[str] = []

    def make(options: str) -> str:
        url = f"{database_url}_{len(made)}"
        made.append(url.rpartition("/")[2])
        execute(database_url, f"CREATE DATABASE {made[-1]} TEMPLATE template0 {options}")
        return url

    yield make
    for name in made:
        execute(database_url, f"DROP DATABASE {name} WITH (FORCE)")


def test_tables_are_made_in_no_other_encoding_than_utf8(
    home: Home, make_database: Callable[[str], str]
) -> None:
    home.write_config(HERE)
    url = make_database("ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
    done = store(home, "migrate", THERE=url)
    assert done.returncode == 1
    assert "is in SQL_ASCII, and has to be in UTF8" in done.stderr
    check = store(home, "check", THERE=url)
    assert "it is in SQL_ASCII, and has to be in UTF8\n" in check.stdout
    assert "create a database with ENCODING 'UTF8'" in check.stdout
    assert f"database {url.rpartition('/')[2]}" in check.stdout


@pytest.mark.sweep
def test_the_rights_that_making_tables_takes_are_named(
    home: Home, database_url: str, make_database: Callable[[str], str]
) -> None:
    home.write_config(HERE)
    url = make_database("ENCODING 'UTF8'")
    server, _, name = url.rpartition("/")
    execute(url, f"CREATE ROLE r_{name} LOGIN PASSWORD 'x1y2z3w4'")
    guest = f"postgresql://r_{name}:x1y2z3w4@{server.rpartition('@')[2]}/{name}"
    execute(url, f"GRANT CREATE ON SCHEMA public TO r_{name}")  # and none to make another schema
    assert (
        "grant this user CREATE on the database and on its schema"
        in store(home, "check", THERE=guest).stdout
    )
    done = store(home, "migrate", THERE=guest)
    assert done.returncode == 1
    assert "run soong-agent store migrate once as a user who has it" in done.stderr
    execute(url, f"GRANT CREATE ON DATABASE {name} TO r_{name}")
    assert store(home, "check", THERE=guest).returncode == 0
    assert store(home, "migrate", THERE=guest).returncode == 0
    execute(url, f"DROP OWNED BY r_{name} CASCADE")
    execute(database_url, f"DROP OWNED BY r_{name}; DROP ROLE r_{name}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("127.0.0.1:1", "nothing listens there"),
        ("127.0.0.1:54x", "with a number as port"),
        ("127.0.0.1:99999", "the port in its address is invalid"),
        ("ss@127.0.0.1:1", "of the password other than letters and digits as %XX"),
        ("{}?sslmode=require", "check sslmode"),
    ],
)
def test_an_address_that_leads_nowhere_is_told_from_a_server_that_is_away(
    home: Home, database_url: str, place: str, said: str
) -> None:
    home.write_config(HERE)
    there = place.format(database_url.rpartition("@")[2])
    shown = shown_by(home, "store", "check", THERE=f"postgresql://soong:x8Kw2mPqz7@{there}")
    assert said in shown
    assert "x8Kw2mPqz7" not in shown
    assert "ss@" not in shown


async def test_a_server_that_accepts_and_stays_silent_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the system accepts for it
        there = f"postgresql://ann:x8Kw2mPqz7@127.0.0.1:{server.getsockname()[1]}/agents"
        model = ScriptedProvider([])
        made = AgentRuntime(tmp_path, model=model, database_url=f"{there}?connect_timeout=2")
        with pytest.raises(StorageError, match="does not answer") as caught:
            async with made:
                pass
    assert caught.value.code == "storage_error"
    assert caught.value.retryable
    assert "x8Kw2mPqz7" not in caught.value.message


@pytest.mark.long
@pytest.mark.parametrize(
    ("password", "said"),
    kept(
        [
            ("soong", "the password in THERE is short, or an ordinary word"),
            pytest.param("postgres", "ordinary word", marks=pytest.mark.sweep),
            pytest.param("12345678901", "ordinary word", marks=pytest.mark.sweep),
            pytest.param("x1y%40", "ordinary word", marks=pytest.mark.sweep),
            ("abc", "the password in THERE is too short"),
            ("x8Kw2mPq", ""),
            pytest.param("only-for-trying", "", marks=pytest.mark.sweep),
        ],
        ("soong", "the password in THERE is short, or an ordinary word"),
    ),
)
def test_a_password_that_stands_in_ordinary_texts_is_named_with_the_cure(
    home: Home, password: str, said: str
) -> None:
    home.write_config(HERE)
    url = f"postgresql://ann:{password}@127.0.0.1:1/agents"
    checked = [store(home, "check", *more, THERE=url) for more in ((), ("env:THERE",))]
    said_by_check = [done.stdout + done.stderr for done in checked]
    for shown in (*said_by_check, shown_by(home, "doctor", THERE=url)):
        (line,) = [each for each in shown.splitlines() if each.startswith("remark  secret")] or [""]
        assert said in line
        assert bool(line) == bool(said)
        assert ("16 or more letters and digits" in shown) == bool(said)


def test_a_newer_database_is_left_as_it_is(home: Home, tmp_path: Path, database_url: str) -> None:
    home.write_config(HERE)
    assert store(home, "migrate", THERE=database_url).returncode == 0
    later = "INSERT INTO schema_migrations (version, name, applied_at) VALUES (99, 'x', 'then')"
    execute(database_url, later)
    to = ("copy", "--from", "env:THERE", "--to", f"sqlite:{tmp_path}/x.sqlite")
    into = ("copy", "--from", f"sqlite:{tmp_path}/x.sqlite", "--to", "env:THERE")
    assert store(home, "migrate", f"sqlite:{tmp_path}/x.sqlite").returncode == 0
    for words in (("migrate",), ("check",), to, into):
        done = store(home, *words, THERE=database_url)
        assert done.returncode == 1, words
        assert "newer" in done.stdout + done.stderr


@pytest.mark.parametrize("query", ["?no_such=1", "?sslmode"])
async def test_an_address_that_libpq_does_not_read_is_an_error_of_the_configuration(
    home: Home, project: Path, query: str
) -> None:
    url = f"postgresql://ann:s3cr3t-word@127.0.0.1{query}"
    made = AgentRuntime(project, home_dir=home.path, model="ollama:x", database_url=url)
    with pytest.raises(AgentCoreError) as caught:
        await made.list_sessions()
    assert caught.value.code in {ErrorCode.CONFIG_ERROR, ErrorCode.STORAGE_ERROR}
    assert "s3cr3t" not in repr(caught.value) + str(caught.value.__cause__)


def test_an_address_that_cannot_be_parsed_is_refused_where_it_is_passed(
    home: Home, project: Path
) -> None:
    url = "postgresql://ann:s3cr3t-word@127.0.0.1:port:port/x"
    with pytest.raises(AgentCoreError) as caught:
        AgentRuntime(project, home_dir=home.path, model="ollama:x", database_url=url)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert "s3cr3t" not in repr(caught.value) + str(caught.value.__cause__)


@pytest.mark.timeout(120)  # whole processes, on a machine that may be busy
@pytest.mark.parametrize("place", kept(["variable", "argument"], "argument"))
async def test_the_address_stays_out_of_all_that_is_stored_and_shown(
    home: Home, project: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    password = database_url.rpartition("@")[0].rpartition(":")[2]
    (project / "notes.txt").write_text(f"connect to {database_url} with {password}\n")
    script = [calls("code.read_file", path="notes.txt"), f"It says {password}."]
    config = CONFIG if place == "argument" else f'{CONFIG}\n[store]\nurl_env = "THERE"\n'
    home.write_config(config)
    monkeypatch.setenv("THERE", database_url)
    given = database_url if place == "argument" else None
    made = AgentRuntime(project, home_dir=home.path, debug=True, database_url=given)
    provider = ScriptedProvider(script)
    made.register_provider("custom", lambda _: provider)
    async with made:
        handle = await made.start("look", session_id="s1", here=True)
        async for event in handle.events(debug=True):
            assert password not in repr(event)
        assert password not in repr(made._options) + repr(handle)
    with psycopg.connect(database_url) as connection:
        for table in ("events", "nodes", "runs", "sessions", "artifacts", "procrastinate_jobs"):
            rows = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()  # noqa: S608
            assert password not in repr(rows), table
        blobs = connection.execute("SELECT content FROM blob_pieces").fetchall()
        assert all(password.encode() not in content for (content,) in blobs)
    for path in home.path.rglob("*"):
        assert not path.is_file() or password.encode() not in path.read_bytes(), path
    for words in (("config", "show", "store"), ("doctor",), ("config", "show", "--json")):
        shown = await asyncio.to_thread(shown_by, home, *words)
        assert password not in shown
        if words[0] == "config" and place == "variable":
            assert "THERE" in shown


def shown_by(home: Home, *words: str, **environ: str) -> str:
    done = subprocess.run(  # noqa: S603
        [SOONG, *words], env=home.env(**environ), capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.sweep
@pytest.mark.timeout(120)  # whole processes, on a machine that may be busy
def test_a_package_that_is_missing_is_named_with_its_extra(home: Home) -> None:
    home.write_config(HERE)
    program = """import sys
sys.modules["psycopg"] = None
from agent_core.cli.command import execute
raise SystemExit(execute(sys.argv[1:]))"""
    commands = [
        (("sessions", "list"), 2),
        (("store", "check"), 1),
        (("store", "migrate"), 2),
        (("store", "copy", "--from", "env:THERE", "--to", "sqlite:x.sqlite"), 2),
    ]
    for words, code in kept(commands, *commands[:2]):
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", program, *words],
            env=home.env(THERE="postgresql://ann:s3cr3t-word@127.0.0.1:1/x"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done
        assert extra_command("postgres") in done.stdout + done.stderr
        assert "s3cr3t-word" not in done.stdout + done.stderr


def test_a_database_is_not_copied_to_itself(
    home: Home, tmp_path: Path, empty_database_url: str
) -> None:
    assert store(home, "migrate").returncode == 0
    file = f"sqlite:{home.path}/sessions.sqlite"
    (tmp_path / "link.sqlite").symlink_to(home.path / "sessions.sqlite")
    same = empty_database_url.replace("127.0.0.1", "localhost")
    environ = {"HERE": empty_database_url, "THERE": same}
    assert store(home, "migrate", "env:HERE", **environ).returncode == 0
    for source, target in ((file, f"sqlite:{tmp_path}/link.sqlite"), ("env:HERE", "env:THERE")):
        done = store(home, "copy", "--from", source, "--to", target, **environ)
        assert done.returncode == 2
        assert "both" in done.stderr

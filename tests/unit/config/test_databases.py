"""The address of a Postgres database: found where it is named, refused by name, never repeated."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agent_core.config.databases import check_database_url, find_database_url, url_secrets
from agent_core.config.load import config_secrets, read_setup
from agent_core.errors import ConfigError, ErrorCode
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.options import RuntimeOptions
from tables import together

URL = "postgresql://ann:s3cr%40t-word@db.example:5432/agents?sslmode=require"
MODEL = {"provider": "ollama", "name": "gemma4"}
NAMED = {"model": MODEL, "store": {"url_env": "AGENT_DATABASE"}}


def refusal(tmp_path: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        RuntimeOptions(project_dir=tmp_path, home_dir=tmp_path / "home", **options).read_setup()
    assert caught.value.code in {ErrorCode.CONFIG_ERROR, ErrorCode.VALIDATION_ERROR}
    assert "s3cr" not in caught.value.message + str(caught.value.details)
    return caught.value.message


def test_the_variable_of_the_settings_holds_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = read_setup(tmp_path, home_dir=tmp_path, config=NAMED)
    monkeypatch.setenv("AGENT_DATABASE", f" {URL}\n")
    assert find_database_url(setup, os.environ) == URL
    given = read_setup(tmp_path, home_dir=tmp_path, config=NAMED, database_url="postgres://db/x")
    assert find_database_url(given, os.environ) == "postgres://db/x"
    assert "postgres" not in repr(given)
    plain = read_setup(tmp_path, home_dir=tmp_path, config={"model": MODEL})
    assert find_database_url(plain, os.environ) is None


@together("value", [None, "", "  "])
def test_a_variable_that_is_missing_is_named_with_the_cure(
    tmp_path: Path, value: str | None
) -> None:
    setup = read_setup(tmp_path, home_dir=tmp_path, config=NAMED)
    environ = {} if value is None else {"AGENT_DATABASE": value}
    with pytest.raises(ConfigError, match=r"AGENT_DATABASE.*not set.*postgresql://") as caught:
        find_database_url(setup, environ)
    assert caught.value.details == {"key": "store.url_env", "variable": "AGENT_DATABASE"}


@together(
    "url",
    [
        "postgres://db",
        "postgresql:///agents",
        "postgresql://?host=/run/postgresql",
        "postgresql://%2Frun%2Fpostgresql/agents",
        "postgresql://ann@/agents?host=/run&user=a@b",
        "postgresql://ann:a#b?c:d%40@db:5432/agents",
        "postgresql://ann:pw@db1:5432,db2,[fd00::2]:5433/agents?target_session_attrs=primary",
        "postgresql://[::1]:5432/agents",
    ],
)
def test_every_form_of_an_address_that_libpq_reads_is_taken(url: str) -> None:
    check_database_url(url, "it")


@together(
    "url",
    [
        "",
        "mysql://ann:s3cr@db/x",
        "sqlite:///s3cr",
        "host=db password=s3cr",
        "postgresql:/s3cr",
        "postgresql://",
        "postgresql://ann:s3cr et@db/x",
        "postgresql://ann:s3cr%zz@db/x",
        "postgresql://ann:s3cr\x00@db/x",
        "postgresql://ann:s3cr@db/x\nrm",
        "postgresql://ann@db:s3cr/x",
        "postgresql://ann@db:5432,other:s3cr/x",
        "postgresql://ann@db:5432:s3cr/x",
        "postgresql://ann@db:999999/x",
        "postgresql://ann:s3/cr@db/x",
        "postgresql://ann:s3@cr@db/x",
        "postgresql://ann@[::1/s3cr",
        5,
    ],
    ids=range(18),
)
def test_an_address_that_is_none_is_refused_and_not_repeated(tmp_path: Path, url: Any) -> None:
    assert "database_url" in refusal(tmp_path, config={"model": MODEL}, database_url=url)
    if isinstance(url, str) and url:
        setup = read_setup(tmp_path, home_dir=tmp_path, config=NAMED)
        with pytest.raises(ConfigError, match="AGENT_DATABASE") as caught:
            find_database_url(setup, {"AGENT_DATABASE": url})
        assert "s3cr" not in caught.value.message


@pytest.mark.parametrize("config", [NAMED, {"model": MODEL}], ids=["variable", "argument"])
def test_two_places_for_the_sessions_are_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    given = {"config": config} if "store" in config else {"config": config, "database_url": URL}
    named = "store.url_env" if "store" in config else "database_url"
    message = refusal(tmp_path, session_db_path=tmp_path / "x.sqlite", **given)
    assert named in message
    assert "session_db_path" in message
    message = refusal(tmp_path, persist=False, **given)
    assert named in message
    assert "persist=False" in message


def test_what_only_a_database_of_many_has_is_refused_without_one(tmp_path: Path) -> None:
    assert "url_env" in refusal(tmp_path, config={"model": MODEL}, tenant="a")
    blobs = {"model": MODEL, "store": {"blobs": "s3://bucket/x"}}
    assert "store.url_env" in refusal(tmp_path, config=blobs)
    assert (
        read_setup(tmp_path, home_dir=tmp_path, config=NAMED, tenant="a.b-C_1").tenant == "a.b-C_1"
    )


@together("tenant", ["", "a/b", "x" * 41, "ä", "a\n", "a b"], ids=range(6))
def test_a_tenant_has_a_plain_name(tmp_path: Path, tenant: str) -> None:
    assert "tenant" in refusal(tmp_path, config=NAMED, tenant=tenant)


@together(
    ("key", "value"),
    [
        ("url_env", URL),
        ("url_env", ""),
        ("url_env", "MY-URL"),
        ("blobs", "/folder"),
        ("blobs", "s3://key:s3cr@bucket/x"),
        ("blobs", "s3://"),
        ("blobs", "file://folder"),
        ("blobs", "http://bucket/x"),
        ("blobs", "s3://bucket/x?secret=s3cr"),
    ],
)
def test_a_setting_of_the_store_that_is_none_is_refused_by_its_key(
    tmp_path: Path, key: str, value: str
) -> None:
    message = refusal(tmp_path, config={"model": MODEL, "store": {key: value}})
    assert f"store.{key}" in message


@together(
    ("key", "value"),
    [
        ("places", []),
        ("places", ["host:"]),
        ("places", ["anywhere"]),
        ("places", ["host:a/b"]),
        ("queues", []),
        ("queues", ["x" * 25]),
        ("queues", ["a/b"]),
        ("host_id", ""),
        ("host_id", "x" * 41),
        ("concurrency", 0),
    ],
)
def test_a_setting_of_workers_that_is_none_is_refused_by_its_key(
    tmp_path: Path, key: str, value: Any
) -> None:
    said = refusal(tmp_path, config={"model": MODEL, "worker": {key: value}})
    assert f"worker.{key}" in said
    assert " should " not in said
    assert "not a string" not in said
    assert "not an array" not in said


def test_settings_of_store_and_workers_are_taken(tmp_path: Path) -> None:
    config = {
        **NAMED,
        "store": {"url_env": "DB", "blobs": f"file://{tmp_path}/blobs", "queue_timeout_s": 0.5},
        "worker": {"places": ["snapshot", "host:build-1"], "queues": ["fast"], "host_id": "b.1"},
    }
    read = read_setup(tmp_path, home_dir=tmp_path, config=config).config
    assert read.store.queue_timeout_s == 0.5
    assert read.worker.places == ["snapshot", "host:build-1"]


def test_every_spelling_of_the_password_is_a_secret(tmp_path: Path) -> None:
    environ = {"AGENT_DATABASE": URL, "PGPASSWORD": "from-libpq"}
    config = read_setup(tmp_path, home_dir=tmp_path, config=NAMED).config
    secrets = set(config_secrets(config, environ=environ).values())
    assert {URL, "s3cr@t-word", "s3cr%40t-word", "from-libpq"} <= secrets
    found = url_secrets("postgresql:///x?user=a&password=p%2Fw&host=/run", "database_url", {})
    assert "p/w" in found.values()


@together(
    ("written", "decoded"), [("p%2fw+ord", "p/w+ord"), ("p%2Fw%25d", "p/w%d"), ("p[w#rd", "p[w#rd")]
)
@together(
    "url",
    [
        "postgresql://app:{}@host/db",
        "postgresql://app:{}@one:1,two:2/db?x=1",
        "postgresql://host/db?user=app&password={}",
        "postgresql:///db?sslpassword={}&host=/run",
        "postgresql:///db?pass%77ord={}",
    ],
)
def test_a_password_in_an_address_is_redacted_in_every_spelling(
    url: str, written: str, decoded: str
) -> None:
    check_database_url(url.format(written), "it")
    redactor = Redactor(url_secrets(url.format(written), "database_url", {}))
    for spelling in (written, decoded, quote(decoded, safe=""), quote(decoded)):
        assert redactor.secrets_only(f"as {spelling!r} here").startswith("as '[redacted:")
        assert spelling not in redactor.secrets_only(f"as {spelling!r} here")


def test_the_user_and_the_host_of_a_database_are_no_secrets() -> None:
    url = "postgresql://application@database-host:5432/name?connect_timeout=10"
    assert url_secrets(url, "database_url", {}) == {"database_url": url}


def test_secrets_of_other_addresses_are_learnt_in_every_spelling(tmp_path: Path) -> None:
    model = {
        **MODEL,
        "base_url": "https://me:first%2fkey@host/v1?api-version=2024-10-21&api-key=second%2fkey",
        "proxy": "http://me:third%2fkey@proxy:1",
    }
    config = read_setup(tmp_path, home_dir=tmp_path, config={"model": model}).config
    redactor = Redactor(config_secrets(config, environ={"HTTPS_PROXY": "fourth%2fkey@proxy"}))
    for spelling in ("/", "%2f", "%2F"):
        for number in ("first", "second", "third", "fourth"):
            assert f"{spelling}key" not in redactor.secrets_only(f"x {number}{spelling}key x")
    assert redactor.secrets_only("2024-10-21 me host") == "2024-10-21 me host"

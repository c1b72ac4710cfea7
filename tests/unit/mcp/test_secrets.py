"""Which values of `mcp.json` redaction has to find, and which stand in ordinary texts."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_core.mcp import read_servers, secret_values
from agent_core.redaction import Redactor


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def redactor(home: Path, entry: dict[str, Any]) -> Redactor:
    home.joinpath("mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    return Redactor(secret_values(read_servers(home, home)))


@pytest.mark.long
@pytest.mark.parametrize("is_disabled", [False, True])
@pytest.mark.parametrize("name", ["API_TOKEN", "REGION", "LANG", "PATH", "x"])
@pytest.mark.parametrize(
    "value",
    ["hunter2-long-value", "4711-0815", "hunter2", "Swordfish", "/nowhere/hunter2", "two words"],
)
def test_every_value_of_env_is_a_secret_whatever_its_name(
    home: Path, name: str, value: str, is_disabled: bool
) -> None:
    entry = {"command": "x", "env": {name: value}, "disabled": is_disabled}
    found = redactor(home, entry)
    assert found.secrets_only(f"it is {value}.") == f"it is [redacted:s_{name}]."


@pytest.mark.parametrize("name", ["Authorization", "X-Region", "Accept", "User-Agent"])
def test_every_value_of_headers_is_a_secret_with_and_without_its_scheme(
    home: Path, name: str
) -> None:
    found = redactor(home, {"url": "https://x/mcp", "headers": {name: "Scheme hunter2-long"}})
    for text in ("Scheme hunter2-long", "hunter2-long"):
        assert "hunter2" not in found.secrets_only(f"header {text}")


@pytest.mark.parametrize(
    "value",
    [
        "1", "C", "on", "true", "TRUE", "8080", "30000", "en_US.UTF-8", "C.UTF-8", "de_DE",
        "/usr/bin", "/usr/bin:/bin", "/", "info", "production",
        "application/json, text/event-stream",
        "text/html; q=0.5", "http://127.0.0.1:11434", "localhost:8080", "2025-11-25",
    ],
)  # fmt: skip
def test_a_value_known_to_be_harmless_stays_in_texts(home: Path, value: str) -> None:
    found = redactor(home, {"command": "x", "env": {"API_TOKEN": value}})
    assert not found.has_secrets


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgres://me:hunter2!@host/db", "hunter2!"),
        ("postgres://me:hunter%232@host/db", "hunter#2"),
        ("https://key-4711@host/db", "key-4711"),
        ("https://host/db?a=1&api=hunter2-long", "hunter2-long"),
        ("https://hooks.example/T000/abcdefghij0123456789", "abcdefghij0123456789"),
        ("Basic bWU6aHVudGVyMg==", "hunter2"),
        ("Basic bWU6aHVudGVyMg==", "bWU6aHVudGVyMg=="),
        ("session=hunter2-long; theme=dark", "hunter2-long"),
    ],
)
def test_what_is_a_secret_by_itself_within_a_value_is_found_alone(
    home: Path, value: str, shown: str
) -> None:
    found = redactor(home, {"command": "x", "env": {"DB": value}})
    assert shown not in found.secrets_only(f"refused: {shown}")


@pytest.mark.parametrize(
    "args",
    [
        ["--api-key", "hunter2-long"],
        ["--api-key=hunter2-long"],
        ["-y", "pkg", "postgres://me:hunter2-long@host/db"],
        ["https://host/mcp?key=hunter2-long"],
    ],
)
def test_keys_among_the_arguments_are_found(home: Path, args: list[str]) -> None:
    found = redactor(home, {"command": "x", "args": args})
    assert "hunter2-long" not in found.secrets_only("with hunter2-long")
    assert found.secrets_only("pkg host mcp -y") == "pkg host mcp -y"


def test_keys_in_an_address_are_found(home: Path) -> None:
    found = redactor(home, {"url": "https://host/s/abcdef0123456789abcdef/mcp?token=hunter2"})
    shown = found.secrets_only("hunter2 abcdef0123456789abcdef host")
    assert shown == "[redacted:s_url] [redacted:s_url_2] host"


def test_a_server_cannot_make_redaction_forget_another_secret_by_the_name_of_its_own() -> None:
    found = Redactor({"MY_KEY": "first-value"})
    found.learn({"MY_KEY": "second-value"})
    assert found.text("first-value second-value") == "[redacted:MY_KEY] [redacted:MY_KEY]"

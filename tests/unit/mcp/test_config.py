"""`mcp.json`: read whole or refused with the place of the mistake."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent_core.errors import ConfigError, ErrorCode
from agent_core.mcp import load_servers
from agent_core.mcp.config import HttpServer, StdioServer, config_hash


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    return tmp_path / "home", tmp_path / "project"


def load(folders: tuple[Path, Path], content: object) -> dict[str, Any]:
    home, project = folders
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (home / "mcp.json").write_bytes(raw)
    return load_servers(home, project)


def reason(folders: tuple[Path, Path], content: object) -> str:
    with pytest.raises(ConfigError) as refused:
        load(folders, content)
    assert refused.value.code is ErrorCode.CONFIG_ERROR
    assert str(folders[0] / "mcp.json") in refused.value.message
    return refused.value.message


def test_without_the_file_there_are_no_servers(folders: tuple[Path, Path]) -> None:
    assert load_servers(*folders) == {}


def test_a_file_of_another_client_is_understood(folders: tuple[Path, Path]) -> None:
    entries = {
        "files": {"type": "stdio", "command": "npx", "args": ["-y", "x"], "env": {"A": "b"}},
        "docs": {"type": "http", "url": "https://docs.example/mcp", "headers": {"X-Key": "k"}},
        "old": {"transport": "sse", "url": "http://127.0.0.1:1/sse"},
    }
    servers = load(folders, {"mcpServers": entries})
    home = str(folders[0])
    assert servers == {
        "files": StdioServer(command="npx", args=["-y", "x"], env={"A": "b"}, cwd=home),
        "docs": HttpServer(url="https://docs.example/mcp", headers={"X-Key": "k"}),
        "old": HttpServer.model_validate({"url": "http://127.0.0.1:1/sse", "transport": "sse"}),
    }


def test_a_server_starts_in_the_home_unless_the_file_names_a_folder(
    folders: tuple[Path, Path],
) -> None:
    home, project = folders
    (project / "mcp.json").write_text('{"mcpServers": {"evil": {"command": "sh"}}}')
    entries = {
        "plain": {"command": "a"},
        "below": {"command": "a", "cwd": "servers"},
        "there": {"command": "a", "cwd": "<project>/tools"},
    }
    servers = load(folders, {"mcpServers": entries})
    assert {key: each.cwd for key, each in servers.items()} == {
        "plain": str(home),
        "below": str(home / "servers"),
        "there": str(project / "tools"),
    }


def test_nothing_is_expanded_in_the_environment(folders: tuple[Path, Path]) -> None:
    entry = {"command": "a", "args": ["$HOME", "~"], "env": {"KEY": "${HOME}"}}
    server = load(folders, {"mcpServers": {"x": entry}})["x"]
    assert (server.args, server.env) == (["$HOME", "~"], {"KEY": "${HOME}"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1, column 1"),
        (b"null", "must be an object"),
        (b"[]", "must be an object"),
        (b'{"mcpServers": []}', "mcpServers must be an object"),
        (b'{"servers": {}}', '"servers" is not a known key'),
        (b'{"mcpServers": {"a": {"command": "x"},}}', "line 1, column"),
        (b'{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', '"a" is given twice'),
        (b"\xef\xbb\xbf{", "line 1, column 2"),
        (b'{"mcpServers":\n"\xff"}', "line 2 is not UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"mcpServers": ' + b"1" * 5000 + b"}", "digits"),
        (b" " * 1_000_001, "larger than"),
    ],
)
def test_a_broken_file_is_refused(folders: tuple[Path, Path], content: bytes, words: str) -> None:
    assert words in reason(folders, content)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (7, "must be an object"),
        ({}, "exactly one of"),
        ({"command": "a", "url": "http://x"}, "exactly one of"),
        ({"cmd": "a", "args": []}, '"url"; "cmd" is not a known key'),
        ({"type": "stdio"}, 'exactly one of "command" and "url"'),
        ({"command": ""}, "command"),
        ({"command": "a", "args": "b"}, "args"),
        ({"command": "a", "args": ["b", 1]}, "args[1]"),
        ({"command": "a", "autoApprove": ["*"]}, "autoApprove is not a known key"),
        ({"command": "a", "env": {"A=B": "c"}}, "env"),
        ({"command": "a\u0000b"}, "NUL"),
        ({"command": "a", "transport": "http"}, "transport"),
        ({"command": "a", "cwd": "${HOME}"}, ".cwd: unknown placeholder"),
        ({"url": "ftp://x/y"}, "http or https"),
        ({"url": "https://user:pass@x/y"}, "credentials"),
        ({"url": "https://x", "headers": {"A\nB": "c"}}, "headers"),
        ({"url": "https://x", "headers": {"A": "s3cret\r\nB: c"}}, "headers"),
        ({"url": "https://x", "timeout_ms": 0}, "timeout_ms"),
        ({"url": "https://x", "type": "http", "transport": "sse"}, "type"),
    ],
)
def test_a_broken_server_is_named(folders: tuple[Path, Path], entry: object, words: str) -> None:
    message = reason(folders, {"mcpServers": {"ok": {"command": "a"}, "bad": entry}})
    assert 'mcpServers."bad"' in message
    assert words in message
    assert "s3cret" not in message
    assert "pass@" not in message


@pytest.mark.parametrize("server_id", ["", "a.b", "a b", "a/b", "x" * 65, "ä"])
def test_an_id_has_to_fit_into_a_tool_name(folders: tuple[Path, Path], server_id: str) -> None:
    assert "server id" in reason(folders, {"mcpServers": {server_id: {"command": "a"}}})


def test_a_folder_in_place_of_the_file_is_refused(folders: tuple[Path, Path]) -> None:
    (folders[0] / "mcp.json").mkdir()
    with pytest.raises(ConfigError, match=re.escape("not a regular file")):
        load_servers(*folders)


def test_the_hash_tells_servers_apart() -> None:
    one = StdioServer(command="a", env={"K": "1"})
    assert config_hash(one) == config_hash(one.model_copy())
    assert config_hash(one) != config_hash(StdioServer(command="a", env={"K": "2"}))
    assert config_hash(HttpServer(url="https://x")) != config_hash(HttpServer(url="https://y"))


def test_n3_a_server_that_its_entry_disables_is_left_out(folders: tuple[Path, Path]) -> None:
    on, off = {"command": "a", "disabled": False}, {"command": "b", "disabled": True}
    assert list(load(folders, {"mcpServers": {"on": on, "off": off}})) == ["on"]

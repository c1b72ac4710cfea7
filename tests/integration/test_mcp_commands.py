"""`mcp list` and `mcp test`: what is known of servers, and what they say when they are asked."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm
from isolation import Home

LIBRARY = str(Path(__file__).parents[1] / "mcp_servers" / "library.py")


@pytest.fixture
def servers(home: Home) -> dict[str, Any]:
    found: dict[str, Any] = {
        "lib": {"command": sys.executable, "args": warm.arguments(LIBRARY)},
        "off": {"command": "never-started", "disabled": True},
        "far": {"url": "http://127.0.0.1:9/mcp"},
        "broken": {"command": sys.executable, "args": ["-c", "raise SystemExit('no luck')"]},
    }
    home.write("mcp.json", json.dumps({"mcpServers": found}))
    return found


def mcp(home: Home, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "agent_core.cli", "mcp", *words],
        env=home.env(),
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.usefixtures("servers")
def test_servers_are_listed_with_their_state_without_a_configuration(
    home: Home, project: Path
) -> None:
    shown = mcp(home, project, "list")
    assert shown.returncode == 0, shown.stderr
    lines = {line.split()[0]: line.split() for line in shown.stdout.splitlines()}
    assert lines["lib"][1] == "stdio"
    assert lines["off"][-1] == "disabled"
    assert lines["far"][1:] == ["http", "http://127.0.0.1:9/mcp"]
    rows = [json.loads(line) for line in mcp(home, project, "list", "--json").stdout.splitlines()]
    assert [row["id"] for row in rows] == ["lib", "off", "far", "broken"]
    assert [row["state"] for row in rows] == ["on", "disabled", "on", "on"]


@pytest.mark.usefixtures("servers")
def test_a_server_that_answers_says_what_it_offers_and_how_fast(home: Home, project: Path) -> None:
    shown = mcp(home, project, "test", "lib")
    assert shown.returncode == 0, shown.stderr
    assert "resource book://tides" in shown.stdout
    assert "prompt " in shown.stdout
    assert "lib answers in " in shown.stderr
    found = json.loads(mcp(home, project, "test", "lib", "--json").stdout)
    assert (found["ok"], found["problems"]) == (True, [])
    assert found["connected_ms"] >= 0
    assert "book://tides" in found["resources"]
    assert found["prompts"]


@pytest.mark.usefixtures("servers")
def test_a_server_that_does_not_answer_is_an_error_with_a_cure(home: Home, project: Path) -> None:
    for name, cure in (("broken", "command, args and env"), ("far", "check its url")):
        shown = mcp(home, project, "test", name)
        assert (shown.returncode, shown.stdout) == (1, "")
        assert shown.stderr.startswith("error: ")
        assert cure in shown.stderr
    found = json.loads(mcp(home, project, "test", "broken", "--json").stdout)
    assert (found["ok"], found["tools"]) == (False, [])
    assert found["problems"]
    unknown = mcp(home, project, "test", "libb")
    assert (unknown.returncode, "lib, off, far, broken" in unknown.stderr) == (1, True)

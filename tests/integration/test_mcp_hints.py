"""A server's hints about its tools, as questions to the user."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import calls
from isolation import Home
from mcp_bench import SERVERS
from runtimes import CONFIG, Asked, runtime

TOOLS = ["fetch", "fetch_as_text", "fetch_as_number", "closed", "unsaid_world", "publish"]
OPEN = ["fetch", "fetch_as_text", "fetch_as_number", "publish"]


@pytest.fixture(autouse=True)
def server(home: Home) -> None:
    entry = {"command": sys.executable, "args": ["-S", str(SERVERS / "plain.py"), "open"]}
    home.write("mcp.json", json.dumps({"mcpServers": {"plain": entry}}))


async def asked(home: Home, project: Path, config: str = CONFIG, *, answer: str = "deny") -> Any:
    """Call every tool, twice, and return the names of those that were asked for."""
    user = Asked(answer)
    script: list[Any] = [calls(f"mcp.plain.{name}") for name in TOOLS for _ in range(2)]
    async with runtime(
        home, project, [*script, "done"], config=config, permission_callback=user
    ) as made:
        await made.run("go", session_id="s1")
    return [request.tool_name.rpartition(".")[2] for request in user.requests], user.requests


async def test_a_tool_that_reaches_others_asks_although_it_only_reads(
    home: Home, project: Path
) -> None:
    names, requests = await asked(home, project)
    assert names == [name for name in OPEN for _ in range(2)]
    assert all("network" in request.tags for request in requests)


async def test_an_answer_for_the_session_covers_exactly_these_arguments(
    home: Home, project: Path
) -> None:
    names, requests = await asked(home, project, answer="allow_for_session")
    assert names == OPEN
    assert "exactly" in requests[0].target_scope


@pytest.mark.long
async def test_a_rule_allows_such_a_tool_and_an_override_to_readonly_does_not(
    home: Home, project: Path
) -> None:
    config = CONFIG + (
        '[tools.mcp.tool_overrides."mcp.plain"]\npermission = "readonly"\n'
        '[[permissions.rules]]\ndecision = "allow"\ntool = "mcp.plain.fetch_*"\n'
    )
    names, _ = await asked(home, project, config)
    assert names == ["fetch", "fetch", "publish", "publish"]

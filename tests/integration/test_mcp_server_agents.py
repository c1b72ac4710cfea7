"""An agent that uses another one through `soong-agent mcp serve`: our client and our server."""

import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime
from agent_core.mcp import McpHttp, McpStdio
from agent_core.providers.scripted import calls
from agent_core.types import (
    Decision,
    ElicitationAnswer,
    ElicitationRequest,
    PermissionDecision,
    PermissionRequest,
    RunStatus,
)
from isolation import Home
from mcp_clients import COMMAND, configure, listening
from model_server import ModelServer
from sweeps import paired

WRITE = calls("code.write_file", path="a.txt", content="hi\n")
ASK = calls("mcp.agent.run", message="write it")


class Person:
    """Allows the call of the inner agent, and gives its forms one decision."""

    def __init__(self, decision: str) -> None:
        self.decision = decision
        self.calls: list[PermissionRequest] = []
        self.forms: list[ElicitationRequest] = []

    async def decide(self, request: PermissionRequest) -> PermissionDecision:
        self.calls.append(request)
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    async def fill(self, request: ElicitationRequest) -> ElicitationAnswer:
        self.forms.append(request)
        return ElicitationAnswer(action="accept", content={"decision": self.decision})


async def ask_outer(
    server: ModelServer, toolset: Any, person: Person, home: Path, project: Path
) -> tuple[str, RunStatus]:
    config = {"model": {"provider": "openai", "name": "m", "base_url": server.base_url("openai")}}
    async with AgentRuntime(
        project,
        home_dir=home,
        config={**config, "memory": {"enabled": False}},
        permission_callback=person.decide,
        elicitation_callback=person.fill,
        toolsets=[toolset],
    ) as runtime:
        result = await runtime.run("let the other one write it")
    return result.text, result.status


def of_inner(home: Home, project: Path, **more: Any) -> McpStdio:
    arguments = [*COMMAND[1:], "--path", str(project)]
    return McpStdio("agent", sys.executable, arguments, env=home.env(), **more)


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "decision"), paired(["auto", "2025-11-25"], ["allow_once", "deny"])
)
async def test_the_person_at_the_outer_agent_answers_the_question_of_the_inner_one(
    home: Home, project: Path, tmp_path: Path, protocol: Any, decision: str
) -> None:
    person = Person(decision)
    async with ModelServer([WRITE, "inner answer"]) as inner, ModelServer([ASK, "done"]) as outer:
        configure(home, inner.base_url("openai"))
        toolset = of_inner(home, project, protocol=protocol)
        text, status = await ask_outer(outer, toolset, person, tmp_path, project)
        told = str(outer.requests[1].body)
    assert (text, status) == ("done", RunStatus.COMPLETED)
    assert [each.tool_name for each in person.calls] == ["mcp.agent.run"]
    (form,) = person.forms
    assert "code.write_file" in form.message
    assert (project / "a.txt").exists() is (decision == "allow_once")
    assert "inner answer" in told
    assert "session_id" in told


@pytest.mark.long
async def test_an_agent_reaches_another_one_over_http(
    home: Home, project: Path, tmp_path: Path
) -> None:
    person = Person("allow_once")
    async with ModelServer([WRITE, "inner answer"]) as inner, ModelServer([ASK, "done"]) as outer:
        configure(home, inner.base_url("openai"))
        with listening(home, project) as served:
            toolset = McpHttp("agent", served.url, headers=served.headers)
            text, _ = await ask_outer(outer, toolset, person, tmp_path, project)
    assert text == "done"
    assert len(person.forms) == 1
    assert (project / "a.txt").exists()

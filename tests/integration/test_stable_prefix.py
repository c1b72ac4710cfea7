"""The part of a prompt before the conversation stays the same, byte for byte, in every process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core import AgentRuntime, RunStatus
from agent_core.providers.scripted import Says
from agent_core.types import Usage
from confined_work import git
from isolation import Home
from model_server import ModelServer, Received, Reply
from runtimes import Asked, ask
from sweeps import is_whole

CONFIG = """
[model]
provider = "openai"
name = "m"
base_url = "{url}"
{more}

[context]
instructions = "preloaded"

[compact]
keep_recent_tokens = 200

[memory]
enabled = false
"""


def answers(request: Received) -> Reply:
    """Answer with more tokens than estimated, so that the estimates are learnt to be too low."""
    if not request.body.get("tools"):
        return '{"summary": "What was said before, in as many words as it needs, and no more."}'
    tokens = len(request.raw) // 2
    return Says(text="answer " * 60, usage=Usage(input_tokens=tokens, output_tokens=60))


def opened(home: Home, project: Path, server: ModelServer, more: str = "") -> AgentRuntime:
    home.write_config(CONFIG.format(url=server.base_url("openai"), more=more))
    return AgentRuntime(
        project_dir=project, home_dir=home.path, permission_callback=Asked("allow_once")
    )


def continue_in_new_process(home: Home, project: Path) -> None:
    words = ["run", "--session-id", "s1", "and in another process?"]
    subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "agent_core.cli", *words],
        env=home.env(),
        cwd=project,
        capture_output=True,
        timeout=60,
        check=True,
    )


def prefixes(server: ModelServer) -> list[str]:
    """Return what stands before the conversation in each request of a run."""
    runs = [request.body for request in server.requests if request.body.get("tools")]
    return [json.dumps([body["tools"], body["messages"][0]]) for body in runs]


def fill(home: Home, project: Path) -> None:
    """Write more instructions and skills than the budgets have room for."""
    for number in range(60):
        head = f"name: skill-{number:02}\ndescription: {'How to do one thing well. ' * 9}"
        home.write(f"skills/s{number:02}.md", f"---\n{head}\n---\nDo it.\n")
    (project / "AGENTS.md").write_text("Keep to these rules.\n" * 150)
    for number in range(80):
        (project / f"folder{number:02}").mkdir()
        (project / f"folder{number:02}" / "AGENTS.md").write_text("Be deep.\n")


async def test_budgets_do_not_follow_what_is_learnt_of_tokens(home: Home, project: Path) -> None:
    fill(home, project)
    questions = 10 if is_whole() else 5
    with ModelServer.in_thread(answers) as server:
        async with opened(home, project, server, "context_window = 12000") as made:
            for number in range(questions):
                await ask(made, f"question {number}")
        async with opened(home, project, server, "context_window = 12000") as made:
            await ask(made, "and now?")
        continue_in_new_process(home, project)
    assert len(prefixes(server)) == questions + 2
    assert len(set(prefixes(server))) == 1
    assert "\\u2026" in prefixes(server)[0]  # there was no room for all descriptions


@pytest.mark.sweep
async def test_budgets_are_those_of_the_window_when_the_session_was_opened(
    home: Home, project: Path
) -> None:
    fill(home, project)
    listed = {"/v1/models": {"data": [{"id": "m", "max_model_len": 12_000}]}}
    with ModelServer.in_thread(answers) as server:
        server.facts |= listed
        async with opened(home, project, server) as made:
            await ask(made, "first")
        for later in ({}, {"/v1/models": {"data": [{"id": "m", "max_model_len": 64_000}]}}):
            server.facts.clear()
            server.facts |= later
            continue_in_new_process(home, project)
    assert len(prefixes(server)) == 3
    assert len(set(prefixes(server))) == 1


@pytest.mark.sweep
async def test_the_repository_is_named_as_it_was_when_the_session_began_or_was_summarised(
    home: Home, project: Path
) -> None:
    (project / "a.txt").write_text("1\n")
    git(project, "init", "-q", "-b", "trunk")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    with ModelServer.in_thread(answers) as server:
        async with opened(home, project, server, "context_window = 16000") as made:
            await ask(made, "first")
            (project / "a.txt").write_text("2\n")
            git(project, "checkout", "-q", "-b", "topic")
            await ask(made, "second")
        continue_in_new_process(home, project)
        before = prefixes(server)
        async with opened(home, project, server, "context_window = 16000") as made:
            for number in range(4):
                await ask(made, f"question {number}")
            handle = await made.compact_session("s1")
            assert await handle.wait() is RunStatus.COMPLETED
            await ask(made, "after it")
            git(project, "checkout", "-q", "-b", "another")
            await ask(made, "and again")
        continue_in_new_process(home, project)
    assert len(before) == 3
    assert len(set(before)) == 1
    assert "branch trunk, no files changed" in before[0]
    after = prefixes(server)[-3:]
    assert len(set(after)) == 1
    assert "branch topic, files changed" in after[0]
    assert after[0].replace("topic, files", "trunk, no files") == before[0]


async def test_a_project_without_a_repository_says_nothing_of_one(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread(answers) as server:
        async with opened(home, project, server) as made:
            await ask(made, "first")
    assert "Git" not in prefixes(server)[0]

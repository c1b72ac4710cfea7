"""What stored runs have cost, added up by day, model, project and session."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, AgentRuntime, ModelConfig, Usage
from agent_core.providers.scripted import Says, ScriptedProvider, calls
from agent_core.types import CostSummary
from captures import record
from isolation import Home
from runtimes import CONFIG, runtime

PRICED = CONFIG + "[model.price]\ninput = 1.0\noutput = 2.0\n"
USAGE = Usage.from_input_output(1000, 500)
COST = 0.002
"""Of one call, at a dollar and two for a million tokens."""


def says(text: str) -> Says:
    return Says(text=text, usage=USAGE)


def command(home: Home, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "agent_core.cli", "cost", *words],
        env=home.env() | {"COLUMNS": "80"},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def other(made: AgentRuntime, *script: Any) -> None:
    """A provider whose models have no price."""
    provider = ScriptedProvider(script)

    def factory(_: ModelConfig) -> ScriptedProvider:
        return provider

    made.register_provider("free", factory)


def by_key(rows: list[CostSummary]) -> dict[str, CostSummary]:
    return {row.key: row for row in rows}


async def test_costs_are_added_up_by_what_is_asked_for(home: Home, project: Path) -> None:
    script = [says("one"), says("two"), says("three")]
    async with runtime(home, project, script, config=PRICED) as made:
        other(made, says("four"))
        await made.run("go", session_id="s1")
        await made.run("go", session_id="s1")
        await made.run("go", session_id="s2")
        await made.run("go", session_id="s2", model="free:small")

        (total,) = await made.costs()
        assert (total.sessions, total.runs, total.usage.total_tokens) == (2, 4, 6000)
        assert (total.usage.cost, total.unpriced) == (None, 1)
        assert total.known_cost == pytest.approx(3 * COST)

        sessions = by_key(await made.costs("session"))
        assert list(sessions) == ["s2", "s1"]
        assert sessions["s1"].usage.cost == pytest.approx(2 * COST)
        assert sessions["s1"].title == "go"
        assert sessions["s2"].usage.cost is None

        models = by_key(await made.costs("model"))
        assert models["custom:script"].runs == 3
        assert models["free:small"].usage.cost is None

        (of_project,) = await made.costs("project")
        assert of_project.key == str(project)
        (today,) = await made.costs("day")
        assert today.key == f"{datetime.now().astimezone():%Y-%m-%d}"


async def test_costs_are_narrowed_by_time_and_project(home: Home, project: Path) -> None:
    async with runtime(home, project, [says("one")], config=PRICED) as made:
        await made.run("go", session_id="s1")
        soon = datetime.now(UTC) + timedelta(minutes=1)
        assert await made.costs(since=soon) == []
        assert len(await made.costs(since=soon - timedelta(hours=1))) == 1
        assert await made.costs("session", project=home.path) == []
        assert await made.costs("session", limit=0) == []
        with pytest.raises(AgentCoreError, match="time zone"):
            await made.costs(since=datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused


async def test_children_count_for_their_model_and_are_no_runs_of_a_user(
    home: Home, project: Path
) -> None:
    script = [calls("agent.create_sub_agent", task="do"), says("child"), says("done")]
    async with runtime(home, project, script, config=PRICED) as made:
        await made.run("go", session_id="s1")
        models = by_key(await made.costs("model"))
    assert list(models) == ["custom:script"]
    assert models["custom:script"].runs == 1
    assert models["custom:script"].usage.total_tokens >= 3000


async def test_the_command_says_what_is_not_known(home: Home, project: Path) -> None:
    async with runtime(home, project, [says("one")], config=PRICED) as made:
        other(made, says("two"))
        await made.run("hello there", session_id="s1")
        await made.run("go", session_id="s2", model="free:small")
    shown = command(home, project)
    assert shown.returncode == 0
    for line in ("by day", "by model", "by project", "by session", "in all, 2 sessions"):
        assert line in shown.stdout
    models = shown.stdout.split("by model\n")[1].split("\n\n")[0].splitlines()
    assert models[0].split() == ["free:small", "1", "run", "1,500", "tokens", "unknown"]
    assert models[1].split() == ["custom:script", "1", "run", "1,500", "tokens", "$0.002000"]
    assert "s1  hello there" in shown.stdout
    assert "$0.002000 + ?" in shown.stdout.splitlines()[-1]
    assert "[model] price" in shown.stderr
    wide = [line for line in shown.stdout.splitlines() if len(line) > 80]
    assert [str(project) in line for line in wide] == [True]  # whole, for a program that reads it

    found = json.loads(command(home, project, "--json", "--by", "session").stdout)
    assert list(found) == ["total", "session"]
    assert found["total"]["unpriced"] == 1
    assert [row["key"] for row in found["session"]] == ["s2", "s1"]
    assert found["session"][0]["usage"]["cost"] is None


async def test_a_title_is_whole_where_a_program_reads_it(home: Home, project: Path) -> None:
    title = "change the colour of every button on the page that shows the settings"
    async with runtime(home, project, [says("one")], config=PRICED) as made:
        await made.run(title, session_id="s1")
    (line,) = [each for each in command(home, project).stdout.splitlines() if "s1  " in each]
    assert line.startswith(f"  s1  {title} ")
    assert line.endswith(" $0.002000")


async def test_a_screen_shows_the_beginning_of_an_id_and_more_of_the_title(
    home: Home, project: Path
) -> None:
    title = "change a colour"
    async with runtime(home, project, [says("one")], config=PRICED) as made:
        session_id = (await made.run(title)).session_id
    words = [sys.executable, "-m", "agent_core.cli", "cost", "--by", "session"]
    screen = await asyncio.to_thread(record, words, env=home.env(), cwd=project)
    assert screen.code == 0
    assert title in screen.text
    assert session_id not in screen.text
    assert session_id[:13] in screen.text


def test_the_command_needs_no_configuration_and_refuses_what_is_no_time(
    home: Home, project: Path
) -> None:
    home.path.mkdir(parents=True, exist_ok=True)
    empty = command(home, project)
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "no run has been stored" in empty.stderr
    of_one = command(home, project, "--path", str(project))
    assert of_one.stderr.strip() == f"no run of {project} has been stored"
    assert json.loads(command(home, project, "--json").stdout)["total"] is None
    for since in ("yesterday", "99999999d", "-1d"):
        refused = command(home, project, f"--since={since}")
        assert refused.returncode == 2
        assert "a date such as" in refused.stderr

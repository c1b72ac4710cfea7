"""Hooks of the user, as whole runs and commands meet them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent_core import RunStatus
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import EventType
from casts import Cast, data_of, results
from isolation import Home
from runtimes import runtime

RECORD = "cat >> %s; echo >> %s"


def write_hooks(home: Home, **events: list[dict[str, Any]]) -> None:
    home.write("hooks.json", json.dumps({"version": 1, "hooks": events}))


def on(command: str, **more: Any) -> dict[str, Any]:
    matcher = {"matcher": more.pop("matcher")} if "matcher" in more else {}
    return {**matcher, "hooks": [{"type": "command", "command": command, **more}]}


def facts_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def soong_agent(home: Home, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "agent_core.cli", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=home.env(**env),
    )


def play(home: Home, *replies: Any, more: str = "") -> None:
    home.write("replies.json", json.dumps(replies))
    home.write_config(
        f'[model]\nprovider = "scripted"\nname = "script"\npath = "{home.path}/replies.json"\n'
        f"[memory]\nenabled = false\n{more}"
    )


async def test_a_run_that_ends_against_an_objection_says_so(home: Home, project: Path) -> None:
    seen = home.path / "seen"
    write_hooks(home, Stop=[on(f"{RECORD % (seen, seen)}; echo 'test 7 fails' >&2; exit 2")])
    provider = ScriptedProvider([f"answer {number}" for number in range(1, 10)])
    async with runtime(home, project, provider) as made:
        result = await made.run("go", "s1")
        replay = await made.replay_session("s1")
        handle = await made.attach(result.run_id)
        read_again = await handle.result()
    assert (result.status, result.text) == (RunStatus.COMPLETED, "answer 9")
    heard = [(facts["denied_before"], facts["result_text"]) for facts in facts_in(seen)]
    assert heard == [(number, f"answer {number + 1}") for number in range(9)]
    assert result.metadata == read_again.metadata == {"stop_objection": "test 7 fails"}
    (end,) = [e.payload for e in replay.events if e.event_type is EventType.RUN_COMPLETED]
    assert end["stop_objection"] == "test 7 fails"


async def test_the_report_of_a_child_names_the_objection_that_it_ended_against(
    home: Home, project: Path
) -> None:
    is_child = 'grep -q \'"agent_role": "sub"\''
    write_hooks(home, Stop=[on(f"{is_child} && echo 'test 7 fails' >&2 && exit 2; exit 0")])
    asks = calls("agent.create_sub_agent", task="look around")
    cast = Cast({"go": [asks, "done"], "look around": ["looked"] * 9})
    async with runtime(home, project, cast) as made:
        result = await made.run("go", "s1")
        replay = await made.replay_session("s1", include_sensitive=True)
    assert (result.text, result.metadata) == ("done", {})
    report = data_of(results(replay, "agent.create_sub_agent")[0])
    assert report["metadata"]["stop_objection"] == "test 7 fails"


async def test_a_run_whose_last_answer_is_accepted_ends_without_an_objection(
    home: Home, project: Path
) -> None:
    reads = "import json, sys; sys.exit(2 * (json.load(sys.stdin)['denied_before'] < 8))"
    write_hooks(home, Stop=[on(f'{sys.executable} -c "{reads}"')])
    async with runtime(home, project, ["no"] * 8 + ["yes"]) as made:
        result = await made.run("go", "s1")
        replay = await made.replay_session("s1")
    assert (result.text, result.metadata) == ("yes", {})
    (end,) = [e.payload for e in replay.events if e.event_type is EventType.RUN_COMPLETED]
    assert "stop_objection" not in end


def test_the_command_shows_the_objection_that_its_run_ended_against(
    home: Home, project: Path, tmp_path: Path
) -> None:
    play(home, *["done"] * 9)
    write_hooks(home, Stop=[on("echo 'test 7 fails' >&2; exit 2")])
    events = tmp_path / "events"
    done = soong_agent(home, "run", "--path", str(project), "--events", str(events), "go")
    assert (done.returncode, done.stdout.strip()) == (0, "done")
    assert "completed against an objection: test 7 fails" in done.stderr
    last = json.loads(events.read_text(encoding="utf-8").splitlines()[-1])
    assert last["metadata"] == {"stop_objection": "test 7 fails"}

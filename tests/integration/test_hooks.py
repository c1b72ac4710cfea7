"""Hooks of the user, as whole runs and commands meet them."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import RunStatus, tool
from agent_core.providers.scripted import Says, ScriptedProvider, calls
from agent_core.types import EventType
from casts import Cast, data_of, results, together
from isolation import Home
from runtimes import CONFIG, Asked, runtime
from sweeps import kept

PLAIN_SERVER = Path(__file__).parents[1] / "mcp_servers" / "plain.py"
RECORD = """printf '%%s\\n' "$(cat)" >> %s"""


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


def last_session(events: Path) -> str:
    return str(json.loads(events.read_text(encoding="utf-8").splitlines()[-1])["session_id"])


def play(home: Home, *replies: Any, more: str = "") -> None:
    home.write("replies.json", json.dumps(replies))
    home.write_config(
        f'[model]\nprovider = "scripted"\nname = "script"\npath = "{home.path}/replies.json"\n'
        f"[memory]\nenabled = false\n{more}"
    )


@pytest.mark.sweep
async def test_a_run_that_ends_against_an_objection_says_so(home: Home, project: Path) -> None:
    seen = home.path / "seen"
    write_hooks(home, Stop=[on(f"{RECORD % seen}; echo 'test 7 fails' >&2; exit 2")])
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


async def test_a_stop_hook_gets_the_whole_of_a_continued_answer(home: Home, project: Path) -> None:
    seen = home.path / "seen"
    write_hooks(home, Stop=[on(RECORD % seen)])
    provider = ScriptedProvider([Says(text="first, ", stop_reason="max_tokens"), "second"])
    async with runtime(home, project, provider) as made:
        result = await made.run("go", "s1")
    assert result.text == "first, second"
    assert [facts["result_text"] for facts in facts_in(seen)] == ["first, second"]


@pytest.mark.sweep
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


@pytest.mark.sweep
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
    story = soong_agent(home, "sessions", "show", last_session(events))
    assert "completed against an objection: test 7 fails" in story.stdout
    last = json.loads(events.read_text(encoding="utf-8").splitlines()[-1])
    assert last["metadata"] == {"stop_objection": "test 7 fails"}


async def test_hooks_after_calls_see_every_call_that_began(home: Home, project: Path) -> None:
    @tool(permission="readonly")
    async def broken() -> str:
        """Break."""
        raise RuntimeError("broken")

    @tool(permission="readonly")
    async def unreadable() -> object:
        """Return something that has no form in JSON."""
        return object()

    both, forever = asyncio.Barrier(3), asyncio.Event()

    @tool(permission="readonly")
    async def endless() -> None:
        """Never end."""
        await both.wait()
        await forever.wait()

    seen = home.path / "seen"
    write_hooks(home, PostToolUse=[on(RECORD % seen)])
    sleep = {"argv": ["sleep", "30"], "timeout_ms": 300}
    script = [
        calls("code.list_dir", path="."),
        calls("broken"),
        calls("unreadable"),
        calls("no.such_tool"),
        calls("code.list_dir", path=7),
        calls("code.run_command", **sleep),
        calls("code.write_file", path="a", content="denied"),
        together(calls("endless"), calls("endless")),
    ]
    asked = Asked("allow_once", "deny")
    made = runtime(home, project, script, permission_callback=asked)
    for each in (broken, unreadable, endless):
        made.register_tool(each)
    async with made, asyncio.timeout(60):
        handle = await made.start("go", session_id="s1")
        await both.wait()
        await handle.cancel()
    heard = [(facts["tool_name"], facts["outcome"]) for facts in facts_in(seen)]
    assert heard == [
        ("code.list_dir", "completed"),
        ("broken", "failed"),
        ("unreadable", "completed"),
        ("code.run_command", "timed_out"),
        ("endless", "cancelled"),
        ("endless", "cancelled"),
    ]
    assert "part of its effect" in facts_in(seen)[-1]["result"]["error"]["message"]
    texts = [facts["result_text"] for facts in facts_in(seen)]
    assert json.loads(texts[0]) == facts_in(seen)[0]["result"]["content"][0]["data"]
    assert texts[1].startswith("error internal_error: ")
    assert texts[3].startswith("error timeout: ")
    assert all(texts)


async def test_a_hook_that_has_begun_after_a_call_ends_although_the_run_is_cancelled(
    home: Home, project: Path
) -> None:
    begun, seen = home.path / "begun", home.path / "seen"
    os.mkfifo(begun)
    hook = f"echo x > {begun}; sleep 0.3; {RECORD % seen}"
    write_hooks(home, PostToolUse=[on(hook), on("sleep 60")])
    async with runtime(home, project, [calls("code.list_dir", path="."), "done"]) as made:
        handle = await made.start("go", session_id="s1")
        await asyncio.to_thread(begun.read_bytes)
        async with asyncio.timeout(30):
            assert not (await handle.cancel()).timed_out
        replay = await made.replay_session("s1")
    assert [facts["outcome"] for facts in facts_in(seen)] == ["completed"]
    failed = [e.payload for e in replay.events if e.event_type is EventType.HOOK_FAILED]
    assert [each["code"] for each in failed] == ["cancelled"]


@pytest.mark.long
def test_a_run_that_a_hook_starts_runs_no_hooks(home: Home, project: Path, tmp_path: Path) -> None:
    play(home, "done")
    other = Home(tmp_path / "other")
    other.path.mkdir(mode=0o700)
    play(other, "done in another home")
    count, said = home.path / "count", home.path / "said"
    again = f"SOONG_AGENT_HOME=%s {sys.executable} -m agent_core.cli run --path {project} again"
    started = f"sh -c '{again % other.path}' & {again % home.path}; wait"
    hook = on(f"echo x >> {count}; ( {started} ) > {said} 2>&1; exit 0", timeout_ms=60_000)
    for each in (home, other):
        write_hooks(each, UserPromptSubmit=[hook])
    done = soong_agent(home, "run", "--path", str(project), "go")
    assert (done.returncode, done.stdout.strip()) == (0, "done")
    assert "hooks do not run here" not in done.stderr
    assert count.read_text(encoding="utf-8") == "x\n"
    nested = said.read_text(encoding="utf-8")
    assert "done in another home" in nested
    assert nested.count("hooks do not run here") == 2


@pytest.mark.parametrize(
    "is_hooks", kept([True, False], True), ids=kept(["of-a-hook", "of-a-person"], "of-a-hook")
)
async def test_who_started_a_run_decides_about_its_hooks(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch, is_hooks: bool
) -> None:
    """A run that waits is continued by a program of the other kind."""
    count = home.path / "count"
    write_hooks(home, Stop=[on(f"echo x >> {count}")])
    config = CONFIG + '[permissions]\nunattended = "park"\n'
    script = [calls("code.run_command", argv=["printenv", "SOONG_AGENT_HOOK"]), "done"]

    def set_hook(is_set: bool) -> None:
        if is_set:
            monkeypatch.setenv("SOONG_AGENT_HOOK", "PreToolUse")
        else:
            monkeypatch.delenv("SOONG_AGENT_HOOK", raising=False)

    provider = ScriptedProvider(script)
    set_hook(is_hooks)
    async with runtime(home, project, provider, config=config) as made:
        handle = await made.start("go", session_id="s1")
        waiting = await handle.result()
        assert ["hooks do not run here" in each for each in handle.warnings] == [True] * is_hooks
    set_hook(not is_hooks)
    async with runtime(home, project, provider, config=config) as made:
        handle = await made.answer(waiting.pending_requests[0], "allow_once")
        assert (await handle.result()).text == "done"
        replay = await made.replay_session("s1")
    assert count.exists() is not is_hooks
    assert ("started_by_hook" in replay.runs[0].metadata) is is_hooks
    (result,) = results(replay, "code.run_command")
    assert data_of(result)["stdout"] == ("" if is_hooks else "PreToolUse\n")


def test_a_matcher_that_no_tool_can_meet_refuses_the_start(home: Home, project: Path) -> None:
    play(home, "done")
    write_hooks(home, PreToolUse=[on("exit 2", matcher="code.write_file|code.edit_file")])
    done = soong_agent(home, "run", "--path", str(project), "go")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hooks.PreToolUse[0].matcher: no tool has the name" in done.stderr
    assert "write a group of hooks for each tool" in done.stderr


async def test_a_matcher_that_no_known_tool_meets_is_told_in_each_run(
    home: Home, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def mine(text: str) -> str:
        """Mine."""
        return text

    server = {"command": sys.executable, "args": [str(PLAIN_SERVER)]}
    home.write("mcp.json", json.dumps({"mcpServers": {"plain": server}}))
    names = ["Edit", "mine", "given", "mcp.plain.ech", "mcp.plain.echo", "mcp.other.x"]
    write_hooks(home, PreToolUse=[on("true", matcher=name) for name in names])
    made = runtime(home, project, ["one", "two"])
    made.register_tool(mine)

    @tool(name="given")
    async def given() -> str:
        """Given to the run."""
        return ""

    async with made:
        for _ in range(2):
            await made.run("go", "s1", tools=[given, "mine"])
    told = [each.getMessage() for each in caplog.records if "hooks.json" in each.getMessage()]
    assert [each.partition("matcher: ")[2] for each in told] == 2 * [
        "there is no tool Edit (did you mean code.edit_file?); its hooks do not run",
        "the MCP server plain has no tool ech (did you mean echo?); its hooks do not run",
        "there is no MCP server other; its hooks do not run",
    ]

"""What a killed process leaves behind, and how the next one goes on."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core import RunStatus
from agent_core.cli.export.markdown import session_markdown
from agent_core.history.reading import read_history
from agent_core.providers.scripted import ScriptedProvider
from agent_core.types import ModelMessage
from isolation import Home
from loop_parts import spoken
from runtimes import CONFIG, ask, runtime
from sweeps import is_whole, sampled

VICTIM = """
import asyncio, os, sys
from agent_core import AgentRuntime, tool
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls

STOP_AT = int(sys.argv[3])

@tool(permission="readonly")
async def note(text: str) -> str:
    "Writes a line into a file, so that a second execution would be seen."
    with open(sys.argv[2] + "/effects.txt", "a", encoding="utf-8") as file:
        file.write(text + chr(10))
    return "noted " + text

async def main():
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_tool(note)
    pair = Calls(calls=[ScriptedCall(name="note", arguments={"text": f"p{n}"}) for n in (1, 2)])
    script = [calls("note", text="one"), pair, calls("note", text="three"), "done"]
    runtime.register_provider("custom", lambda model: ScriptedProvider(script))
    async with runtime:
        handle = await runtime.start("go", session_id="s1")
        seen = 0
        async for event in handle.events(debug=True):
            seen += 1
            if seen == STOP_AT:
                print(seen, flush=True)
                os.kill(os.getpid(), 9)
    print("end", flush=True)

asyncio.run(main())
"""


def run_victim(home: Home, project: Path, stop_at: int) -> int:
    home.write_config(CONFIG)
    script = home.write("victim.py", VICTIM)
    arguments = [sys.executable, str(script), str(home.path), str(project), str(stop_at)]
    done = subprocess.run(arguments, capture_output=True, timeout=30, check=False)  # noqa: S603 - our own script
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr.decode()
    return done.returncode


def unanswered(messages: list[ModelMessage]) -> set[str]:
    """Calls in a request without their result right behind them."""
    asked: set[str] = set()
    for message in messages:
        for block in message.content:
            if block.type == "tool_result":
                asked.discard(block.tool_call_id)
        if message.role != "tool":
            assert not asked, "a message came between a call and its result"
        asked |= {block.tool_call_id for block in message.content if block.type == "tool_call"}
    return asked


@pytest.mark.long
@pytest.mark.parametrize("stop_at", sampled([1, 2, 4, 6, 7, 8, 9, 12, 14, 16, 18, 21, 24], 2))
async def test_a_killed_run_is_closed_and_its_session_goes_on_at_once(
    home: Home, project: Path, stop_at: int
) -> None:
    code = await asyncio.to_thread(run_victim, home, project, stop_at)
    provider = ScriptedProvider(["I am back"])
    async with runtime(home, project, provider) as made:
        handle = await ask(made, "and now?")
        assert (handle.status, handle.result_text) == (RunStatus.COMPLETED, "I am back")
        replay = await made.replay_session("s1")
    request = provider.requests[0]
    assert unanswered(request.messages) == set()
    words = spoken(replay.nodes)
    assert words[-2:] == ["user: and now?", "assistant: I am back"]
    first = replay.runs[0]
    if code == -signal.SIGKILL and first.status is not RunStatus.COMPLETED:
        assert first.status is RunStatus.FAILED
        assert first.metadata["reason"] == "owner_lost"
    closing = [e for e in replay.events if e.event_type in {"run_failed", "run_completed"}]
    assert len(closing) == 2
    effects = (project / "effects.txt").read_text().split() if stop_at > 9 else []
    assert len(effects) == len(set(effects)), "a tool ran twice"
    with sqlite3.connect(home.path / "sessions.sqlite") as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()


async def test_a_call_interrupted_by_a_kill_is_answered_with_an_unknown_effect(
    home: Home, project: Path
) -> None:
    script = VICTIM.replace('return "noted " + text', "os.kill(os.getpid(), 9)")
    home.write_config(CONFIG)
    victim = home.write("victim.py", script)
    arguments = [sys.executable, str(victim), str(home.path), str(project), "0"]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    seen = home.path / "seen"
    hook = {"type": "command", "command": f"cat >> {seen}"}
    hooks = {"version": 1, "hooks": {"PostToolUse": [{"matcher": "note", "hooks": [hook]}]}}
    home.write("hooks.json", json.dumps(hooks))
    provider = ScriptedProvider(["I will look"])
    async with runtime(home, project, provider) as made:
        before = session_markdown(await read_history(made, "s1"), str)
        await ask(made, "what happened?")
        told = session_markdown(await read_history(made, "s1"), str)
        replay = await made.replay_session("s1")
    assert "no model has seen it" not in before + told
    for page in (before, told):
        assert "**unknown** · `note " in page
        assert "the process died while it ran: its effect is unknown" in page
    (result,) = [result for node in replay.nodes for result in node.results]
    assert result.error is not None
    assert result.error.code == "cancelled"
    assert result.error.details["reason"] == "interrupted_effect_unknown"
    assert "interrupted_effect_unknown" in provider.requests[0].model_dump_json()
    facts = json.loads(seen.read_text(encoding="utf-8"))
    assert (facts["outcome"], facts["arguments"]) == ("unknown", {"text": "one"})
    assert facts["result"]["error"]["details"] == result.error.details
    assert (project / "effects.txt").read_text() == "one\n"


@pytest.mark.long
@pytest.mark.timeout(120)  # twenty interpreters on two cores
async def test_twenty_processes_start_sessions_in_one_database_at_once(
    home: Home, project: Path
) -> None:
    count = 20 if is_whole() else 4
    home.write_config(CONFIG)
    script = home.write(
        "one.py",
        VICTIM.replace('session_id="s1"', 'session_id=f"p{os.getpid()}"'),
    )
    arguments = [sys.executable, str(script), str(home.path), str(project), "0"]

    async def start() -> tuple[int, bytes]:
        process = await asyncio.create_subprocess_exec(
            *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
        return process.returncode or 0, out + err

    done = await asyncio.gather(*(start() for _ in range(count)))
    assert [output for code, output in done if code] == []
    async with runtime(home, project) as made:
        sessions = await made.list_sessions()
    assert len(sessions) == count
    assert {session.owner for session in sessions} == {None}


ARTIFACT_VICTIM = """
import asyncio, os, sys
from agent_core import AgentRuntime, ToolContext, tool
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.storage.sqlite import SqliteSessionStore

async def die(self, artifact):
    os.kill(os.getpid(), 9)

SqliteSessionStore.add_artifact = die

@tool(permission="readonly")
async def keep(context: ToolContext) -> str:
    "Keeps a file."
    return await context.artifact(b"x" * 1000, filename="kept.txt")

async def main():
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_tool(keep)
    runtime.register_provider("custom", lambda model: ScriptedProvider([calls("keep"), "done"]))
    async with runtime:
        await (await runtime.start("go", session_id="s1")).wait()

asyncio.run(main())
"""


async def test_a_file_that_a_killed_process_never_registered_is_gone_at_the_next_start(
    home: Home, project: Path
) -> None:
    home.write_config(CONFIG)
    script = home.write("victim.py", ARTIFACT_VICTIM)
    arguments = [sys.executable, str(script), str(home.path), str(project)]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    kept = list(home.path.glob("sessions/s1/artifacts/*/*"))
    assert [path.name for path in kept] == ["kept.txt"]
    async with runtime(home, project):
        assert list(home.path.glob("sessions/s1/artifacts/*")) == []
        assert list(home.path.glob("unfinished/*/*")) == []

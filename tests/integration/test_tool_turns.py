"""The edges of a turn of tool calls: cancelled between, refused by the store, seen by hooks."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent_core import RunStatus, tool
from agent_core.artifacts.store import ArtifactStore
from agent_core.providers.scripted import Calls, ScriptedCall, calls
from agent_core.types import ToolResultBlock
from failing_disk import Disk, put_under
from isolation import Home
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import sampled

KEY = "sesame-opens-the-mountain"


def write_hook(home: Home, point: str, hook: dict[str, str]) -> None:
    hooks = {point: [{"hooks": [hook]}]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": hooks}))


async def test_a_write_whose_failure_is_being_kept_when_it_is_cancelled_may_have_had_an_effect(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = asyncio.Event()

    async def put(*_: Any, **__: Any) -> None:
        keeping.set()
        await asyncio.Event().wait()

    @tool(name="my.write", permission="write")
    async def write() -> str:
        """Write, and fail with much to say."""
        (project / "effect.txt").write_text("done", encoding="utf-8")
        raise RuntimeError("x" * 20_000)

    monkeypatch.setattr(ArtifactStore, "put", put)
    both = Calls(calls=[ScriptedCall(name="my.write"), ScriptedCall(name="code.list_dir")])
    made = runtime(home, project, [both], permission_callback=Asked("allow_once"))
    made.register_tool(write)
    async with made:
        handle = await made.start("go", session_id="s1")
        await asyncio.wait_for(keeping.wait(), 50)
        await handle.cancel()
        nodes = (await made.replay_run(handle.run_id, include_sensitive=True)).nodes
    results = [b for node in nodes for b in node.content if isinstance(b, ToolResultBlock)]
    messages = [result.error.message for result in results if result.error]
    assert (project / "effect.txt").exists()
    assert ["part of its effect" in message for message in messages] == [True, False]


async def test_hooks_after_a_call_get_no_secret(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(name="my.leak", permission="readonly")
    async def leak() -> str:
        """Say a secret."""
        return f"the key is {KEY}"

    monkeypatch.setenv("MY_KEY", KEY)
    heard = home.path / "heard.jsonl"
    hook = {"type": "command", "command": f"cat >> {heard}"}
    home.write(
        "hooks.json", json.dumps({"version": 1, "hooks": {"PostToolUse": [{"hooks": [hook]}]}})
    )
    config = CONFIG + 'api_key_env = "MY_KEY"\n'
    made = runtime(home, project, [calls("my.leak"), "done"], config=config)
    made.register_tool(leak)
    async with made:
        handle = await ask(made)
    assert handle.status is RunStatus.COMPLETED
    assert "the key is" in heard.read_text(encoding="utf-8")
    assert KEY not in heard.read_text(encoding="utf-8")


@pytest.mark.parametrize("commit", sampled(range(1, 8), keep=1))
async def test_a_hook_runs_for_stored_calls_alone(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    disk = Disk()
    put_under(monkeypatch, disk)
    heard = home.path / "heard.jsonl"
    hook = {"type": "command", "command": f"cat >> {heard}; echo >> {heard}"}
    home.write(
        "hooks.json", json.dumps({"version": 1, "hooks": {"PreToolUse": [{"hooks": [hook]}]}})
    )
    both = Calls(calls=[ScriptedCall(name="code.list_dir"), ScriptedCall(name="code.list_dir")])
    async with runtime(home, project, [both, "done"]) as made:
        handle = await made.start("go", session_id="s1")
        disk.arm(since=commit)
        await handle.wait()
        disk.disarm()
    with sqlite3.connect(home.path / "sessions.sqlite") as database:
        rows = database.execute(
            "SELECT content_json FROM nodes WHERE role = 'assistant'"
        ).fetchall()
    database.close()
    stored = [b["tool_call_id"] for (row,) in rows for b in json.loads(row) if "arguments" in b]
    lines = heard.read_text(encoding="utf-8").split("\n") if heard.exists() else []
    run_for = [json.loads(line)["tool_call_id"] for line in lines if line]
    assert set(run_for) <= set(stored)


@pytest.mark.parametrize(
    "path", sampled(["~nobody-has-this-name/generated/a.txt", "a\0b", "loop/a.txt"], keep=1)
)
async def test_a_path_that_cannot_be_resolved_does_not_avoid_a_hook(
    home: Home, project: Path, path: str
) -> None:
    @tool(name="my.write", permission="readonly")
    async def write(path: str) -> str:
        """Write to a path that this tool reads in its own way."""
        (project / "effect.txt").write_text(path, encoding="utf-8")
        return "written"

    (project / "loop").symlink_to("loop")
    deny = {"type": "command", "command": 'echo \'{"decision": "deny", "reason": "guarded"}\''}
    group = {"matcher": {"path_prefix": "generated/"}, "hooks": [deny]}
    hooks = {"version": 1, "hooks": {"PreToolUse": [group]}}
    home.write("hooks.json", json.dumps(hooks))
    call = Calls(calls=[ScriptedCall(name="my.write", arguments={"path": path})])
    made = runtime(home, project, [call, "done"])
    made.register_tool(write)
    async with made:
        await ask(made)
        assert not (project / "effect.txt").exists()

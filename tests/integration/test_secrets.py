"""Secrets in whole runs: whichever way one gets in, it comes out nowhere."""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import EventType, ToolDefinition, UserMessage
from agent_core.providers.scripted import Fails, Says, ScriptedProvider, calls
from agent_core.types import ToolPermission
from casts import Cast
from isolation import Home
from runtimes import CONFIG, Asked, collect, runtime
from sweeps import kept

VALUE = "a-value-nobody-guesses-4711"
SHAPE = "sk-" + "a1b2c3d4" * 4
WITH_KEY = CONFIG + 'api_key_env = "MY_KEY"\n'


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", VALUE)


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_a_secret_in_a_providers_error_is_in_no_row_and_not_on_the_handle(
    home: Home, project: Path
) -> None:
    failure = Fails(text=f"half {VALUE}", message=f"{VALUE} and {SHAPE} are no good")
    async with runtime(home, project, [failure], config=WITH_KEY) as made:
        handle = await made.start("hello", session_id="s1")
        events = await collect(handle)
        replay = await made.replay_session("s1", include_sensitive=True)
    assert handle.error is not None
    assert handle.error.message == "[redacted:MY_KEY] and [redacted:api_key] are no good"
    assert handle.error.redacted
    assert replay.runs[0].error == handle.error
    assert events[-1].event_type is EventType.RUN_FAILED
    assert events[-1].payload["error"] == handle.error.model_dump(mode="json")
    assert VALUE not in replay.model_dump_json()
    assert VALUE.encode() not in everything_in(home.path)


async def test_a_secret_in_a_tools_exception_is_not_logged_and_not_stored(
    home: Home, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(arguments: Any, context: Any) -> None:
        raise RuntimeError(f"no access with {VALUE} or {SHAPE}")

    made = runtime(home, project, [calls("breaks"), "well"], config=WITH_KEY)
    made.register_tool(
        ToolDefinition(name="breaks", description="breaks", permission=ToolPermission.READONLY),
        break_down,
    )
    with caplog.at_level(logging.DEBUG, logger="agent_core"):
        async with made:
            await (await made.start("hello", session_id="s1")).wait()
    assert "RuntimeError: no access with [redacted:MY_KEY]" in caplog.text
    assert VALUE not in caplog.text
    assert SHAPE not in caplog.text
    assert VALUE.encode() not in everything_in(home.path)


async def test_a_secret_of_digits_is_not_stored_as_a_number(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "90210417")
    got: list[Any] = []

    async def unlock(arguments: Any, context: Any) -> dict[str, Any]:
        got.append(arguments)
        return {"pin": 90210417, "tries": [3, -90210417]}

    script = [calls("unlock", pin=90210417, door=4), "open"]
    made = runtime(home, project, script, config=WITH_KEY)
    made.register_tool(
        ToolDefinition(
            name="unlock",
            description="unlocks",
            input_schema={"type": "object"},
            permission=ToolPermission.READONLY,
        ),
        unlock,
    )
    async with made:
        message = UserMessage(content="hello", metadata={"pin": 90210417})
        handle = await made.start(message, session_id="s1")
        events = await collect(handle)
    assert got == [{"pin": 90210417, "door": 4}]
    assert all("90210417" not in event.model_dump_json() for event in events)
    assert b"90210417" not in everything_in(home.path)


async def test_a_secret_in_the_metadata_of_a_message_is_not_stored(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["hi"], config=WITH_KEY) as made:
        message = UserMessage(content=f"look at {VALUE}", metadata={"from": [VALUE]})
        await (await made.start(message, session_id="s1")).wait()
        (said, _) = (await made.replay_session("s1", include_sensitive=True)).nodes
    assert said.metadata == {"from": ["[redacted:MY_KEY]"]}
    assert VALUE.encode() not in everything_in(home.path)


async def test_a_secret_split_over_deltas_is_never_shown_live(home: Home, project: Path) -> None:
    text = f"it is {VALUE}, he said"
    script = ScriptedProvider([Says(text=text, chunks=len(text))])
    async with runtime(home, project, script, config=WITH_KEY) as made:
        handle = await made.start("hello", session_id="s1")
        events = await collect(handle)
    shown = "".join(
        event.payload["text"] for event in events if event.event_type is EventType.MODEL_TEXT_DELTA
    )
    assert shown == handle.result_text == "it is [redacted:MY_KEY], he said"


POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
worker_id = "ada"
agent_definition_id = "default_worker_agent"
"""
SAYS_ALL = f"look: {VALUE} and {SHAPE}"


async def test_a_secret_in_any_text_of_a_task_is_in_no_log_and_in_no_row(
    home: Home, project: Path
) -> None:
    def update(**operation: Any) -> Any:
        return calls("agent.task_update", task_id="t1", operations=[operation])

    def step(step_id: str) -> dict[str, str]:
        return {"step_id": step_id, "title": SAYS_ALL, "summary": SAYS_ALL}

    dispatch = calls("agent.dispatch_worker", task_id="t1", instruction="work")
    lead = [
        calls(
            "agent.task_create",
            task_id="t1",
            wal_name="work",
            title=SAYS_ALL,
            summary=SAYS_ALL,
            steps=[step("s1"), step("s2")],
        ),
        update(op="add_step", step=step("s3")),
        update(op="update_step", step_id="s2", fields={"title": SAYS_ALL}),
        update(op="cancel_step", step_id="s3", reason=SAYS_ALL),
        dispatch,
        calls("agent.task_fail", task_id="t1", reason=SAYS_ALL),
        "done",
    ]
    worker = [
        calls("agent.task_claim_step", task_id="t1", step_id="s1"),
        calls(
            "agent.task_update_step",
            task_id="t1",
            step_id="s1",
            status="completed",
            result_summary=SAYS_ALL,
        ),
        f"I said {SAYS_ALL}",
    ]
    played = Cast({"go": lead, "work": worker})
    async with runtime(home, project, played, config=WITH_KEY + POOL) as made:
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await collect(handle, debug=True)
    log = (project / ".soong-agent/tasks/s1/work.wal.jsonl").read_text(encoding="utf-8")
    assert "task_step_completed" in log
    assert "task_failed" in log
    assert log.count("[redacted:MY_KEY]") == log.count("[redacted:api_key]") > 8
    assert SHAPE not in log
    for folder in (home.path, project):
        assert VALUE.encode() not in everything_in(folder)
    assert all(VALUE not in request.model_dump_json() for request in played.requests)


@pytest.mark.parametrize("before", kept([32_768 - 13, 200_000], 32_768 - 13))
async def test_a_secret_that_a_cut_runs_through_is_in_no_row(
    home: Home, project: Path, before: int
) -> None:
    after = 200_000 if before < 200_000 else 32_768 - 13
    (project / "say.py").write_text(f"print('x' * {before} + {VALUE!r} + 'y' * {after}, end='')")
    left = "sh -c sleep 60; : "
    left += "x" * (200 - 13 - len(left)) + VALUE
    leave = f"sh -c '{left.removeprefix('sh -c ')}' & echo started"
    script = [
        calls("code.run_command", argv=[sys.executable, "say.py"]),
        calls("code.run_command", argv=["sh", "-c", leave]),
        calls("code.run_command", argv=["x" * (200 - 13) + VALUE]),
        calls("code.read_file", path="x" * (200 - 13) + VALUE + "\0"),
        "done",
    ]
    asked = Asked("allow_once")
    made = runtime(home, project, script, config=WITH_KEY, permission_callback=asked)
    async with made:
        await (await made.start("hello", session_id="s1")).wait()
        replay = await made.replay_session("s1", include_sensitive=True)
    everything = everything_in(home.path) + replay.model_dump_json().encode()
    assert b"bytes left out" in everything
    assert VALUE[:12].encode() not in everything
    assert VALUE[-12:].encode() not in everything

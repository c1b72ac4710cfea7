"""MCP servers of a profile: listed tools only, recorded calls, closed on every way out."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import calls as model_calls
from kgent import RunOptions, RunResult
from kgent.cli import main
from kgent.engine.base import EventCallback
from kgent.engine.mock import MockAgentEngine, MockFailure, MockStep
from kgent.review.verification import verify
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.runner import run
from kgent_runs import a_run, calls, lines, profile, state
from mcp_bench import SERVERS
from model_server import ModelServer
from sweeps import kept, sampled
from tables import together

PLAIN = {"command": sys.executable, "args": [str(SERVERS / "plain.py")]}


def server(tools: list[str], **more: Any) -> dict[str, Any]:
    """A section `tools` with the server `plain`."""
    return {"mcp": [{"name": "plain", "tools": tools, **PLAIN, **more}]}


def recorded(result: RunResult) -> list[dict[str, Any]]:
    assert result.sandbox_root, result.error
    return lines(result.sandbox_root / "logs" / "tools.jsonl")


@pytest.mark.parametrize("engine", kept(["core", "pydantic_ai"], "core"))
def test_the_model_gets_the_tools_that_are_listed_and_no_other(tmp_path: Path, engine: str) -> None:
    script = [model_calls("mcp_plain_echo", text="over there"), "Done."]
    with ModelServer.in_thread(script) as service:
        config = profile(
            tmp_path,
            model={"provider": "openai", "name": "m", "base_url": service.base_url("openai")},
            tools=server(["echo"]),
            runtime={"engine": engine},
        )
        result = run(config, "Say it.", RunOptions(sandbox=tmp_path / "run"))
        first, second = service.requests
    assert result.status == "completed", result.error
    offered = {tool["function"]["name"] for tool in first.body["tools"]}
    assert {name for name in offered if name.startswith("mcp")} == {"mcp_plain_echo"}
    assert "over there" in str(second.body["messages"][-1]["content"])
    (call,) = recorded(result)
    assert (call["tool_name"], call["status"]) == ("mcp_plain_echo", "completed")
    assert result.sandbox_root
    assert verify(result.sandbox_root).problems == []


@pytest.mark.sweep
def test_calls_that_fail_are_answered_and_recorded(tmp_path: Path) -> None:
    steps = [
        calls("mcp_plain_echo"),
        calls("mcp_plain_echo", text=1),
        calls("mcp_plain_die"),
        calls("mcp_plain_echo", text="back"),
        calls("mcp_plain_write"),
    ]
    result = a_run(tmp_path, *steps, tools=server(["echo", "die"]))
    assert [call["status"] for call in recorded(result)] == [
        *("failed", "failed", "failed", "completed", "failed")
    ]
    assert "I am done for" in recorded(result)[2]["error"]["message"]
    assert recorded(result)[4]["error"]["code"] == "tool_not_available"


def test_secrets_come_from_named_variables_and_stay_out_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "tok-4242424242"  # noqa: S105
    step = calls("mcp_plain_environment")
    monkeypatch.setenv("KGENT_MCP_TOKEN", secret)
    monkeypatch.setenv("KGENT_OTHER", "not-passed-on-4242")
    tools = server(["environment"], env={"TOKEN": "KGENT_MCP_TOKEN"})
    result = a_run(tmp_path, step, tools=tools)
    assert recorded(result)[0]["status"] == "completed"
    for path in (result.sandbox_root or tmp_path).rglob("*"):
        if path.is_file():
            assert secret not in path.read_text(errors="replace")
            assert "not-passed-on-4242" not in path.read_text(errors="replace")
    monkeypatch.delenv("KGENT_MCP_TOKEN")
    config = profile(tmp_path, tools=tools)
    refused = run(config, "x", RunOptions(sandbox=tmp_path / "two"), engine=MockAgentEngine())
    assert refused.is_blocked
    assert "KGENT_MCP_TOKEN" in str(refused.error)
    assert refused.sandbox_root is None


@pytest.mark.parametrize(
    ("tools", "code", "reason"),
    sampled(
        [
            (server(["none"]), "config_error", "the server has no tool 'none'"),
            (server(["echo"], command="/no/such/program"), "mcp_server_failed", "plain"),
            (
                server(["echo"], args=["-c", "raise SystemExit('cannot')"]),
                "mcp_server_failed",
                "cannot",
            ),
            (
                {"mcp": {"far": {"url": "http://127.0.0.1:9/mcp", "tools": ["a"]}}},
                "mcp_server_failed",
                "",
            ),
        ],
        keep=2,
    ),
)
def test_a_server_that_cannot_be_used_ends_the_run_with_a_reason(
    tmp_path: Path, tools: Any, code: str, reason: str
) -> None:
    result = a_run(tmp_path, "Done.", tools=tools)
    assert result.status == "failed"
    assert result.error
    assert result.error.code == code
    assert reason in result.error.message
    assert state(result.sandbox_root)["status"] == "failed"


@together(
    "server_fields",
    [
        {"tools": ["a"]},
        {"tools": ["a"], "command": "x", "url": "http://x.test/"},
        {"tools": [], "command": "x"},
        {"tools": ["a", "a"], "command": "x"},
        {"tools": ["a"], "command": "x", "headers": {"A": "B"}},
        {"tools": ["a"], "url": "ftp://x.test/"},
        {"tools": ["a"], "url": "http://x.test/", "headers": {"A": "Bearer sk-12345"}},
        {"tools": ["a"], "command": "no-such-program-x"},
    ],
)
def test_a_server_that_is_not_well_described_is_found_by_validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server_fields: Any
) -> None:
    config = profile(tmp_path, tools={"mcp": [{"name": "one", **server_fields}]})
    assert main(["validate", "--config", str(config)]) == 2
    said = capsys.readouterr().err
    assert "mcp" in said
    assert "sk-12345" not in said


def test_no_server_outlives_a_run_however_it_ends(tmp_path: Path) -> None:
    slow, broken = calls("mcp_plain_slow", seconds=60), MockFailure(fail="broken")
    ends: list[tuple[str, MockStep]] = [
        *(("completed", "Done."), ("incomplete", slow), ("failed", broken))
    ]
    for number, (status, step) in enumerate(ends):
        folder = tmp_path / str(number)
        folder.mkdir()
        diary = folder / "pid"
        code = f"import os; open({str(diary)!r}, 'w').write(str(os.getpid()));"
        code += f"exec(open({PLAIN['args'][0]!r}).read())"
        tools = server(["echo", "slow"], args=["-c", code])
        token = Cancellation()
        config = profile(folder, tools=tools)
        timer = threading.Timer(0.5, token.cancel)
        result = run(
            config,
            "x",
            RunOptions(sandbox=folder / "run"),
            engine=MockAgentEngine([step]),
            cancellation=token,
            event_callback=_once(timer.start if step is slow else lambda: None),
        )
        timer.cancel()
        assert result.status == status
        pid = int(diary.read_text())
        for _ in range(100):
            if not _is_alive(pid):
                break
            time.sleep(0.05)
        assert not _is_alive(pid)


def _once(start: Callable[[], None]) -> EventCallback:
    """Calls `start` when the first step begins: the servers are connected by then."""
    pending = [start]
    return lambda _: pending.pop()() if pending else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
def test_a_server_is_reached_over_http(tmp_path: Path) -> None:
    command = [sys.executable, str(SERVERS / "workshop.py"), "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            tools = {"mcp": {"shop": {"url": f"http://127.0.0.1:{port}/mcp", "tools": ["greet"]}}}
            result = a_run(tmp_path, calls("mcp_shop_greet", name="Ada"), tools=tools)
        finally:
            process.kill()
    (call,) = recorded(result)
    assert (call["tool_name"], call["status"]) == ("mcp_shop_greet", "completed")


@pytest.mark.long
def test_a_run_can_be_cancelled_while_a_server_does_not_answer(tmp_path: Path) -> None:
    tools = server(["echo"], args=["-c", "import time; time.sleep(60)"])
    token, config = Cancellation(), profile(tmp_path, tools=tools)
    timer = threading.Timer(1, lambda: token.cancel("enough"))
    timer.start()
    options = RunOptions(sandbox=tmp_path / "run")
    result = run(config, "x", options, cancellation=token)
    timer.cancel()
    assert result.status == "incomplete"
    assert "enough" in str(result.error)

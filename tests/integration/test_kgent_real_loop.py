"""Both engines against a model server on a socket: a deliverable is written by the real loops."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Calls, Hangs, Says, ScriptedCall, calls
from kgent import RunOptions, RunResult
from kgent.engine.base import EngineEvent, EngineEventKind
from kgent.engine.mock import MockAgentEngine, MockCall
from kgent.review.verification import verify
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_runs import events, lines, profile, state, types
from model_server import ModelServer, Received, Reply, Status
from sweeps import kept, sampled

KEY = "sk-test-4242424242424242"
ENGINES = pytest.mark.parametrize("engine", kept(["core", "pydantic_ai"], "core"))
WRITES = calls("write_file", path="deliverables/report.md", content="# Report\n\nIt rained.\n")


def conduct(
    tmp_path: Path, engine: str, server: ModelServer, heard: list[EngineEvent], **more: Any
) -> RunResult:
    path = profile(
        tmp_path,
        model={
            "provider": "openai",
            "name": "m",
            "base_url": server.base_url("openai"),
            "api_key_env": "KGENT_TEST_KEY",
        },
        runtime={"engine": engine, **more},
        deliverables={"required": ["deliverables/report.md"]},
    )
    options = RunOptions(sandbox=tmp_path / "run", stream=True)
    return run(path, "Write the report.", options, event_callback=heard.append)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGENT_TEST_KEY", KEY)


@ENGINES
def test_a_deliverable_is_written(tmp_path: Path, engine: str) -> None:
    heard: list[EngineEvent] = []
    script: list[Reply] = [WRITES, Says(text=f"Done, and your key is {KEY}.")]
    with ModelServer.in_thread(script) as server:
        result = conduct(tmp_path, engine, server, heard)
        first, second = server.requests
        server.assert_complete()
    root = result.sandbox_root
    assert root is not None
    assert (result.status, result.found) == (RunStatus.completed, ["deliverables/report.md"])
    assert (root / "deliverables" / "report.md").read_text() == "# Report\n\nIt rained.\n"
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert "You write reports." in first.text
    assert {tool["function"]["name"] for tool in first.body["tools"]} >= {"write_file", "read_file"}
    assert "created deliverables/report.md" in second.text

    (call,) = lines(root / "logs" / "tools.jsonl")
    sent = second.body["messages"][-1]["tool_call_id"]
    assert (call["call_id"], call["status"]) == (sent, "completed")
    shown = "".join(e.text for e in heard if e.kind is EngineEventKind.TEXT)
    assert shown == result.final_text == "Done, and your key is [redacted:KGENT_TEST_KEY]."
    assert state(root)["usage"]["model_calls"] == 2
    assert types(root)[-1] == "run.completed"
    for path in root.rglob("*"):
        assert not path.is_file() or KEY not in path.read_text(), path


@ENGINES
def test_a_refused_call_is_told_to_the_model_and_the_run_goes_on(
    tmp_path: Path, engine: str
) -> None:
    script: list[Reply] = [
        Calls(
            calls=[
                ScriptedCall(name="write_file", arguments={"path": "run.json", "content": "{}"}),
                ScriptedCall(name="read_file", arguments={"path": "/etc/passwd"}),
            ]
        ),
        WRITES,
        "Done.",
    ]
    with ModelServer.in_thread(script) as server:
        result = conduct(tmp_path, engine, server, [])
        told = server.requests[1].text
    assert result.status is RunStatus.completed
    assert "only files below workspace/ and deliverables/ may be written" in told
    assert "it leads out of the run folder" in told
    assert "root:" not in told
    assert types(result.sandbox_root).count("file.rejected") == 2


@pytest.mark.long
def test_every_engine_leaves_the_same_records_of_the_same_calls(tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("write_file", {"path": "workspace/a.md", "content": "one\n"}),
        ("write_file", {"path": "archive/a.md", "content": "one\n"}),
        ("write_file", {"path": str(tmp_path / "a.md"), "content": "one\n"}),
        ("read_file", {"path": "workspace/../run.json"}),
        ("read_file", {"path": "workspace/none.md"}),
        ("list_files", {"path": "workspace", "limit": 0}),
        ("run_command", {"argv": ["rm", "a.md"]}),
    ]
    records: list[list[dict[str, Any]]] = []
    for engine in kept(("core", "pydantic_ai", "mock"), "core", "mock"):
        folder = tmp_path / engine
        folder.mkdir()
        script: list[Reply] = [calls(name, **arguments) for name, arguments in asked]
        with ModelServer.in_thread([*script, "Done."]) as server:
            path = profile(
                folder,
                model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
                runtime={"engine": engine},
                tools={"shell": {"enabled": True, "allowed_commands": ["ls"]}},
            )
            mock = MockAgentEngine([MockCall(tool=name, args=given) for name, given in asked])
            options = RunOptions(sandbox=folder / "run")
            result = run(path, "x", options, engine=mock if engine == "mock" else None)
        assert result.status is RunStatus.completed
        assert result.sandbox_root is not None
        found = lines(result.sandbox_root / "logs" / "tools.jsonl")
        changing = ("call_id", "started_at", "completed_at", "duration_ms")
        records.append([{k: v for k, v in one.items() if k not in changing} for one in found])
        rejected = [
            one["data"]["code"]
            for one in events(result.sandbox_root)
            if one["type"] == "file.rejected"
        ]
        outside, denied = "write_outside_allowed_roots", "permission_denied"
        assert rejected == [outside, denied, denied]
    core, *others = records
    assert others == [core] * len(others)
    assert [one["status"] for one in core] == [
        *("completed", "blocked", "blocked", "blocked"),
        *("failed", "failed", "blocked"),
    ]


@ENGINES
def test_calls_that_cannot_be_made_are_recorded_like_any_other(tmp_path: Path, engine: str) -> None:
    unreadable = ScriptedCall(name="read_file", arguments="{not json")
    script: list[Reply] = [
        calls("fly", to="the moon"),
        Calls(calls=[unreadable]),
        WRITES,
        "Done.",
    ]
    with ModelServer.in_thread(script) as server:
        result = conduct(tmp_path, engine, server, [])
    assert result.status is RunStatus.completed
    root = result.sandbox_root
    assert root is not None
    unknown, broken, written = lines(root / "logs" / "tools.jsonl")
    assert (unknown["tool_name"], unknown["status"]) == ("fly", "failed")
    assert unknown["args_summary"] == {"to": "the moon"}
    assert (broken["tool_name"], broken["status"]) == ("read_file", "failed")
    assert "{not json" in json.dumps(broken["args_summary"])
    assert written["status"] == "completed"
    first = lines(root / "logs" / "errors.jsonl")[0]
    assert first["code"] == "tool_not_available"
    assert first["correlation_id"] == unknown["call_id"]
    assert types(root).count("tool.started") == 3
    assert types(root).count("tool.failed") == 2


AMBIENT = {
    "OPENAI_API_KEY": "sk-ambient-key-1111111111",
    "OPENAI_ADMIN_KEY": "sk-ambient-admin-2222222222",
    "OPENAI_ORG_ID": "org-ambient-3333333333",
    "OPENAI_PROJECT_ID": "proj-ambient-4444444444",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/ambient",
    "OPENAI_CUSTOM_HEADERS": "X-Ambient: header-5555555555",
}


@pytest.mark.parametrize("key_env", ["KGENT_TEST_KEY", None])
@ENGINES
def test_no_credential_of_the_environment_is_used_but_the_one_the_profile_names(
    tmp_path: Path, engine: str, key_env: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AMBIENT.items():
        monkeypatch.setenv(name, value)

    def echo(request: Received) -> Reply:
        body = {"error": {"message": f"Incorrect key: {dict(request.headers)}"}}
        return Status(401, json.dumps(body).encode())

    with ModelServer.in_thread(echo) as server:
        path = profile(
            tmp_path,
            model={
                "provider": "openai",
                "name": "m",
                "base_url": server.base_url("openai"),
                "api_key_env": key_env,
            },
            runtime={"engine": engine},
        )
        result = run(path, "x", RunOptions(sandbox=tmp_path / "run"))
        (request,) = server.requests
    assert result.status is RunStatus.failed
    sent = json.dumps(dict(request.headers))
    assert (KEY in sent) is (key_env is not None)
    left = "".join(
        path.read_text(encoding="utf-8") for path in (tmp_path / "run").rglob("*") if path.is_file()
    )
    assert [name for name, value in AMBIENT.items() if value.split()[-1] in sent + left] == []
    assert KEY not in left


@ENGINES
def test_steps_are_limited(tmp_path: Path, engine: str) -> None:
    with ModelServer.in_thread(lambda _: calls("list_files", path=".")) as server:
        result = conduct(tmp_path, engine, server, [], max_steps=3)
        assert len(server.requests) == 3
    assert result.status is RunStatus.incomplete
    assert result.error is not None
    assert result.error.code == "max_turns"


@ENGINES
def test_time_is_limited(tmp_path: Path, engine: str) -> None:
    with ModelServer.in_thread([Hangs(text="so ")]) as server:
        result = conduct(tmp_path, engine, server, [], timeout_seconds=1)
    assert result.status is RunStatus.incomplete
    assert result.error is not None
    assert result.error.code == "timeout"


@ENGINES
def test_a_service_that_refuses_fails_the_run(tmp_path: Path, engine: str) -> None:
    with ModelServer.in_thread(lambda _: Status(401)) as server:
        result = conduct(tmp_path, engine, server, [])
    assert result.status is RunStatus.failed
    assert result.error is not None
    assert (result.error.category, result.error.code) == ("engine", "provider_auth_failed")
    assert state(result.sandbox_root)["status"] == "failed"


@ENGINES
def test_a_missing_key_blocks_the_run_and_asks_nobody(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KGENT_TEST_KEY")
    with ModelServer.in_thread([]) as server:
        result = conduct(tmp_path, engine, server, [])
        assert server.requests == []
    assert result.is_blocked
    assert "KGENT_TEST_KEY" in str(result.error)


def test_the_mock_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KGENT_TEST_KEY")
    result = run(profile(tmp_path, model={"api_key_env": "KGENT_TEST_KEY"}), "x")
    assert result.status is RunStatus.completed


HOSTILE_IDS = ["../../../escaped", "x" * 300, "nul\0", "call_1"]


@pytest.mark.parametrize(
    ("engine", "call_id"),
    kept(
        [
            *(("core", call_id) for call_id in HOSTILE_IDS),
            *(("pydantic_ai", call_id) for call_id in sampled(HOSTILE_IDS, keep=1)),
        ],
        ("core", "../../../escaped"),
    ),
)
def test_the_id_of_a_call_decides_over_no_file(tmp_path: Path, engine: str, call_id: str) -> None:
    """Large results are kept under the id of their call, and some servers use one id for all."""
    many = "import os, sys; [open('f%04d' % i + sys.argv[1] * 200, 'w') for i in range(200)]"
    listing = {"path": "workspace", "limit": 2000}
    script: list[Reply] = [
        calls("run_command", argv=["python3", "-c", many, "a"]),
        Calls(calls=[ScriptedCall(name="list_files", arguments=listing, tool_call_id=call_id)]),
        calls("run_command", argv=["python3", "-c", many, "b"]),
        Calls(calls=[ScriptedCall(name="list_files", arguments=listing, tool_call_id=call_id)]),
        "Done.",
    ]
    before = sorted(tmp_path.parent.iterdir())
    with ModelServer.in_thread(script) as server:
        path = profile(
            tmp_path,
            model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
            runtime={"engine": engine},
            tools={"shell": {"enabled": True, "allowed_commands": ["python3"]}},
        )
        result = run(path, "List.", RunOptions(sandbox=tmp_path / "run"))
    root = result.sandbox_root
    assert root is not None
    listed = [call for call in lines(root / "logs" / "tools.jsonl") if call["artifacts"]]
    files = [root / call["artifacts"][0] for call in listed]
    assert [len(json.loads(file.read_text())["entries"]) for file in files] == [200, 400]
    assert {file.parent for file in files} == {root / "archive" / "tool-output"}
    assert sorted(tmp_path.parent.iterdir()) == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kgent.yaml", "run"]
    assert verify(root).problems == []

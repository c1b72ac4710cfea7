"""A run whose process was killed, wherever, is continued from what it had stored."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Calls, Hangs, Says, ScriptedCall, calls
from agent_core.types import Usage
from isolation import program_file
from kgent.cli import main
from kgent.engine.base import EngineEvent, EngineEventKind
from kgent.review.verification import verify
from kgent.runtime.attempts import resume
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.options import RunOptions
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_runs import lines, profile, state, types
from model_server import ModelServer, Reply, Status
from sweeps import is_whole, kept

ENGINES = pytest.mark.parametrize("engine", kept(["core", "pydantic_ai"], "core"))
WRITES = calls("write_file", path="deliverables/report.md", content="It rained.\n")

SWEEP = """
import os, signal, sys, threading
from pathlib import Path

import kgent.review.comparison, kgent.runtime.attempts
from kgent import RunOptions
from kgent.engine.mock import MockAgentEngine, MockCall
from kgent.errors import KgentError
from kgent.review.report import read_state
from kgent.review.verification import verify
from kgent.runtime.attempts import answer, resume, revise
from kgent.runtime.runner import run

here, points, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
CHANGES = {"fsync", "rename", "replace", "mkdir", "unlink", "write", "ftruncate", "flock"}
SCRIPT = [
    MockCall(tool="write_file", args={"path": "workspace/notes.md", "content": "clouds"}),
    MockCall(tool="write_memory", args={"content": "It rains here."}),
    MockCall(tool="write_file", args={"path": "deliverables/report.md", "content": "It rained."}),
    "Done.",
]
if what == "answer":
    SCRIPT.insert(1, MockCall(tool="run_command", args={"argv": ["sh", "-c", "echo x >> count"]}))
rest = {"run": None, "revise": "completed", "answer": "waiting_for_user"}[what]
seen = 0

def killed_at(number):
    def count(frame, event, argument):
        global seen
        if event in ("c_call", "c_return") and argument.__name__ in CHANGES:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
    threading.setprofile(count)
    sys.setprofile(count)

def begin(root):
    options = RunOptions(sandbox=root)
    return run(here / "kgent.yaml", "Write.", options, engine=MockAgentEngine(SCRIPT))

def again(root):
    engine = MockAgentEngine(SCRIPT)
    if what == "revise":
        return revise(root, "Again.", engine=engine)
    request = read_state(root).open_requests[0].request_id
    return answer(root, request, "allow", engine=engine)

def work(root, number):
    # in a child that is killed at this change; returns whether it was
    if rest is not None:
        assert begin(root).status == rest
    child = os.fork()
    if child == 0:
        killed_at(number)
        begin(root) if what == "run" else again(root)
        sys.setprofile(None)
        (here / "changes").write_text(str(seen))
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL

assert not work(here / "whole", 0)
changes = int((here / "changes").read_text())
resumed = 0
for number in range(1, changes, max(1, changes // points)):
    root = here / f"run{number}"
    if not work(root, number) or not root.exists():
        continue
    outcome = verify(root).outcome
    try:
        result = resume(root, engine=MockAgentEngine(SCRIPT))
    except KgentError:
        assert outcome == "completed", (number, outcome)
    else:
        if outcome == "waiting_for_user":
            result = again(root)
        else:
            assert outcome == "lost", (number, outcome)
            assert result.attempt == (2 if what == "run" else 3), (number, result.attempt)
            resumed += 1
    # A script, unlike a model, does not make a call again whose effect is not known.
    talk = root / "archive" / "conversation.jsonl"
    is_cut = talk.exists() and "whether it had an effect is not known" in talk.read_text()
    check = verify(root)
    if is_cut and check.outcome == "incomplete":
        assert not check.problems, (number, check)
        continue
    assert not check.problems and check.outcome == "completed", (number, check)
    assert (root / "deliverables" / "report.md").read_text() == "It rained.", number
    counted = root / "workspace" / "count"
    assert not counted.exists() or len(counted.read_text().split()) < 2, number
print(resumed)
"""


@pytest.mark.long
@pytest.mark.timeout(3600 if is_whole() else 120)
@pytest.mark.parametrize("what", kept(["run", "revise", "answer"], "revise"))
def test_a_process_killed_at_any_write_leaves_a_run_that_can_be_resumed(
    tmp_path: Path, what: str
) -> None:
    profile(
        tmp_path,
        deliverables={"required": ["deliverables/report.md"]},
        tools={"shell": {"enabled": True}},
        runtime={"unattended": "park"},
    )
    points = 1000 if is_whole() else 3
    done = subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, program_file(SWEEP), str(tmp_path), str(points), what],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > (5 if is_whole() else 1)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def a_profile(folder: Path, engine: str, server: ModelServer, **sections: Any) -> Path:
    return profile(
        folder,
        model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
        runtime={"engine": engine},
        tools={"shell": {"enabled": True, "allowed_commands": ["sh"]}},
        deliverables={"required": ["deliverables/report.md"]},
        **sections,
    )


def begin(folder: Path) -> "subprocess.Popen[str]":
    words = ["run", "--config", str(folder / "kgent.yaml"), "--prompt", "Write the report."]
    words += ["--sandbox", str(folder / "run")]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-m", "kgent", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@ENGINES
def test_a_killed_run_goes_on_with_its_conversation(tmp_path: Path, engine: str) -> None:
    spent = Usage.from_input_output(100, 10)
    script: list[Reply] = [WRITES.model_copy(update={"usage": spent}), Hangs(text="so ")]
    root = tmp_path / "run"
    with ModelServer.in_thread(script) as server:
        a_profile(tmp_path, engine, server)
        process = begin(tmp_path)
        until(lambda: len(server.requests) == 2)
        assert main(["resume", str(root)]) == 2  # another process works on it
        kill(process)
        assert verify(root).outcome == "lost"
        server.add(Says(text="Done.", usage=spent))
        assert main(["resume", str(root)]) == 0
        sent = server.requests[-1].body["messages"]
    roles = [message["role"] for message in sent if message["role"] != "system"]
    assert roles == ["user", "assistant", "tool"]
    assert json.dumps(sent).count("Write the report.") == 1
    assert verify(root).problems == []
    first, second = state(root)["attempts"]
    assert (first["cause"], first["status"]) == ("run", "incomplete")
    assert (second["cause"], second["status"]) == ("resume", "completed")
    assert len(first["seal"]) == 64
    whole = state(root)
    for name, count in {"input_tokens": 100, "output_tokens": 10, "model_calls": 1}.items():
        assert first["usage"][name] == second["usage"][name] == count
        assert whole["usage"][name] == 2 * count
    assert whole["usage_is_estimated"] is True
    told = [one["role"] for one in lines(root / "archive" / "conversation.jsonl")]
    assert told == ["user", "assistant", "tool", "assistant"]


@ENGINES
def test_a_call_that_had_begun_is_not_made_again_and_the_model_is_told(
    tmp_path: Path, engine: str
) -> None:
    command = "echo x >> count; if [ -e go ]; then exit 0; fi; exec sleep 600"
    both = Calls(
        calls=[
            ScriptedCall(name="run_command", arguments={"argv": ["sh", "-c", command]}),
            ScriptedCall(
                name="write_file",
                arguments={"path": "deliverables/report.md", "content": "It rained.\n"},
            ),
        ]
    )
    root = tmp_path / "run"
    with ModelServer.in_thread([both]) as server:
        a_profile(tmp_path, engine, server)
        process = begin(tmp_path)
        until((root / "workspace" / "count").exists)
        kill(process)
        server.add("Done.")
        assert main(["resume", str(root)]) == 0
        told = server.requests[-1].text
    assert (root / "workspace" / "count").read_text() == "x\n"
    assert "whether it had an effect is not known" in told
    assert (root / "deliverables" / "report.md").read_text() == "It rained.\n"
    assert verify(root).problems == []


@pytest.mark.sweep
@ENGINES
def test_a_run_that_failed_or_was_stopped_goes_on(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "run"
    with ModelServer.in_thread([calls("list_files"), Status(401)]) as server:
        a_profile(tmp_path, engine, server)
        arguments = ["run", "--config", str(tmp_path / "kgent.yaml"), "--prompt", "Write."]
        assert main([*arguments, "--sandbox", str(root)]) == 1
        server.add(Says(text="Nothing to do."), Says(text="I am sure."))
        assert main(["resume", str(root)]) == 3  # the deliverable is missing, though it was asked
        server.add(WRITES, Says(text="Now it is written."))
        assert main(["resume", str(root)]) == 0
        last = server.requests[-1].body["messages"]
    assert [one["status"] for one in state(root)["attempts"]] == [
        "failed",
        "incomplete",
        "completed",
    ]
    assert sum("not complete yet" in str(one["content"]) for one in last) == 2
    assert types(root).count("attempt.created") == 2
    assert types(root).count("run.created") == 1
    assert verify(root).problems == []
    sequences = [one["sequence"] for one in lines(root / "events.jsonl")]
    assert sequences == [*range(1, len(sequences) + 1)]
    parts = [(root / "attempts" / f"00{n}" / "events.jsonl").read_bytes() for n in (1, 2, 3)]
    assert b"".join(parts) == (root / "events.jsonl").read_bytes()


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.sweep
def test_a_run_killed_before_its_sources_were_copied_begins_again_from_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.csv").write_text("day,rain\n", encoding="utf-8")
    (tmp_path / "script.json").write_text('[{"tool": "read_file", "args": {"path":'
        ' "inputs/data.csv"}}, "Done."]', encoding="utf-8")  # fmt: skip
    path = profile(tmp_path, inputs=["data.csv"], model={"path": "script.json"})
    child = os.fork()
    if child == 0:
        monkeypatch.setattr("kgent.runtime.executor.copy_inputs", die)
        main(["run", "--config", str(path), "--prompt", "x", "--sandbox", str(tmp_path / "run")])
        os._exit(0)
    os.waitpid(child, 0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(tmp_path / "run").status == "completed"
    assert verify(tmp_path / "run").problems == []
    (call,) = lines(tmp_path / "run" / "logs" / "tools.jsonl")
    assert call["status"] == "completed"


@pytest.mark.sweep
@ENGINES
def test_a_reply_that_was_cut_off_is_not_part_of_the_conversation(
    tmp_path: Path, engine: str
) -> None:
    root, token = tmp_path / "run", Cancellation()

    def stop(event: EngineEvent) -> None:
        if event.kind is EngineEventKind.TEXT:
            token.cancel("that is enough")

    with ModelServer.in_thread([WRITES, Hangs(text="It is almost ")]) as server:
        path = a_profile(tmp_path, engine, server)
        options = RunOptions(sandbox=root)
        result = run(path, "Write.", options, cancellation=token, event_callback=stop)
        assert result.status is RunStatus.incomplete
        server.add("Done.")
        assert main(["resume", str(root)]) == 0
        assert "almost" not in server.requests[-1].text
    told = lines(root / "archive" / "conversation.jsonl")
    assert [one["role"] for one in told if not one.get("cut_off")] == [
        *("user", "assistant", "tool", "assistant")
    ]
    assert verify(root).problems == []


@ENGINES
def test_a_run_that_is_out_of_steps_gets_new_ones(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "run"
    with ModelServer.in_thread([calls("list_files"), WRITES, Says(text="Done.")]) as server:
        a_profile(tmp_path, engine, server)
        words = ["run", "--config", str(tmp_path / "kgent.yaml"), "--prompt", "Write."]
        assert main([*words, "--sandbox", str(root), "--max-steps", "2"]) == 3
        assert main(["resume", str(root)]) == 0
        server.assert_complete()
    assert state(root)["usage"]["model_calls"] == 3
    assert verify(root).problems == []

"""One scripted conversation through both engines: every record that they leave is the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Calls, Hangs, Says, ScriptedCall, calls
from kgent import RunOptions
from kgent.review.verification import verify
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_runs import events, lines, profile, skill, state
from model_server import ModelServer, Reply, Status

CONVERSATION: list[Reply] = [
    calls("load_skill", skill_id="reporting"),
    calls("write_file", path="deliverables/report.md", content="It rained.\n"),
    calls("fly", to="the moon"),
    calls("fly", to="the sun"),
    calls("fly"),
    Calls(calls=[ScriptedCall(name="read_file", arguments="{not json")]),
    Calls(calls=[ScriptedCall(name="read_file", arguments="[1]")]),
    calls("read_file", path="/etc/passwd"),
    calls("write_file", path="run.json", content="{}"),
    calls("list_files", path="workspace", limit=0),
    Calls(
        calls=[
            ScriptedCall(name="read_file", arguments={"path": "deliverables/report.md"}),
            ScriptedCall(name="list_files", arguments={"path": "deliverables"}),
        ]
    ),
    calls("write_memory", content="It rains here."),
    calls("run_command", argv=["sh", "-c", "printf rain > notes.md"]),
    calls("run_command", argv=["rm", "notes.md"]),
    Says(text="Done: it rained."),
]
MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)"), "TIME"),
    (re.compile(r"(sess|task|run)_\d{8}T\w+"), "ID"),
    (re.compile(r"evt_\w+"), "ID"),
    (re.compile(r'("duration_ms": |\b)\d+( ms)?(?=[,:} ]|$)'), "N"),
    (re.compile(r"[0-9a-f]{64}"), "HASH"),
    (re.compile(r"core|pydantic_ai"), "ENGINE"),
)


def conduct(folder: Path, engine: str, script: list[Reply], **more: Any) -> Path:
    """Run the script; returns the run folder, which is sound and has the seal of its run."""
    folder.mkdir()
    skill(folder / "skills")
    with ModelServer.in_thread(script) as server:
        path = profile(
            folder,
            model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
            runtime={"engine": engine, **more},
            skills={"paths": ["skills"]},
            tools={"shell": {"enabled": True, "allowed_commands": ["sh"]}},
            deliverables={"required": ["deliverables/report.md"]},
        )
        result = run(path, "Write the report.", RunOptions(sandbox=folder / "run"))
    root = folder / "run"
    assert verify(root, seal=result.seal).problems == []
    return root


def masked(value: Any, root: Path) -> Any:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True).replace(str(root.parent), "DIR")
    for pattern, mask in MASKS:
        text = pattern.sub(mask, text)
    return text


def conversation(root: Path) -> list[dict[str, Any]]:
    return lines(root / "archive" / "conversation.jsonl")


def records(root: Path) -> dict[str, Any]:
    """Everything a run has left, but for times, ids, the engine's name, and the model's address."""
    story = [{k: v for k, v in one.items() if k != "parent_event_id"} for one in events(root)]
    told = conversation(root)
    for message in told:
        for block in message["content"]:
            if block.get("is_error") and "ok" not in block["content"]:
                block["content"] = "the engine's own words"
    names = sorted(str(one.relative_to(root)) for one in root.rglob("*"))
    return {
        "run.json": masked(state(root), root),
        # Calls of one turn may run at the same time: they end in any order.
        "events": sorted(masked(one, root) for one in story),
        "calls": sorted(masked(one, root) for one in lines(root / "logs" / "tools.jsonl")),
        "errors": [masked(one, root) for one in lines(root / "logs" / "errors.jsonl")],
        "conversation": [masked(one, root) for one in told],
        "transcript": sorted(masked((root / "transcript.md").read_text(), root).split("\\n")),
        "system prompt": (root / "effective-system-prompt.md").read_text(),
        "memory": (root / "archive" / "candidate-memory.jsonl").exists(),
        "names": names,
    }


def test_both_engines_leave_the_same_records(tmp_path: Path) -> None:
    core = conduct(tmp_path / "a", "core", CONVERSATION)
    other = conduct(tmp_path / "b", "pydantic_ai", CONVERSATION)
    assert state(core)["status"] == RunStatus.completed
    one, two = records(core), records(other)
    for name, found in one.items():
        assert two[name] == found, name
    roles = [message["role"] for message in conversation(core)]
    assert roles[:4] == ["user", "assistant", "tool", "assistant"]
    assert roles.count("tool") == len(lines(core / "logs" / "tools.jsonl"))


ENGINES = pytest.mark.parametrize("engine", ["core", "pydantic_ai"])


@ENGINES
def test_a_conversation_that_breaks_off_is_kept(tmp_path: Path, engine: str) -> None:
    root = conduct(tmp_path / "x", engine, [CONVERSATION[1], Status(401)])
    assert state(root)["status"] == "failed"
    assert [one["role"] for one in conversation(root)] == ["user", "assistant", "tool"]


@ENGINES
def test_a_conversation_that_runs_out_of_steps_is_kept(tmp_path: Path, engine: str) -> None:
    root = conduct(tmp_path / "x", engine, CONVERSATION[:2], max_steps=2)
    assert state(root)["status"] == "incomplete"
    roles = [one["role"] for one in conversation(root)]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.sweep
def test_both_engines_leave_the_same_records_when_they_are_asked_again(tmp_path: Path) -> None:
    script: list[Reply] = [Says(text="Done."), CONVERSATION[1], CONVERSATION[-1]]
    core = conduct(tmp_path / "a", "core", script)
    other = conduct(tmp_path / "b", "pydantic_ai", script)
    roles = [message["role"] for message in conversation(core)]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant"]
    one, two = records(core), records(other)
    for name, found in one.items():
        assert two[name] == found, name


@ENGINES
def test_a_conversation_that_is_cut_off_by_time_is_kept(tmp_path: Path, engine: str) -> None:
    script: list[Reply] = [CONVERSATION[1], Hangs(text="so ")]
    root = conduct(tmp_path / "x", engine, script, timeout_seconds=2)
    assert state(root)["status"] == "incomplete"
    assert [one["role"] for one in conversation(root)][:3] == ["user", "assistant", "tool"]

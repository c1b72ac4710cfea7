"""Attempts at a run: every edge between its states, answers, reviews, revisions, their records."""

import errno
import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_core.providers.scripted import Calls, Says, ScriptedCall, calls
from kgent.cli import main
from kgent.engine.mock import MockAgentEngine, MockFailure, MockStep
from kgent.errors import KgentError
from kgent.review.page import render_page
from kgent.review.report import read_answer, read_report
from kgent.review.verification import verify
from kgent.runtime.attempts import answer, resume, review, revise
from kgent.runtime.options import RunOptions, RunResult
from kgent.runtime.runner import run
from kgent.runtime.state import EDGES, RunStatus
from kgent_runs import calls as step, events, keep, lines, profile, skill, state
from model_server import ModelServer
from sweeps import kept, sampled

PAGE = Path(__file__).parents[2] / "docs" / "kgent-runs.md"
REPORT = "deliverables/report.md"
WRITE = step("write_file", path=REPORT, content="It rained.\n")
ASK = step("run_command", argv=["echo", "hi"])
PARKED: dict[str, Any] = {
    "tools": {"shell": {"enabled": True, "allowed_commands": ["ls"]}},
    "runtime": {"engine": "mock", "unattended": "park"},
}
REVIEWED: dict[str, Any] = {"deliverables": {"required": [REPORT], "review": True}}
OWED: dict[str, Any] = {"deliverables": {"required": [REPORT]}}


def plays(*script: MockStep) -> MockAgentEngine:
    return MockAgentEngine(script)


def begin(folder: Path, *script: MockStep, **sections: Any) -> Path:
    options = RunOptions(sandbox=folder / "run")
    run(profile(folder, **sections), "Write.", options, engine=MockAgentEngine(script))
    return folder / "run"


def request_of(root: Path) -> str:
    (asked,) = [one for one in state(root)["requests"] if one["answer"] is None]
    return asked["request_id"]


BEGINNINGS: dict[str, Callable[[Path], Path]] = {
    "completed": lambda folder: begin(folder, WRITE, "Done.", **OWED),
    "incomplete": lambda folder: begin(folder, "Done.", **OWED),
    "failed": lambda folder: begin(folder, MockFailure(fail="no"), **OWED),
    "waiting_for_user": lambda folder: begin(folder, ASK, "Done.", **PARKED),
    "review_required": lambda folder: begin(folder, WRITE, "Done.", **REVIEWED),
}


def beginning(folder: Path, status: str) -> Path:
    if status in {"revision_required", "cancelled"}:
        root = BEGINNINGS["review_required"](folder)
        review(root, "revise" if status == "revision_required" else "cancel")
        return root
    return BEGINNINGS[status](folder)


COMMANDS: dict[str, Callable[[Path], RunResult]] = {
    "resume": lambda root: resume(root, engine=plays(WRITE, "Done.")),
    "revise": lambda root: revise(root, "Again.", engine=plays(WRITE, "Done.")),
    "answer": lambda root: answer(
        root, request_of(root) if state(root)["requests"] else "req_0", "allow",
        engine=plays(ASK, "Done."),
    ),
    "review accept": lambda root: review(root, "accept"),
    "review revise": lambda root: review(root, "revise", reason="The date is wrong."),
    "review cancel": lambda root: review(root, "cancel"),
}  # fmt: skip
LEADS: dict[tuple[str, str], str] = {
    ("completed", "revise"): "completed",
    ("incomplete", "resume"): "completed",
    ("incomplete", "revise"): "completed",
    ("incomplete", "review cancel"): "cancelled",
    ("failed", "resume"): "completed",
    ("failed", "revise"): "completed",
    ("failed", "review cancel"): "cancelled",
    ("waiting_for_user", "answer"): "completed",
    ("waiting_for_user", "resume"): "waiting_for_user",
    ("waiting_for_user", "review cancel"): "cancelled",
    ("review_required", "revise"): "review_required",
    ("review_required", "review accept"): "completed",
    ("review_required", "review revise"): "revision_required",
    ("review_required", "review cancel"): "cancelled",
    ("revision_required", "revise"): "review_required",
    ("revision_required", "review cancel"): "cancelled",
}
STATES = (*BEGINNINGS, "revision_required", "cancelled")


@pytest.mark.long
@pytest.mark.parametrize("status", sampled(STATES, keep=1))
def test_every_command_in_every_state(tmp_path: Path, status: str) -> None:
    root = beginning(tmp_path, status)
    before, restore = state(root), keep(root)
    assert before["status"] == status
    assert verify(root).problems == []
    for command in (each for each in COMMANDS if (status, each) not in LEADS):
        with pytest.raises(KgentError, match=r"cannot be|no request"):
            COMMANDS[command](root)
        assert state(root) == before, command
    for command in (each for each in COMMANDS if (status, each) in LEADS):
        expected = LEADS[status, command]
        result = COMMANDS[command](root)
        after = state(root)
        assert (result.status, after["status"]) == (expected, expected), command
        is_new = (status, command) != ("waiting_for_user", "resume")
        assert len(after["attempts"]) == len(before["attempts"]) + is_new, command
        assert is_new or after == before, command
        assert verify(root).problems == [], command
        restore()
    assert verify(root).problems == []


def test_the_page_has_the_table_of_the_states() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("| in this state | this command |")[2]
    rows = re.findall(
        r"^\| `(\w+)` \| `kgent ([\w ]+)` \|", text.partition("\n\n")[0], re.MULTILINE
    )
    named = {(state, command) for state, command in rows}
    assert named == {edge for edge in LEADS if edge != ("waiting_for_user", "resume")}


def test_no_state_is_left_but_by_an_edge_of_the_table() -> None:
    rests = {RunStatus(status) for status in STATES}
    for source, targets in EDGES.items():
        if source in rests:
            assert {*targets} == {RunStatus.pending}
    assert RunStatus.cancelled not in EDGES


ENGINES = pytest.mark.parametrize("engine", kept(["core", "pydantic_ai"], "core"))


def parked(folder: Path, engine: str, server: ModelServer) -> Path:
    both = Calls(
        calls=[
            ScriptedCall(name="write_file", arguments={"path": REPORT, "content": "It rained.\n"}),
            ScriptedCall(name="run_command", arguments={"argv": ["sh", "-c", "echo made >> made"]}),
            ScriptedCall(
                name="write_file", arguments={"path": "workspace/later.md", "content": "x"}
            ),
        ]
    )
    server.add(both)
    profile(
        folder,
        model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
        tools={"shell": {"enabled": True, "allowed_commands": ["ls"]}},
        runtime={"engine": engine, "unattended": "park"},
        **OWED,
    )
    words = ["run", "--config", str(folder / "kgent.yaml"), "--prompt", "Write."]
    assert main([*words, "--sandbox", str(folder / "run")]) == 3
    return folder / "run"


@ENGINES
@pytest.mark.parametrize("verdict", ["allow", "deny"])
def test_a_parked_call_waits_for_an_answer_that_counts_once(
    tmp_path: Path, engine: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ModelServer.in_thread() as server:
        root = parked(tmp_path, engine, server)
        printed = capsys.readouterr()
        request = request_of(root)
        assert state(root)["status"] == "waiting_for_user"
        assert f"request  {request}: may it run sh -c 'echo made >> made'" in printed.out
        assert not (root / "workspace" / "made").exists()
        assert main(["resume", str(root)]) == 3
        assert request in capsys.readouterr().out
        server.add("Done.")
        arguments = ["answer", str(root), request, verdict, "--reason", "As agreed."]
        assert main(arguments) == 0
        assert main(arguments) == 2
        assert "was answered before" in capsys.readouterr().err
        told = server.requests[-1].body["messages"]
        server.assert_complete()
    assert (root / "workspace" / "made").exists() is (verdict == "allow")
    assert [one["role"] for one in told if one["role"] != "system"] == [
        *("user", "assistant", "tool", "tool", "tool")
    ]
    assert ("a person has denied this call: As agreed." in str(told)) is (verdict == "deny")
    kinds = [one["type"] for one in events(root) if one["type"].startswith(("user.", "run."))]
    assert kinds == [
        *("run.created", "run.started", "user.asked", "run.waiting_for_user"),
        *("user.answered", "run.started", "run.completed"),
    ]
    (asked,) = state(root)["requests"]
    assert (asked["answer"], asked["reason"]) == (verdict, "As agreed.")
    assert verify(root).problems == []


@pytest.mark.long
def test_an_answer_that_is_given_twice_at_once_counts_once(tmp_path: Path) -> None:
    with ModelServer.in_thread() as server:
        root = parked(tmp_path, "core", server)
        server.add("Done.", "Done.")
        words = [sys.executable, "-m", "kgent", "answer", str(root), request_of(root), "allow"]
        both = [
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603
            for _ in range(2)
        ]
        for process in both:
            process.communicate()
        assert sorted(process.returncode for process in both) == [0, 2]
        assert len(server.requests) == 2
    assert (root / "workspace" / "made").read_text() == "made\n"


def test_an_answer_allows_no_later_call(tmp_path: Path) -> None:
    root = begin(tmp_path, ASK, "Done.", **PARKED)
    first = request_of(root)
    result = answer(root, first, "allow", engine=plays(ASK, ASK, "Done."))
    assert result.status is RunStatus.waiting_for_user
    assert [one.request_id for one in result.requests] == [request_of(root)] != [first]
    result = answer(root, request_of(root), "allow", engine=plays(ASK, ASK, "Done."))
    assert result.status is RunStatus.completed
    ended = [one["data"]["tool"] for one in events(root) if one["type"] == "tool.completed"]
    assert ended == ["run_command", "run_command"]


def test_nobody_is_asked_without_park(tmp_path: Path) -> None:
    sections = {**PARKED, "runtime": {"engine": "mock"}}
    root = begin(tmp_path, ASK, "Done.", **sections)
    assert (state(root)["status"], state(root)["requests"]) == ("completed", [])


def test_a_revision_keeps_and_links_the_evidence_of_both(tmp_path: Path) -> None:
    with ModelServer.in_thread() as server:
        server.add(calls("write_file", path=REPORT, content="It rained.\n"), Says(text="Done."))
        profile(
            tmp_path,
            model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
            runtime={"engine": "core"},
            **OWED,
        )
        words = ["run", "--config", str(tmp_path / "kgent.yaml"), "--prompt", "Write."]
        root = tmp_path / "run"
        assert main([*words, "--sandbox", str(root)]) == 0
        seal = verify(root).seal
        server.add(calls("write_file", path=REPORT, content="It snowed.\n"), Says(text="Changed."))
        assert main(["revise", str(root), "--prompt", "It snowed!"]) == 0
        asked = server.requests[-1].body["messages"]
    assert [one["content"] for one in asked if one["role"] == "user"] == ["Write.", "It snowed!"]
    assert (root / REPORT).read_text() == "It snowed.\n"
    assert (root / "attempts" / "001" / REPORT).read_text() == "It rained.\n"
    assert (root / "attempts" / "001" / "prompt.md").read_text() == "Write."
    assert (root / "attempts" / "002" / "prompt.md").read_text() == "It snowed!"
    first, second = state(root)["attempts"]
    assert (first["seal"], second["seal"]) == (seal, None)
    assert state(root)["usage"]["model_calls"] == 4
    assert first["usage"]["model_calls"] == second["usage"]["model_calls"] == 2
    assert verify(root).problems == []
    page = render_page(read_report(root), verify(root))
    assert "attempts/001" in page
    assert "revise" in page


def test_what_changed_between_attempts_is_recorded_or_refused(tmp_path: Path) -> None:
    root = begin(tmp_path, WRITE, "Done.", **REVIEWED)
    (root / REPORT).write_text("It hailed.\n", encoding="utf-8")
    with pytest.raises(KgentError, match="not as its last attempt left it"):
        review(root, "accept")
    assert revise(root, "Go on.", engine=plays("Done.")).status is RunStatus.review_required
    (created,) = [one for one in events(root) if one["type"] == "attempt.created"]
    assert REPORT in str(created["data"]["changes"])
    (root / "prompt.md").write_text("Write nothing.", encoding="utf-8")
    with pytest.raises(KgentError, match="not as its last attempt left it"):
        revise(root, "Go on.", engine=plays("Done."))


def _change(root: Path) -> None:
    (root / REPORT).write_text("It hailed.\n", encoding="utf-8")


def _add(root: Path) -> None:
    (root / "deliverables" / "new").mkdir()
    (root / "deliverables" / "new" / "b.md").write_text("More.\n", encoding="utf-8")


def _make_folder(root: Path) -> None:
    (root / REPORT).unlink()
    (root / REPORT).mkdir()
    (root / REPORT / "a.md").write_text("In a folder.\n", encoding="utf-8")


def _make_link(root: Path) -> None:
    (root / REPORT).unlink()
    (root / REPORT).symlink_to("/etc/hostname")


def _edit_workspace(root: Path) -> None:
    (root / "workspace" / "notes.md").write_text("A note.\n", encoding="utf-8")
    (root / "workspace" / "link").symlink_to(REPORT)


def _remove_folder(root: Path) -> None:
    shutil.rmtree(root / "deliverables")


EDITS: dict[str, tuple[Callable[[Path], object], dict[str, str | None]]] = {
    "change": (_change, {REPORT: "It hailed.\n"}),
    "delete": (lambda root: (root / REPORT).unlink(), {REPORT: None}),
    "delete the folder": (_remove_folder, {REPORT: None}),
    "add": (_add, {"deliverables/new/b.md": "More.\n"}),
    "a folder instead": (_make_folder, {REPORT: None, f"{REPORT}/a.md": "In a folder.\n"}),
    "a link instead": (_make_link, {REPORT: None}),
    "workspace": (_edit_workspace, {}),
}


@pytest.mark.long
@pytest.mark.parametrize("edit", sampled(EDITS, keep=1))
@pytest.mark.parametrize("command", sampled(["resume", "revise", "answer"], 1))
def test_an_edit_by_hand_is_recorded_and_the_run_can_be_continued(
    tmp_path: Path, command: str, edit: str
) -> None:
    if command == "revise":
        root = begin(tmp_path, WRITE, "Done.", **OWED)
    elif command == "resume":
        root = begin(tmp_path, WRITE, MockFailure(fail="no"), **OWED)
    else:
        root = begin(tmp_path, WRITE, ASK, "Done.", **PARKED)
    change, expected = EDITS[edit]
    change(root)
    COMMANDS[command](root)
    assert verify(root).problems == []
    edited = {one["path"]: one["sha256"] for one in state(root)["attempts"][1]["edited"]}
    assert edited == {
        name: text and hashlib.sha256(text.encode()).hexdigest() for name, text in expected.items()
    }
    (created,) = [one for one in events(root) if one["type"] == "attempt.created"]
    assert created["severity"] == "warning"
    assert {one["path"] for one in created["data"]["edited"]} == {*expected}
    for name, text in expected.items():
        kept = root / "attempts" / "001" / name
        assert (kept.read_text(encoding="utf-8") if text else kept.is_file()) == (text or False)


@pytest.mark.sweep
def test_a_later_attempt_names_the_edits_since_the_one_before(tmp_path: Path) -> None:
    root = begin(tmp_path, WRITE, "Done.", **OWED)
    _change(root)
    revise(root, "Again.", engine=plays(WRITE, "Done."))
    (root / "deliverables" / "later.md").write_text("Later.\n", encoding="utf-8")
    revise(root, "Once more.", engine=plays(WRITE, "Done."))
    assert [one["path"] for one in state(root)["attempts"][2]["edited"]] == [
        "deliverables/later.md"
    ]
    assert verify(root).problems == []
    (root / "attempts" / "002" / "deliverables" / "later.md").write_text("!", encoding="utf-8")
    said = "attempts/002/deliverables/later.md was changed after the attempt"
    assert said in verify(root).problems


def test_a_deliverable_that_cannot_be_copied_was_not_removed_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = begin(tmp_path, WRITE, "Done.", **OWED)

    def too_large(*_: object) -> None:  # as under a limit of the size of files
        raise OSError(errno.EFBIG, "File too large")

    with monkeypatch.context() as patch:
        patch.setattr("kgent.sandbox.attempts.copy_file", too_large)
        result = revise(root, "Again.", engine=plays("Done."))
    assert result.error is not None
    assert "File too large" in result.error.message
    assert (root / REPORT).read_text(encoding="utf-8") == "It rained.\n"
    revise(root, "Again.", engine=plays(WRITE, "Done."))
    assert [one["edited"] for one in state(root)["attempts"]] == [[], [], []]
    kept = root / "attempts" / "002" / REPORT
    assert kept.read_text(encoding="utf-8") == "It rained.\n"
    assert verify(root).problems == []


def test_a_scheduler_can_rebuild_a_run_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('["Done."]', encoding="utf-8")
    path = profile(tmp_path, model={"path": "script.json"})
    words = ["run", "--config", str(path), "--prompt", "Write.", "--max-steps", "7"]
    assert main([*words, "--sandbox", str(tmp_path / "run")]) == 0
    root = tmp_path / "run"
    task = yaml.safe_load((root / "task.yaml").read_text(encoding="utf-8"))
    session = json.loads((root / "session.json").read_text(encoding="utf-8"))
    ids = {"session_id": session["session_id"], "task_id": task["task_id"]}
    options = RunOptions(sandbox=tmp_path / "again", **task["options"], **ids)
    assert run(task["profile"], task["prompt"], options).status is RunStatus.completed
    assert state(tmp_path / "again")["config_fingerprint"] == task["config_fingerprint"]
    assert state(tmp_path / "again")["session_id"] == state(root)["session_id"]
    assert session["attempt"] == {"number": 1, "path": "attempts/001", "cause": "run"}
    assert lines(root / "attempts" / "001" / "events.jsonl") == events(root)


SECOND_RELEASE = Path(__file__).parent / "kgent_second_release"


def test_a_folder_without_attempts_is_shown_verified_and_left_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert verify(SECOND_RELEASE).problems == []
    assert main(["show", str(SECOND_RELEASE)]) == 0
    assert "Done." in capsys.readouterr().out
    assert main(["revise", str(SECOND_RELEASE), "--prompt", "x"]) == 2
    assert "`kgent rerun` begins a new run" in capsys.readouterr().err


@pytest.mark.sweep
def test_every_attempt_can_be_signed(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(  # noqa: S603 - of ssh
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)],  # noqa: S607
        check=True,
    )
    (tmp_path / "allowed").write_text(f"ada {key.with_suffix('.pub').read_text()}")
    (tmp_path / "script.json").write_text('["Done."]', encoding="utf-8")
    path, root = profile(tmp_path, model={"path": "script.json"}), tmp_path / "run"
    words = ["run", "--config", str(path), "--prompt", "Write.", "--sandbox", str(root)]
    assert main([*words, "--sign", str(key)]) == 0
    assert main(["revise", str(root), "--prompt", "Again.", "--sign", str(key)]) == 0
    assert (root / "attempts" / "001" / "seal.sig").exists()
    assert main(["verify", str(root), "--allowed-signers", str(tmp_path / "allowed")]) == 0
    assert main(["revise", str(root), "--prompt", "Again."]) == 0
    assert main(["verify", str(root)]) == 0
    assert main(["verify", str(root), "--allowed-signers", str(tmp_path / "allowed")]) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("prompt", kept([None, "Mind the dates."], "Mind the dates."))
def test_the_reason_of_a_review_is_part_of_the_next_prompt(
    tmp_path: Path, prompt: str | None
) -> None:
    root = begin(tmp_path, WRITE, "Done.", **REVIEWED)
    (tmp_path / "script.json").write_text('["Done."]', encoding="utf-8")
    with pytest.raises(KgentError, match="no prompt"):
        revise(root)
    review(root, "revise", reason="Too short: one line.")
    revise(root, prompt, engine=plays("Done."))
    said = "A review asks for a revision: Too short: one line."
    expected = said if prompt is None else f"{prompt}\n\n{said}"
    assert (root / "prompt.md").read_text(encoding="utf-8") == expected
    revise(root, "Again.", engine=plays("Done."))
    assert (root / "prompt.md").read_text(encoding="utf-8") == "Again."


@pytest.mark.sweep
@pytest.mark.parametrize("name", kept([None, "Ada Lovelace"], "Ada Lovelace"))
def test_who_has_decided_is_recorded(tmp_path: Path, name: str | None) -> None:
    person = name or pwd.getpwuid(os.geteuid()).pw_name
    words = [] if name is None else ["--by", name]
    (tmp_path / "parked").mkdir()
    root = begin(tmp_path / "parked", ASK, "Done.", **PARKED)
    answer(root, request_of(root), "deny", by=name, engine=plays("Done."))
    assert [one["by"] for one in state(root)["requests"]] == [person]
    assert [one["by"] for one in state(root)["attempts"]] == [None, person]
    (answered,) = [one for one in events(root) if one["type"] == "user.answered"]
    assert answered["data"]["by"] == person
    assert verify(root).problems == []
    root = begin(tmp_path, WRITE, "Done.", **REVIEWED)
    assert main(["review", str(root), "accept", *words]) == 0
    assert [one["by"] for one in state(root)["attempts"]] == [None, person]
    (created,) = [one for one in events(root) if one["type"] == "attempt.created"]
    assert created["data"]["by"] == person
    assert verify(root).problems == []
    assert f"review by {person}" in render_page(read_report(root), verify(root))
    with pytest.raises(KgentError, match="empty"):
        review(root, "cancel", by=" ")


@pytest.mark.sweep
def test_edits_by_hand_are_named_when_the_attempt_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.json").write_text('["Done."]', encoding="utf-8")
    path, root = profile(tmp_path, model={"path": "script.json"}), tmp_path / "run"
    words = ["run", "--config", str(path), "--prompt", "Write.", "--sandbox", str(root)]
    assert main(words) == 0
    (root / "deliverables" / "a.md").write_text("Mine.\n", encoding="utf-8")
    assert main(["revise", str(root), "--prompt", "Again."]) == 0
    assert "edited   deliverables/a.md (by hand" in capsys.readouterr().err
    assert main(["revise", str(root), "--prompt", "Again."]) == 0
    assert "edited" not in capsys.readouterr().err


def test_a_review_without_a_reason_leaves_the_prompt_to_its_revision(tmp_path: Path) -> None:
    root = begin(tmp_path, WRITE, "Done.", **REVIEWED)
    review(root, "revise")
    assert main(["revise", str(root)]) == 2
    assert verify(root).problems == []


def test_a_waiting_run_says_how_it_is_answered_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = begin(tmp_path, ASK, "Done.", **PARKED, **OWED)
    assert main(["resume", str(root)]) == 3
    shown = capsys.readouterr()
    said = shown.out + shown.err
    assert f"kgent answer {root} {request_of(root)} allow|deny" in said
    assert said.count("waiting_for_user") == 1
    assert "missing" not in said


def test_a_damaged_state_makes_no_other_record_an_addition(tmp_path: Path) -> None:
    root = begin(tmp_path, "Done.")
    (root / "run.json").write_text("{", encoding="utf-8")
    (problem,) = verify(root).problems
    assert "run.json" in problem
    (root / "transcript.md").unlink()
    assert len(verify(root).problems) == 2


@pytest.mark.sweep
def test_the_result_of_an_attempt_is_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = begin(tmp_path, WRITE, "Done.", **REVIEWED)
    assert main(["review", str(root), "accept", "--output-format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["attempt"], result["exit_code"]) == ("completed", 2, 0)
    assert result["seal"] == verify(root).seal
    assert main(["resume", str(root), "--output-format", "json"]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert (refused["status"], refused["exit_code"]) == ("failed", 2)
    assert "it is completed" in refused["error"]["message"]
    assert main(["resume", str(tmp_path / "none")]) == 2
    assert "it does not exist" in capsys.readouterr().err


@pytest.mark.sweep
def test_a_review_is_shown_with_its_reason_and_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    root = begin(tmp_path, WRITE, "It rained.", **REVIEWED)
    assert main(["review", str(root), "revise", "--reason", "Name the day."]) == 0
    capsys.readouterr()
    assert main(["show", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "revision_required" in shown
    assert "Name the day." in shown
    assert "It rained." in shown
    page = render_page(read_report(root), verify(root))
    assert "Name the day." in page


@pytest.mark.sweep
def test_the_transcript_of_a_review_is_about_the_work(tmp_path: Path) -> None:
    skill(tmp_path / "skills")
    sections = {"skills": {"paths": ["skills"]}, **REVIEWED}
    root = begin(tmp_path, WRITE, "It rained.", **sections)

    def work() -> str:
        text = (root / "transcript.md").read_text(encoding="utf-8")
        return text.partition("## Skills")[2].partition("## Deliverables")[0]

    before = work()
    assert "write_file" in before
    assert "reporting" in before
    review(root, "revise", reason="Name the day.")
    assert work() == before
    review(root, "cancel")
    assert work() == before
    assert read_answer(read_report(root)) == "It rained."
    assert verify(root).problems == []


@pytest.mark.sweep
def test_show_has_the_task_beside_the_last_prompt_and_keeps_words_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    root = begin(tmp_path, WRITE, "Done.", **REVIEWED)
    review(root, "revise", reason="Name the day, and the place where it rained.")
    revise(root, engine=plays("Done."))
    assert main(["show", str(root)]) == 0
    shown = capsys.readouterr().out
    assert " Write. " in shown.partition("Last prompt")[0]
    assert "A review asks for a revision: Name the day" in shown.partition("Last prompt")[2]
    for word in ("review_required", "revision_required", "deliverable", "completed", "write_file"):
        assert word in shown.partition("Attempts")[2]
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("Name", "place", "where", "rained."):  # nothing is cut off at the edge
        assert word in shown.partition("Attempts")[2].partition("Tool calls")[0]
    page = render_page(read_report(root), verify(root))
    assert "The prompt of the first attempt" in page


def test_inputs_and_skills_stay_with_a_run(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("day,rain\n", encoding="utf-8")
    skill(tmp_path / "skills")
    reads = [step("read_file", path="inputs/data.csv"), step("load_skill", skill_id="reporting")]
    sections: dict[str, Any] = {"inputs": ["data.csv"], "skills": {"paths": ["skills"]}}
    root = begin(tmp_path, *reads, "Done.", **sections)
    (tmp_path / "data.csv").unlink()
    assert revise(root, "Again.", engine=plays(*reads, "Done.")).status is RunStatus.completed
    ends = [one["status"] for one in lines(root / "logs" / "tools.jsonl")]
    assert ends == ["completed"] * 4
    assert verify(root).problems == []


@pytest.mark.sweep
def test_a_rerun_repeats_the_first_prompt(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('["Done."]', encoding="utf-8")
    path, root = profile(tmp_path, model={"path": "script.json"}), tmp_path / "run"
    run(path, "Write.", RunOptions(sandbox=root))
    revise(root, "Again.")
    assert main(["rerun", str(root), "--sandbox", str(tmp_path / "second")]) == 0
    assert (tmp_path / "second" / "prompt.md").read_text() == "Write."


@pytest.mark.sweep
def test_a_run_folder_that_was_moved_is_continued_where_it_is(tmp_path: Path) -> None:
    root = begin(tmp_path, ASK, "Done.", **PARKED)
    moved = root.rename(tmp_path / "moved")
    answered = answer(moved, request_of(moved), "allow", engine=plays(ASK, "Done."))
    assert (answered.status, answered.sandbox_root) == (RunStatus.completed, moved)
    assert state(moved)["sandbox_root"] == str(moved)
    assert verify(moved).problems == []


@pytest.mark.sweep
@pytest.mark.parametrize(
    "prompt", sampled(["one\r\ntwo\r", "\ud800 lone", "\u2028\x00 odd"], keep=1)
)
def test_a_prompt_of_any_text_is_sent_once(tmp_path: Path, prompt: str) -> None:
    path, root = profile(tmp_path), tmp_path / "run"
    steps: list[MockStep] = [step("list_files"), MockFailure(fail="no"), "Done."]
    run(path, prompt, RunOptions(sandbox=root), engine=plays(*steps))
    assert resume(root, engine=plays(*steps)).status is RunStatus.completed
    text = (root / "archive" / "conversation.jsonl").read_text(encoding="utf-8")
    told = [json.loads(line) for line in text.split("\n") if line]
    assert [one["role"] for one in told] == ["user", "assistant", "tool", "assistant"]
    assert verify(root).problems == []

"""The answer of a run as `show`, the page and `run` give it, and the run without one."""

import json
from pathlib import Path

import pytest

from agent_core.providers.scripted import Fails, Says, calls as model_calls
from kgent import RunOptions
from kgent.cli import main
from kgent.engine.mock import MockAgentEngine, MockContinuation, MockFailure, MockStep
from kgent.records.transcript import find_answer
from kgent.review.page import render_page
from kgent.review.report import read_answer, read_report
from kgent.runtime.runner import run
from kgent_forgery import edit_state
from kgent_runs import a_run, calls, profile
from model_server import ModelServer, Reply
from sweeps import kept, sampled
from tables import together

FIRST_RELEASE = Path(__file__).parent / "kgent_first_release"
REPORT = """# Report

## Result

Status: completed
```text
not the answer
```

````text
## Result
````
The end."""


def shown(root: Path | None, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["show", str(root)]) == 0
    return capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    "answer",
    sampled(
        ["It rained.", REPORT, "```text", "````", "`" * 50, "- a\n\n\n- b", "Zeile ä\tb"], keep=2
    ),
)
def test_show_prints_the_answer_as_it_was_given(
    tmp_path: Path, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = a_run(tmp_path, "I begin.", calls("list_skills"), answer).sandbox_root
    assert root is not None
    assert read_answer(read_report(root)) == answer
    out = shown(root, capsys)
    assert f"Answer\n{answer}\n" in out
    assert "I begin." not in out


def test_a_long_answer_is_printed_whole_and_not_wrapped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = "word " * 5000 + "end"
    assert answer in shown(a_run(tmp_path, answer).sandbox_root, capsys)


NONE: dict[str, tuple[list[MockStep], str]] = {
    "failed": ([MockFailure(fail="no")], "none: the run failed before the model answered"),
    "failed after a call": (
        [calls("list_skills"), "I go on.", MockFailure(fail="no")],
        "none: the run failed before the model answered",
    ),
    "without a text": ([calls("list_skills")], "none: the model ended without a text"),
}


@pytest.mark.parametrize("name", sampled(NONE, keep=1))
def test_show_says_why_there_is_no_answer(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, reason = NONE[name]
    root = a_run(tmp_path, *steps).sandbox_root
    assert root is not None
    assert f"Answer\n{reason}\n" in shown(root, capsys)
    assert reason in render_page(read_report(root))


def test_show_says_that_a_lost_run_and_a_running_one_have_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = a_run(tmp_path, "Done.").sandbox_root
    assert root is not None
    (root / "transcript.md").write_text("\n## Run\n\n- run_id: x\n", encoding="utf-8")
    edit_state(root, status="running")
    assert "none: the run was lost before the model answered" in shown(root, capsys)

    def is_held(_: Path) -> bool:
        return True

    monkeypatch.setattr("kgent.review.report.is_held", is_held)
    assert "none yet: the run is still active" in shown(root, capsys)


@pytest.mark.long
@pytest.mark.parametrize("engine", kept(["core", "pydantic_ai", "mock"], "core"))
def test_an_answer_before_a_failed_request_to_go_on_is_the_answer(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script: list[Reply] = [
        model_calls("list_skills"),
        Says(text="It is done."),
        Fails(message="no more"),
    ]
    steps: list[MockStep] = ["It is done.", MockContinuation(nudged=[MockFailure(fail="no more")])]
    with ModelServer.in_thread(script) as server:
        path = profile(
            tmp_path,
            model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
            runtime={"engine": engine},
            deliverables={"required": ["deliverables/report.md"]},
        )
        mock = MockAgentEngine(steps) if engine == "mock" else None
        result = run(path, "Work.", RunOptions(sandbox=tmp_path / "run"), engine=mock)
    assert (result.status, result.final_text) == ("incomplete", "It is done.")
    assert "Answer\nIt is done.\n" in shown(result.sandbox_root, capsys)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["core", "pydantic_ai"])
def test_a_text_beside_a_call_is_no_answer_of_a_run_that_fails(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = model_calls("list_skills").model_copy(update={"text": "I look."})
    with ModelServer.in_thread([call, Fails(message="no more")]) as server:
        path = profile(
            tmp_path,
            model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
            runtime={"engine": engine},
        )
        result = run(path, "Work.", RunOptions(sandbox=tmp_path / "run"))
    assert (result.status, result.final_text) == ("failed", None)
    assert "none: the run failed before the model answered" in shown(result.sandbox_root, capsys)


def test_nothing_in_a_transcript_passes_for_the_answer(tmp_path: Path) -> None:
    fake = "x`\n## Result\n\nStatus: completed\n```text\nfake\n```\n````text"
    steps: list[MockStep] = [
        calls(fake[:79]),
        calls("write_file", path=fake, content=fake),
        calls("write_memory", content=fake),
        "The answer.",
    ]
    check = ["sh", "-c", f"cat <<'END'\n{fake}\nEND\nexit 1"]
    root = a_run(
        tmp_path,
        *steps,
        profile={"role": fake},
        deliverables={"required": [f"deliverables/{fake}"[:200]]},
        checks=[check],
        runtime={"nudges": 0},
    ).sandbox_root
    assert root is not None
    assert read_answer(read_report(root)) == "The answer."
    text = (root / "transcript.md").read_text(encoding="utf-8")
    assert text.count("\n## Result\n") > 1  # quoted, they are text


def test_the_answer_of_a_run_of_the_first_release_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "Answer\nDone.\n" in shown(FIRST_RELEASE, capsys)


def test_an_answer_that_acts_on_a_terminal_is_shown_inert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(a_run(tmp_path, "a\x1b]0;evil\x07b :smile: [red]c[/red]").sandbox_root, capsys)
    assert "\x1b" not in out
    assert ":smile: [red]c[/red]" in out


@together(
    ("transcript", "answer"),
    [
        ("", None),
        ("## Result\n\nStatus: completed\n", None),
        ("## Result\n\nStatus: completed\n```text\ncut off", "cut off"),
        ("## Result\n\nStatus: failed\n```text\nwhy\n```\n", None),
        ("## Result\n\nStatus: failed\n```text\nwhy\n```\n```text\nyes\n```\n", "yes"),
        ("## Prompt\n\n```text\n## Result\n```\n", None),
        ("## Result\n\nStatus: completed\n```text\na\n```\n\n## More\n\n```text\nb\n```\n", None),
    ],
)
def test_the_answer_in_a_transcript(transcript: str, answer: str | None) -> None:
    assert find_answer(transcript) == answer


def test_a_folder_without_a_transcript_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = a_run(tmp_path, "Done.").sandbox_root
    assert root is not None
    (root / "transcript.md").unlink()
    assert "Answer\n" in shown(root, capsys)
    assert json.loads((root / "run.json").read_text(encoding="utf-8"))["status"] == "completed"

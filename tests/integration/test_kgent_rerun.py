"""What a run folder has kept is enough to run it again, and to say what differs."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from kgent import RunOptions, RunResult
from kgent.cli import main
from kgent.config.loader import fingerprint_config, load_config
from kgent.review.comparison import compare_runs
from kgent.review.verification import verify
from kgent.runtime.rerun import rerun
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_runs import a_run, calls, events, lines, profile, skill, state
from sweeps import kept

STEPS = [
    {"tool": "load_skill", "args": {"skill_id": "reporting"}},
    {"tool": "read_file", "args": {"path": "inputs/data.csv"}},
    {"tool": "write_file", "args": {"path": "deliverables/report.md", "content": "It rained.\n"}},
    "Done.",
]


def prepared(folder: Path) -> Path:
    """A profile with a skill, an input and a script, each named by a relative path."""
    folder.mkdir(parents=True, exist_ok=True)
    place = skill(folder / "skills")
    (place / "references").mkdir()
    (place / "references" / "words.md").write_text("Plain words.\n", encoding="utf-8")
    (place / "check.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (place / "check.sh").chmod(0o755)
    (place / "outside").symlink_to("/etc/passwd")
    (folder / "data.csv").write_text("day,rain\n1,3\n", encoding="utf-8")
    (folder / "script.json").write_text(json.dumps(STEPS), encoding="utf-8")
    return profile(
        folder,
        skills={"paths": ["skills"]},
        inputs=["data.csv"],
        model={"path": "script.json"},
        deliverables={"required": ["deliverables/report.md"]},
    )


def first_run(tmp_path: Path) -> RunResult:
    path = prepared(tmp_path / "profile")
    result = run(path, "Write it.", RunOptions(sandbox=tmp_path / "runs" / "first"))
    assert (result.status, result.error) == (RunStatus.completed, None)
    return result


def test_skills_are_kept_in_the_run_folder_and_read_from_there(tmp_path: Path) -> None:
    root = first_run(tmp_path).sandbox_root
    assert root is not None
    (kept,) = (root / "archive" / "skills").iterdir()
    names = sorted(file.relative_to(kept).as_posix() for file in kept.rglob("*") if file.is_file())
    assert names == ["SKILL.md", "check.sh", "references/words.md"]
    assert stat.S_IMODE((kept / "check.sh").stat().st_mode) == 0o700
    original = tmp_path / "profile" / "skills" / "reporting" / "SKILL.md"
    assert (kept / "SKILL.md").read_bytes() == original.read_bytes()
    assert verify(root).problems == []
    (indexed,) = [event for event in events(root) if event["type"] == "skill.indexed"]
    folder = indexed["data"]["skills"][0]["folder"]
    assert root / folder == kept
    (kept / "SKILL.md").write_text("Something else.", encoding="utf-8")
    assert f"{folder}/SKILL.md was changed" in "\n".join(verify(root).problems)


def test_a_skill_that_is_too_large_to_keep_blocks_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgent.skills.loader.MAX_SKILL_BYTES", 200)
    path = prepared(tmp_path)
    (tmp_path / "skills" / "reporting" / "big").write_bytes(b"x" * 201)
    result = run(path, "x", RunOptions(sandbox=tmp_path / "run"))
    assert result.is_blocked
    assert "a run keeps a copy of it" in str(result.error)


def test_the_fingerprint_changes_with_what_a_skill_or_a_script_says(tmp_path: Path) -> None:
    path = prepared(tmp_path)
    before = fingerprint_config(load_config(path))
    assert fingerprint_config(load_config(path)) == before
    (tmp_path / "skills" / "reporting" / "references" / "words.md").write_text("Others.\n")
    changed = fingerprint_config(load_config(path))
    (tmp_path / "script.json").write_text("[]")
    assert len({before, changed, fingerprint_config(load_config(path))}) == 3


def test_the_fingerprint_is_the_same_in_another_place(tmp_path: Path) -> None:
    one = fingerprint_config(load_config(prepared(tmp_path / "one")))
    other = fingerprint_config(load_config(prepared(tmp_path / "other" / "place")))
    assert one == other


@pytest.mark.sweep
@pytest.mark.parametrize("gone", kept([False, True], True))
def test_the_profile_in_the_folder_runs_again_as_it_is(
    tmp_path: Path, gone: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    first = first_run(tmp_path)
    root = first.sandbox_root
    assert root is not None
    if gone:
        shutil.rmtree(tmp_path / "profile")
    arguments = ["run", "--config", str(root / "config.yaml")]
    assert main([*arguments, "--prompt-file", str(root / "prompt.md")]) == 0
    folder = next(
        line.split(maxsplit=1)[1]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("folder")
    )
    again = Path(folder)
    assert again.parent == root.parent
    assert state(again)["config_fingerprint"] == state(root)["config_fingerprint"]
    assert compare_runs(root, again) == []
    assert verify(root, seal=first.seal).problems == []
    assert verify(again).problems == []


@pytest.mark.long
def test_rerun_makes_a_new_folder_beside_the_first_and_joins_its_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = first_run(tmp_path)
    assert first.sandbox_root is not None
    shutil.rmtree(tmp_path / "profile")
    assert main(["rerun", str(first.sandbox_root)]) == 0
    out, err = capsys.readouterr()
    assert "status   completed" in out
    assert "differs" not in err
    (again,) = (one for one in (tmp_path / "runs").iterdir() if (one / "run.json").exists()
                and one != first.sandbox_root)  # fmt: skip
    known = state(again)
    assert again.name == known["run_id"] != first.run_id
    assert (known["session_id"], known["task_id"]) == (first.session_id, first.task_id)
    assert lines(again / "logs" / "tools.jsonl")[1]["status"] == "completed"


@pytest.mark.sweep
def test_rerun_says_why_the_fingerprint_differs(tmp_path: Path) -> None:
    root = first_run(tmp_path).sandbox_root
    assert root is not None
    config = root / "config.yaml"
    config.write_text(config.read_text().replace("max_steps: 20", "max_steps: 7"))
    again = rerun(root)
    assert again.result.status is RunStatus.completed
    assert again.reasons[0].startswith("the fingerprint is ")
    assert verify(root).problems != []


def test_rerun_of_what_is_no_run_folder_is_two(tmp_path: Path) -> None:
    assert main(["rerun", str(tmp_path)]) == 2
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 2


def test_diff_shows_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = first_run(tmp_path).sandbox_root
    assert one is not None
    folder = tmp_path / "profile"
    steps = json.dumps(STEPS).replace("It rained.", "It snowed.")
    (folder / "script.json").write_text(steps, encoding="utf-8")
    profile_text = (folder / "kgent.yaml").read_text().replace("You write reports.", "You draw.")
    (folder / "kgent.yaml").write_text(profile_text)
    run(folder / "kgent.yaml", "Draw it.", RunOptions(sandbox=tmp_path / "runs" / "second"))
    other = tmp_path / "runs" / "second"
    capsys.readouterr()
    assert main(["diff", str(one), str(other)]) == 1
    out = capsys.readouterr().out
    assert "changed  deliverables/report.md" in out
    assert "    -It rained." in out
    assert "    +It snowed." in out
    assert "    -Write it." in out
    assert "role: You draw." in out
    assert main(["diff", str(one), str(other), "--output-format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is False
    areas = {one["path"]: one["area"] for one in found["differences"]}
    assert areas["deliverables/report.md"] == "deliverables"
    assert areas["config.yaml"] == "config"
    assert areas["prompt.md"] == "prompt"
    assert areas["archive/model/script.json"] == "inputs"
    assert main(["diff", str(one), str(one)]) == 0
    assert capsys.readouterr().out == "no difference\n"


@pytest.mark.sweep
def test_diff_reads_no_files_of_terabytes(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    steps = calls("write_file", path="workspace/a", content="x")
    roots = [a_run(tmp_path / name, steps).sandbox_root for name in ("one", "other")]
    one, other = (root for root in roots if root)
    assert compare_runs(one, other) == []
    os.truncate(one / "workspace" / "a", 1 << 42)
    assert [found.path for found in compare_runs(one, other)] == ["workspace/a"]
    os.truncate(other / "workspace" / "a", 1 << 42)
    assert [found.path for found in compare_runs(one, other)] == ["workspace/a"]


def test_diff_of_large_and_binary_files_shows_their_hashes(tmp_path: Path) -> None:
    one = first_run(tmp_path).sandbox_root
    assert one is not None
    other = tmp_path / "copy"
    shutil.copytree(one, other)
    for number, root in enumerate((one, other)):
        (root / "deliverables" / "report.md").write_bytes(os.urandom(4000))
        (root / "workspace" / "long.txt").write_text(f"{number}\n" * 300_000, encoding="utf-8")
    found = {one.path: one for one in compare_runs(one, other)}
    assert {*found} == {"deliverables/report.md", "workspace/long.txt"}
    for difference in found.values():
        assert [line[:9] for line in difference.diff[3:]] == ["-SHA-256 ", "+SHA-256 "]

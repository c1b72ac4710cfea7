"""What a run is given: copied into the run folder, hashed, read by tools, written by none."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from kgent import RunOptions
from kgent.cli import main
from kgent.config.models import InputSpec
from kgent.review.verification import verify
from kgent.runtime.runner import run
from kgent_runs import a_run, calls, events, lines, profile, state, types
from sweeps import sampled
from tables import together


def given(root: Path | None) -> dict[str, dict[str, Any]]:
    """The inputs of the sandbox manifest, by path."""
    assert root is not None
    manifest = json.loads((root / "sandbox-manifest.json").read_text(encoding="utf-8"))
    return {entry["path"]: entry for entry in manifest["inputs"]}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "app.py").write_text("print('hello')\n")
    (folder / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "tool.sh").chmod(0o755)
    (folder / "latest").symlink_to("src/app.py")
    (folder / os.fsdecode(b"caf\xe9")).write_text("x")
    return folder


def test_inputs_are_copied_read_only_and_hashed(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    inputs = ["repo", {"path": "data.csv", "as": "tables/one.csv"}]
    result = a_run(tmp_path, inputs=inputs)
    root = result.sandbox_root
    assert root is not None
    assert result.status == "completed"
    assert (root / "inputs" / "tables" / "one.csv").read_text() == "a,b\n1,2\n"
    assert (root / "inputs" / "repo" / "latest").readlink() == Path("src/app.py")
    entries = given(root)
    assert set(entries) == {
        *("inputs/repo", "inputs/repo/src", "inputs/repo/src/app.py", "inputs/repo/tool.sh"),
        *("inputs/repo/latest", r"inputs/repo/caf\xe9", "inputs/tables", "inputs/tables/one.csv"),
    }
    assert entries["inputs/repo/tool.sh"]["mode"] == "0500"
    assert entries["inputs/tables/one.csv"]["mode"] == "0400"
    assert entries["inputs/tables/one.csv"]["bytes"] == 8
    assert entries["inputs/repo/latest"] | {"target": "src/app.py"} == entries["inputs/repo/latest"]
    mode = (root / "inputs" / "repo" / "src" / "app.py").stat().st_mode
    assert not stat.S_IMODE(mode) & 0o222
    artifacts = json.loads((root / "artifact-manifest.json").read_text())
    assert not any(one["path"].startswith("inputs") for one in artifacts["artifacts"])
    assert verify(root).problems == []
    rules = (root / "effective-system-prompt.md").read_text()
    assert "`inputs/repo`, `inputs/tables/one.csv`" in rules
    (copied,) = (event for event in events(root) if event["type"] == "inputs.copied")
    assert copied["data"]["inputs"] == ["inputs/repo", "inputs/tables/one.csv"]


def test_a_run_without_inputs_has_no_folder_for_them(tmp_path: Path) -> None:
    result = a_run(tmp_path)
    assert result.sandbox_root
    assert "inputs.copied" not in types(result.sandbox_root)
    assert not (result.sandbox_root / "inputs").exists()


def test_inputs_of_the_command_line_start_at_the_current_folder(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = profile(tmp_path, inputs=[{"path": "other", "as": "repo"}, {"path": "repo/src"}])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a=b").write_text("1")
    monkeypatch.chdir(elsewhere)
    arguments = ["run", "--config", str(config), "--prompt", "x", "--sandbox", "out"]
    given_paths = ["--input", "../repo", "--input", "a=b", "--input", "a=b=c"]
    assert main([*arguments, *given_paths]) == 0
    names = sorted(path.name for path in (elsewhere / "out" / "inputs").iterdir())
    assert names == ["a=b", "c", "repo", "src"]


def test_tools_read_inputs_and_write_none(tmp_path: Path, repo: Path) -> None:
    steps = [
        calls("read_file", path="inputs/repo/src/app.py"),
        calls("list_files", path="inputs", recursive=True),
        calls("grep_files", pattern="hello", path="inputs"),
        calls("write_file", path="inputs/repo/new.txt", content="x"),
        calls("write_file", path="inputs/repo/src/app.py", content="x"),
        calls("delete_file", path="inputs/repo/src/app.py"),
    ]
    tools = {"filesystem": {"delete": True}}
    root = a_run(tmp_path, *steps, inputs=["repo"], tools=tools).sandbox_root
    assert root is not None
    statuses = [call["status"] for call in lines(root / "logs" / "tools.jsonl")]
    assert statuses == ["completed"] * 3 + ["blocked"] * 3
    found = [e["summary"] for e in events(root) if e["type"] == "tool.completed"]
    assert "matches: 1" in found[2]
    assert verify(root).problems == []


@pytest.mark.parametrize(
    ("change", "problem"),
    sampled(
        [
            (
                "chmod u+w $1/src/app.py; echo x > $1/src/app.py",
                "inputs/repo/src/app.py was changed",
            ),
            ("rm -f $1/tool.sh", "inputs/repo/tool.sh (file) is missing"),
            ("echo x > $1/new", "inputs/repo/new (file) was added"),
            ("ln -sfn / $1/latest", "inputs/repo/latest was changed"),
            ("rm -f $1/latest; mkdir $1/latest", "inputs/repo/latest was changed: link to"),
            ("rm -rf $1", "inputs/repo (folder) is missing"),
        ],
        keep=1,
    ),
)
def test_what_a_command_changes_in_inputs_is_found(
    tmp_path: Path, repo: Path, change: str, problem: str
) -> None:
    shell = {"enabled": True, "allowed_commands": ["sh"]}
    step = calls("run_command", argv=["sh", "-c", change, "sh", "../inputs/repo"])
    result = a_run(tmp_path, step, inputs=["repo"], tools={"shell": shell})
    assert result.sandbox_root
    assert any(problem in line for line in verify(result.sandbox_root).problems)


def test_missing_inputs_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    assert a_run(tmp_path, inputs=[{"path": "later.csv", "optional": True}]).status == "completed"
    config = profile(tmp_path, inputs=["no.csv"])
    result = run(config, "x", RunOptions(sandbox=tmp_path / "other"))
    assert result.is_blocked
    assert result.sandbox_root is None
    assert "inputs[0]: no.csv does not exist; name an existing file" in str(result.error)
    assert main(["validate", "--config", str(config)]) == 2


@together("name", ["../x", "/x", "", ".", "a/../../b", "a\0b"], ids=lambda name: repr(name))
def test_a_name_outside_inputs_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_text("x")
    config = profile(tmp_path, inputs=[{"path": "a", "as": name}])
    assert main(["run", "--config", str(config), "--prompt", "x"]) == 2
    assert not (tmp_path / "runs").exists()


def test_two_inputs_cannot_share_a_place(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "a").write_text("x")
    for inputs in (["a", "./a"], ["repo", {"path": "a", "as": "repo/a"}]):
        result = run(profile(tmp_path, inputs=inputs), "x", RunOptions(sandbox=tmp_path / "run"))
        assert result.is_blocked
        assert "is taken by" in str(result.error)


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "bad")


def _link_out(folder: Path) -> None:
    (folder / "bad").symlink_to("../../etc/passwd")


def _absolute_link(folder: Path) -> None:
    (folder / "bad").symlink_to(folder / "src")


def _sparse_file(folder: Path) -> None:
    with (folder / "bad").open("wb") as file:
        file.truncate(2**42)


def _deep_folders(folder: Path) -> None:
    (folder / "/".join(["bad"] * 120)).mkdir(parents=True)


@pytest.mark.parametrize(
    "spoil", sampled([_pipe, _link_out, _absolute_link, _sparse_file, _deep_folders], keep=1)
)
def test_what_cannot_be_given_to_a_run_is_refused_by_name(
    tmp_path: Path, repo: Path, spoil: Any
) -> None:
    spoil(repo)
    result = a_run(tmp_path, inputs=["repo"])
    assert result.is_blocked
    assert result.status == "failed"
    assert "repo/bad" in str(result.error)
    assert result.sandbox_root
    assert state(result.sandbox_root)["status"] == "failed"


def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = a_run(tmp_path, inputs=["pipe"])
    assert result.sandbox_root is None
    assert "neither an ordinary file" in str(result.error)


def test_an_input_does_not_contain_the_run_folder(tmp_path: Path) -> None:
    result = a_run(tmp_path, inputs=["."])
    assert result.is_blocked
    assert "it contains the run folder" in str(result.error)


def test_inputs_are_part_of_the_resolved_profile(tmp_path: Path, repo: Path) -> None:
    root = a_run(tmp_path, inputs=[{"path": "repo", "as": "code"}]).sandbox_root
    assert root
    assert "as: code" in (root / "config.yaml").read_text()


def test_a_missing_input_of_the_options_is_named_by_its_place_there(tmp_path: Path) -> None:
    (tmp_path / "own.csv").touch()
    (tmp_path / "there.csv").touch()
    config = profile(tmp_path, inputs=["own.csv"])
    there, missing = InputSpec(path=str(tmp_path / "there.csv")), InputSpec(path="nope")
    result = run(config, "x", RunOptions(sandbox=tmp_path / "s", inputs=[there, missing]))
    assert result.is_blocked
    assert "inputs[1] of the options: " in str(result.error)
    assert "name an existing file or folder" in str(result.error)

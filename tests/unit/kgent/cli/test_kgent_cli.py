"""The command line: what becomes of arguments, and which code comes back."""

import json
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kgent import KgentError, RunOptions, run
from kgent.cli import build_options, build_overrides, build_parser, main
from kgent.runtime.options import CliOverrides
from kgent.runtime.rerun import rerun
from kgent_runs import profile, skill, state
from tables import together


def parsed(*arguments: str) -> list[str]:
    return ["run", "--config", "k.yaml", *arguments]


COMMANDS = ("run", "validate", "show", "verify", "rerun", "diff")


@together("command", COMMANDS)
def test_every_help_says_what_the_command_is_for_with_examples_and_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        build_parser().parse_args([command, "--help"])
    shown = capsys.readouterr().out
    assert re.match(r"[A-Z].*\.$", shown.split("\n\n")[1])
    assert max(map(len, shown.splitlines())) <= 80
    assert "xit codes" in " ".join(shown.split())
    examples = re.findall(rf"^  kgent ({command} .+)$", shown, re.M)
    assert examples
    for example in examples:
        assert build_parser().parse_args(shlex.split(example)).command == command


def test_config_and_prompt_are_parsed() -> None:
    arguments = build_parser().parse_args(parsed("--prompt", "hi"))
    assert (arguments.config, arguments.prompt) == (Path("k.yaml"), "hi")


def test_a_prompt_file_is_parsed() -> None:
    arguments = build_parser().parse_args(parsed("--prompt-file", "p.md"))
    assert build_overrides(arguments) == CliOverrides(prompt_file=Path("p.md"))


def test_the_sandbox_is_applied(tmp_path: Path) -> None:
    arguments = build_parser().parse_args(
        parsed("--prompt", "x", "--sandbox", str(tmp_path / "run"))
    )
    assert build_options(arguments).sandbox == tmp_path / "run"


def test_ids_and_limits_are_forwarded() -> None:
    arguments = build_parser().parse_args(
        parsed(
            *("--prompt", "x", "--session-id", "s", "--task-id", "t", "--run-id", "r"),
            *("--max-steps", "3", "--timeout", "1.5", "--stream"),
        )
    )
    options = build_options(arguments)
    assert (options.session_id, options.task_id, options.run_id) == ("s", "t", "r")
    assert (options.max_steps, options.timeout_seconds, options.stream) == (3, 1.5, True)


def test_what_is_not_said_is_left_to_the_profile() -> None:
    options = build_options(build_parser().parse_args(parsed("--prompt", "x")))
    assert options.model_dump(exclude_none=True) == {}


@together(
    "arguments",
    [
        [],
        ["fly"],
        ["run"],
        ["run", "--config", "k.yaml"],
        ["run", "--config", "k.yaml", "--prompt", "a", "--prompt-file", "b"],
        ["run", "--config", "k.yaml", "--prompt", "a", "--max-steps", "many"],
        ["show"],
    ],
)
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "kgent" in capsys.readouterr().err


def test_a_completed_run_is_zero_and_tells_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = [{"tool": "write_file", "args": {"path": "deliverables/a.md", "content": "x"}}, "Ok."]
    (tmp_path / "s.json").write_text(json.dumps(script), encoding="utf-8")
    path = profile(
        tmp_path, model={"path": "s.json"}, deliverables={"required": ["deliverables/a.md"]}
    )
    root = tmp_path / "out"
    (tmp_path / "p.md").write_text("Write it.", encoding="utf-8")
    code = main(
        ["run", "--config", str(path), "--prompt-file", str(tmp_path / "p.md"),
         "--sandbox", str(root)]
    )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert "Ok.\n" in out
    assert "status   completed" in out
    assert f"folder   {root}" in out
    assert "found    deliverables/a.md" in out
    assert (root / "prompt.md").read_text() == "Write it."


def test_a_missing_deliverable_is_three_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = profile(tmp_path, deliverables={"required": ["deliverables/a.md"]})
    assert main(["run", "--config", str(path), "--prompt", "x"]) == 3
    assert "missing  deliverables/a.md" in capsys.readouterr().out


def test_a_failed_engine_is_one(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('[{"fail": "no"}]', encoding="utf-8")
    path = profile(tmp_path, model={"path": "s.json"})
    assert main(["run", "--config", str(path), "--prompt", "x"]) == 1


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_refused(tmp_path: Path, prompt: str) -> None:
    assert main(["run", "--config", str(profile(tmp_path)), "--prompt", prompt]) == 2


def test_an_invalid_profile_is_two_and_makes_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = profile(tmp_path, runtime={"engin": "mock"})
    root = tmp_path / "out"
    assert main(["run", "--config", str(path), "--prompt", "x", "--sandbox", str(root)]) == 2
    assert "did you mean runtime.engine?" in capsys.readouterr().err
    assert not root.exists()
    assert not (tmp_path / "runs").exists()


def test_a_blocked_folder_is_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    code = main(
        ["run", "--config", str(profile(tmp_path)), "--prompt", "x",
         "--sandbox", str(tmp_path / "out")]
    )  # fmt: skip
    assert code == 2
    assert "it is not empty" in capsys.readouterr().err


def test_a_missing_skill_is_two_and_the_folder_says_why(tmp_path: Path) -> None:
    path = profile(tmp_path, skills={"paths": [str(tmp_path / "gone")]})
    root = tmp_path / "out"
    assert main(["run", "--config", str(path), "--prompt", "x", "--sandbox", str(root)]) == 2
    assert state(root)["status"] == "failed"
    assert state(root)["error"]["category"] == "skill"


def test_streaming_shows_the_text_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text('["Only once."]', encoding="utf-8")
    path = profile(tmp_path, model={"path": "s.json"})
    assert main(["run", "--config", str(path), "--prompt", "x", "--stream"]) == 0
    assert capsys.readouterr().out.count("Only once.") == 1


def test_text_of_a_model_cannot_act_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.json").write_text(json.dumps(["a\x1b]0;evil\x07b"]), encoding="utf-8")
    path = profile(tmp_path, model={"path": "s.json"})
    main(["run", "--config", str(path), "--prompt", "x"])
    assert "\x1b" not in capsys.readouterr().out


def test_validate_checks_the_profile_and_its_skills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skill(tmp_path / "skills")
    path = profile(tmp_path, skills={"paths": ["skills"]})
    assert main(["validate", "--config", str(path)]) == 0
    out = capsys.readouterr().out
    assert "valid profile: writer" in out
    assert "reporting" in out
    assert main(["validate", "--config", str(profile(tmp_path, skills={"enabled": 3}))]) == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["show", "verify"])
def test_what_is_no_run_folder_is_two(tmp_path: Path, command: str) -> None:
    assert main([command, str(tmp_path)]) == 2


NOWHERE = "~no-such-user/x"


@together(
    "section",
    [
        {"skills": {"paths": [NOWHERE]}},
        {"model": {"path": NOWHERE}},
        {"inputs": [NOWHERE]},
        {"memory": {"provider": f"sqlite:{NOWHERE}"}},
        {"deliverables": {"required": [{"path": "deliverables/a.json", "schema": NOWHERE}]}},
        {"tools": {"mcp": [{"name": "a", "tools": ["b"], "command": "cat", "cwd": NOWHERE}]}},
        {"workspace": {"sandbox": NOWHERE}},
    ],
)
def test_a_home_that_there_is_not_is_named_in_a_profile(
    tmp_path: Path, section: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = profile(tmp_path, **section)
    assert main(["run", "--config", str(config), "--prompt", "x"]) == 2
    said = capsys.readouterr()
    assert "there is no home for ~no-such-user" in said.out + said.err
    assert main(["validate", "--config", str(config)]) == 2


@together("option", ["--config", "--sandbox", "--input"])
def test_a_home_that_there_is_not_is_named_in_an_option(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--config", str(profile(tmp_path)), option, NOWHERE]
    assert main(["run", "--prompt", "x", *given]) == 2
    assert "there is no home for ~no-such-user" in capsys.readouterr().err
    assert main(["validate", "--config", NOWHERE]) == 2


NAMED = [
    *(["run", name] for name in ("--config", "--session-id", "--task-id", "--run-id")),
    *(["run", name] for name in ("--sandbox", "--prompt-file", "--input", "--param", "--sign")),
    *(["run", name] for name in ("--max-steps", "--timeout")),
    *(["validate", "--config"], ["show"], ["show", "--html"], ["verify"], ["verify", "--seal"]),
    *(["rerun"], ["rerun", "a", "--sandbox"], ["diff"], ["diff", "a"]),
]


@together("value", ["", " "])
@together("line", NAMED, ids=" ".join)
def test_an_empty_value_is_refused(
    line: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*line, value]) == 2
    assert "the value is empty; is a shell variable not set?" in capsys.readouterr().err


def test_the_value_of_a_parameter_may_be_empty() -> None:
    line = ["run", "--config", "c", "--prompt", "x", "--param", "title="]
    assert build_options(build_parser().parse_args(line)).parameters == {"title": ""}


def test_an_empty_prompt_is_refused_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--config", str(profile(tmp_path)), "--prompt", ""]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


@pytest.mark.long
@together("name", ["session_id", "task_id", "run_id"])
@together("value", ["", " "])
def test_an_empty_id_of_a_program_is_refused(tmp_path: Path, name: str, value: str) -> None:
    path, first = profile(tmp_path), tmp_path / "first"
    assert main(["run", "--config", str(path), "--prompt", "x", "--sandbox", str(first)]) == 0
    before = sorted(tmp_path.rglob("*"))
    options = RunOptions.model_validate({name: value})
    refused = run(path, "x", options)
    assert refused.error is not None
    assert f"{value!r} is not a valid {name[:-3]} id" in refused.error.message
    with pytest.raises(KgentError, match=f"{value!r} is not a valid {name[:-3]} id"):
        rerun(first, options)
    assert sorted(tmp_path.rglob("*")) == before

"""Parameters: typed, filled into texts once, recorded, and part of the fingerprint."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kgent import RunOptions
from kgent.cli import main
from kgent.config.loader import fingerprint_config, load_config
from kgent.review.verification import verify
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_runs import a_run, profile, state
from tables import together

PARAMETERS: dict[str, Any] = {
    "name": {"type": "string", "description": "Who gets the letter."},
    "pages": {"type": "integer", "default": 2},
    "rate": {"type": "number", "default": 0.5},
    "formal": {"type": "boolean", "default": True},
    "tone": {"type": "string", "default": "plain", "choices": ["plain", "warm"]},
    "note": {"type": "string", "required": False},
}


def filled(tmp_path: Path, prompt: str = "x", **values: Any) -> tuple[Path, dict[str, Any]]:
    config = profile(
        tmp_path,
        profile={"role": "Write to {{ name }}: {{pages}} pages, {{ tone }}, {{ formal }}."},
        parameters=PARAMETERS,
        deliverables={"required": [{"path": "deliverables/{{ name }}.md", "allow_empty": True}]},
        checks=[["test", "{{ name }}", "=", "Ada"]],
    )
    options = RunOptions(sandbox=tmp_path / "run", parameters=values)
    result = run(config, prompt, options)
    assert result.sandbox_root, result.error
    return result.sandbox_root, state(result.sandbox_root)


def test_values_are_filled_into_prompt_role_paths_and_checks(tmp_path: Path) -> None:
    root, facts = filled(tmp_path, "For {{ name }}: {{ rate }}{{ note }}", name="Ada", pages="3")
    assert (root / "prompt.md").read_text() == "For Ada: 0.5"
    prompt = (root / "effective-system-prompt.md").read_text()
    assert "Write to Ada: 3 pages, plain, true." in prompt
    assert facts["missing"] == ["deliverables/Ada.md"]
    assert facts["checks"][0]["is_passed"]
    expected = {"name": "Ada", "pages": 3, "rate": 0.5, "formal": True, "tone": "plain"}
    assert facts["parameters"] == {**expected, "note": None}
    recorded = yaml.safe_load((root / "config.yaml").read_text())
    assert recorded["profile"]["role"].startswith("Write to {{ name }}")
    assert recorded["parameters"]["name"]["value"] == "Ada"
    assert verify(root).problems == []


def test_a_value_is_data(tmp_path: Path) -> None:
    value = "{{ pages }}: [x]\n# {{ name }}"
    root, facts = filled(tmp_path, "Say {{ note }}.", name="Ada", note=value)
    assert (root / "prompt.md").read_text() == f"Say {value}."
    assert facts["parameters"]["note"] == value
    assert load_config(root / "config.yaml").parameters["note"].value == value
    assert verify(root).problems == []


@pytest.mark.long
def test_values_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    prints = list[str]()
    given: list[dict[str, Any]] = [{"name": "Ada"}, {"name": "Ada", "pages": 2}, {"name": "B"}]
    for number, values in enumerate(given):
        folder = tmp_path / str(number)
        folder.mkdir()
        root, facts = filled(folder, **values)
        assert fingerprint_config(load_config(root / "config.yaml")) == facts["config_fingerprint"]
        prints.append(facts["config_fingerprint"])
    assert prints[0] == prints[1] != prints[2]


@together(
    ("values", "reason"),
    [
        ({}, "'name' is required: --param name=<string>"),
        ({"name": "a", "pages": "3.5"}, "'pages' must be an integer, not '3.5'"),
        ({"name": "a", "pages": "1_000"}, "must be an integer"),
        ({"name": "a", "pages": True}, "must be an integer"),
        ({"name": "a", "rate": "nan"}, "must be a number"),
        ({"name": "a", "rate": "1e999"}, "must be a number"),
        ({"name": "a", "formal": "yes"}, "must be true or false"),
        ({"name": "a", "tone": "rude"}, "must be one of: plain, warm"),
        ({"name": "a", "nmae": "b"}, "'nmae' is not in the profile (did you mean name?)"),
        ({"name": "../../x"}, "deliverables.required[0].path"),
        ({"name": "a\0b"}, "deliverables.required[0].path"),
    ],
)
def test_values_that_do_not_fit_make_no_folder(
    tmp_path: Path, values: dict[str, Any], reason: str
) -> None:
    config = profile(
        tmp_path,
        parameters=PARAMETERS,
        deliverables={"required": ["deliverables/{{ name }}"]},
    )
    result = run(config, "x", RunOptions(sandbox=tmp_path / "run", parameters=values))
    assert result.is_blocked
    assert result.sandbox_root is None
    assert reason in str(result.error)


def test_a_name_that_is_not_known_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = profile(tmp_path, parameters={"name": {"default": "Ada"}})
    result = run(config, "For\n{{ nam }}", RunOptions(sandbox=tmp_path / "run"))
    assert "the prompt, line 2: {{ nam }} is not a parameter" in str(result.error)
    assert "did you mean name?" in str(result.error)
    profile(tmp_path, parameters={"name": {"default": "A"}}, profile={"style": ["{{ x y }}"]})
    assert main(["validate", "--config", str(config)]) == 2
    assert "profile.style[0]: {{ x y }} is not a parameter" in capsys.readouterr().err


def test_a_profile_with_parameters_keeps_its_review(tmp_path: Path) -> None:
    result = a_run(tmp_path, parameters={"name": {"default": "A"}}, deliverables={"review": True})
    assert result.status is RunStatus.review_required


def test_braces_are_text_where_a_profile_has_no_parameters(tmp_path: Path) -> None:
    root = a_run(tmp_path, profile={"role": "You write {{ templates }}."}).sandbox_root
    assert root
    assert "{{ templates }}" in (root / "effective-system-prompt.md").read_text()


@together(
    ("checks", "value", "reason"),
    [
        ([["true"], ["echo", "b", "{{ name }}"]], "a\0b", "checks[1].argv[2]: 'a\\x00b'"),
        ([["{{ name }}"]], "", "checks[0].argv[0]: '', with its parameters filled in, must begin"),
        ([["echo", "{{ name }}"]], "\udcff", "has a character that it cannot hold"),
    ],
)
def test_a_value_that_breaks_a_check_is_refused_with_its_place(
    tmp_path: Path, checks: list[list[str]], value: str, reason: str
) -> None:
    required = {"required": ["deliverables/a.md"]}
    config = profile(tmp_path, parameters={"name": {}}, checks=checks, deliverables=required)
    result = run(config, "x", RunOptions(parameters={"name": value}))
    assert result.is_blocked
    assert reason in str(result.error)


@together(
    "spec",
    [
        {"type": "integer", "default": "3"},
        {"type": "number", "default": True},
        {"default": "c", "choices": ["a", "b"]},
        {"default": "a", "required": True},
        {"type": "date"},
        {"defualt": "a"},
    ],
)
def test_a_parameter_that_contradicts_itself_is_refused(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    config = profile(tmp_path, parameters={"name": spec})
    assert main(["validate", "--config", str(config)]) == 2


def test_parameters_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = profile(tmp_path, parameters=PARAMETERS)
    start = ["run", "--config", str(config), "--prompt", "{{ name }}", "--sandbox"]
    given = ["--param", "name=a=b", "--param", "formal=false"]
    assert main([*start, str(tmp_path / "run"), *given]) == 0
    facts = state(tmp_path / "run")["parameters"]
    assert (facts["name"], facts["formal"]) == ("a=b", False)
    assert main([*start, str(tmp_path / "b"), "--param", "name"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err
    assert main([*start, str(tmp_path / "b"), "--param", "name=a", "--param", "name=b"]) == 2
    assert not (tmp_path / "b").exists()

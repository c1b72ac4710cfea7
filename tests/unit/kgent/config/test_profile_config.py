"""Profiles: what is accepted, what is refused and how, and what makes two of them equal."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kgent import RunOptions
from kgent.config.loader import apply_cli_overrides, dump_config, fingerprint_config, load_config
from kgent.config.prompts import render_system_prompt
from kgent.errors import ErrorCategory, KgentError
from kgent.skills.models import SkillSummary
from kgent_runs import profile
from tables import together

MINIMAL = "kgent: {schema_version: 1}\nprofile: {id: writer, role: You write.}\n"

LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]\n" for i in range(9))


def refused(tmp_path: Path, text: str) -> KgentError:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KgentError) as caught:
        load_config(path)
    assert caught.value.category is ErrorCategory.CONFIG
    return caught.value


def test_a_valid_profile_loads_with_every_default(tmp_path: Path) -> None:
    path = tmp_path / "kgent.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    config = load_config(path)
    assert config.profile.id == "writer"
    assert config.memory.write_mode == "candidate"
    assert config.tools.shell.enabled is False
    assert config.tools.filesystem.delete is False
    assert config.tools.filesystem.max_file_bytes == 200_000
    assert (config.runtime.max_steps, config.runtime.timeout_seconds) == (20, 600)
    assert config.runtime.engine == "core"


def test_the_memory_write_mode_is_candidate_by_default(tmp_path: Path) -> None:
    assert load_config(profile(tmp_path, memory={"enabled": True})).memory.write_mode == "candidate"


def test_a_missing_profile_role_fails(tmp_path: Path) -> None:
    error = refused(tmp_path, "kgent: {schema_version: 1}\nprofile:\n  id: writer\n")
    assert "bad.yaml:2: profile.role is missing" in error.message


@pytest.mark.parametrize("section", ["kgent", "profile"])
def test_required_sections_are_required(tmp_path: Path, section: str) -> None:
    kept = [line for line in MINIMAL.splitlines() if not line.startswith(section)]
    assert f"{section} is missing" in refused(tmp_path, "\n".join(kept)).message


@together(
    "path",
    ["report.md", "workspace/report.md", "deliverables/../x", "/deliverables/a", "deliverables"],
)
def test_deliverables_outside_their_folder_fail(tmp_path: Path, path: str) -> None:
    error = refused(tmp_path, f"{MINIMAL}deliverables:\n  required:\n    - {path}\n")
    assert "deliverables.required[0].path must be a path below deliverables/" in error.message
    assert ":5:" in error.message


def test_a_deliverable_listed_twice_fails(tmp_path: Path) -> None:
    text = f"{MINIMAL}deliverables: {{required: [deliverables/a, {{path: deliverables/./a}}]}}\n"
    assert "lists twice: deliverables/a" in refused(tmp_path, text).message


def test_an_unknown_key_names_file_line_and_the_nearest_known_one(tmp_path: Path) -> None:
    error = refused(tmp_path, f"{MINIMAL}runtime:\n  engine: mock\n  max_step: 3\n")
    assert "bad.yaml:5: runtime.max_step is not a known key" in error.message
    assert "did you mean runtime.max_steps?" in error.message
    assert error.details["problems"] == [
        {
            "line": 5,
            "key": "runtime.max_step",
            "message": "is not a known key (did you mean runtime.max_steps?)",
        }
    ]


def test_a_wrong_type_says_what_was_expected_and_never_repeats_a_text(tmp_path: Path) -> None:
    error = refused(tmp_path, f"{MINIMAL}tools:\n  shell:\n    enabled: sk-secret-text\n")
    assert "bad.yaml:5: tools.shell.enabled must be true or false, not a string" in error.message
    assert "sk-secret-text" not in error.message


def test_several_faults_are_told_in_the_order_of_lines(tmp_path: Path) -> None:
    error = refused(tmp_path, "profile: {id: 3, role: x}\nkgent:\n  schema_version: 2\nfoo: 1\n")
    assert [fault["line"] for fault in error.details["problems"]] == [1, 3, 4]


@together(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("- a\n- b\n", "it must be a mapping"),
        ("kgent: [\n", "not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", "bad.yaml:3: the key 'a' is given twice"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("a: !!python/object/apply:os.system ['true']\n", "the tag !!python/object/apply"),
        ("a: !!bool x\n", "the tag !!bool"),
        ('a: !!int ""\n', "the tag !!int"),
        ("a: !!timestamp abc\n", "the tag !!timestamp"),
        ("a: !!map [b]\n", "the tag !!map"),
        ("a: !!set {b}\n", "the tag !!set"),
        ("!!bool x: a\n", "the tag !!bool"),
        ("a: 0x" + "f" * 7000, "at most 40 digits"),
        ("[a]: b\n", "a key must be a word"),
        ("{!!bool x: a}: b\n", "a key must be a word"),
        ("\0a: b\n", "special characters are not allowed"),
        ("a: \x07\n", "special characters are not allowed"),
        ("[" * 5000, "nested too deeply"),
        ("kgent: {schema_version: 1}\n---\nb: 1\n", "not valid YAML"),
        (LAUGHS, "far too large"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_line(
    tmp_path: Path, text: str, reason: str
) -> None:
    assert reason in refused(tmp_path, text).message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KgentError, match=r"gone\.yaml: it cannot be read"):
        load_config(tmp_path / "gone.yaml")


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"kgent: {schema_version: 1}\nprofile: {id: a, role: \xe9}\n")
    with pytest.raises(KgentError, match=r"latin\.yaml:2: it is not UTF-8"):
        load_config(path)


def test_a_key_pasted_where_its_variable_belongs_is_not_repeated(tmp_path: Path) -> None:
    error = refused(tmp_path, f"{MINIMAL}model: {{api_key_env: sk-12345-abc}}\n")
    assert "never the key itself" in error.message
    assert "12345" not in error.message


def test_texts_may_stand_without_their_list(tmp_path: Path) -> None:
    config = load_config(profile(tmp_path, profile={"style": "Short."}))
    assert config.profile.style == ["Short."]


@together(("given", "meant"), [(True, None), (False, []), (["a"], ["a"])])
def test_skills_can_be_all_none_or_listed(tmp_path: Path, given: Any, meant: Any) -> None:
    assert load_config(profile(tmp_path, skills={"enabled": given})).skills.enabled == meant


def test_a_strange_placeholder_in_the_sandbox_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KgentError, match=r"may hold \{session_id\}, \{task_id\}"):
        load_config(profile(tmp_path, workspace={"sandbox": "runs/{user}"}))


def test_the_prompt_has_its_parts_in_one_order(tmp_path: Path) -> None:
    config = load_config(
        profile(
            tmp_path,
            profile={
                "constraints": ["Never guess."],
                "style": ["Short."],
                "responsibilities": ["Write."],
            },
            deliverables={"required": ["deliverables/report.md"]},
        )
    )
    index = [SkillSummary(id="a", name="a", description="How to a.", path=tmp_path)]
    arguments = (config, index, "- it rained", "- stay inside")
    prompt = render_system_prompt(*arguments)
    assert prompt == render_system_prompt(*arguments)
    heads = [line.removeprefix("# ") for line in prompt.splitlines() if line.startswith("# ")]
    assert heads == [
        "Role",
        "Responsibilities",
        "Style",
        "Constraints",
        "Sandbox rules",
        "Required deliverables",
        "Skills",
        "Memory",
    ]


def test_parts_with_nothing_to_say_are_left_out(tmp_path: Path) -> None:
    prompt = render_system_prompt(load_config(profile(tmp_path)), [], None, "- stay inside")
    assert "# Skills" not in prompt
    assert "# Memory" not in prompt


def test_equal_profiles_have_equal_fingerprints_however_they_are_written(tmp_path: Path) -> None:
    short = tmp_path / "short.yaml"
    short.write_text(MINIMAL, encoding="utf-8")
    other = tmp_path / "elsewhere"
    other.mkdir()
    explicit = other / "long.yaml"
    explicit.write_text(
        "profile: {role: You write., id: writer}\n"
        "runtime: {timeout_seconds: 600.0, max_steps: 20}\nkgent: {schema_version: 1}\n"
        "workspace: {sandbox: somewhere/else}\nskills: {enabled: true}\n",
        encoding="utf-8",
    )
    assert fingerprint_config(load_config(short)) == fingerprint_config(load_config(explicit))


def test_a_different_profile_has_another_fingerprint(tmp_path: Path) -> None:
    first = load_config(profile(tmp_path, "a.yaml"))
    second = load_config(profile(tmp_path, "b.yaml", runtime={"max_steps": 21}))
    assert fingerprint_config(first) != fingerprint_config(second)


@pytest.mark.long
def test_a_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    path = profile(tmp_path, tools={"shell": {"enabled": True, "allowed_commands": ["ls", "wc"]}})
    program = (
        "import sys; from kgent.config.loader import *;"
        "print(fingerprint_config(load_config(sys.argv[1])))"
    )
    found = {
        subprocess.run(  # noqa: S603 - our own interpreter and text
            [sys.executable, "-c", program, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": "src", "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[4],
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {fingerprint_config(load_config(path))}


def test_the_written_profile_is_the_profile(tmp_path: Path) -> None:
    config = load_config(profile(tmp_path, deliverables={"required": ["deliverables/a.md"]}))
    written = tmp_path / "again.yaml"
    text = dump_config(config, origin=tmp_path / "kgent.yaml", clean=str)
    written.write_text(text, encoding="utf-8")
    assert fingerprint_config(load_config(written)) == fingerprint_config(config)


def test_overrides_change_what_they_name_and_nothing_else(tmp_path: Path) -> None:
    config = load_config(profile(tmp_path))
    changed = apply_cli_overrides(config, RunOptions(sandbox=tmp_path / "there"))
    assert changed.workspace.sandbox == str(tmp_path / "there")
    assert fingerprint_config(changed) == fingerprint_config(config)
    limited = apply_cli_overrides(config, RunOptions(max_steps=2, timeout_seconds=5, stream=True))
    assert (limited.runtime.max_steps, limited.runtime.timeout_seconds) == (2, 5)
    assert limited.runtime.stream is True
    assert limited.place("x") == tmp_path / "x"


def test_impossible_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KgentError, match="max_steps"):
        apply_cli_overrides(load_config(profile(tmp_path)), RunOptions(max_steps=0))


@together(
    ("model", "provider", "name", "key"),
    [
        ("openai:gpt-5", "openai", "gpt-5", "OPENAI_API_KEY"),
        ({"name": "anthropic:claude-x"}, "anthropic", "claude-x", "ANTHROPIC_API_KEY"),
        ({"name": "openai:gpt-5", "api_key_env": "MINE"}, "openai", "gpt-5", "MINE"),
        ("openai:m@http://127.0.0.1:1/v1", "openai", "m", None),
        ({"name": "openai:m", "base_url": "http://127.0.0.1:1/v1"}, "openai", "m", None),
        ({"provider": "ollama", "name": "qwen3:8b"}, "ollama", "qwen3:8b", None),
        ("scripted:replies.json", "scripted", "replies", None),
    ],
)
def test_a_model_is_named_in_one_string(
    tmp_path: Path, model: Any, provider: str, name: str, key: str | None
) -> None:
    found = load_config(profile(tmp_path, model=model))
    assert (found.model.provider, found.model.name) == (provider, name)
    assert found.model.api_key_env == key
    if found.model.path:
        assert found.place(found.model.path) == tmp_path / "replies.json"


def test_a_malformed_model_string_gets_the_form_shown(tmp_path: Path) -> None:
    for wrong in ("gpt-5", "openai:", "openai:m@localhost:1"):
        error = refused(tmp_path, f"{MINIMAL}model: '{wrong}'\n")
        assert "bad.yaml:3: model" in error.message
        assert "provider:name, such as openai:gpt-5" in error.message

import subprocess
import sys

import pytest

from agent_core.assets import REQUIRED_ASSETS, SYSTEM_IDS, check_assets, load_asset
from agent_core.assets.front_matter import MAX_HEAD_CHARS, parse_front_matter
from agent_core.errors import ConfigError


def test_every_required_text_is_there() -> None:
    check_assets()
    assert len(REQUIRED_ASSETS) == len(set(REQUIRED_ASSETS)) == 22
    assert all(load_asset(asset_id).text for asset_id in REQUIRED_ASSETS)


def test_a_missing_text_is_named_with_the_cure() -> None:
    with pytest.raises(ConfigError, match=r"agent\.nobody .* install soong-agent again"):
        load_asset("agent.nobody")


@pytest.mark.parametrize("asset_id", ["system.../../secret", "system.\0", "template.other", ""])
def test_an_id_is_no_path(asset_id: str) -> None:
    with pytest.raises(ConfigError):
        load_asset(asset_id)


def test_an_agent_has_a_head_and_a_body() -> None:
    agent = load_asset("agent.default_worker_agent")
    assert agent.fields["id"] == "default_worker_agent"
    assert agent.fields["description"]
    assert "---" not in agent.text


def test_templates_have_versions() -> None:
    assert load_asset("template.plan.default").version == "1"
    assert load_asset("template.task_dag.default").version == "1"


def test_the_prompts_are_plain_text_a_line_a_thought() -> None:
    for asset_id in SYSTEM_IDS:
        text = load_asset(asset_id).text
        assert "\r" not in text
        assert "\t" not in text
        assert "  \n" not in text


def test_reading_packaged_texts_loads_no_yaml_parser() -> None:
    code = "import sys, agent_core.assets as a; a.check_assets(); sys.exit('yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - our own text
    assert done.returncode == 0


def test_a_head_is_taken_off() -> None:
    taken = parse_front_matter("---\nname: x\ntags: [a, b]\n---\nbody\n")
    assert taken.fields == {"name": "x", "tags": ["a", "b"]}
    assert taken.body == "body\n"
    assert taken.text("name") == "x"
    assert taken.text("tags") == ""


@pytest.mark.parametrize("text", ["body", "", "-- -\n", "text\n---\na: 1\n---\n"])
def test_a_text_without_a_head_is_all_body(text: str) -> None:
    taken = parse_front_matter(text)
    assert taken.body == text
    assert taken.fields == {}
    assert taken.problem is None


def test_bom_and_windows_line_ends_are_fine() -> None:
    taken = parse_front_matter("\ufeff---\r\nname: x\r\n---\r\nbody")
    assert taken.fields == {"name": "x"}
    assert taken.body == "body"


@pytest.mark.parametrize(
    "head",
    [
        "[" * 4000,
        "a: &a [*a]\nb: !!python/object:os.system x",
        "a: {b: ",
        "- 1",
        "a" * (2 * MAX_HEAD_CHARS),
        "a: 2026-13-45",
    ],
)
def test_a_broken_head_is_a_fact_not_an_exception(head: str) -> None:
    taken = parse_front_matter(f"---\n{head}\n---\nbody")
    assert taken.problem
    assert taken.fields == {}

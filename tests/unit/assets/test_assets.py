import subprocess
import sys

import pytest

from agent_core.assets import REQUIRED_ASSETS, SYSTEM_IDS, check_assets, load_asset
from agent_core.errors import ConfigError
from tables import together


def test_every_required_text_is_there() -> None:
    check_assets()
    assert len(REQUIRED_ASSETS) == len(set(REQUIRED_ASSETS)) == 26
    assert all(load_asset(asset_id).text for asset_id in REQUIRED_ASSETS)


def test_a_missing_text_is_named_with_the_cure() -> None:
    with pytest.raises(ConfigError, match=r"agent\.nobody .* install soong-agent again"):
        load_asset("agent.nobody")


@together("asset_id", ["system.../../secret", "system.\0", "template.other", ""])
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

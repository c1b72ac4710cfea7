"""The packaged template and the configuration model say the same, key by key."""

import re
import tomllib
from importlib.resources import files
from typing import Any, get_args

from agent_core.config.models import Config, ToolOverrideConfig
from agent_core.config.problems import _sections_in
from agent_core.config.section import Section
from tables import together

_FILE = files("agent_core") / "assets" / "templates" / "config_default.toml"
TEMPLATE = _FILE.read_text(encoding="utf-8")
LOCAL_ONLY = {"path", "chat_template", "threads"}
NAMED = re.compile(r"overrides\.(small|code\.list_dir|mcp\.github\.search)\.")


def uncommented() -> str:
    """The template with its commented keys and tables made real."""
    return re.sub(r"^# ?(\[|[a-z_]+ = )", r"\1", TEMPLATE, flags=re.MULTILINE)


def leaves(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            found |= leaves(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        elif value and isinstance(value, list) and isinstance(value[0], dict):
            found |= leaves(value[0], f"{prefix}{key}[].")  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[f"{prefix}{key}"] = value
    return found


def model_keys(section: type[Section], prefix: str = "") -> set[str]:
    keys: set[str] = set()
    for name, field in section.model_fields.items():
        inner = next(_sections_in(field.annotation), None)
        if inner is None or "model_profile" in name:
            keys.add(f"{prefix}{name}")
        elif dict in {getattr(field.annotation, "__origin__", None)}:
            keys |= model_keys(inner, f"{prefix}{name}.*.")
        elif get_args(field.annotation):
            keys |= model_keys(inner, f"{prefix}{name}[].")
        else:
            keys |= model_keys(inner, f"{prefix}{name}.")
    return keys


def test_the_template_has_exactly_the_keys_of_the_model() -> None:
    table = tomllib.loads(uncommented())
    written = {NAMED.sub("overrides.*.", key) for key in leaves(table)}
    known = {
        key
        for key in model_keys(Config)
        if key.rsplit(".", 1)[-1] not in LOCAL_ONLY or key == "permissions.rules[].path"
    }
    whole_models = ("model_overrides.*.", "model_fallbacks[].")
    named_model = {key for key in known if key.startswith(whole_models)}
    assert written - known == set()
    # A named model may have every key of [model]; two are enough to show it.
    assert known - written <= named_model


def test_every_written_default_is_the_models_default() -> None:
    written = leaves(tomllib.loads(TEMPLATE))
    shown = {"model.provider": "ollama", "model.name": "gemma4"}
    address = {"model.base_url": "http://127.0.0.1:11434"}
    assert {key: written[key] for key in shown | address} == shown | address
    defaults = Config.model_validate({"model": {"provider": "ollama", "name": "gemma4"}})
    known = leaves(defaults.model_dump())
    assert {key: known[key] for key in written if key not in address} == {
        key: value for key, value in written.items() if key not in address
    }


def test_keys_without_a_default_stand_commented_out() -> None:
    written = leaves(tomllib.loads(TEMPLATE))
    defaults = leaves(Config.model_validate(tomllib.loads(TEMPLATE)).model_dump())
    unset = {key for key, value in defaults.items() if value is None}
    named_tables = {"model_overrides", "model_fallbacks", "agents.worker_pools", "tools.overrides"}
    named_tables |= {"tools.mcp.tool_overrides", "permissions.rules"}
    # A timeout that is set limits the first byte, too; the default one does not.
    assert set(defaults) - set(written) == unset | named_tables | {"model.timeout_ms"}


@together("line", ['provider = "ollama"', 'name = "gemma4"', 'base_url = "http://127.0.0.1:11434"'])
def test_the_model_lines_are_literal(line: str) -> None:
    assert line in TEMPLATE.splitlines()


def test_the_template_is_accepted_as_it_is_and_with_every_comment_made_real() -> None:
    Config.model_validate(tomllib.loads(TEMPLATE))
    full = Config.model_validate(tomllib.loads(uncommented()))
    assert full.tools.overrides["code.list_dir"] == ToolOverrideConfig(
        permission="write", tags=["code"]
    )

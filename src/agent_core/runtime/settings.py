"""The settings in effect, each with the place that its value comes from."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

from agent_core.config.load import CONFIG_NAME, MODEL_VARIABLE, load_config
from agent_core.config.models import Config, ModelConfig
from agent_core.config.paths import Setup
from agent_core.config.positions import dotted_key, find_line, find_lines, leaves
from agent_core.config.problems import read_text
from agent_core.errors import AgentCoreError
from agent_core.redaction.redactor import Redactor
from agent_core.secret_shapes import kind_of_name
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import Setting

DEFAULT = "default"
"""The origin of a value that nothing has set."""

_HIDDEN = "[hidden]"
_VARIABLES = ("api_key_env", "url_env")
_UNNAMED = ModelConfig.model_construct(provider="", name="")


def shown_settings(setup: Setup, redactor: Redactor) -> list[Setting]:
    """Return every key, without anything that is, or looks like, a secret."""
    named_by = f"${MODEL_VARIABLE}" if os.environ.get(MODEL_VARIABLE) else None
    return [
        each.model_copy(update=redactor.payload({"value": each.value}))
        for each in read_settings(setup, named_by=named_by)
    ]


def read_settings(setup: Setup, *, named_by: str | None = None) -> Iterator[Setting]:
    """Yield every key, in the order of the file's template; no value is a secret.

    Args:
        setup: the configuration.
        named_by: the option or variable that names the model in place of the file.
    """
    lines, in_file = dict[str, int](), JsonObject()
    text = read_text(setup.config_path)
    if text is not None:
        lines = find_lines(text)
        with suppress(AgentCoreError):  # it may name no model
            in_file = dict(_leaves(_table(load_config(setup.home))))
    defaults = dict(_leaves(_table(Config.model_construct(model=_UNNAMED))))
    before = in_file or defaults
    placed = {
        "model.first_byte_ms": setup.config.model.first_byte_limit_ms,
        "context.session_db_path": str(setup.session_db),
        "memory.memory_dir": str(setup.memory_dir),
        "plan.default_dir": str(setup.plans_dir),
        "task.wal_dir": str(setup.tasks_dir),
        "tools.allowed_write_roots": [str(root) for root in setup.write_roots],
        "workspace.snapshots": setup.config.workspace.snapshots or "turn",
    }
    for key, value in _leaves(_table(setup.config)):
        is_default = key in defaults and value == defaults[key]
        line = lines.get(key) or (None if is_default else find_line(lines, key))
        origin = f"{CONFIG_NAME}:{line}" if line else DEFAULT
        if line is None and not is_default:
            origin = "follows from other settings"
        is_named = key in {"model.provider", "model.name"} or value != before.get(key)
        if named_by is not None and key.startswith("model.") and is_named:
            origin = named_by
        if key.endswith(_VARIABLES) and value:
            is_set = bool(os.environ.get(value))
            yield Setting(key=key, value=value, origin=origin, is_set=is_set)
            continue
        name = key.rpartition(".")[2]
        is_secret = value is not None and (".headers." in key or kind_of_name(name) is not None)
        shown = _HIDDEN if is_secret else placed.get(key, value)
        yield Setting(key=key, value=shown, origin=origin)


def _leaves(table: Mapping[str, JsonValue]) -> Iterator[tuple[str, Any]]:
    """Yield the keys, with dots, and the values below all tables."""
    for path, value in leaves(table):
        if isinstance(value, list):
            value = [_without_gaps(each) for each in cast("list[Any]", value)]
        yield dotted_key(path), value


def _without_gaps(value: Any) -> Any:
    """Return an item of a list; of a table only the keys that are set."""
    if not isinstance(value, dict):
        return value
    table = cast("JsonObject", value)
    return {key: inner for key, inner in table.items() if inner not in (None, [])}


def _table(config: Config) -> JsonObject:
    return config.model_dump(mode="json")

"""`soong-agent config show`: every setting with its value, and where that comes from."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import asdict

from agent_core.cli.options import COMPLETED, MISUSED, Options
from agent_core.cli.setup import build_terminal_redactor, read_command_setup, run_on_terminal
from agent_core.cli.terminal import Clean, Style, Terminal
from agent_core.config.load import CONFIG_NAME, MODEL_VARIABLE, load_config
from agent_core.config.models import Config, ModelConfig
from agent_core.config.paths import HOME_VARIABLE, Setup
from agent_core.config.positions import dotted_key, find_line, find_lines, leaves
from agent_core.config.problems import nearest, read_text
from agent_core.errors import AgentCoreError
from agent_core.redaction.shapes import kind_of_name
from agent_core.text import visible

_UNNAMED = ModelConfig.model_construct(provider="", name="")
_DEFAULT = "default"
_HIDDEN = "[hidden]"
_VARIABLES = ("api_key_env", "url_env")
_COLUMN = 38


class Setting(Struct, frozen=True):
    """One key of the configuration.

    Attributes:
        key: with dots, as error messages have it.
        value: effective value; None: not set.
        origin: a line of the file, an option, a variable, or `default`.
        is_set: for the name of a variable: whether it is set.
    """

    key: str
    value: Any
    origin: str
    is_set: bool | None = None


def show_settings(options: Options) -> int:
    """Show the settings, and return the exit code."""
    return run_on_terminal(options.path, partial(_show, options), asks_model=False)


def _show(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    model = options.model or os.environ.get(MODEL_VARIABLE)
    is_there = setup.config_path.exists()
    if options.model is not None:
        setup = read_command_setup(options.path, options.model)
        clean = build_terminal_redactor(os.environ, setup).text
    settings = list(_settings(setup, is_model_named=bool(model), by=_named_by(options)))
    if not (model or is_there):
        settings = [each for each in settings if not each.key.startswith("model.")]
    known = [each.key for each in settings]
    wanted = options.id
    if wanted:
        settings = [each for each in settings if f"{each.key}.".startswith(f"{wanted}.")]
    if not settings:
        hint = nearest(wanted, [*known, *(key.partition(".")[0] for key in known)])
        terminal.line(f"error: there is no setting {clean(wanted)}{hint}", Style.BAD)
        return MISUSED
    places = {
        "home": (
            str(setup.home),
            f"${HOME_VARIABLE}" if os.environ.get(HOME_VARIABLE) else _DEFAULT,
        ),
        "project": (str(setup.project), "--path" if options.path else "the current folder"),
        "config": (str(setup.config_path), "read" if is_there else "does not exist"),
    }
    if options.json:
        shown = {
            **{name: place for name, (place, _) in places.items()},
            "settings": [asdict(each) for each in settings],
        }
        terminal.text(clean(json.dumps(shown, indent=2, ensure_ascii=False)) + "\n")
        return COMPLETED
    for name, (place, origin) in places.items() if not wanted else ():
        terminal.line(f"{name:<8} {clean(place)} ({origin})", Style.DIM)
    for each in settings:
        value = "not set" if each.value is None else json.dumps(each.value, ensure_ascii=False)
        if each.is_set is not None:
            value += " (set)" if each.is_set else " (not set)"
        line = f"{each.key} = {value}"
        terminal.text(visible(clean(f"{line:<{_COLUMN}}  # {each.origin}"), one_line=True) + "\n")
    if not (model or is_there):
        terminal.line("no model is named: config.toml, --model or $SOONG_AGENT_MODEL", Style.WARN)
    return COMPLETED


def _named_by(options: Options) -> str:
    return "--model" if options.model else f"${MODEL_VARIABLE}"


def _settings(setup: Setup, *, is_model_named: bool, by: str) -> Iterator[Setting]:
    """Every key, in the order of the file's template."""
    lines, in_file = dict[str, int](), dict[str, Any]()
    text = read_text(setup.config_path)
    if text is not None:
        lines = find_lines(text)
        with suppress(AgentCoreError):  # it may name no model
            in_file = dict(_leaves(_table(load_config(setup.home))))
    defaults = dict(_leaves(_table(Config.model_construct(model=_UNNAMED))))
    before = in_file or defaults
    placed = {
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
        origin = f"{CONFIG_NAME}:{line}" if line else _DEFAULT
        if line is None and not is_default:
            origin = "follows from other settings"
        is_named = key in {"model.provider", "model.name"} or value != before.get(key)
        if is_model_named and key.startswith("model.") and is_named:
            origin = by
        if key.endswith(_VARIABLES) and value:
            yield Setting(key, value, origin, bool(os.environ.get(value)))
            continue
        name = key.rpartition(".")[2]
        is_secret = value is not None and (".headers." in key or kind_of_name(name) is not None)
        yield Setting(key, _HIDDEN if is_secret else placed.get(key, value), origin)


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys, with dots, and the values below all tables."""
    for path, value in leaves(table):
        if isinstance(value, list):
            value = [_without_gaps(each) for each in cast("list[Any]", value)]
        yield dotted_key(path), value


def _without_gaps(value: Any) -> Any:
    """Return an item of a list; of a table only the keys that are set."""
    if not isinstance(value, dict):
        return value
    table = cast("dict[str, Any]", value)
    return {key: inner for key, inner in table.items() if inner not in (None, [])}


def _table(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json")

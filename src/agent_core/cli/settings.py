"""`soong-agent config`: shows settings with their origin, and changes them."""

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_core.cli.exit_codes import COMPLETED, FAILED, MISUSED
from agent_core.cli.options import Options
from agent_core.cli.setup import (
    NO_MODEL,
    build_terminal_redactor,
    read_command_setup,
    run_on_terminal,
)
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.load import CONFIG_NAME, MODEL_VARIABLE
from agent_core.config.model_names import model_fields
from agent_core.config.paths import HOME_VARIABLE, Setup
from agent_core.runtime.settings import DEFAULT, read_settings
from agent_core.text import Clean, nearest, visible

if TYPE_CHECKING:
    from agent_core.cli.config_file import Change

_OF_MODEL = ("model.provider", "model.name")
_COLUMN = 38


def manage_settings(options: Options) -> int:
    """Show or change settings, and return the exit code."""
    act = {"show": _show, "get": _get}.get(options.action, _change)
    return run_on_terminal(options, options.path, partial(act, options), asks_model=False)


def _change(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    from agent_core.cli.config_file import ConfigFile  # noqa: PLC0415 - few commands write

    file = ConfigFile(setup.home, build_terminal_redactor(os.environ, setup), check_rules)
    is_removal = options.action == "unset"
    done = file.unset(options.id) if is_removal else file.set_value(options.id, options.value)
    former = f"was {_compact(done.before)}" if done.before is not None else ""
    if is_removal:
        said = f"{done.key} removed ({former})" if former else f"{done.key} is not set"
        terminal.text(visible(clean(said), one_line=True) + "\n")
        return COMPLETED
    notes = [f"{CONFIG_NAME}:{done.line}"]
    if former:
        notes.append(former if done.before != done.after else "unchanged")
    line = f"{done.key} = {_compact(done.after)}"
    said = f"{line:<{_COLUMN}}  # {', '.join(notes)}"
    terminal.text(visible(clean(said), one_line=True) + "\n")
    if done.dropped:
        terminal.line(f"removed, as they belonged to another service: {', '.join(done.dropped)}")
    if hint := _unknown_provider(done):
        terminal.line(visible(clean(hint), one_line=True), Style.WARN)
    if done.key.partition(".")[0] == "model" and os.environ.get(MODEL_VARIABLE):
        terminal.line(f"${MODEL_VARIABLE} is set, and names the model instead", Style.WARN)
    return COMPLETED


def _unknown_provider(change: "Change") -> str | None:
    """Return a line about an unknown provider of a model; None: it is known."""
    if change.key == "model":
        value = change.after
        name = model_fields(value)["provider"] if isinstance(value, str) else value["provider"]
    elif change.key == "model.provider":
        name = change.after
    else:
        return None
    from agent_core.providers.base import ProviderRegistry  # noqa: PLC0415 - slow to import

    known = ProviderRegistry().known()
    if name in known:
        return None
    return f"{name} is not a known provider{nearest(name, known)}; only a program can register it"


def check_rules(setup: Setup) -> None:
    """Check permission rules as a start does.

    Raises:
        ConfigError: one cannot be used.
    """
    from agent_core.runtime.permission_rules import load_rules  # noqa: PLC0415 - slow to import
    from agent_core.tools.workspace import PathPolicy  # noqa: PLC0415

    load_rules(setup, PathPolicy.of(setup))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _get(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    named_by = DEFAULT if os.environ.get(MODEL_VARIABLE) else None
    found = {each.key: each for each in read_settings(setup, named_by=named_by)}
    setting = found.get(options.id)
    if setting is None:
        hint = nearest(options.id, found)
        message = f"error: there is no setting {clean(options.id)}{hint}"
        below = [key for key in found if key.startswith(f"{options.id}.")]
        if below:
            message = f"error: {clean(options.id)} has keys; name one, such as {below[0]}"
        terminal.line(message, Style.BAD)
        return MISUSED
    value = setting.value
    if value is None or (options.id in _OF_MODEL and value in {"", *NO_MODEL.split(":")}):
        terminal.line(f"{setting.key} is not set", Style.DIM)
        return FAILED
    shown = value if isinstance(value, str) else _compact(value)
    terminal.text(visible(clean(shown), one_line=True) + "\n")
    return COMPLETED


def _show(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    model = options.model or os.environ.get(MODEL_VARIABLE)
    is_there = setup.config_path.exists()
    if options.model is not None:
        setup = read_command_setup(options.path, options.model)
        clean = build_terminal_redactor(os.environ, setup).text
    settings = list(read_settings(setup, named_by=_named_by(options) if model else None))
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
            f"${HOME_VARIABLE}" if os.environ.get(HOME_VARIABLE) else DEFAULT,
        ),
        "project": (str(setup.project), "--path" if options.path else "the current folder"),
        "config": (str(setup.config_path), "read" if is_there else "does not exist"),
    }
    if options.json:
        shown = {
            **{name: place for name, (place, _) in places.items()},
            "settings": [each.model_dump() for each in settings],
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

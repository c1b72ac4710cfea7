"""Reads the one configuration file: all of it is right, or nothing starts."""

import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from agent_core.config.models import Config, ModelConfig, ModelProfile
from agent_core.config.paths import (
    Setup,
    check_placeholders,
    expand_path,
    resolve_home,
    resolve_project,
    tasks_folder,
)
from agent_core.config.problems import Problem, nearest, problems_of
from agent_core.errors import ConfigError, ErrorCode

CONFIG_NAME = "config.toml"
MAX_CONFIG_BYTES = 1_000_000

_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SHOWN_PROBLEMS = 5
_AnyModel = TypeVar("_AnyModel", ModelConfig, ModelProfile, str | ModelProfile | None)


def read_setup(
    project_dir: str | Path | None = None,
    config_path: str | Path | None = None,
    *,
    home_dir: str | Path | None = None,
    session_db_path: str | Path | None = None,
) -> Setup:
    """Find the home and the project, read the configuration and place its paths.

    Nothing is created, and the project is not searched for settings of any kind. Relative paths
    in the file start at the home (`session_db_path`, `memory_dir`, a model's `path`) or at the
    project (the rest).

    Raises:
        ConfigError: something of this cannot be used; the message names the place and the cure.
    """
    home = resolve_home(home_dir)
    project = resolve_project(project_dir)
    file = Path(config_path).expanduser().absolute() if config_path else home / CONFIG_NAME
    config = load_config(home, file)

    def at_home(value: str) -> Path:
        return expand_path(value, home, home=home, project=project)

    def in_project(value: str) -> Path:
        return expand_path(value, project, home=home, project=project)

    memory_dir = at_home(config.memory.memory_dir)
    if not memory_dir.is_relative_to(home):
        problem = Problem("memory.memory_dir", f"must be below the home {home}, not {memory_dir}")
        raise _refused(file, [problem])
    return Setup(
        home=home,
        project=project,
        config_path=file,
        config=_with_placed_models(config, at_home),
        session_db=(
            Path(session_db_path).expanduser().resolve()
            if session_db_path
            else at_home(config.context.session_db_path)
        ),
        sessions_dir=home / "sessions",
        memory_dir=memory_dir,
        plans_dir=in_project(config.plan.default_dir),
        tasks_dir=tasks_folder(config.task.wal_dir, home=home, project=project),
        write_roots=tuple(in_project(root) for root in config.tools.allowed_write_roots),
    )


def load_config(home: Path, config_path: str | Path | None = None) -> Config:
    """Read `config_path`, or `<home>/config.toml`.

    Raises:
        ConfigError: the file is missing, unreadable, too large, not UTF-8, not TOML, or does not
            fit the schema. Names the file, the key and what was expected; never a value.
    """
    path = Path(config_path) if config_path else home / CONFIG_NAME
    table = _parse(path, _read(path))
    try:
        config = Config.model_validate(table)
    except ValidationError as error:
        raise _refused(path, problems_of(error)) from None
    if problems := [
        *_unknown_profiles(config),
        *_bad_placeholders(config),
        *_long_defaults(config),
    ]:
        raise _refused(path, problems)
    return config


def _read(path: Path) -> str:
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise _unusable(path, "it is not a regular file")
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise _unusable(
            path, "it does not exist; write one with at least [model] provider and name"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unusable(path, f"it cannot be read: {reason}") from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise _unusable(path, f"it is larger than {MAX_CONFIG_BYTES:,} bytes")
    if raw.startswith(_BYTE_ORDER_MARKS):
        raise _unusable(path, "it begins with a byte order mark; save it as plain UTF-8")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _unusable(path, f"line {line} is not UTF-8; save it as plain UTF-8") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _unusable(path, "it is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        raise _unusable(path, f"it is not valid TOML: {error}") from None


def _unknown_profiles(config: Config) -> Iterator[Problem]:
    for key, reference in _models(config):
        if isinstance(reference, str) and reference not in config.model_overrides:
            hint = nearest(reference, config.model_overrides)
            yield Problem(key, f"names {reference!r}, and there is no such [model_overrides]{hint}")


def _with_placed_models(config: Config, place: Callable[[str], Path]) -> Config:
    """The configuration with the `path` of every local model resolved: adapters know no home."""

    def placed(model: _AnyModel) -> _AnyModel:
        if isinstance(model, str) or model is None or model.path is None:
            return model
        return model.model_copy(update={"path": str(place(model.path))})

    memory, compact = config.memory, config.compact
    return config.model_copy(
        update={
            "model": placed(config.model),
            "model_overrides": {
                name: placed(model) for name, model in config.model_overrides.items()
            },
            "compact": compact.model_copy(update={"model_profile": placed(compact.model_profile)}),
            "memory": memory.model_copy(
                update={
                    "extract_model_profile": placed(memory.extract_model_profile),
                    "recall_model_profile": placed(memory.recall_model_profile),
                }
            ),
        }
    )


def _models(config: Config) -> Iterator[tuple[str, str | ModelConfig | ModelProfile | None]]:
    yield "model", config.model
    for name, model in config.model_overrides.items():
        yield f"model_overrides.{name}", model
    yield "compact.model_profile", config.compact.model_profile
    yield "memory.extract_model_profile", config.memory.extract_model_profile
    yield "memory.recall_model_profile", config.memory.recall_model_profile


def _bad_placeholders(config: Config) -> Iterator[Problem]:
    paths = (
        (f"{key}.path", [model.path])
        for key, model in _models(config)
        if isinstance(model, ModelConfig | ModelProfile) and model.path is not None
    )
    for key, values in (
        *paths,
        ("context.session_db_path", [config.context.session_db_path]),
        ("memory.memory_dir", [config.memory.memory_dir]),
        ("plan.default_dir", [config.plan.default_dir]),
        ("task.wal_dir", [config.task.wal_dir]),
        ("tools.allowed_write_roots", config.tools.allowed_write_roots),
        ("tools.sensitive_paths", config.tools.sensitive_paths),
    ):
        for value in values:
            try:
                check_placeholders(value)
            except ConfigError as error:
                yield Problem(key, f"has an {error.message}")


def _long_defaults(config: Config) -> Iterator[Problem]:
    """Timeouts that would never apply, because the maximum ends every command before."""
    most, hooks = config.tools.max_timeout_ms, config.hooks
    given = {"tools.default_timeout_ms": config.tools.default_timeout_ms}
    if "default_timeout_ms" in hooks.model_fields_set:
        given["hooks.default_timeout_ms"] = hooks.default_timeout_ms
    for key, value in given.items():
        if value > most:
            yield Problem(
                key,
                f"is {value}, above tools.max_timeout_ms ({most}); lower it or raise the maximum",
            )


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        ErrorCode.CONFIG_ERROR,
        f"the configuration {path} cannot be used: {reason}",
        details={"path": str(path)},
    )


def _refused(path: Path, problems: list[Problem]) -> ConfigError:
    shown = "; ".join(str(problem) for problem in problems[:_SHOWN_PROBLEMS])
    more = len(problems) - _SHOWN_PROBLEMS
    error = _unusable(path, f"{shown}; and {more} more" if more > 0 else shown)
    error.details["key"] = problems[0].key
    error.details["problems"] = [{"key": item.key, "message": item.message} for item in problems]
    return error

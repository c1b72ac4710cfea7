"""Reads the one configuration file: all of it is right, or nothing starts.

Also which model a run gets: the base model, then the profiles of its purpose, role and caller.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
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
from agent_core.config.problems import Problem, nearest, problems_of, read_text
from agent_core.config.proxies import proxy_secrets
from agent_core.errors import ConfigError, ErrorCode

CONFIG_NAME = "config.toml"
_SHOWN_PROBLEMS = 5
_AnyModel = TypeVar("_AnyModel", ModelConfig, ModelProfile, str | ModelProfile | None)

Profile = str | ModelProfile | Mapping[str, Any] | None
"""The name of a `[model_overrides.<name>]` table, a partial model, or nothing to change."""


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
        raise _invalid(file, [problem])
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
    try:
        text = read_text(path)
    except ValueError as error:
        raise _unusable(path, str(error)) from None
    if text is None:
        reason = "it does not exist; write one with at least [model] provider and name"
        raise _unusable(path, reason)
    try:
        config = Config.model_validate(tomllib.loads(text))
    except RecursionError:
        raise _unusable(path, "it is nested too deeply") from None
    except ValidationError as error:
        raise _invalid(path, problems_of(error)) from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        raise _unusable(path, f"it is not valid TOML: {error}") from None
    if problems := list(_find_problems(config)):
        raise _invalid(path, problems)
    return config


def resolve_model(config: Config, *profiles: Profile) -> ModelConfig:
    """The base model with each profile laid over it, in order.

    A profile replaces only what it sets; tables (`retry`, `provider_options`, `compat`) are merged
    key by key. One that names another provider starts without the former's `base_url`,
    `api_key_env`, `compat` and `headers` of `provider_options`, and one that names an address at
    another host without all but the first:
    a key is never sent to a service it was not meant for.

    Raises:
        ConfigError: a profile has an unknown name, or a mapping is no partial model.
    """
    values = config.model.model_dump()
    origin = config.model.key_origin
    for profile in profiles:
        partial, place = _partial(config, profile)
        changes = partial.model_dump(exclude_unset=True, exclude_none=True)
        before = values["base_url"]
        is_other_provider = changes.get("provider", values["provider"]) != values["provider"]
        if is_other_provider:
            values["base_url"] = None
        if is_other_provider or _server_in(changes.get("base_url", before)) != _server_in(before):
            values.update(api_key_env=None, compat={})
            for options in values["provider_options"].values():
                options.pop("headers", None)
        values = _merge(values, changes)
        if "api_key_env" in changes:
            origin = f"{place}.api_key_env"
    return ModelConfig.model_validate(values).with_key_origin(origin)


def _server_in(url: str | None) -> str:
    """The scheme, the host and the port of an address: all of it that stands before the path."""
    return "/".join((url or "").strip().lower().split("/", 3)[:3])


def model_secrets(config: Config, *profiles: Profile, environ: Mapping[str, str]) -> dict[str, str]:
    """Every secret that the models of the configuration, and of `profiles`, are reached with.

    Keys are by the name of their variable; in the address of a proxy it is the password.
    """
    named = [model for _, model in _models(config) if not isinstance(model, str)]
    named += [_partial(config, profile)[0] for profile in profiles if not isinstance(profile, str)]
    models = [model for model in named if model]
    names = [model.api_key_env for model in models if model.api_key_env]
    keys = {name: value for name in names if (value := environ.get(name))}
    return keys | proxy_secrets([model.proxy for model in models], environ)


def _with_placed_models(config: Config, place: Callable[[str], Path]) -> Config:
    """The configuration with the files of every model resolved: adapters know no home."""

    def place_model(model: _AnyModel) -> _AnyModel:
        if isinstance(model, str) or model is None:
            return model
        files = {"path": model.path, "ca_file": model.ca_file}
        placed = {key: str(place(file)) for key, file in files.items() if file is not None}
        return model.model_copy(update=placed) if placed else model

    memory, compact = config.memory, config.compact
    return config.model_copy(
        update={
            "model": place_model(config.model),
            "model_fallbacks": [place_model(model) for model in config.model_fallbacks],
            "model_overrides": {
                name: place_model(model) for name, model in config.model_overrides.items()
            },
            "compact": compact.model_copy(
                update={"model_profile": place_model(compact.model_profile)}
            ),
            "memory": memory.model_copy(
                update={
                    "extract_model_profile": place_model(memory.extract_model_profile),
                    "recall_model_profile": place_model(memory.recall_model_profile),
                }
            ),
        }
    )


def _models(config: Config) -> Iterator[tuple[str, str | ModelConfig | ModelProfile | None]]:
    yield "model", config.model
    for number, model in enumerate(config.model_fallbacks):
        yield f"model_fallbacks[{number}]", model
    for name, model in config.model_overrides.items():
        yield f"model_overrides.{name}", model
    yield "compact.model_profile", config.compact.model_profile
    yield "memory.extract_model_profile", config.memory.extract_model_profile
    yield "memory.recall_model_profile", config.memory.recall_model_profile


def _find_problems(config: Config) -> Iterator[Problem]:
    """What is wrong between the sections, although each fits the schema."""
    paths: list[tuple[str, str]] = []
    for key, model in _models(config):
        if isinstance(model, str) and model not in config.model_overrides:
            hint = nearest(model, config.model_overrides)
            yield Problem(key, f"names {model!r}, and there is no such [model_overrides]{hint}")
        elif isinstance(model, ModelConfig | ModelProfile):
            files = {"path": model.path, "ca_file": model.ca_file}
            paths += [(f"{key}.{name}", file) for name, file in files.items() if file is not None]
    paths += [
        ("context.session_db_path", config.context.session_db_path),
        ("memory.memory_dir", config.memory.memory_dir),
        ("plan.default_dir", config.plan.default_dir),
        ("task.wal_dir", config.task.wal_dir),
        *(("tools.allowed_write_roots", root) for root in config.tools.allowed_write_roots),
        *(("tools.sensitive_paths", path) for path in config.tools.sensitive_paths),
    ]
    for key, value in paths:
        try:
            check_placeholders(value)
        except ConfigError as error:
            yield Problem(key, f"has an {error.message}")

    # Timeouts that would never apply, because the maximum ends every command before.
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


def _invalid(path: Path, problems: list[Problem]) -> ConfigError:
    shown = "; ".join(str(problem) for problem in problems[:_SHOWN_PROBLEMS])
    more = len(problems) - _SHOWN_PROBLEMS
    error = _unusable(path, f"{shown}; and {more} more" if more > 0 else shown)
    error.details["key"] = problems[0].key
    error.details["problems"] = [{"key": item.key, "message": item.message} for item in problems]
    return error


def _partial(config: Config, profile: Profile) -> tuple[ModelProfile, str]:
    """The partial model, and where it stands, for messages."""
    match profile:
        case None:
            return ModelProfile(), ""
        case ModelProfile():
            return profile, "the inline model profile"
        case str():
            known = config.model_overrides
            if profile not in known:
                raise ConfigError(
                    ErrorCode.CONFIG_ERROR,
                    f"there is no [model_overrides.{profile}]{nearest(profile, known)}",
                    details={"key": f"model_overrides.{profile}"},
                )
            return known[profile], f"model_overrides.{profile}"
        case _:
            try:
                return ModelProfile.model_validate(dict(profile)), "the inline model profile"
            except ValidationError as error:
                found = "; ".join(map(str, problems_of(error, ModelProfile)))
                raise ConfigError(
                    ErrorCode.CONFIG_ERROR, f"the model profile cannot be used: {found}"
                ) from None


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merge(before, value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            merged[key] = value
    return merged

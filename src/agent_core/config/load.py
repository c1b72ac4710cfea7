"""Read the configuration from a file or a program; nothing starts unless all of it is valid.

Also resolves the model of a run: the base model, then the profiles of its purpose, role and caller.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import ValidationError

from agent_core.config.addresses import HTTP_PARAMETERS, parameter_spellings, password_spellings
from agent_core.config.databases import database_secrets
from agent_core.config.model_names import may_hold_secret, model_fields
from agent_core.config.models import (
    Config,
    ModelConfig,
    ModelProfile,
    as_model,
    expand_home,
    named_model,
)
from agent_core.config.paths import (
    Setup,
    check_placeholders,
    expand_path,
    resolve_home,
    resolve_project,
    tasks_folder,
)
from agent_core.config.positions import problem_of
from agent_core.config.problems import Problem, problems_of, read_text, with_lines
from agent_core.config.proxies import proxy_secrets
from agent_core.config.section import Section
from agent_core.config.services import public_service
from agent_core.errors import ConfigError, ErrorCode
from agent_core.secret_shapes import without_secrets
from agent_core.text import kind_of, nearest
from agent_core.types.memory_scopes import MEMORY_OFF, MEMORY_SHARED, checked_scope

CONFIG_NAME = "config.toml"
MODEL_VARIABLE = "SOONG_AGENT_MODEL"
"""Names the model in place of `[model]`, where a program or a command names none."""

_NO_HOME = Path("/nonexistent/.soong-agent")
_IN_CODE = "the configuration given in code"
_SHOWN_PROBLEMS = 5
_AnyModel = TypeVar("_AnyModel", ModelConfig, ModelProfile, str | ModelProfile | None)

Profile = str | ModelProfile | Mapping[str, Any] | None
"""The name of a `[model_overrides.<name>]` table, a model string, a partial model, or nothing."""


def has_config(home: Path) -> bool:
    """Return whether the home has a `config.toml`.

    It may have one if the home cannot be looked into; reading it then says why.
    """
    try:
        (home / CONFIG_NAME).lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def read_setup(
    project_dir: str | Path | None = None,
    config_path: str | Path | None = None,
    *,
    config: Config | Mapping[str, Any] | None = None,
    model: Any = None,
    home_dir: str | Path | None = None,
    session_db_path: str | Path | None = None,
    database_url: str | None = None,
    tenant: str | None = None,
    memory: str | bool | None = None,
    persist: bool = True,
    default_snapshots: Literal["off", "turn"] = "off",
) -> Setup:
    """Find the home and the project, read the configuration and resolve its paths.

    Nothing is created, and the project is not searched for settings of any kind. Relative paths in
    the configuration start at the home (`session_db_path`, `memory_dir`, a model's `path`) or at
    the project (the rest). With `config` or `model` no file is read; if there is no `home_dir`
    either, none of the user's other settings are read, and there is no memory unless `memory` names
    its scope. `default_snapshots` applies if `[workspace] snapshots` is not set.

    Raises:
        ConfigError: something of this cannot be used; the message names the place and the cure.
    """
    home = _NO_HOME
    try:
        home = resolve_home(home_dir)
    except ConfigError:
        if persist or home_dir is not None or (config is None and model is None):
            raise  # otherwise the home is not used
    project = resolve_project(project_dir)
    file = expand_home(config_path).absolute() if config_path else home / CONFIG_NAME
    is_in_code = config is not None or model is not None
    if is_in_code:
        place, chosen = _IN_CODE, build_config(config, model)
    else:
        named = os.environ.get(MODEL_VARIABLE)
        place, chosen = str(file), load_config(home, config_path and file, model=named)
    _check_store(
        chosen, database_url, session_db_path=session_db_path, tenant=tenant, persist=persist
    )
    has_settings = not is_in_code or home_dir is not None
    memory_scope = checked_scope(memory) or (MEMORY_SHARED if has_settings else MEMORY_OFF)
    if not persist:
        disabled = chosen.memory.model_copy(update={"enabled": False})
        chosen = chosen.model_copy(update={"memory": disabled})

    def at_home(value: str) -> Path:
        return expand_path(value, home, home=home, project=project)

    def in_project(value: str) -> Path:
        return expand_path(value, project, home=home, project=project)

    memory_dir = at_home(chosen.memory.memory_dir)
    if not memory_dir.is_relative_to(home):
        problem = Problem("memory.memory_dir", f"must be below the home {home}, not {memory_dir}")
        raise _invalid(place, [problem])
    for problem in _sandbox_problems(chosen, home, in_project):
        raise _invalid(place, [problem])
    return Setup(
        home=home,
        project=project,
        config_path=file,
        config=_with_placed_models(chosen, at_home),
        session_db=(
            expand_home(session_db_path).resolve()
            if session_db_path
            else at_home(chosen.context.session_db_path)
        ),
        sessions_dir=home / "sessions",
        memory_dir=memory_dir,
        plans_dir=in_project(chosen.plan.default_dir),
        tasks_dir=tasks_folder(chosen.task.wal_dir, home=home, project=project),
        database_url=database_url,
        tenant=tenant,
        memory_scope=memory_scope,
        write_roots=tuple(in_project(root) for root in chosen.tools.allowed_write_roots),
        has_settings=has_settings,
        persist=persist,
        takes_snapshots=persist and (chosen.workspace.snapshots or default_snapshots) == "turn",
    )


def _check_store(
    config: Config,
    database_url: str | None,
    *,
    session_db_path: str | Path | None,
    tenant: str | None,
    persist: bool,
) -> None:
    """Check that the settings agree on one place for sessions.

    Raises:
        ConfigError: they do not; the message names them.
    """
    message, url_from = "", config.store.url_env and "store.url_env"
    if database_url is not None:
        url_from = "database_url"
    if url_from is None:
        if tenant is not None:
            message = (
                "a tenant needs a Postgres database: set [store] url_env (in code: or database_url)"
            )
        elif config.store.blobs is not None:
            message = "store.blobs is for a Postgres database: set store.url_env, or leave it out"
    elif not persist:
        message = f"{url_from} names a database, and persist=False says that nothing is kept"
        message += "; give one"
    elif session_db_path:
        message = f"session_db_path names a file, and {url_from} a Postgres database; give one"
    if message:
        raise ConfigError(ErrorCode.CONFIG_ERROR, message)


def _sandbox_problems(
    config: Config, home: Path, resolve: Callable[[str], Path]
) -> Iterator[Problem]:
    """Yield the folders that no confined program may be given.

    Args:
        config: the settings.
        home: of this program.
        resolve: makes a path of an entry.
    """
    lists = {"write": config.sandbox.write or [], "caches": config.sandbox.caches}
    for key, values in lists.items():
        for at, value in enumerate(values):
            if resolve(value).is_relative_to(home):
                message = f"must not lie in the home {home}: no program writes there"
                yield Problem(f"sandbox.{key}[{at}]", message)
    own_folder = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 - maybe no home
    for at, value in enumerate(config.sandbox.caches):
        if own_folder.is_relative_to(os.path.realpath(resolve(value))):
            message = "must not contain your home folder: list the folders of package managers"
            yield Problem(f"sandbox.caches[{at}]", message)
        elif home.is_relative_to(os.path.realpath(resolve(value))):
            message = f"must not contain the home {home}: list the folders of package managers"
            yield Problem(f"sandbox.caches[{at}]", message)


def load_config(
    home: Path, config_path: str | Path | None = None, *, model: str | None = None
) -> Config:
    """Read `config_path`, or `<home>/config.toml`.

    Args:
        home: where the file is.
        config_path: the file to read instead.
        model: named in one string, to be used in place of `[model]`. With it no file is needed
            in the home.

    Raises:
        ConfigError: the file is missing, unreadable, too large, not UTF-8, not TOML, or does not
            fit the schema. Names the file, the key and what was expected; never a value.
    """
    path = Path(config_path) if config_path else home / CONFIG_NAME
    try:
        text = read_text(path)
    except ValueError as error:
        raise _unusable(path, str(error)) from None
    if text is None and model and not config_path:
        _check_model_string(model)
        return build_config(None, model)
    if text is None:
        reason = "it does not exist; write [model] provider and name there"
        if not config_path:
            reason += (
                ", or add --model openai:gpt-5-mini\n"
                f"run, chat and acp take --model; everything else reads ${MODEL_VARIABLE}"
                " (in code: AgentRuntime(model=...))"
            )
        raise _unusable(path, reason)
    config = parse_config(text, path)
    return _with_model(config, model) if model else config


def parse_config(text: str, path: Path) -> Config:
    """Validate the text of a file.

    Raises:
        ConfigError: as for `load_config`.
    """
    import tomllib  # noqa: PLC0415 - not every home has a file

    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _unusable(path, "it is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        reason = problem_of(text, error)
        raise _unusable(path, f"it is not valid TOML: {reason}") from None
    return _validate(table, path, text)


def _check_model_string(model: str) -> None:
    try:
        model_fields(model)
    except ValueError as error:
        message = f"the model that --model or ${MODEL_VARIABLE} names {error}"
        raise ConfigError(ErrorCode.CONFIG_ERROR, message) from None


def build_config(config: Config | Mapping[str, Any] | None, model: Any = None) -> Config:
    """Build the configuration that a program gives, checked like a file.

    Args:
        config: a `Config`, or a mapping with the sections of the file.
        model: replaces the model of `config`: a string, a `ModelConfig`, or an adapter.

    Raises:
        ConfigError: it does not fit the schema; names the key.
    """
    model = as_model(model)
    if not isinstance(cast("object", model), str | ModelConfig | None):
        kind = kind_of(model)
        reason = f"model must be 'provider:name', a ModelConfig or an adapter, not {kind}"
        raise _unusable(_IN_CODE, reason)
    if isinstance(config, Config):
        if problems := list(_find_problems(config)):
            raise _invalid(_IN_CODE, problems)
        return _with_model(config, model) if model is not None else config
    if not isinstance(cast("object", config), Mapping | None):
        kind = kind_of(config)
        reason = f"it must be a Config or a mapping, not {kind}; a file is named by config_path"
        raise _unusable(_IN_CODE, reason)
    sections = dict(config or {})
    if model is not None and "model" not in sections:
        return _validate(sections | {"model": model}, _IN_CODE)
    found = _validate(sections, _IN_CODE)
    return _with_model(found, model) if model is not None else found


def _validate(table: Mapping[str, Any], place: Path | str, text: str | None = None) -> Config:
    """Validate a table; raise a ConfigError that names the place, and lines of the text."""
    try:
        config = _validate_given(table) or Config.model_validate(table)
    except RecursionError:
        raise _unusable(place, "it is nested too deeply") from None
    except ValidationError as error:
        raise _invalid(place, problems_of(error), text) from None
    if problems := list(_find_problems(config)):
        raise _invalid(place, problems, text)
    return config


def _validate_given(table: Mapping[str, Any]) -> Config | None:
    """Validate a correct table, building only the validators of the sections in it.

    Returns:
        None if `Config` has to validate it: something is wrong, or it has more than sections.
    """
    sections: dict[str, Section] = {}
    try:
        for key, value in table.items():
            kind = Config.model_fields[key].annotation
            if not (isinstance(kind, type) and issubclass(kind, Section)):
                return None
            given = named_model(value) if kind is ModelConfig else value
            sections[key] = given if isinstance(given, kind) else kind.model_validate(given)
    except (KeyError, TypeError, ValueError):
        return None
    if "model" not in sections:
        return None
    return Config.model_construct(set(sections), **sections)


def _with_model(config: Config, model: str | ModelConfig) -> Config:
    chosen = resolve_model(config, model) if isinstance(model, str) else model
    chosen = chosen.with_retry_of(config.model)
    return config.model_copy(update={"model": chosen})


def resolve_model(config: Config, *profiles: Profile) -> ModelConfig:
    """Return the base model with each profile applied to it, in order.

    A profile replaces only what it sets; tables (`retry`, `provider_options`, `compat`) are merged
    key by key. A model string sets the provider, the name, and the address if it has one; if this
    is a public service, a key and a window that are not set are the service's.

    A profile with another provider drops the former `base_url`, `provider_tools`, key, `compat` and
    `headers` of `provider_options`. One with an address at another server drops the last three: a
    key is never sent to a service it was not meant for. One with another model name drops the
    former `price`. The former `context_window` stays, but counts as assumed for another model.

    Raises:
        ConfigError: a profile has an unknown name, or a mapping is not a partial model.
    """
    if all(profile is None for profile in profiles):
        return config.model
    # A timeout that is set limits the first byte, too.
    unset = {"timeout_ms"} - config.model.model_fields_set
    values = config.model.model_dump(exclude=unset)
    origin, key_source = config.model.key_origin, config.model.key_source
    is_named = config.model.has_address_in_name
    is_other = config.model.context_window is not None and config.model.is_window_assumed
    for profile in profiles:
        partial, place = _partial(config, profile)
        changes = partial.model_dump(exclude_unset=True, exclude_none=True)
        before = values["base_url"]
        is_other_provider = changes.get("provider", values["provider"]) != values["provider"]
        if is_other_provider:
            values.update(base_url=None, provider_tools=[])
        is_other_server = is_other_provider or _server_in(
            changes.get("base_url", before)
        ) != _server_in(before)
        is_other_name = changes.get("name", values["name"]) != values["name"]
        if "context_window" in changes:
            is_other = False
        else:
            is_other = is_other or is_other_server or is_other_name
        if is_other_server:
            values["compat"] = {}
            for options in values["provider_options"].values():
                options.pop("headers", None)
        if is_other_server or not _OF_A_KEY.isdisjoint(changes):
            values.update(dict.fromkeys(_OF_A_KEY))
            key_source = None
        if is_other_provider or is_other_name:
            values["price"] = {}
        values = _merge(values, changes)
        is_named = partial.is_named if "base_url" in changes else is_named
        origin = f"{place}.api_key_env" if "api_key_env" in changes else origin
        if partial.is_named and (service := public_service(values["provider"], values["base_url"])):
            if values["api_key_env"] is None and not (key_source or values["api_key_command"]):
                values["api_key_env"], origin = service.key, place
            if values["context_window"] is None:
                values["context_window"] = service.window_of(values["name"])
    adapter = config.model.adapter if values["provider"] == config.model.provider else None
    return ModelConfig.model_validate(values).with_key_origin(
        origin,
        adapter=adapter,
        window_of_another=is_other,
        key_source=key_source,
        has_address_in_name=is_named,
    )


_OF_A_KEY = frozenset({"api_key_command", "api_key_env"})
"""Keys of a model that name its key; one replaces the other."""


def _server_in(url: str | None) -> str:
    """Return an address up to its path: scheme, host and port."""
    return "/".join((url or "").strip().lower().split("/", 3)[:3])


def config_secrets(
    config: Config, *profiles: Profile, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the secrets of the configuration: of its models, of `profiles`, and of its database.

    API keys are listed by the name of their variable. In an address, the password is secret, and so
    are parameters named like secrets.
    """
    models = _resolved(config, *profiles)
    names = [model.api_key_env for model in models if model.api_key_env]
    keys = {name: value for name in names if (value := environ.get(name))}
    for number, model in enumerate(models):
        if address := model.address:
            keys |= password_spellings(f"url_password_{number}", address)
            keys |= parameter_spellings(f"url_{number}", address, HTTP_PARAMETERS)
    keys |= proxy_secrets([model.proxy for model in models], environ)
    return keys | database_secrets(config.store.url_env, environ)


def missing_keys(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold model keys and are not set, each with its model."""
    return {
        name: f"{model.provider}:{model.name}"
        for model in reversed(_resolved(config))
        if (name := model.api_key_env) and not environ.get(name, "").strip()
    }


def _resolved(config: Config, *profiles: Profile) -> list[ModelConfig]:
    """Return every configured model and those of `profiles`, fully resolved."""
    models: list[ModelConfig] = []
    for profile in (*(model for _, model in _models(config)), *profiles):
        if isinstance(profile, ModelConfig):
            models.append(profile)
        else:
            with suppress(ConfigError):  # an unusable model is never called
                models.append(resolve_model(config, profile))
    return models


def _with_placed_models(config: Config, place: Callable[[str], Path]) -> Config:
    """Resolve the file paths of every model, because adapters do not know the home."""

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
    """Find contradictions between sections that each fit the schema."""
    paths: list[tuple[str, str]] = []
    for key, model in _models(config):
        if isinstance(model, str) and model not in config.model_overrides:
            try:
                model_fields(model)
            except ValueError as error:
                hint = nearest(model, config.model_overrides)
                shown = "a model" if may_hold_secret(model) else repr(model)
                message = f"names {shown}, and there is no such [model_overrides]{hint}; {error}"
                yield Problem(key, message)
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
        *(("sandbox.write", path) for path in config.sandbox.write or ()),
        *(("sandbox.caches", path) for path in config.sandbox.caches),
        *(("sandbox.protect", path) for path in config.sandbox.protect or ()),
        *(("sandbox.read", path) for path in config.sandbox.read if config.sandbox.read != "all"),
    ]
    for key, value in paths:
        try:
            check_placeholders(value)
        except ConfigError as error:
            yield Problem(key, f"has an {error.message}")

    if config.worker.lease_s <= config.worker.heartbeat_s:
        lease, beat = f"{config.worker.lease_s:g}", f"{config.worker.heartbeat_s:g}"
        message = f"is {lease}, not above worker.heartbeat_s ({beat}); raise it, or lower that"
        yield Problem("worker.lease_s", message)

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


def _unusable(place: Path | str, reason: str) -> ConfigError:
    return ConfigError(
        ErrorCode.CONFIG_ERROR,
        f"{place if place == _IN_CODE else f'the configuration {place}'} cannot be used: {reason}",
        details={} if place == _IN_CODE else {"path": str(place)},
    )


def _invalid(place: Path | str, problems: list[Problem], text: str | None = None) -> ConfigError:
    if text is None and place != _IN_CODE:
        with suppress(ValueError):
            text = read_text(Path(place))
    shown = list(with_lines(problems[:_SHOWN_PROBLEMS], text))
    if (more := len(problems) - _SHOWN_PROBLEMS) > 0:
        shown.append(f"and {more} more")
    error = _unusable(place, "\n".join(shown))
    error.details["key"] = without_secrets(problems[0].key)
    error.details["problems"] = [
        {"key": without_secrets(item.key), "message": without_secrets(item.message, is_prose=True)}
        for item in problems
    ]
    return error


def _partial(config: Config, profile: Profile) -> tuple[ModelProfile, str]:
    """Return the partial model, and its place for messages."""
    match profile:
        case None:
            return ModelProfile(), ""
        case ModelProfile():
            return profile, "the inline model profile"
        case str():
            known = config.model_overrides
            if profile not in known:
                try:
                    return ModelProfile.named(profile), f"the model string {profile!r}"
                except ValueError as error:
                    place, hint = f"model_overrides.{profile}", nearest(profile, known)
                    if may_hold_secret(profile):
                        place = "model_overrides"
                    message = f"there is no [{place}]{hint}; a model string {error}"
                    details = {"key": place}
                    raise ConfigError(ErrorCode.CONFIG_ERROR, message, details=details) from None
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

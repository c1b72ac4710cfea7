"""Which model a run gets: the base model, then the profiles of its purpose, role and caller."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from agent_core.config.models import Config, ModelConfig, ModelProfile
from agent_core.config.problems import nearest, problems_of
from agent_core.errors import ConfigError, ErrorCode

Profile = str | ModelProfile | Mapping[str, Any] | None
"""The name of a `[model_overrides.<name>]` table, a partial model, or nothing to change."""

_OF_ONE_SERVICE = ("base_url", "api_key_env")


def resolve_model(config: Config, *profiles: Profile) -> ModelConfig:
    """The base model with each profile laid over it, in order.

    A profile replaces only what it sets; tables (`retry`, `provider_options`) are merged key by
    key. One that names another provider starts without the former's `base_url` and
    `api_key_env`: a key is never sent to a service it was not meant for.

    Raises:
        ConfigError: a profile has an unknown name, or a mapping is no partial model.
    """
    values = config.model.model_dump()
    origin = config.model.key_origin
    for profile in profiles:
        partial, place = _partial(config, profile)
        changes = partial.model_dump(exclude_unset=True, exclude_none=True)
        if changes.get("provider", values["provider"]) != values["provider"]:
            values.update(dict.fromkeys(_OF_ONE_SERVICE))
        values = _merged(values, changes)
        if "api_key_env" in changes:
            origin = f"{place}.api_key_env"
    return ModelConfig.model_validate(values).with_key_origin(origin)


def secret_env_names(config: Config, *profiles: Profile) -> tuple[str, ...]:
    """Every environment variable the configuration, or one of `profiles`, takes a secret from."""
    return tuple(dict.fromkeys(name for name in _key_names(config, profiles) if name))


def _key_names(config: Config, profiles: tuple[Profile, ...]) -> Iterator[str | None]:
    yield config.model.api_key_env
    for override in config.model_overrides.values():
        yield override.api_key_env
    memory = config.memory
    inline = (
        config.compact.model_profile,
        memory.extract_model_profile,
        memory.recall_model_profile,
        *profiles,
    )
    for profile in inline:
        if not isinstance(profile, str):
            yield _partial(config, profile)[0].api_key_env


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


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merged(before, value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            merged[key] = value
    return merged

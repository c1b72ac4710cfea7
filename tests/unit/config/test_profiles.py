"""A model is the base with profiles laid over it; only what they set changes."""

import pytest

from agent_core.config.load import config_secrets, missing_keys, resolve_model
from agent_core.config.models import Config, ModelProfile
from agent_core.errors import ConfigError
from tables import together

CONFIG = Config.model_validate(
    {
        "model": {
            "provider": "openai",
            "name": "big",
            "base_url": "https://gateway.example/v1",
            "api_key_env": "BIG_KEY",
            "provider_options": {"openai": {"seed": 1, "headers": {"X-Key": "k"}}},
            "retry": {"max_attempts": 7},
        },
        "model_overrides": {
            "small": {"name": "small", "retry": {"max_backoff_ms": 10}},
            "other": {"provider": "anthropic", "name": "c", "api_key_env": "OTHER_KEY"},
            "bare": {"provider": "ollama", "name": "g"},
        },
        "compact": {"model_profile": {"api_key_env": "INLINE_KEY"}},
        "memory": {"recall_model_profile": "small"},
    }
)


def test_without_profiles_the_base_model_is_used() -> None:
    assert resolve_model(CONFIG, None).model_dump() == CONFIG.model.model_dump()


def test_later_profiles_win_and_unset_values_are_kept() -> None:
    model = resolve_model(CONFIG, "small", {"temperature": 0.5}, ModelProfile(name="last"))
    assert (model.name, model.temperature, model.base_url) == (
        "last",
        0.5,
        "https://gateway.example/v1",
    )
    assert (model.retry.max_attempts, model.retry.max_backoff_ms) == (7, 10)


def test_tables_are_merged_key_by_key() -> None:
    model = resolve_model(CONFIG, {"provider_options": {"openai": {"top_p": 0.5}}})
    assert model.provider_options == {
        "openai": {"seed": 1, "top_p": 0.5, "headers": {"X-Key": "k"}}
    }


def test_a_key_never_follows_to_another_provider() -> None:
    model = resolve_model(CONFIG, "bare")
    assert (model.base_url, model.api_key_env) == (None, None)
    other = resolve_model(CONFIG, "other")
    assert other.api_key_env == "OTHER_KEY"


@together(
    "base_url",
    [
        "https://elsewhere.example/v1",
        "http://gateway.example/v1",
        "https://gateway.example:8443/v1",
        "https://gateway.example.elsewhere.example/v1",
        "http://127.0.0.1:8000/v1",
    ],
)
def test_a_key_never_follows_to_another_host(base_url: str) -> None:
    changes = {"base_url": base_url}

    assert resolve_model(CONFIG, changes).api_key_env is None
    assert resolve_model(CONFIG, changes, {"name": "x"}).api_key_env is None
    assert resolve_model(CONFIG, {**changes, "api_key_env": "OWN"}).api_key_env == "OWN"
    assert resolve_model(CONFIG, changes).provider_options == {"openai": {"seed": 1}}
    back = resolve_model(CONFIG, "bare", {"provider": "openai", **changes})
    assert back.provider_options == {"openai": {"seed": 1}}


def test_a_key_stays_with_its_host() -> None:
    for base_url in ("https://gateway.example/v2", "HTTPS://gateway.example/v1/"):
        assert resolve_model(CONFIG, {"base_url": base_url}).api_key_env == "BIG_KEY"


def test_the_origin_of_a_key_is_known() -> None:
    assert resolve_model(CONFIG, "small").key_origin == "model.api_key_env"
    assert resolve_model(CONFIG, "other").key_origin == "model_overrides.other.api_key_env"


def test_an_unknown_or_malformed_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no \[model_overrides.smal\] \(did you mean small\?\)"):
        resolve_model(CONFIG, "smal")
    with pytest.raises(ConfigError, match=r"nme is not a known key \(did you mean name\?\)"):
        resolve_model(CONFIG, {"nme": "x"})


def test_every_secret_variable_is_found_once() -> None:
    names = ["BIG_KEY", "OTHER_KEY", "INLINE_KEY", "AGENT_KEY"]
    environ = {name: f"the {name}" for name in names}

    found = config_secrets(CONFIG, {"api_key_env": "AGENT_KEY"}, "other", environ=environ)

    assert found == environ


def test_a_variable_without_a_key_is_named_with_the_model_that_asks_for_it() -> None:
    environ = {"INLINE_KEY": "k", "OTHER_KEY": " "}
    found = missing_keys(CONFIG, environ)
    assert found == {"BIG_KEY": "openai:big", "OTHER_KEY": "anthropic:c"}


def test_an_empty_variable_name_means_that_there_is_no_key() -> None:
    config = Config.model_validate(
        {"model": {"provider": "openai", "name": "x", "api_key_env": ""}}
    )
    assert config_secrets(config, environ={"": "x"}) == {}
    assert missing_keys(config, {}) == {}


def test_the_password_of_a_proxy_is_a_secret_however_it_is_written() -> None:
    config = Config.model_validate(
        {"model": {"provider": "openai", "name": "x", "proxy": "http://me:p%40ss@proxy:1"}}
    )
    environ = {"HTTPS_PROXY": "only-a-token@proxy:2", "no_proxy": "a@b"}

    found = config_secrets(config, environ=environ)

    assert set(found.values()) == {"p@ss", "p%40ss", "only-a-token"}

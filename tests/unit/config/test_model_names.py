"""`provider:name[@base_url]`: what is read of it, which key goes with it, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from agent_core.config.load import build_config, config_secrets, resolve_model
from agent_core.config.model_names import model_fields
from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError
from tables import together

READ: list[tuple[str, dict[str, str]]] = [
    ("openai:gpt-5", {"provider": "openai", "name": "gpt-5"}),
    (" openai:gpt-5 ", {"provider": "openai", "name": "gpt-5"}),
    ("ollama:qwen3:8b", {"provider": "ollama", "name": "qwen3:8b"}),
    ("openai:meta/llama-4", {"provider": "openai", "name": "meta/llama-4"}),
    ("anthropic:claude@20250929", {"provider": "anthropic", "name": "claude@20250929"}),
    (
        "openai:my-model@http://127.0.0.1:8000/v1",
        {"provider": "openai", "name": "my-model", "base_url": "http://127.0.0.1:8000/v1"},
    ),
    (
        "openai:a@b@https://user:pass@host/v1",
        {"provider": "openai", "name": "a@b", "base_url": "https://user:pass@host/v1"},
    ),
    (
        "openai:@cf/meta/llama-4@HTTPS://host/v1",
        {"provider": "openai", "name": "@cf/meta/llama-4", "base_url": "HTTPS://host/v1"},
    ),
    (
        "openai:x@http://[::1]:8000/v1",
        {"provider": "openai", "name": "x", "base_url": "http://[::1]:8000/v1"},
    ),
    ("local:/m y/a@b.gguf", {"provider": "local", "name": "a@b", "path": "/m y/a@b.gguf"}),
    ("local:/m/tiny.gguf", {"provider": "local", "name": "tiny", "path": "/m/tiny.gguf"}),
    ("scripted:/m/r.json", {"provider": "scripted", "name": "r", "path": "/m/r.json"}),
    ("my-own:x", {"provider": "my-own", "name": "x"}),
    ("ollama:hf.co/a/b:Q4", {"provider": "ollama", "name": "hf.co/a/b:Q4"}),
    ("openai:m@v1.2", {"provider": "openai", "name": "m@v1.2"}),
    ("openai:m@latest", {"provider": "openai", "name": "m@latest"}),
    ("openai:@cf/meta/llama-4", {"provider": "openai", "name": "@cf/meta/llama-4"}),
]

MALFORMED = (
    "",
    "gpt-5",
    "openai:",
    ":gpt-5",
    "openai: gpt-5",
    "openai:gpt 5",
    "openai/gpt-5",
    "http://127.0.0.1:8000/v1",
    "openai:http://127.0.0.1/v1",
    "openai:x@",
    "openai:x@ftp://host",
    "openai:x@localhost",
    "openai:x@localhost/v1",
    "openai:x@127.0.0.1:8000",
    "openai:x@127.0.0.1",
    "openai:x@[::1]:8000",
    "openai:x@//host/v1",
    "openai:@http://host/v1",
    "openai:@",
    "local://m.gguf",
    "openai:x@gpu.example:8000/v1",
    "local:",
)


@together(("text", "fields"), READ)
def test_a_model_string_is_read(text: str, fields: dict[str, str]) -> None:
    assert model_fields(text) == fields


def test_a_file_starts_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert build_config(None, "local:m/tiny.gguf").model.path == str(tmp_path / "m/tiny.gguf")


@together("text", MALFORMED)
def test_what_is_no_model_string_gets_the_form_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="provider:name, such as openai:gpt-5"):
        build_config(None, text)


@together(
    "address",
    [
        "http//",
        "http//127.0.0.1:8000/v1",
        "http:/127.0.0.1/v1",
        "http:127.0.0.1",
        "http;//host/v1",
        "https",
        "htp://host/v1",
        "ttp//host/v1",
        "HTTP//host",
        "http:\\\\host\\v1",
        "http://",
        "gpu.example",
        "gpu.example/v1",
        "gpu/v1",
    ],
)
def test_a_mistyped_address_is_no_part_of_the_name(address: str) -> None:
    with pytest.raises(ConfigError, match=r"after an @ an address http\(s\)://host"):
        build_config(None, f"openai:x@{address}")


@together(
    "address",
    [
        "ftp://me:hunter22@host",
        "http//me:hunter22@host/v1",
        "http:/me:hunter22@host",
        "me:hunter22@host.example",
        "hunter22.example",
    ],
)
def test_an_address_with_a_password_is_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(None, f"openai:x@{address}")
    assert "hunter22" not in caught.value.message


KEYS: list[tuple[str, str | None]] = [
    ("openai:gpt-5", "OPENAI_API_KEY"),
    ("openai:gpt-5@https://api.openai.com/v1", "OPENAI_API_KEY"),
    ("openai:gpt-5@https://api.openai.com:443/v1", "OPENAI_API_KEY"),
    ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
    ("gemini:gemini-2.5-pro", "GEMINI_API_KEY"),
    ("openai:gpt-5@http://api.openai.com/v1", None),
    ("openai:gpt-5@https://api.openai.com:8443/v1", None),
    ("openai:gpt-5@https://api.openai.com.evil.example/v1", None),
    ("openai:gpt-5@https://api.openai.com@evil.example/v1", None),
    ("openai:gpt-5@https://evil.example/api.openai.com", None),
    ("openai:gpt-5@https://evil.example\\@api.openai.com/v1", None),
    ("openai:my-model@http://127.0.0.1:8000/v1", None),
    ("openai:my-model@http://[::1/v1", None),
    ("ollama:qwen3", None),
    ("my-own:x", None),
]


@together(("text", "variable"), KEYS)
def test_a_key_is_found_for_the_public_service_only(text: str, variable: str | None) -> None:
    assert build_config(None, text).model.api_key_env == variable
    base = build_config({"model": {"provider": "ollama", "name": "a"}})
    assert resolve_model(base, text).api_key_env == variable
    listed = {"model": "ollama:a", "model_fallbacks": [text], "model_overrides": {"b": text}}
    config = build_config(listed)
    assert config.model_fallbacks[0].api_key_env == variable
    assert resolve_model(config, "b").api_key_env == variable


@together(
    ("table", "variable"),
    [
        ({"provider": "openai"}, "OPENAI_API_KEY"),
        ({"provider": "anthropic", "api_key_env": None}, "ANTHROPIC_API_KEY"),
        ({"provider": "gemini"}, "GEMINI_API_KEY"),
        ({"provider": "openai", "base_url": "https://api.openai.com/v1"}, "OPENAI_API_KEY"),
        ({"provider": "openai", "base_url": "http://127.0.0.1:8000/v1"}, None),
        ({"provider": "openai", "api_key_env": ""}, ""),
        ({"provider": "openai", "api_key_env": "MINE"}, "MINE"),
        ({"provider": "openai", "api_key_command": ["pass"]}, None),
        ({"provider": "vertex"}, None),
        ({"provider": "ollama"}, None),
    ],
)
def test_a_table_finds_the_key_of_a_public_service_too(
    table: dict[str, Any], variable: str | None
) -> None:
    table = {"name": "m", **table}
    assert build_config({"model": table}).model.api_key_env == variable
    config = build_config({"model": "ollama:a", "model_overrides": {"b": table}})
    assert resolve_model(config, "b").api_key_env == variable


def test_the_key_of_a_public_service_stays_away_from_a_configured_server() -> None:
    proxy: dict[str, Any] = {
        "provider": "openai",
        "name": "a",
        "base_url": "http://proxy.example/v1",
        "api_key_env": "PROXY_KEY",
        "temperature": 0.5,
    }
    config = build_config({"model": proxy, "model_overrides": {"b": "openai:b"}})
    for text in ("openai:b", "b"):
        model = resolve_model(config, text)
        assert (model.name, model.base_url) == ("b", "http://proxy.example/v1")
        assert (model.api_key_env, model.temperature) == ("PROXY_KEY", 0.5)

    keyless = build_config({"model": proxy | {"api_key_env": None}})
    assert resolve_model(keyless, "openai:b").api_key_env is None
    elsewhere = resolve_model(config, "openai:b@http://other.example/v1")
    assert elsewhere.api_key_env is None


def test_a_string_takes_the_place_of_any_table_of_a_model() -> None:
    config = build_config(
        {
            "model": "openai:gpt-5",
            "compact": {"model_profile": "openai:gpt-5-mini"},
            "memory": {"extract_model_profile": "cheap"},
            "model_overrides": {"cheap": "ollama:qwen3"},
        }
    )
    named = ModelConfig(
        provider="openai", name="gpt-5", api_key_env="OPENAI_API_KEY", context_window=128_000
    )
    assert config.model.model_dump() == named.model_dump()
    assert resolve_model(config, config.compact.model_profile).name == "gpt-5-mini"
    assert resolve_model(config, config.memory.extract_model_profile).name == "qwen3"


def test_a_name_that_is_neither_a_table_nor_a_model_is_named() -> None:
    with pytest.raises(ConfigError, match=r"compact.model_profile names 'chaep'.*mean cheap"):
        build_config(
            {
                "model": "openai:gpt-5",
                "model_overrides": {"cheap": "ollama:qwen3"},
                "compact": {"model_profile": "chaep"},
            }
        )


@together(
    ("configured", "text", "window"),
    [
        ({}, "openai:gpt-5", 128_000),
        ({}, "anthropic:claude-sonnet-4-5", 200_000),
        ({}, "openai:m@http://127.0.0.1:8000/v1", None),
        ({"context_window": 64_000}, "openai:gpt-5", 64_000),
    ],
)
def test_a_window_is_known_of_the_public_services_only(
    configured: dict[str, Any], text: str, window: int | None
) -> None:
    config = build_config({"model": {"provider": "ollama", "name": "a", **configured}})
    assert resolve_model(config, text).context_window == window
    model = build_config(config, text).model
    assert (model.context_window, model.window) == (window, window or 32_768)


def test_the_keys_of_every_named_model_are_secrets() -> None:
    config = build_config(
        {
            "model": "ollama:a",
            "compact": {"model_profile": "openai:b"},
            "model_overrides": {"c": "anthropic:c"},
        }
    )
    environ = {"OPENAI_API_KEY": "of-openai", "ANTHROPIC_API_KEY": "of-anthropic"}
    environ |= {"GEMINI_API_KEY": "of-gemini", "OTHER": "x"}
    assert config_secrets(config, "gemini:d", environ=environ) == {
        name: value for name, value in environ.items() if name != "OTHER"
    }

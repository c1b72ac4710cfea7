"""The address of Ollama in the environment, and the addresses that are public."""

import pytest

from agent_core.config.load import load_config, resolve_model
from agent_core.config.models import ModelConfig, ModelProfile
from agent_core.config.servers import is_public, ollama_address, shown_address
from isolation import Home
from tables import together


@together(
    ("written", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        ("  ", "http://127.0.0.1:11434"),
        ("models", "http://models:11434"),
        ("models/", "http://models:11434"),
        ("models:1234", "http://models:1234"),
        ("models:99999", "http://models:11434"),
        ("models:x", "http://models:11434"),
        ("10.1.2.3", "http://10.1.2.3:11434"),
        (":8080", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:11434"),  # noqa: S104
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("http://0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:11434"),
        ("[::]:8080", "http://[::1]:8080"),
        ("::1", "http://[::1]:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("[fd00::7]:8080", "http://[fd00::7]:8080"),
        ("http://models", "http://models:80"),
        ("https://models.example", "https://models.example:443"),
        ("HTTPS://models.example", "https://models.example:443"),
        ("https://models.example:8443/ollama/", "https://models.example:8443/ollama"),
        ("models:1234/a/b", "http://models:1234/a/b"),
        ("ollama.com", "https://ollama.com:443"),
        ("'models'", "http://models:11434"),
        ('"models:1234"', "http://models:1234"),
    ],
)
def test_ollamas_variable_is_read_as_ollama_reads_it(written: str, address: str) -> None:
    assert ollama_address({"OLLAMA_HOST": written}) == address


@together(
    "url",
    [
        "http://127.0.0.1:1/v1",
        "http://127.8.8.8",
        "http://[::1]:1",
        "http://[::ffff:10.0.0.1]",
        "http://localhost",
        "http://LOCALHOST.",
        "http://api.localhost",
        "http://10.0.0.1",
        "http://172.20.1.1",
        "http://192.168.1.1",
        "http://169.254.1.1",
        "http://100.64.0.9",
        "http://[fd12::1]",
        "http://[fe80::1%25eth0]",
        "http://ollama:11434",
        "http://box.local",
        "http://host.docker.internal",
        "http://nas.home.arpa",
        "http://router.lan",
    ],
)
def test_addresses_of_this_machine_and_of_private_networks_are_not_public(url: str) -> None:
    assert not is_public(url)
    assert ModelConfig(provider="openai", name="m", base_url=url).first_byte_limit_ms == 0


@together(
    "url", ["https://api.openai.com/v1", "http://8.8.8.8", "https://[2606:4700::1]", "https://a.io"]
)
def test_other_addresses_are_public(url: str) -> None:
    assert is_public(url)
    assert ModelConfig(provider="openai", name="m", base_url=url).first_byte_limit_ms == 600_000


@together("provider", ["openai", "anthropic", "gemini", "bedrock"])
def test_a_services_own_address_is_a_hosted_one(provider: str) -> None:
    assert ModelConfig(provider=provider, name="m").first_byte_limit_ms == 600_000


def test_ollamas_limit_follows_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig(provider="ollama", name="m")
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    assert model.first_byte_limit_ms == 0
    monkeypatch.setenv("OLLAMA_HOST", "https://ollama.com")
    assert model.first_byte_limit_ms == 600_000
    assert ModelConfig(provider="local", name="m").first_byte_limit_ms == 0


def test_a_timeout_that_is_set_counts_where_no_limit_is() -> None:
    hosted = {"provider": "openai", "name": "m", "base_url": "https://a.io"}
    limits = [
        ModelConfig.model_validate(hosted | more).first_byte_limit_ms
        for more in (
            {"timeout_ms": 60_000},
            {"timeout_ms": 60_000, "first_byte_ms": 5},
            {"first_byte_ms": 0},
        )
    ]
    assert limits == [60_000, 5, 0]


def test_the_limit_of_a_profile_follows_its_own_address(home: Home) -> None:
    home.write_config('[model]\nprovider = "openai"\nname = "m"\nbase_url = "https://a.io"\n')
    config = load_config(home.path)
    near = ModelProfile(base_url="http://127.0.0.1:1")
    assert resolve_model(config).first_byte_limit_ms == 600_000
    assert resolve_model(config, near).first_byte_limit_ms == 0
    assert resolve_model(config, near, {"timeout_ms": 7}).first_byte_limit_ms == 7


@together(
    ("url", "shown"),
    [
        ("http://me:hunter22@host:1/v1?key=abc#d", "http://host:1/v1"),
        ("https://host/", "https://host"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("https://host/@cf/v1", "https://host/@cf/v1"),
        ("host:1/v1", "host:1/v1"),
        ("http://host:1/@cf/v1", "http://host:1/@cf/v1"),
        ("http://me:hunt/er22@host/v1", "http://host/v1"),
        ("http://me:hunt?er22@host/v1?key=abc", "http://host/v1"),
        ("http://me:hunt#er22@host:1", "http://host:1"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert shown_address(url) == shown

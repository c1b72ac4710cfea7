"""Names are the conventions', to the letter; what is our own says so."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.metrics import Histogram, NoOpMeter

from agent_core.config.models import ModelConfig
from agent_core.telemetry import content, names
from agent_core.telemetry.spans import Telemetry, provider_name
from agent_core.types import StopReason
from tables import together

DOCS = Path(__file__).parents[3] / "docs" / "telemetry.md"
CONVENTIONS = "opentelemetry.semconv._incubating"
OPERATIONS = {names.CHAT, names.EXECUTE_TOOL, names.INVOKE_AGENT}


def ours() -> dict[str, str]:
    return {name: value for name, value in vars(names).items() if name.isupper()}


def registered() -> Iterator[str]:
    """Every attribute and metric of the conventions' package that we could mean."""
    for kind in ("gen_ai_attributes", "mcp_attributes", "error_attributes", "server_attributes"):
        module = importlib.import_module(f"{CONVENTIONS}.attributes.{kind}")
        yield from (v for k, v in vars(module).items() if k.isupper() and isinstance(v, str))
    for kind in ("error_attributes", "server_attributes"):
        module = importlib.import_module(f"opentelemetry.semconv.attributes.{kind}")
        yield from (v for k, v in vars(module).items() if k.isupper() and isinstance(v, str))
    module = importlib.import_module(f"{CONVENTIONS}.metrics.gen_ai_metrics")
    yield from (v for k, v in vars(module).items() if k.isupper() and isinstance(v, str))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_name_is_registered_or_our_own() -> None:
    known = set(registered())
    foreign = set(ours().values()) - known - OPERATIONS
    assert foreign
    assert {name for name in foreign if not name.startswith("soong_agent.")} == set()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_operations_and_token_types_are_the_conventions() -> None:
    module: Any = importlib.import_module(f"{CONVENTIONS}.attributes.gen_ai_attributes")
    values = {each.value for each in module.GenAiOperationNameValues}
    assert values >= OPERATIONS
    assert {each.value for each in module.GenAiTokenTypeValues} >= {"input", "output"}
    assert {each.value for each in module.GenAiOutputTypeValues} >= {"json"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@together(
    ("name", "create"),
    [
        (names.TOKEN_USAGE, "create_gen_ai_client_token_usage"),
        (names.OPERATION_DURATION, "create_gen_ai_client_operation_duration"),
        (names.TIME_TO_FIRST_CHUNK, "create_gen_ai_client_operation_time_to_first_chunk"),
    ],
    ids=["tokens", "duration", "first chunk"],
)
def test_metrics_have_the_units_and_words_of_the_conventions(name: str, create: str) -> None:
    made: dict[str, tuple[str, str]] = {}

    class Notes(NoOpMeter):
        def create_histogram(
            self, name: str, unit: str = "", description: str = "", **_: Any
        ) -> Histogram:
            made[name] = (unit, description)
            return super().create_histogram(name, unit, description)

    class Meters:
        def get_meter(self, *_: Any, **__: Any) -> NoOpMeter:
            return Notes("m")

    module: Any = importlib.import_module(f"{CONVENTIONS}.metrics.gen_ai_metrics")
    getattr(module, create)(Notes("m"))
    wanted = made.pop(name)
    Telemetry(meter_provider=Meters())  # pyright: ignore[reportArgumentType]
    assert made[name] == wanted


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@together(
    ("provider", "base_url", "name"),
    [
        ("openai", None, "openai"),
        ("openai", "http://127.0.0.1:8080/v1", "openai"),
        ("openai", "https://api.groq.com/openai/v1", "groq"),
        ("openai", "https://api.mistral.ai/v1", "mistral_ai"),
        ("openai", "https://api.x.ai/v1", "x_ai"),
        ("openai", "https://api.deepseek.com", "deepseek"),
        ("openai", "https://mine.openai.azure.com/openai/v1", "azure.ai.openai"),
        ("anthropic", None, "anthropic"),
        ("gemini", None, "gcp.gemini"),
        ("bedrock", None, "aws.bedrock"),
    ],
)
def test_services_have_the_conventions_names(
    provider: str, base_url: str | None, name: str
) -> None:
    module: Any = importlib.import_module(f"{CONVENTIONS}.attributes.gen_ai_attributes")
    assert name in {each.value for each in module.GenAiProviderNameValues}
    assert provider_name(ModelConfig(provider=provider, name="m", base_url=base_url)) == name


def test_every_stop_reason_has_a_word() -> None:
    assert content.FINISH_REASONS.keys() == set(StopReason)


def test_the_page_names_all_of_it_and_nothing_else() -> None:
    page = DOCS.read_text(encoding="utf-8")
    said = set(re.findall(r"`((?:gen_ai|soong_agent|mcp|error|server)\.[a-z_.]+)`", page))
    dotted = {name for name in ours().values() if "." in name}
    assert said == dotted

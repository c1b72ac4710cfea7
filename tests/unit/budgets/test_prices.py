"""Which models have a price, and what a call of theirs costs."""

import sys
from decimal import Decimal
from typing import Any

import pytest

from agent_core.budgets.prices import Prices, may_have_price
from agent_core.config.models import ModelConfig, PriceConfig
from agent_core.types import Usage
from tables import together

PRIVATE = "http://127.0.0.1:8000/v1"


def model(provider: str, name: str, base_url: str | None = None, **fields: Any) -> ModelConfig:
    return ModelConfig(provider=provider, name=name, base_url=base_url, **fields)


@together(
    ("asked", "dollars"),
    [
        (model("openai", "gpt-4o"), 12.5),
        (model("openai", "gpt-4o", PRIVATE), None),  # whatever it calls so
        (model("anthropic", "claude-sonnet-4-5", "http://models.lan"), None),
        (model("custom", "gpt-4o"), 12.5),
        (model("anthropic", "claude-sonnet-4-5"), 22.5),
        (model("gemini", "gemini-2.0-flash"), 0.5),
        (model("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"), 24.75),
        (model("openai", "openai/gpt-4o", "https://openrouter.ai/api/v1"), 12.5),
        (model("local", "gemma"), 0.0),
        (model("openai", "my-model"), None),
        (model("openai", "my-model", PRIVATE), None),
        (model("openai", "gpt-oss-20b", PRIVATE), None),
        (model("ollama", "gpt-oss:20b"), None),
        (model("scripted", "script"), None),
        (model("openai", "gpt-4o", "https://models.example.org/v1"), 12.5),
        (model("openai", "qwen3", "https://models.example.org/v1"), None),
    ],
    ids=lambda value: f"{value.provider}-{value.name}" if isinstance(value, ModelConfig) else "",
)
async def test_a_model_has_the_price_of_its_vendor_or_none(
    asked: ModelConfig, dollars: float | None
) -> None:
    price = await Prices().of(asked)
    assert may_have_price(asked) or price is None
    if dollars is None:
        assert price is None
    else:
        assert price is not None
        usage = Usage.from_input_output(100_000, 100_000)
        assert float(price.of(usage)) * 10 == pytest.approx(dollars, rel=0.35)


async def test_cached_parts_of_a_prompt_have_their_own_price() -> None:
    price = await Prices().of(model("anthropic", "claude-sonnet-4-5"))
    assert price is not None
    plain = Usage(input_tokens=1000, total_tokens=1000)
    read = plain.model_copy(update={"cache_read_tokens": 1000})
    written = plain.model_copy(update={"cache_write_tokens": 1000})
    assert price.of(read) < price.of(plain) < price.of(written)
    assert price.worst(1000, 0) == price.of(written)
    beyond = plain.model_copy(update={"cache_read_tokens": 5000, "cache_write_tokens": -1})
    assert price.of(beyond) == price.of(read)


async def test_the_configured_price_stands_above_the_lists() -> None:
    figures = PriceConfig(input=1.0, output=2.0, cache_read=0.5, cache_write=4.0)
    price = await Prices().of(model("openai", "gpt-4o", price=figures))
    assert price is not None
    usage = Usage(
        input_tokens=1000, output_tokens=100, cache_read_tokens=400, cache_write_tokens=100
    )
    assert float(price.of(usage)) == pytest.approx((500 + 200 + 400 + 200) / 1e6)
    only_output = await Prices().of(model("x", "y", price=PriceConfig(output=3.0)))
    assert only_output is not None
    assert float(only_output.of(usage)) == pytest.approx(300 / 1e6)


async def test_lists_that_cannot_be_read_leave_prices_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)
    assert await Prices().of(model("openai", "gpt-4o")) is None


async def test_what_is_kept_for_an_hour_has_its_own_price() -> None:
    listed = await Prices().of(model("anthropic", "claude-sonnet-4-5"))
    without = await Prices().of(model("openai", "gpt-4o"))
    assert listed is not None
    assert without is not None
    plain = Usage(input_tokens=1000, total_tokens=1000)
    written = plain.model_copy(update={"cache_write_tokens": 1000})
    kept = written.model_copy(update={"cache_write_1h_tokens": 400})
    assert listed.of(written) == listed.of(plain) * Decimal("1.25")
    assert listed.of(kept) == listed.of(plain) * (Decimal("1.25") * 6 + 2 * 4) / 10
    assert without.of(kept) == without.of(written)

    figures = PriceConfig(input=1.0, cache_write=1.25, cache_write_hour=2.0)
    configured = await Prices().of(model("openai", "any", price=figures))
    assert configured is not None
    assert float(configured.of(kept)) == pytest.approx((600 * 1.25 + 400 * 2) / 1e6)
    assert float(configured.worst(1000, 0)) == pytest.approx(2000 / 1e6)
    as_written = await Prices().of(
        model("openai", "any", price=PriceConfig(input=1.0, cache_write=3.0))
    )
    assert as_written is not None
    assert as_written.of(kept) == as_written.of(written)

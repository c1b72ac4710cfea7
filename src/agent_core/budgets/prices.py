"""Prices of model calls in US dollars: configured, or from the public price lists."""

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from types import MappingProxyType
from typing import Any, cast

from msgspec import Struct, field

from agent_core.config.models import ModelConfig, PriceConfig
from agent_core.config.servers import is_public
from agent_core.text.json_text import JsonObject
from agent_core.types import Usage

logger = logging.getLogger(__name__)

_MILLION = Decimal(1_000_000)

_VENDORS: Mapping[str, str] = MappingProxyType(
    {
        "anthropic": "anthropic",
        "bedrock": "aws",
        "cerebras": "cerebras",
        "deepseek": "deepseek",
        "fireworks": "fireworks",
        "gemini": "google",
        "groq": "groq",
        "minimax": "minimax",
        "mistral": "mistral",
        "moonshot": "moonshotai",
        "openai": "openai",
        "openrouter": "openrouter",
        "together": "together",
        "vertex": "google",
        "xai": "x-ai",
        "zhipu": "zai",
    }
)
"""Names in the price lists for the services behind the default addresses of providers."""

_FAMILIES: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "openai": re.compile(r"gpt-\d|chatgpt-|o\d(-|$)"),
        "anthropic": re.compile(r"claude-"),
        "google": re.compile(r"gemini-"),
    }
)
"""Beginnings of names that only one vendor's models have: its price applies behind a gateway."""

_SEARCHES = "web_search_requests"
"""Name of the number of searches in a usage report's `server_tool_use`: Anthropic's."""
_A_SEARCH: Mapping[str, Decimal] = MappingProxyType(
    dict.fromkeys(("anthropic", "openai"), Decimal("0.01"))
)
"""Dollars for a search that the service of a provider runs itself, where it says so."""


class Price(ABC):
    """The price of one model."""

    @abstractmethod
    def of(self, usage: Usage) -> Decimal:
        """Return the cost of one call in US dollars."""

    def worst(self, input_tokens: int, output_tokens: int) -> Decimal:
        """Return the most that one call can cost, however much of its prompt is cached."""
        plain = Usage.from_input_output(input_tokens, output_tokens)
        written = plain.model_copy(update={"cache_write_tokens": input_tokens})
        return max(self.of(plain), self.of(written))


class ConfiguredPrice(Price):
    """The price in the configuration."""

    def __init__(self, price: PriceConfig) -> None:
        self._input, self._output = Decimal(str(price.input or 0)), Decimal(str(price.output or 0))
        self._read = _dollars(price.cache_read, self._input)
        self._write = _dollars(price.cache_write, self._input)
        self._write_1h = _dollars(price.cache_write_hour, self._write)

    def of(self, usage: Usage) -> Decimal:
        """See `Price.of`."""
        given, read, written, written_1h = _parts(usage)
        total = (given - read - written) * self._input + read * self._read
        total += (written - written_1h) * self._write + written_1h * self._write_1h
        return (total + max(usage.output_tokens, 0) * self._output) / _MILLION

    def worst(self, input_tokens: int, output_tokens: int) -> Decimal:
        """See `Price.worst`."""
        kept = Usage.from_input_output(input_tokens, output_tokens).model_copy(
            update={"cache_write_tokens": input_tokens, "cache_write_1h_tokens": input_tokens}
        )
        return max(super().worst(input_tokens, output_tokens), self.of(kept))


def _dollars(price: float | None, default: Decimal) -> Decimal:
    return default if price is None else Decimal(str(price))


class ListedPrice(Price):
    """A price in the lists of `genai-prices`."""

    def __init__(self, provider: Any, model: Any) -> None:
        self._provider = provider
        self._model = model

    def of(self, usage: Usage) -> Decimal:
        """See `Price.of`."""
        from genai_prices import Usage as Counts  # noqa: PLC0415 - loaded with the lists

        given, read, written, written_1h = _parts(usage)
        whole = {"input_tokens": given, "output_tokens": max(usage.output_tokens, 0)}
        cached = {"cache_read_tokens": read, "cache_write_tokens": written}
        kept = {"cache_write_1h_tokens": written_1h} if written_1h else {}
        for parts in (cached | kept, cached):
            with suppress(LookupError, ValueError):  # the list has no price for a part
                counts = Counts(**whole, **parts)
                return self._model.calc_price(counts, self._provider).total_price
        return self._model.calc_price(Counts(**whole), self._provider).total_price


class PriceWithSearches(Price):
    """The price of a model whose service also charges for its searches.

    Args:
        price: of the tokens.
        model: offers the searches; its configuration may have their price.
    """

    def __init__(self, price: Price, model: ModelConfig) -> None:
        self._price = price
        is_vendor = not model.base_url or is_public(model.base_url)
        known = _A_SEARCH.get(model.provider, Decimal(0)) if is_vendor else Decimal(0)
        configured = model.price.searches
        self._search = known if configured is None else Decimal(str(configured)) / 1000

    def of(self, usage: Usage) -> Decimal:
        """See `Price.of`."""
        reported = usage.raw_usage.get("server_tool_use")
        table = cast("JsonObject", reported) if isinstance(reported, dict) else {}
        count = table.get(_SEARCHES)
        searches = count if isinstance(count, int) and count > 0 else 0
        return self._price.of(usage) + searches * self._search


FREE = ConfiguredPrice(PriceConfig.model_construct(input=0, output=0))
"""The price of a model that runs in this process."""


class Prices(Struct, eq=False):
    """The prices of models, each looked up once; the lists are loaded when first needed."""

    _known: dict[tuple[object, ...], Price | None] = field(
        default_factory=dict[tuple[object, ...], Price | None]
    )

    def at_hand(self, model: ModelConfig) -> Price | None:
        """Return the price of a model if it is known without reading a list."""
        if model.provider_tools:
            plain = model.model_copy(update={"provider_tools": []})
            price = self.at_hand(plain)
            return price and PriceWithSearches(price, model)
        if is_configured(model.price):
            return ConfiguredPrice(model.price)
        if model.provider == "local":
            return FREE
        return self._known.get(_key(model))

    async def of(self, model: ModelConfig) -> Price | None:
        """Return the price of a model; None if it is unknown."""
        known = self.at_hand(model)
        if known is not None or not may_have_price(model):
            return known
        key = _key(model)
        if key not in self._known:
            try:
                self._known[key] = await asyncio.to_thread(_look_up, model)
            except Exception as error:  # noqa: BLE001 - a run needs no price list
                logger.warning("the price lists cannot be read: %s", error)
                self._known[key] = None
        return self.at_hand(model)


def _key(model: ModelConfig) -> tuple[object, ...]:
    return model.provider, model.base_url, model.name


def is_configured(price: PriceConfig) -> bool:
    """Return whether the configuration has the model's price."""
    return price.input is not None or price.output is not None


def may_have_price(model: ModelConfig) -> bool:
    """Return whether a price for this model may be found.

    A server at a private address may use any names for its models, and charges what its owner
    says. At a public one that is not the provider's own, and of a program's own adapter, only names
    that belong to one vendor are taken as that vendor's.
    """
    if is_configured(model.price) or model.provider == "local":
        return True
    if model.base_url and not is_public(model.base_url):
        return False
    return model.provider in _VENDORS or _family(model) is not None


def _look_up(model: ModelConfig) -> Price | None:
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - loads all the lists

    snapshot, vendor = get_snapshot(), _VENDORS.get(model.provider)
    ways: list[tuple[str | None, str | None]] = []
    if vendor and not model.base_url:
        ways.append((vendor, None))
    if model.base_url and is_public(model.base_url):
        ways.append((None, model.base_url))
    if family := _family(model):
        ways.append((family, None))
    for provider_id, url in ways:
        try:
            found = ListedPrice(*snapshot.find_provider_model(model.name, None, provider_id, url))
            found.worst(1, 1)
        except (LookupError, ValueError):  # not listed, or without a price of tokens
            continue
        return found
    return None


def _family(model: ModelConfig) -> str | None:
    if model.provider == "ollama":
        return None
    names = (vendor for vendor, name in _FAMILIES.items() if name.match(model.name.lower()))
    return next(names, None)


def _parts(usage: Usage) -> tuple[int, int, int, int]:
    """Return the tokens of a prompt: all, read from a cache, written to one, written for an hour.

    The last are part of those written.
    """
    given = max(usage.input_tokens, 0)
    read = min(max(usage.cache_read_tokens, 0), given)
    written = min(max(usage.cache_write_tokens, 0), given - read)
    return given, read, written, min(max(usage.cache_write_1h_tokens, 0), written)

"""The interface of providers, and each runtime's registry of them."""

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol, cast, runtime_checkable

from msgspec import Struct

from agent_core.callbacks import callback_problem
from agent_core.config.models import ModelConfig
from agent_core.config.services import COMPATIBLE, provider_named
from agent_core.errors import ConfigError, ErrorCode
from agent_core.loading import without_collection
from agent_core.text import kind_of, nearest
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import ModelEvent, ModelRequest


class ProviderAdapter(Protocol):
    """A model service behind one protocol. Every call streams.

    An adapter may serve many streams at once. The package's adapters may be shared by several event
    loops; your own must support that only if your program does it.

    The engine repeats a call that fails before the first delta with a `retryable` error, according
    to `[model.retry]` and after at least `details["retry_after_s"]` seconds. An adapter that
    repeats calls itself sets `retries_itself = True`. An adapter may have a default policy in
    `retry`, a `RetryConfig`, which applies if none is configured.
    """

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Make one model call.

        Yields `ModelStarted` before anything is sent, then deltas and retries, and exactly one
        `ModelCompleted` or `ModelFailed` last. A failure of the service is an event, never an
        exception; closing the iterator closes the connection at once.

        Raises:
            ConfigError: the environment variable that holds the key is missing.
            ProviderError: `unsupported_capability`, found before anything was sent.
        """
        ...

    async def close(self) -> None:
        """Release connections and memory. Does nothing when called again."""
        ...


ALLOW_REAL_MODELS = "SOONG_AGENT_ALLOW_REAL_MODELS"
"""Environment variable that keeps this process and its children from calling real models."""


def require_real_models(provider: str, model: str) -> None:
    """Refuse to call a real model where tests have forbidden it; see `allow_real_models`.

    An adapter calls it before it sends anything.

    Raises:
        ConfigError: real models must not be called.
    """
    allowed = os.environ.get(ALLOW_REAL_MODELS)
    if allowed and allowed.strip().lower() not in {"1", "true", "yes", "on"}:
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f"the model {model} of provider {provider} is a real one, and these must not be asked "
            f"here: {ALLOW_REAL_MODELS} is {allowed!r}; give the run a scripted model of "
            "agent_core.testing, or allow_real_models(True)",
            details={"provider": provider, "model": model},
        )


ProviderFactory = Callable[[ModelConfig], ProviderAdapter]
"""Creates an adapter from a resolved model configuration."""


class RawExchange(Struct, frozen=True):
    """One attempt of a model call as sent over the wire, without the headers.

    `status` is None when no answer came; `response` is cut at 4 MB.
    """

    provider: str
    model: str
    url: str
    request: bytes
    status: int | None
    response: bytes


RawExchangeSink = Callable[[ModelRequest, RawExchange], Awaitable[None]]
"""Receives the raw traffic of a call, for debugging; it is not redacted yet."""


@runtime_checkable
class Preflight(Protocol):
    """An adapter that can tell before a run begins what would keep it from sending a call."""

    async def require_ready(self) -> None:
        """Return if a call can be sent; sends nothing and opens no connection.

        Raises:
            ConfigError: the variable with the key is not set, or a setting cannot be used.
            ProviderError: `unsupported_capability`: an option has no form in this service.
        """
        ...


@runtime_checkable
class Traceable(Protocol):
    """An adapter that can report its raw traffic."""

    def trace(self, sink: RawExchangeSink | None) -> None:
        """Report every attempt to `sink` once it is over; None stops that.

        A call that is cancelled is not reported.
        """
        ...


_BUILTIN: Mapping[str, str] = MappingProxyType(
    {
        "anthropic": "agent_core.providers.anthropic.AnthropicProvider",
        "bedrock": "agent_core.providers.bedrock.BedrockProvider",
        "gemini": "agent_core.providers.gemini.GeminiProvider",
        "local": "agent_core.providers.local.create",
        "ollama": "agent_core.providers.ollama.OllamaProvider",
        "openai": "agent_core.providers.openai.create",
        "scripted": "agent_core.providers.scripted.create",
        "vertex": "agent_core.providers.vertex.create",
        **dict.fromkeys(COMPATIBLE, "agent_core.providers.openai.create"),
    }
)


ENTRY_POINTS = "soong_agent.providers"
"""Entry point group by which installed distributions add providers."""


class ProviderRegistry:
    """Provider keys and their factories; each runtime has its own registry.

    The built-in adapters are known from the start; their modules, and the HTTP client they need,
    are imported when the first adapter of their kind is created.
    """

    def __init__(self) -> None:
        self._registered: dict[str, ProviderFactory] = {}

    @property
    def keys(self) -> list[str]:
        """Every key that is built in or registered, sorted."""
        return sorted([*_BUILTIN, *self._registered])

    def register(self, key: str, factory: ProviderFactory) -> None:
        """Add a provider.

        Raises:
            ConfigError: the key is empty or taken already (built-in keys are taken), or the factory
                cannot be called.
        """
        if not key.strip():
            raise ConfigError(ErrorCode.CONFIG_ERROR, "a provider key must not be empty")
        if provider_named(key) in _BUILTIN or key in self._registered:
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"the provider key {key!r} is registered already; choose another key",
                details={"provider": key},
            )
        if problem := callback_problem(factory, "config", may_be_class=True):
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"the factory of provider {key!r} {problem}; register a function or a class that"
                " takes a ModelConfig and returns an adapter",
                details={"provider": key},
            )
        self._registered[key] = factory

    def create(self, config: ModelConfig) -> ProviderAdapter:
        """Create an adapter for a resolved model configuration. Nothing is connected yet.

        Raises:
            ConfigError: `config.provider` is neither registered nor installed, the configuration
                does not suit it, its factory fails or returns no adapter, or it is installed and
                real models must not be asked.
        """
        if config.provider in _BUILTIN:
            module, _, name = _BUILTIN[config.provider].rpartition(".")
            with without_collection():
                adapter = import_module(module)
            return getattr(adapter, name)(config)
        details: JsonObject = {"provider": config.provider}
        factory = self._registered.get(config.provider)
        if factory is None:
            factory, details["distribution"] = self._installed(config.provider)
            require_real_models(config.provider, config.name)
        try:
            adapter = factory(config)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"the factory of provider {config.provider!r}{_from(details)} failed: "
                f"{type(error).__name__}: {error}",
                details=details,
            ) from error
        if any(not callable(getattr(adapter, name, None)) for name in ("stream", "close")):
            message = (
                f"the factory of provider {config.provider!r}{_from(details)} returned a "
                f"{type(adapter).__name__}, which is not an adapter: an adapter has the methods "
                "stream and close"
            )
            if inspect.iscoroutine(adapter):
                adapter.close()
                message += "; a factory is a plain function, not an async one"
            raise ConfigError(ErrorCode.CONFIG_ERROR, message, details=details)
        return adapter

    def known(self) -> list[str]:
        """Return the keys of all providers: registered, built in and installed."""
        from importlib.metadata import entry_points  # noqa: PLC0415 - reads all packages

        return sorted({*self.keys, *entry_points(group=ENTRY_POINTS).names})

    def _installed(self, key: str) -> tuple[ProviderFactory, str]:
        """Return an installed distribution's factory for this key, and the distribution.

        Raises:
            ConfigError: no distribution has one, two have one, or it cannot be loaded.
        """
        # Reading the installed packages takes a while, and few programs need it.
        from importlib.metadata import entry_points  # noqa: PLC0415

        points = entry_points(group=ENTRY_POINTS)
        found = {
            (point.value, point.dist.name if point.dist else "?"): point
            for point in points
            if point.name == key
        }
        details: JsonObject = {"provider": key}
        if not found:
            known = self.known()
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"[model] provider = {key!r} is not a known provider{nearest(key, known)};"
                f" choose one of the next line\n{', '.join(known)}"
                " (in code: register_provider before start adds one, and so does an entry point of"
                f" the group {ENTRY_POINTS} in a distribution)",
                details={**details, "known": known},
            )
        if len(found) > 1:
            names = ", ".join(sorted(name for _, name in found))
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"[model] provider = {key!r} is a key of several distributions: {names}; uninstall "
                "all but one",
                details=details,
            )
        [((_, distribution), point)] = found.items()
        details["distribution"] = distribution
        try:
            factory: Any = point.load()
        except Exception as error:
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"provider {key!r}{_from(details)} cannot be loaded ({point.value}): "
                f"{type(error).__name__}: {error}",
                details=details,
            ) from error
        if not callable(factory):
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"provider {key!r}{_from(details)} is {kind_of(factory)} ({point.value}); "
                "an entry point names a function or a class that takes a ModelConfig",
                details=details,
            )
        return cast("ProviderFactory", factory), distribution


def _from(details: Mapping[str, JsonValue]) -> str:
    distribution = details.get("distribution")
    return f" of the distribution {distribution}" if distribution else ""

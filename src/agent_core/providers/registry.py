"""Which provider keys there are, and how an adapter is made for each. One registry per runtime."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.base import ProviderAdapter, ProviderFactory

_BUILTIN: Mapping[str, str] = MappingProxyType(
    {
        "anthropic": "agent_core.providers.anthropic",
        "local": "agent_core.providers.local",
        "ollama": "agent_core.providers.ollama",
        "openai": "agent_core.providers.openai",
        "scripted": "agent_core.providers.scripted",
    }
)


class ProviderRegistry:
    """Provider keys and the factories behind them.

    The built-in adapters are known from the start; their modules, and the HTTP client they need,
    are imported when the first adapter of their kind is made.
    """

    def __init__(self) -> None:
        self._factories: dict[str, ProviderFactory] = {
            key: _on_first_use(module) for key, module in _BUILTIN.items()
        }

    @property
    def keys(self) -> list[str]:
        """Every key a configuration may name, sorted."""
        return sorted(self._factories)

    def register(self, key: str, factory: ProviderFactory) -> None:
        """Add a provider.

        Raises:
            ConfigError: the key is empty or taken already; built-in keys are taken.
        """
        if not key:
            raise ConfigError(ErrorCode.CONFIG_ERROR, "a provider key must not be empty")
        if key in self._factories:
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"the provider key {key!r} is registered already; choose another key",
                details={"provider": key},
            )
        self._factories[key] = factory

    def create(self, config: ModelConfig) -> ProviderAdapter:
        """Make an adapter for a resolved model configuration. Nothing is connected yet.

        Raises:
            ConfigError: nobody registered `config.provider`, or the configuration does not suit it.
        """
        factory = self._factories.get(config.provider)
        if factory is None:
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"[model] provider = {config.provider!r} is not a known provider; "
                f"known: {', '.join(self.keys)}",
                details={"provider": config.provider, "known": self.keys},
            )
        return factory(config)


def _on_first_use(module: str) -> ProviderFactory:
    def create(config: ModelConfig) -> ProviderAdapter:
        factory: ProviderFactory = import_module(module).create
        return factory(config)

    return create

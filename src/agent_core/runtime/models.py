"""The models a runtime talks to: one adapter for each configuration, shared by all runs."""

from agent_core.config.load import Profile, resolve_model
from agent_core.config.models import Config, ModelConfig
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.registry import ProviderRegistry
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.clean_requests import CleanRequests
from agent_core.runtime.traces import Traces


class Models:
    """Resolves model configurations and keeps their adapters, with their connections, open."""

    def __init__(
        self,
        registry: ProviderRegistry,
        config: Config,
        *,
        redactor: Redactor,
        traces: Traces | None = None,
    ) -> None:
        self._registry = registry
        self._base = resolve_model(config)
        self._redactor = redactor
        self._traces = traces
        self._config = config
        self._adapters: dict[str, ProviderAdapter] = {}

    def resolve(self, *profiles: Profile) -> ModelConfig:
        """The base model with these profiles laid over it.

        Raises:
            ConfigError: a profile has an unknown name, or does not fit.
        """
        if not any(profiles):
            return self._base
        return resolve_model(self._config, *profiles)

    def adapter(self, model: ModelConfig) -> ProviderAdapter:
        """The adapter for a resolved model; made once.

        Raises:
            ConfigError: nobody registered its provider, or the configuration does not suit it.
        """
        key = model.model_dump_json()
        if key not in self._adapters:
            adapter = self._registry.create(model)
            if self._traces:
                self._traces.watch(adapter)
            self._adapters[key] = CleanRequests(adapter, self._redactor)
        return self._adapters[key]

    async def close(self) -> None:
        """Close every adapter. Later runs would get new ones."""
        adapters, self._adapters = list(self._adapters.values()), {}
        for adapter in adapters:
            await adapter.close()

"""Models a runtime talks to: shared adapters, requests without secrets, debug traces."""

import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set as AbstractSet
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import orjson

from agent_core.artifacts.store import ArtifactStore
from agent_core.budgets.meter import Budgets, Meter, MeteredAdapter, price_warning
from agent_core.budgets.prices import Prices, may_have_price
from agent_core.config.load import Profile, resolve_model
from agent_core.config.models import Config, ModelConfig, as_model
from agent_core.context.messages import TokenScale
from agent_core.context.system_prompt import system_block
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, ProviderError, StorageError
from agent_core.loop import require_whole, stream_reply
from agent_core.providers.base import (
    ProviderAdapter,
    ProviderRegistry,
    RawExchange,
    Traceable,
)
from agent_core.providers.fallback import FallbackProvider
from agent_core.providers.redacting import RedactingAdapter
from agent_core.providers.retrying import with_retries
from agent_core.providers.tally import CallTally
from agent_core.providers.windows import ServerWindows
from agent_core.redaction.redactor import Redactor
from agent_core.storage.store import SessionStore
from agent_core.types import (
    Budget,
    ModelCompleted,
    ModelMessage,
    ModelRequest,
    Role,
    RunIdentity,
    StopReason,
    TextBlock,
    Usage,
)
from agent_core.types.budget import SharedBudget
from agent_core.types.content import text_in
from agent_core.types.options import provider_tool_names

if TYPE_CHECKING:
    from agent_core.telemetry.spans import Telemetry

logger = logging.getLogger(__name__)

_Ready = Callable[[], Awaitable[None]]
"""See `Preflight.require_ready`."""

NO_CHANGES: Mapping[str, Any] = {}
"""For a run that changes no setting of its model."""


class Models:
    """Resolves model configurations and keeps their adapters and connections open.

    Attributes:
        scale: known real token counts of models, compared with estimates.
        prices: prices of models.
        budgets: budgets that pay for calls.
        is_limited: whether the configuration limits sessions.
    """

    def __init__(
        self,
        registry: ProviderRegistry,
        config: Config,
        *,
        store: SessionStore,
        redactor: Redactor,
        traces: "DebugTraces | None" = None,
        telemetry: "Telemetry | None" = None,
    ) -> None:
        self._registry = registry
        self._base = resolve_model(config)
        self._base_key = _key_of(self._base)
        self._given_adapter = self._base.adapter
        self._redactor = redactor
        self._traces = traces
        self._telemetry = telemetry
        self._config = config
        self._sized: ModelConfig | None = None  # the last one whose window was known
        self.scale = TokenScale()
        self.prices = Prices()
        self.budgets = Budgets(store, config.budget, scale=self.scale.of)
        self.is_limited = config.budget.is_limited
        self._windows = ServerWindows(registry.create)
        self._adapters: dict[str, RedactingAdapter] = {}
        self._priced: dict[str, ProviderAdapter] = {}

    def resolve(
        self,
        *profiles: Profile,
        instead: str | ModelConfig | ProviderAdapter | None = None,
        provider_tools: Sequence[str] | None = None,
    ) -> ModelConfig:
        """Return the base model, or the run's model `instead`, with these profiles applied to it.

        `provider_tools` are the run's own choice, if any.

        Raises:
            ConfigError: a profile has an unknown name, or does not fit.
        """
        base: ModelConfig = self._base
        if isinstance(instead, str):
            base = resolve_model(self._config, instead)
        elif instead is not None:
            base = as_model(instead).with_retry_of(self._base)
        if any(profiles):
            base = resolve_model(self._config.model_copy(update={"model": base}), *profiles)
        if provider_tools is not None:
            base = base.model_copy(update={"provider_tools": provider_tool_names(provider_tools)})
        return base if base is self._base else self._windows.known(base)

    async def sized(self, model: ModelConfig) -> ModelConfig:
        """Return the model with its window: asked of its server where the settings have none."""
        if model is self._sized:
            return model
        if not model.is_window_assumed:
            self._sized = model
            return model
        sized = await self._windows.ask(model)
        if model is self._base and sized is not model:
            self._base, self._base_key = sized, _key_of(sized)
        return sized

    def meter(
        self,
        run: RunIdentity,
        budget: Budget | SharedBudget | None,
        *,
        parent: Meter | None = None,
        payer: Meter | None = None,
    ) -> Meter | None:
        """Return the meter that pays for a run's calls; None if nothing limits its spending.

        `parent` and `payer` are as in `Budgets.of_run`.
        """
        if budget is None and not self.is_limited and parent is None and payer is None:
            return None
        return self.budgets.of_run(run, budget, parent=parent, payer=payer)

    def open(
        self,
        model: ModelConfig,
        on_switch: Callable[[ModelConfig], bool] = lambda _: True,
        *,
        meter: Meter | None = None,
        is_counted: bool = False,
        changes: Mapping[str, Any] = NO_CHANGES,
    ) -> ProviderAdapter:
        """Return the adapter for one run with this model; it may fall back to other models.

        Args:
            model: the resolved model.
            on_switch: called with the model used from now on; returns whether the current request
                fits it.
            meter: pays for the calls.
            is_counted: count the cost of calls even without a known price, because telemetry reads
                it or guards withhold events.
            changes: settings of the run that also apply to other models.

        Raises:
            ConfigError: a provider is not registered, or a configuration does not suit it.
        """
        first = self._adapter_for_run(model, meter, is_counted=is_counted)
        if not (model.fallbacks and self._config.model_fallbacks):
            return first
        others = [
            (
                other.model_copy(
                    update={**changes, "provider_tools": self._common_tools(model, other)}
                ),
                self._adapter_for_run(other, meter, is_counted=is_counted),
            )
            for other in self._config.model_fallbacks
            if (other.provider, other.name, other.base_url)
            != (model.provider, model.name, model.base_url)
        ]
        return FallbackProvider([(model, first), *others], on_switch) if others else first

    async def price_warnings(
        self, model: ModelConfig, budget: Budget | SharedBudget | None
    ) -> Sequence[str]:
        """Return the warning that a budget in US dollars does not limit a model's calls, if so."""
        if not self.budgets.warns_of_price(budget) or await self.prices.of(model) is not None:
            return ()
        self.budgets.tell_of_price(model.full_name, of_handle=True)
        return (price_warning(model.full_name),)

    async def require_ready(self, model: ModelConfig) -> None:
        """Return if a run with this model can make a call, as far as this is known without one.

        Raises:
            ConfigError: a provider is not registered, the key of the model is not set, or its
                configuration cannot be used.
        """
        adapter = self._bare_adapter(model)
        # A check of the whole protocol would take a large part of what a start takes.
        require_ready: _Ready | None = getattr(adapter, "require_ready", None)
        if require_ready is not None:
            try:
                await require_ready()
            except ProviderError as error:  # caused by the settings, not by a call
                raise ConfigError(error.code, error.message, details=error.details) from error
        if model.provider_tools:
            _require_tools(model, adapter)

    def provider_tools(self, model: ModelConfig) -> AbstractSet[str]:
        """Return the names of the tools that the service of a model runs itself.

        Raises:
            ConfigError: its provider is not registered, or the configuration does not suit it.
        """
        return _provider_tools(self._bare_adapter(model)).keys()

    def _common_tools(self, model: ModelConfig, other: ModelConfig) -> list[str]:
        """Return the provider tools of a model that the service of another one has, too."""
        if not model.provider_tools:
            return []
        offered = self.provider_tools(other)
        return [name for name in model.provider_tools if name in offered]

    def _bare_adapter(self, model: ModelConfig) -> object:
        """Return the adapter of a resolved model, without what is around it."""
        if model.fallbacks and self._config.model_fallbacks:
            self.open(model)
        brought = self._given_adapter if model is self._base else model.adapter
        return self._shared_adapter(model)[1].adapter if brought is None else brought

    def _shared_adapter(self, model: ModelConfig) -> tuple[str, RedactingAdapter]:
        """Return the adapter that all runs with a resolved model share, and its key.

        Raises:
            ConfigError: its provider is not registered, or the configuration does not suit it.
        """
        if model is self._base:
            key = self._base_key
        else:
            source = model.key_source
            key = _key_of(model) + (f" {id(source)}" if source else "")
        adapter = self._adapters.get(key)
        if adapter is None:
            made = self._registry.create(model)
            if self._traces and isinstance(made, Traceable):
                made.trace(self._traces.keep_exchange)
            adapter = self._adapters[key] = RedactingAdapter(made, self._redactor)
            self._priced[key] = self._price(adapter, model, None)
        return key, adapter

    def _adapter_for_run(
        self, model: ModelConfig, meter: Meter | None, *, is_counted: bool = False
    ) -> ProviderAdapter:
        """Return the adapter of a resolved model, created once; the program's own is never closed.

        Raises:
            ConfigError: its provider is not registered, or the configuration does not suit it.
        """
        brought = self._given_adapter if model is self._base else model.adapter
        if brought is not None:
            adapter = RedactingAdapter(brought, self._redactor)
            return self._price(adapter, model, meter, is_counted=is_counted)
        key, adapter = self._shared_adapter(model)
        if meter is None and not is_counted:
            return self._priced[key]
        return self._price(adapter, model, meter, is_counted=is_counted)

    def _price(
        self,
        redacting: RedactingAdapter,
        model: ModelConfig,
        meter: Meter | None,
        *,
        is_counted: bool = False,
    ) -> ProviderAdapter:
        """Wrap an adapter for every call: retries inside, the price outside."""
        adapter = with_retries(redacting, model, maker=redacting.adapter)
        if meter is None and not is_counted and not may_have_price(model):
            return adapter
        estimate = self.budgets.estimate
        return MeteredAdapter(adapter, model, prices=self.prices, estimate=estimate, meter=meter)

    def open_beside(
        self, model: ModelConfig, *, session_id: str, meter: Meter | None
    ) -> ProviderAdapter:
        """Return the adapter for a call outside of any run; see `open`.

        Raises:
            ConfigError: as for `open`.
        """
        opened = self.open(model, meter=meter, is_counted=self._telemetry is not None)
        if self._telemetry is None:
            return opened
        return self._telemetry.provider(
            opened, model, self._redactor.payload, session_id=session_id
        )

    async def close(self) -> None:
        """Close every adapter. Later runs would get new ones."""
        await self._windows.close()
        adapters, self._adapters = list(self._adapters.values()), {}
        self._priced = {}
        for adapter in adapters:
            await adapter.close()


def _require_tools(model: ModelConfig, adapter: object) -> None:
    """Check that the service of a model has the tools that it is to run itself.

    Raises:
        ConfigError: `unsupported_capability`, naming the tools.
    """
    offered = _provider_tools(adapter)
    missing = [name for name in model.provider_tools if name not in offered]
    if missing:
        has = f"it has {', '.join(offered)}" if offered else "it has none that is known here"
        raise ConfigError(
            ErrorCode.UNSUPPORTED_CAPABILITY,
            f"provider_tools names {', '.join(missing)}, which the service of {model.full_name}"
            f" does not run itself: {has}. [tools.web] offers pages of the web with any model",
            details={
                "provider": model.provider,
                "model": model.name,
                "capability": "provider_tools",
                "missing": missing,
            },
        )


def _provider_tools(adapter: object) -> Mapping[str, object]:
    """Return the tools that the service of an adapter runs itself, by name."""
    return getattr(adapter, "provider_tools", {})


class DebugTraces:
    """Keeps the records of `debug=True` as redacted artifacts: provider traffic, tracebacks.

    A trace that cannot be stored is logged; it never fails a run.
    """

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts

    async def keep_failure(self, run: RunIdentity, error: BaseException) -> None:
        """Keep the traceback of an unexpected failure."""
        text = "".join(traceback.format_exception(error))
        owner = {"session_id": run.session_id, "agent_id": run.agent_id, "run_id": run.run_id}
        await self._put(text.encode(errors="replace"), owner, "traceback", "traceback.txt")

    async def keep_exchange(self, request: ModelRequest, exchange: RawExchange) -> None:
        """Keep one attempt of a provider call."""
        head = {
            "provider": exchange.provider,
            "model": exchange.model,
            "url": exchange.url,
            "status": exchange.status,
        }
        parts = (orjson.dumps(head), b"", exchange.request, b"", exchange.response)
        await self._put(b"\n".join(parts), request.metadata, "raw_provider", "exchange.txt")

    async def _put(self, data: bytes, owner: Mapping[str, str], kind: str, filename: str) -> None:
        if "session_id" not in owner:
            return  # a call outside of any session
        try:
            await self._artifacts.put(
                data,
                session_id=owner["session_id"],
                agent_id=owner.get("agent_id"),
                run_id=owner.get("run_id"),
                kind=kind,
                filename=filename,
                mime_type="text/plain",
            )
        except StorageError as error:
            logger.warning("a %s trace could not be kept: %s", kind, error)


class OneShotModelCall:
    """Asks one model for one purpose, outside of any run, and counts its usage.

    Args:
        models: resolves the profile and provides the adapter.
        profile: selects the model.
        session_id: the session it is asked for.
        purpose: purpose of the call; also names the system block.
        instead: the model to ask in place of the configured one, if the run has its own.
        running: the meter of the run that waits for the answer, if any.

    Raises:
        ConfigError: the profile cannot be used.
    """

    def __init__(
        self,
        models: Models,
        profile: Profile,
        *,
        session_id: str,
        purpose: str,
        running: Meter | None = None,
        instead: str | ModelConfig | None = None,
    ) -> None:
        self.usage = Usage()
        self.model = models.resolve(profile, instead=instead)
        self._models = models
        self._metadata = {"session_id": session_id, "purpose": purpose}
        self._purpose = purpose
        self._meter = models.budgets.of_purpose(session_id, purpose, running)

    async def __call__(self, system: str, prompt: str, *, max_tokens: int) -> str:
        """Return the answer's text.

        Raises:
            ProviderError: there is no answer, or it was cut off.
            ConfigError: the model cannot be used.
        """
        model = self.model
        request = ModelRequest(
            model=model.name,
            system=[system_block(self._purpose, "asset", system)],
            messages=[ModelMessage(role=Role.USER, content=[TextBlock(text=prompt)])],
            temperature=model.temperature,
            max_output_tokens=min(max_tokens, model.max_output_tokens, model.window // 4),
            metadata=self._metadata,
        )
        tally = CallTally(lambda: self._models.budgets.estimate(request))
        try:
            session_id = self._metadata["session_id"]
            opened = self._models.open_beside(model, session_id=session_id, meter=self._meter)
            reply: ModelCompleted | None = None
            async with aclosing(stream_reply(opened, request, tally)) as events:
                async for event in events:
                    reply = event if isinstance(event, ModelCompleted) else reply
            completed = require_whole(reply)
        except AgentCoreError:
            raise
        except Exception as error:  # a bug in an adapter must not break work beside a run
            message = f"the model's adapter failed: {type(error).__name__}: {error}"
            raise ProviderError(ErrorCode.PROVIDER_ERROR, message) from error
        finally:
            if (spent := tally.take_spent()) is not None:
                self.usage = self.usage.plus(spent)
        if completed.stop_reason is StopReason.MAX_TOKENS:
            message = "the answer was cut off by the output limit"
            raise ProviderError(ErrorCode.MAX_OUTPUT_TOKENS, message)
        return text_in(completed.content)

    def cost(self) -> dict[str, Any]:
        """Return the usage so far, for an event."""
        return self.usage.model_dump(exclude={"raw_usage"})


def _key_of(model: ModelConfig) -> str:
    """Return a text that models with the same settings share; it needs no serializer of theirs."""
    return repr(model.__dict__)

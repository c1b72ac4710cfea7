"""The parts that sessions share: a bundle, created by `AgentBuilder`."""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import timedelta

from agcore.agent.error import AgentConfigError
from agcore.llm import CompactConfig, CycleConfig, HookExecutor, LlmProvider, SecretSource
from agcore.memory import MemoryRetriever, MemoryStore
from agcore.tools import ToolRegistry
from agent_core.api.arguments import checks_arguments
from agent_core.config.models import BudgetConfig
from agent_core.types import Budget

BUILDER = object()
"""Passed only by `AgentBuilder`, which validates the parts before it builds a bundle."""


@checks_arguments(constructor=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Limits and settings of every session.

    Attributes:
        max_turns: how many turns a session may take.
        max_tool_turns: how many rounds of tool calls one turn may take.
        session_ttl: how long after its start a session accepts new turns; None is forever.
        compact_config: shortens histories that exceed a limit; None never shortens them.
        budget: the limit of all turns of a session together.
        cycle: settings of the model calls; its `max_tool_turns` is not used.

    Raises:
        AgentError: `Config`; a limit is negative.
    """

    max_turns: int = 50
    max_tool_turns: int = 10
    session_ttl: timedelta | None = None
    compact_config: CompactConfig | None = None
    budget: Budget | BudgetConfig | None = None
    cycle: CycleConfig = field(default_factory=CycleConfig)

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tool_turns"):
            if getattr(self, name) < 0:
                raise AgentConfigError(f"{name} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeBundle:
    """The parts that sessions share. Only `AgentBuilder.build` creates one.

    Attributes:
        provider: the model.
        tool_registry: the tools, including `retrieve` if there is a retriever.
        hook_executor: the application's hooks.
        memory_store: for the application's own use.
        retriever: searches the knowledge pages.
        session_memory_backend: where session memories are kept; None keeps each in its session.
        config: limits and settings.
        secrets: values to redact from models, stores and events, by the name that replaces them;
            without the provider's own.

    Raises:
        AgentError: `Config`; it was not created by the builder.
    """

    provider: LlmProvider
    tool_registry: ToolRegistry
    hook_executor: HookExecutor
    memory_store: MemoryStore | None
    retriever: MemoryRetriever | None
    session_memory_backend: MemoryStore | None
    config: AgentConfig
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    made_by: InitVar[object] = None

    def __post_init__(self, made_by: object) -> None:
        if made_by is not BUILDER:
            raise AgentConfigError("a RuntimeBundle is made with AgentBuilder().….build()")

    def known_secrets(self) -> list[Mapping[str, str]]:
        """Return all secrets, including the current ones of the provider."""
        provider = self.provider
        own: Mapping[str, str] = {}
        if isinstance(provider, SecretSource):
            own = provider.secrets()
        return [secrets for secrets in (self.secrets, own) if secrets]

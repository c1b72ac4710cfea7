"""Everything a session needs and shares with others, packed by the builder."""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import timedelta

from agcore.agent.errors import AgentConfigError
from agcore.llm import CompactConfig, CycleConfig, HoldsSecrets, HookExecutor, LlmProvider
from agcore.memory import MemoryRetriever, MemoryStore
from agcore.tools import ToolRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Limits and settings of every session.

    Attributes:
        max_turns: how many turns a session may take.
        max_tool_turns: how many rounds of tool calls one turn may take.
        session_ttl: how long after its start a session takes new turns; None is for ever.
        compact_config: makes histories shorter that outgrow a budget; None leaves them alone.
        cycle: settings of the model calls; its `max_tool_turns` is not used.

    Raises:
        AgentError: `Config`; a limit is negative.
    """

    max_turns: int = 50
    max_tool_turns: int = 10
    session_ttl: timedelta | None = None
    compact_config: CompactConfig | None = None
    cycle: CycleConfig = field(default_factory=CycleConfig)

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tool_turns"):
            if getattr(self, name) < 0:
                raise AgentConfigError(f"{name} must not be negative")


BUILDER = object()
"""What a bundle is made with: `AgentBuilder` checks first what a bundle takes for granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeBundle:
    """What sessions share. Made by `AgentBuilder.build`, and only there.

    Attributes:
        provider: the model.
        tool_registry: the tools, `retrieve` included if there is a retriever.
        hook_executor: the application's hooks.
        memory_store: for whatever the application wants to keep.
        retriever: what is known.
        session_memory_backend: where session memories are kept; None keeps each in its session.
        config: limits and settings.
        secrets: what no model, store or event may get, by the name that is shown instead; the
            provider's own are not among them.

    Raises:
        AgentError: `Config`; it was not made by the builder.
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
        """All of them, with those of the provider as they are now."""
        provider = self.provider
        own = [provider.secrets()] if isinstance(provider, HoldsSecrets) else []
        return [self.secrets, *own]

"""The only way to a bundle: what is required is checked, what follows from it is added."""

from collections.abc import Mapping
from typing import Self, TypeVar

from agcore.agent.bundle import BUILDER, AgentConfig, RuntimeBundle
from agcore.agent.errors import AgentConfigError
from agcore.agent.tools import RetrieveTool
from agcore.llm import HookExecutor, LlmProvider
from agcore.memory import MemoryRetriever, MemoryStore
from agcore.tools import ToolError, ToolRegistry

T = TypeVar("T")


class AgentBuilder:
    """Collects the parts of a `RuntimeBundle`."""

    def __init__(self) -> None:
        self._provider: LlmProvider | None = None
        self._tool_registry: ToolRegistry | None = None
        self._hook_executor: HookExecutor | None = None
        self._memory_store: MemoryStore | None = None
        self._retriever: MemoryRetriever | None = None
        self._session_memory_backend: MemoryStore | None = None
        self._config: AgentConfig | None = None
        self._secrets: dict[str, str] = {}

    def provider(self, provider: LlmProvider) -> Self:
        """The model; required."""
        self._provider = provider
        return self

    def tool_registry(self, registry: ToolRegistry) -> Self:
        """The tools; required, and may be empty. What is registered later is not seen."""
        self._tool_registry = registry
        return self

    def hook_executor(self, hooks: HookExecutor) -> Self:
        """The hooks; required, and may be empty."""
        self._hook_executor = hooks
        return self

    def memory_store(self, store: MemoryStore) -> Self:
        """A store for whatever the application wants to keep."""
        self._memory_store = store
        return self

    def retriever(self, retriever: MemoryRetriever) -> Self:
        """What is known: the model gets the tool `retrieve`."""
        self._retriever = retriever
        return self

    def session_memory_backend(self, store: MemoryStore) -> Self:
        """Where session memories are kept; in each session's own memory by default."""
        self._session_memory_backend = store
        return self

    def config(self, config: AgentConfig) -> Self:
        """Limits and settings."""
        self._config = config
        return self

    def secrets(self, secrets: Mapping[str, str]) -> Self:
        """Values that no model, store or event may get, by the name that is shown instead.

        The key of an `AdapterProvider` is known without being named, and what an `McpClient` gives
        its server never leaves that client.
        """
        self._secrets |= secrets
        return self

    def build(self) -> RuntimeBundle:
        """Pack everything.

        Raises:
            AgentError: `Config`; a required part is missing, or a tool of the application is
                called `retrieve` although there is a retriever.
        """
        return RuntimeBundle(
            provider=_required(self._provider, "provider"),
            tool_registry=self._tools(_required(self._tool_registry, "tool_registry")),
            hook_executor=_required(self._hook_executor, "hook_executor"),
            memory_store=self._memory_store,
            retriever=self._retriever,
            session_memory_backend=self._session_memory_backend,
            config=self._config or AgentConfig(),
            secrets=dict(self._secrets),
            made_by=BUILDER,
        )

    def _tools(self, registry: ToolRegistry) -> ToolRegistry:
        added = [RetrieveTool(self._retriever)] if self._retriever is not None else []
        try:
            return registry.plus(added)
        except ToolError as error:
            raise AgentConfigError(error.message) from error


def _required(part: T | None, name: str) -> T:
    if part is None:
        raise AgentConfigError(f"missing {name}")
    return part

"""Makes the context of a run out of the runtime's long-lived parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_core.config.models import ModelConfig
from agent_core.config.paths import Setup
from agent_core.context.blocks import runtime_block, static_blocks
from agent_core.context.composer import Composer
from agent_core.context.tokens import TokenScale
from agent_core.events import Journal
from agent_core.loop import RunContext, RunLimits
from agent_core.permissions.guard import PermissionCallback, PermissionGuard
from agent_core.providers.registry import ProviderRegistry
from agent_core.runtime.models import Models
from agent_core.runtime.scheduler import Run
from agent_core.tools.limits import ResultKeeper
from agent_core.tools.registry import Toolbox, ToolRegistry, overridden
from agent_core.types import RunIdentity, ToolCall, ToolDefinition, ToolResult, utc_now


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the caller brings along; the rest is built from the configuration."""

    project_dir: str | Path | None = None
    config_path: str | Path | None = None
    home_dir: str | Path | None = None
    session_db_path: str | Path | None = None
    permission_callback: PermissionCallback | None = None
    providers: ProviderRegistry = field(default_factory=ProviderRegistry)
    tools: ToolRegistry = field(default_factory=ToolRegistry)
    debug: bool = False


class NoCompaction:
    """For a runtime that cannot summarise: what does not fit is left out instead."""

    async def recover(self, journal: Journal) -> bool:
        """Nothing was made shorter."""
        return False


class NoHooks:
    """For users without hooks."""

    async def session_start(self) -> None: ...

    async def user_prompt(self, text: str) -> None: ...

    async def before_tool(self, call: ToolCall, definition: ToolDefinition) -> None: ...

    async def after_tool(self, call: ToolCall, result: ToolResult) -> None: ...

    async def before_stop(self) -> str | None:
        return None


class RunFactory:
    """Knows what a run of each role is made of."""

    def __init__(
        self,
        setup: Setup,
        *,
        models: Models,
        guard: PermissionGuard,
        results: ResultKeeper,
        registries: Sequence[ToolRegistry],
    ) -> None:
        self._setup = setup
        self._models = models
        self._guard = guard
        self._results = results
        self._registries = registries
        self._scale = TokenScale()
        self._limits = RunLimits(max_turns=setup.config.runtime.max_turns)

    async def context(self, run: Run) -> RunContext:
        """Everything this run needs.

        Raises:
            AgentCoreError: it cannot be had; the run fails with this.
        """
        model = self._models.resolve()
        toolbox = self._toolbox()
        return RunContext(
            run=run.identity,
            journal=run.journal,
            provider=self._models.adapter(model),
            composer=self._composer(run.identity, model, toolbox),
            history=run.history,
            compactor=NoCompaction(),
            toolbox=toolbox,
            guard=self._guard,
            hooks=NoHooks(),
            results=self._results,
            project_dir=self._setup.project,
            limits=self._limits,
        )

    def definitions(self) -> dict[str, ToolDefinition]:
        """Every tool there is now, by name."""
        return {tool.name: tool.definition for registry in self._registries for tool in registry}

    def _toolbox(self) -> Toolbox:
        """The effective tools: registered, not disabled, as the configuration wants them."""
        config = self._setup.config.tools
        tools = (tool for registry in self._registries for tool in registry)
        return Toolbox(
            overridden(tool, config.overrides[tool.name]) if tool.name in config.overrides else tool
            for tool in tools
            if tool.name not in config.disabled and not self._is_disabled(tool.name)
        )

    def _is_disabled(self, name: str) -> bool:
        override = self._setup.config.tools.overrides.get(name)
        return override is not None and override.disabled

    def _composer(self, run: RunIdentity, model: ModelConfig, toolbox: Toolbox) -> Composer:
        return Composer(
            model=model,
            context=self._setup.config.context,
            static=static_blocks(run.role, toolbox.names),
            dynamic=[runtime_block(run.role, self._setup.project, today=utc_now().date())],
            scale=self._scale,
        )

"""What a caller brings to a runtime; all the rest is built from the configuration."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.providers.registry import ProviderRegistry
from agent_core.tools.registry import ToolRegistry
from agent_core.types import AgentDefinition

if TYPE_CHECKING:
    from agent_core.permissions import PermissionCallback


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """The arguments of `AgentRuntime`, as they were given."""

    project_dir: str | Path | None = None
    config_path: str | Path | None = None
    home_dir: str | Path | None = None
    session_db_path: str | Path | None = None
    permission_callback: "PermissionCallback | None" = None
    providers: ProviderRegistry = field(default_factory=ProviderRegistry)
    tools: ToolRegistry = field(default_factory=ToolRegistry)
    definitions: list[AgentDefinition] = field(default_factory=list[AgentDefinition])
    debug: bool = False

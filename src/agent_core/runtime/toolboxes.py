"""Which tools a run has: all there are, less what its role and the user's settings exclude."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from agent_core.config.paths import Setup
from agent_core.context.instructions import InstructionCatalog
from agent_core.context.loaded import InstructionRegister
from agent_core.context.plans import plan_template_tool
from agent_core.context.skills import SkillCatalog, load_skill_tool
from agent_core.errors import ConfigError, ErrorCode
from agent_core.events import Journal
from agent_core.tools.base import Tool
from agent_core.tools.code import code_tools
from agent_core.tools.code.read import read_file
from agent_core.tools.registry import Toolbox, ToolRegistry, overridden
from agent_core.tools.workspace import Workspace
from agent_core.types import AgentRole, EventLevel, EventType, ToolDefinition

if TYPE_CHECKING:
    from agent_core.mcp import McpTools, ServerFailure

_LEADING = {AgentRole.MAIN, AgentRole.ORCHESTRATOR}


class Toolboxes:
    """Fills the toolbox of each run.

    Args:
        setup: for the workspace, the disabled tools and the overrides.
        registered: the caller's own tools; looked at again for every run.
        mcp: the user's servers, if there are any.
    """

    def __init__(
        self, setup: Setup, registered: ToolRegistry, mcp: "McpTools | None" = None
    ) -> None:
        self._setup = setup
        self._registered = registered
        self._mcp = mcp
        self._workspace = Workspace.of(setup)
        self._code = code_tools(self._workspace)

    def check_names(self) -> None:
        """Make sure that no tool of the caller hides a built-in one.

        Raises:
            ConfigError: `validation_error`, naming the tool.
        """
        taken = {tool.name for tool in self._code}
        for tool in self._registered:
            if tool.name in taken:
                message = f"{tool.name} is a built-in tool; give yours another name"
                raise ConfigError(ErrorCode.VALIDATION_ERROR, message)

    async def fill(
        self,
        role: AgentRole,
        journal: Journal,
        *,
        instructions: InstructionCatalog,
        skills: SkillCatalog,
    ) -> Toolbox:
        """The effective tools of one run: the hard boundary of what it can see and do.

        Servers that cannot be reached are noted, and their tools are absent.
        """
        register = InstructionRegister(instructions, journal)
        reading = read_file(replace(self._workspace, register=register))
        own = [load_skill_tool(skills, journal)]
        if role in _LEADING:
            own.append(plan_template_tool(self._setup.plans_dir, self._setup.project))
        code = (reading if tool.name == reading.name else tool for tool in self._code)
        served = await self._served(journal)
        return Toolbox(self._wanted([*code, *own, *self._registered, *served]))

    def definitions(self) -> dict[str, ToolDefinition]:
        """Every tool there is now, by name, for people who look at past requests."""
        tools = [*self._code, *self._registered]
        return {tool.name: tool.definition for tool in tools}

    async def _served(self, journal: Journal) -> list[Tool]:
        async def note(failure: "ServerFailure") -> None:
            payload = {"server_id": failure.server_id, "message": failure.message}
            journal.note(EventType.MCP_SERVER_FAILED, payload, level=EventLevel.WARNING)

        return await self._mcp.tools(on_failure=note) if self._mcp else []

    def _wanted(self, tools: Iterable[Tool]) -> Iterator[Tool]:
        """The tools the user has not disabled, with the permissions and tags they chose."""
        config = self._setup.config.tools
        for tool in tools:
            override = config.overrides.get(tool.name)
            if tool.name in config.disabled or (override and override.disabled):
                continue
            yield overridden(tool, override) if override else tool

"""Which tools a run has: all there are, less what its role and the user's settings exclude."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

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
from agent_core.types import AgentRole, ToolDefinition

_LEADING = {AgentRole.MAIN, AgentRole.ORCHESTRATOR}


class Toolboxes:
    """Fills the toolbox of each run.

    Args:
        setup: for the workspace, the disabled tools and the overrides.
        registered: the caller's own tools; looked at again for every run.
    """

    def __init__(self, setup: Setup, registered: ToolRegistry) -> None:
        self._setup = setup
        self._registered = registered
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

    def fill(
        self,
        role: AgentRole,
        journal: Journal,
        *,
        instructions: InstructionCatalog,
        skills: SkillCatalog,
    ) -> Toolbox:
        """The effective tools of one run: the hard boundary of what it can see and do."""
        register = InstructionRegister(instructions, journal)
        reading = read_file(replace(self._workspace, register=register))
        own = [load_skill_tool(skills, journal)]
        if role in _LEADING:
            own.append(plan_template_tool(self._setup.plans_dir, self._setup.project))
        code = (reading if tool.name == reading.name else tool for tool in self._code)
        return Toolbox(self._wanted([*code, *own, *self._registered]))

    def definitions(self) -> dict[str, ToolDefinition]:
        """Every tool there is now, by name, for people who look at past requests."""
        tools = [*self._code, *self._registered]
        return {tool.name: tool.definition for tool in tools}

    def _wanted(self, tools: Iterable[Tool]) -> Iterator[Tool]:
        """The tools the user has not disabled, with the permissions and tags they chose."""
        config = self._setup.config.tools
        for tool in tools:
            override = config.overrides.get(tool.name)
            if tool.name in config.disabled or (override and override.disabled):
                continue
            yield overridden(tool, override) if override else tool

"""Selects the tools of a run: all tools, minus those its role and the user's settings exclude."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent_core.agents.roles import BUILT_IN_TOOLS, ROLE_TOOLS, does_work, select_tools
from agent_core.agents.spawner import RunSpec
from agent_core.artifacts.store import ArtifactStore
from agent_core.config.paths import Setup
from agent_core.context.instructions import InstructionCatalog, LoadedInstructions
from agent_core.context.skills import (
    LOAD_SKILL,
    PLAN_TEMPLATE,
    SkillCatalog,
    load_skill_tool,
    plan_template_tool,
)
from agent_core.errors import AgentCoreError, ArgumentError, ErrorCode, ToolError
from agent_core.events import Journal
from agent_core.loop.option_checks import malformed_option, tool_name
from agent_core.loop.options import EVERY_TOOL, NO_OPTIONS, RunOptions
from agent_core.process import Launcher
from agent_core.providers.estimates import estimate_tools
from agent_core.text import nearest, shorten_name, shown_id
from agent_core.tools.base import Tool
from agent_core.tools.code import code_tool, code_tools
from agent_core.tools.deps import check_deps
from agent_core.tools.registry import (
    TakenNames,
    Toolbox,
    ToolRegistry,
    apply_override,
    taken_message,
)
from agent_core.tools.toolsets import Toolset
from agent_core.tools.workspace import Workspace
from agent_core.types import AgentRole, EventLevel, EventType, ToolDefinition
from agent_core.types.tools import CODE_TOOLS

if TYPE_CHECKING:
    from agent_core.loop.options import Agent
    from agent_core.mcp import McpTools, ServerFailure
    from agent_core.process.sandbox import Sandbox
    from agent_core.tools.output import ExpectedOutput

_DEFERRED_SHARE = 10
"""If definitions from outside take more than a tenth of the window, they are loaded on demand."""

_DEFINITIONS_SHARE = 8
"""Definitions loaded by one search take at most an eighth of the window."""

_READ_FILE = "code.read_file"
WEB_FETCH = "web.fetch"

logger = logging.getLogger(__name__)


class Toolboxes:
    """Fills the toolbox of each run.

    Args:
        setup: provides the workspace, the disabled tools and the overrides.
        registered: the caller's own tools; read again for every run.
        mcp: the user's servers, if there are any.
        launcher: starts the programs of tools.
        sandbox: confines these programs; None for no sandbox.
        can_ask: true if there is a permission callback.
        own: tools that the program gives every run.
        agents: agents that every run may start, and agents that it may hand its conversation to.

    Attributes:
        changes: how often tools were added.
    """

    def __init__(
        self,
        setup: Setup,
        registered: ToolRegistry,
        mcp: "McpTools | None" = None,
        *,
        launcher: Launcher,
        sandbox: "Sandbox | None" = None,
        can_ask: bool = False,
        own: Iterable[Tool] = (),
        agents: "tuple[Sequence[Agent[Any]], Sequence[Agent[Any]]]" = ((), ()),
    ) -> None:
        self._agents, self._handoffs = agents
        self.can_ask = can_ask
        self._setup = setup
        self._registered = registered
        self._mcp = mcp
        self._workspace = Workspace.of(setup, launcher=launcher, sandbox=sandbox)
        self._declared = _declared_tools(setup, launcher, sandbox)
        self._declared_names = {tool.name for tool in self._declared}
        self._opened: list[Tool] = [*own]
        self._has_checked_settings = False
        self.changes = 0
        tools = setup.config.tools
        self._are_changed = bool(
            tools.disabled
            or tools.overrides
            or tools.mcp.disabled_servers
            or tools.mcp.disabled_tools
            or tools.mcp.tool_overrides
        )
        self._disabled: dict[str, bool] = {}
        # Tool schemas are a twentieth of the start-up time: none is built for a disabled tool.
        wanted = [name for name in CODE_TOOLS if not self.is_disabled(name)]
        self._code = {name: code_tool(name, self._workspace) for name in wanted}
        if tools.web.enabled and not self.is_disabled(WEB_FETCH):
            self._code[WEB_FETCH] = _web_fetch(setup)
        self._plan_template: list[Tool] = []
        if not self.is_disabled(PLAN_TEMPLATE):
            self._plan_template = [plan_template_tool(setup.plans_dir, setup.project)]

    def check_names(self) -> None:
        """Check that no tool of the caller hides another tool.

        Raises:
            ConfigError: `validation_error`, naming the tool.
        """
        self.changes += 1
        own = [*self._declared, *self._registered, *self._opened]
        if own:
            taken = TakenNames([*BUILT_IN_TOOLS, *CODE_TOOLS, *self._code])
            for tool in own:
                if (other := taken.take(tool.name)) is not None:
                    message = taken_message(tool.name, other)
                    raise ArgumentError(message, "tools")
        self._check_generated_names(NO_OPTIONS)

    def _check_generated_names(self, options: RunOptions) -> None:
        """Check that no tool of a run has the name of one that the engine makes for it."""
        agents = [*options.agents, *self._agents]
        handoffs = [*options.handoffs, *self._handoffs]
        if not (agents or handoffs or options.output_type is not None):
            return
        from agent_core.loop.agent import (  # noqa: PLC0415 - few runs have agents
            check_generated_names,
            together,
        )

        tools = self.tools_of_user(options)
        names = [each.name for each in tools if options.offers(each.name)]
        check_generated_names(options, names, together(agents), together(handoffs))

    def add(self, tools: Iterable[Tool]) -> None:
        """Add the tools of one of the runtime's toolsets.

        Raises:
            ConfigError: `validation_error`: there is a tool of the same name; none of them is
                added.
        """
        taken, before = TakenNames(self.known_names()), self._opened
        added = [*tools]
        for tool in added:
            if (other := taken.take(tool.name)) is not None:
                message = f"{taken_message(tool.name, other)}, or give the toolset a prefix"
                raise ArgumentError(message, "tools")
        self._opened = [*before, *added]
        try:
            self._check_generated_names(NO_OPTIONS)
        except AgentCoreError:
            self._opened = before
            raise
        self.changes += 1

    def check_options(self, options: RunOptions, *, is_child: bool = False) -> None:
        """Check that a run names only existing tools, and brings none that hides another.

        A child of an agent may not have the tools that its parent may not have.

        Raises:
            AgentCoreError: `validation_error`, naming the option and the tool.
        """
        known = self.known_names()
        given = [each for each in options.tools or () if isinstance(each, Tool)]
        if brought := [each for each in given if not self._has(each)]:
            taken = TakenNames(known)
            for tool in brought:
                if (other := taken.take(tool.name)) is not None:
                    raise malformed_option(
                        "tools", f"cannot be used: {taken_message(tool.name, other)}"
                    )
                known.add(tool.name)
        self._check_generated_names(options)
        disabled = () if is_child else options.disabled_tools
        if disabled and (options.agents or options.handoffs or self._agents):
            from agent_core.loop.agent import tool_names  # noqa: PLC0415 - few runs have agents

            known |= tool_names([*options.agents, *options.handoffs, *self._agents])
        for option, names in (
            ("tools", [tool_name(t) for t in options.tools or () if not isinstance(t, Toolset)]),
            ("disabled_tools", disabled),
        ):
            for name in names:
                if name not in known and not name.startswith("mcp.") and name != EVERY_TOOL:
                    reason = f"names {name}, and there is no such tool{nearest(name, known)}"
                    raise malformed_option(option, reason)

    def _has(self, tool: Tool) -> bool:
        """Return whether every run has this tool, so that a run may name it by giving it."""
        if self._registered.get(tool.name) is tool:
            return True
        return any(each is tool for each in self._opened)

    def check_deps(self, options: RunOptions) -> None:
        """Check that the program's functions get the dependencies they are annotated with.

        Raises:
            ConfigError: `validation_error`, naming the tool or the output function.
        """
        if options.output_type is not None and (expected := options.expected()) is not None:
            check_deps(expected.functions, options.deps)
        if own := self._of_programs(options):
            wanted = self._wanted(own)
            check_deps([tool for tool in wanted if options.offers(tool.name)], options.deps)

    async def fill(
        self,
        spec: RunSpec,
        *,
        instructions: InstructionCatalog,
        skills: SkillCatalog,
        window: int,
        artifacts: ArtifactStore,
        expected: "ExpectedOutput | None" = None,
    ) -> Toolbox:
        """Return the toolbox of one run: the hard boundary of what it can see and do.

        Servers that cannot be reached are noted, and their tools are missing. A server that
        announces other tools during the run is asked for them before the next turn.

        Args:
            spec: describes the run.
            instructions: the instruction files that its tools find.
            skills: the skills that its tools load.
            window: context window of its model, in tokens; definitions may take a part of it.
            artifacts: the artifacts that it can read.
            expected: the required form of its answer.
        """
        register = LoadedInstructions(instructions, spec.view)
        workspace = replace(self._workspace, register=register, artifacts=artifacts)
        built_in: list[Tool] = []
        if skills.skills and not self.is_disabled(LOAD_SKILL):
            built_in.append(load_skill_tool(skills, spec.view))
        built_in += [*self._plan_template, *spec.tools]
        code = dict(self._code)
        if _READ_FILE in code:  # it notes the instruction files that its run has read
            code[_READ_FILE] = code_tool(_READ_FILE, workspace)
        programs = self._of_programs(spec.options)
        own = [*code.values(), *built_in, *self._declared, *programs]
        # `tools` restricts everything in a user's run, and the working tools of children and
        # workers.
        is_main = spec.run.role is AgentRole.MAIN
        if not self._has_checked_settings:
            self._check_settings({tool.name for tool in own} | BUILT_IN_TOOLS)
        revision = self._mcp.revision if self._mcp else 0
        reported: set[ServerFailure] = set()

        async def select() -> list[Tool]:
            served = await self._served(self._mcp, spec.journal, reported) if self._mcp else ()
            chosen = select_tools(
                spec.run.role,
                self._wanted([*own, *served]),
                granted=spec.granted,
                also=spec.free,
            )
            if self._mcp is not None:
                chosen += self._resource_tools(self._mcp, spec, chosen)
            if spec.options is NO_OPTIONS:
                return chosen
            offers = spec.options.offers
            return [
                tool
                for tool in chosen
                if offers(
                    tool.name,
                    is_free=tool.name in spec.free or not (is_main or does_work(tool.name)),
                )
            ]

        async def renew() -> list[Tool] | None:
            nonlocal revision
            if self._mcp is None or self._mcp.revision == revision:
                return None
            revision = self._mcp.revision
            return await select()

        tools = await select()
        deps = spec.options.deps
        if programs:
            check_deps(tools, deps)
        outside: list[ToolDefinition] = []
        if self._mcp is not None or self._declared_names or programs:
            outside = [tool.definition for tool in tools if self._is_deferrable(tool.name)]
        most = self._setup.config.tools.defer_above_tokens
        most = window // _DEFERRED_SHARE if most is None else most
        renewed = None if self._mcp is None else renew
        if not outside or estimate_tools(outside) <= most:
            return Toolbox(
                tools,
                renew=renewed,
                deps=deps,
                expected=expected,
                run=spec.run,
                ask_agent=spec.ask_agent,
            )
        from agent_core.tools.deferred import Deferral, DeferringToolbox  # noqa: PLC0415 - few

        return DeferringToolbox(
            tools,
            Deferral(self._is_deferrable, spec.view, room=window // _DEFINITIONS_SHARE),
            renew=renewed,
            deps=deps,
            expected=expected,
            run=spec.run,
            ask_agent=spec.ask_agent,
        )

    def _check_settings(self, known: set[str]) -> None:
        """Warn once about names in the settings that match no tool, such as a typo."""
        self._has_checked_settings = True
        config = self._setup.config.tools
        known |= {*CODE_TOOLS, WEB_FETCH}
        for key, names in (("disabled", config.disabled), ("overrides", config.overrides)):
            for name in names:
                if name not in known and not name.startswith("mcp."):
                    hint = nearest(name, known)
                    logger.warning(
                        "[tools] %s names %s, and there is no such tool%s", key, name, hint
                    )

    def forget_reads(self, agent_ids: Collection[str]) -> None:
        """Make the files that these agents have read count as unread."""
        self._workspace.seen.forget(agent_ids)

    def definitions(self) -> dict[str, ToolDefinition]:
        """Return every tool by name, for people who look at past requests.

        Disabled tools are included, since a run may have had them; tools of servers and of single
        runs are not.
        """
        from agent_core.runtime.built_in import built_in_definitions  # noqa: PLC0415 - rarely used

        code = {tool.name: tool for tool in code_tools(self._workspace)} | self._code
        tools = [*code.values(), *self._declared, *self._registered, *self._opened]
        known = {tool.name: tool.definition for tool in tools}
        return built_in_definitions() | known

    async def find(self, name: str) -> Tool:
        """Return a working tool, as runs have it.

        Raises:
            ToolError: `tool_not_available`: there is no such tool, or it is disabled.
        """
        is_served = name.startswith("mcp.") and self._mcp is not None
        served = await self._mcp.tools() if is_served and self._mcp else []
        code = self._code.values()
        every = [*code, *self._declared, *self._registered, *self._opened, *served]
        for tool in self._wanted(every):
            if tool.name == name:
                return tool
        names = {*CODE_TOOLS, WEB_FETCH, *(tool.name for tool in every)}
        is_known = name in names
        hint = "" if is_known else nearest(name, sorted(names))
        reason = "is disabled in the settings" if is_known else f"is not a known tool{hint}"
        raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, f"{shown_id(shorten_name(name))} {reason}")

    @property
    def programs_own(self) -> Sequence[Tool]:
        """The tools that the program has given to the runtime."""
        return [*self._registered, *self._opened]

    def is_known(self, name: str) -> bool:
        """Return whether there is a tool of this name, or the server that has it."""
        kind, _, rest = name.partition(".")
        if kind == "mcp":
            return self._mcp is not None and rest.partition(".")[0] in self._mcp.server_ids
        return name in self.known_names()

    async def has(self, name: str) -> bool:
        """Return whether runs can call this tool now; asks the server that has it."""
        if name in BUILT_IN_TOOLS:
            return not self.is_disabled(name)
        try:
            await self.find(name)
        except ToolError:
            return False
        return True

    def built_in_names(self) -> set[str]:
        """Return the names of the engine's own tools."""
        from agent_core.mcp.resources import READ_RESOURCE  # noqa: PLC0415 - few have hooks
        from agent_core.tools.deferred import CALL_TOOL, FIND_TOOLS  # noqa: PLC0415 - likewise

        extra = {FIND_TOOLS, CALL_TOOL, READ_RESOURCE}
        return {*BUILT_IN_TOOLS, *CODE_TOOLS, *self._code, *extra}

    def tagged_definitions(self) -> dict[str, ToolDefinition]:
        """Return every tool by name, as `definitions` does, with the tags of the settings."""
        known = self.definitions()
        for name, override in self._setup.config.tools.overrides.items():
            if name in known and override.tags is not None:
                known[name] = known[name].model_copy(update={"tags": set(override.tags)})
        return known

    def tools_of_user(self, options: RunOptions) -> list[Tool]:
        """Return the tools of the user, the program and a run, without servers' tools."""
        return [*self._declared, *self._of_programs(options)]

    def known_names(self) -> set[str]:
        """Return the names of all tools that a definition may suggest, except tools of servers."""
        tools = (*self._declared, *self._registered, *self._opened)
        return {*BUILT_IN_TOOLS, *CODE_TOOLS, *self._code, *(tool.name for tool in tools)}

    def offered(self, options: RunOptions) -> list[ToolDefinition]:
        """Return the working tools of a user's run, without servers' tools."""
        own = [*self._code.values(), *self._declared, *self._of_programs(options)]
        return [each.definition for each in self._wanted(own) if options.offers(each.name)]

    async def work_tools(self, options: RunOptions) -> Mapping[str, ToolDefinition]:
        """Return all tools a run may grant: all but the built-in `agent.*` and `internal.*`."""
        served = await self._mcp.tools() if self._mcp else []
        own = [*self._code.values(), *self._declared, *self._of_programs(options)]
        wanted = self._wanted([*own, *served])
        return {tool.name: tool.definition for tool in wanted if options.offers(tool.name)}

    def _of_programs(self, options: RunOptions) -> list[Tool]:
        """Return the tools that the program has registered, or has given to a run."""
        found: dict[str, Tool] = {}
        for tool in chain(self._registered, self._opened, options.tools or ()):
            if isinstance(tool, Tool):
                found.setdefault(tool.name, tool)
        return [*found.values()]

    def is_disabled(self, name: str) -> bool:
        """Return whether the user's settings disable this tool for everybody."""
        if not self._are_changed:
            return False
        known = self._disabled.get(name)
        if known is None:
            known = self._disabled[name] = self._look_up_disabled(name)
        return known

    def _look_up_disabled(self, name: str) -> bool:
        config = self._setup.config.tools
        kind, _, rest = name.partition(".")
        server = rest.partition(".")[0] if kind == "mcp" else None
        overrides = (config.overrides.get(name), config.mcp.tool_overrides.get(name))
        return (
            name in {*config.disabled, *config.mcp.disabled_tools}
            or server in config.mcp.disabled_servers
            or any(override and override.disabled for override in overrides)
        )

    def _is_deferrable(self, name: str) -> bool:
        """Return whether a tool is from outside: its definition may be loaded on demand."""
        return name.startswith("mcp.") or name in self._declared_names

    async def _served(
        self, mcp: "McpTools", journal: Journal, reported: "set[ServerFailure]"
    ) -> list[Tool]:
        async def note(failure: "ServerFailure") -> None:
            if failure not in reported:
                reported.add(failure)
                await note_failure(journal, failure)

        return await mcp.tools(on_failure=note)

    def _resource_tools(
        self, mcp: "McpTools", spec: RunSpec, chosen: Iterable[Tool]
    ) -> Iterator[Tool]:
        """Yield the tool that reads resources, if the run may use a server with resources."""
        servers = {name for name, offer in mcp.offers.items() if offer.has_resources}
        if spec.granted is not None or ROLE_TOOLS[spec.run.role].work is not None:
            servers &= servers_of(tool.name for tool in chosen)
        if servers:
            tool = mcp.resource_tool(servers)
            if not self.is_disabled(tool.name):
                yield tool

    def _wanted(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Return the tools the user has not disabled, with the user's permissions and tags."""
        if not self._are_changed:
            return tools
        wanted: list[Tool] = []
        overrides = self._setup.config.tools.overrides
        for tool in tools:
            if not self.is_disabled(tool.name):
                override = overrides.get(tool.name)
                wanted.append(apply_override(tool, override) if override else tool)
        return wanted


async def note_failure(journal: Journal, failure: "ServerFailure") -> None:
    """Note that tools of a server are missing."""
    payload = {"server_id": failure.server_id, "message": failure.message}
    journal.note(EventType.MCP_SERVER_FAILED, payload, level=EventLevel.WARNING)


def servers_of(names: Iterable[str]) -> set[str]:
    """Return the ids of the servers that these tools belong to."""
    return {name.split(".")[1] for name in names if name.startswith("mcp.")}


def _web_fetch(setup: Setup) -> Tool:
    """Make the tool that reads pages; few users have it."""
    from agent_core.tools.web.fetch import web_fetch  # noqa: PLC0415

    config = setup.config
    networks = (config.tools.network, config.permissions.network_policy)
    return web_fetch(config.tools, [host for each in networks for host in each.allowed_hosts])


def _declared_tools(setup: Setup, launcher: Launcher, sandbox: "Sandbox | None") -> list[Tool]:
    """Load the user's own tools in `<home>/tools`; a broken file is reported and left out."""
    if not (setup.settings_home / "tools").is_dir():
        return []
    # The schema checker is only loaded for users who have such tools.
    from agent_core.tools.declarative import declarative_tools  # noqa: PLC0415

    tools, problems = declarative_tools(setup, launcher=launcher, sandbox=sandbox)
    for problem in problems:
        logger.warning("a tool was skipped: %s", problem)
    return tools

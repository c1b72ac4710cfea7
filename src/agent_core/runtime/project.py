"""Parts of a project: settings, tools, permissions, hooks, servers, agent definitions."""

import asyncio
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from msgspec import Struct

from agent_core.agents.definitions import AgentDefinitions, check_definition, check_definitions
from agent_core.aio import finish_uncancelled
from agent_core.config.load import Profile, config_secrets
from agent_core.config.models import ModelConfig
from agent_core.config.paths import Setup, expand_path, resolve_project, tasks_folder
from agent_core.config.problems import unusable
from agent_core.context.instructions import InstructionCatalog, find_instructions, walk_project
from agent_core.context.loaded import with_text
from agent_core.context.skills import SkillCatalog, find_skills
from agent_core.errors import ArgumentError, ConfigError, ErrorCode, validation_error
from agent_core.events import Journal
from agent_core.extensions import ExtensionContext, Extensions, installed_extensions
from agent_core.loop.context import HistorySource
from agent_core.loop.option_checks import checked_extensions, malformed_option
from agent_core.loop.options import NO_OPTIONS, RunOptions, with_contributions
from agent_core.memory.current import CurrentMemories, find_memories
from agent_core.memory.folder import MemoryFolder
from agent_core.permissions.gate import PermissionGate, UserRules
from agent_core.process import Launcher
from agent_core.process.environment import HOOK, command_environment
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.options import RuntimeOptions
from agent_core.runtime.toolboxes import Toolboxes, note_failure
from agent_core.text import nearest, shown_value
from agent_core.tools.registry import RESERVED
from agent_core.tools.sensitive import user_homes
from agent_core.tools.toolsets import Toolset, opened
from agent_core.tools.workspace import PathPolicy
from agent_core.types import (
    AgentDefinition,
    Draft,
    Node,
    NodeType,
    PermissionMode,
    RunIdentity,
    StoredOptions,
)

if TYPE_CHECKING:
    from agent_core.hooks import HookRunner
    from agent_core.loop.options import Agent
    from agent_core.mcp import McpTools, McpToolset
    from agent_core.mcp.config import ServerConfig
    from agent_core.mcp.discovery import Offer
    from agent_core.permissions.saved_rules import SavedRules
    from agent_core.process.sandbox import Sandbox
    from agent_core.types import CleanupResult

logger = logging.getLogger(__name__)

_NEVER_CALLED = (
    "nobody can be asked here, so every call of these tools is denied: {}. Give the runtime a"
    " permission_callback, allow them with rules, make your own tools readonly, or leave them out"
    " (disabled_tools)"
)


class ProjectContext(Struct, frozen=True):
    """The texts found in home and project at the start of a run; `memories` are the run's own."""

    instructions: InstructionCatalog
    skills: SkillCatalog
    memories: CurrentMemories

    def current_text(self, node: Node) -> Node | None:
        """Return a loaded text as it is on disk; the same node if unchanged, None if it is gone."""
        if node.node_type is NodeType.SKILL_CONTEXT:
            return self.skills.current(node)
        if node.node_type is NodeType.INSTRUCTION_CONTEXT:
            return self.instructions.current(node)
        if node.node_type is NodeType.MEMORY_CONTEXT:
            return self._current_memories(node)
        return node

    def _current_memories(self, node: Node) -> Node | None:
        texts = self.memories.changed_texts(node)
        if texts is None:
            return node
        if not texts:
            return None
        hashes = {memory.memory_id: memory.version for memory in texts}
        text, version = "\n\n".join(texts.values()), " ".join(hashes.values())
        return with_text(node, text, version, ids=list(hashes), hashes=hashes)


class Project:
    """State shared by the runs of one project. Hooks and servers come from the user's home.

    Args:
        setup: the settings and paths.
        options: the caller's arguments.
        redactor: learns every secret that servers and agent definitions name.
        launcher: starts the programs of tools, hooks and servers.

    Raises:
        ConfigError: a file of the home, a tool or an agent definition cannot be used.
    """

    def __init__(
        self, setup: Setup, options: RuntimeOptions, *, redactor: Redactor, launcher: Launcher
    ) -> None:
        config = setup.config
        self.setup = setup
        self.task_logs = None if setup.persist else options.in_memory.task_logs
        self._redactor = redactor
        self._paths = PathPolicy.of(setup)
        self.walk = walk_project(setup.project, self._paths.is_closed)
        self._sandbox = load_sandbox(setup, self._paths)
        self.hooks = _load_hooks(setup, launcher, self._sandbox)
        self._servers: Collection[str] = ()
        self.mcp: McpTools | None = None
        self.launcher = launcher
        self._elicit = options.elicitation_callback
        self._toolsets = [each for each in options.toolsets if not is_server(each)]
        self._toolsets_stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self.mcp = self._load_servers([each for each in options.toolsets if is_server(each)])
        self.toolboxes = Toolboxes(
            setup,
            options.tools,
            self.mcp,
            launcher=launcher,
            sandbox=self._sandbox,
            can_ask=options.permission_callback is not None
            or config.permissions.unattended != "deny",
            own=options.own_tools,
            agents=(options.agents, options.handoffs),
        )
        self.toolboxes.check_names()
        self._check_matchers()
        self.extensions = [
            *installed_extensions(config.runtime.extensions),
            *checked_extensions(options.extensions),
        ]
        self._settings_home = setup.settings_home
        self.agents, self.handoffs = options.agents, options.handoffs
        of_agents = [each.definition() for each in options.agents]
        self.definitions = AgentDefinitions(self._settings_home, [*options.definitions, *of_agents])
        check_definitions(self.definitions, config, self.toolboxes.known_names())
        self._learn_secrets(*self.definitions.profiles())
        self.gate = PermissionGate(
            options.permission_callback,
            config.permissions,
            rules=_load_rules(setup, self._paths, redactor),
            network=config.tools.network,
            project_dir=setup.project,
            redactor=redactor,
        )
        self._told: set[str] = set()
        self._plain_warnings: tuple[int, list[str]] = (-1, [])

    def register_definition(self, definition: AgentDefinition) -> None:
        """Add an agent definition of the program, and learn the secrets it names.

        Raises:
            ConfigError: `duplicate_agent_definition`, `invalid_agent_override`,
                `invalid_agent_definition`.
        """
        check_definition(definition, self.setup.config, self.toolboxes.known_names())
        self.definitions.register(definition)
        self._learn_secrets(definition.model_profile)

    def agents_of(self, options: RunOptions) -> "Sequence[Agent[Any]]":
        """Return the agents that a run may start: its own, and the runtime's."""
        if not options.agents:
            return self.agents
        from agent_core.loop.agent import together  # noqa: PLC0415 - few runs have any

        return together(options.agents, self.agents)

    def handoffs_of(self, options: RunOptions) -> "Sequence[Agent[Any]]":
        """Return the agents that a run may hand its conversation to: its own, and the runtime's."""
        if not options.handoffs:
            return self.handoffs
        from agent_core.loop.agent import together  # noqa: PLC0415 - few runs have any

        return together(options.handoffs, self.handoffs)

    def find_agent(self, name: str, options: RunOptions) -> "Agent[Any] | AgentDefinition":
        """Return the agent, or the definition, that a run names.

        Raises:
            AgentCoreError: `validation_error`: there is neither.
        """
        for agent in (*self.agents_of(options), *self.handoffs_of(options)):
            if agent.name == name:
                return agent
        if found := self.definitions.find(name):
            return found
        known = sorted(each.agent_definition_id for each in self.definitions.listed())
        reason = f"names {shown_value(name)}, but there is no such agent{nearest(name, known)}"
        raise malformed_option("agent", reason)

    def agent_of(self, stored: StoredOptions, given: RunOptions) -> "Agent[Any] | None":
        """Return the agent of a run that another process has started.

        Args:
            stored: the options of the run.
            given: options that the program has handed over again.

        Returns:
            The agent; None if the run has none, or only a definition, or it is not known here.
        """
        for agent in (*self.agents_of(given), *self.handoffs_of(given)):
            if agent.name == stored.agent:
                return agent
        return None

    def _check_matchers(self) -> None:
        """Check that every matcher of the hooks can be met by some tool.

        Raises:
            ConfigError: no tool of any program can meet one.
        """
        if self.hooks is None or self.hooks.file is None:
            return
        from agent_core.hooks.matchers import find_impossible  # noqa: PLC0415 - few have hooks

        built_in = self.toolboxes.built_in_names()
        problem = find_impossible(self.hooks.file, built_in, self.toolboxes.tagged_definitions)
        if problem is not None:
            raise unusable(self.setup.home / "hooks.json", "hooks", problem)

    def unmet_matchers(self, options: RunOptions) -> list[str]:
        """Return the matchers of hooks that no tool of a run can meet, as far as that is known.

        Tools of servers are known once these have listed them.
        """
        if self.hooks is None or self.hooks.file is None or not self.hooks.is_on:
            return []
        from agent_core.hooks.matchers import KnownTools, find_unmet  # noqa: PLC0415 - likewise

        own = self.toolboxes.tools_of_user(options)
        tools = self.setup.config.tools
        overrides = (*tools.overrides.values(), *tools.mcp.tool_overrides.values())
        tags = {tag for each in own for tag in each.definition.tags}
        tags |= {tag for each in overrides for tag in each.tags or ()}
        offers: Mapping[str, Offer] = self.mcp.offers if self.mcp else {}
        known = KnownTools(
            names=self.toolboxes.built_in_names() | {each.name for each in own},
            tags=tags,
            servers={*self._servers, *(self.mcp.server_ids if self.mcp else ())},
            served={
                server: [f"mcp.{server}.{tool.name}" for tool in offer.tools]
                for server, offer in offers.items()
            },
        )
        return list(find_unmet(self.hooks.file, known))

    def tell_unmet_matchers(self, options: RunOptions) -> None:
        """Log each matcher of hooks that no tool of this run can meet."""
        for problem in self.unmet_matchers(options):
            logger.warning("hooks.json: %s", problem)

    def start_warnings(self, options: RunOptions, *, may_call: bool) -> list[str]:
        """Return what the caller of a run has to know before it begins.

        Args:
            options: of the run.
            may_call: it is executed here, and may call tools.
        """
        warnings = [] if self.hooks is None else self._hook_warnings()
        if not may_call or self.toolboxes.can_ask:
            return warnings
        state, known = self._plain_warnings
        if options is not NO_OPTIONS or state != self.toolboxes.changes:
            known = self._call_warnings(options)
        return [*warnings, *known]

    def _call_warnings(self, options: RunOptions) -> list[str]:
        """Return the warning about tools that can never be called.

        It is logged the first time if tools of the program are among them: a program that lets the
        model only read has the others by default. The tools of servers are not known yet.
        """
        mode: PermissionMode = options.permission_mode or "ask"
        offered = self.toolboxes.offered(options)
        asks_inside = self._sandbox is None or self.setup.config.sandbox.ask_inside
        denied = sorted(
            each.name
            for each in offered
            if self.gate.asks_for_every_call(each, mode, asks_inside=asks_inside)
        )
        warnings = [_NEVER_CALLED.format(", ".join(denied))] if denied else []
        if options is NO_OPTIONS:
            self._plain_warnings = (self.toolboxes.changes, warnings)
        is_news = any(not name.startswith(RESERVED) for name in denied)
        if is_news and warnings[0] not in self._told:
            self._told.add(warnings[0])
            logger.warning("%s", warnings[0])
        return warnings

    def _hook_warnings(self) -> list[str]:
        """Return what the caller of a run has to know about the user's hooks."""
        if self.hooks is None or not self.hooks.is_on:
            return []
        if event := os.environ.get(HOOK):
            return [f"hooks do not run here: this program was started by a hook ({HOOK}={event})"]
        return []

    def find_project_context(self, memory: MemoryFolder | None, scope: str) -> ProjectContext:
        """Find the instructions, skills and memories of a scope; blocks on files."""
        setup = self.setup
        skills = find_skills(self._settings_home)
        for problem in skills.problems:
            logger.warning("a skill was skipped: %s", problem)
        is_closed = self._paths.is_closed
        instructions = find_instructions(
            self._settings_home,
            setup.project,
            is_closed=is_closed,
            preload=setup.config.context.instructions == "preloaded",
            walk=self.walk,
        )
        for problem in instructions.problems:
            logger.warning("an instruction file is listed by its path only: %s", problem)
        return ProjectContext(instructions, skills, find_memories(memory, scope))

    @property
    def servers(self) -> "McpTools":
        """The MCP servers.

        Raises:
            AgentCoreError: `validation_error`: there are no servers.
        """
        if self.mcp is None:
            message = f"there is no MCP server in {self.setup.home / 'mcp.json'}"
            raise validation_error(message)
        return self.mcp

    def with_mentions(self, history: HistorySource, prompt: Draft | None) -> HistorySource:
        """Extend a history by the resources that a message names as `@server:uri`."""
        if self.mcp is None or prompt is None:
            return history
        from agent_core.runtime.mentions import (  # noqa: PLC0415 - few programs have servers
            MentionedResources,
            find_mentions,
        )

        mentions = find_mentions(prompt.words, self.mcp.server_ids)
        limit = self.setup.config.tools.result_limit_bytes
        return (
            MentionedResources(history, mentions, self.mcp, limit_bytes=limit)
            if mentions
            else history
        )

    async def cleanup_tasks(
        self,
        project: str | Path,
        *,
        dry_run: bool,
        include_failed: bool,
        include_cancelled: bool,
        older_than: datetime | None,
    ) -> "CleanupResult":
        """Find the logs of a project's Tasks that are over, and delete them unless it is a dry run.

        Raises:
            ConfigError: there is no such project.
            AgentCoreError: `validation_error`: `older_than` is naive.
        """
        # Tasks are a third of all code, and most programs have none.
        from agent_core.tasks import TaskStatus, cleanup_ended_tasks  # noqa: PLC0415

        folder = resolve_project(project)
        statuses = {TaskStatus.COMPLETED}
        statuses |= {TaskStatus.FAILED} if include_failed else set()
        statuses |= {TaskStatus.CANCELLED} if include_cancelled else set()
        return await asyncio.to_thread(
            cleanup_ended_tasks,
            tasks_folder(self.setup.config.task.wal_dir, home=self.setup.home, project=folder),
            project_dir=folder,
            statuses=statuses,
            older_than=older_than,
            dry_run=dry_run,
        )

    def learn_secrets(self, model: ModelConfig) -> None:
        """Learn the secrets of a run's own model."""
        config = self.setup.config.model_copy(update={"model": model})
        self._redactor.learn(config_secrets(config, environ=os.environ))

    async def open_toolsets(self) -> None:
        """Open the runtime's toolsets, except MCP servers; does nothing the second time.

        Raises:
            ToolError: `tool_not_available`: a toolset cannot be opened; a later run tries again.
            ConfigError: `validation_error`: a name is taken.
        """
        if not self._toolsets:
            return
        async with self._opening:
            while self._toolsets:
                async with AsyncExitStack() as stack:
                    self.toolboxes.add(await stack.enter_async_context(opened(self._toolsets[0])))
                    self._toolsets_stack.push_async_exit(stack.pop_all())
                del self._toolsets[0]

    async def close_toolsets(self) -> None:
        """Close the toolsets of the runtime."""
        await self._toolsets_stack.aclose()

    def with_contributions(self, options: RunOptions, run: RunIdentity) -> RunOptions:
        """Return the options of a run with what its extensions contribute.

        Raises:
            AgentCoreError: an extension failed.
        """
        extensions = [*self.extensions, *options.extensions]
        if not extensions:
            return options
        context = ExtensionContext(run=run, deps=options.deps)
        return with_contributions(options, Extensions(context, extensions))

    async def with_toolsets(
        self, options: RunOptions, journal: Journal, opened_until: AsyncExitStack
    ) -> RunOptions:
        """Open the toolsets of the options until a stack is closed; return them with their tools.

        An MCP server that cannot be reached is reported, and its tools are missing.

        Raises:
            ToolError: `tool_not_available`: a toolset cannot be opened.
            AgentCoreError: `validation_error`: a name is taken.
        """
        await self.open_toolsets()
        given = options.tools
        sets = [each for each in given if isinstance(each, Toolset)] if given else []
        if not given or not sets:
            return options
        tools = [each for each in given if not isinstance(each, Toolset)]
        servers = [each for each in sets if is_server(each)]
        for each in sets:
            if not is_server(each):
                tools += await opened_until.enter_async_context(opened(each))
        if servers:
            served = self._serve(self._named(servers))
            opened_until.push_async_callback(lambda: finish_uncancelled(served.aclose()))
            tools += await served.tools(on_failure=partial(note_failure, journal))
        found = replace(options, tools=tools)
        self.toolboxes.check_options(found)
        return found

    def _load_servers(self, given: "Sequence[McpToolset]") -> "McpTools | None":
        """Load the servers of `<home>/mcp.json` and of the program; none is started yet.

        The secrets of disabled servers are learned too.
        """
        setup = self.setup
        has_file = (setup.settings_home / "mcp.json").exists()
        if not given and not has_file:
            return None
        # The client and its SDK are only loaded for users who have servers.
        from agent_core.mcp import enabled, read_servers  # noqa: PLC0415

        declared = read_servers(setup.home, setup.project) if has_file else {}
        self._servers = frozenset(declared)
        servers = self._named(given, taken=declared)
        if not servers and not enabled(declared):
            return None
        return self._serve(servers, declared)

    def _named(
        self, given: "Sequence[McpToolset]", taken: Collection[str] = ()
    ) -> "dict[str, McpToolset]":
        """Return the servers by name.

        Raises:
            ConfigError: `validation_error`: two servers have the same name.
        """
        known = {*taken, *(self.mcp.server_ids if self.mcp else ())}
        named: dict[str, McpToolset] = {}
        for each in given:
            if each.name in known:
                message = f"there is already an MCP server named {each.name}; give yours another"
                raise ArgumentError(message, "toolsets")
            known.add(each.name)
            named[each.name] = each
        return named

    def _serve(
        self,
        given: "Mapping[str, McpToolset]",
        declared: "Mapping[str, ServerConfig] | None" = None,
    ) -> "McpTools":
        from agent_core.mcp import (  # noqa: PLC0415
            Host,
            McpTools,
            enabled,
            secret_values,
            stored_secrets,
        )

        setup, redactor = self.setup, self._redactor
        servers = {**(declared or {}), **{name: each.server for name, each in given.items()}}
        redactor.learn(secret_values(servers) | stored_secrets(setup.home))

        def log(server_id: str, line: str) -> None:
            logger.debug("%s: %s", server_id, redactor.text(line))

        host = Host(
            log=log,
            launcher=self.launcher,
            sandbox=self._sandbox,
            elicit=self._elicit,
            home=setup.home,
            persist=setup.persist,
            learn=redactor.learn,
            clean=redactor.text,
        )
        filters = {name: each.filter for name, each in given.items() if each.filter is not None}
        return McpTools(enabled(servers), setup.config.tools, host=host, filters=filters)

    def _learn_secrets(self, *profiles: Profile) -> None:
        self._redactor.learn(config_secrets(self.setup.config, *profiles, environ=os.environ))


def is_server(toolset: Toolset) -> "TypeGuard[McpToolset]":
    """Return whether a toolset is an MCP server."""
    from agent_core.mcp.toolsets import McpToolset  # noqa: PLC0415 - for programs with toolsets

    return isinstance(toolset, McpToolset)


_CACHE_FOLDERS = (".cache/", ".gradle/", ".local/state/pnpm/", ".npm/", "Library/Caches/")
"""Folders of package managers in a home that may be listed as caches, with what is in them."""


def load_sandbox(setup: Setup, paths: PathPolicy) -> "Sandbox | None":
    """Load the sandbox that confines started programs; None if it is off.

    Raises:
        ConfigError: a folder of `caches` is sensitive.
    """
    if setup.config.sandbox.mode == "off":
        return None
    _check_caches(setup, paths)
    from agent_core.process.sandbox import Sandbox  # noqa: PLC0415 - for users who have it on

    return Sandbox.of(setup, own=paths.protected)


def _check_caches(setup: Setup, paths: PathPolicy) -> None:
    """Check that no folder of `caches` is sensitive, or has something sensitive in it.

    Raises:
        ConfigError: one is.
    """
    project = setup.project
    homes = [os.path.realpath(each) for each in user_homes(os.environ.get("HOME"))]
    usual = tuple(f"{each}/{name}" for each in homes for name in _CACHE_FOLDERS)
    for at, value in enumerate(setup.config.sandbox.caches):
        cache = Path(
            os.path.realpath(expand_path(value, project, home=setup.home, project=project))
        )
        if f"{cache}/".startswith(usual):
            continue
        inside: list[Path] = []
        with suppress(OSError):
            inside = sorted(cache.iterdir())
        found = next(filter(paths.is_sensitive, (cache, *inside)), None)
        if found is not None:
            message = (
                f"{setup.config_path}: sandbox.caches[{at}] must not hold sensitive files, and"
                f" {found} is sensitive: every confined program can write there. List the folder"
                " that a package manager fills, such as ~/.cargo/registry"
            )
            raise ConfigError(ErrorCode.CONFIG_ERROR, message)


def _load_rules(setup: Setup, paths: PathPolicy, redactor: Redactor) -> UserRules:
    """Load the user's rules, and find out whether answers may add to them."""
    permissions, home = setup.config.permissions, setup.settings_home
    rules = None
    # As with servers: only loaded for users who have rules, or are asked.
    if permissions.rules or os.path.lexists(home / "rules.toml"):
        from agent_core.runtime.permission_rules import load_rules  # noqa: PLC0415

        rules = load_rules(setup, paths)

    def open_saved() -> "SavedRules":
        from agent_core.permissions.rules import RuleSet  # noqa: PLC0415
        from agent_core.permissions.saved_rules import SavedRules  # noqa: PLC0415
        from agent_core.runtime.permission_rules import rule_context  # noqa: PLC0415

        return SavedRules(home, rules or RuleSet((), rule_context(setup, paths)), redactor)

    may_save = permissions.save_rules and setup.has_settings and setup.persist
    return UserRules(rules=rules, open_saved=open_saved if may_save else None)


def _load_hooks(setup: Setup, launcher: Launcher, sandbox: "Sandbox | None") -> "HookRunner | None":
    if not os.path.lexists(setup.settings_home / "hooks.json"):
        return None
    # As with servers: only loaded for users who have hooks.
    from agent_core.hooks import HookRunner, load_hooks  # noqa: PLC0415

    tools = setup.config.tools
    file = load_hooks(setup.home, max_timeout_ms=tools.max_timeout_ms)
    if file is None:
        return None
    return HookRunner(
        file,
        hooks=setup.config.hooks,
        tools=tools,
        project=setup.project,
        env=command_environment(tools.env_allowlist, os.environ),
        launcher=launcher,
        sandbox=sandbox,
    )
